# ruff: noqa: F401 (imports that you may need)
"""2.4 Packing: prompts of any length behind each other, without padding.

A prefill step computes a slice of each of B prompts. The slices are laid behind each other in T rows. Where one ends
and the next begins is told by running sums, cu_seqlens. Example with block_size 2:

    sequence 0   tokens 5 6 7   from position 0   3 known tokens   block table [4, 1]
    sequence 1   tokens 8 9     from position 2   6 known tokens   block table [3, 0, 2]: 2 cached, 2 to come later

    input_ids        [5, 6, 7, 8, 9]
    positions        [0, 1, 2, 2, 3]
    slot_mapping     [8, 9, 2, 0, 1]      position 2 of sequence 1 is the first one of block 0
    cu_seqlens_q     [0, 3, 5]            rows 0 to 2 and 3 to 4
    context_lens     [3, 4]               keys: cached ones and those of this step
    cu_seqlens_k     [0, 3, 7]
    max_seqlen_q     3
    max_seqlen_k     4
    block_tables     [[4, 1], [3, 0]]     because sequence 1 has keys in the cache
    last_token_rows  [2]                  only sequence 0 reaches its end: it alone gets a new token
"""

from collections.abc import Sequence as Seq

import numpy as np

from nanovllm.course import ExerciseNotDone
from nanovllm.paged_kv.batch import HostBatch, pad_block_tables, slots_of
from nanovllm.scheduler.sequence import ScheduledSlice


def prepare_prefill(slices: Seq[ScheduledSlice], block_size: int) -> HostBatch:
    """The arrays of a prefill step of B sequences and T tokens in all.

    slices: [B]; each has token_ids (at least one), start (the position of the first), end (the position after the
    last), block_table, and needs_token: True when its last known token is in the step.
    pad_block_tables(tables, widths) and slots_of(block_tables, rows, positions, block_size) are those of 2.2.

    Returns HostBatch(is_prefill=True, input_ids=..., ...) with all values above: input_ids, positions and slot_mapping
    [T] int64, context_lens [B] int32, cu_seqlens_q and cu_seqlens_k [B + 1] int32, last_token_rows int64, and two ints.
    block_tables [B, most blocks of a context] int32, or None when every slice starts at 0: all keys are among the rows
    of this step then, and the cache need not be read.
    """
    raise ExerciseNotDone("2.4 packing", "starts and lengths of the slices first: np.cumsum makes the sums")
