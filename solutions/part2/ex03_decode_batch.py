"""2.3 Decode batch: one row a sequence.

In a decode step each sequence feeds in the one token that it sampled last. All that came before it is cached. Example
with block_size 4 and two sequences:

    sequence 0   token 9 at position 5   block table [7, 2]
    sequence 1   token 4 at position 4   block table [3, 6]

    input_ids     [9, 4]
    positions     [5, 4]
    slot_mapping  [9, 24]            2 x 4 + 1 and 6 x 4 + 0: where the step writes the K/V of 9 and 4
    context_lens  [6, 5]             keys to attend to: the cached ones and the token's own
    block_tables  [[7, 2], [3, 6]]
    max_seqlen_k  6                  the longest context
"""

from collections.abc import Sequence as Seq

import numpy as np

# stub: from nanovllm.course import ExerciseNotDone
from nanovllm.paged_kv.batch import HostBatch, pad_block_tables, slots_of
from nanovllm.scheduler.sequence import ScheduledSlice


def prepare_decode(slices: Seq[ScheduledSlice], block_size: int) -> HostBatch:
    """The arrays of a decode step of B sequences.

    slices: [B]; each has token_ids (one token), start (its position) and block_table, which covers that position.
    pad_block_tables(tables, widths) and slots_of(block_tables, rows, positions, block_size) are those of 2.2.

    Returns HostBatch(is_prefill=False, input_ids=..., ...) with the six values above: input_ids, positions and
    slot_mapping [B] int64, context_lens [B] int32, block_tables [B, most blocks of a context] int32, max_seqlen_k an
    int. The rest of a HostBatch belongs to prefill and is left out.
    """
    # stub: raise ExerciseNotDone("2.3 decode_batch", "write positions down first; everything else follows from them")
    # solution: begin
    positions = np.array([s.start for s in slices], np.int64)
    # The step stores the token's own K/V before it attends, so the token sees itself: one key more than `start`.
    ends = positions + 1
    num_blocks = (ends + block_size - 1) // block_size
    tables = pad_block_tables([s.block_table for s in slices], num_blocks)
    return HostBatch(
        is_prefill=False,
        input_ids=np.array([s.token_ids[0] for s in slices], np.int64),
        positions=positions,
        slot_mapping=slots_of(tables, np.arange(len(slices)), positions, block_size),
        context_lens=ends.astype(np.int32),
        block_tables=tables,
        max_seqlen_k=int(ends.max()),
    )
    # solution: end
