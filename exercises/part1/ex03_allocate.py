"""1.3 Allocate with prefix reuse: give an admitted request its blocks, found ones first.

A request that starts like an earlier one finds that one's full blocks in the prefix cache and need not compute them
again. What is left gets new blocks from the pool. Example with block_size 2; an earlier request left the blocks 0, 1
and 2 with the tokens [5, 6 | 7, 8 | 9, 1], and block 3 is free:

    new request [5, 6, 7, 8, 3]:  hits [0, 1]   new [3]   block_table [0, 1, 3]   num_cached_tokens 4
    new request [5, 6, 7, 8]:     hits [0]      new [3]   block_table [0, 3]      num_cached_tokens 2

The second one could have had both of its blocks, but then no token would be left to compute, and the model could not
say what comes next: at least one token always stays.
"""

from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import BlockManager, Sequence
from nanovllm.scheduler.block_manager import AllocationPlan


def match_prefix(manager: BlockManager, seq: Sequence) -> list[int]:
    """Block ids of the longest published prefix of `seq`, in order; at least one token is left out of it.

    manager._lookup(seq, index, parent_id) returns the published Block with the content of the sequence's full block
    `index` after the block whose `content_id` is parent_id (None for index 0), or None when there is no such block.
    Changes nothing.
    """
    raise ExerciseNotDone("1.3 allocate", "look up block 0, then 1, ... and stop at the first that is missing")


def allocate(manager: BlockManager, seq: Sequence, plan: AllocationPlan | None = None) -> None:
    """Give `seq` blocks for all its known tokens: the prefix hits first, then new ones.

    plan: what `manager.plan(seq)` returned just before, or None: then ask for it. It has `cached_block_ids` (the hits,
    in order), `num_new_blocks` and `missing` (free blocks that are lacking).
    manager._take(block_id) adds an owner to a block; manager._recycle() takes a free block, forgets what was published
    in it and returns its id, with one owner.

    Sets seq.block_table (block ids, [num_blocks]), and seq.num_cached_tokens and seq.num_prefix_tokens to the tokens of
    the hits.
    Raises RuntimeError, with nothing changed, if `seq` owns blocks already or if plan.missing is not 0.
    """
    raise ExerciseNotDone("1.3 allocate", "which must come first: taking the hits, or recycling free blocks?")
