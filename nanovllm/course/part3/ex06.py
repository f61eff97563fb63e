"""3.6 Row-parallel linear."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.part3 import formulas
from nanovllm.course.part3.running import IN_ENGINE

_MADE = "from nanovllm.course.part3 import made_ranks\n"
_COLUMNS = (
    _MADE
    + """\
ranks = made_ranks.load_columns([[10.0, 20.0, 30.0, 40.0]], [5.0], ranks=2)
result = [[rank["weight"].tolist(), rank["bias"].tolist()] for rank in ranks]"""
)
_SUM = (
    _MADE
    + """\
seen = made_ranks.run_row_parallel([[1.0, 2.0, 3.0, 4.0]], [[10.0, 20.0, 30.0, 40.0]], None, ranks=2)
result = [y.tolist() for y in seen["ranks"]]"""
)
_BIAS = (
    _MADE
    + """\
seen = made_ranks.run_row_parallel([[1.0, 2.0, 3.0, 4.0]], [[10.0, 20.0, 30.0, 40.0]], [5.0], ranks=2)
result = [y.tolist() for y in seen["ranks"]]"""
)
_ONCE = (
    _MADE
    + """\
x = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]  # three tokens
result = made_ranks.run_row_parallel(x, [[1.0, 1.0]], [0.5], ranks=2)["collectives"]"""
)


def _layer(rng: random.Random, tokens: int, ranks: int, local: int, out: int) -> dict[str, Any]:
    return {
        "x": numbers(rng, tokens, ranks * local),
        "weight": numbers(rng, out, ranks * local),
        "bias": numbers(rng, out),
        "ranks": ranks,
    }


def _cut(x: Any, weight: Any, bias: Any, ranks: int) -> Any:
    n = len(weight[0]) // ranks
    parts = [[row[rank * n : (rank + 1) * n] for row in weight] for rank in range(ranks)]
    return [{"weight": part, "numbers_read": len(part) * n + len(bias), "bias": bias} for part in parts]


def _multiplied(x: Any, weight: Any, bias: Any, ranks: int) -> Any:
    y = [[number + b for number, b in zip(row, bias, strict=True)] for row in formulas.linear(x, weight)]
    return {"ranks": [y] * ranks, "collectives": [["all_reduce", "o_proj", [len(x), len(weight)]]]}


_SIZES = (("tokens", 1, 3), ("ranks", 1, 4), ("local", 1, 2), ("out", 1, 3))
_REDUCED = "out = self.group.all_reduce(self.ops.linear(x, self.weight), self.name)"
_FORWARD = f"""
def row_parallel_forward(self, x):
    {_REDUCED}
    return out if self.bias is None else out + self.bias
"""
_EACH = """
def row_parallel_forward(self, x):
    import torch
    out = torch.cat([self.group.all_reduce(self.ops.linear(row[None], self.weight), self.name) for row in x])
    return out if self.bias is None else out + self.bias
"""
_RANK_0_ADDS = """
def row_parallel_forward(self, x):
    bias = self.bias if self.group.rank == 0 else None
    return self.group.all_reduce(self.ops.linear(x, self.weight, bias), self.name)
"""
_SHARED = """
def row_parallel_forward(self, x):
    partial = x @ self.weight.T
    if self.bias is not None:
        partial = partial + self.bias / self.group.size
    return self.group.all_reduce(partial, self.name)
"""

EXERCISE = Exercise(
    number="3.6",
    title="Row-parallel linear with its all-reduce",
    file="part3/ex06_row_parallel.py",
    pieces=(("load_columns", seams.LOAD_COLUMNS), ("row_parallel_forward", seams.ROW_PARALLEL_FORWARD)),
    hints=(
        "Do the example with pencil for both ranks. Then add the bias in two places, before and after the sum, and "
        "compare.",
        "W is [out, in] and the inputs are split, so the cut goes along dimension 1. The all-reduce gets the product "
        "alone; what it returns is the same on every rank, and so must be what follows.",
        "reader.fill(layer.weight, name, shard=Shard(1, rank * size, size, size * ranks)); the bias without shard. And "
        "out = layer.group.all_reduce(layer.ops.linear(x, layer.weight), layer.name); out + layer.bias unless None.",
    ),
    groups=(
        Group(
            "the columns of every rank, the whole bias",
            1,
            "Which dimension of W [out, in] belongs to the inputs? And which part of the bias does a rank need, when "
            "it has all outputs?",
            (Example(_COLUMNS, [[[[10.0, 20.0]], [5.0]], [[[30.0, 40.0]], [5.0]]]),),
            numeric=Numeric(
                _SIZES, _layer, _MADE + "result = made_ranks.load_columns(weight, bias, ranks)", _cut, cases=10
            ),
        ),
        Group(
            "one sum, on every rank, the bias once",
            1,
            "Write down what each rank hands to the all-reduce, and what it does with the answer. How often is the "
            "bias in the result?",
            (
                Example(
                    _SUM,
                    [[[300.0]], [[300.0]]],
                    "Rank 0 has 50 and rank 1 has 250. Who adds them up, and who gets the sum?",
                ),
                Example(
                    _BIAS,
                    [[[305.0]], [[305.0]]],
                    (
                        "Here the bias 5 belongs to the result, once: 305. How often did you count it, and on "
                        "which rank?"
                    ),
                ),
            ),
        ),
        Group(
            "one all-reduce a call, and the running engine",
            1,
            "A collective costs the same for one row and for a thousand: how many does a call make, and of what shape?",
            (
                Example(_ONCE, [["all_reduce", "o_proj", [3, 1]]]),
                IN_ENGINE,
            ),
            numeric=Numeric(
                _SIZES,
                _layer,
                _MADE + "result = made_ranks.run_row_parallel(x, weight, bias, ranks)",
                _multiplied,
                cases=10,
            ),
        ),
    ),
    bugs=(
        Variant("reads the first columns on every rank", "load_columns", (("self.group.rank * self.local_size", "0"),)),
        Variant("cuts the rows", "load_columns", (("Shard(1,", "Shard(0,"),)),
        Variant("reads the whole weight", "load_columns", ((", shard=columns)", ")"),)),
        Variant("forgets the bias", "load_columns", (("if self.bias is not None:", "if False:"),)),
        Variant(
            "keeps the bias on rank 0 only",
            "load_columns",
            (("if self.bias is not None:", "if self.bias is not None and self.group.rank == 0:"),),
        ),
        Variant(
            "adds the bias before the sum, so once a rank",
            "row_parallel_forward",
            ((_REDUCED, "return self.group.all_reduce(self.ops.linear(x, self.weight, self.bias), self.name)"),),
            source=_FORWARD,
        ),
        Variant(
            "adds nothing up",
            "row_parallel_forward",
            ((_REDUCED, "out = self.ops.linear(x, self.weight)"),),
            source=_FORWARD,
        ),
        Variant(
            "takes the mean over the ranks",
            "row_parallel_forward",
            ((", self.name)", ", self.name) / self.group.size"),),
            source=_FORWARD,
        ),
        Variant(
            "adds the bias on rank 0 only, after the sum",
            "row_parallel_forward",
            (("if self.bias is None", "if self.bias is None or self.group.rank"),),
            source=_FORWARD,
        ),
        Variant(
            "forgets the bias",
            "row_parallel_forward",
            (("out if self.bias is None else out + self.bias", "out"),),
            source=_FORWARD,
        ),
        Variant(
            "adds up the inputs, not the products",
            "row_parallel_forward",
            ((_REDUCED, "out = self.ops.linear(self.group.all_reduce(x, self.name), self.weight)"),),
            source=_FORWARD,
        ),
        Variant("makes an all-reduce for each token", "row_parallel_forward", source=_EACH),
    ),
    harmless=(
        Variant("lets rank 0 add the bias before the sum", "row_parallel_forward", source=_RANK_0_ADDS),
        Variant("adds a share of the bias on each rank before the sum", "row_parallel_forward", source=_SHARED),
        Variant(
            "counts the columns from the size of the weight",
            "load_columns",
            (("Shard(1, self.group.rank * self.local_size,", "Shard(1, self.weight.shape[1] * self.group.rank,"),),
        ),
    ),
    uses_torch=True,
)
