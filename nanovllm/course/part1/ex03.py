"""1.3 Allocate with prefix reuse."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant

_EARLIER = """\
manager = BlockManager(4, 2)
first = Sequence(0, [5, 6, 7, 8, 9, 1], block_size=2)
manager.allocate(first)
first.num_cached_tokens = 6  # its forward pass has run
manager.publish(first, 0)
manager.deallocate(first)
"""
_HITS = (
    _EARLIER
    + """\
result = [manager.match_prefix(Sequence(1, tokens, block_size=2)) for tokens in (
    [5, 6, 7, 8, 3], [5, 6, 7, 8], [5, 6, 7, 9, 9], [5, 5, 7, 8], [5, 6], [7, 8, 1])]"""
)
_ADMIT = (
    _EARLIER
    + """\
seq = Sequence(1, [5, 6, 7, 8, 3], block_size=2)
manager.allocate(seq)
result = [seq.block_table, seq.num_cached_tokens, seq.num_prefix_tokens, manager.blocks[0].ref_count]"""
)
_SHARED = (
    _EARLIER
    + """\
seqs = [Sequence(i, [5, 6, 7, 8, i], block_size=2) for i in (1, 2)]
for seq in seqs:
    manager.allocate(seq)
result = [[s.block_table for s in seqs], [b.ref_count for b in manager.blocks], manager.num_free_blocks]"""
)
_FRESH = """\
manager = BlockManager(3, 4)
seq = Sequence(0, [1, 2, 3, 4, 5], block_size=4)
manager.allocate(seq)
result = [seq.block_table, seq.num_cached_tokens, manager.num_free_blocks]"""
_REFUSED = """\
manager = BlockManager(2, 4)
large, small = Sequence(0, [1] * 9, block_size=4), Sequence(1, [1] * 3, block_size=4)
manager.allocate(small)
result = []
for seq in (large, small):
    try:
        manager.allocate(seq)
    except RuntimeError:
        result.append("RuntimeError")
result += [large.block_table, small.block_table, manager.num_free_blocks]"""

EXERCISE = Exercise(
    number="1.3",
    title="Allocate with prefix reuse",
    file="part1/ex03_allocate.py",
    pieces=(("match_prefix", seams.MATCH_PREFIX), ("allocate", seams.ALLOCATE)),
    hints=(
        "First make it work without any cache: match_prefix returns [], allocate recycles what the plan asks for.",
        "A prefix ends at the first block that is not found. Each lookup needs the content_id of the "
        "block found before "
        "it. In allocate, a free block that is a hit must be taken before recycling can hand it out.",
        "for index in range((seq.num_tokens - 1) // block_size): look up, stop at None, keep block_id, go on with "
        "content_id. allocate: refuse; _take each hit; _recycle num_new_blocks times; table = hits + new; "
        "cached = prefix = len(hits) * block_size.",
    ),
    groups=(
        Group(
            "finding the longest prefix",
            1,
            "Six prompts, and the blocks that each of them finds. Where does a prefix end? And what would the model "
            "compute if all tokens of a prompt were cached?",
            (Example(_HITS, [[0, 1], [0], [0], [], [], []]),),
        ),
        Group(
            "giving out blocks",
            1,
            "The table lists the hits in order, then new blocks; a hit gets one owner more, wherever it was.",
            (
                Example(_FRESH, [[0, 1], 0, 1]),
                Example(
                    _ADMIT,
                    [[0, 1, 3], 4, 4, 1],
                    "The block table, num_cached_tokens, num_prefix_tokens, and the owners of block 0. Two blocks are "
                    "hits: "
                    "which numbers follow from that?",
                ),
                Example(
                    _SHARED,
                    [[[0, 1, 3], [0, 1, 2]], [2, 2, 1, 1], 0],
                    "Two requests with the same beginning: both tables, the owners of blocks 0 to 3, and the free "
                    "blocks. "
                    "Who owns the hits now?",
                ),
                Example(_REFUSED, ["RuntimeError", "RuntimeError", [], [0], 1]),
            ),
        ),
        Group(
            "the same answers with and without the cache", 2, "Follow one shared block through the trace.", traces=250
        ),
    ),
    bugs=(
        Variant(
            "lets a fully cached prompt leave no token to compute",
            "match_prefix",
            (("(seq.num_tokens - 1) //", "seq.num_tokens //"),),
        ),
        Variant("never finds anything", "match_prefix", (("if block is None:", "if True:"),)),
        Variant("goes on behind a missing block", "match_prefix", (("            break", "            continue"),)),
        Variant(
            "looks every block up as if it were after nothing",
            "match_prefix",
            (("parent_id = block.content_id", "parent_id = None"),),
        ),
        Variant("finds the first block only", "match_prefix", (("return hits", "return hits[:1]"),)),
        Variant(
            "recycles before it takes the hits",
            "allocate",
            (
                (
                    "    for block_id in plan.cached",
                    "    new = [self._recycle() for _ in range(plan.num_new_blocks)]\n    for block_id in plan.cached",
                ),
                (
                    "        self._take(block_id)\n    new = [self._recycle() for _ in range(plan.num_new_blocks)]",
                    "        self._take(block_id)",
                ),
            ),
        ),
        Variant("does not count itself as an owner of the hits", "allocate", (("self._take(block_id)", "pass"),)),
        Variant(
            "puts the new blocks first in the table",
            "allocate",
            (("seq.block_table = plan.cached_block_ids + new", "seq.block_table = new + plan.cached_block_ids"),),
        ),
        Variant(
            "forgets to say that the hits are cached",
            "allocate",
            (("seq.num_cached_tokens = seq.num_prefix_tokens", "seq.num_prefix_tokens"),),
        ),
        Variant(
            "counts blocks where tokens are meant",
            "allocate",
            (("len(plan.cached_block_ids) * self.block_size", "len(plan.cached_block_ids)"),),
        ),
    ),
    harmless=(
        Variant(
            "looks the prefix up again instead of reading the plan",
            "allocate",
            (("for block_id in plan.cached_block_ids:", "for block_id in self.match_prefix(seq):"),),
        ),
        Variant(
            "stops at the first miss by a conditional loop",
            "match_prefix",
            source="""
def match_prefix(manager, seq):
    hits, index, parent = [], 0, None
    while (index + 1) * manager.block_size < seq.num_tokens:
        found = manager._lookup(seq, index, parent)
        if not found:
            return hits
        hits, index, parent = [*hits, found.block_id], index + 1, found.content_id
    return hits
""",
        ),
    ),
)
