"""Where a checkpoint's files are: a shipped one, a local folder, or the Hugging Face hub."""

import json
from pathlib import Path
from typing import Any

from nanovllm.assets import checkpoint_path
from nanovllm.errors import CheckpointError

CHECKPOINTS = ("qwen3-tiny",)  # shipped with the package
# What AutoTokenizer makes of a configuration's tokenizer_class.
_TOKENIZERS = {
    "Qwen2Tokenizer": "Qwen2TokenizerFast",  # Qwen3's published checkpoints
    "Qwen2TokenizerFast": "Qwen2TokenizerFast",
    "PreTrainedTokenizerFast": "PreTrainedTokenizerFast",
    "TokenizersBackend": "PreTrainedTokenizerFast",  # the same, as transformers 5 writes it
}
_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]


def resolve_checkpoint(model: str) -> Path:
    """The local folder of `model`. Raises CheckpointError when it is neither a folder nor to be had from the hub."""
    if model in CHECKPOINTS:
        return checkpoint_path(model)
    folder = Path(model).expanduser()
    if model and folder.is_dir():  # Path("") is the current folder
        return folder
    shipped = ", ".join(map(repr, CHECKPOINTS))
    looks_like_hub_id = model.count("/") == 1 and not model.startswith((".", "/", "~"))
    if not looks_like_hub_id:
        raise CheckpointError(
            f"no checkpoint {model!r}: it is no folder here, no hub id (owner/name), and not shipped ({shipped} is)"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=_FILES))
    except Exception as e:  # the hub client raises many kinds: offline, unknown, gated
        raise CheckpointError(
            f"cannot get {model!r} from the Hugging Face hub ({type(e).__name__}: {e}); pass a local folder, or "
            f"{shipped}, which is shipped"
        ) from e


def eos_token_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """The ids that end a completion: generation_config.json's, else config.json's, and always the tokenizer's own.

    Raises CheckpointError when the file is damaged or the ids are no token ids.
    """
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        value = _read_object(path).get("eos_token_id") if path.exists() else None
        if value is not None:
            found += value if isinstance(value, list) else [value]
            if any(type(token_id) is not int or token_id < 0 for token_id in found):
                raise CheckpointError(f"{path}: eos_token_id must be a token id or a list of them, not {value!r}")
            break
    own = getattr(tokenizer, "eos_token_id", None)
    return frozenset(found if own is None else [*found, own])


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise CheckpointError(f"{path} is not valid JSON ({e}): download the checkpoint again") from None
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds a JSON {type(value).__name__}, not an object: download the checkpoint again"
        )
    return value


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's tokenizer, or None when the folder has none (then prompts must be token ids).

    Raises CheckpointError when its files are damaged.
    """
    config = folder / "tokenizer_config.json"
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        return None
    named = _read_object(config).get("tokenizer_class") if config.exists() else None
    # By its class where that is known: AutoTokenizer knows every model, for which some versions import half of torch.
    kind = _TOKENIZERS.get(str(named), "AutoTokenizer")
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(str(folder))
    except Exception as e:  # transformers and tokenizers raise many kinds for damaged files
        raise CheckpointError(
            f"cannot load the tokenizer in {folder} ({type(e).__name__}: {e}): download the checkpoint again, or pass "
            "skip_tokenizer_init=True and prompts as token ids"
        ) from e
