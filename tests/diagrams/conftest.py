"""The diagrams are no part of the installed package: their folder's parent goes on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
