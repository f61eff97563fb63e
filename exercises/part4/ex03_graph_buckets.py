# ruff: noqa: F401 (imports that you may need)
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

from nanovllm.course import ExerciseNotDone
from bisect import bisect_left

import numpy as np

from nanovllm.paged_kv.batch import HostBatch
from nanovllm.paged_kv.cuda_graphs import DecodeGraphs


def graph_batch_sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes to record, ascending, each once. By hand: 40 -> [1, 2, 4, 8, 16, 32, 40]; 3 -> [1, 2, 3]."""
    raise ExerciseNotDone("4.3 graph_buckets", "collect the candidates, drop those that are too large, sort")


def padded_size(graphs: DecodeGraphs, num_seqs: int) -> int:
    """The smallest of graphs.sizes (a list, ascending) that holds num_seqs rows, 1 <= num_seqs <= the last of them.

    By hand: sizes [1, 2, 4, 8]: 3 -> 4, 4 -> 4, 5 -> 8.
    """
    raise ExerciseNotDone("4.3 graph_buckets", "go through the sizes from small to large")


def write_padded(host: dict[str, np.ndarray], batch: HostBatch, size: int) -> None:
    """Write B sequences into rows 0 .. B - 1 of the buffers and make rows B .. size - 1 harmless (see above).

    host: arrays by name: input_ids, positions, slot_mapping, context_lens, each [max_num_seqs], and block_tables
    [max_num_seqs, max_blocks]. batch: has arrays of the same names: [B], and block_tables [B, W] with W <= max_blocks;
    columns from W on are never read. Write in place: the graph reads these very arrays. Rows from `size` on stay as
    they are.

    By hand, slot_mapping: the buffer holds [7, 8, 9, 6], the batch [20], size is 2 -> [20, -1, 9, 6].
    """
    raise ExerciseNotDone("4.3 graph_buckets", "two slices of each array: the real rows and the padded ones")
