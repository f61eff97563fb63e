"""What the experiments share: the device, the checkpoint, and figures made from repeats."""

import statistics
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nanovllm.bench.environment import Environment, collect
from nanovllm.bench.floor import Floor, floor_of
from nanovllm.bench.formulas import chosen
from nanovllm.bench.options import Options
from nanovllm.bench.record import Repeat, RequestRow, Result
from nanovllm.bench.stats import HIGHER, LOWER, Spread
from nanovllm.engine.checkpoint import resolve_checkpoint
from nanovllm.engine.startup import choose_device
from nanovllm.qwen3.config import Qwen3Config

MIB = 2**20


def device_of(options: Options) -> str:
    """The type of device that the engine will choose: cpu or cuda."""
    return choose_device(options.limits.get("device", "auto")).type


def vocab_size(options: Options) -> int:
    """Of the checkpoint."""
    return Qwen3Config.from_folder(resolve_checkpoint(options.model)).vocab_size


def environment(options: Options) -> Environment:
    """Looked up once for each experiment, when it begins."""
    return collect(options.model, resolve_checkpoint(options.model))


def add_floor(result: Result, options: Options) -> Floor:
    """The floor for the engine that was started first; its rates become part of the settings."""
    config, engine = Qwen3Config.from_folder(resolve_checkpoint(options.model)), result.engines[0]
    floor = floor_of(config, engine.device, engine.dtype)
    if engine.device == "cuda":
        torch.cuda.empty_cache()
    result.settings["floor_rates"] = floor.rates.plain()
    result.formulas |= chosen(("floor",))
    return floor


@contextmanager
def noting_errors(result: Result, options: Options) -> Iterator[None]:
    """With `keep_errors`, an error ends the experiment and is noted in its result; else it is raised."""
    try:
        yield
    except Exception as error:
        if not options.keep_errors:
            raise
        result.error = f"{type(error).__name__}: {error}"
        result.traceback = "".join(traceback.format_exception(error)[-8:])


def pool(device: str, blocks: int) -> dict[str, Any]:
    """On a CPU a pool of what the workload needs; on a GPU what its memory allows, as in ordinary use."""
    return {"num_kvcache_blocks": blocks} if device == "cpu" else {}


def over(repeats: list[Repeat], figure: Callable[[Repeat], float], unit: str, better: str) -> Spread:
    """One figure of every repeat, with its spread."""
    return Spread.of([figure(r) for r in repeats], unit, better)


def output_rate(repeats: list[Repeat]) -> Spread:
    """Completion tokens / seconds."""
    return over(repeats, lambda r: sum(q.completion_tokens for q in r.requests) / r.seconds, "tok/s", HIGHER)


def total_rate(repeats: list[Repeat]) -> Spread:
    """(Prompt + completion tokens) / seconds."""

    def figure(r: Repeat) -> float:
        return sum(q.prompt_tokens + q.completion_tokens for q in r.requests) / r.seconds

    return over(repeats, figure, "tok/s", HIGHER)


def middle(repeat: Repeat, figure: Callable[[RequestRow], float | None]) -> float | None:
    """The median over the requests that have the figure."""
    values = [v for q in repeat.requests if (v := figure(q)) is not None]
    return statistics.median(values) if values else None


def request_median(repeats: list[Repeat], figure: Callable[[RequestRow], float | None]) -> Spread | None:
    """The median over the requests, in ms, of every repeat; None where no request has it."""
    found = [v for r in repeats if (v := middle(r, figure)) is not None]
    return Spread.of([v * 1e3 for v in found], "ms", LOWER) if found else None


def peak_memory(repeats: list[Repeat]) -> Spread | None:
    """Of the rank that took most, in MiB; None where nobody told."""
    found = [max(r.memory_bytes) / MIB for r in repeats if r.memory_bytes]
    return Spread.of(found, "MiB", LOWER) if found else None
