"""2.6 Paged decode attention."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part2.cases import attend, ceil_div, filled_cache, padded, rows_of, tables_for

_CALL = """\
import torch
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext
tables, lens = torch.tensor(block_tables, dtype=torch.int32), torch.tensor(context_lens, dtype=torch.int32)
slots = torch.zeros(len(q), dtype=torch.int64)  # stored already
context = ForwardContext(False, slots, lens, tables, max_seqlen_k=max(context_lens))
result = TorchBackend().decode(torch.tensor(q), torch.tensor(k_cache), torch.tensor(v_cache), context, scale)"""
_HAND = """\
import math
import torch
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext
k_cache, v_cache = torch.full((4, 2, 1, 1), 99.0), torch.full((4, 2, 1, 1), 99.0)
k_cache[3], v_cache[3] = torch.tensor([[[0.0]], [[0.0]]]), torch.tensor([[[8.0]], [[4.0]]])  # positions 0 and 1
k_cache[0, 0], v_cache[0, 0] = math.log(2), 1.0  # position 2
tables, lens = torch.tensor([[3, 0]], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
context = ForwardContext(False, torch.tensor([0]), lens, tables, max_seqlen_k=3)
out = TorchBackend().decode(torch.ones(1, 1, 1), k_cache, v_cache, context, 1.0)
result = [list(out.shape), round(out.item(), 4)]"""
_SHARED = """\
import torch
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext
k_cache = torch.zeros(1, 2, 2, 1)
v_cache = torch.tensor([[[[1.0], [5.0]], [[3.0], [7.0]]]])  # KV head 0 holds 1 and 3, KV head 1 holds 5 and 7
tables, lens = torch.tensor([[0]], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
context = ForwardContext(False, torch.tensor([1]), lens, tables, max_seqlen_k=2)
out = TorchBackend().decode(torch.ones(1, 4, 1), k_cache, v_cache, context, 1.0)
result = [round(x, 4) for x in out.flatten().tolist()]"""

_KEPT = """\
import torch
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext
projected = torch.tensor([[2.0, 1.0, 5.0]])  # q, k and v of one token side by side, as the projection leaves them
q, k, v = projected.view(1, 3, 1).split(1, dim=1)  # views: what is written into q stands in projected
k_cache, v_cache = k.view(1, 1, 1, 1).clone(), v.view(1, 1, 1, 1).clone()
tables, lens = torch.tensor([[0]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
context = ForwardContext(False, torch.tensor([0]), lens, tables, max_seqlen_k=1)
TorchBackend().decode(q, k_cache, v_cache, context, 0.5)
result = [projected.tolist(), k_cache.item(), v_cache.item()]"""


def _inputs(
    rng: random.Random, seqs: int, keys: int, kv_heads: int, group: int, head_dim: int, block_size: int
) -> dict[str, Any]:
    """The last sequence has `keys` keys, the others at most as many."""
    lens = [rng.randint(1, keys) for _ in range(seqs - 1)] + [keys]
    rng.shuffle(lens)
    widths = [ceil_div(length, block_size) for length in lens]
    tables = tables_for(rng, widths)
    caches = {name: filled_cache(rng, tables, lens, block_size, kv_heads, head_dim) for name in ("k_cache", "v_cache")}
    q = numbers(rng, seqs, kv_heads * group, head_dim)
    return {"q": q, **caches, "block_tables": padded(tables, widths), "context_lens": lens, "scale": 0.5}


def _one_kv_head(rng: random.Random, **sizes: int) -> dict[str, Any]:
    return _inputs(rng, kv_heads=1, group=1, **sizes)


def _expected(q: Any, k_cache: Any, v_cache: Any, block_tables: Any, context_lens: list[int], scale: float) -> Any:
    out = []
    for row, table, length in zip(q, block_tables, context_lens, strict=True):
        out.append(attend(row, rows_of(k_cache, table, length), rows_of(v_cache, table, length), scale))
    return out


_LOOP = """
def decode(backend, q, k_cache, v_cache, context, scale):
    out = torch.empty_like(q)
    group, block_size = q.shape[1] // k_cache.shape[2], k_cache.shape[1]
    for i, length in enumerate(context.context_lens.tolist()):
        position = torch.arange(length)
        table = context.block_tables[i].long()
        slots = table[position // block_size] * block_size + position % block_size
        keys, values = k_cache.flatten(0, 1)[slots], v_cache.flatten(0, 1)[slots]
        for head in range(q.shape[1]):
            kv_head = head // group
            scores = keys[:, kv_head] @ q[i, head] * scale
            weights = scores.softmax(0)
            out[i, head] = weights @ values[:, kv_head]
    return out
"""


def _bug(about: str, *changes: tuple[str, str]) -> Variant:
    return Variant(about, "decode", changes, source=_LOOP)


_SIZES = (("seqs", 1, 3), ("keys", 1, 9), ("head_dim", 1, 4), ("block_size", 1, 4))
_SIZES_OF_GROUPS = (*_SIZES, ("kv_heads", 1, 3), ("group", 1, 3))

EXERCISE = Exercise(
    number="2.6",
    title="Paged decode attention",
    file="part2/ex06_decode_attention.py",
    pieces=(("decode", seams.DECODE),),
    uses_torch=True,
    hints=(
        "Collect the keys of one sequence first, as a tensor [length, Hkv, D]: block tables and slots as in 2.2. The "
        "rest is attention as in any textbook, with one query.",
        "k_cache.flatten(0, 1)[slots] are the keys. scores = query . key * scale for each key; softmax over the keys; "
        "the weighted sum of the values. Query head h reads KV head h // (Hq // Hkv).",
        'queries = q[i].view(Hkv, Hq // Hkv, D); scores = torch.einsum("hgd,lhd->hgl", queries, keys) * scale; '
        'weights = scores.softmax(-1); out[i] = torch.einsum("hgl,lhd->hgd", weights, values).reshape(Hq, D).',
    ),
    groups=(
        Group(
            "the keys of each sequence, through its block table",
            2,
            "Slots that no sequence owns hold 9.0. Which positions have keys, and in which slots do they lie? Over "
            "what do the weights sum to 1?",
            (
                Example(
                    _HAND,
                    [[1, 1, 1], 3.5],
                    "Print three things of the one sequence: the slots of its positions 0, 1 and 2, the keys found "
                    "there, and the weights. Slots that are nobody's hold 99.0. Do the weights of its query sum to 1?",
                ),
                Example(
                    _KEPT,
                    [[[2.0, 1.0, 5.0]], 1.0, 5.0],
                    "q is a view of a larger tensor, and both caches belong to the engine: all three must be as they "
                    "were. Which line writes into one of them? `q *= scale` does, and so does `out = q`; what would "
                    "make a new tensor instead?",
                ),
            ),
            numeric=Numeric(_SIZES, _one_kv_head, _CALL, _expected),
        ),
        Group(
            "query heads that share a KV head",
            1,
            "With 4 query heads and 2 KV heads: which query heads read KV head 0, the first two or every other one?",
            (Example(_SHARED, [2.0, 2.0, 6.0, 6.0]),),
            numeric=Numeric(_SIZES_OF_GROUPS, _inputs, _CALL, _expected),
        ),
        Group(
            "the same tokens from the running engine",
            1,
            "Contexts grow by one key a step, across the edges of blocks, and several are in one step.",
            (engine_example(),),
        ),
    ),
    bugs=(
        _bug(
            "reads the blocks in the order of the pool",
            ("table[position // block_size]", "table.sort().values[position // block_size]"),
        ),
        _bug(
            "takes the sequence's keys to lie side by side",
            ("table[position // block_size] * block_size + position % block_size", "table[0] * block_size + position"),
        ),
        _bug(
            "looks at whole blocks, filled or not",
            ("torch.arange(length)", "torch.arange(-(-length // block_size) * block_size)"),
        ),
        _bug(
            "leaves out the last block while it is not full",
            ("torch.arange(length)", "torch.arange(max(length // block_size * block_size, 1))"),
        ),
        _bug("lets no token see its own key", ("torch.arange(length)", "torch.arange(max(length - 1, 1))")),
        _bug(
            "gives every sequence as many keys as the longest",
            ("torch.arange(length)", "torch.arange(context.max_seqlen_k)"),
        ),
        _bug("forgets the scale", (" * scale", "")),
        _bug(
            "scales the queries where they lie",
            ("out = torch.empty_like(q)", "out = torch.empty_like(q)\n    q *= scale"),
            (" * scale", ""),
        ),
        _bug("writes the answers over the queries", ("torch.empty_like(q)", "q")),
        _bug("divides by the scale", (" * scale", " / scale")),
        _bug("weighs without a softmax", ("scores.softmax(0)", "scores / scores.sum()")),
        _bug("adds the keys up, not the values", ("weights @ values[:, kv_head]", "weights @ keys[:, kv_head]")),
        _bug("deals the query heads out in turn", ("head // group", "head % k_cache.shape[2]")),
        _bug("reads the first KV head only", ("kv_head = head // group", "kv_head = 0")),
    ),
    harmless=(
        _bug("goes head by head"),
        _bug(
            "scales a copy of the queries",
            ("out = torch.empty_like(q)", "out = torch.empty_like(q)\n    q = q * scale"),
            ("@ q[i, head] * scale", "@ q[i, head]"),
        ),
        _bug(
            "takes exponentials itself, less the highest score",
            ("scores.softmax(0)", "(scores - scores.max()).exp(); weights /= weights.sum()"),
        ),
        Variant("always pads", "decode", (("q.is_cuda or context.max_seqlen_k <= PADDED_KEYS", "True"),)),
        Variant("never pads", "decode", (("q.is_cuda or context.max_seqlen_k <= PADDED_KEYS", "False"),)),
    ),
)
