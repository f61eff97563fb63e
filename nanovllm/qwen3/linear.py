"""Tensor-parallel linear layers: which rows or columns of each weight a rank holds, and how it loads just those.

A weight is [out_features, in_features]. Column-parallel layers split the outputs (no communication); row-parallel
layers split the inputs, so each rank has a partial sum and an all-reduce adds them up.
"""

from torch import Tensor, nn

from nanovllm.qwen3.parallel import kv_head_range, shard_size
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.weights import Shard, Weights, empty_parameter


class MergedColumnParallelLinear(nn.Module):
    """Several column-parallel projections of one input in one matrix (gate and up): fewer, larger products.

    weight: [sum(out_sizes) / ranks, in_features], this rank's shard of each projection behind each other.
    """

    def __init__(self, in_size: int, out_sizes: list[int], at: Placement) -> None:
        super().__init__()
        self.ops = at.ops
        self.group = at.group
        self.local_sizes = [shard_size(size, at.group, "output features") for size in out_sizes]
        self.weight = empty_parameter(sum(self.local_sizes), in_size, dtype=at.dtype, device=at.device)

    def load(self, reader: Weights, prefixes: list[str]) -> None:
        """Fill from one checkpoint tensor a projection, reading only this rank's rows of each."""
        offset = 0
        for prefix, size in zip(prefixes, self.local_sizes, strict=True):
            rows = Shard(0, self.group.rank * size, size, size * self.group.size)
            reader.fill(self.weight, f"{prefix}.weight", into=(offset, size), shard=rows)
            offset += size

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, sum(out_sizes) / ranks]."""
        return self.ops.linear(x, self.weight)


class QKVParallelLinear(nn.Module):
    """The query, key and value projections in one matrix, split by heads; ranks that outnumber KV heads share them.

    weight: [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size], with this rank's numbers of heads.
    """

    def __init__(
        self, hidden_size: int, head_dim: int, total_heads: int, total_kv_heads: int, bias: bool, at: Placement
    ) -> None:
        super().__init__()
        self.ops = at.ops
        self.head_dim = head_dim
        self.total_heads, self.total_kv_heads = total_heads, total_kv_heads
        self.num_heads = shard_size(total_heads, at.group, "attention heads")
        self.first_head = at.group.rank * self.num_heads
        self.first_kv_head, self.num_kv_heads = kv_head_range(total_kv_heads, at.group)
        rows = (self.num_heads + 2 * self.num_kv_heads) * head_dim
        self.weight = empty_parameter(rows, hidden_size, dtype=at.dtype, device=at.device)
        self.bias = empty_parameter(rows, dtype=at.dtype, device=at.device) if bias else None

    def load(self, reader: Weights, prefixes: tuple[str, str, str]) -> None:
        """Fill from the q, k and v tensors, reading only this rank's heads of each."""
        dim = self.head_dim
        q = Shard(0, self.first_head * dim, self.num_heads * dim, self.total_heads * dim)
        kv = Shard(0, self.first_kv_head * dim, self.num_kv_heads * dim, self.total_kv_heads * dim)
        offset = 0
        for prefix, shard in zip(prefixes, (q, kv, kv), strict=True):
            into = (offset, shard.length)
            reader.fill(self.weight, f"{prefix}.weight", into=into, shard=shard)
            if self.bias is not None:
                reader.fill(self.bias, f"{prefix}.bias", into=into, shard=shard)
            offset += shard.length

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, (num_heads + 2 * num_kv_heads) * head_dim]: queries, then keys, then values."""
        return self.ops.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A projection whose input is split over the ranks; the partial results are summed by one all-reduce.

    weight: [out_features, in_features / ranks]. The bias is added once, after the sum.
    """

    def __init__(self, in_size: int, out_size: int, bias: bool, name: str, at: Placement) -> None:
        super().__init__()
        self.ops = at.ops
        self.group = at.group
        self.name = name
        self.local_size = shard_size(in_size, at.group, "input features")
        self.weight = empty_parameter(out_size, self.local_size, dtype=at.dtype, device=at.device)
        self.bias = empty_parameter(out_size, dtype=at.dtype, device=at.device) if bias else None

    def load(self, reader: Weights, prefix: str) -> None:
        """Fill the weight, reading only this rank's columns, and the whole bias."""
        columns = Shard(1, self.group.rank * self.local_size, self.local_size, self.local_size * self.group.size)
        reader.fill(self.weight, f"{prefix}.weight", shard=columns)
        if self.bias is not None:
            reader.fill(self.bias, f"{prefix}.bias")

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features / ranks] -> [T, out_features], the same on every rank."""
        return self.add_up(self.ops.linear(x, self.weight))

    def add_up(self, partial: Tensor) -> Tensor:
        """The sum over the ranks of their products [T, out_features], plus the bias."""
        out = self.group.all_reduce(partial, self.name)
        return out if self.bias is None else out + self.bias
