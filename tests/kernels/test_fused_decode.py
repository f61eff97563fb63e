"""Decode attention that makes its own heads: against the reference, and against the kernels it stands for."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.backends.triton_backend import TritonBackend
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3.kernels import fused_decode
from nanovllm.qwen3.kernels.fused_decode import FusedDecode
from nanovllm.qwen3.ops import TorchOps, TritonOps
from nanovllm.qwen3.rotary import RotaryAngles
from tests.kernels.shared import DEVICE, DTYPES, assert_close, make_cache, random


class Step:
    """A decode step: sequences of the given lengths, the newest token's K and V not stored yet; length 0 is padding."""

    def __init__(
        self, lens: list[int], block_size: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.shape = heads, kv_heads, head_dim
        self.k, self.v, tables = make_cache(lens, block_size, kv_heads, head_dim, dtype)
        last = torch.tensor([max(n - 1, 0) for n in lens], device=DEVICE)
        blocks = tables.gather(1, last[:, None] // block_size)[:, 0].long()
        slots = torch.where(torch.tensor(lens, device=DEVICE) > 0, blocks * block_size + last % block_size, -1)
        for cache in (self.k, self.v):
            cache.flatten(0, 1)[slots[slots >= 0]] = torch.nan  # whoever reads this before it is stored shows it
        self.context = ForwardContext(
            False, slots, torch.tensor(lens, dtype=torch.int32, device=DEVICE), tables, max_seqlen_k=max(lens)
        )
        self.angles = RotaryAngles(random(max(lens) + 1, head_dim), last)
        self.qkv = random(len(lens), (heads + 2 * kv_heads) * head_dim + 8, dtype=dtype)[:, :-8]
        self.gains = [random(head_dim, dtype=dtype, seed=seed) for seed in (1, 2)]

    def attend(
        self, ops: TorchOps, backend: TorchBackend | TritonBackend, context: ForwardContext | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(out, keys, values) of one layer, on copies of the caches."""
        attention = Attention(*self.shape, backend)
        attention.bind(self.k.clone(), self.v.clone())
        context = context or self.context
        out = ops.attend(self.qkv, *self.gains, 1e-6, self.angles, attention, context)
        return out, attention.k_cache, attention.v_cache


class Unfused(TritonBackend):
    fuses_decode = False


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of each fused launch."""
    seen, call = [], FusedDecode.__call__
    monkeypatch.setattr(FusedDecode, "__call__", lambda self, *args: seen.append(len(args[0])) or call(self, *args))
    return seen


def splits_of(monkeypatch: pytest.MonkeyPatch, splits: int) -> None:
    monkeypatch.setattr(fused_decode, "choose_splits", lambda tasks, device: splits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 3, 12])
@pytest.mark.parametrize(
    ("lens", "block_size", "heads", "kv_heads", "head_dim"),
    [
        ([1, 2, 33], 64, 4, 2, 16),
        ([130, 0, 65, 32], 64, 6, 2, 32),
        ([97, 64, 1, 0, 129], 64, 4, 2, 128),
        ([300, 129, 2], 256, 5, 1, 64),
    ],
)
def test_it_equals_the_reference(
    monkeypatch: pytest.MonkeyPatch,
    launches: list[int],
    lens: list[int],
    block_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    splits: int,
    dtype: torch.dtype,
) -> None:
    """Outputs, and what is stored and nothing else; a padded row is zero."""
    splits_of(monkeypatch, splits)
    step = Step(lens, block_size, heads, kv_heads, head_dim, dtype)
    out, *caches = step.attend(TritonOps(), TritonBackend())
    assert launches == [len(lens)]
    torch_ops, reference = TorchOps(), TorchBackend()
    real = [i for i, n in enumerate(lens) if n]
    step.k, step.v = (cache.nan_to_num() for cache in (step.k, step.v))
    expected, *stored = step.attend(torch_ops, reference)
    assert_close(out[real], expected[real])
    padded = [i for i, n in enumerate(lens) if not n]
    assert not out[padded].any()
    for cache, wanted in zip(caches, stored, strict=True):
        assert_close(cache.nan_to_num(), wanted)
    unfused, *by_heads = step.attend(TritonOps(), Unfused())
    assert launches == [len(lens)]
    assert_close(out, unfused)
    for cache, wanted in zip(caches, by_heads, strict=True):
        written = cache.flatten(0, 1)[step.context.slot_mapping[real]]
        assert_close(written, wanted.flatten(0, 1)[step.context.slot_mapping[real]])


@pytest.mark.parametrize("splits", [1, 4])
def test_the_order_in_which_rows_are_begun_changes_no_bit(monkeypatch: pytest.MonkeyPatch, splits: int) -> None:
    splits_of(monkeypatch, splits)
    step = Step([9, 140, 0, 67], 64, 4, 2, 16, torch.float32)
    as_they_are = step.attend(TritonOps(), TritonBackend())[0]
    assert as_they_are[[0, 1, 3]].abs().sum(dim=(1, 2)).min() > 0
    for rows in ([1, 3, 0, 2], [3, 2, 1, 0]):
        order = torch.tensor(rows, dtype=torch.int32, device=DEVICE)
        c = step.context
        ordered = ForwardContext(False, c.slot_mapping, c.context_lens, c.block_tables, order=order)
        assert torch.equal(step.attend(TritonOps(), TritonBackend(), ordered)[0], as_they_are)


def test_batches_of_any_size_follow_each_other_on_the_same_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever program ends last joins, once: the next launch finds the counters at zero, whatever its size."""
    ops, backend = TritonOps(), TritonBackend()
    for splits, lens in ((4, [70, 3, 260, 33]), (2, [40, 200, 1]), (12, [300, 0, 64, 1, 90]), (4, [70, 3, 260, 33])):
        splits_of(monkeypatch, splits)
        step = Step(lens, 64, 4, 2, 16, torch.float32)
        out = step.attend(ops, backend)[0]
        assert torch.equal(out, step.attend(ops, backend)[0])
        assert_close(out, step.attend(TritonOps(), Unfused())[0])
        assert ops._fused_decode._arrived is not None
        assert not ops._fused_decode._arrived.any()


def test_where_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step([40, 33, 1], 64, 4, 2, 16, torch.float32)

    def suits(rows: int = 3, backend: TorchBackend | TritonBackend | None = None, **kwargs: object) -> bool:
        attention = Attention(4, 2, int(kwargs.get("head_dim", 16)), backend or TritonBackend())  # type: ignore[call-overload]
        if kwargs.get("bound", True):
            attention.bind(*torch.zeros(2, 3, int(kwargs.get("block_size", 32)), 2, 16))  # type: ignore[call-overload]
        context = step.context
        if kwargs.get("is_prefill"):
            context = ForwardContext(True, context.slot_mapping, context.context_lens)
        return FusedDecode.suits(torch.zeros(rows, 128), attention, context)

    assert suits()
    assert suits(8)
    assert not suits(2), "three kernels are as fast for two rows, and faster for one"
    assert not suits(9)
    assert not suits(backend=TorchBackend()), "a backend that was asked for is used"
    assert not suits(is_prefill=True)
    assert not suits(bound=False)
    assert not suits(block_size=48), "a turn of keys would lie in two blocks"
    assert not suits(head_dim=40)
    qkv = SimpleNamespace(device=torch.device("cuda", 0), shape=(3, 128))
    attention = Attention(4, 2, 16, TritonBackend())
    attention.bind(*torch.zeros(2, 3, 64, 2, 16))
    for early in (True, False):
        monkeypatch.setattr(fused_decode, "starts_early", lambda device, early=early: early)
        assert FusedDecode.suits(qkv, attention, step.context) is early  # type: ignore[arg-type]


def test_splits_for_each_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the 132 multiprocessors of an H200, with 8 KV heads, with the 4 of each of two ranks, and with 32."""
    monkeypatch.setattr(fused_decode, "multiprocessors", lambda device: 132)
    splits = [
        fused_decode.choose_splits(tasks, DEVICE) for tasks in (8 * 3, 8 * 4, 8 * 6, 8 * 8, 4 * 8, 32 * 8, 128 * 8)
    ]
    assert splits == [12, 12, 8, 8, 12, 2, 1]


@pytest.mark.gpu
def test_a_thousand_recorded_launches_give_the_same_bits() -> None:
    """Programs end in another order each time, and the last one joins."""
    step = Step([768, 700, 33, 512, 900, 0, 1, 300], 256, 16, 8, 128, torch.bfloat16)
    ops, attention = TritonOps(), Attention(*step.shape, TritonBackend())
    attention.bind(step.k, step.v)

    def run() -> torch.Tensor:
        return ops.attend(step.qkv, *step.gains, 1e-6, step.angles, attention, step.context)

    expected = run().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [run() for _ in range(20)]
    for _ in range(50):
        graph.replay()
        for out in outputs:
            assert torch.equal(out, expected)
