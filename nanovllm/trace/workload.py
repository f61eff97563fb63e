"""A short run in which everything happens: shared prefixes, long prompts, little memory, arrivals while others run."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nanovllm.assets.tasks import examples
from nanovllm.engine.llm import LLM
from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.sampling_params import SamplingParams
from nanovllm.trace.limits import SMALL_LIMITS
from nanovllm.trace.recorder import Recorder
from nanovllm.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and the step before which it arrives."""

    step: int
    prompt: str | list[int]
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0, max_tokens=24))


def task_prompts() -> list[str]:
    """Eight prompts of the shipped checkpoint's tasks; the first two begin alike, and so do three others."""
    copy = examples("copy", 1, length=8)[0].prompt
    recall = examples("recall", 1, tokens=44)[0].prompt
    sort = examples("sort", 1, length=6)[0].prompt
    return [
        "count: 17 18 19 20 ->",
        copy,
        recall,
        "count: 17 18 19 20 21 22 ->",
        sort,
        recall,
        "add: 27 + 45 =",
        "list 7 days from Monday ->",
    ]


def arrivals(prompts: Iterable[str | list[int]], max_tokens: int = 24, every: int = 3) -> list[Arrival]:
    """The first three at once, then one every few steps; greedy, so that a run can be repeated."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return [Arrival(0 if i < 3 else (i - 2) * every, prompt, params) for i, prompt in enumerate(prompts)]


def record_run(llm: LLMEngine, requests: list[Arrival], watch_cache: bool = True, max_steps: int = 2000) -> Trace:
    """Run `requests` to their end, each queued at its step, and return the trace."""
    pending = sorted(requests, key=lambda r: r.step)
    with Recorder(llm, watch_cache=watch_cache) as recorder:
        step = 0
        while step < max_steps and (pending or not llm.is_finished()):
            while pending and (pending[0].step <= step or llm.is_finished()):
                arrival = pending.pop(0)
                llm.add_request(arrival.prompt, arrival.params)
            llm.step()
            step += 1
    return recorder.trace


def small_llm(model: str = "qwen3-tiny", **limits: Any) -> LLM:
    """An engine with blocks of 4 tokens and so few of them that requests compete; `limits` override."""
    return LLM(model, **(SMALL_LIMITS | limits))
