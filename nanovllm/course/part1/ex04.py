"""1.4 Free and reference counts."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant

_SETUP = """\
manager = BlockManager(3, 2)
a, b = Sequence(0, [1, 2, 3], block_size=2), Sequence(1, [1, 2, 4], block_size=2)
manager.allocate(a)
a.num_cached_tokens = 3  # its forward pass has run
manager.publish(a, 0)
manager.allocate(b)  # shares block 0
"""
_STATE = "{'counts': [x.ref_count for x in manager.blocks], 'free': sorted(manager.free_block_ids)}"
_SHARED = (
    _SETUP
    + f"""\
result = [{_STATE}]
manager.deallocate(a)
result.append({_STATE})
manager.deallocate(b)
result.append({_STATE})"""
)
_TWICE = (
    _SETUP
    + f"""\
manager.deallocate(a)
manager.deallocate(a)
result = [a.block_table, a.num_cached_tokens, {_STATE}]"""
)
_TAKE = f"""\
manager = BlockManager(3, 2)
manager._take(1)
result = [{_STATE}]
manager._take(1)
result.append({_STATE})"""
_KEEPS = (
    _SETUP
    + """\
manager.deallocate(a)
manager.deallocate(b)
manager._take(0)
result = [manager.blocks[0].token_ids, manager.blocks[0].hash is not None]"""
)


def _state(counts: list[int], free: list[int]) -> dict[str, list[int]]:
    return {"counts": counts, "free": free}


EXERCISE = Exercise(
    number="1.4",
    title="Free and reference counts",
    file="part1/ex04_reference_counts.py",
    pieces=(("take", seams.TAKE), ("deallocate", seams.DEALLOCATE)),
    hints=(
        "Say aloud what is true of every block: it is on the free list exactly when its count is 0.",
        "take changes the free list only when the count was 0; deallocate only when it becomes 0. After deallocate the "
        "sequence owns nothing, which makes a second call harmless.",
        "take: if ref_count == 0: del free_block_ids[block_id]; ref_count += 1. deallocate: for each id of the table, "
        "ref_count -= 1 and, at 0, free_block_ids[id] = None; then block_table = [] and num_cached_tokens = 0.",
    ),
    groups=(
        Group(
            "taking a block",
            1,
            "When is the block on the free list? What else does taking change? (Nothing.)",
            (Example(_TAKE, [_state([0, 1, 0], [0, 2]), _state([0, 2, 0], [0, 2])]), Example(_KEEPS, [[1, 2], True])),
        ),
        Group(
            "giving blocks up",
            1,
            "A shared block has an owner left. Is every block whose count is 0 on the free list, once?",
            (
                Example(_SHARED, [_state([2, 1, 1], []), _state([1, 0, 1], [1]), _state([0, 0, 0], [0, 1, 2])]),
                Example(_TWICE, [[], 0, _state([1, 0, 1], [1])]),
            ),
        ),
        Group("shared blocks under pressure", 1, "Follow the count of one shared block through the trace.", traces=250),
    ),
    bugs=(
        Variant(
            "sets the count to 1 instead of adding one", "take", (("block.ref_count += 1", "block.ref_count = 1"),)
        ),
        Variant("leaves a taken block on the free list", "take", (("del self.free_block_ids[block_id]", "pass"),)),
        Variant(
            "wipes a free block when it is taken back",
            "take",
            (
                (
                    "        del self.free_block_ids[block_id]",
                    "        del self.free_block_ids[block_id]\n"
                    "        self.hash_to_block_id.pop(block.hash, None)\n        block.forget()",
                ),
            ),
        ),
        Variant("frees a shared block with its first owner", "deallocate", (("if block.ref_count == 0:", "if True:"),)),
        Variant("never counts down", "deallocate", (("block.ref_count -= 1", "pass"),)),
        Variant(
            "never puts a block back on the free list",
            "deallocate",
            (("self.free_block_ids[block_id] = None", "pass"),),
        ),
        Variant("leaves the blocks in the table", "deallocate", (("seq.block_table = []", "pass"),)),
        Variant("leaves tokens counted as cached", "deallocate", (("seq.num_cached_tokens = 0", "pass"),)),
        Variant(
            "gives up all blocks but the first",
            "deallocate",
            (("reversed(seq.block_table)", "reversed(seq.block_table[1:])"),),
        ),
    ),
    harmless=(
        Variant("frees the first block first", "deallocate", (("reversed(seq.block_table)", "seq.block_table"),)),
        Variant(
            "asks the free list instead of the count",
            "take",
            (("if block.ref_count == 0:", "if block_id in self.free_block_ids:"),),
        ),
        Variant(
            "empties the table while it goes",
            "deallocate",
            source="""
def deallocate(manager, seq):
    while seq.block_table:
        block = manager.blocks[seq.block_table.pop()]
        block.ref_count -= 1
        if not block.ref_count:
            manager.free_block_ids[block.block_id] = None
    seq.num_cached_tokens = 0
""",
        ),
    ),
)
