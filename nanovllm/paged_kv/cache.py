"""The KV cache pool: one tensor a rank, its size in bytes, and how many blocks a memory budget pays for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nanovllm.errors import MemoryBudgetError


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The shape of one rank's pool."""

    num_layers: int
    num_kv_heads: int  # of this rank
    head_dim: int
    block_size: int  # tokens
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in all layers: 2 x layers x kv_heads x head_dim x bytes of the dtype."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def bytes_per_block(self) -> int:
        """bytes_per_token x block_size."""
        return self.bytes_per_token * self.block_size

    def blocks_in(self, num_bytes: int) -> int:
        """Whole blocks that fit in `num_bytes`; refused with MemoryBudgetError when that is none."""
        blocks = num_bytes // self.bytes_per_block
        if blocks < 1:
            raise MemoryBudgetError(
                f"no KV block fits: one of {self.block_size} tokens takes {self.bytes_per_block / 2**20:,.1f} MiB and "
                f"{max(0, num_bytes) / 2**20:,.1f} MiB are left for the cache: lower kvcache_block_size, "
                "max_num_batched_tokens or max_num_seqs, or raise gpu_memory_utilization (cpu_kvcache_gib on a CPU)"
            )
        return blocks


class KVCache:
    """The pool of one rank: `tensor` [2 (K, V), num_layers, num_blocks, block_size, num_kv_heads, head_dim].

    It starts as zeros, because a masked-out slot is still multiplied by an attention weight of 0, which would turn a
    NaN left in memory into a wrong result.
    """

    def __init__(self, spec: KVCacheSpec, num_blocks: int, device: torch.device) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        shape = (2, spec.num_layers, num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
        self.tensor = torch.zeros(shape, dtype=spec.dtype, device=device)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """K and V of one layer, each [num_blocks, block_size, num_kv_heads, head_dim], as views."""
        return self.tensor[0, index], self.tensor[1, index]
