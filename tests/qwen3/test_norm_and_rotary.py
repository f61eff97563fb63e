"""RMSNorm and rotary embeddings against transformers, piece by piece."""

from typing import Any

import pytest
import torch
from helpers import tiny_config
from torch import Tensor
from transformers import Qwen3Config as TransformersConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding, apply_rotary_pos_emb

from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.norm import RMSNorm
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.rotary import RotaryEmbedding, apply_rotary

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def norms(size: int, dtype: torch.dtype, eps: float = 1e-6) -> tuple[RMSNorm, Qwen3RMSNorm]:
    """The engine's and transformers', with the same weight."""
    ours, theirs = RMSNorm(size, eps, Placement(dtype)), Qwen3RMSNorm(size, eps).to(dtype)
    weight = (1 + 0.3 * normal(size, seed=9)).to(dtype)
    ours.weight.copy_(weight)
    theirs.weight.data.copy_(weight)
    return ours, theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_rms_norm_is_transformers(dtype: torch.dtype, scale: float) -> None:
    ours, theirs = norms(48, dtype)
    x = normal(7, 3, 48, scale=scale).to(dtype)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6 if dtype == torch.float32 else 0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_leaves_its_input_untouched(dtype: torch.dtype) -> None:
    """In fp32 a cast is no copy, so arithmetic in place would overwrite the residual stream."""
    ours, _ = norms(4, dtype)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=dtype)
    residual = torch.tensor([[10.0, 20.0, 30.0, 40.0]], dtype=dtype)
    ours(x)
    _, total = ours.add_and_norm(x, residual)
    assert x.tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert residual.tolist() == [[10.0, 20.0, 30.0, 40.0]]
    assert total.tolist() == [[11.0, 22.0, 33.0, 44.0]]


def test_rms_norm_of_known_numbers() -> None:
    """[1, 2, 3, 4] has a mean square of 7.5."""
    norm = RMSNorm(4, 0.0, Placement())
    norm.weight.copy_(torch.tensor([1.0, 1.0, 2.0, 1.0]))
    wanted = torch.tensor([1.0, 2.0, 6.0, 4.0]) / 7.5**0.5
    torch.testing.assert_close(norm(torch.tensor([1.0, 2.0, 3.0, 4.0])), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_and_norm_is_both_in_turn(dtype: torch.dtype) -> None:
    ours, theirs = norms(32, dtype)
    x, residual = normal(5, 32).to(dtype), normal(5, 32, seed=1).to(dtype)
    with torch.no_grad():
        got, total = ours.add_and_norm(x, residual)
        torch.testing.assert_close(total, x + residual, rtol=0, atol=0)
        torch.testing.assert_close(got, theirs(x + residual), rtol=1e-6 if dtype == torch.float32 else 0, atol=0)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
ROPES: dict[str, dict[str, Any]] = {
    "flat_theta": {"without": ("rope_parameters",), "rope_theta": 12345.0},
    "flat_theta_and_scaling": {"without": ("rope_parameters",), "rope_theta": 1e6, "rope_scaling": YARN},
    "nested": {
        "without": ("rope_theta", "rope_scaling"),
        "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"},
    },
    "nested_yarn": {"without": ("rope_theta", "rope_scaling"), "rope_parameters": {"rope_theta": 1e6, **YARN}},
    "yarn_added_to_a_config_of_5": {"rope_theta": 1e6, "rope_scaling": YARN},
    "yarn_betas": {"rope_parameters": {"rope_theta": 1e4, **YARN, "beta_fast": 20.0, "beta_slow": 3.0}},
    "yarn_factor_32": {"rope_parameters": {"rope_theta": 1e4, **YARN, "factor": 32.0}},
    "yarn_attention_factor": {"rope_parameters": {"rope_theta": 1e4, **YARN, "attention_factor": 1.7}},
    "theta_absent": {"without": ("rope_theta", "rope_scaling", "rope_parameters")},
    "small_heads": {"head_dim": 2},
}


@pytest.mark.parametrize("name", ROPES)
def test_rotary_is_transformers_for_both_schemas(name: str) -> None:
    raw = tiny_config(**ROPES[name])
    config = Qwen3Config.from_dict(raw)
    theirs = Qwen3RotaryEmbedding(TransformersConfig(**raw))
    ours = RotaryEmbedding(config, 512, CPU)
    positions = torch.tensor([0, 1, 2, 63, 64, 127, 128, 300, 511])
    q, k = normal(len(positions), 4, config.head_dim), normal(len(positions), 2, config.head_dim, seed=1)
    cos, sin = theirs(q, positions.unsqueeze(0))
    wanted_q, wanted_k = apply_rotary_pos_emb(q.transpose(0, 1), k.transpose(0, 1), cos, sin)
    angles = ours.at(positions)
    for x, wanted in ((q, wanted_q), (k, wanted_k)):
        got = apply_rotary(x, angles.cos, angles.sin)
        torch.testing.assert_close(got, wanted[0].transpose(0, 1), rtol=1e-5, atol=1e-4)


def test_rotary_turns_pairs_by_their_position() -> None:
    """Pair i of position p turns by p * theta^(-2i / head_dim); position 0 stays."""
    config = Qwen3Config.from_dict(tiny_config(head_dim=4, rope_parameters={"rope_theta": 100.0}))
    angles = RotaryEmbedding(config, 10, CPU).at(torch.tensor([0, 3]))
    x = torch.tensor([1.0, 2.0, 0.0, 0.0]).expand(2, 1, 4)
    got = apply_rotary(x, angles.cos, angles.sin)[:, 0]
    a, b = torch.tensor(3.0), torch.tensor(0.3)
    torch.testing.assert_close(got[0], x[0, 0])
    torch.testing.assert_close(got[1], torch.stack([a.cos(), 2 * b.cos(), a.sin(), 2 * b.sin()]))


def test_rotary_keeps_the_dtype_and_its_input() -> None:
    config = Qwen3Config.from_dict(tiny_config())
    angles = RotaryEmbedding(config, 10, CPU).at(torch.arange(3))
    x = normal(3, 2, 16).to(torch.bfloat16)
    before = x.clone()
    assert apply_rotary(x, angles.cos, angles.sin).dtype == torch.bfloat16
    assert torch.equal(x, before)
