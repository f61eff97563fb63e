"""One step on one rank: prepare the batch, run the model's shard, and on rank 0 sample the next tokens."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.batch import DeviceBatch, HostBatch, SamplingInputs, pad_block_tables, prepare, to_device
from nanovllm.paged_kv.cache import KVCache, KVCacheSpec
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.cuda_graphs import DecodeBuffers, DecodeGraphs, graph_batch_sizes
from nanovllm.paged_kv.in_flight import Feed, PendingTokens
from nanovllm.paged_kv.memory import MemoryMeter
from nanovllm.paged_kv.prefill_graphs import PrefillBuffers, PrefillGraphs, prefill_graph_sizes
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

    def share_ids(self, input_ids: Tensor) -> None:
        """Overwrite `input_ids` [B] int64 with rank 0's, when only rank 0 knows them."""
        ...


class TokenSampler(Protocol):
    """What the runner needs of a sampler; `qwen3.sampler.Sampler` is one."""

    def prepare(self, inputs: SamplingInputs, device: torch.device) -> Any:
        """Move a step's sampling inputs to the device."""
        ...

    def row_keys(self, inputs: SamplingInputs) -> np.ndarray:
        """[n, 2] int64: what seeds each row's draws."""
        ...

    def race(self, logits: Tensor, temperature: Tensor, keys: Tensor) -> Tensor:
        """[n, vocab_size] -> [n] int64 without top-k and top-p; no host wait, so a CUDA graph can record it."""
        ...

    def __call__(self, logits: Tensor, tensors: Any) -> Tensor:
        """[n, vocab_size] -> [n] int64."""
        ...


class ModelRunner:
    """Owns one rank's model shard and cache pool. `allocate` must be called once before the first `run`.

    last_batch, last_sampled: the tensors of the newest step as they are on the device, for traces.
    last_graph_size: rows of the CUDA graph that ran it, None without a graph.
    on_phase: called with "prepare", "forward", "sample" as each begins; None costs nothing.
    """

    def __init__(
        self,
        model: CausalModel,
        sampler: TokenSampler,
        spec: KVCacheSpec,
        device: torch.device,
        meter: MemoryMeter | None = None,
        weight_bytes_read: int = 0,
    ) -> None:
        self.model = model
        self.meter = meter  # of the GPU's memory since before the model was built; None on a CPU
        self.weight_bytes_read = weight_bytes_read  # from the checkpoint's files, by this rank
        self.sampler = sampler
        self.spec = spec
        self.device = device
        self.cache: KVCache | None = None
        self.graphs: DecodeGraphs | None = None
        self.prefill_graphs: PrefillGraphs | None = None
        self.last_batch: DeviceBatch | None = None
        self.last_sampled: Tensor | None = None
        self.last_graph_size: int | None = None
        self._under_way: list[PendingTokens] = []
        self.on_phase: Callable[[str], None] | None = None

    # --- before the first step --------------------------------------------------------------------------------------

    @torch.inference_mode()
    def warm_up(self, num_tokens: int, max_num_seqs: int, max_model_len: int) -> None:
        """Run the largest prefill, and logits with the costliest sampling for max_num_seqs rows. Needs no pool.

        It compiles kernels and shows the peak of memory; the numbers themselves are thrown away.
        """
        lens = [max_model_len] * (num_tokens // max_model_len) + [num_tokens % max_model_len]
        slices = [ScheduledSlice(i, [0] * n, 0, n, [0] * n) for i, n in enumerate(lens) if n]
        host = prepare(slices, True, self.spec.block_size)
        host.slot_mapping[:] = -1
        batch = to_device(host, self.device)
        hidden = self.model(batch.input_ids, batch.positions, batch.context)
        rows = torch.arange(max_num_seqs, device=self.device) % num_tokens
        logits = self.model.compute_logits(hidden, replace(batch.context, last_token_rows=rows))
        if logits is not None:
            ones, whole = np.ones(max_num_seqs, np.float32), np.ones(max_num_seqs, np.int64)
            inputs = SamplingInputs(temperature=ones, top_k=0 * whole, top_p=ones / 2, seed=whole, position=whole)
            self.sampler(logits, self.sampler.prepare(inputs, self.device))

    def allocate(self, num_blocks: int) -> None:
        """Create the pool and hand each layer its views."""
        self.cache = KVCache(self.spec, num_blocks, self.device)
        for index, layer in enumerate(self.model.attention_layers):
            layer.bind(*self.cache.layer(index))

    @torch.inference_mode()
    def capture_graphs(self, max_num_seqs: int, max_model_len: int, sizes: list[int] | None = None) -> bool:
        """Record decode for every batch size (or `sizes`); False if it failed, and then decode runs eagerly."""
        graphs = self.unrecorded_decode(max_num_seqs, max_model_len)
        graphs.buffers.compile_copies()
        self.graphs = graphs if graphs.capture(sizes or graph_batch_sizes(max_num_seqs)) else None
        return self.graphs is not None

    @torch.inference_mode()
    def capture_prefill_graphs(self, max_tokens: int, max_model_len: int, sizes: list[int] | None = None) -> bool:
        """Record prefills of up to max_tokens tokens (or of `sizes`); False if it failed, and then they run eagerly."""
        graphs = self.unrecorded_prefills(max_tokens, max_model_len)
        self.prefill_graphs = graphs if graphs.capture(sizes or prefill_graph_sizes(max_tokens)) else None
        return self.prefill_graphs is not None

    def unrecorded_decode(self, max_num_seqs: int, max_model_len: int) -> DecodeGraphs:
        """The decode steps of up to max_num_seqs sequences, none of them recorded."""
        buffers = DecodeBuffers(max_num_seqs, -(-max_model_len // self.spec.block_size), self.device)
        return DecodeGraphs(self.model, self._head, buffers, max_model_len)

    def unrecorded_prefills(self, max_tokens: int, max_model_len: int) -> PrefillGraphs:
        """The prefills of up to max_tokens tokens, none of them recorded."""
        buffers = PrefillBuffers(max_tokens, -(-max_model_len // self.spec.block_size), self.device)
        return PrefillGraphs(self.model, self._head, buffers, max_model_len)

    def _head(self, hidden: Tensor, context: ForwardContext, temperature: Tensor, keys: Tensor) -> Tensor | None:
        """Logits and the race: what follows the body in a recorded decode step."""
        logits = self.model.compute_logits(hidden, context)
        return None if logits is None else self.sampler.race(logits, temperature.unsqueeze(1), keys)

    # --- one step ---------------------------------------------------------------------------------------------------

    def run(
        self, slices: Seq[ScheduledSlice], is_prefill: bool, sampling: SamplingInputs | None = None
    ) -> list[int | None]:
        """One step. Returns a token id for each sequence whose last known token was in it, None for the others.

        sampling: how to sample those that need a token, in order; None on ranks other than 0, which sample nothing.
        """
        return self.launch(slices, is_prefill, sampling).result()

    @torch.inference_mode()
    def launch(
        self,
        slices: Seq[ScheduledSlice],
        is_prefill: bool,
        sampling: SamplingInputs | None = None,
        feed: Feed | None = None,
    ) -> PendingTokens:
        """Start a step without waiting for its tokens. `feed`: take the input ids from an earlier step's samples."""
        self._phase("prepare")
        host = prepare(slices, is_prefill, self.spec.block_size)
        use_graph = self.graphs is not None and not is_prefill
        sent_along = feed.pending if use_graph and feed is not None else None  # by the copy of this step's inputs
        for pending in self._under_way:
            if pending is not sent_along:
                pending.send()
        self.last_sampled = self.last_graph_size = None
        if is_prefill and self.prefill_graphs is not None and self.prefill_graphs.holds(host):
            self.last_sampled = self._run_prefill_graph(host, slices, sampling)
            return self._pending(slices)
        if is_prefill and not any(s.needs_token for s in slices):
            self._forward(host, None)
            return self._pending(slices)  # only unfinished chunks: nobody reads logits
        run = self._run_graph if use_graph else self._run_eager
        self.last_sampled = run(host, sampling, feed)
        return self._pending(slices)

    def _pending(self, slices: Seq[ScheduledSlice]) -> PendingTokens:
        """The tokens of the step just launched. Those of a step that nobody waits for stay until they have arrived."""
        pending = PendingTokens(slices, self.last_sampled)
        self._under_way = [*(p for p in self._under_way if not p.has_arrived()), pending]
        return pending

    def _forward(self, host: HostBatch, feed: Feed | None) -> tuple[Tensor, ForwardContext]:
        """Copy the batch to the device and run the layers; hidden [T, hidden_size]."""
        self.last_batch = batch = to_device(host, self.device)
        if feed is not None:
            feed.gather(batch.input_ids)
            self.model.share_ids(batch.input_ids)
        self._phase("forward")
        return self.model(batch.input_ids, batch.positions, batch.context), batch.context

    def _run_eager(self, host: HostBatch, sampling: SamplingInputs | None, feed: Feed | None) -> Tensor | None:
        """One kernel launch after the other; sampled ids, or None on ranks that do not sample."""
        hidden, context = self._forward(host, feed)
        logits = self.model.compute_logits(hidden, context)
        if logits is None or sampling is None:
            return None
        self._phase("sample")
        return self.sampler(logits, self.sampler.prepare(sampling, self.device))

    def _run_graph(self, host: HostBatch, sampling: SamplingInputs | None, feed: Feed | None) -> Tensor | None:
        """Replay the recorded step of the next batch size; sampled ids [B], or None on ranks that do not sample."""
        assert self.graphs is not None
        num_seqs, buffers = len(host.input_ids), self.graphs.buffers
        size = self.last_graph_size = self.graphs.padded_size(num_seqs)
        keys = None if sampling is None else self.sampler.row_keys(sampling)
        buffers.fill(host, None if sampling is None else sampling.temperature, keys, feed, size)
        input_ids = buffers.device["input_ids"][:num_seqs]
        if feed is not None:
            self.model.share_ids(input_ids)
        context = buffers.context(num_seqs, host.max_seqlen_k)
        self.last_batch = DeviceBatch(input_ids, buffers.device["positions"][:num_seqs], context)
        return self._replay(self.graphs, size, num_seqs, sampling, context)

    def _run_prefill_graph(
        self, host: HostBatch, slices: Seq[ScheduledSlice], sampling: SamplingInputs | None
    ) -> Tensor | None:
        """As `_run_graph`, for a prefill; None too when it holds nothing but unfinished chunks."""
        graphs = self.prefill_graphs
        assert graphs is not None
        assert host.last_token_rows is not None
        widths = -(-host.context_lens // self.spec.block_size)
        tables = pad_block_tables([s.block_table for s in slices], widths)
        keys = None if sampling is None else self.sampler.row_keys(sampling)
        size, buffers = graphs.padded_size(len(host.input_ids)), graphs.buffers
        buffers.fill(host, tables, None if sampling is None else sampling.temperature, keys, size)
        self.last_batch = buffers.real_part(host)
        if not len(host.last_token_rows):
            self._phase("forward")
            graphs.run_body(size)
            return None
        context = buffers.context(size, graphs.max_model_len)
        return self._replay(graphs, size, len(host.last_token_rows), sampling, context)

    def _replay(
        self,
        graphs: DecodeGraphs | PrefillGraphs,
        size: int,
        num_rows: int,
        sampling: SamplingInputs | None,
        context: ForwardContext,
    ) -> Tensor | None:
        """Run a recorded step; the sampled ids of its first num_rows rows, or None on ranks that do not sample."""
        self._phase("forward")
        hidden = graphs.run_body(size)
        if sampling is None or not sampling.cuts_vocabulary:
            sampled = graphs.run_head(size)
            return None if sampled is None else sampled[:num_rows]
        logits = self.model.compute_logits(hidden, context)  # padded, as on the other ranks
        assert logits is not None
        self._phase("sample")
        return self.sampler(logits[:num_rows], self.sampler.prepare(sampling, self.device))

    def _phase(self, name: str) -> None:
        if self.on_phase is not None:
            self.on_phase(name)

    def release_graphs(self) -> None:
        """Forget the recorded steps."""
        for graphs in (self.graphs, self.prefill_graphs):
            if graphs is not None:
                graphs.clear()
        self.graphs = self.prefill_graphs = self.last_batch = self.last_sampled = None
        self._under_way = []

    def release_pool(self) -> None:
        """Unbind the layers and free the pool."""
        for layer in self.model.attention_layers:
            layer.k_cache = layer.v_cache = None
        self.cache = self.last_batch = self.last_sampled = None

    def close(self) -> None:
        """Let go of graphs, pool and weights, and give the memory back to the device."""
        self.release_graphs()
        self.release_pool()
        del self.model
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
