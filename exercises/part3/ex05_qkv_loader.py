# ruff: noqa: F401 (imports that you may need)
"""3.5 QKV shard loader: three tensors of a checkpoint become one matrix that holds this rank's heads only.

The checkpoint has q_proj.weight [Hq x D, hidden], k_proj.weight and v_proj.weight [Hkv x D, hidden]; head h is rows
h x D .. (h + 1) x D - 1. Each of N ranks (group.size) keeps Hq / N query heads, neighbours, in rank order, and the
key/value heads that those need. Its matrix is [queries; keys; values] on top of each other.

By hand, Hq = 4, Hkv = 2, D = 2, N = 2. Rank 1 keeps query heads 2 and 3 and key/value head 1. It reads rows 4..7 of
q_proj into rows 0..3 of its matrix, rows 2..3 of k_proj into rows 4..5, and rows 2..3 of v_proj into rows 6..7.

With more ranks than key/value heads each such head is held by several ranks: Hkv = 2 and N = 4 gives ranks 0 and 1
head 0, ranks 2 and 3 head 1. (Why rank order? Query head h uses key/value head h x Hkv / Hq.)
"""

from nanovllm.course import ExerciseNotDone
from nanovllm.errors import ConfigError
from nanovllm.qwen3.linear import QKVParallelLinear
from nanovllm.qwen3.parallel import TensorParallelGroup
from nanovllm.qwen3.weights import Shard, Weights


def kv_head_range(num_kv_heads: int, group: TensorParallelGroup) -> tuple[int, int]:
    """(first key/value head, number of them) of the rank group.rank among group.size ranks.

    By hand: 4 heads, 2 ranks -> rank 1 has (2, 2). 2 heads, 4 ranks -> ranks 0 to 3 have (0, 1) (0, 1) (1, 1) (1, 1).
    Raises ConfigError, naming both numbers, when neither divides the other.
    """
    raise ExerciseNotDone("3.5 qkv_loader", "two cases: at least as many heads as ranks, or fewer")


def load_qkv(layer: QKVParallelLinear, reader: Weights, prefixes: tuple[str, str, str]) -> None:
    """Fill layer.weight [(heads + 2 x kv heads of this rank) x D, hidden], and layer.bias unless it is None.

    The layer knows: head_dim (D); total_heads, total_kv_heads, of the whole model; first_head, num_heads and
    first_kv_head, num_kv_heads, of this rank. prefixes: names of the q, k and v projections; the tensors are called
    `prefix`.weight [rows, hidden] and `prefix`.bias [rows].

    reader.fill(parameter, name, into=(first row, rows), shard=Shard(0, first, length, total)) copies entries
    first .. first + length - 1 along dimension 0 of the tensor `name`, which must have `total` of them, to the given
    rows of the parameter. It reads those bytes only: ask for no more than this rank keeps.
    """
    raise ExerciseNotDone("3.5 qkv_loader", "write down first, length, total (rows, not heads) of q on rank 1")
