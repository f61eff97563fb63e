"""What notebooks 40 and 41 use: who calls whom in a live engine, what each rank holds, buckets and padded batches."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import unwrap
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nanovllm.config import EngineConfig
from nanovllm.engine import checkpoint, startup
from nanovllm.engine.control_channel import ChannelHost
from nanovllm.engine.llm import LLM
from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.model_ranks import ModelRanks
from nanovllm.engine.ranks import RankGroup
from nanovllm.engine.step_codec import StepEncoder
from nanovllm.paged_kv import batch
from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.cache import KVCache
from nanovllm.paged_kv.cuda_graphs import DecodeBuffers, DecodeGraphs, graph_batch_sizes
from nanovllm.paged_kv.model_runner import ModelRunner
from nanovllm.qwen3.distributed import DistributedGroup
from nanovllm.qwen3.model import Qwen3ForCausalLM
from nanovllm.qwen3.sampler import Sampler
from nanovllm.scheduler import BlockManager, Scheduler, Sequence
from nanovllm.viz.lanes import Call, Lanes

# --- notebook 40: who calls whom ------------------------------------------------------------------------------------

STARTUP: tuple[Callable[..., Any], ...] = (
    EngineConfig.from_limits.__func__,  # type: ignore[attr-defined]
    checkpoint.resolve_checkpoint,
    startup.make_plan,
    checkpoint.load_tokenizer,
    RankGroup.__init__,
    startup.build_runner,
    Qwen3ForCausalLM.load,
    DistributedGroup.connect,
    startup.affordable_blocks,
    KVCache.__init__,
    BlockManager.__init__,
    Scheduler.__init__,
)
STEP: tuple[Callable[..., Any], ...] = (
    LLMEngine.step,
    Scheduler.schedule,
    BlockManager.allocate,
    BlockManager.append,
    Sequence.scheduled_slice,
    ModelRanks.run,
    StepEncoder.encode,
    ChannelHost.post,
    ModelRunner.run,
    batch.prepare_prefill,
    batch.prepare_decode,
    batch.to_device,
    Qwen3ForCausalLM.forward,
    Attention.forward,
    Qwen3ForCausalLM.compute_logits,
    DistributedGroup.all_reduce,
    DistributedGroup.gather,
    Sampler.__call__,
    ChannelHost.answer,
    Scheduler.postprocess,
    BlockManager.publish,
)
_REQUEST, _RANKS, _FORWARD = range(3)
_LANES = (
    ("nanovllm.scheduler", _REQUEST),
    ("nanovllm.config", _REQUEST),
    ("nanovllm.engine.checkpoint", _REQUEST),
    ("nanovllm.engine.startup.make_plan", _REQUEST),
    ("nanovllm.engine.llm_engine", _REQUEST),
    ("nanovllm.engine.startup", _FORWARD),
    ("nanovllm.engine", _RANKS),
    ("nanovllm", _FORWARD),
)


@contextmanager
def watched_calls(functions: tuple[Callable[..., Any], ...]) -> Iterator[Lanes]:
    """The calls of these functions in this thread while the block runs, nested as they happened, as a view.

    It looks and changes nothing: Python's profile hook tells of each call, and those of other functions are ignored.
    """
    names = {unwrap(f).__code__: f"{f.__module__}.{f.__qualname__}" for f in functions}
    calls: list[Call] = []
    open_frames: list[CodeType] = []

    def seen(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code not in names:
            return
        if event == "call":
            _note(calls, names[frame.f_code], len(open_frames))
            open_frames.append(frame.f_code)
        elif event == "return" and open_frames and open_frames[-1] is frame.f_code:
            open_frames.pop()

    view, before = Lanes(calls), sys.getprofile()
    sys.setprofile(seen)
    try:
        yield view
    finally:
        sys.setprofile(before)


def _note(calls: list[Call], name: str, depth: int) -> None:
    """A call, or one more of what was just called in the same place."""
    lane = next(lane for start, lane in _LANES if name.startswith(start))
    if calls and calls[-1].name == name and calls[-1].depth == depth:
        calls[-1].count += 1
    else:
        calls.append(Call(name, depth, lane))


def holdings(executor: Any) -> dict[str, Any]:
    """What one rank of a running engine holds: for `llm.ranks.call(holdings)`, which asks every rank.

    "unfinished requests": those of the engine that this rank's process holds; where there is none, all `Sequence`
    objects that are alive anywhere in the process.
    """
    runner = executor.runner
    known = [o for o in gc.get_objects() if issubclass(type(o), LLMEngine)]
    engines = [o for o in known if getattr(o, "model_runner", None) is runner]  # one that was refused has none
    owned = [engine.scheduler.sequences.values() for engine in engines]
    alive = owned or [[o for o in gc.get_objects() if type(o) is Sequence]]
    return {
        "rank": executor.rank,
        "parameters": sum(p.numel() for p in runner.model.parameters()),
        "KV pool": tuple(runner.cache.tensor.shape),
        "block tables from messages": dict(executor._decoder.tables),
        "unfinished requests": sum(not seq.is_finished for seqs in alive for seq in seqs),
    }


def has_sampled(executor: Any) -> bool:
    """Whether this rank sampled tokens in the newest step: for `llm.ranks.call(has_sampled)`."""
    return executor.runner.last_sampled is not None


# --- notebook 41: buckets -------------------------------------------------------------------------------------------


def buckets(max_num_seqs: int, sizes: list[int] | None = None) -> DecodeGraphs:
    """The engine's own chooser of batch sizes, with nothing recorded: it runs on any machine."""
    graphs = DecodeGraphs(None, None, None, 0)  # type: ignore[arg-type]
    graphs.sizes = graph_batch_sizes(max_num_seqs) if sizes is None else sizes
    return graphs


@dataclass(frozen=True, slots=True)
class PaddedStep:
    """A decode step run twice from the same cache: its own rows, and padded to `size` through the graphs' buffers.

    same_hidden: the real rows' hidden states agree. written_slots: all cache slots that the padded run stores to,
    ascending.
    """

    num_seqs: int
    size: int
    inputs: dict[str, list[Any]]
    same_hidden: bool
    written_slots: list[int]


@torch.inference_mode()
def run_padded(llm: LLM, size: int) -> PaddedStep:
    """Run the next decode step of `llm`'s running requests as it is and padded to `size` rows, sampling nothing.

    The step is scheduled and rolled back, and the cache is put back as it was, for which it is copied once: a lesson's
    pool is small. Raises ValueError when requests wait (the next step is a prefill) or more than `size` run.
    """
    runner, seqs = llm.model_runner, list(llm.scheduler.running)
    if llm.scheduler.waiting or not 0 < len(seqs) <= size:
        raise ValueError(
            f"{len(llm.scheduler.waiting)} requests wait and {len(seqs)} run: none may wait and 1 to {size} must run"
        )
    schedule = llm.scheduler.schedule()
    host = batch.prepare_decode([seq.scheduled_slice() for seq in schedule.seqs], llm.config.kvcache_block_size)
    llm.scheduler.rollback(schedule)
    plain = batch.to_device(host, runner.device)
    assert runner.cache is not None, "the engine is open, so the pool is there"
    pool = runner.cache.tensor
    buffers = _filled_buffers(host, size, pool.shape[2] * pool.shape[3], runner.device)
    assert host.block_tables is not None
    d = {name: tensor[:size] for name, tensor in buffers.device.items()}
    padded = d["input_ids"], d["positions"], buffers.context(size, int(host.context_lens.max()))
    with _kept(pool):
        expected = runner.model(plain.input_ids, plain.positions, plain.context)
    with _kept(pool):
        hidden = runner.model(*padded)
    with _kept(pool):
        pool.fill_(torch.nan)  # a stored key shows, whatever the slot held and whatever number it is
        runner.model(*padded)
        written = ~pool[:, 0].isnan().flatten(1, 2).flatten(2).all(2).all(0)  # layer 0: its keys need no other slot
    inputs = {name: d[name].tolist() for name in ("input_ids", "positions", "slot_mapping", "context_lens")}
    inputs["block_tables"] = d["block_tables"][:, : host.block_tables.shape[1]].tolist()
    same = _close(hidden[: len(seqs)], expected)
    return PaddedStep(len(seqs), size, inputs, same, torch.nonzero(written).flatten().tolist())


def _filled_buffers(host: batch.HostBatch, size: int, num_slots: int, device: torch.device) -> DecodeBuffers:
    """The graphs' buffers with this batch padded to `size`. An earlier batch has filled all their rows before."""
    assert host.block_tables is not None
    buffers = DecodeBuffers(size, host.block_tables.shape[1] + 1, device)  # wider than this batch, as the graphs' are
    ones, slots = np.ones(size, np.int64), np.arange(num_slots - size, num_slots)
    earlier = batch.HostBatch(False, ones, ones, slots, 2 * ones, np.ones((size, 1), np.int32))
    for used in (earlier, earlier, host):  # twice, because there are two pinned buffers
        buffers.fill(used, None, None, None, size)
    return buffers


@contextmanager
def _kept(pool: Tensor) -> Iterator[None]:
    """What is written to the pool inside the block is undone at its end."""
    before = pool.clone()
    try:
        yield
    finally:
        pool.copy_(before)


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(np.allclose(a.float().cpu().numpy(), b.float().cpu().numpy(), atol=2e-2 if a.itemsize < 4 else 1e-4))


@contextmanager
def rows_launched(llm: LLM) -> Iterator[list[int]]:
    """The rows of every decode step that is launched while the block runs."""
    runner, rows = llm.model_runner, list[int]()
    launch = runner.launch

    def watched(slices: Any, is_prefill: bool, *args: Any, **kwargs: Any) -> Any:
        if not is_prefill:
            rows.append(len(slices))
        return launch(slices, is_prefill, *args, **kwargs)

    runner.launch = watched  # type: ignore[method-assign]
    try:
        yield rows
    finally:
        del runner.launch


class _Traffic(TorchDispatchMode):
    """Counts the operators that run, and the bytes that each reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.num_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.names.append(str(function).removeprefix("aten."))
        tensors = [x for x in (*args, *(result if isinstance(result, tuple) else (result,))) if isinstance(x, Tensor)]
        self.num_bytes += sum(t.numel() * t.element_size() for t in tensors)
        return result


def operators(function: Callable[..., Any], *args: Any) -> tuple[list[str], int]:
    """The operators that torch runs one after the other for `function(*args)`, and the bytes they read and write."""
    with _Traffic() as traffic:
        function(*args)
    return traffic.names, traffic.num_bytes


def what_a_compiler_sees(function: Callable[..., Any], *args: Any) -> list[str]:
    """The operators of the graph that torch.compile hands to its backend; nothing is compiled."""
    seen: list[str] = []

    def backend(module: Any, _: Any) -> Any:
        nodes = [node for node in module.graph.nodes if node.op.startswith("call")]
        seen.extend(getattr(node.target, "__name__", str(node.target)) for node in nodes)
        return module.forward

    torch.compile(function, backend=backend)(*args)
    return seen
