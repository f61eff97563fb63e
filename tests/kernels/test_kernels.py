"""Every Triton kernel against its torch reference: on the GPU where there is one, else under the interpreter."""

import math

import numpy as np
import pytest
import torch
from helpers import tiny_config

pytest.importorskip("triton")

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.backends.triton_backend import TritonBackend
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels.decode import paged_decode
from nanovllm.paged_kv.kernels.store import store_kv
from nanovllm.qwen3 import small_batch
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.kernels.race import exponential_race
from nanovllm.qwen3.kernels.small_linear import norm_linear, silu_linear, small_linear
from nanovllm.qwen3.model import Qwen3DecoderLayer
from nanovllm.qwen3.ops import TorchOps, TritonOps
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.rotary import RotaryAngles, RotaryEmbedding
from nanovllm.qwen3.sampler import row_keys

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter computes tl.dot on bf16 wrongly, so bf16 is checked on a GPU only.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE.type == "cuda" else [])
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), atol=tolerance, rtol=tolerance)


def make_cache(
    lens: list[int], block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Caches of random numbers with NaN in every slot that no sequence owns, and shuffled block tables."""
    widths = [-(-n // block_size) for n in lens]
    num_blocks = sum(widths) + 2
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    tables = torch.zeros(len(lens), max(max(widths), 1), dtype=torch.int32)
    cache = torch.full((2, num_blocks, block_size, kv_heads, head_dim), math.nan)
    filled = torch.randn(cache.shape, generator=torch.Generator().manual_seed(2))
    for row, (length, width) in enumerate(zip(lens, widths, strict=True)):
        blocks = [order.pop() for _ in range(width)]
        tables[row, :width] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(length):
            at = blocks[position // block_size], position % block_size
            cache[:, at[0], at[1]] = filled[:, at[0], at[1]]
    cache = cache.to(DEVICE, dtype)
    return cache[0], cache[1], tables.to(DEVICE)


@pytest.mark.parametrize(("heads", "head_dim"), [(2, 8), (6, 64), (3, 20)])
def test_store_writes_exactly_the_mapped_slots(heads: int, head_dim: int) -> None:
    """Strided sources, row sizes that are no power of two, and -1 which must not touch the last slot."""
    wide = random(5, heads * head_dim + 7)
    k = wide[:, : heads * head_dim].view(5, heads, head_dim)
    v = random(5, heads, head_dim, seed=1)
    caches = torch.zeros(2, 3, 4, heads, head_dim, device=DEVICE)
    store_kv(k, v, caches[0], caches[1], torch.tensor([3, -1, 0, 9, -1], device=DEVICE))
    expected = torch.zeros_like(caches).flatten(1, 2)
    for row, slot in ((0, 3), (2, 0), (3, 9)):
        expected[0, slot], expected[1, slot] = k[row], v[row]
    assert torch.equal(caches.flatten(1, 2), expected)


def test_store_refuses_heads_that_are_not_contiguous() -> None:
    k = random(4, 2, 8).transpose(1, 2)
    with pytest.raises(ValueError, match="contiguous"):
        store_kv(k, k, k, k, torch.zeros(4, dtype=torch.int64, device=DEVICE))


@pytest.mark.gpu
def test_store_addresses_more_than_2_to_the_31_elements() -> None:
    """A 32-bit offset would wrap around and write near the start of the pool."""
    cache = torch.zeros(2**31 // 128 + 64, 1, 1, 128, dtype=torch.float16, device=DEVICE)
    k = random(1, 1, 128, dtype=torch.float16)
    store_kv(k, k, cache, torch.zeros_like(cache), torch.tensor([cache.shape[0] - 1], device=DEVICE))
    assert torch.equal(cache[-1, 0, 0], k[0, 0])
    assert not cache[: 2**20].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lens", "block_size", "heads", "kv_heads", "head_dim", "splits"),
    [
        ([1, 5, 9], 4, 4, 2, 16, 1),
        ([130, 7, 65], 16, 6, 2, 32, 4),
        ([40], 1, 8, 1, 64, 2),
        ([70, 3], 3, 5, 5, 20, 2),
        ([300, 256, 257], 256, 4, 4, 64, None),
        ([200, 64, 129], 64, 4, 2, 32, 1),
    ],
)
def test_paged_decode_equals_the_reference(
    lens: list[int], block_size: int, heads: int, kv_heads: int, head_dim: int, splits: int | None, dtype: torch.dtype
) -> None:
    k_cache, v_cache, tables = make_cache(lens, block_size, kv_heads, head_dim, dtype)
    q = random(len(lens), heads, head_dim, dtype=dtype)
    context_lens = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
    out = paged_decode(q, k_cache, v_cache, tables, context_lens, 0.3, splits)
    clean_k, clean_v = k_cache.nan_to_num(), v_cache.nan_to_num()
    context = ForwardContext(False, context_lens.long(), context_lens, tables, max_seqlen_k=max(lens))
    assert_close(out, TorchBackend().decode(q, clean_k, clean_v, context, 0.3))


def test_paged_decode_of_a_padded_row_is_zero_and_leaves_the_others_alone() -> None:
    k_cache, v_cache, tables = make_cache([6, 3], 4, 2, 16, torch.float32)
    q = random(2, 4, 16)
    one = torch.tensor([6], dtype=torch.int32, device=DEVICE)
    alone = paged_decode(q[:1], k_cache, v_cache, tables[:1], one, 1.0, 2)
    lens = torch.tensor([6, 0], dtype=torch.int32, device=DEVICE)
    out = paged_decode(q, k_cache, v_cache, tables, lens, 1.0, 2)
    assert torch.equal(out[0], alone[0])
    assert not out[1].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize(
    ("q_lens", "k_lens", "block_size", "heads", "kv_heads", "head_dim"),
    [([3, 70, 1], [3, 70, 1], 4, 4, 2, 16), ([5, 66], [9, 140], 3, 6, 2, 20), ([2], [300], 256, 2, 1, 64)],
)
def test_paged_prefill_equals_the_reference(
    q_lens: list[int],
    k_lens: list[int],
    block_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    paged: bool,
    dtype: torch.dtype,
) -> None:
    if not paged and q_lens != k_lens:
        pytest.skip("without a pool there is no prefix")
    k_cache, v_cache, tables = make_cache(k_lens, block_size, kv_heads, head_dim, dtype)
    total = sum(q_lens)
    q = random(total, heads, head_dim, dtype=dtype)
    k = random(total, kv_heads, head_dim, dtype=dtype, seed=1)
    v = random(total, kv_heads, head_dim, dtype=dtype, seed=2)

    def running(lens: list[int]) -> torch.Tensor:
        return torch.tensor(np.concatenate([[0], np.cumsum(lens)]), dtype=torch.int32, device=DEVICE)

    context = ForwardContext(
        True,
        torch.arange(total, device=DEVICE),
        torch.tensor(k_lens, dtype=torch.int32, device=DEVICE),
        tables if paged else None,
        running(q_lens),
        running(k_lens),
        max(q_lens),
        max(k_lens),
    )
    out = TritonBackend().prefill(q, k, v, k_cache, v_cache, context, 0.3)
    assert_close(out, TorchBackend().prefill(q, k, v, k_cache.nan_to_num(), v_cache.nan_to_num(), context, 0.3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 100, 1024])
def test_norms_equal_the_reference_and_leave_their_input_alone(size: int, dtype: torch.dtype) -> None:
    x, residual = random(3, size, dtype=dtype), random(3, size, dtype=dtype, seed=1)
    weight = random(size, dtype=dtype, seed=2)
    before = x.clone(), residual.clone()
    fused, plain = TritonOps(), TorchOps()
    assert_close(fused.rms_norm(x, weight, 1e-6), plain.rms_norm(x, weight, 1e-6))
    for actual, expected in zip(
        fused.add_rms_norm(x, residual, weight, 1e-6), plain.add_rms_norm(x, residual, weight, 1e-6), strict=True
    ):
        assert_close(actual, expected)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_equals_the_reference(dtype: torch.dtype) -> None:
    gate_up = random(3, 2 * 1100, dtype=dtype)
    assert_close(TritonOps().silu_and_mul(gate_up), TorchOps().silu_and_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("rows", "in_features", "out_features"), [(1, 16, 7), (3, 100, 33), (8, 1024, 40), (2, 3072, 9), (16, 1100, 21)]
)
def test_small_linear_equals_the_reference(
    rows: int, in_features: int, out_features: int, bias: bool, dtype: torch.dtype
) -> None:
    """Row strides wider than a row, features that are no power of two."""
    x = random(rows, in_features + 3, dtype=dtype)[:, :in_features] / in_features**0.5
    weight, offset = random(out_features, in_features, dtype=dtype), random(out_features, dtype=dtype)
    b = offset if bias else None
    assert_close(small_linear(x, weight, b), TorchOps().linear(x, weight, b))
    assert_close(TritonOps().linear(x, weight, b), TorchOps().linear(x, weight, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size", "out_features"), [(1, 100, 33), (2, 1024, 9), (1, 3072, 5)])
def test_norm_and_silu_before_a_small_linear_equal_the_reference(
    rows: int, size: int, out_features: int, dtype: torch.dtype
) -> None:
    x, residual = random(rows, size, dtype=dtype), random(rows, size, dtype=dtype, seed=1)
    gain, bias = random(size, dtype=dtype, seed=2), random(out_features, dtype=dtype, seed=3)
    weight = random(out_features, size, dtype=dtype, seed=4) / size**0.5
    plain = TorchOps()
    normed, added = plain.add_rms_norm(x, residual, gain, 1e-6)
    actual, new_residual = norm_linear(x, residual, gain, 1e-6, weight, bias)
    assert_close(actual, plain.linear(normed, weight, bias))
    assert torch.equal(new_residual, added)
    alone, same = norm_linear(x, None, gain, 1e-6, weight)
    assert same is x
    assert_close(alone, plain.linear(plain.rms_norm(x, gain, 1e-6), weight))
    gate_up = random(rows, 2 * size, dtype=dtype, seed=5)
    assert_close(silu_linear(gate_up, weight), plain.linear(plain.silu_and_mul(gate_up), weight))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_layer_of_few_rows_equals_the_long_way_round(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`small_batch.forward` against the layer with plain torch operations, with and without a residual."""
    config = Qwen3Config.from_dict(tiny_config(num_attention_heads=4, num_key_value_heads=2, attention_bias=True))
    outputs = []
    for ops in (TorchOps(), TritonOps()):
        at = Placement(torch.float32, DEVICE, ops=ops)
        layer = Qwen3DecoderLayer(config, 0, at)
        for i, weight in enumerate(layer.parameters()):
            weight.data.copy_(random(*weight.shape, dtype=torch.float32, seed=i) / 8)
        layer.self_attn.attention.bind(
            *(random(9, 4, 2, config.head_dim, dtype=torch.float32, seed=s) for s in (50, 51))
        )
        x, residual = (random(rows, config.hidden_size, dtype=torch.float32, seed=s) for s in (60, 61))
        angles = RotaryEmbedding(config, 32, DEVICE).at(torch.arange(rows, device=DEVICE) % 7)
        slots, lens = torch.arange(rows, device=DEVICE) + 4, torch.full((rows,), 6, dtype=torch.int32, device=DEVICE)
        tables = torch.tensor([[8, 7]], dtype=torch.int32, device=DEVICE).repeat(rows, 1)
        context = ForwardContext(False, slots, lens, tables, max_seqlen_k=6)
        calls, forward = [], small_batch.forward
        monkeypatch.setattr(small_batch, "forward", lambda *a, f=forward, c=calls: c.append(1) or f(*a))
        outputs += [layer(x, residual, angles, context), layer(x, None, angles, context)]
        monkeypatch.undo()
        assert len(calls) == (2 if isinstance(ops, TritonOps) else 0)
    for actual, expected in zip(outputs[2:], outputs[:2], strict=True):
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e)


class KeepInputs(TorchBackend):
    """Returns the queries it is given and remembers keys and values."""

    def prefill(self, q, k, v, k_cache, v_cache, context, scale):  # type: ignore[no-untyped-def]
        self.k, self.v = k, v
        return q


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (6, 3, 40), (16, 8, 128)])
def test_norm_rotate_store_equals_the_reference(
    heads: int, kv_heads: int, head_dim: int, bound: bool, dtype: torch.dtype
) -> None:
    qkv = random(5, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    q_weight, k_weight = random(head_dim, dtype=dtype, seed=1), random(head_dim, dtype=dtype, seed=2)
    angles = RotaryAngles(random(50, head_dim), torch.tensor([0, 7, 49, 3, 3], device=DEVICE))
    slots = torch.tensor([1, -1, 11, 0, 5], device=DEVICE)
    context = ForwardContext(True, slots, slots.int())
    results = []
    for ops in (TorchOps(), TritonOps()):
        attention = Attention(heads, kv_heads, head_dim, KeepInputs())
        caches = torch.zeros(2, 3, 4, kv_heads, head_dim, dtype=dtype, device=DEVICE)
        if bound:
            attention.bind(caches[0], caches[1])
        q = ops.attend(qkv, q_weight, k_weight, 1e-6, angles, attention, context)
        results.append((q, attention.backend.k, attention.backend.v, caches))
    for actual, expected in zip(results[1], results[0], strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("vocab_size", [5, 5000])
def test_the_race_kernel_picks_the_reference_token(vocab_size: int) -> None:
    """Greedy and random rows in one batch, over more than one part of the vocabulary."""
    from nanovllm.qwen3.sampler import Sampler, SamplingTensors

    rows = 9
    logits = random(rows, vocab_size) * 3
    temperature = torch.tensor([0.0, 0.5, 1.0] * 3, device=DEVICE).unsqueeze(1)
    keys = torch.from_numpy(row_keys(np.arange(rows), np.arange(rows) + 7)).to(DEVICE)
    expected = Sampler(fused=False)(logits, SamplingTensors(temperature, keys, None, None, any_random=True))
    assert exponential_race(logits, temperature, keys).tolist() == expected.tolist()
