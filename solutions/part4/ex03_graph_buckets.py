"""4.3 Graph buckets and padding: record few batch sizes, run every batch.

A CUDA graph is recorded for one batch size and replays exactly that. Recording all sizes up to max_num_seqs would take
minutes and memory; so a few sizes are recorded, and a batch is padded up to the next of them.

    sizes: 1, 2, 4, 8, every multiple of 16, and max_num_seqs itself        (none above max_num_seqs)

By hand: max_num_seqs 40 gives 1 2 4 8 16 32 40. A batch of 5 runs as 8, one of 33 as 40.

The padded rows run through the whole model like all others, so they must do no harm. Their inputs lie in buffers that
never move, and what an earlier, larger batch left there is still in them:

    slot_mapping -1      stores no key and no value (0 would be a slot of somebody's block)
    context_lens 0       sees no key
    all else 0           a token, a position and a block that exist; nobody reads the result
"""

# stub: from nanovllm.course import ExerciseNotDone
from bisect import bisect_left

import numpy as np

from nanovllm.paged_kv.batch import HostBatch
from nanovllm.paged_kv.cuda_graphs import DecodeGraphs


def graph_batch_sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes to record, ascending, each once. By hand: 40 -> [1, 2, 4, 8, 16, 32, 40]; 3 -> [1, 2, 3]."""
    # stub: raise ExerciseNotDone("4.3 graph_buckets", "collect the candidates, drop those that are too large, sort")
    # solution: begin
    # max_num_seqs itself must be there: otherwise a full batch would find no size that holds it.
    sizes = {1, 2, 4, 8, *range(16, max_num_seqs + 1, 16), max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)
    # solution: end


def padded_size(graphs: DecodeGraphs, num_seqs: int) -> int:
    """The smallest of graphs.sizes (a list, ascending) that holds num_seqs rows, 1 <= num_seqs <= the last of them.

    By hand: sizes [1, 2, 4, 8]: 3 -> 4, 4 -> 4, 5 -> 8.
    """
    # stub: raise ExerciseNotDone("4.3 graph_buckets", "go through the sizes from small to large")
    # solution: begin
    # bisect_left finds the first place whose size is not below num_seqs, without looking at all of them.
    return graphs.sizes[bisect_left(graphs.sizes, num_seqs)]
    # solution: end


def write_padded(host: dict[str, np.ndarray], batch: HostBatch, size: int) -> None:
    """Write B sequences into rows 0 .. B - 1 of the buffers and make rows B .. size - 1 harmless (see above).

    host: arrays by name: input_ids, positions, slot_mapping, context_lens, each [max_num_seqs], and block_tables
    [max_num_seqs, max_blocks]. batch: has arrays of the same names: [B], and block_tables [B, W] with W <= max_blocks;
    columns from W on are never read. Write in place: the graph reads these very arrays. Rows from `size` on stay as
    they are.

    By hand, slot_mapping: the buffer holds [7, 8, 9, 6], the batch [20], size is 2 -> [20, -1, 9, 6].
    """
    # stub: raise ExerciseNotDone("4.3 graph_buckets", "two slices of each array: the real rows and the padded ones")
    # solution: begin
    assert batch.block_tables is not None  # a decode batch always has them
    num_seqs, width = batch.block_tables.shape
    for name in ("input_ids", "positions", "slot_mapping", "context_lens"):
        host[name][:num_seqs] = getattr(batch, name)
        host[name][num_seqs:size] = -1 if name == "slot_mapping" else 0
    host["block_tables"][:num_seqs, :width] = batch.block_tables
    host["block_tables"][num_seqs:size] = 0
    # solution: end
