"""1.2 Chained block hash."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant

_SAME = """\
chained_hash = block_manager.chained_hash
first, again = chained_hash(None, [5, 6]), chained_hash(None, [5, 6])
result = [first == again, isinstance(first, int), 0 <= first < 2**64]"""
_RANGE = """\
chained_hash = block_manager.chained_hash
values = [chained_hash(None if i == 0 else i, [i, i + 1]) for i in range(200)]
result = [all(0 <= v < 2**64 for v in values), len(set(values))]"""
_CHAIN = """\
chained_hash = block_manager.chained_hash
h0 = chained_hash(None, [5, 6])
h1 = chained_hash(h0, [7, 8])
h2 = chained_hash(h1, [5, 6])
result = len({h0, h1, h2, chained_hash(None, [7, 8]), chained_hash(0, [5, 6])})"""
_TOKENS = """\
chained_hash = block_manager.chained_hash
blocks = [[1, 23], [12, 3], [3, 12], [23, 1], [1, 24], [2, 22], [257, 23], [1, 279], [1, 2**32 + 23], [123, 0]]
result = len({chained_hash(None, block) for block in blocks})"""

_SHA = """
def chained_hash(previous, token_ids):
    import hashlib
    text = f"{previous}:{token_ids}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
"""
_FNV = """
def chained_hash(previous, token_ids):
    value = 0xCBF29CE484222325
    start = b"" if previous is None else previous.to_bytes(8, "little")
    for byte in start + b"".join(t.to_bytes(8, "big") for t in token_ids) + bytes([len(start)]):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value
"""

EXERCISE = Exercise(
    number="1.2",
    title="Chained block hash",
    file="part1/ex02_block_hash.py",
    pieces=(("chained_hash", seams.CHAINED_HASH),),
    hints=(
        "Two things go in, one number comes out. What must differ when only the previous hash differs?",
        "Feed bytes to one xxhash.xxh64(): first those of the previous hash, if there is one, then "
        "those of the tokens, "
        "the same number of bytes for each token.",
        'h.update(previous.to_bytes(8, "little")) unless previous is None; h.update(array("q", token_ids).tobytes()); '
        "return h.intdigest().",
    ),
    groups=(
        Group(
            "a number of 64 bits that tells tokens apart",
            1,
            "Does the order of the tokens count, and every bit of each token? Can two lists become the same bytes?",
            (
                Example(
                    _SAME,
                    [True, True, True],
                    "Three questions, one answer each: the same arguments twice, the same hash? Is it an int? And from "
                    "0 to 2**64 - 1?",
                ),
                Example(_RANGE, [True, 200]),
                Example(
                    _TOKENS,
                    10,
                    "Ten blocks of two tokens, all different, and each needs a hash of its own. Can two of these lists "
                    "become the same bytes? Does their order count, and every bit of each token?",
                ),
            ),
        ),
        Group(
            "chained to all that came before, in the running scheduler",
            1,
            "Five blocks, and each needs a hash of its own. Equal tokens after different prefixes need different "
            "hashes. And no previous hash is not the hash 0.",
            (Example(_CHAIN, 5),),
            traces=150,
        ),
    ),
    bugs=(
        Variant("ignores the previous hash", "chained_hash", (("if previous is not None:", "if False:"),)),
        Variant(
            "takes no previous hash for the hash 0",
            "chained_hash",
            (("if previous is not None:\n        h.update(previous.", "if True:\n        h.update((previous or 0)."),),
        ),
        Variant(
            "loses the order of the tokens",
            "chained_hash",
            (('array("q", token_ids)', 'array("q", sorted(token_ids))'),),
        ),
        Variant("adds the tokens up", "chained_hash", (('array("q", token_ids)', 'array("q", [sum(token_ids)])'),)),
        Variant(
            "writes the tokens one after another as text",
            "chained_hash",
            (('array("q", token_ids).tobytes()', '"".join(map(str, token_ids)).encode()'),),
        ),
        Variant(
            "keeps the lowest 8 bits of each token",
            "chained_hash",
            (("token_ids).tobytes", "[t % 256 for t in token_ids]).tobytes"),),
        ),
        Variant(
            "uses Python's hash, which may be negative",
            "chained_hash",
            (("return h.intdigest()", "return hash((previous, *token_ids))"),),
        ),
    ),
    harmless=(
        Variant("SHA-256 of a text with separators", "chained_hash", source=_SHA),
        Variant("FNV-1a over bytes, the length at the end", "chained_hash", source=_FNV),
    ),
)
