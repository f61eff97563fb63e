"""1.5 Append at a block edge: a slot for the token that was sampled last.

Each decode step feeds in the newest token of a request and writes its K/V into a slot, so before the step that token
needs a place in a block. Mostly the last block has room. When are these functions called? When a step is scheduled: the
token that the step before sampled is counted in seq.num_tokens already. Example with block_size 4:

    num_tokens 4, block_table [7]      the fourth token has the last slot of block 7: nothing to do
    num_tokens 5, block_table [7]      the fifth token is the first of a new block: take one -> block_table [7, 2]
    num_tokens 6, block_table [7, 2]   room again
"""

from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import BlockManager, Sequence


def can_append(manager: BlockManager, seq: Sequence) -> bool:
    """True if the newest token of `seq` has a slot already, or a free block can give it one. Changes nothing.

    By hand, block_size 4, no block free: 4 tokens in [7] -> True; 5 tokens in [7] -> False.
    """
    raise ExerciseNotDone("1.5 append", "how many tokens fit into the blocks that the sequence owns?")


def append(manager: BlockManager, seq: Sequence, num_ahead: int = 0) -> None:
    """Make room for the newest token of `seq`: add a block to seq.block_table if it has no slot yet, else do nothing.

    num_ahead: tokens still being sampled (0 or 1) that need a slot besides the `seq.num_tokens` known ones.
    manager._recycle() takes a free block and returns its id, with one owner.
    """
    raise ExerciseNotDone("1.5 append", "compare the tokens that need a slot with the slots there are")
