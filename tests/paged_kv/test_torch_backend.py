"""The torch backend against dense attention written out with a softmax, through scattered blocks."""

import random

import pytest
import torch
from torch import Tensor

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.backends.torch_backend import PADDED_KEYS, TorchBackend, causal_attention
from nanovllm.paged_kv.batch import prepare, to_device
from nanovllm.scheduler.sequence import ScheduledSlice

CPU = torch.device("cpu")
HEADS = [(4, 4, 8), (4, 2, 8), (4, 1, 8), (6, 3, 10), (6, 2, 64), (5, 5, 2)]  # query heads, KV heads, head_dim
BLOCK_SIZES = [1, 2, 3, 4, 16, 256]
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def dense(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of the last len(q) positions, head by head and row by row."""
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for i in range(q.shape[0]):
        visible = k.shape[0] - q.shape[0] + i + 1
        for h in range(q.shape[1]):
            scores = k[:visible, h // group] @ q[i, h] * scale
            out[i, h] = scores.softmax(0) @ v[:visible, h // group]
    return out


class Pool:
    """Sequences whose K/V lie in scattered blocks of a cache that is NaN wherever nobody wrote."""

    def __init__(self, lengths: list[int], heads: tuple[int, int, int], block_size: int, seed: int = 0) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = heads
        self.block_size = block_size
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths = lengths
        per_seq = [-(-n // block_size) for n in lengths]
        blocks = list(range(sum(per_seq) + 3))
        random.Random(seed).shuffle(blocks)
        self.tables = [[blocks.pop() for _ in range(n)] for n in per_seq]
        self.keys = [self.draw(n, self.num_kv_heads) for n in lengths]
        self.values = [self.draw(n, self.num_kv_heads) for n in lengths]
        shape = (sum(per_seq) + 3, block_size, self.num_kv_heads, self.head_dim)
        self.attention = Attention(*heads, TorchBackend())
        self.attention.bind(torch.full(shape, torch.nan), torch.full(shape, torch.nan))

    def draw(self, rows: int, heads: int) -> Tensor:
        return torch.randn(rows, heads, self.head_dim, generator=self.generator)

    def store(self, upto: list[int]) -> None:
        """Put the first `upto` positions of each sequence where they belong, one at a time."""
        for table, keys, values, n in zip(self.tables, self.keys, self.values, upto, strict=True):
            for p in range(n):
                block, offset = table[p // self.block_size], p % self.block_size
                self.attention.k_cache[block, offset] = keys[p]
                self.attention.v_cache[block, offset] = values[p]

    def slices(self, starts: list[int], ends: list[int]) -> list[ScheduledSlice]:
        return [
            ScheduledSlice(i, [0] * (end - start), start, n, table)
            for i, (start, end, n, table) in enumerate(zip(starts, ends, self.lengths, self.tables, strict=True))
        ]

    def check(self, starts: list[int], ends: list[int], is_prefill: bool) -> None:
        """Run positions start .. end-1 of each sequence through the layer and compare with dense attention."""
        q = [self.draw(end - start, self.num_heads) for start, end in zip(starts, ends, strict=True)]
        k = torch.cat([t[a:b] for t, a, b in zip(self.keys, starts, ends, strict=True)])
        v = torch.cat([t[a:b] for t, a, b in zip(self.values, starts, ends, strict=True)])
        context = to_device(prepare(self.slices(starts, ends), is_prefill, self.block_size), CPU).context
        out = self.attention(torch.cat(q), k, v, context)
        wanted = [
            dense(rows, keys[:end], values[:end], self.head_dim**-0.5)
            for rows, keys, values, end in zip(q, self.keys, self.values, ends, strict=True)
        ]
        torch.testing.assert_close(out, torch.cat(wanted), **TOLERANCE)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("heads", HEADS)
def test_prefill_without_prefix(heads: tuple[int, int, int], block_size: int) -> None:
    pool = Pool([1, 7, 12, 5], heads, block_size)
    pool.check([0] * 4, [1, 7, 12, 5], is_prefill=True)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("heads", HEADS)
def test_prefill_after_a_prefix_and_chunks(heads: tuple[int, int, int], block_size: int) -> None:
    """Earlier keys come from the pool; a chunk that ends early does not see the rest of its prompt."""
    pool = Pool([9, 7, 12, 6], heads, block_size)
    starts = [4, 0, 5, 5]
    pool.store(starts)
    pool.check(starts, [9, 7, 9, 6], is_prefill=True)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("heads", HEADS)
def test_decode(heads: tuple[int, int, int], block_size: int) -> None:
    """Rows of very different lengths in one call; what lies behind a sequence's end is NaN and stays unseen."""
    lengths = [1, 17, 4, 9]
    pool = Pool(lengths, heads, block_size)
    starts = [n - 1 for n in lengths]
    pool.store(starts)
    pool.check(starts, lengths, is_prefill=False)


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_a_whole_life(block_size: int) -> None:
    """Prefill in two chunks, then token by token, always through the layer's own stores."""
    pool = Pool([10, 14], (4, 2, 8), block_size)
    pool.check([0, 0], [3, 5], is_prefill=True)
    pool.check([3, 5], [6, 10], is_prefill=True)
    for step in range(4):
        pool.check([6 + step, 10 + step], [7 + step, 11 + step], is_prefill=False)


def test_store_skips_slot_minus_one() -> None:
    """-1 is padding; a plain index would write the last slot."""
    k_cache, v_cache = torch.zeros(2, 3, 1, 2), torch.zeros(2, 3, 1, 2)
    k, v = torch.ones(2, 1, 2), torch.full((2, 1, 2), 2.0)
    TorchBackend().store(k, v, k_cache, v_cache, torch.tensor([3, -1]))
    assert k_cache.flatten(0, 1)[3].eq(1).all()
    assert v_cache.flatten(0, 1)[3].eq(2).all()
    assert k_cache.sum() == 2
    assert v_cache.sum() == 4


def test_store_writes_each_row_to_its_slot() -> None:
    generator = torch.Generator().manual_seed(1)
    k_cache, v_cache = torch.zeros(4, 3, 2, 2), torch.zeros(4, 3, 2, 2)
    k, v = torch.randn(2, 5, 2, 2, generator=generator)
    slots = torch.tensor([11, 0, 7, 3, 4])
    TorchBackend().store(k, v, k_cache, v_cache, slots)
    for row, slot in enumerate(slots.tolist()):
        torch.testing.assert_close(k_cache[slot // 3, slot % 3], k[row], rtol=0, atol=0)
        torch.testing.assert_close(v_cache[slot // 3, slot % 3], v[row], rtol=0, atol=0)
    untouched = sorted(set(range(12)) - set(slots.tolist()))
    assert not k_cache.flatten(0, 1)[untouched].any()


@pytest.mark.parametrize("num_queries", [1, 3, 8])
def test_causal_attention_aligns_the_ends(num_queries: int) -> None:
    """With more keys than queries the queries are the last positions."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(num_queries, 4, 6, generator=generator)
    k, v = torch.randn(2, 8, 2, 6, generator=generator)
    torch.testing.assert_close(causal_attention(q, k, v, 0.4), dense(q, k, v, 0.4), **TOLERANCE)


def test_without_a_pool_nothing_is_stored() -> None:
    """The memory warm-up runs a prefill before the pool exists."""
    pool = Pool([5, 3], (4, 2, 8), 4)
    pool.attention.k_cache = pool.attention.v_cache = None
    pool.check([0, 0], [5, 3], is_prefill=True)


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_decode_of_long_sequences(block_size: int) -> None:
    """Past PADDED_KEYS each sequence is read alone: scattered blocks, a run of neighbours, and a single block."""
    lengths = [PADDED_KEYS + 5, 1, PADDED_KEYS, 40]
    pool = Pool(lengths, (4, 2, 8), block_size)
    pool.tables[0].sort()  # with few other blocks in between, parts of it are neighbours
    starts = [n - 1 for n in lengths]
    pool.store(starts)
    pool.check(starts, lengths, is_prefill=False)


def test_key_pages_are_views_where_blocks_are_neighbours() -> None:
    """A slice of slots for a run of blocks, padding behind a table's end ignored; block ids for any other table."""
    slices = [
        ScheduledSlice(i, [0], n - 1, n, table)
        for i, (n, table) in enumerate([(10, [4, 5, 6]), (3, [7]), (9, [2, 3, 0]), (8, [1, 2])])
    ]
    pages = to_device(prepare(slices, False, 4), CPU).context.key_pages(4)
    assert pages[0] == slice(16, 26)
    assert pages[1] == slice(28, 31)
    assert isinstance(pages[2], Tensor)
    assert pages[2].tolist() == [2, 3, 0]
    assert pages[3] == slice(4, 12)
