"""config.json: what is read from it, and each thing that is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import make_llm, tiny_config, write_checkpoint, write_config

from nanovllm.errors import CheckpointError
from nanovllm.qwen3.config import Qwen3Config

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_the_published_config_of_qwen3_06b() -> None:
    config = Qwen3Config.from_dict(QWEN3_06B)
    assert (config.hidden_size, config.num_attention_heads, config.head_dim) == (1024, 16, 128)
    assert (config.num_hidden_layers, config.num_key_value_heads, config.vocab_size) == (28, 8, 151936)
    assert (config.rope_theta, config.yarn, config.max_position_embeddings) == (1e6, None, 40960)
    assert (config.tie_word_embeddings, config.attention_bias, config.dtype) == (True, False, "bfloat16")


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_is_named_by_either_key(key: str) -> None:
    other = {"dtype": "torch_dtype", "torch_dtype": "dtype"}[key]
    assert Qwen3Config.from_dict(tiny_config(without=[other], **{key: "float16"})).dtype == "float16"


def test_absent_options_take_the_defaults_of_transformers() -> None:
    raw = tiny_config(without=["head_dim", "rms_norm_eps", "tie_word_embeddings", "attention_bias", "hidden_act"])
    config = Qwen3Config.from_dict(raw)
    assert config.head_dim == 128
    assert config.rms_norm_eps == 1e-6
    assert not config.tie_word_embeddings
    assert not config.attention_bias


def test_yarn_is_read() -> None:
    rope = YARN | {"original_max_position_embeddings": 256, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.5}
    yarn = Qwen3Config.from_dict(tiny_config(rope_parameters=rope)).yarn
    assert yarn is not None
    assert (yarn.factor, yarn.original_max_position_embeddings) == (4.0, 256)
    assert (yarn.beta_fast, yarn.beta_slow, yarn.attention_factor) == (16.0, 2.0, 0.5)


MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, r"dense Qwen3.*'llama' \(LlamaForCausalLM\)"),
    ({"model_type": "mistral", "architectures": ["MistralForCausalLM"]}, r"'mistral' \(MistralForCausalLM\)"),
    ({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, r"'qwen2' \(Qwen2ForCausalLM\)"),
    (MOE, r"'qwen3_moe' \(Qwen3MoeForCausalLM\)"),
    ({"model_type": None, "architectures": None}, r"model_type None \(unknown\)"),
    ({"use_sliding_window": True, "sliding_window": 128}, "sliding-window attention is not supported"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window attention is not supported"),
    ({"quantization_config": {"quant_method": "fp8"}}, r"quantised weights \(fp8\) are not supported"),
    ({"quantization_config": {"bits": 4}}, r"quantised weights \(unknown\) are not supported"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope type 'linear' is not supported"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not supported"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope type 'llama3' is not supported"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope' is not supported"),
    ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear'"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope type 'linear'"),
    ({"rope_parameters": YARN | {"mscale": 1.0}}, "yarn option 'mscale' is not supported"),
    ({"rope_parameters": YARN | {"mscale_all_dim": 1.0}}, "yarn option 'mscale_all_dim' is not supported"),
    ({"rope_parameters": YARN | {"truncate": False}}, "yarn option 'truncate' is not supported"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "lacks 'factor'"),
    ({"rope_scaling": "yarn"}, "rope settings must be one object for all layers, not 'yarn'"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope settings must be one object for all layers"),
    ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
    ({"num_key_value_heads": 0}, "num_key_value_heads must be at least 1, not 0"),
    ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, not 0"),
    ({"vocab_size": -1}, "vocab_size must be at least 1, not -1"),
    ({"head_dim": 15}, "head_dim must be even .* not 15"),
    ({"num_attention_heads": 0}, "num_attention_heads must be at least 1, not 0"),
    ({"head_dim": -2}, "head_dim must be at least 1, not -2"),
    ({"max_position_embeddings": 0}, "max_position_embeddings must be at least 1, not 0"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "rope_theta must be a number above 0, not -1"),
    ({"architectures": ["LlamaForCausalLM"]}, r"dense Qwen3.*'qwen3' \(LlamaForCausalLM\)"),
    ({"architectures": ["Qwen3ForSequenceClassification"]}, r"\(Qwen3ForSequenceClassification\)"),
    ({"rope_parameters": {"rope_type": "linear"}}, "^rope type 'linear' is not supported"),
    ({"hidden_size": "wide"}, "wrong type"),
    ({"hidden_size": None}, "wrong type"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_would_be_computed_wrongly_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    write_checkpoint(tmp_path)
    write_config(tmp_path, tiny_config(**changes))
    with pytest.raises(CheckpointError, match=sentence):
        make_llm(tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    ],
)
def test_a_missing_size_is_named(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json lacks '{key}'"):
        Qwen3Config.from_dict(tiny_config(without=[key]))


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json: is it the folder of a checkpoint"):
        make_llm(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"model_type": "qwen3"', "\xff"])
def test_a_damaged_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON .*download the checkpoint again"):
        make_llm(tmp_path)


@pytest.mark.parametrize("value", [[], "qwen3", 3, None])
def test_a_config_that_is_no_object(tmp_path: Path, value: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"holds a JSON {type(value).__name__}, not an object"):
        make_llm(tmp_path)
