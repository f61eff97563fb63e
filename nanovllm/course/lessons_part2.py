"""What the notebooks of part 2 use besides the engine: blocks of letters, a look at the arguments of attention."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.startup import build_runner, measure_budget
from nanovllm.paged_kv.batch import prepare_decode
from nanovllm.paged_kv.cache import KVCacheSpec
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.cuda_graphs import DecodeBuffers
from nanovllm.paged_kv.memory import MemoryBudget
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.parallel import TensorParallelGroup
from nanovllm.scheduler import BlockManager, ScheduledSlice, Sequence
from nanovllm.trace.record import Record
from nanovllm.viz.manager import manager_record

LETTERS = {code: chr(code) for code in range(32, 127)}

# config.json of Qwen/Qwen3-0.6B as published, less what the engine does not read.
QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
}


# --- notebook 20 ----------------------------------------------------------------------------------------------------


def spell(text: str) -> list[int]:
    """A token for each letter, so that blocks can be read."""
    return [ord(letter) for letter in text]


def compute(manager: BlockManager, seq: Sequence) -> None:
    """What a forward pass over all tokens of `seq` means to a block manager: they are cached, then published."""
    before = seq.num_cached_tokens
    seq.num_cached_tokens = seq.num_tokens
    manager.publish(seq, before)


def look(manager: BlockManager, sequences: Iterable[Sequence], before: Record | None = None) -> Record:
    """A block manager of letters as a record that `BlockPool` and `HashChain` can draw."""
    return manager_record(manager, sequences, before, LETTERS)


# --- notebooks 21 and 22 --------------------------------------------------------------------------------------------


@dataclass
class AttentionCall:
    """One call of a layer's attention, copied from the device's tensors.

    q [T, Hq, D], k and v [T, Hkv, D], out [T, Hq, D]; k_cache, v_cache [num_blocks, block_size, Hkv, D] as they were
    after the call, so with this step's K/V stored.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    k_cache: Tensor
    v_cache: Tensor
    context: ForwardContext
    scale: float


class AttentionTap:
    """Copies what goes into and out of one layer's attention, for each step run inside the `with` block.

        with AttentionTap(llm, layer=0) as calls:
            llm.step()
        calls[-1].q.shape

    Record with enforce_eager=True: a replayed CUDA graph passes no Python. Inside the block a GPU too makes q, k and v
    before it attends: where one kernel does both (`fused_decode.py`) there is no q to copy.
    """

    def __init__(self, llm: LLMEngine, layer: int = 0) -> None:
        self._attention: Any = llm.model_runner.model.attention_layers[layer]
        self.calls: list[AttentionCall] = []

    def __enter__(self) -> list[AttentionCall]:
        self._handle = self._attention.register_forward_hook(self._note, with_kwargs=True)
        self._fused, self._attention.backend.fuses_decode = self._attention.backend.fuses_decode, False
        return self.calls

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._handle.remove()
        self._attention.backend.fuses_decode = self._fused

    def _note(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        q, k, v, context = args
        q, k, v, out, k_cache, v_cache = (t.detach().clone() for t in (q, k, v, out, module.k_cache, module.v_cache))
        self.calls.append(AttentionCall(q, k, v, out, k_cache, v_cache, context, module.scale))


def changed_slots(before: Tensor, after: Tensor) -> list[int]:
    """Slots of a cache [num_blocks, block_size, Hkv, D] whose numbers differ between two copies."""
    differs = (before != after).flatten(0, 1).flatten(1).any(dim=1)
    return torch.nonzero(differs).flatten().tolist()


def begun_in_order(lengths: list[int], block_size: int = 4) -> list[int]:
    """The rows of a decode batch with these context lengths, in the order in which a recorded step begins them."""
    widths = [-(-length // block_size) for length in lengths]
    slices = [
        ScheduledSlice(row, [0], length - 1, length, [0] * width)
        for row, (length, width) in enumerate(zip(lengths, widths, strict=True))
    ]
    buffers = DecodeBuffers(len(lengths), max(widths), torch.device("cpu"))
    buffers.fill(prepare_decode(slices, block_size), None, None, None, len(lengths))
    order = buffers.context(len(lengths), max(lengths)).order
    assert order is not None, "the graphs' buffers have an order"
    return order.tolist()


# --- notebook 23 ----------------------------------------------------------------------------------------------------


def qwen3_0_6b() -> Qwen3Config:
    """The shape of Qwen3-0.6B, with no weights."""
    return Qwen3Config.from_dict(QWEN3_0_6B)


def cache_spec(config: Qwen3Config, block_size: int = 256, ranks: int = 1, dtype: Any = torch.bfloat16) -> KVCacheSpec:
    """The cache of one of `ranks` ranks for a model of this shape."""
    heads = max(1, config.num_key_value_heads // ranks)
    return KVCacheSpec(config.num_hidden_layers, heads, config.head_dim, block_size, dtype)


def measured_budget(llm: LLMEngine) -> MemoryBudget | None:
    """The memory of this engine's GPU, measured as at its start: a second model is built and its largest step run.

    None without a GPU. The second model is given back before this returns.
    """
    if llm.plan.device_type != "cuda":
        return None
    runner = build_runner(llm.plan, TensorParallelGroup())
    try:
        assert runner.meter is not None, "a runner on a GPU has a meter"
        return measure_budget(llm.plan, runner, runner.meter)
    finally:
        runner.close()
