"""1.5 Append at a block edge: a slot for the token that was sampled last.

Each decode step feeds in the newest token of a request and writes its K/V into a slot, so before the step that token
needs a place in a block. Mostly the last block has room. When are these functions called? When a step is scheduled: the
token that the step before sampled is counted in seq.num_tokens already. Example with block_size 4:

    num_tokens 4, block_table [7]      the fourth token has the last slot of block 7: nothing to do
    num_tokens 5, block_table [7]      the fifth token is the first of a new block: take one -> block_table [7, 2]
    num_tokens 6, block_table [7, 2]   room again
"""

# stub: from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import BlockManager, Sequence


def can_append(manager: BlockManager, seq: Sequence) -> bool:
    """True if the newest token of `seq` has a slot already, or a free block can give it one. Changes nothing.

    By hand, block_size 4, no block free: 4 tokens in [7] -> True; 5 tokens in [7] -> False.
    """
    # stub: raise ExerciseNotDone("1.5 append", "how many tokens fit into the blocks that the sequence owns?")
    # solution: begin
    has_slot = seq.num_tokens <= len(seq.block_table) * manager.block_size
    return has_slot or manager.num_free_blocks > 0
    # solution: end


def append(manager: BlockManager, seq: Sequence, num_ahead: int = 0) -> None:
    """Make room for the newest token of `seq`: add a block to seq.block_table if it has no slot yet, else do nothing.

    num_ahead: tokens still being sampled (0 or 1) that need a slot besides the `seq.num_tokens` known ones.
    manager._recycle() takes a free block and returns its id, with one owner.
    """
    # stub: raise ExerciseNotDone("1.5 append", "compare the tokens that need a slot with the slots there are")
    # solution: begin
    # With num_ahead 0 this is true exactly when num_tokens % block_size == 1 (for blocks of more than one token): the
    # sampled token is counted already, so it is 1 and not 0. Comparing capacities needs no such rule.
    if seq.num_tokens + num_ahead > len(seq.block_table) * manager.block_size:
        seq.block_table.append(manager._recycle())
    # solution: end
