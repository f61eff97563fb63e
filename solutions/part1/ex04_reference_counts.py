"""1.4 Free and reference counts: a block is free when its last owner has let go.

Requests with a common prefix share its blocks; `block.ref_count` counts the owners. `manager.free_block_ids` is an
ordered dict of the blocks without an owner, the one that has been free the longest first (its values are all None).
Example: request A owns [0, 1], request B owns [0, 2], so the counts of 0, 1, 2 are 2, 1, 1.

    A is deallocated:  counts 1, 0, 1   free [1]       A's table []
    B is deallocated:  counts 0, 0, 0   free [1, 2, 0]

A free block keeps what was published in it, so a new request with that prefix can take it back until it is recycled.
"""

# stub: from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import BlockManager, Sequence


def take(manager: BlockManager, block_id: int) -> None:
    """Add an owner to block `block_id` (manager.blocks[block_id]), which may be used or free.

    A block with an owner is not on the free list. Its hash and tokens stay as they are.
    By hand: block 2 is free; take(2) -> ref_count 1 and not in free_block_ids; take(2) -> ref_count 2.
    """
    # stub: raise ExerciseNotDone("1.4 reference_counts", "when does a block have to leave manager.free_block_ids?")
    # solution: begin
    block = manager.blocks[block_id]
    if block.ref_count == 0:
        del manager.free_block_ids[block_id]
    block.ref_count += 1
    # solution: end


def deallocate(manager: BlockManager, seq: Sequence) -> None:
    """Give up all blocks of `seq`: one owner less for each block in seq.block_table.

    A block that loses its last owner goes to the end of manager.free_block_ids. Afterwards seq.block_table is [] and
    seq.num_cached_tokens is 0. Doing it twice changes nothing more.
    """
    # stub: raise ExerciseNotDone("1.4 reference_counts", "the owner goes away, but the block may have others")
    # solution: begin
    # Last block first, so that the start of a prefix, which most requests share, stays on the free list the longest.
    for block_id in reversed(seq.block_table):
        block = manager.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            manager.free_block_ids[block_id] = None
    seq.block_table = []  # a second call finds nothing to give up
    seq.num_cached_tokens = 0
    # solution: end
