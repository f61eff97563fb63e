"""4.3 Graph buckets and padding."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant

_GRAPHS = "from nanovllm.paged_kv import cuda_graphs\n"
_SIZES = (
    _GRAPHS + "result = [cuda_graphs.graph_batch_sizes(most) for most in (40, 3, 1, 16)]"
)  # 40: between two multiples; 3: below 8; 16: a multiple itself
_CHOICE = (
    _GRAPHS
    + """\
graphs = cuda_graphs.DecodeGraphs(None, None, None, 64)
graphs.sizes = [1, 2, 4, 8, 16]  # recorded
result = [graphs.padded_size(num_seqs) for num_seqs in (1, 2, 3, 4, 5, 8, 9, 16)]"""
)
_BY_HAND = (
    _GRAPHS
    + """\
import numpy as np
from nanovllm.paged_kv.batch import HostBatch
host = {name: np.array([7, 8, 9, 6]) for name in ("input_ids", "positions", "slot_mapping", "context_lens")}
host["block_tables"] = np.array([[3, 4], [5, 6], [1, 2], [0, 7]])  # of an earlier batch of four
row = np.array([20])
cuda_graphs.write_padded(host, HostBatch(False, row, row, row, np.array([21]), np.array([[9, 8]])), 2)
result = [host["slot_mapping"][:2].tolist(), host["context_lens"][:2].tolist(), host["block_tables"][0].tolist()]"""
)


def _most(rng: random.Random, most: int) -> dict[str, Any]:
    return {"most": most}


def _recorded(most: int) -> Any:
    return [n for n in range(1, most + 1) if n in (1, 2, 4, 8, most) or n % 16 == 0]


def _steps(rng: random.Random, steps: int, seqs: int, blocks: int, block_size: int) -> dict[str, Any]:
    made = []
    for _ in range(steps):
        batch = []
        for _ in range(rng.randint(1, seqs)):
            table = rng.sample(range(1, 20), rng.randint(1, blocks))
            position = rng.randint((len(table) - 1) * block_size, len(table) * block_size - 1)
            batch.append([rng.randrange(100), position, table])
        made.append({"batch": batch, "size": rng.randint(len(batch), seqs)})
    return {"steps": made, "block_size": block_size}


def _played(steps: Any, block_size: int) -> Any:
    seen = []
    for step in steps:
        rows = []
        for token, position, table in step["batch"]:
            slots = [block * block_size + offset for block in table for offset in range(block_size)]
            rows.append([token, position, slots[position], slots[: position + 1]])
        padding = [[None, 0] for _ in range(step["size"] - len(rows))]
        seen.append({"rows": rows, "padding": padding, "exists": True})
    return seen


_REPLAY = """\
from nanovllm.course.part4 import padding
result = padding.replay(steps, block_size)"""

_ROUNDED_UP = """
def graph_batch_sizes(max_num_seqs):
    return sorted({1, 2, 4, 8, *range(16, max_num_seqs + 16, 16)})
"""
_POWERS = """
def graph_batch_sizes(max_num_seqs):
    sizes = [1]
    while sizes[-1] < max_num_seqs:
        sizes.append(min(2 * sizes[-1], max_num_seqs))
    return sizes
"""
_ONE_BY_ONE = """
def graph_batch_sizes(max_num_seqs):
    sizes = [n for n in range(1, max_num_seqs) if n in (1, 2, 4, 8) or n % 16 == 0]
    return [*sizes, max_num_seqs]
"""
_LOOP = """
def padded_size(self, num_seqs):
    return next(size for size in self.sizes if size >= num_seqs)
"""
_BELOW = """
def padded_size(self, num_seqs):
    return [size for size in self.sizes if size <= num_seqs][-1]
"""
_NEW_ARRAYS = """
def write_padded(host, batch, size):
    num_seqs, width = batch.block_tables.shape
    for name, filler in (("input_ids", 0), ("positions", 0), ("slot_mapping", -1), ("context_lens", 0)):
        host[name] = np.concatenate([getattr(batch, name), np.full(size - num_seqs, filler)])
    tables = np.zeros((size, host["block_tables"].shape[1]), np.int32)
    tables[:num_seqs, :width] = batch.block_tables
    host["block_tables"] = tables
"""
_TO_THE_END = """
def write_padded(host, batch, size):
    num_seqs, width = batch.block_tables.shape
    for name, array in host.items():
        if name in ("input_ids", "positions", "slot_mapping", "context_lens", "block_tables"):
            array[:] = -1 if name == "slot_mapping" else 0
    host["block_tables"][:num_seqs, :width] = batch.block_tables
    for name in ("input_ids", "positions", "slot_mapping", "context_lens"):
        host[name][:num_seqs] = getattr(batch, name)
"""

EXERCISE = Exercise(
    number="4.3",
    title="Graph buckets and padding",
    file="part4/ex03_graph_buckets.py",
    pieces=(
        ("graph_batch_sizes", seams.GRAPH_BATCH_SIZES),
        ("padded_size", seams.PADDED_SIZE),
        ("write_padded", seams.WRITE_PADDED),
    ),
    hints=(
        "Which sizes must be there so that every batch up to max_num_seqs finds one? What would a padded row do with "
        "slot 0, and what with the context length that another sequence left there?",
        "A set of candidates, those above max_num_seqs dropped, sorted. bisect_left(sizes, n) is the place of the "
        "first size that is not below n. host[name][:B] = ...; host[name][B:size] = ...: assignments to slices write "
        "in place.",
        "sorted(s for s in {1, 2, 4, 8, *range(16, m + 1, 16), m} if s <= m); sizes[bisect_left(sizes, n)]; pad "
        "slot_mapping with -1 and all else with 0; block_tables[:B, :W] takes the batch's.",
    ),
    groups=(
        Group(
            "the sizes to record",
            1,
            "Is there a size for every batch from 1 to max_num_seqs, and none above it?",
            (Example(_SIZES, [[1, 2, 4, 8, 16, 32, 40], [1, 2, 3], [1], [1, 2, 4, 8, 16]]),),
            numeric=Numeric(
                (("most", 1, 70),),
                _most,
                _GRAPHS + "result = cuda_graphs.graph_batch_sizes(most)",
                _recorded,
                cases=16,
            ),
        ),
        Group(
            "the next size",
            1,
            "1, 2, 4, 8 and 16 are recorded; batches of 1, 2, 3, 4, 5, 8, 9, 16. A batch that has a recorded size "
            "needs no padding; any other takes the next larger one. What do 4 and 5 "
            "get?",
            (Example(_CHOICE, [1, 2, 4, 4, 8, 8, 16, 16]),),
        ),
        Group(
            "padding that does no harm",
            1,
            "rows: [token, position, slot it writes, slots it reads]; padding: [slot it writes, keys it reads]. Which "
            "row of which step does something it should not? What was in it before?",
            (
                Example(
                    _BY_HAND,
                    [[20, -1], [21, 0], [9, 8]],
                    "slot_mapping and context_lens of rows 0 and 1, and the block table of row 0. Row 0 is the batch's "
                    "and row 1 padding. What may padding store and see, and what did the batch before leave there?",
                ),
            ),
            numeric=Numeric(
                (("steps", 1, 3), ("seqs", 1, 6), ("blocks", 1, 3), ("block_size", 1, 3)),
                _steps,
                _REPLAY,
                _played,
                cases=16,
            ),
        ),
    ),
    bugs=(
        Variant("forgets max_num_seqs itself", "graph_batch_sizes", (("16), max_num_seqs}", "16)}"),)),
        Variant("rounds up beyond max_num_seqs", "graph_batch_sizes", source=_ROUNDED_UP),
        Variant("leaves 2, 4 and 8 out", "graph_batch_sizes", (("{1, 2, 4, 8, *", "{1, *"),)),
        Variant("records powers of two", "graph_batch_sizes", source=_POWERS),
        Variant(
            "pads a batch that fits exactly",
            "padded_size",
            (("bisect_left(self.sizes, num_seqs)", "bisect_left(self.sizes, num_seqs + 1) % len(self.sizes)"),),
        ),
        Variant("takes the size below", "padded_size", source=_BELOW),
        Variant("always takes the largest", "padded_size", (("bisect_left(self.sizes, num_seqs)", "-1"),)),
        Variant("lets padding write to slot 0", "write_padded", (("batch.slot_mapping, -1", "batch.slot_mapping, 0"),)),
        Variant(
            "leaves the old slots in the padding",
            "write_padded",
            (
                (
                    'host["slot_mapping"][real], host["slot_mapping"][padding] = batch.slot_mapping, -1',
                    'host["slot_mapping"][real] = batch.slot_mapping',
                ),
            ),
        ),
        Variant(
            "leaves the old context lengths in the padding",
            "write_padded",
            (
                (
                    'host["context_lens"][real], host["context_lens"][padding] = batch.context_lens, 0',
                    'host["context_lens"][real] = batch.context_lens',
                ),
            ),
        ),
        Variant(
            "leaves the padded rows as the batch before left them",
            "write_padded",
            source="""
def write_padded(host, batch, size):
    num_seqs, width = batch.block_tables.shape
    for name in ("input_ids", "positions", "slot_mapping", "context_lens"):
        host[name][:num_seqs] = getattr(batch, name)
    host["block_tables"][:num_seqs, :width] = batch.block_tables
""",
        ),
        Variant("lets padding see one key", "write_padded", (("batch.context_lens, 0", "batch.context_lens, 1"),)),
        Variant("pads with token -1", "write_padded", (("batch.input_ids, 0", "batch.input_ids, -1"),)),
        Variant("puts new arrays in place of the buffers", "write_padded", source=_NEW_ARRAYS),
        Variant("writes the tables one column off", "write_padded", (("[real, :width]", "[real, -width:]"),)),
    ),
    harmless=(
        Variant("asks every number whether it is one", "graph_batch_sizes", source=_ONE_BY_ONE),
        Variant("goes through the sizes", "padded_size", source=_LOOP),
        Variant("wipes the buffers to their end", "write_padded", source=_TO_THE_END),
        Variant(
            "leaves old block ids in the padding, which nobody reads",
            "write_padded",
            (
                (
                    'host["block_tables"][real, :width], host["block_tables"][padding] = batch.block_tables, 0',
                    'host["block_tables"][real, :width] = batch.block_tables',
                ),
            ),
        ),
    ),
    uses_torch=True,
)
