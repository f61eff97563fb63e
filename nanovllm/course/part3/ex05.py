"""3.5 QKV shard loader."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.part3.running import IN_ENGINE

_MADE = "from nanovllm.course.part3 import made_ranks\n"
_EVEN = _MADE + "result = [made_ranks.kv_heads_of_ranks(4, 1), made_ranks.kv_heads_of_ranks(4, 2)]"
_SHARED = _MADE + "result = [made_ranks.kv_heads_of_ranks(2, 4), made_ranks.kv_heads_of_ranks(1, 3)]"
_REFUSED = (
    _MADE
    + """\
from nanovllm.errors import ConfigError
result = []
for heads, ranks in ((4, 3), (3, 4)):
    try:
        result.append(made_ranks.kv_heads_of_ranks(heads, ranks))
    except ConfigError as refusal:
        result.append(["refused", str(heads) in str(refusal) and str(ranks) in str(refusal)])"""
)
_BY_HAND = (
    _MADE
    + """\
q = [[float(row)] for row in range(8)]  # 4 heads of 2 rows, numbered; hidden_size 1
k, v = [[10.0], [11.0], [12.0], [13.0]], [[20.0], [21.0], [22.0], [23.0]]
ranks = made_ranks.load_qkv(q, k, v, head_dim=2, ranks=2)
result = [rank["weight"].flatten().int().tolist() for rank in ranks]"""
)
_BIAS = (
    _MADE
    + """\
q, k, v = [[0.0], [1.0]], [[2.0], [3.0]], [[4.0], [5.0]]
bias = [[10.0, 11.0], [12.0, 13.0], [14.0, 15.0]]
ranks = made_ranks.load_qkv(q, k, v, head_dim=1, ranks=2, bias=bias)
result = [rank["bias"].tolist() for rank in ranks]"""
)


def _tensors(rng: random.Random, fewer: int, ratio: int, heads_first: int, share: int, dim: int) -> dict[str, Any]:
    """Numbered rows: q counts from 100, k from 200, v from 300; hidden_size 1.

    Of ranks and key/value heads one is `fewer`, the other `ratio` times as many; heads_first says which.
    """
    kv_heads, ranks = (fewer * ratio, fewer) if heads_first else (fewer, fewer * ratio)
    heads = fewer * ratio * share
    return {
        "q": [[100.0 + row] for row in range(heads * dim)],
        "k": [[200.0 + row] for row in range(kv_heads * dim)],
        "v": [[300.0 + row] for row in range(kv_heads * dim)],
        "head_dim": dim,
        "ranks": ranks,
    }


def _loaded(q: Any, k: Any, v: Any, head_dim: int, ranks: int) -> Any:
    """Every query head goes to the rank it belongs to, and takes along the key/value head that it uses."""
    heads, kv_heads = len(q) // head_dim, len(k) // head_dim
    found = []
    for rank in range(ranks):
        mine = [h for h in range(heads) if h // (heads // ranks) == rank]
        needed = sorted({h * kv_heads // heads for h in mine})
        rows = [row for h in mine for row in q[h * head_dim : (h + 1) * head_dim]]
        for tensor in (k, v):
            rows += [row for h in needed for row in tensor[h * head_dim : (h + 1) * head_dim]]
        found.append({"weight": rows, "numbers_read": len(rows)})
    return found


_SIZES = (("fewer", 1, 2), ("ratio", 1, 3), ("heads_first", 0, 1), ("share", 1, 2), ("dim", 1, 3))
_ROUND_ROBIN = """
def kv_head_range(num_kv_heads, group):
    if max(num_kv_heads, group.size) % min(num_kv_heads, group.size):
        raise ConfigError(f"{num_kv_heads} heads, {group.size} ranks")
    return group.rank % num_kv_heads, max(num_kv_heads // group.size, 1)
"""
_NO_REFUSAL = """
def kv_head_range(num_kv_heads, group):
    return group.rank * num_kv_heads // group.size, max(num_kv_heads // group.size, 1)
"""
_BY_LIST = """
def kv_head_range(num_kv_heads, group):
    if num_kv_heads % group.size and group.size % num_kv_heads:
        raise ConfigError(f"neither of {num_kv_heads} heads and {group.size} ranks divides the other")
    if num_kv_heads < group.size:
        owners = [head for head in range(num_kv_heads) for _ in range(group.size // num_kv_heads)]
        return owners[group.rank], 1
    mine = [head for head in range(num_kv_heads) if head // (num_kv_heads // group.size) == group.rank]
    return mine[0], len(mine)
"""
_LAST_FIRST = """
def load_qkv(layer, reader, prefixes):
    dim, sizes = layer.head_dim, (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    firsts = (layer.first_head, layer.first_kv_head, layer.first_kv_head)
    totals = (layer.total_heads, layer.total_kv_heads, layer.total_kv_heads)
    for i in (2, 1, 0):
        into = (sum(sizes[:i]) * dim, sizes[i] * dim)
        shard = Shard(0, firsts[i] * dim, sizes[i] * dim, totals[i] * dim)
        for parameter, kind in ((layer.weight, "weight"), (layer.bias, "bias")):
            if parameter is not None:
                reader.fill(parameter, f"{prefixes[i]}.{kind}", into, shard)
"""

EXERCISE = Exercise(
    number="3.5",
    title="QKV shard loader",
    file="part3/ex05_qkv_loader.py",
    pieces=(("kv_head_range", seams.KV_HEAD_RANGE), ("load_qkv", seams.LOAD_QKV)),
    hints=(
        "Number the rows of q_proj for 4 heads of 2 rows and draw a line between two ranks. Then the same for k_proj "
        "with 2 heads. Which numbers are rows, and which are heads?",
        "The first head is rank x heads / ranks, rounded down, in both cases. Every number of a Shard counts rows: "
        "heads x head_dim. Keep the first free row of the matrix in a variable that grows by each part.",
        "q = Shard(0, first_head * dim, num_heads * dim, total_heads * dim), kv the same with the kv numbers; for "
        "prefix, shard in zip(prefixes, (q, kv, kv)): fill weight (and bias) with into=(row, shard.length), then row "
        "+= shard.length.",
    ),
    groups=(
        Group(
            "the key/value heads of a rank",
            1,
            "Rank order means neighbours: with 2 heads on 4 ranks, who holds head 0? And what can nobody divide?",
            (
                Example(
                    _EVEN,
                    [[[0, 4]], [[0, 2], [2, 2]]],
                    "4 heads on 2 ranks: two neighbours each. Where does rank 1 begin?",
                ),
                Example(
                    _SHARED,
                    [[[0, 1], [0, 1], [1, 1], [1, 1]], [[0, 1], [0, 1], [0, 1]]],
                    "Fewer heads than ranks: each rank still needs one, and neighbouring ranks share it.",
                ),
                Example(
                    _REFUSED,
                    [["refused", True], ["refused", True]],
                    (
                        "4 heads on 3 ranks, 3 heads on 4: nobody can divide that. ConfigError, with both "
                        "numbers in its message."
                    ),
                ),
            ),
        ),
        Group(
            "the rows of every rank, and no others read",
            2,
            "The rows are numbered: 100 and on are q, 200 k, 300 v. Which row came from where, and which is missing?",
            (Example(_BY_HAND, [[0, 1, 2, 3, 10, 11, 20, 21], [4, 5, 6, 7, 12, 13, 22, 23]]),),
            numeric=Numeric(
                _SIZES, _tensors, _MADE + "result = made_ranks.load_qkv(q, k, v, head_dim, ranks)", _loaded, cases=16
            ),
        ),
        Group(
            "biases, and the running engine",
            1,
            "A bias belongs to the output rows: it is cut as they are. layer.bias is None where a model has none.",
            (
                Example(
                    _BIAS,
                    [[10.0, 12.0, 14.0], [11.0, 13.0, 15.0]],
                    (
                        "A bias has one number for each output row: it is cut as the rows are, and put in the "
                        "same places."
                    ),
                ),
                IN_ENGINE,
            ),
        ),
    ),
    bugs=(
        Variant("deals the heads out in turns", "kv_head_range", source=_ROUND_ROBIN),
        Variant("lets any number of ranks pass", "kv_head_range", source=_NO_REFUSAL),
        Variant(
            "starts rank r at head r",
            "kv_head_range",
            (("return group.rank * local, local", "return group.rank, local"),),
        ),
        Variant(
            "gives a rank no head where heads are fewer than ranks",
            "kv_head_range",
            (("// group.size, 1", "// group.size, 0"),),
        ),
        Variant("counts heads where rows are meant", "load_qkv", (("self.first_head * dim", "self.first_head"),)),
        Variant("always reads the first heads", "load_qkv", (("self.first_kv_head * dim", "0"),)),
        Variant(
            "takes the first query head for the first key head",
            "load_qkv",
            (("self.first_kv_head * dim", "self.first_head * dim"),),
        ),
        Variant("puts all three on the same rows", "load_qkv", (("offset += shard.length", "pass"),)),
        Variant(
            "reads values before keys",
            "load_qkv",
            (("zip(prefixes, (q, kv, kv)", "zip((prefixes[0], prefixes[2], prefixes[1]), (q, kv, kv)"),),
        ),
        Variant("forgets the bias", "load_qkv", (("if self.bias is not None:", "if False:"),)),
        Variant("reads keys for values", "load_qkv", (("zip(prefixes,", "zip((*prefixes[:2], prefixes[1]),"),)),
    ),
    harmless=(
        Variant("lists the owners", "kv_head_range", source=_BY_LIST),
        Variant("loads values first and counts rows from the sizes", "load_qkv", source=_LAST_FIRST),
    ),
    uses_torch=True,
)
