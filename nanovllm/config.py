"""Every limit and option of the engine in one dataclass; each is refused with a sentence when it is wrong."""

from dataclasses import dataclass, fields
from typing import Any

from nanovllm.checks import check_bool, check_choice, check_float, check_int, check_names
from nanovllm.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "float16", "bfloat16")
BACKENDS = ("auto", "torch", "triton", "flash_attn")
LOAD_FORMATS = ("auto", "dummy")


@dataclass(slots=True)
class EngineConfig:
    """Limits and options, in tokens, requests, blocks and shares of memory as named.

    model: a local folder, a hub id such as "Qwen/Qwen3-0.6B", or "qwen3-tiny" (shipped with the package).
    max_num_batched_tokens: tokens of one prefill step; longer prompts are computed in chunks.
    max_num_seqs: requests that run at once.
    max_model_len: prompt plus completion tokens of one request; clipped to the checkpoint's positional limit.
    gpu_memory_utilization: share of the GPU's memory that the engine may use in all, weights included.
    tensor_parallel_size: ranks, 1 to 8; each holds a shard of every layer.
    enforce_eager: never capture CUDA graphs.
    prefill_graph_tokens: prefill steps of up to this many tokens and 16 requests are CUDA graphs too; 0: none.
    overlap: let generate() launch a step before the last one's tokens are read; None does so with CUDA graphs.
    kvcache_block_size: tokens of one KV block.
    num_kvcache_blocks: blocks of the pool; None takes as many as the memory allows.
    cpu_kvcache_gib: size of the pool on a CPU, GiB at most.
    device, dtype, attention_backend: "auto" chooses by machine and checkpoint; `nanovllm info` says what and why.
    load_format: "dummy" fills the weights with random numbers and needs only a config.json (benchmarks).
    seed: of the dummy weights, and of the seeds drawn for requests without one; None draws those from the system.
    rank_timeout: seconds that rank 0 waits for another rank in a step before it gives the engine up.
    rank_start_timeout: the same while the ranks start and load their weights.
    skip_tokenizer_init: do not load a tokenizer; prompts must be token ids and outputs have no text.

    Raises ConfigError for a value of the wrong type or out of range.
    """

    model: str
    max_num_batched_tokens: int = 16384
    max_num_seqs: int = 512
    max_model_len: int = 4096
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    prefill_graph_tokens: int = 4096
    overlap: bool | None = None
    kvcache_block_size: int = 256
    num_kvcache_blocks: int | None = None
    cpu_kvcache_gib: float = 2.0
    device: str = "auto"
    dtype: str = "auto"
    attention_backend: str = "auto"
    load_format: str = "auto"
    seed: int | None = None
    rank_timeout: float = 60.0
    rank_start_timeout: float = 600.0
    skip_tokenizer_init: bool = False

    def __post_init__(self) -> None:
        self.model = str(self.model)
        for name in ("max_num_batched_tokens", "max_num_seqs", "kvcache_block_size"):
            setattr(self, name, check_int(name, getattr(self, name), 1, error=ConfigError))
        self.prefill_graph_tokens = check_int("prefill_graph_tokens", self.prefill_graph_tokens, 0, error=ConfigError)
        self.max_model_len = check_int("max_model_len", self.max_model_len, 2, error=ConfigError)
        self.tensor_parallel_size = check_int("tensor_parallel_size", self.tensor_parallel_size, 1, 8, ConfigError)
        if self.num_kvcache_blocks is not None:
            self.num_kvcache_blocks = check_int("num_kvcache_blocks", self.num_kvcache_blocks, 1, error=ConfigError)
        if self.seed is not None:
            self.seed = check_int("seed", self.seed, 0, 2**63 - 1, ConfigError)
        share = self.gpu_memory_utilization
        self.gpu_memory_utilization = check_float("gpu_memory_utilization", share, 0.0, 1.0, ConfigError, open_low=True)
        self.cpu_kvcache_gib = check_float(
            "cpu_kvcache_gib", self.cpu_kvcache_gib, 0.0, 1e6, ConfigError, open_low=True
        )
        for name in ("rank_timeout", "rank_start_timeout"):
            setattr(self, name, check_float(name, getattr(self, name), 0.0, 86400.0, ConfigError, open_low=True))
        if self.overlap is not None:
            check_bool("overlap", self.overlap, ConfigError)
        check_bool("enforce_eager", self.enforce_eager, ConfigError)
        check_bool("skip_tokenizer_init", self.skip_tokenizer_init, ConfigError)
        check_choice("device", self.device, DEVICES, ConfigError)
        check_choice("dtype", self.dtype, DTYPES, ConfigError)
        check_choice("attention_backend", self.attention_backend, BACKENDS, ConfigError)
        check_choice("load_format", self.load_format, LOAD_FORMATS, ConfigError)

    @classmethod
    def from_limits(cls, model: str, **limits: Any) -> "EngineConfig":
        """Build from keyword limits, refusing an unknown one with the nearest name that exists."""
        check_names("engine option", limits, [f.name for f in fields(cls) if f.name != "model"], ConfigError)
        return cls(model, **limits)
