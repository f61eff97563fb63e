"""1.1 Sequence block arithmetic: which tokens lie in which logical block.

A request's tokens are cut into blocks of `seq.block_size`, in order. All blocks are full but perhaps the last one, and
the last one is never empty. Example with block_size 4 and the tokens [10, 11, 12, 13, 14, 15]:

    block 0: [10, 11, 12, 13]      block 1: [14, 15]

so there are 2 blocks and the last one holds 2 tokens. With two tokens more the last block is full: still 2 blocks, and
the last one holds 4 (not 0). Only then does the ninth token start block 2.
"""

# stub: from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import Sequence


def num_blocks(seq: Sequence) -> int:
    """Blocks that hold all of the `seq.num_tokens` tokens. By hand: block_size 4, 9 tokens -> 3."""
    # stub: raise ExerciseNotDone("1.1 sequence_blocks", "how many boxes of 4 hold 8 things, and how many hold 9?")
    # solution: begin
    # A division that rounds up: whatever is left over after the full blocks costs one block more. Adding
    # block_size - 1 first lets the division, which rounds down, do just that, without floating point.
    return (seq.num_tokens + seq.block_size - 1) // seq.block_size
    # solution: end


def last_block_num_tokens(seq: Sequence) -> int:
    """Tokens in the last block, 1 .. block_size. By hand: block_size 4; 6 tokens -> 2, 8 tokens -> 4."""
    # stub: raise ExerciseNotDone("1.1 sequence_blocks", "take away the tokens that lie in the blocks before the last")
    # solution: begin
    # All blocks but the last are full. `num_tokens % block_size` would say 0 where the last block is full.
    return seq.num_tokens - (seq.num_blocks - 1) * seq.block_size
    # solution: end


def block(seq: Sequence, index: int) -> list[int]:
    """The tokens of logical block `index`, a list of block_size tokens (fewer in the last block).

    By hand: block_size 4, tokens [10, 11, 12, 13, 14, 15], index 1 -> [14, 15].
    Raises IndexError unless 0 <= index < seq.num_blocks: block -1 is a mistake of the caller, not the last block.
    """
    # stub: raise ExerciseNotDone("1.1 sequence_blocks", "block i starts at token i * block_size of seq.token_ids")
    # solution: begin
    if not 0 <= index < seq.num_blocks:
        raise IndexError(f"sequence {seq.seq_id} has {seq.num_blocks} blocks; there is no block {index}")
    # A slice may reach past the end of the list, so the last block needs no case of its own.
    return seq.token_ids[index * seq.block_size : (index + 1) * seq.block_size]
    # solution: end
