"""The order of construction: config, model, weights, memory, cache pool. Every step here happens before any request."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nanovllm.config import EngineConfig
from nanovllm.errors import ConfigError, MemoryBudgetError
from nanovllm.paged_kv.attention import bf16_supported
from nanovllm.paged_kv.backends import BackendChoice, choose_backend, make_backend
from nanovllm.paged_kv.cache import KVCacheSpec
from nanovllm.paged_kv.compile_ahead import compile_ahead
from nanovllm.paged_kv.cuda_graphs import graph_batch_sizes
from nanovllm.paged_kv.memory import MemoryBudget, MemoryMeter, check_weights_fit
from nanovllm.paged_kv.model_runner import ModelRunner
from nanovllm.paged_kv.prefill_graphs import prefill_graph_sizes
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.model import Qwen3ForCausalLM
from nanovllm.qwen3.ops import TorchOps, TritonOps
from nanovllm.qwen3.parallel import TensorParallelGroup, check_divides
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.sampler import Sampler
from nanovllm.qwen3.weights import DummyWeights, WeightReader


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rank builds, decided once on rank 0 before any process is spawned or memory is taken.

    prepare, setup: picklable functions that every rank calls with its `RankExecutor`, before it builds its model and
    once it has.
    """

    config: EngineConfig
    folder: Path
    model_config: Qwen3Config
    device_type: str
    dtype: torch.dtype
    backend: BackendChoice
    max_model_len: int
    setup: tuple[Callable[[Any], None], ...] = ()
    prepare: tuple[Callable[[Any], None], ...] = ()

    @property
    def max_batch_tokens(self) -> int:
        """Tokens of the largest step: a full prefill, or one token of every running request."""
        return max(self.config.max_num_batched_tokens, self.config.max_num_seqs)

    @property
    def prefill_graph_tokens(self) -> int:
        """Tokens of the largest recorded prefill; 0 for none."""
        return min(self.config.prefill_graph_tokens, self.config.max_num_batched_tokens)


def choose_device(requested: str) -> torch.device:
    """The device that runs rank 0. Raises ConfigError for a GPU that is not there."""
    if requested == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if requested == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for and torch sees no GPU: use device='cpu', or see `nanovllm info`")
    return torch.device(requested)


def choose_dtype(requested: str, checkpoint: str | None, device: torch.device) -> torch.dtype:
    """fp32 on a CPU (exact and fast there); on a GPU the checkpoint's, with fp16 where bf16 is missing."""
    if requested != "auto":
        dtype = getattr(torch, requested)
        if dtype is torch.bfloat16 and not bf16_supported(device):
            raise ConfigError("dtype 'bfloat16' needs compute capability 8.0 or newer: use 'float16'")
        return dtype
    if device.type == "cpu":
        return torch.float32
    named = {"float32": torch.float32, "float16": torch.float16}.get(str(checkpoint), torch.bfloat16)
    return torch.float16 if named is torch.bfloat16 and not bf16_supported(device) else named


def make_plan(
    config: EngineConfig,
    folder: Path,
    setup: tuple[Callable[[Any], None], ...] = (),
    prepare: tuple[Callable[[Any], None], ...] = (),
) -> Plan:
    """Decide everything that can be refused cheaply, in one place."""
    model_config = Qwen3Config.from_folder(folder)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, model_config.dtype, device)
    backend = choose_backend(config.attention_backend, device, dtype, config.kvcache_block_size)
    ranks = config.tensor_parallel_size
    if device.type == "cuda" and ranks > torch.cuda.device_count():
        raise ConfigError(f"tensor_parallel_size {ranks} needs {ranks} GPUs and torch sees {torch.cuda.device_count()}")
    heads, kv_heads = model_config.num_attention_heads, model_config.num_key_value_heads
    check_divides(heads, kv_heads, model_config.intermediate_size, ranks)
    max_model_len = min(config.max_model_len, model_config.max_position_embeddings)
    return Plan(config, folder, model_config, device.type, dtype, backend, max_model_len, setup, prepare)


def build_runner(plan: Plan, group: TensorParallelGroup) -> ModelRunner:
    """One rank's runner: model shard with weights, no cache pool yet. Leaves torch's global defaults alone."""
    device = torch.device("cuda", group.rank) if plan.device_type == "cuda" else torch.device("cpu")
    meter = MemoryMeter(device) if plan.device_type == "cuda" else None
    if meter is not None:
        check_weights_fit(plan.model_config.num_parameters * plan.dtype.itemsize, meter.free(), group.size)
    fused = plan.device_type == "cuda" and importlib.util.find_spec("triton") is not None
    ops = TritonOps() if fused else TorchOps()
    placement = Placement(plan.dtype, device, group, ops, make_backend(plan.backend.name))
    model = Qwen3ForCausalLM(plan.model_config, plan.max_model_len, placement)
    dummy = plan.config.load_format == "dummy"
    weights = DummyWeights(plan.config.seed or 0) if dummy else WeightReader(plan.folder, group.rank == 0)
    model.load(weights)
    first = model.attention_layers[0]
    spec = KVCacheSpec(
        num_layers=plan.model_config.num_hidden_layers,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        block_size=plan.config.kvcache_block_size,
        dtype=plan.dtype,
    )
    return ModelRunner(model, Sampler(fused), spec, device, meter, getattr(weights, "bytes_read", 0))


def useful_blocks(plan: Plan) -> int:
    """Blocks beyond which the pool could not be filled: every running request at full length."""
    per_seq = -(-plan.max_model_len // plan.config.kvcache_block_size)
    return per_seq * plan.config.max_num_seqs


def affordable_blocks(plan: Plan, runner: ModelRunner) -> int:
    """Blocks that this rank's memory allows, or the requested number. The engine takes the ranks' minimum."""
    requested = plan.config.num_kvcache_blocks
    if runner.meter is not None:
        blocks = measure_budget(plan, runner, runner.meter).blocks(runner.spec, requested)
        return blocks if requested else min(blocks, useful_blocks(plan))
    budget = int(plan.config.cpu_kvcache_gib * 2**30) // plan.config.tensor_parallel_size
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else budget * 2
    if requested is not None:
        taken = requested * runner.spec.bytes_per_block * plan.config.tensor_parallel_size
        if taken > physical and hasattr(os, "sysconf"):
            raise MemoryBudgetError(
                f"num_kvcache_blocks {requested:,} would take {taken / 2**30:,.1f} GiB and this machine has "
                f"{physical / 2**30:,.1f} GiB: ask for fewer, or leave it out to fill cpu_kvcache_gib"
            )
        return requested
    return min(runner.spec.blocks_in(min(budget, physical // 2)), useful_blocks(plan))


def wants_graphs(plan: Plan, runner: ModelRunner) -> bool:
    """True when decode is to be recorded: on a GPU, not refused by the caller, and possible with the backend."""
    supported = runner.model.attention_layers[0].backend.supports_cuda_graphs
    return plan.device_type == "cuda" and not plan.config.enforce_eager and supported


def measure_budget(plan: Plan, runner: ModelRunner, meter: MemoryMeter) -> MemoryBudget:
    """Warm up at the worst case, see what it takes, and reserve what the graphs will take."""
    if wants_graphs(plan, runner) and plan.config.tensor_parallel_size == 1:
        runner.allocate(1)
        limits = plan.max_batch_tokens, plan.config.max_num_seqs, plan.max_model_len
        compile_ahead(runner, *limits, plan.prefill_graph_tokens)
        runner.release_pool()
    meter.start_peak()
    runner.warm_up(plan.max_batch_tokens, plan.config.max_num_seqs, plan.max_model_len)
    peak = meter.peak()
    graphs = _graph_bytes(plan, runner, meter) if wants_graphs(plan, runner) else 0
    return meter.budget(peak, graphs, plan.config.gpu_memory_utilization)


def _graph_bytes(plan: Plan, runner: ModelRunner, meter: MemoryMeter) -> int:
    """What all graphs will take. The largest is recorded for a try, on a pool of one block, then the two largest.

    The others reuse its memory, so each adds only its bookkeeping: the difference of the two trials.
    """
    sizes = graph_batch_sizes(plan.config.max_num_seqs)
    runner.allocate(1)
    taken = []
    for trial in (sizes[-1:], sizes[-2:]):
        free_before = meter.free()
        if not runner.capture_graphs(plan.config.max_num_seqs, plan.max_model_len, trial):
            runner.release_pool()
            return 0  # the real capture fails too, and says so
        taken.append(free_before - meter.free())
        runner.release_graphs()
    each = max(taken[1] - taken[0], 2**20)
    needed = taken[0] + each * len(sizes)
    if num_tokens := plan.prefill_graph_tokens:
        free_before = meter.free()
        runner.capture_prefill_graphs(num_tokens, plan.max_model_len, [num_tokens])
        needed += free_before - meter.free() + each * len(prefill_graph_sizes(num_tokens))
        runner.release_graphs()
    runner.release_pool()
    return needed


def open_pool(plan: Plan, runner: ModelRunner, num_blocks: int) -> None:
    """Allocate the pool and record the graphs: the last part of a rank's start."""
    runner.allocate(num_blocks)
    if wants_graphs(plan, runner):
        recorded = runner.capture_graphs(plan.config.max_num_seqs, plan.max_model_len)
        if recorded and plan.prefill_graph_tokens:
            runner.capture_prefill_graphs(plan.prefill_graph_tokens, plan.max_model_len)
