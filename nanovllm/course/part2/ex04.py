"""2.4 Packing and cu_seqlens."""

import random
from itertools import accumulate
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part2.cases import ceil_div, padded, slot, tables_for

_SLICES = """\
from nanovllm.paged_kv import batch
from nanovllm.scheduler.sequence import ScheduledSlice
slices = [ScheduledSlice(0, [5, 6, 7], 0, 3, [4, 1]), ScheduledSlice(1, [8, 9], 2, 6, [3, 0, 2])]
host = batch.prepare_prefill(slices, 2)
"""
_ROWS = (
    _SLICES + "result = [host.is_prefill, host.input_ids.tolist(), host.positions.tolist(), host.slot_mapping.tolist()]"
)
_SUMS = (
    _SLICES
    + """\
sums = [host.cu_seqlens_q.tolist(), host.cu_seqlens_k.tolist()]
result = [*sums, host.context_lens.tolist(), host.max_seqlen_q, host.max_seqlen_k]"""
)
_READS = _SLICES + "result = [host.block_tables.tolist(), host.last_token_rows.tolist()]"
_TAKE = """\
from nanovllm.paged_kv import batch
from nanovllm.scheduler.sequence import ScheduledSlice
made = zip(chunks, starts, known, tables)
slices = [ScheduledSlice(i, chunk, start, count, table) for i, (chunk, start, count, table) in enumerate(made)]
host = batch.prepare_prefill(slices, block_size)
"""
_ROW_CASE = _TAKE + "result = dict(input_ids=host.input_ids, positions=host.positions, slot_mapping=host.slot_mapping)"
_SUM_CASE = (
    _TAKE
    + """\
result = dict(cu_seqlens_q=host.cu_seqlens_q, cu_seqlens_k=host.cu_seqlens_k, context_lens=host.context_lens,
              max_seqlen_q=host.max_seqlen_q, max_seqlen_k=host.max_seqlen_k)"""
)
_READ_CASE = _TAKE + "result = dict(block_tables=host.block_tables, last_token_rows=host.last_token_rows)"
_SIZES = (("seqs", 1, 3), ("tokens", 1, 5), ("cached", 0, 5), ("later", 0, 3), ("block_size", 1, 3))


def _inputs(rng: random.Random, seqs: int, tokens: int, cached: int, later: int, block_size: int) -> dict[str, Any]:
    """Chunks of at most `tokens` tokens after at most `cached` ones; of each prompt at most `later` come afterwards."""
    lengths = [rng.randint(1, tokens) for _ in range(seqs - 1)] + [tokens]
    starts = [rng.randint(0, cached) for _ in range(seqs - 1)] + [cached]
    known = [s + n + rng.randint(0, later) for s, n in zip(starts, lengths, strict=True)]
    tables = tables_for(rng, [ceil_div(count, block_size) for count in known])
    chunks = [[rng.randrange(100) for _ in range(n)] for n in lengths]
    return {"chunks": chunks, "starts": starts, "known": known, "tables": tables, "block_size": block_size}


def _ends(chunks: list[list[int]], starts: list[int]) -> list[int]:
    return [start + len(chunk) for start, chunk in zip(starts, chunks, strict=True)]


def _rows(chunks: Any, starts: Any, known: Any, tables: Any, block_size: int) -> dict[str, Any]:
    import numpy as np

    spans = [range(start, end) for start, end in zip(starts, _ends(chunks, starts), strict=True)]
    slots = [slot(table, p, block_size) for table, span in zip(tables, spans, strict=True) for p in span]
    return {
        "input_ids": np.array([token for chunk in chunks for token in chunk], np.int64),
        "positions": np.array([p for span in spans for p in span], np.int64),
        "slot_mapping": np.array(slots, np.int64),
    }


def _sums(chunks: Any, starts: Any, known: Any, tables: Any, block_size: int) -> dict[str, Any]:
    import numpy as np

    lengths, ends = [len(chunk) for chunk in chunks], _ends(chunks, starts)
    return {
        "cu_seqlens_q": np.array([0, *accumulate(lengths)], np.int32),
        "cu_seqlens_k": np.array([0, *accumulate(ends)], np.int32),
        "context_lens": np.array(ends, np.int32),
        "max_seqlen_q": max(lengths),
        "max_seqlen_k": max(ends),
    }


def _reads(chunks: Any, starts: Any, known: Any, tables: Any, block_size: int) -> dict[str, Any]:
    import numpy as np

    ends = _ends(chunks, starts)
    last = list(accumulate(len(chunk) for chunk in chunks))
    needs = [row - 1 for row, end, count in zip(last, ends, known, strict=True) if end == count]
    rows = padded(tables, [ceil_div(end, block_size) for end in ends])
    return {
        "block_tables": np.array(rows, np.int32) if any(starts) else None,
        "last_token_rows": np.array(needs, np.int64),
    }


EXERCISE = Exercise(
    number="2.4",
    title="Packing and cu_seqlens",
    file="part2/ex04_packing.py",
    pieces=(("prepare_prefill", seams.PREPARE_PREFILL),),
    uses_torch=True,
    hints=(
        "Two lengths belong to each sequence: how many rows it has in this step, and how many keys it attends to. Only "
        "without a cached prefix are they the same.",
        "cu_seqlens begin with 0 and have B + 1 entries. rows = np.repeat(np.arange(B), q_lens) tells each row's "
        "sequence; positions count from the sequence's start. Keys end where the chunk does, not "
        "where the prompt does.",
        "ends = starts + q_lens; cu_q = [0] + cumsum(q_lens); cu_k = [0] + cumsum(ends); positions = arange(T) - "
        "(cu_q[:-1] - starts)[rows]; last_token_rows = cu_q[1:][needs_token] - 1; block_tables only if starts.any().",
    ),
    groups=(
        Group(
            "rows, positions and slots",
            1,
            "Number the rows of the step. Which position does the first row of the second sequence have?",
            (Example(_ROWS, [True, [5, 6, 7, 8, 9], [0, 1, 2, 2, 3], [8, 9, 2, 0, 1]]),),
            numeric=Numeric(_SIZES, _inputs, _ROW_CASE, _rows),
        ),
        Group(
            "running sums of queries and keys",
            1,
            "B sequences have B + 1 borders, the first of which is 0. Queries are this step's rows; keys are those and "
            "all cached ones.",
            (Example(_SUMS, [[0, 3, 5], [0, 3, 7], [3, 4], 3, 4]),),
            numeric=Numeric(_SIZES, _inputs, _SUM_CASE, _sums),
        ),
        Group(
            "what is read from the cache, and whose logits are needed",
            1,
            "When does attention need the pool? And which chunks reach the end of what is known of their sequence?",
            (Example(_READS, [[[4, 1], [3, 0]], [2]]),),
            numeric=Numeric(_SIZES, _inputs, _READ_CASE, _reads),
        ),
        Group(
            "the same tokens from the running engine",
            1,
            "A prompt without prefix is the easy case. Look at the second chunk of a prompt, and at one that found a "
            "prefix in the cache.",
            (engine_example(),),
        ),
    ),
    bugs=(
        Variant(
            "starts every slice at position 0", "prepare_prefill", (("(cu_q[:-1] - starts)[rows]", "cu_q[:-1][rows]"),)
        ),
        Variant(
            "counts positions through the whole step",
            "prepare_prefill",
            (
                (" - (cu_q[:-1] - starts)[rows]", ""),
                (
                    "slots_of(tables, rows, positions, block_size)",
                    "slots_of(tables, rows, positions - (cu_q[:-1] - starts)[rows], block_size)",
                ),
            ),
        ),
        Variant(
            "writes the slice to the sequence's first slots",
            "prepare_prefill",
            (("rows, positions, block_size)", "rows, positions - starts[rows], block_size)"),),
        ),
        Variant("counts only this step's rows as keys", "prepare_prefill", (("np.cumsum(ends)", "np.cumsum(q_lens)"),)),
        Variant(
            "counts the cached tokens as queries too",
            "prepare_prefill",
            (("cu_seqlens_q=cu_q.astype(np.int32)", "cu_seqlens_q=cu_k.astype(np.int32)"),),
        ),
        Variant(
            "leaves the leading 0 out of the sums",
            "prepare_prefill",
            (
                ("cu_seqlens_q=cu_q.astype(np.int32)", "cu_seqlens_q=cu_q[1:].astype(np.int32)"),
                ("cu_seqlens_k=cu_k.astype(np.int32)", "cu_seqlens_k=cu_k[1:].astype(np.int32)"),
            ),
        ),
        Variant(
            "lets a chunk see keys to the end of the prompt",
            "prepare_prefill",
            (("ends.astype(np.int32)", "np.array([s.num_tokens for s in slices], np.int32)"),),
        ),
        Variant("never reads the cache", "prepare_prefill", (("tables if starts.any() else None", "None"),)),
        Variant(
            "reads the cache only if every sequence has a prefix",
            "prepare_prefill",
            (("starts.any()", "starts.all()"),),
        ),
        Variant(
            "takes the longest query for the longest context",
            "prepare_prefill",
            (("int(ends.max())", "int(q_lens.max())"),),
        ),
        Variant(
            "asks for logits of unfinished chunks too",
            "prepare_prefill",
            (("cu_q[1:][needs_token] - 1", "cu_q[1:] - 1"),),
        ),
        Variant(
            "asks for the logits of the row after the last",
            "prepare_prefill",
            (("cu_q[1:][needs_token] - 1", "np.minimum(cu_q[1:][needs_token], cu_q[-1] - 1)"),),
        ),
        Variant(
            "asks for the logits of each first row",
            "prepare_prefill",
            (("cu_q[1:][needs_token] - 1", "cu_q[:-1][needs_token]"),),
        ),
    ),
    harmless=(
        Variant(
            "goes sequence by sequence",
            "prepare_prefill",
            source="""
def prepare_prefill(slices, block_size):
    ids, positions, slots, cu_q, cu_k, last = [], [], [], [0], [0], []
    for s in slices:
        ids += s.token_ids
        for position in range(s.start, s.end):
            positions.append(position)
            slots.append(s.block_table[position // block_size] * block_size + position % block_size)
        cu_q.append(len(ids))
        cu_k.append(cu_k[-1] + s.end)
        if s.needs_token:
            last.append(len(ids) - 1)
    widths = np.array([-(-s.end // block_size) for s in slices])
    has_prefix = any(s.start for s in slices)
    return HostBatch(
        True,
        np.array(ids, np.int64),
        np.array(positions, np.int64),
        np.array(slots, np.int64),
        np.array([s.end for s in slices], np.int32),
        pad_block_tables([s.block_table for s in slices], widths) if has_prefix else None,
        np.array(cu_q, np.int32),
        np.array(cu_k, np.int32),
        max(len(s.token_ids) for s in slices),
        max(s.end for s in slices),
        np.array(last, np.int64),
    )
""",
        ),
        Variant(
            "joins a range for each sequence",
            "prepare_prefill",
            (
                (
                    "np.arange(cu_q[-1]) - (cu_q[:-1] - starts)[rows]",
                    "np.concatenate([np.arange(s.start, s.end) for s in slices])",
                ),
            ),
        ),
        Variant(
            "compares the end with the number of tokens",
            "prepare_prefill",
            (("s.needs_token for s in slices", "s.end == s.num_tokens for s in slices"),),
        ),
    ),
)
