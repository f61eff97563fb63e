"""2.2 Slot mapping: where in the pool do a token's K/V go?

The pool of a layer is a long row of slots. Block b has the slots b x block_size to b x block_size + block_size - 1. A
sequence's block table says which block holds its positions 0 .. block_size - 1, which the next ones, and so on. Example
with block_size 4 and the block table [7, 2]:

    position     0   1   2   3   4   5
    block        7   7   7   7   2   2      block_table[position // 4]
    offset       0   1   2   3   0   1      position % 4
    slot        28  29  30  31   8   9      block x 4 + offset

A step holds many sequences. Their tables become one array, one row each, padded with zeros. Nobody reads the zeros.
"""

from collections.abc import Sequence as Seq

import numpy as np

# stub: from nanovllm.course import ExerciseNotDone


def pad_block_tables(tables: Seq[list[int]], widths: np.ndarray) -> np.ndarray:
    """One row for each of the B tables: [B, max(widths)] int32.

    Row i holds the first widths[i] entries of tables[i], then zeros. A table may be longer than its width: its last
    blocks are not needed yet. widths: [B] integers, each at least 1 and at most len(tables[i]).
    By hand: tables [[7, 2], [5], [3, 4, 6]], widths [2, 1, 2] -> [[7, 2], [5, 0], [3, 4]].
    """
    # stub: raise ExerciseNotDone("2.2 slot_mapping", "start with zeros of the right shape, and fill row after row")
    # solution: begin
    padded = np.zeros((len(tables), int(widths.max())), np.int32)
    for row, (table, width) in enumerate(zip(tables, widths.tolist(), strict=True)):
        padded[row, :width] = table[:width]
    return padded
    # solution: end


def slots_of(block_tables: np.ndarray, rows: np.ndarray, positions: np.ndarray, block_size: int) -> np.ndarray:
    """The slot of each of T tokens: [T] int64.

    block_tables: [B, max_blocks] int32, as above. rows: [T], the row of each token's sequence. positions: [T], each
    token's position in its sequence. A pool may have more than 2**31 slots.
    By hand: block_tables [[7, 2], [5, 0]], rows [0, 0, 1], positions [3, 4, 1], block_size 4 -> [31, 8, 21].
    """
    # stub: raise ExerciseNotDone("2.2 slot_mapping", "which column of its row in block_tables does a token look at?")
    # solution: begin
    # Two arrays as indices pick one entry for each token. int64 before the product: block 10,000,000 has slots that
    # no 32 bits can count, and numpy would wrap around without a word.
    blocks = block_tables[rows, positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size
    # solution: end
