"""The published config.json of a Qwen3 checkpoint, in the schema of transformers 4 or 5, checked and normalised."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanovllm.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN context extension (Peng et al., 2023, arXiv:2309.00071); names as in config.json."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    """Shape of a dense Qwen3. Sizes are numbers of features, heads, layers and tokens, as the names say."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    yarn: YarnScaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    dtype: str | None  # as the checkpoint names it

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model; a tied output layer counts once."""
        heads, kv_heads, d = self.num_attention_heads, self.num_key_value_heads, self.head_dim
        hidden = self.hidden_size
        attention = hidden * (2 * heads + 2 * kv_heads) * d + 2 * d  # q, k, v, o; two head norms
        bias = ((heads + 2 * kv_heads) * d + hidden) if self.attention_bias else 0
        layer = attention + bias + 3 * hidden * self.intermediate_size + 2 * hidden
        vocabularies = 1 if self.tie_word_embeddings else 2
        return self.num_hidden_layers * layer + vocabularies * self.vocab_size * hidden + hidden

    @classmethod
    def from_folder(cls, folder: Path) -> "Qwen3Config":
        """Read folder/config.json. Raises CheckpointError if it is missing, malformed, or not a dense Qwen3."""
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{folder} has no config.json: is it the folder of a checkpoint?") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as e:
            raise CheckpointError(f"{path} is not valid JSON ({e}): download the checkpoint again") from None
        if not isinstance(raw, dict):
            raise CheckpointError(f"{path} holds a JSON {type(raw).__name__}, not an object: is it a model's config?")
        return cls.from_dict(raw)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> "Qwen3Config":
        """Normalise a parsed config.json. Raises CheckpointError naming what is not supported."""
        _refuse_unsupported(raw)
        try:
            config = cls(
                vocab_size=int(raw["vocab_size"]),
                hidden_size=int(raw["hidden_size"]),
                intermediate_size=int(raw["intermediate_size"]),
                num_hidden_layers=int(raw["num_hidden_layers"]),
                num_attention_heads=int(raw["num_attention_heads"]),
                num_key_value_heads=int(raw["num_key_value_heads"]),
                head_dim=int(raw.get("head_dim") or 128),  # transformers' default, not hidden_size / heads
                max_position_embeddings=int(raw["max_position_embeddings"]),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope_theta=_rope_theta(raw),
                yarn=_yarn(raw),
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
                attention_bias=bool(raw.get("attention_bias", False)),
                dtype=raw.get("dtype") or raw.get("torch_dtype"),
            )
        except KeyError as e:
            raise CheckpointError(f"config.json lacks {e.args[0]!r}, which every Qwen3 checkpoint has") from None
        except CheckpointError:  # a ValueError too, with its own sentence
            raise
        except (TypeError, ValueError, OverflowError) as e:
            raise CheckpointError(f"config.json holds a value of the wrong type: {e}") from None
        config._check_sizes()
        return config

    def _sizes(self) -> list[tuple[str, int]]:
        names = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
        names += ["num_key_value_heads", "head_dim", "max_position_embeddings"]
        return [(name, getattr(self, name)) for name in names]

    def _check_sizes(self) -> None:
        for name, value in self._sizes():
            if value < 1:
                raise CheckpointError(f"config.json: {name} must be at least 1, not {value}")
        if not 0 < self.rope_theta < math.inf:
            raise CheckpointError(f"config.json: rope_theta must be a number above 0, not {self.rope_theta:g}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"config.json: head_dim must be even for rotary embeddings, not {self.head_dim}")


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    """Name the first thing in the config that this engine would compute wrongly."""
    model_type, architectures = raw.get("model_type"), raw.get("architectures") or []
    if model_type != "qwen3" or (architectures and "Qwen3ForCausalLM" not in architectures):
        named = ", ".join(map(str, architectures)) or "unknown"
        raise CheckpointError(
            f"this engine runs dense Qwen3 checkpoints only; this one is model_type {model_type!r} ({named})"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"hidden_act {raw['hidden_act']!r} is not supported: Qwen3 uses 'silu'")
    layer_types = raw.get("layer_types") or []
    if raw.get("use_sliding_window") or any(t != "full_attention" for t in layer_types):
        raise CheckpointError("sliding-window attention is not supported: only full attention in every layer")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise CheckpointError(f"quantised weights ({method}) are not supported: use the bf16 checkpoint")


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """The rope settings of either schema: transformers 5 nests them all, 4 has a flat theta beside rope_scaling.

    Where both stand rope_scaling wins, as in transformers: it is what a reader adds to ask for yarn.
    """
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise CheckpointError(f"config.json: rope settings must be one object for all layers, not {rope!r}")
    return rope


def _rope_theta(raw: dict[str, Any]) -> float:
    theta = _rope(raw).get("rope_theta", raw.get("rope_theta"))
    return float(10000.0 if theta is None else theta)


def _yarn(raw: dict[str, Any]) -> YarnScaling | None:
    rope = _rope(raw)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type == "default":
        return None
    if rope_type != "yarn":
        raise CheckpointError(f"rope type {rope_type!r} is not supported: 'default' and 'yarn' are")
    unknown = {"mscale", "mscale_all_dim", "truncate"} & rope.keys()
    if unknown:
        raise CheckpointError(
            f"yarn option {sorted(unknown)[0]!r} is not supported: remove it or use another checkpoint"
        )
    original = rope.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    factor = rope.get("attention_factor")
    return YarnScaling(
        factor=float(rope["factor"]),
        original_max_position_embeddings=int(original),
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        attention_factor=None if factor is None else float(factor),
    )
