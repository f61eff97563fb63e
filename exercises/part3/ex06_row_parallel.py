# ruff: noqa: F401 (imports that you may need)
"""3.6 Row-parallel linear: each rank multiplies its part of the input, and one all-reduce adds the parts up.

y = x W^T + b, with W [out, in]. The input features are split over N ranks: rank r has columns r x in / N and on of W
and the same part of x, and so a partial sum of every output. An all-reduce (sum) gives all ranks the whole y.

By hand, in = 4, out = 1, two ranks: x = [1, 2, 3, 4], W = [[10, 20, 30, 40]], b = [5].

    rank 0: 1 x 10 + 2 x 20 = 50          rank 1: 3 x 30 + 4 x 40 = 250          y = 50 + 250 + 5 = 305

Where does the bias go? Every rank holds all of it (it belongs to the outputs, which are not split), and it must count
once, not N times.
"""

from nanovllm.course import ExerciseNotDone
from torch import Tensor

from nanovllm.qwen3.linear import RowParallelLinear
from nanovllm.qwen3.weights import Shard, Weights


def load_columns(layer: RowParallelLinear, reader: Weights, prefix: str) -> None:
    """Fill layer.weight [out, in / N] with this rank's columns of `prefix`.weight [out, in], and layer.bias [out],
    unless it is None, with all of `prefix`.bias.

    layer.local_size is in / N; layer.group has rank and size. reader.fill(parameter, name, shard=Shard(dim, first,
    length, total)) copies entries first .. first + length - 1 along dimension `dim` of the tensor `name`, which must
    have `total` of them; without `shard`, all of it. By hand: rank 1 above takes Shard(1, 2, 2, 4).
    """
    raise ExerciseNotDone("3.6 row_parallel", "which dimension of W [out, in] is split?")


def row_parallel_forward(layer: RowParallelLinear, x: Tensor) -> Tensor:
    """x [T, in / N], this rank's part of the input -> [T, out], the same on every rank.

    layer.ops.linear(x, layer.weight) multiplies; layer.bias is [out] or None. layer.group.all_reduce(partial,
    layer.name) returns the sum of all ranks' tensors; layer.name tells the recorder of collectives where it happened.
    All-reduce once: it is the expensive part.
    """
    raise ExerciseNotDone("3.6 row_parallel", "multiply, add up over the ranks, and only then ...?")
