"""What the notebooks of part 3 use besides the engine: transformers' model beside it, a layer's operations, reads."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.paged_kv.batch import prepare, to_device
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.model import Qwen3ForCausalLM
from nanovllm.qwen3.parallel import TensorParallelGroup
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.weights import Shard, WeightReader
from nanovllm.scheduler.sequence import ScheduledSlice
from nanovllm.viz.layer import LayerCall
from nanovllm.viz.shards import Read

# --- notebook 30 ----------------------------------------------------------------------------------------------------


class Theirs:
    """transformers' Qwen3 with the same weights, on the same device and in the same dtype, run on one prompt.

    inputs, outputs: what each module got and gave, by its name: "layers.0.mlp", "layers.0.self_attn.q_norm", "norm",
    "lm_head"; without the batch dimension, so [num_tokens, ...]. rotary: cos and sin, each [num_tokens, head_dim].
    """

    def __init__(self, llm: LLMEngine, token_ids: list[int]) -> None:
        from transformers import Qwen3ForCausalLM as TheirModel

        parameter = next(iter(llm.model_runner.model.parameters()))  # type: ignore[attr-defined]
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        model: Any
        with _no_progress_bar():
            model = TheirModel.from_pretrained(str(llm.plan.folder), attn_implementation="eager")
        self.model = model.to(parameter.device, parameter.dtype).eval()
        handles = [m.register_forward_hook(self._note(name)) for name, m in self.model.named_modules() if name]
        with torch.inference_mode():
            self.logits = self.model(torch.tensor([token_ids], device=parameter.device)).logits[0]
        for handle in handles:
            handle.remove()

    def _note(self, name: str) -> Any:
        short = name.removeprefix("model.")

        def note(module: Any, args: tuple[Any, ...], out: Any) -> None:
            if short == "rotary_emb":
                self.rotary = out[0][0], out[1][0]
                return
            first = out[0] if isinstance(out, tuple) else out
            if args and isinstance(args[0], Tensor) and isinstance(first, Tensor):
                self.inputs[short], self.outputs[short] = args[0][0], first[0]

        return note


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar into a cell's output."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def compare(what: str, ours: Tensor, theirs: Tensor, tolerance: float = 1e-3) -> str:
    """Whether two tensors agree to `tolerance` times the spread of `theirs`; the words are the same on every device."""
    if ours.shape != theirs.shape:
        return f"{what}: shapes differ, {list(ours.shape)} and {list(theirs.shape)}"
    ours, theirs = ours.float().cpu(), theirs.float().cpu()
    worst = (ours - theirs).abs().max().item()
    spread = max(theirs.std().item(), 1e-9)
    if worst <= tolerance * spread:
        return f"{what}: agree, {list(ours.shape)}"
    return f"{what}: DIFFER by {worst:.2g}, where the numbers spread over {spread:.2g}"


def plain_context(llm: LLMEngine, num_tokens: int) -> ForwardContext:
    """The context of a prefill of one sequence of `num_tokens` tokens that stores nothing in the cache."""
    size = llm.config.kvcache_block_size
    pieces = [ScheduledSlice(0, [0] * num_tokens, 0, num_tokens, [0] * (num_tokens // size + 1))]
    host = prepare(pieces, True, size)
    host.slot_mapping[:] = -1
    return to_device(host, llm.model_runner.device).context


class _SpyOps:
    """Stands in for a layer's operations: notes each call with its module, then does it."""

    def __init__(self, ops: Any, module: Any, name: str, calls: list[LayerCall]) -> None:
        self._ops, self._module, self._name, self._calls = ops, module, name, calls

    small = tile = None  # no shortcut for few rows: the layer as it is defined

    def __getattr__(self, op: str) -> Any:
        real = getattr(self._ops, op)

        def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            out = real(x, *args, **kwargs)
            first = out[0] if isinstance(out, tuple) else out
            weight = getattr(self._module, "weight", None)
            shape = tuple(weight.shape) if isinstance(weight, Tensor) else ()
            shapes = tuple(x.shape), tuple(first.shape)
            self._calls.append(LayerCall(self._name, op, *shapes, shape, op == "add_rms_norm"))
            return out

        return call


@contextmanager
def watch_layer(llm: LLMEngine, index: int = 0) -> Iterator[list[LayerCall]]:
    """Note every operation that decoder layer `index` runs inside the block, in order, with its shapes.

    On a GPU a few rows would take a shortcut of fewer kernels; while it is watched the layer takes the long way round.
    """
    layer: Any = llm.model_runner.model.layers[index]  # type: ignore[attr-defined]
    calls: list[LayerCall] = []
    changed = [(m, m.ops, name) for name, m in layer.named_modules() if hasattr(m, "ops")]
    for module, ops, name in changed:
        module.ops = _SpyOps(ops, module, name, calls)
    try:
        yield calls
    finally:
        for module, ops, _ in changed:
            module.ops = ops


# --- notebook 31 ----------------------------------------------------------------------------------------------------


class LoggingReader(WeightReader):
    """A weight reader that remembers what it read, in `reads`."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        super().__init__(folder)
        self.rank = rank
        self.reads: list[Read] = []

    def fill(
        self, parameter: Tensor, name: str, into: tuple[int, int] | None = None, shard: Shard | None = None
    ) -> None:
        """See WeightReader.fill."""
        before = self.bytes_read
        super().fill(parameter, name, into, shard)
        shape = tuple(self._open_files[self._file_of[name]].get_slice(name).get_shape())
        dim, first, length = (None, 0, shape[0]) if shard is None else shard[:3]
        self.reads.append(Read(self.rank, name, shape, dim, first, length, into, self.bytes_read - before))


def shard_model(folder: Path, rank: int, size: int) -> tuple[Qwen3ForCausalLM, list[Read]]:
    """The model shard that rank `rank` of `size` holds, and every read that filled it. No process is started."""
    reader = LoggingReader(folder, rank)
    placement = Placement(group=TensorParallelGroup(rank, size))
    model = Qwen3ForCausalLM(Qwen3Config.from_folder(folder), 64, placement)
    model.load(reader)
    return model, reader.reads


# --- notebook 32 ----------------------------------------------------------------------------------------------------


def device_for_ranks(size: int) -> str:
    """Where `size` ranks can run: GPUs if there are enough, else the CPU (gloo, not NCCL; the same collectives)."""
    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= size else "cpu"


def what_a_rank_holds(executor: Any) -> dict[str, Any]:
    """Plain values of one rank, for `llm.ranks.call`: its share of heads and rows, its pool, its newest slots."""
    runner = executor.runner
    attention = runner.model.attention_layers[0]
    embedding = runner.model.embed_tokens
    batch = runner.last_batch
    return {
        "rank": executor.rank,
        "process": os.getpid(),
        "query heads": attention.num_heads,
        "KV heads": attention.num_kv_heads,
        "vocabulary": (embedding.first_row, embedding.first_row + embedding.num_rows - 1),
        "pool": list(runner.cache.tensor.shape),
        "slots": None if batch is None else batch.context.slot_mapping.tolist(),
        "sampled": runner.last_sampled is not None,
    }


def last_call(run: Callable[[], Any], error: type[Exception]) -> str:
    """The first line of the error that `run` raises; "no error" when it raises none."""
    try:
        run()
    except error as caught:
        return str(caught).splitlines()[0]
    return "no error"


# --- notebook 33 ----------------------------------------------------------------------------------------------------


def logits_of(llm: LLMEngine, token_ids: list[int]) -> Tensor:
    """The logits [vocab_size] of the token after `token_ids`, float32 on the host; nothing is scheduled or stored."""
    model: Any = llm.model_runner.model
    device = llm.model_runner.device
    context = plain_context(llm, len(token_ids))
    with torch.inference_mode():
        hidden = model(torch.tensor(token_ids, device=device), torch.arange(len(token_ids), device=device), context)
        return model.compute_logits(hidden, context)[0].float().cpu()


def chi_square(counts: Tensor, probs: Tensor) -> float:
    """Pearson's statistic of observed counts against probabilities; infinite when something impossible was drawn."""
    counts, probs = counts.double().cpu(), probs.double().cpu()
    possible = probs > 0
    if counts[~possible].sum() > 0:
        return float("inf")
    wanted = probs[possible] * counts.sum()
    return ((counts[possible] - wanted) ** 2 / wanted).sum().item()


def chi_square_limit(degrees: int) -> float:
    """What the statistic exceeds once in about 10,000 honest experiments (Wilson-Hilferty, z = 3.72)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.72 * (2 / (9 * degrees)) ** 0.5) ** 3
