"""1.1 Sequence block arithmetic."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant

_COUNT = """\
result = []
for count in range(1, 10):
    seq = Sequence(0, list(range(count)), block_size=4)
    result.append([seq.num_blocks, seq.last_block_num_tokens])"""
_ONES = """\
seq = Sequence(0, [7, 8, 9], block_size=1)
result = [seq.num_blocks, seq.last_block_num_tokens, seq.block(2)]"""
_BLOCKS = """\
seq = Sequence(0, [10, 11, 12, 13, 14, 15], block_size=4)
result = [seq.block(0), seq.block(1)]"""
_OUTSIDE = """\
seq = Sequence(0, [10, 11, 12, 13, 14, 15], block_size=4)
result = []
for index in (-1, 2):
    try:
        result.append(seq.block(index))
    except IndexError:
        result.append("IndexError")"""

EXERCISE = Exercise(
    number="1.1",
    title="Sequence block arithmetic",
    file="part1/ex01_sequence_blocks.py",
    pieces=(
        ("num_blocks", seams.NUM_BLOCKS),
        ("last_block_num_tokens", seams.LAST_BLOCK_NUM_TOKENS),
        ("block", seams.BLOCK),
    ),
    hints=(
        "Draw a sequence of 8 tokens in blocks of 4, and one of 9. Where does the third block begin?",
        "Rounding up is rounding down after adding something first. The blocks before the last one are all full, so "
        "their tokens can be counted without looking.",
        "(num_tokens + block_size - 1) // block_size blocks; num_tokens - (num_blocks - 1) * block_size in the last "
        "one; block i is token_ids[i * block_size : (i + 1) * block_size], after a check of i.",
    ),
    groups=(
        Group(
            "counting blocks and the tokens of the last one",
            1,
            "Look at the counts where the last block is exactly full, and one token beyond.",
            (
                Example(_COUNT, [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [2, 3], [2, 4], [3, 1]]),
                Example(_ONES, [3, 1, [9]]),
            ),
        ),
        Group(
            "the tokens of a block, in the running scheduler",
            1,
            "Which tokens does block i begin and end with? And what should an index that is not there do?",
            (Example(_BLOCKS, [[10, 11, 12, 13], [14, 15]]), Example(_OUTSIDE, ["IndexError", "IndexError"])),
            traces=60,
        ),
    ),
    bugs=(
        Variant(
            "rounds the number of blocks down",
            "num_blocks",
            (("self.num_tokens + self.block_size - 1", "self.num_tokens"),),
        ),
        Variant(
            "counts one block too many where the last one is full",
            "num_blocks",
            (("self.num_tokens + self.block_size - 1", "self.num_tokens + self.block_size"),),
        ),
        Variant(
            "counts only the blocks of the prompt",
            "num_blocks",
            (("self.num_tokens +", "self.num_prompt_tokens +"),),
        ),
        Variant(
            "says 0 tokens where the last block is full",
            "last_block_num_tokens",
            (("self.num_tokens - (self.num_blocks - 1) * self.block_size", "self.num_tokens % self.block_size"),),
        ),
        Variant(
            "lets block -1 be a block",
            "block",
            (("if not 0 <= index < self.num_blocks", "if index >= self.num_blocks"),),
        ),
        Variant("starts block i at token i", "block", (("[index * self.block_size :", "[index :"),)),
        Variant(
            "starts counting blocks at 1",
            "block",
            (("[index * self.block_size : (index + 1) *", "[(index - 1) * self.block_size : index *"),),
        ),
    ),
    harmless=(
        Variant(
            "negative floor division",
            "num_blocks",
            (("(self.num_tokens + self.block_size - 1) // self.block_size", "-(-self.num_tokens // self.block_size)"),),
        ),
        Variant(
            "remainder, moved by one",
            "last_block_num_tokens",
            (
                (
                    "self.num_tokens - (self.num_blocks - 1) * self.block_size",
                    "(self.num_tokens - 1) % self.block_size + 1",
                ),
            ),
        ),
        Variant(
            "token by token",
            "block",
            (
                (
                    "self.token_ids[index * self.block_size : (index + 1) * self.block_size]",
                    "[t for i, t in enumerate(self.token_ids) if i // self.block_size == index]",
                ),
            ),
        ),
    ),
)
