"""Which cache slots a step really changed, found in the cache itself."""

import torch
from torch import Tensor

from nanovllm.paged_kv.model_runner import ModelRunner

_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class CacheWatch:
    """Compares a checksum of every slot's keys in the first layer before and after a step.

    A slot whose new keys equal the old ones bit for bit does not count as changed (a request that recomputes its own
    tokens into its old blocks does that).
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._old = self.checksums()

    def checksums(self) -> Tensor:
        """[num_slots] int64: a weighted sum of the bits of each slot's keys."""
        assert self.runner.cache is not None, "the engine is open, so the pool is there"
        keys, _ = self.runner.cache.layer(0)
        bits = keys.flatten(0, 1).flatten(1).view(_AS_INTEGERS[keys.element_size()]).to(torch.int64)
        weights = torch.arange(1, bits.shape[1] + 1, device=bits.device) * 0x9E3779B1 | 1
        return (bits * weights).sum(1)

    def before(self) -> None:
        """Remember what the slots hold now."""
        self._old = self.checksums()

    def changed(self) -> list[int]:
        """Slots that differ since `before`, ascending."""
        return torch.nonzero(self.checksums() != self._old).flatten().tolist()
