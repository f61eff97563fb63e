"""The model against transformers' Qwen3 on random checkpoints of many shapes: logits and greedy tokens.

fp32 logits agree to 1e-4 of their spread (the sums come in another order, nothing else differs). In bf16, whose
steps are 2^-8 of a value, each layer rounds several times: the engine must be no further from the fp32 logits than
transformers' own bf16 run is, with half as much again for the other order of sums.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    assert_greedy,
    engine_logits,
    greedy,
    make_llm,
    random_prompts,
    tiny_config,
    transformers_logits,
    transformers_model,
    write_checkpoint,
)

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
V4 = {"without": ("rope_parameters", "dtype")}  # rope_theta and rope_scaling stand flat
V5 = {"without": ("rope_theta", "rope_scaling", "torch_dtype")}  # everything in rope_parameters

CONFIGS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "gqa_1": {"num_key_value_heads": 4},
    "gqa_4": {"num_key_value_heads": 1},
    "attention_bias": {"attention_bias": True},
    "six_heads": {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20},
    "six_heads_gqa_3": {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24, "hidden_size": 40},
    "head_dim_absent": {"without": ("head_dim",), "num_attention_heads": 2, "num_key_value_heads": 1},
    "odd_sizes": {"vocab_size": 261, "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 3},
    "large_eps": {"rms_norm_eps": 1e-2},
    "schema_4": {**V4, "rope_theta": 1e6},
    "schema_5": {**V5, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    "yarn_schema_4": {**V4, "rope_scaling": YARN},
    "yarn_schema_5": {**V5, "rope_parameters": {"rope_theta": 5e5, **YARN}},
    "yarn_betas": {**V5, "rope_parameters": {"rope_theta": 1e4, **YARN, "beta_fast": 16.0, "beta_slow": 2.0}},
    "yarn_attention_factor": {**V5, "rope_parameters": {"rope_theta": 1e4, **YARN, "attention_factor": 0.8}},
}


def checkpoint(folder: Path, name: str) -> Path:
    return write_checkpoint(folder / name, tiny_config(**CONFIGS[name]), seed=17)


@pytest.mark.parametrize("name", CONFIGS)
def test_fp32_logits_and_greedy_tokens(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path, name)
    judge = transformers_model(folder)
    prompts = random_prompts([75, 1, 9, 40], seed=21)
    with make_llm(folder, max_num_batched_tokens=33) as llm:
        for prompt in prompts:
            wanted = transformers_logits(judge, prompt)
            spread = wanted.std().item()
            assert spread > 1
            torch.testing.assert_close(engine_logits(llm, prompt), wanted, rtol=0, atol=1e-4 * spread)
        for prompt, output in zip(prompts, llm.generate(prompts, greedy(40), use_tqdm=False), strict=True):
            assert len(output.token_ids) == 40
            assert_greedy(judge, prompt, output.token_ids)


@pytest.mark.parametrize("name", ["untied", "tied", "gqa_4", "attention_bias", "six_heads", "yarn_schema_5"])
def test_bf16_logits(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / name, tiny_config(**CONFIGS[name]), seed=17, dtype=torch.bfloat16)
    exact_model, rounded_model = transformers_model(folder), transformers_model(folder, torch.bfloat16)
    with make_llm(folder, dtype="bfloat16") as llm:
        assert llm.model_runner.cache is not None
        assert llm.model_runner.cache.tensor.dtype == torch.bfloat16
        for prompt in random_prompts([75, 9, 40], seed=21):
            exact = transformers_logits(exact_model, prompt)
            theirs = (transformers_logits(rounded_model, prompt) - exact).pow(2).mean().sqrt().item()
            ours = (engine_logits(llm, prompt) - exact).pow(2).mean().sqrt().item()
            assert 0 < theirs < 0.2 * exact.std()
            assert ours <= 1.5 * theirs


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_any_stored_dtype_runs_in_any_other(tmp_path: Path, stored: torch.dtype, dtype: str) -> None:
    """Weights are converted once, on loading: the same as transformers loading into that dtype."""
    folder = write_checkpoint(tmp_path / "checkpoint", seed=4, dtype=stored)
    prompt = random_prompts([20])[0]
    with make_llm(folder, dtype=dtype) as llm:
        got = engine_logits(llm, prompt)
        assert {p.dtype for p in llm.model_runner.model.parameters()} == {getattr(torch, dtype)}
    wanted = transformers_logits(transformers_model(folder, getattr(torch, dtype)), prompt)
    scale = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 2e-1}[dtype]
    torch.testing.assert_close(got, wanted, rtol=0, atol=scale * wanted.std().item())


def test_on_a_cpu_the_default_is_fp32(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", tiny_config(dtype="bfloat16"), dtype=torch.bfloat16)
    with make_llm(folder) as llm:
        assert llm.plan.dtype == torch.float32


def test_settings_that_must_matter_do(tmp_path: Path) -> None:
    """Theta, yarn, eps and biases change the logits, so that the comparisons above could fail."""
    prompt = random_prompts([75], seed=21)[0]
    seen = []
    for name in ("untied", "schema_4", "schema_5", "yarn_schema_4", "yarn_betas", "yarn_attention_factor", "large_eps"):
        with make_llm(checkpoint(tmp_path, name)) as llm:
            seen.append(engine_logits(llm, prompt))
    for i, one in enumerate(seen):
        for j, other in enumerate(seen[:i]):
            same = {i, j} == {1, 2}  # the same theta in two schemas
            assert torch.equal(one, other) is same


@pytest.mark.parametrize("num_tokens", [1, 2, 31])
def test_a_long_context_near_the_positional_limit(tmp_path: Path, num_tokens: int) -> None:
    """The rotary table covers exactly the positions that a request can reach."""
    folder = write_checkpoint(tmp_path / "short", tiny_config(max_position_embeddings=64), seed=3)
    judge = transformers_model(folder)
    prompt = random_prompts([64 - num_tokens], seed=2)[0]
    with make_llm(folder) as llm:
        output = llm.generate([prompt], greedy(100), use_tqdm=False)[0]
    assert len(output.token_ids) == num_tokens
    assert output.finish_reason == "length"
    assert_greedy(judge, prompt, output.token_ids)
