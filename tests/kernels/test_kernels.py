"""Every Triton kernel against its torch reference: on the GPU where there is one, else under the interpreter."""

import numpy as np
import pytest
import torch

from tests.kernels.shared import DEVICE, DTYPES, assert_close, make_cache, random

pytest.importorskip("triton")

import triton
import triton.language as tl

from nanovllm.paged_kv import small_copies
from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels import copies
from nanovllm.paged_kv.kernels.decode import paged_decode
from nanovllm.paged_kv.kernels.launch import starts_early
from nanovllm.paged_kv.kernels.store import store_kv
from nanovllm.qwen3.embedding import ParallelLMHead
from nanovllm.qwen3.kernels import embedding, logits, race
from nanovllm.qwen3.kernels.race import exponential_race
from nanovllm.qwen3.ops import TorchOps, TritonOps
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.rotary import RotaryAngles
from nanovllm.qwen3.sampler import row_keys

HALVES = [dtype for dtype in DTYPES if dtype.itemsize == 2]


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


def pinned(x: torch.Tensor) -> torch.Tensor:
    return x.pin_memory() if DEVICE.type == "cuda" else x


@pytest.mark.parametrize("num_words", [1, 7, 512, 513, 4000])
def test_small_copies_and_ids_from_an_earlier_step(num_words: int) -> None:
    """Nothing is written past the end; a row of -1 keeps the host's id; the kernel does what the plain copy does."""
    source = pinned(torch.arange(num_words) + 10**12)
    target = torch.full((num_words + 3,), -5, device=DEVICE)
    copies.copy_words(source, target)
    assert target.tolist() == [*source.tolist(), -5, -5, -5]
    back = pinned(torch.zeros(num_words, dtype=torch.int64))
    copies.copy_words(target[:num_words], back)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert back.equal(source)
    sampled = torch.arange(100, 140, device=DEVICE)
    num_fed = min(num_words, 520)
    rows = pinned(torch.tensor([(7 * i) % 40 if i % 3 else -1 for i in range(num_fed)]))
    expected = [100 + r if r >= 0 else word for r, word in zip(rows.tolist(), source.tolist(), strict=False)]
    for copy in (copies.copy_fed, small_copies.copy_fed):
        target.fill_(-5)
        copy(source, target, rows, sampled)
        assert target.tolist() == [*expected, *source.tolist()[num_fed:], -5, -5, -5]
        target.fill_(-5)
        leaving = pinned(torch.full((41,), -6))
        copy(source, target, rows, sampled, leaving[:40])
        assert target.tolist() == [*expected, *source.tolist()[num_fed:], -5, -5, -5]
        assert leaving.tolist() == [*sampled.tolist(), -6], "sent as they are, whatever goes in"


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


@pytest.mark.parametrize("splits", [1, 4])
def test_the_order_in_which_rows_are_begun_changes_no_bit(splits: int) -> None:
    lens = [9, 40, 0, 17]
    k_cache, v_cache, tables = make_cache([max(n, 1) for n in lens], 4, 2, 16, torch.float32)
    q, context_lens = random(4, 4, 16), torch.tensor(lens, dtype=torch.int32, device=DEVICE)
    as_they_are = paged_decode(q, k_cache, v_cache, tables, context_lens, 0.3, splits)
    assert as_they_are[[0, 1, 3]].abs().sum(dim=(1, 2)).min() > 0
    for rows in ([1, 3, 0, 2], [3, 2, 1, 0]):
        order = torch.tensor(rows, dtype=torch.int32, device=DEVICE)
        out = paged_decode(q, k_cache, v_cache, tables, context_lens, 0.3, splits, order)
        assert torch.equal(out, as_they_are)


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
@pytest.mark.parametrize(("rows", "size"), [(1, 1024), (3, 1500), (16, 64), (17, 64)])
def test_embedding_equals_the_reference(rows: int, size: int, dtype: torch.dtype) -> None:
    """Up to 16 rows by our kernel, more by the library's; the same bits."""
    weight, ids = random(50, size, dtype=dtype), (torch.arange(rows, device=DEVICE) * 7) % 50
    out = TritonOps().embedding(ids, weight)
    assert torch.equal(out, TorchOps().embedding(ids, weight))
    assert embedding.suits(ids) == (rows <= 16)
    if rows <= 16:
        assert torch.equal(out, embedding.embedding(ids, weight))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("vocab_size", "programs"), [(700, 3), (128, 1), (50, 7)])
@pytest.mark.parametrize(("rows", "hidden_size"), [(1, 128), (8, 512), (16, 128), (17, 128), (32, 256)])
def test_logits_equal_the_reference(
    rows: int,
    hidden_size: int,
    vocab_size: int,
    programs: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shares that are no multiple of a block, a last one with less, multiprocessors without a share; strided rows."""
    monkeypatch.setattr(logits, "multiprocessors", lambda device: programs)
    x = random(rows, hidden_size + 8, dtype=dtype)[:, :hidden_size]
    weight = random(vocab_size, hidden_size, dtype=dtype, seed=1)
    assert logits.suits(x, weight) == (DEVICE.type == "cpu" or starts_early(DEVICE))
    # In fp32: for some of these shapes the GPU's library adds up parts that it rounded to bf16.
    assert_close(logits.logits(x, weight), (x.float() @ weight.float().T).to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_logits_of_many_turns_of_each_program(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """More turns than are under way at once, so that each place in shared memory is filled several times."""
    monkeypatch.setattr(logits, "multiprocessors", lambda device: 2)
    x, weight = random(8, 512, dtype=dtype), random(2000, 512, dtype=dtype, seed=1) / 16
    assert_close(logits.logits(x, weight), TorchOps().logits(x, weight))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="takes the interpreter minutes")
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_logits_of_the_published_shape(rows: int) -> None:
    x, weight = random(rows, 1024, dtype=torch.bfloat16), random(151936, 1024, dtype=torch.bfloat16) / 32
    assert logits.suits(x, weight) == starts_early(DEVICE)
    assert_close(TritonOps().logits(x, weight), TorchOps().logits(x, weight))


@pytest.mark.parametrize("dtype", HALVES)
def test_the_models_logits_come_from_the_kernel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cuda" and not starts_early(DEVICE):
        pytest.skip("the kernel is not used here")
    head = ParallelLMHead(300, 128, Placement(dtype, DEVICE, ops=TritonOps()))
    head.weight.copy_(random(300, 128, dtype=dtype))
    run, seen = logits.logits, []

    def spy(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return run(x, weight)

    monkeypatch.setattr(logits, "logits", spy)
    hidden = random(5, 128, dtype=dtype, seed=1)
    out = head.logits(hidden)
    assert out is not None
    assert_close(out, TorchOps().logits(hidden, head.weight))
    assert seen == [5]


@pytest.mark.parametrize("dtype", HALVES)
def test_logits_of_other_shapes_are_the_librarys(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(50, 128, dtype=dtype)
    for x in (random(33, 128, dtype=dtype), random(0, 128, dtype=dtype)):
        assert not logits.suits(x, weight)
        assert torch.equal(TritonOps().logits(x, weight), TorchOps().logits(x, weight))
    apart, turned = random(50, 136, dtype=dtype)[:, :128], random(128, 8, dtype=dtype).t()
    assert not logits.suits(random(8, 128, dtype=dtype), apart)
    assert not logits.suits(turned, weight)
    assert not logits.suits(random(8, 128), random(50, 128))
    assert not logits.suits(random(8, 64, dtype=dtype), random(50, 64, dtype=dtype))
    monkeypatch.setattr(logits, "shared_memory", lambda device: 99 * 1024)  # a GPU that starts early and is small
    assert not logits.suits(random(8, 128, dtype=dtype), weight)


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


@triton.jit
def _scores_kernel(bits_ptr, out_ptr, FAST: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(bits_ptr + at).to(tl.uint32)
    tl.store(out_ptr + at, race._minus_log_exponential(bits, FAST))


def test_the_draws_of_the_race_kernel_are_within_1e_5_of_exact_logarithms() -> None:
    """Every draw there is on a GPU; on a CPU 2^13 of them, closer together where u is near 1, and the smallest u."""
    top = torch.arange(2**23) if DEVICE.type == "cuda" else (2**23 - 1 - torch.arange(2**13) ** 2 // 8)
    top[-1] = 0
    out = torch.empty(len(top), device=DEVICE)
    bits = ((top << 9) + 511).to(DEVICE)
    _scores_kernel[(len(top) // 1024,)](bits, out, FAST=DEVICE.type == "cuda", BLOCK=1024)
    exact = -torch.log(-torch.log((top.double() + 0.5) * 2.0**-23))
    assert (out.cpu().double() - exact).abs().max() < 1e-5


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
