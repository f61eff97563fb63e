"""One step on one rank: prepare the batch, run the model's shard, and on rank 0 sample the next tokens."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import torch
from torch import Tensor

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.batch import DeviceBatch, SamplingInputs, prepare, to_device
from nanovllm.paged_kv.cache import KVCache, KVCacheSpec
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.scheduler.sequence import ScheduledSlice


class CausalModel(Protocol):
    """What the runner needs of a model; `qwen3.model.Qwen3ForCausalLM` is one."""

    @property
    def attention_layers(self) -> list[Attention]:
        """The paged attention of each layer, in order."""
        ...

    def __call__(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """[T] ids and positions -> [T, hidden_size]."""
        ...

    def compute_logits(self, hidden: Tensor, context: ForwardContext) -> Tensor | None:
        """Logits [num_logits, vocab_size] on rank 0, None elsewhere."""
        ...


class TokenSampler(Protocol):
    """What the runner needs of a sampler; `qwen3.sampler.Sampler` is one."""

    def prepare(self, inputs: SamplingInputs, device: torch.device) -> Any:
        """Move a step's sampling inputs to the device."""
        ...

    def __call__(self, logits: Tensor, tensors: Any) -> Tensor:
        """[n, vocab_size] -> [n] int64."""
        ...


class ModelRunner:
    """Owns one rank's model shard and cache pool. `allocate` must be called once before the first `run`.

    last_batch, last_sampled: the tensors of the newest step as they are on the device, for traces.
    on_phase: called with "prepare", "forward", "sample" as each begins; None costs nothing.
    """

    def __init__(self, model: CausalModel, sampler: TokenSampler, spec: KVCacheSpec, device: torch.device) -> None:
        self.model = model
        self.sampler = sampler
        self.spec = spec
        self.device = device
        self.cache: KVCache | None = None
        self.last_batch: DeviceBatch | None = None
        self.last_sampled: Tensor | None = None
        self.on_phase: Callable[[str], None] | None = None

    def allocate(self, num_blocks: int) -> None:
        """Create the pool and hand each layer its views."""
        self.cache = KVCache(self.spec, num_blocks, self.device)
        for index, layer in enumerate(self.model.attention_layers):
            layer.bind(*self.cache.layer(index))

    @torch.inference_mode()
    def run(
        self, slices: Seq[ScheduledSlice], is_prefill: bool, sampling: SamplingInputs | None = None
    ) -> list[int | None]:
        """One step. Returns a token id for each sequence whose last known token was in it, None for the others.

        sampling: how to sample those that need a token, in order; None on ranks other than 0, which sample nothing.
        """
        self._phase("prepare")
        batch = to_device(prepare(slices, is_prefill, self.spec.block_size), self.device)
        self.last_batch, self.last_sampled = batch, None
        self._phase("forward")
        hidden = self.model(batch.input_ids, batch.positions, batch.context)
        if is_prefill and not any(s.needs_token for s in slices):
            return [None] * len(slices)  # only unfinished chunks: nobody reads logits
        logits = self.model.compute_logits(hidden, batch.context)
        if logits is None or sampling is None:
            return [None] * len(slices)
        self._phase("sample")
        self.last_sampled = self.sampler(logits, self.sampler.prepare(sampling, self.device))
        ids = iter(self.last_sampled.tolist())
        return [next(ids) if s.needs_token else None for s in slices]

    def _phase(self, name: str) -> None:
        if self.on_phase is not None:
            self.on_phase(name)

    def close(self) -> None:
        """Let go of the pool and the weights."""
        for layer in self.model.attention_layers:
            layer.k_cache = layer.v_cache = None
        self.cache = self.last_batch = self.last_sampled = None
