"""Write config.json and generation_config.json beside the weights and the tokenizer of a checkpoint.

Use:
    python -m training.export out/model.safetensors nanovllm/assets/qwen3-tiny
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer

from training.model import Shape
from training.tokenizer import END_OF_TEXT, IM_END


def write(path: Path, value: dict[str, object]) -> None:
    """Write indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export(weights: Path, folder: Path) -> None:
    """Copy the weights into `folder`, which holds the tokenizer, and write the two configuration files."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end, pad = tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END_OF_TEXT)
    if end is None or pad is None:
        raise ValueError(
            f"The tokenizer in {folder} lacks {IM_END} or {END_OF_TEXT}: train it with training.tokenizer."
        )
    eos = [end, pad]
    write(folder / "config.json", Shape().config(eos, pad))
    write(folder / "generation_config.json", {"do_sample": False, "eos_token_id": eos, "pad_token_id": pad})
    shutil.copyfile(weights, folder / "model.safetensors")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("Usage: python -m training.export WEIGHTS.safetensors CHECKPOINT_FOLDER")
    export(Path(sys.argv[1]), Path(sys.argv[2]))
