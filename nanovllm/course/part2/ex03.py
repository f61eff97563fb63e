"""2.3 Decode batch."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part2.cases import ceil_div, padded, slot, tables_for

_SLICES = """\
from nanovllm.paged_kv import batch
from nanovllm.scheduler.sequence import ScheduledSlice
slices = [ScheduledSlice(0, [9], 5, 6, [7, 2]), ScheduledSlice(1, [4], 4, 5, [3, 6])]
host = batch.prepare_decode(slices, 4)
"""
_TOKENS = (
    _SLICES + "result = [host.is_prefill, host.input_ids.tolist(), host.positions.tolist(), host.slot_mapping.tolist()]"
)
_KEYS = _SLICES + "result = [host.context_lens.tolist(), host.block_tables.tolist(), host.max_seqlen_k]"
_TAKE = """\
from nanovllm.paged_kv import batch
from nanovllm.scheduler.sequence import ScheduledSlice
slices = [ScheduledSlice(i, [t], s, s + 1, table) for i, (t, s, table) in enumerate(zip(tokens, starts, tables))]
host = batch.prepare_decode(slices, block_size)
result = """
_WRITES = _TAKE + "dict(input_ids=host.input_ids, positions=host.positions, slot_mapping=host.slot_mapping)"
_READS = _TAKE + "dict(context_lens=host.context_lens, block_tables=host.block_tables, max_seqlen_k=host.max_seqlen_k)"
_SIZES = (("seqs", 1, 4), ("cached", 0, 9), ("block_size", 1, 4))


def _inputs(rng: random.Random, seqs: int, cached: int, block_size: int) -> dict[str, Any]:
    """The last sequence has `cached` tokens, the others at most as many; some tables hold a block more than needed."""
    starts = [rng.randint(0, cached) for _ in range(seqs - 1)] + [cached]
    rng.shuffle(starts)
    tables = tables_for(rng, [start // block_size + 1 + rng.randint(0, 1) for start in starts])
    tokens = [rng.randrange(100) for _ in range(seqs)]
    return {"tokens": tokens, "starts": starts, "tables": tables, "block_size": block_size}


def _writes(tokens: list[int], starts: list[int], tables: list[list[int]], block_size: int) -> dict[str, Any]:
    import numpy as np

    slots = [slot(table, start, block_size) for table, start in zip(tables, starts, strict=True)]
    wide = {"input_ids": tokens, "positions": starts, "slot_mapping": slots}
    return {name: np.array(values, np.int64) for name, values in wide.items()}


def _reads(tokens: list[int], starts: list[int], tables: list[list[int]], block_size: int) -> dict[str, Any]:
    import numpy as np

    ends = [start + 1 for start in starts]
    rows = padded(tables, [ceil_div(end, block_size) for end in ends])
    return {
        "context_lens": np.array(ends, np.int32),
        "block_tables": np.array(rows, np.int32),
        "max_seqlen_k": max(ends),
    }


EXERCISE = Exercise(
    number="2.3",
    title="Decode batch",
    file="part2/ex03_decode_batch.py",
    pieces=(("prepare_decode", seams.PREPARE_DECODE),),
    uses_torch=True,
    hints=(
        "A slice says it all: token_ids[0] is the token, start its position. How many keys does that token see, when "
        "its own is stored before it attends?",
        "positions = starts; context_lens = positions + 1; a context of n keys needs ceil(n / block_size) blocks; the "
        "slots come from slots_of with one row a sequence.",
        "ends = positions + 1; tables = pad_block_tables([s.block_table for s in slices], (ends + block_size - 1) // "
        "block_size); slot_mapping = slots_of(tables, np.arange(len(slices)), positions, block_size); max_seqlen_k = "
        "int(ends.max()).",
    ),
    groups=(
        Group(
            "the tokens and where their K/V go",
            1,
            "One row a sequence: its newest token, that token's own position, and the slot of that position.",
            (Example(_TOKENS, [False, [9, 4], [5, 4], [9, 24]]),),
            numeric=Numeric(_SIZES, _inputs, _WRITES, _writes),
        ),
        Group(
            "the keys to attend to",
            1,
            "Does a token see its own key? Count the keys, then the blocks that hold them; which sequence is longest?",
            (Example(_KEYS, [[6, 5], [[7, 2], [3, 6]], 6]),),
            numeric=Numeric(_SIZES, _inputs, _READS, _reads),
        ),
        Group(
            "the same tokens from the running engine",
            1,
            "The first token of an answer comes from prefill. If it is right and the second is not, look at one decode "
            "step: the slot written, the keys read.",
            (engine_example(),),
        ),
    ),
    bugs=(
        Variant(
            "does not let a token see its own key",
            "prepare_decode",
            (
                ("ends = positions + 1", "ends = positions.copy()"),
                ("(ends + block_size - 1) // block_size", "(positions + block_size) // block_size"),
            ),
        ),
        Variant(
            "takes the number of tokens for the position",
            "prepare_decode",
            (
                ("s.start for s in slices", "s.num_tokens for s in slices"),
                ("ends = positions + 1", "ends = positions"),
                (
                    "slots_of(tables, np.arange(len(slices)), positions, block_size)",
                    "slots_of(tables, np.arange(len(slices)), positions - 1, block_size)",
                ),
            ),
        ),
        Variant(
            "writes to the slot of the token before",
            "prepare_decode",
            (("np.arange(len(slices)), positions,", "np.arange(len(slices)), np.maximum(positions - 1, 0),"),),
        ),
        Variant(
            "looks all slots up in the first table",
            "prepare_decode",
            (("np.arange(len(slices)), positions", "np.zeros(len(slices), np.int64), positions"),),
        ),
        Variant(
            "counts the tokens of all sequences as keys", "prepare_decode", (("int(ends.max())", "int(ends.sum())"),)
        ),
        Variant("takes the first sequence for the longest", "prepare_decode", (("int(ends.max())", "int(ends[0])"),)),
        Variant(
            "takes the number of cached tokens for the longest context",
            "prepare_decode",
            (("int(ends.max())", "int(positions.max())"),),
        ),
        Variant("says that it is a prefill", "prepare_decode", (("is_prefill=False", "is_prefill=True"),)),
        Variant(
            "feeds in the position instead of the token",
            "prepare_decode",
            (("np.array([s.token_ids[0] for s in slices], np.int64)", "positions"),),
        ),
        Variant("leaves the lengths at 64 bits", "prepare_decode", (("ends.astype(np.int32)", "ends"),)),
    ),
    harmless=(
        Variant(
            "goes sequence by sequence",
            "prepare_decode",
            source="""
def prepare_decode(slices, block_size):
    widths = [s.start // block_size + 1 for s in slices]
    tables = [list(s.block_table[:w]) + [0] * (max(widths) - w) for s, w in zip(slices, widths)]
    slots = [s.block_table[s.start // block_size] * block_size + s.start % block_size for s in slices]
    return HostBatch(
        is_prefill=False,
        input_ids=np.array([s.token_ids[-1] for s in slices], np.int64),
        positions=np.array([s.start for s in slices], np.int64),
        slot_mapping=np.array(slots, np.int64),
        context_lens=np.array([s.end for s in slices], np.int32),
        block_tables=np.array(tables, np.int32),
        max_seqlen_k=max(s.end for s in slices),
    )
""",
        ),
        Variant(
            "takes the position from the number of tokens, less one",
            "prepare_decode",
            (("s.start for s in slices", "s.num_tokens - 1 for s in slices"),),
        ),
        Variant(
            "divides before it adds one",
            "prepare_decode",
            (("(ends + block_size - 1) // block_size", "positions // block_size + 1"),),
        ),
    ),
)
