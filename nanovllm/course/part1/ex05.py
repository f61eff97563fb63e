"""1.5 Append at a block edge."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant

_GROW = """\
manager = BlockManager(4, 4)
seq = Sequence(0, [1, 2, 3], block_size=4)
manager.allocate(seq)
result = []
for token in range(7):
    seq.append_token(token)
    manager.append(seq)
    result.append([seq.num_tokens, len(seq.block_table)])"""
_AHEAD = """\
manager = BlockManager(4, 4)
seq = Sequence(0, [1, 2, 3, 4], block_size=4)
manager.allocate(seq)
manager.append(seq)
result = [len(seq.block_table)]
manager.append(seq, num_ahead=1)
result.append(len(seq.block_table))
manager.append(seq, num_ahead=1)
result.append(len(seq.block_table))"""
_ROOM = """\
result = []
for num_blocks in (1, 2):
    manager = BlockManager(num_blocks, 4)
    seq = Sequence(0, [1, 2], block_size=4)
    manager.allocate(seq)
    for token in range(3):
        seq.append_token(token)
        result.append([num_blocks, seq.num_tokens, manager.can_append(seq)])"""
_LOOKS = """\
manager = BlockManager(2, 1)
seq = Sequence(0, [1], block_size=1)
manager.allocate(seq)
seq.append_token(2)
result = [manager.can_append(seq), manager.can_append(seq), len(seq.block_table), manager.num_free_blocks]"""

EXERCISE = Exercise(
    number="1.5",
    title="Append at a block edge",
    file="part1/ex05_append.py",
    pieces=(("can_append", seams.CAN_APPEND), ("append", seams.APPEND)),
    hints=(
        "The newest token is counted in num_tokens already. With 4 slots and 4 tokens, does it have one?",
        "Slots there are: len(block_table) * block_size. Tokens that need one: num_tokens, and "
        "num_ahead more in append. "
        "Only when there are more tokens than slots is a block needed.",
        "can_append: num_tokens <= slots or num_free_blocks > 0. append: if num_tokens + num_ahead > slots: "
        "block_table.append(manager._recycle()).",
    ),
    groups=(
        Group(
            "taking a block exactly at the edge",
            1,
            "Each pair: num_tokens and the number of blocks of 4. Write the slots beside them. At which token does a "
            "new block come, and at which one must it?",
            (
                Example(_GROW, [[4, 1], [5, 2], [6, 2], [7, 2], [8, 2], [9, 3], [10, 3]]),
                Example(
                    _AHEAD,
                    [1, 2, 2],
                    "4 tokens fill the block. In the second call one more is on its way, num_ahead is 1: how many "
                    "slots are needed then, and how many are there? The third call asks the same again.",
                ),
            ),
        ),
        Group(
            "knowing whether there is room",
            1,
            "Each row: blocks in the pool, num_tokens, the answer. A full pool does not matter to a request whose "
            "newest token has a slot already.",
            (
                Example(
                    _ROOM,
                    [[1, 3, True], [1, 4, True], [1, 5, False], [2, 3, True], [2, 4, True], [2, 5, True]],
                ),
                Example(
                    _LOOKS,
                    [True, True, 1, 1],
                    "The same question twice, then the blocks of the request and the free ones: can_append only looks. "
                    "What did asking change?",
                ),
            ),
        ),
        Group("growing requests under pressure", 1, "Look at the first step after a block is full.", traces=200),
    ),
    bugs=(
        Variant("takes a block one token early", "append", (("num_ahead > len", "num_ahead >= len"),)),
        Variant("takes a block one token late", "append", (("num_ahead > len", "num_ahead - 1 > len"),)),
        Variant(
            "takes a block every time",
            "append",
            (("if seq.num_tokens + num_ahead > len(seq.block_table) * self.block_size:", "if True:"),),
        ),
        Variant("does not see the tokens ahead", "append", (("seq.num_tokens + num_ahead >", "seq.num_tokens >"),)),
        Variant(
            "asks for a remainder of 0, as if the new token were not counted",
            "append",
            (
                (
                    "if seq.num_tokens + num_ahead > len(seq.block_table) * self.block_size:",
                    "if (seq.num_tokens + num_ahead) % self.block_size == 0:",
                ),
            ),
        ),
        Variant(
            "puts the new block at the front of the table",
            "append",
            (("seq.block_table.append(", "seq.block_table.insert(0, "),),
        ),
        Variant(
            "wants a free block for every token",
            "can_append",
            (("seq.num_tokens <= len(seq.block_table) * self.block_size or ", ""),),
        ),
        Variant(
            "sees room one token too long", "can_append", (("seq.num_tokens <= len", "seq.num_tokens - 1 <= len"),)
        ),
        Variant("sees room one token too short", "can_append", (("seq.num_tokens <= len", "seq.num_tokens < len"),)),
    ),
    harmless=(
        Variant(
            "compares blocks instead of slots",
            "append",
            (
                (
                    "if seq.num_tokens + num_ahead > len(seq.block_table) * self.block_size:",
                    "while self.blocks_for(seq.num_tokens + num_ahead) > len(seq.block_table):",
                ),
            ),
        ),
        Variant(
            "asks for the number of free blocks first",
            "can_append",
            source="""
def can_append(manager, seq):
    if manager.num_free_blocks:
        return True
    return manager.blocks_for(seq.num_tokens) <= len(seq.block_table)
""",
        ),
    ),
)
