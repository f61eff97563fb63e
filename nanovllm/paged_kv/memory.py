"""How much of a GPU the KV pool may take: measured after a warm-up at the worst case, with graphs reserved for."""

from dataclasses import dataclass

import torch

from nanovllm.errors import MemoryBudgetError
from nanovllm.paged_kv.cache import KVCacheSpec

_GIB = 2**30
SAFETY_BYTES = 256 * 2**20  # for what neither torch nor we can see: library workspaces, driver growth


def check_weights_fit(weight_bytes: int, free: int, num_ranks: int) -> None:
    """Raise MemoryBudgetError, before anything is allocated, if one rank's share of the weights is more than is free.

    weight_bytes: of the whole model. free: bytes of this rank's GPU.
    """
    share = weight_bytes // num_ranks
    if share <= free:
        return
    enough = next((n for n in (1, 2, 4, 8) if weight_bytes / n <= 0.8 * free), None)
    way_out = f"tensor_parallel_size {enough} would fit" if enough else "more than 8 such GPUs would be needed"
    raise MemoryBudgetError(
        f"the weights take {share / _GIB:,.1f} GiB on each of {num_ranks} GPU(s) and {free / _GIB:,.1f} GiB are free: "
        f"{way_out}; or free the card, or take a smaller model"
    )


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """One rank's GPU memory in bytes.

    total: of the card. free: at the time of measuring, so other processes (and engines) are already taken off.
    held: what this engine holds: weights and buffers. peak: what a step needs besides, at the worst case.
    graphs: reserved for CUDA graphs. utilization: the share of `total` that the engine may use.
    """

    total: int
    free: int
    held: int
    peak: int
    graphs: int
    utilization: float

    @property
    def for_cache(self) -> int:
        """Bytes left for the pool: the smaller of the engine's share and what is really free."""
        own_share = int(self.total * self.utilization) - self.held
        return min(own_share, self.free - SAFETY_BYTES) - self.peak - self.graphs

    def blocks(self, spec: KVCacheSpec, requested: int | None) -> int:
        """Blocks of the pool; a requested number that does not fit is refused with MemoryBudgetError."""
        if requested is None:
            return self._fit(spec)
        if requested * spec.bytes_per_block > self.free - SAFETY_BYTES - self.peak - self.graphs:
            raise MemoryBudgetError(
                f"num_kvcache_blocks {requested:,} takes {requested * spec.bytes_per_block / _GIB:,.2f} GiB and "
                f"{max(0, self.free - SAFETY_BYTES - self.peak - self.graphs) / _GIB:,.2f} GiB are free for it: "
                f"at most {max(0, self.for_cache) // spec.bytes_per_block:,} blocks fit"
            )
        return requested

    def _fit(self, spec: KVCacheSpec) -> int:
        try:
            return spec.blocks_in(self.for_cache)
        except MemoryBudgetError as e:
            raise MemoryBudgetError(f"{e}. {self.describe()}") from None

    def describe(self) -> str:
        """The budget in a sentence."""
        return (
            f"Of {self.total / _GIB:.1f} GiB ({self.utilization:.0%} allowed, {self.free / _GIB:.1f} GiB free) weights "
            f"hold {self.held / _GIB:.2f} GiB, a step needs {self.peak / _GIB:.2f} GiB more and graphs "
            f"{self.graphs / _GIB:.2f} GiB, which leaves {max(0, self.for_cache) / _GIB:.2f} GiB for the KV cache"
        )


class MemoryMeter:
    """Measures on one GPU from its construction on: what an engine came to hold, and the peak of its steps."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._allocated_before = torch.cuda.memory_allocated(device)

    def held(self) -> int:
        """Bytes of live tensors since construction."""
        return torch.cuda.memory_allocated(self.device) - self._allocated_before

    def start_peak(self) -> None:
        """Begin to look for the highest use."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self._reserved_at_start = torch.cuda.memory_reserved(self.device)

    def peak(self) -> int:
        """Bytes that torch took from the card since `start_peak`: live tensors and the gaps between them."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_reserved(self.device) - self._reserved_at_start

    def free(self) -> int:
        """Bytes that the card has free once torch's unused memory went back to it."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def budget(self, peak: int, graphs: int, utilization: float) -> MemoryBudget:
        """The budget as of now. Cached but unused memory of torch is returned to the card first."""
        total = torch.cuda.mem_get_info(self.device)[1]
        return MemoryBudget(total, self.free(), self.held(), peak, graphs, utilization)
