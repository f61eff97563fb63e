"""The attention layer: store this step's K/V in the pool, then attend through the block tables."""

from typing import Protocol

import torch
from torch import Tensor, nn

from nanovllm.paged_kv.context import ForwardContext


class AttentionBackend(Protocol):
    """One implementation of paged attention. Hq query heads, Hkv key/value heads, D head_dim.

    Caches are [num_blocks, block_size, Hkv, D]; `context` describes the step.
    """

    name: str
    supports_cuda_graphs: bool
    fuses_decode: bool  # decode is ours (`kernels/decode.py`), and may be one kernel with the heads' own work

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """Write row i of k and v [T, Hkv, D] to slot slot_mapping[i]; -1 writes nothing."""
        ...

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
    ) -> Tensor:
        """Causal attention of packed rows q [T, Hq, D] to their sequences' keys; [T, Hq, D]."""
        ...

    def decode(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float) -> Tensor:
        """Attention of one row a sequence q [B, Hq, D] to its cached keys; [B, Hq, D]."""
        ...


class Attention(nn.Module):
    """Paged attention of one layer. The runner binds the layer's cache views once the pool exists."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, backend: AttentionBackend) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        self.backend = backend
        self.k_cache: Tensor | None = None
        self.v_cache: Tensor | None = None

    def bind(self, k_cache: Tensor, v_cache: Tensor) -> None:
        """Use these views [num_blocks, block_size, num_kv_heads, head_dim] as this layer's cache."""
        self.k_cache, self.v_cache = k_cache, v_cache

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: ForwardContext, stored: bool = False) -> Tensor:
        """q [T, Hq, D], k and v [T, Hkv, D] -> [T, Hq, D]. `stored`: an earlier kernel wrote k and v already.

        Without a pool (the memory warm-up) nothing is stored and only prefill without prefix is possible.
        """
        k_cache = self.k_cache if self.k_cache is not None else k.new_empty(0)
        v_cache = self.v_cache if self.v_cache is not None else v.new_empty(0)
        if self.k_cache is not None and not stored:
            self.backend.store(k, v, k_cache, v_cache, context.slot_mapping)
        if context.is_prefill:
            return self.backend.prefill(q, k, v, k_cache, v_cache, context, self.scale)
        return self.backend.decode(q, k_cache, v_cache, context, self.scale)


def bf16_supported(device: torch.device) -> bool:
    """True where bf16 arithmetic is native (sm80 and newer, and CPUs through emulation)."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
