"""The order of construction: config, model, weights, memory, cache pool. Every step here happens before any request."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from nanovllm.config import EngineConfig
from nanovllm.errors import ConfigError
from nanovllm.paged_kv.attention import bf16_supported
from nanovllm.paged_kv.backends import BackendChoice, choose_backend, make_backend
from nanovllm.paged_kv.cache import KVCacheSpec
from nanovllm.paged_kv.model_runner import ModelRunner
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.model import Qwen3ForCausalLM
from nanovllm.qwen3.ops import TorchOps, TritonOps
from nanovllm.qwen3.parallel import TensorParallelGroup
from nanovllm.qwen3.sampler import Sampler
from nanovllm.qwen3.weights import WeightReader, fill_with_random


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rank builds, decided once on rank 0 before any process is spawned or memory is taken."""

    config: EngineConfig
    folder: Path
    model_config: Qwen3Config
    device_type: str
    dtype: torch.dtype
    backend: BackendChoice
    max_model_len: int

    @property
    def max_batch_tokens(self) -> int:
        """Tokens of the largest step: a full prefill, or one token of every running request."""
        return max(self.config.max_num_batched_tokens, self.config.max_num_seqs)


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


def make_plan(config: EngineConfig, folder: Path) -> Plan:
    """Decide everything that can be refused cheaply, in one place."""
    model_config = Qwen3Config.from_folder(folder)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, model_config.dtype, device)
    backend = choose_backend(config.attention_backend, device, dtype, config.kvcache_block_size)
    ranks = config.tensor_parallel_size
    if device.type == "cuda" and ranks > torch.cuda.device_count():
        raise ConfigError(f"tensor_parallel_size {ranks} needs {ranks} GPUs and torch sees {torch.cuda.device_count()}")
    max_model_len = min(config.max_model_len, model_config.max_position_embeddings)
    return Plan(config, folder, model_config, device.type, dtype, backend, max_model_len)


def build_runner(plan: Plan, group: TensorParallelGroup) -> ModelRunner:
    """One rank's runner: model shard with weights, no cache pool yet. Leaves torch's global defaults alone."""
    device = torch.device("cuda", group.rank) if plan.device_type == "cuda" else torch.device("cpu")
    fused = plan.device_type == "cuda" and importlib.util.find_spec("triton") is not None
    model = Qwen3ForCausalLM(
        plan.model_config,
        make_backend(plan.backend.name),
        plan.dtype,
        device,
        plan.max_model_len,
        group,
        TritonOps() if fused else TorchOps(),
    )
    if plan.config.load_format == "dummy":
        fill_with_random(model, (plan.config.seed or 0) * 1000003 + group.rank)
    else:
        model.load(WeightReader(plan.folder, show_progress=group.rank == 0))
    first = model.attention_layers[0]
    spec = KVCacheSpec(
        num_layers=plan.model_config.num_hidden_layers,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        block_size=plan.config.kvcache_block_size,
        dtype=plan.dtype,
    )
    return ModelRunner(model, Sampler(fused), spec, device)


def useful_blocks(plan: Plan) -> int:
    """Blocks beyond which the pool could not be filled: every running request at full length."""
    per_seq = -(-plan.max_model_len // plan.config.kvcache_block_size)
    return per_seq * plan.config.max_num_seqs


def affordable_blocks(plan: Plan, runner: ModelRunner) -> int:
    """Blocks that this rank's memory allows. The engine takes the minimum over ranks."""
    if plan.config.num_kvcache_blocks is not None:
        return plan.config.num_kvcache_blocks
    budget = int(plan.config.cpu_kvcache_gib * 2**30) // plan.config.tensor_parallel_size
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else budget * 2
    return min(runner.spec.blocks_in(min(budget, physical // 2)), useful_blocks(plan))
