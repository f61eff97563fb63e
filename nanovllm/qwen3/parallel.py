"""What crosses ranks: the collectives of tensor parallelism behind one small object, and how work is divided."""

from torch import Tensor

from nanovllm.errors import ConfigError


class TensorParallelGroup:
    """One rank among `size`; this base class is the group of one, whose collectives do nothing.

    Every tensor-parallel layer is handed its group, so that two engines in one process cannot mix theirs up.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, x: Tensor, where: str) -> Tensor:
        """The sum of `x` over the ranks, on every rank. `where` names the layer, for the recorder of collectives."""
        return x

    def gather(self, x: Tensor, where: str) -> list[Tensor] | None:
        """All ranks' `x` on rank 0, in rank order; None elsewhere."""
        return [x]


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
            f"tensor_parallel_size {group.size} neither divides nor is a multiple of the {num_kv_heads} key/value heads"
        )
    return group.rank * num_kv_heads // group.size, 1
