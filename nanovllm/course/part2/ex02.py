"""2.2 Slot mapping."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part2.cases import padded, slot, tables_for

_HAND = """\
import numpy as np
from nanovllm.paged_kv import batch
block_tables = np.array([[7, 2], [5, 0]], np.int32)
result = batch.slots_of(block_tables, np.array([0, 0, 1]), np.array([3, 4, 1]), 4).tolist()"""
_LARGE = """\
import numpy as np
from nanovllm.paged_kv import batch
block_tables = np.array([[10_000_000]], np.int32)
result = batch.slots_of(block_tables, np.array([0, 0]), np.array([0, 255]), 256).tolist()"""
_SLOTS = """\
import numpy as np
from nanovllm.paged_kv import batch
result = batch.slots_of(np.array(block_tables, np.int32), np.array(rows), np.array(positions), block_size)"""
_PADS = """\
import numpy as np
from nanovllm.paged_kv import batch
result = batch.pad_block_tables([[7, 2], [5], [3, 4, 6]], np.array([2, 1, 2])).tolist()"""
_PAD = """\
import numpy as np
from nanovllm.paged_kv import batch
result = batch.pad_block_tables(tables, np.array(widths))"""


def _slot_inputs(rng: random.Random, seqs: int, blocks: int, block_size: int, tokens: int) -> dict[str, Any]:
    tables = tables_for(rng, [blocks] * seqs)
    rows = [rng.randrange(seqs) for _ in range(tokens)]
    positions = [rng.randrange(blocks * block_size) for _ in range(tokens)]
    return {"block_tables": tables, "rows": rows, "positions": positions, "block_size": block_size}


def _slots(block_tables: list[list[int]], rows: list[int], positions: list[int], block_size: int) -> list[int]:
    return [slot(block_tables[row], position, block_size) for row, position in zip(rows, positions, strict=True)]


def _pad_inputs(rng: random.Random, seqs: int, blocks: int) -> dict[str, Any]:
    tables = tables_for(rng, [rng.randint(1, blocks) for _ in range(seqs)])
    return {"tables": tables, "widths": [rng.randint(1, len(table)) for table in tables]}


def _padded(about: str, *changes: tuple[str, str]) -> Variant:
    return Variant(about, "pad_block_tables", changes)


EXERCISE = Exercise(
    number="2.2",
    title="Slot mapping",
    file="part2/ex02_slot_mapping.py",
    pieces=(("pad_block_tables", seams.PAD_BLOCK_TABLES), ("slots_of", seams.SLOTS_OF)),
    uses_torch=True,
    hints=(
        "Take one token: the row of block_tables is its sequence's. Which column, and which slot of the block found "
        "there?",
        "position // block_size is the column, position % block_size the offset in the block. Block b begins at slot "
        "b * block_size. numpy does this for all tokens at once: table[rows, columns].",
        "slots: block_tables[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size. "
        "padding: np.zeros((len(tables), int(widths.max())), np.int32), then padded[i, :width] = table[:width].",
    ),
    groups=(
        Group(
            "the slot of a token",
            1,
            "Follow one token: its position gives a column of the block table and an offset; the block found there "
            "begins at slot block x block_size.",
            (
                Example(_HAND, [31, 8, 21]),
                Example(
                    _LARGE,
                    [2_560_000_000, 2_560_000_255],
                    "A pool may have more than 2**31 slots. With how many bits does numpy count here?",
                ),
            ),
            numeric=Numeric(
                (("seqs", 1, 3), ("blocks", 1, 4), ("block_size", 1, 4), ("tokens", 1, 8)),
                _slot_inputs,
                _SLOTS,
                _slots,
            ),
        ),
        Group(
            "block tables as one array",
            1,
            "Draw the array: how wide is it, what stands in a row behind its own entries, and which entries are these?",
            (Example(_PADS, [[7, 2], [5, 0], [3, 4]]),),
            numeric=Numeric((("seqs", 1, 4), ("blocks", 1, 5)), _pad_inputs, _PAD, padded),
        ),
        Group(
            "the same tokens from the running engine",
            1,
            "K/V written to a wrong slot are read by somebody else. Does a token of a later block, or of the second "
            "sequence, go where you think?",
            (engine_example(),),
        ),
    ),
    bugs=(
        Variant(
            "goes by the number of the logical block",
            "slots_of",
            (("block_tables[rows, positions // block_size].astype(np.int64)", "(positions // block_size)"),),
        ),
        Variant("forgets the offset in the block", "slots_of", ((" + positions % block_size", ""),)),
        Variant("adds the position instead of the offset", "slots_of", (("positions % block_size", "positions"),)),
        Variant("takes the block for the slot", "slots_of", (("blocks * block_size", "blocks"),)),
        Variant(
            "looks every token up in the first sequence's table",
            "slots_of",
            (("block_tables[rows, ", "block_tables[rows * 0, "),),
        ),
        Variant(
            "counts slots in 32 bits",
            "slots_of",
            ((".astype(np.int64)", ""), ("blocks * block_size", "blocks * np.int32(block_size)")),
        ),
        _padded("pads at the front", ("np.arange(width) < widths", "np.arange(width)[::-1] < widths")),
        Variant(
            "makes the array as wide as the longest table",
            "pad_block_tables",
            source="""
def pad_block_tables(tables, widths):
    widest = max(len(table) for table in tables)
    return np.array([table + [0] * (widest - len(table)) for table in tables], np.int32)
""",
        ),
        Variant(
            "lets a row show blocks that are not needed yet",
            "pad_block_tables",
            source="""
def pad_block_tables(tables, widths):
    widest = int(widths.max())
    return np.array([table[:widest] + [0] * (widest - len(table)) for table in tables], np.int32)
""",
        ),
        _padded("keeps the last blocks of a long table", ("table[:count]", "table[-count:]")),
        _padded(
            "makes the array as wide as the shortest table",
            ("    width = max(counts)\n", "    width = min(counts)\n    counts = [width] * len(tables)\n"),
        ),
        _padded(
            "pads with -1",
            (
                "np.zeros((len(tables), width), np.int32)",
                "np.full((len(tables), width), -1, np.int32)",
            ),
        ),
    ),
    harmless=(
        Variant(
            "goes token by token",
            "slots_of",
            source="""
def slots_of(block_tables, rows, positions, block_size):
    slots = []
    for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
        block, offset = divmod(position, block_size)
        slots.append(int(block_tables[row, block]) * block_size + offset)
    return np.array(slots, np.int64)
""",
        ),
        Variant(
            "numbers all slots of the tables first",
            "slots_of",
            source="""
def slots_of(block_tables, rows, positions, block_size):
    first = block_tables.astype(np.int64)[:, :, None] * block_size
    every = (first + np.arange(block_size)).reshape(len(block_tables), -1)
    return every[rows, positions]
""",
        ),
        Variant(
            "fills row after row",
            "pad_block_tables",
            source="""
def pad_block_tables(tables, widths):
    widest = int(max(widths))
    rows = [list(table[:width]) + [0] * (widest - width) for table, width in zip(tables, widths.tolist())]
    return np.array(rows, np.int32)
""",
        ),
    ),
)
