"""The checkpoint shipped with the package and the tasks it was trained on."""

from __future__ import annotations

from pathlib import Path

__all__ = ["checkpoint_path"]


def checkpoint_path(name: str = "qwen3-tiny") -> Path:
    """Return the folder of a shipped checkpoint, in the layout that `from_pretrained` of transformers reads."""
    root = Path(__file__).resolve().parent
    there = sorted(path.parent.name for path in root.glob("*/config.json"))
    if name not in there:
        raise ValueError(f"No checkpoint {name!r} is shipped; there is: {', '.join(there) or 'none'}.")
    return root / name
