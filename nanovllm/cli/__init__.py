"""The command line: `nanovllm generate`, `nanovllm demo`, `nanovllm info`.

Read in this order: `main.py` (the parser, errors and exit codes), `generate.py`, `demo.py` (the guided run) with
`demo_script.py` (its requests) and `demo_views.py` (its drawings), `info.py` and `machine.py`.
"""

from nanovllm.cli.main import main

__all__ = ["main"]
