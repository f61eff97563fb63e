"""What crosses ranks: the collectives of tensor parallelism behind one small object, and how work is divided."""

from dataclasses import dataclass

from torch import Tensor

from nanovllm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One collective as one rank saw it.

    kind: "all_reduce", "gather" or "broadcast". where: who asked for it, such as "layers.0.mlp.down_proj".
    shape, dtype, num_bytes: of this rank's own tensor.
    seconds: from its start to its result; None where nobody can measure it (while a CUDA graph is captured).
    """

    kind: str
    where: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    seconds: float | None


class TensorParallelGroup:
    """One rank among `size`; this base class is the group of one, whose collectives do nothing.

    Every tensor-parallel layer is handed its group, so that two engines in one process cannot mix theirs up.
    `distributed.DistributedGroup` is the group of several.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, x: Tensor, where: str) -> Tensor:
        """The sum of `x` over the ranks, on every rank. `where` names the layer, for the recorder of collectives.

        May overwrite `x`.
        """
        return x

    def gather(self, x: Tensor, where: str) -> list[Tensor] | None:
        """All ranks' `x` on rank 0, in rank order; None elsewhere."""
        return [x]

    def broadcast(self, x: Tensor, where: str) -> Tensor:
        """Rank 0's `x` on every rank; the others' `x`, of the same shape and contiguous, is overwritten."""
        return x


def shard_size(total: int, group: TensorParallelGroup, what: str) -> int:
    """total / ranks, refused with ConfigError when it does not divide."""
    if total % group.size:
        raise ConfigError(
            f"tensor_parallel_size {group.size} does not divide the {total} {what}: use a divisor of {total}"
        )
    return total // group.size


def kv_head_range(num_kv_heads: int, group: TensorParallelGroup) -> tuple[int, int]:
    """(first head, number of heads) of this rank. With fewer heads than ranks each head is held by several ranks."""
    if num_kv_heads >= group.size:
        local = shard_size(num_kv_heads, group, "key/value heads")
        return group.rank * local, local
    if group.size % num_kv_heads:
        raise ConfigError(
            f"tensor_parallel_size {group.size} is neither a divisor nor a multiple of the {num_kv_heads} key/value "
            "heads: use one that is"
        )
    return group.rank * num_kv_heads // group.size, 1


def check_divides(num_heads: int, num_kv_heads: int, intermediate_size: int, size: int) -> None:
    """Refuse, with ConfigError and before anything is built, a number of ranks that cannot share these sizes."""
    group = TensorParallelGroup(0, size)
    shard_size(num_heads, group, "attention heads")
    kv_head_range(num_kv_heads, group)
    shard_size(intermediate_size, group, "features of the feed-forward layer")
