"""2.7 Prefix-aware prefill attention."""

import random
from itertools import accumulate
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part2.cases import causal, ceil_div, filled_cache, padded, rows_of, tables_for

_MASK = """\
import torch
from nanovllm.paged_kv.backends import torch_backend
result = []
for queries, keys in ((3, 3), (3, 5), (1, 4)):
    values = torch.eye(keys).unsqueeze(1)  # so that the output of a query shows the weight of each key
    out = torch_backend.causal_attention(torch.zeros(queries, 1, keys), torch.zeros(keys, 1, keys), values, 1.0)
    result.append([[int(weight > 0) for weight in row] for row in out.flatten(1).tolist()])"""
_CAUSAL = """\
import torch
from nanovllm.paged_kv.backends import torch_backend
result = torch_backend.causal_attention(torch.tensor(q), torch.tensor(k), torch.tensor(v), scale)"""
_PREFILL = """\
import torch
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext
whole = lambda values: None if values is None else torch.tensor(values, dtype=torch.int32)
context = ForwardContext(
    True, torch.tensor(slots), whole(context_lens), whole(block_tables), whole(cu_seqlens_q), whole(cu_seqlens_k),
    max_seqlen_q=max(b - a for a, b in zip(cu_seqlens_q, cu_seqlens_q[1:])), max_seqlen_k=max(context_lens))
q, k, v, k_cache, v_cache = (torch.tensor(values) for values in (q, k, v, k_cache, v_cache))
result = TorchBackend().prefill(q, k, v, k_cache, v_cache, context, scale)"""
_VIEWS = """\
projected = torch.tensor([[2.0, 1.0, 5.0]])  # q, k and v of one token side by side, as the projection leaves them
q, k, v = projected.view(1, 3, 1).split(1, dim=1)  # views: what is written into one of them stands in projected"""
_CAUSAL_KEPT = f"""\
import torch
from nanovllm.paged_kv.backends import torch_backend
{_VIEWS}
torch_backend.causal_attention(q, k, v, 0.5)
result = projected.tolist()"""


def _kept(tables: str, keys: int) -> Example:
    """What a step of one row must leave as it was. keys: 1, or 2 where one is cached."""
    code = f"""\
import torch
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext
{_VIEWS}
k_cache, v_cache = torch.tensor([3.0, 1.0]).view(1, 2, 1, 1), torch.tensor([4.0, 5.0]).view(1, 2, 1, 1)
tables, lens, bounds, ends = (torch.tensor(x, dtype=torch.int32) for x in ([[0]], [{keys}], [0, 1], [0, {keys}]))
slot = torch.tensor([{keys - 1}])
context = ForwardContext(True, slot, lens, {tables}, bounds, ends, max_seqlen_q=1, max_seqlen_k={keys})
TorchBackend().prefill(q, k, v, k_cache, v_cache, context, 0.5)
result = [projected.tolist(), k_cache.flatten().tolist(), v_cache.flatten().tolist()]"""
    think = (
        "q, k and v are views of a larger tensor, and both caches belong to the engine: all must be as they were. "
        "Which line of `prefill` or `causal_attention` writes into one of them? k[rows] is a view too; `out = q` makes "
        "no tensor. What would?"
    )
    return Example(code, [[[2.0, 1.0, 5.0]], [3.0, 1.0], [4.0, 5.0]], think)


def _causal_inputs(
    rng: random.Random, queries: int, before: int, kv_heads: int, group: int, head_dim: int
) -> dict[str, Any]:
    keys = before + queries
    q, k = numbers(rng, queries, kv_heads * group, head_dim), numbers(rng, keys, kv_heads, head_dim)
    return {"q": q, "k": k, "v": numbers(rng, keys, kv_heads, head_dim), "scale": 0.5}


def _batch(rng: random.Random, lengths: list[int], starts: list[int], block_size: int, width: int) -> dict[str, Any]:
    """A packed step of one head, its K/V stored. Without a prefix it has no block tables, and an empty pool."""
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    widths = [ceil_div(end, block_size) for end in ends]
    tables = tables_for(rng, widths)
    caches = [filled_cache(rng, tables, ends, block_size, 1, width) for _ in "kv"]
    rows = [
        [row for table, s, e in zip(tables, starts, ends, strict=True) for row in rows_of(cache, table, e)[s:]]
        for cache in caches
    ]
    if not any(starts):
        caches = [filled_cache(rng, tables, [0] * len(ends), block_size, 1, width) for _ in "kv"]
    positions = [(table, p) for table, s, e in zip(tables, starts, ends, strict=True) for p in range(s, e)]
    return {
        "q": numbers(rng, sum(lengths), 1, width),
        "k": rows[0],
        "v": rows[1],
        "k_cache": caches[0],
        "v_cache": caches[1],
        "slots": [table[p // block_size] * block_size + p % block_size for table, p in positions],
        "block_tables": padded(tables, widths) if any(starts) else None,
        "context_lens": ends,
        "cu_seqlens_q": [0, *accumulate(lengths)],
        "cu_seqlens_k": [0, *accumulate(ends)],
        "scale": 0.5,
    }


def _fresh_inputs(rng: random.Random, seqs: int, tokens: int, head_dim: int) -> dict[str, Any]:
    lengths = [rng.randint(1, tokens) for _ in range(seqs - 1)] + [tokens]
    return _batch(rng, lengths, [0] * seqs, 2, head_dim)


def _prefix_inputs(
    rng: random.Random, seqs: int, tokens: int, cached: int, head_dim: int, block_size: int
) -> dict[str, Any]:
    lengths = [rng.randint(1, tokens) for _ in range(seqs - 1)] + [tokens]
    starts = [rng.randint(0, cached) for _ in range(seqs - 1)] + [cached]
    return _batch(rng, lengths, starts, block_size, head_dim)


def _expected(q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, block_tables: Any, scale: float, **case: Any) -> Any:
    out, context_lens, cu_seqlens_q = [], case["context_lens"], case["cu_seqlens_q"]
    for i, length in enumerate(context_lens):
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        keys, values = k[rows], v[rows]
        if block_tables is not None:
            keys, values = rows_of(k_cache, block_tables[i], length), rows_of(v_cache, block_tables[i], length)
        out += causal(q[rows], keys, values, scale)
    return out


def _causal_expected(q: Any, k: Any, v: Any, scale: float) -> Any:
    return causal(q, k, v, scale)


_CAUSAL_LOOP = """
def causal_attention(q, k, v, scale):
    group = q.shape[1] // k.shape[1]
    before = k.shape[0] - q.shape[0]
    out = torch.empty_like(q)
    for i in range(q.shape[0]):
        seen = before + i + 1
        for head in range(q.shape[1]):
            keys, values = k[:seen, head // group], v[:seen, head // group]
            out[i, head] = (keys @ q[i, head] * scale).softmax(0) @ values
    return out
"""


def _mask_bug(about: str, *changes: tuple[str, str]) -> Variant:
    return Variant(about, "causal_attention", changes, source=_CAUSAL_LOOP)


EXERCISE = Exercise(
    number="2.7",
    title="Prefix-aware prefill attention",
    file="part2/ex07_prefill_attention.py",
    pieces=(("causal_attention", seams.CAUSAL_ATTENTION), ("prefill", seams.PREFILL)),
    uses_torch=True,
    hints=(
        "The last query of a chunk is at the last position, so it sees every key. Count back from there: what does "
        "the first one see?",
        "Query i has position Lk - Lq + i. visible = key_position <= query_position is a mask [Lq, Lk]; scores that "
        "are not visible become -inf before the softmax. The keys come from the pool exactly when there are block "
        "tables.",
        "last_visible = torch.arange(Lq) + (Lk - Lq); visible = torch.arange(Lk) <= last_visible.unsqueeze(1); "
        'weights = scores.masked_fill(~visible, float("-inf")).softmax(-1). For sequence i: rows cu[i] to cu[i + 1]; '
        "keys k[rows] or k_cache.flatten(0, 1)[slots of positions 0 .. context_lens[i] - 1].",
    ),
    groups=(
        Group(
            "which keys a query sees",
            1,
            "Draw queries against keys. The last query sees all; where does the first one stop?",
            (
                Example(
                    _MASK,
                    [
                        [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
                        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
                        [[1, 1, 1, 1]],
                    ],
                ),
                Example(
                    _CAUSAL_KEPT,
                    [[2.0, 1.0, 5.0]],
                    "q, k and v are views of a larger tensor, which must be as it was. Which line writes into one of "
                    "them? `q *= scale` does, and so does `out = q`; what would make a new tensor instead?",
                ),
            ),
            numeric=Numeric(
                (("queries", 1, 4), ("before", 0, 4), ("kv_heads", 1, 2), ("group", 1, 2), ("head_dim", 1, 3)),
                _causal_inputs,
                _CAUSAL,
                _causal_expected,
            ),
        ),
        Group(
            "packed prompts without a prefix",
            1,
            "Without block tables the pool is not read at all. Which rows belong to the second sequence?",
            (_kept("None", 1),),
            numeric=Numeric((("seqs", 1, 3), ("tokens", 1, 4), ("head_dim", 1, 3)), _fresh_inputs, _PREFILL, _expected),
        ),
        Group(
            "keys of a cached prefix",
            1,
            "Which positions do the keys of a sequence have, and in which slots do they lie? Slots of nobody hold 9.0.",
            (_kept("tables", 2),),
            numeric=Numeric(
                (("seqs", 1, 3), ("tokens", 1, 3), ("cached", 1, 4), ("head_dim", 1, 3), ("block_size", 1, 3)),
                _prefix_inputs,
                _PREFILL,
                _expected,
            ),
        ),
        Group(
            "the same tokens from the running engine",
            1,
            "The second prompt finds a prefix in the cache, and all of them come in chunks: look at such a step.",
            (engine_example(),),
        ),
    ),
    bugs=(
        _mask_bug("aligns the mask at the first key", ("before + i + 1", "i + 1")),
        _mask_bug("lets a query see the key after its own", ("before + i + 1", "before + i + 2")),
        _mask_bug("hides a query's own key", ("before + i + 1", "max(before + i, 1)")),
        _mask_bug("hides nothing", ("before + i + 1", "k.shape[0]")),
        _mask_bug("hides the prefix", ("k[:seen,", "k[before:seen,"), ("v[:seen,", "v[before:seen,")),
        _mask_bug(
            "deals the query heads out in turn",
            ("k[:seen, head // group]", "k[:seen, head % k.shape[1]]"),
            ("v[:seen, head // group]", "v[:seen, head % k.shape[1]]"),
        ),
        _mask_bug("forgets the scale", (" * scale", "")),
        _mask_bug(
            "scales the queries where they lie",
            ("out = torch.empty_like(q)", "out = torch.empty_like(q)\n    q *= scale"),
            (" * scale", ""),
        ),
        Variant("writes the answers over the queries", "prefill", (("torch.empty_like(q)", "q"),)),
        Variant(
            "always takes the rows of this step as keys", "prefill", (("if context.block_tables is None:", "if True:"),)
        ),
        Variant(
            "takes the whole step for one sequence",
            "prefill",
            (("keys, values = k[rows], v[rows]", "keys, values = k[: bounds[i + 1]], v[: bounds[i + 1]]"),),
        ),
        Variant("reads the first sequence's table for all", "prefill", (("[i, :key_len]", "[0, :key_len]"),)),
        Variant(
            "reads only the keys of the prefix and none of the chunk",
            "prefill",
            (
                ("[i, :key_len]", "[i, : max(key_len - (bounds[i + 1] - bounds[i]), 1)]"),
                (
                    "q[rows], keys, values",
                    "q[rows], *(t.repeat(9, 1, 1)[: max(len(t), len(q[rows]))] for t in (keys, values))",
                ),
            ),
        ),
        Variant(
            "reads values where the keys lie",
            "prefill",
            (("v_cache.flatten(0, 1)[slots]", "k_cache.flatten(0, 1)[slots]"),),
        ),
    ),
    harmless=(
        _mask_bug("goes query by query"),
        _mask_bug(
            "scales a copy of the queries",
            ("out = torch.empty_like(q)", "out = torch.empty_like(q)\n    q = q * scale"),
            ("@ q[i, head] * scale", "@ q[i, head]"),
        ),
        Variant(
            "masks with a lower triangle",
            "causal_attention",
            source="""
def causal_attention(q, k, v, scale):
    group = q.shape[1] // k.shape[1]
    visible = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril(diagonal=k.shape[0] - q.shape[0])
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale + torch.where(visible, 0.0, -1e30)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
""",
        ),
        Variant(
            "reads the pool position by position",
            "prefill",
            (
                (
                    "slots = context.key_slots(k_cache.shape[1])[i, :key_len]",
                    "size, table = k_cache.shape[1], context.block_tables[i].tolist()\n"
                    "            slots = [table[p // size] * size + p % size for p in range(key_len)]",
                ),
            ),
        ),
    ),
)
