"""The kernels of a decode step with few rows against their torch reference."""

from types import ModuleType

import pytest
import torch
from helpers import tiny_config

pytest.importorskip("triton")

from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.backends.triton_backend import TritonBackend
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3 import small_batch, split_linear
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.kernels import gated_linear, norm, small_linear, tile_linear
from nanovllm.qwen3.model import Qwen3DecoderLayer
from nanovllm.qwen3.ops import TorchOps, TritonOps
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.rotary import RotaryEmbedding
from tests.kernels.shared import DEVICE, DTYPES, assert_close, random

CASES = [
    (small_linear, 1, 16, 7),
    (small_linear, 2, 100, 33),
    (small_linear, 1, 3072, 9),
    (tile_linear, 3, 16, 7),
    (tile_linear, 4, 100, 33),
    (tile_linear, 8, 1024, 40),
    (tile_linear, 5, 900, 9),
    (tile_linear, 8, 600, 2050),
]
IN_TURNS = [(tile_linear, 2, 1500, 20), (tile_linear, 8, 2048, 32), (tile_linear, 7, 1800, 24)]  # no room for fp32
EVERY = [(dtype, *case) for dtype in DTYPES for case in CASES + (IN_TURNS if dtype.itemsize == 2 else [])]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "kernel", "rows", "in_features", "out_features"), [*EVERY, (torch.float16, tile_linear, 7, 3500, 24)]
)
def test_a_product_of_few_rows_equals_the_reference(
    dtype: torch.dtype, kernel: ModuleType, rows: int, in_features: int, out_features: int, bias: bool
) -> None:
    """Row strides wider than a row, features that are no power of two, and rows that fill no tile."""
    x = random(rows, in_features + 3, dtype=dtype)[:, :in_features] / in_features**0.5
    weight, offset = random(out_features, in_features, dtype=dtype), random(out_features, dtype=dtype)
    b = offset if bias else None
    assert kernel.suits(x, in_features)
    assert_close(kernel.linear(x, weight, b), TorchOps().linear(x, weight, b))
    assert_close(TritonOps().linear(x, weight, b), TorchOps().linear(x, weight, b))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("dtype", "kernel", "rows", "size", "out_features"), EVERY)
def test_norm_and_gate_around_a_product_of_few_rows_equal_the_reference(
    dtype: torch.dtype, kernel: ModuleType, rows: int, size: int, out_features: int, gated: bool
) -> None:
    x, residual = random(rows, size, dtype=dtype), random(rows, size, dtype=dtype, seed=1)
    num_weights = 2 * out_features if gated else out_features
    gain, bias = random(size, dtype=dtype, seed=2), None if gated else random(num_weights, dtype=dtype, seed=3)
    weight = random(num_weights, size, dtype=dtype, seed=4) / size**0.5
    assert kernel.suits(x, size, gated)
    plain = TorchOps()

    def long_way(normed: torch.Tensor) -> torch.Tensor:
        y = plain.linear(normed, weight, bias)
        return plain.silu_and_mul(y) if gated else y

    normed, added = plain.add_rms_norm(x, residual, gain, 1e-6)
    actual, new_residual = kernel.norm_linear(x, residual, gain, 1e-6, weight, bias, gated)
    assert_close(actual, long_way(normed))
    assert torch.equal(new_residual, added)
    alone, same = kernel.norm_linear(x, None, gain, 1e-6, weight, bias, gated)
    assert same is x
    assert_close(alone, long_way(plain.rms_norm(x, gain, 1e-6)))


def test_one_row_and_two_of_a_large_weight_are_left_to_small_linear() -> None:
    x = random(3, 64, dtype=torch.float16)
    assert [tile_linear.suits(x[:rows], 1024, gated=True) for rows in (1, 2, 3)] == [False, True, True]
    assert [tile_linear.suits(x[:rows], 2048, gated=True) for rows in (1, 2, 3)] == [False, False, True]


def test_a_triton_that_cannot_make_tiles_of_eight_rows_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Triton 3.5 they are refused when the kernel is compiled."""
    x = random(8, 64, dtype=torch.float16)
    assert tile_linear.suits(x, 64)
    monkeypatch.setattr(tile_linear, "CAN_TILE", False)
    assert not tile_linear.suits(x, 64)


HALF_DTYPES = [dtype for dtype in DTYPES if dtype.itemsize == 2]


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("in_features", [64, 384, 1024])
@pytest.mark.parametrize("rows", [9, 33, 192, 193, 384])
def test_the_parts_of_a_product_add_up_to_it_and_a_norm_adds_them_up(
    rows: int, in_features: int, dtype: torch.dtype
) -> None:
    plain = TorchOps()
    x, weight = random(rows, in_features, dtype=dtype), random(40, in_features, dtype=dtype, seed=1) / in_features**0.5
    assert split_linear.suits(x, weight)
    parts = split_linear.partial_sums(x, weight)
    assert parts.dtype == torch.float32
    assert parts.shape == (4 if rows <= 192 else 2, rows, 40)
    assert_close(parts.sum(0).to(dtype), plain.linear(x, weight))
    residual, gain = random(rows, 40, dtype=dtype, seed=2), random(40, dtype=dtype, seed=3)
    expected = plain.add_rms_norm(plain.linear(x, weight), residual, gain, 1e-6)
    for actual, wanted in zip(norm.add_rms_norm(parts, residual, gain, 1e-6), expected, strict=True):
        assert actual.dtype == dtype
        assert_close(actual, wanted)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("in_features", [128, 640])
@pytest.mark.parametrize("rows", [9, 16, 17, 33, 70, 128])
def test_a_gate_inside_its_product_equals_the_reference(rows: int, in_features: int, dtype: torch.dtype) -> None:
    x = random(rows, in_features + 8, dtype=dtype)[:, :in_features]
    weight = random(128, in_features, dtype=dtype, seed=1) / in_features**0.5
    assert gated_linear.suits(x, weight)
    assert_close(gated_linear.gated(x, weight), TorchOps().gated(x, weight))
    assert_close(TritonOps().gated(x, weight), TorchOps().gated(x, weight))


def test_which_products_are_cut_and_which_have_their_gate_inside() -> None:
    x, weight = random(16, 256, dtype=torch.float16), random(512, 256, dtype=torch.float16)
    for suits in (split_linear.suits, gated_linear.suits):
        assert suits(x, weight)
        assert not suits(x.float(), weight.float())
        assert not suits(x, weight[:, :200])
        assert not suits(random(385, 256, dtype=torch.float16), weight)
        assert not suits(x[:8], weight)
        assert not suits(x, weight.expand(1000, 512, 256).reshape(-1, 256))
    assert not gated_linear.suits(random(129, 256, dtype=torch.float16), weight)
    large = random(2**15, 256, dtype=torch.float16)
    assert split_linear.suits(x, large)
    assert not split_linear.suits(random(129, 256, dtype=torch.float16), large)
    assert split_linear.suits(x[None], weight), "parts of an earlier layer"
    assert not gated_linear.suits(x, weight[:500]), "250 outputs fill no tile of 32"


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("rows", [9, 40, 385])
def test_layers_whose_outputs_come_in_parts_equal_the_long_way_round(rows: int, dtype: torch.dtype) -> None:
    """Two layers: the second is given the parts of the first, and so is the norm after it."""
    config = Qwen3Config.from_dict(
        tiny_config(num_attention_heads=4, num_key_value_heads=2, head_dim=32, hidden_size=128, intermediate_size=256)
    )
    outputs = []
    for ops, backend in ((TorchOps(), TorchBackend()), (TritonOps(), TritonBackend())):
        at = Placement(dtype, DEVICE, backend=backend, ops=ops)
        layers = [Qwen3DecoderLayer(config, i, at) for i in range(2)]
        for layer in layers:
            for i, weight in enumerate(layer.parameters()):
                weight.data.copy_(random(*weight.shape, dtype=torch.float32, seed=i) / 8)
            layer.self_attn.attention.bind(*torch.zeros(2, rows, 4, 2, 32, dtype=dtype, device=DEVICE))
        angles = RotaryEmbedding(config, 32, DEVICE).at(torch.full((rows,), 1, device=DEVICE))
        tables = torch.arange(rows, dtype=torch.int32, device=DEVICE).unsqueeze(1)
        slots, lens = 4 * tables[:, 0].long() + 1, torch.full((rows,), 2, dtype=torch.int32, device=DEVICE)
        context = ForwardContext(False, slots, lens, tables, max_seqlen_k=2)
        x, residual = layers[0](random(rows, 128, dtype=dtype, seed=60), None, angles, context)
        assert x.dim() == (3 if isinstance(ops, TritonOps) and rows <= 384 else 2)
        x, residual = layers[1](x, residual, angles, context)
        outputs.append(layers[0].input_layernorm.add_and_norm(x, residual))
    for actual, expected in zip(outputs[1], outputs[0], strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9])
def test_a_layer_of_few_rows_equals_the_long_way_round(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 8 rows go the short way; with and without a residual it gives what plain torch operations give."""
    config = Qwen3Config.from_dict(tiny_config(num_attention_heads=4, num_key_value_heads=2, attention_bias=True))
    outputs = []
    for ops, backend in ((TorchOps(), TorchBackend()), (TritonOps(), TritonBackend())):
        at = Placement(torch.float32, DEVICE, backend=backend, ops=ops)
        layer = Qwen3DecoderLayer(config, 0, at)
        for i, weight in enumerate(layer.parameters()):
            weight.data.copy_(random(*weight.shape, dtype=torch.float32, seed=i) / 8)
        blocks = 2 * rows
        layer.self_attn.attention.bind(
            *(random(blocks, 4, 2, config.head_dim, dtype=torch.float32, seed=s) for s in (50, 51))
        )
        x, residual = (random(rows, config.hidden_size, dtype=torch.float32, seed=s) for s in (60, 61))
        angles = RotaryEmbedding(config, 32, DEVICE).at(torch.full((rows,), 5, device=DEVICE))
        tables = torch.arange(blocks, dtype=torch.int32, device=DEVICE).view(rows, 2).flip(1)
        slots, lens = 4 * tables[:, 1].long() + 1, torch.full((rows,), 6, dtype=torch.int32, device=DEVICE)
        context = ForwardContext(False, slots, lens, tables, max_seqlen_k=6)
        calls, forward = [], small_batch.forward
        monkeypatch.setattr(small_batch, "forward", lambda *a, f=forward, c=calls: c.append(1) or f(*a))
        outputs += [layer(x, residual, angles, context), layer(x, None, angles, context)]
        monkeypatch.undo()
        assert len(calls) == (2 if isinstance(ops, TritonOps) and rows <= 8 else 0)
    for actual, expected in zip(outputs[2:], outputs[:2], strict=True):
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e)


@pytest.mark.parametrize(
    ("prologue", "in_features", "gated", "at_once"),
    [(small_linear.NORM, 1024, False, {4: False, 5: True}), (small_linear.PLAIN, 1024, False, {4: False, 8: False}),
     (small_linear.PLAIN, 3072, False, {4: True, 8: True}), (small_linear.NORM, 1024, True, {4: False, 8: False})],
)  # fmt: skip
def test_which_products_let_the_next_kernel_start_at_once(
    prologue: int, in_features: int, gated: bool, at_once: dict[int, bool]
) -> None:
    """Those with a long wait for the weight, and QKV where attention reads its first keys meanwhile."""
    weight = torch.empty(64, in_features)
    for rows, expected in at_once.items():
        product = small_linear.Product(torch.empty(rows, in_features), weight, gated=gated)
        assert tile_linear._lets_next_start_at_once(prologue, product) == expected
