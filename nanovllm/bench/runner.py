"""Run a workload through the engine and note every step and request."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nanovllm import LLM, SamplingParams
from nanovllm.bench.environment import EngineRecord, clocks, describe_engine
from nanovllm.bench.memory import peak_bytes, reset_peak
from nanovllm.bench.options import Options
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import Repeat, RequestRow, StepRow
from nanovllm.bench.workload import Workload
from nanovllm.engine.outputs import RequestOutput, StepOutput
from nanovllm.engine.overlap import OverlappedLoop
from nanovllm.scheduler import DecisionKind

WARM_UP_OUTPUTS = 8  # completion tokens of a warm-up run, at most


@contextmanager
def started(name: str, options: Options, records: list[EngineRecord], **limits: Any) -> Iterator[LLM]:
    """An engine with the experiment's limits under the user's own; its record is added to `records`."""
    began = time.perf_counter()
    merged = {"seed": options.seed, "skip_tokenizer_init": True} | limits | options.limits
    llm = LLM(options.model, **merged)
    with llm:
        record = describe_engine(name, llm, time.perf_counter() - began)
        records.append(record)
        yield llm
        if record.device == "cuda":
            record.clocks = clocks()


def measured(llm: LLM, work: Workload, options: Options, progress: Progress, label: str, **how: Any) -> list[Repeat]:
    """Warm up, then run the workload `options.repeats` times. `how` goes to `run_once`."""
    for _ in range(options.warmups):
        progress.say(f"{label}, warm-up")
        run_once(llm, work.shortened(WARM_UP_OUTPUTS), options, **how)
        progress.advance()
    repeats = []
    for _ in range(options.repeats):
        progress.say(label)
        repeats.append(run_once(llm, work, options, **how))
        progress.advance()
    return repeats


@dataclass(slots=True)
class Launches:
    """What is noted at each launch of a step on rank 0. decode_seconds: until a decode step is queued on the device."""

    decode_seconds: list[float] = field(default_factory=list)
    used_blocks: int = 0
    peak_blocks: int = 0


@contextmanager
def launches(llm: LLM) -> Iterator[Launches]:
    """Watch the launches: they come after a step was scheduled and before any request of it gives its blocks back."""
    runner, manager, notes = llm.model_runner, llm.scheduler.block_manager, Launches()
    launch = runner.launch

    def watched(slices: Any, is_prefill: bool, *args: Any, **kwargs: Any) -> Any:
        notes.used_blocks = manager.num_used_blocks
        notes.peak_blocks = max(notes.peak_blocks, notes.used_blocks)
        began = time.perf_counter()
        pending = launch(slices, is_prefill, *args, **kwargs)
        if not is_prefill:
            notes.decode_seconds.append(time.perf_counter() - began)
        return pending

    runner.launch = watched  # type: ignore[method-assign]
    try:
        yield notes
    finally:
        del runner.launch


@dataclass(slots=True)
class _Notes:
    """What is noted between two steps."""

    began: float
    ids: dict[int, int]  # request id -> number of the request
    seconds: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    tokens: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    decode_steps: list[float] = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)
    timeline: list[StepRow] = field(default_factory=list)

    def book(self, step: StepOutput, lasted: float) -> None:
        self.seconds[step.is_prefill] += lasted
        self.tokens[step.is_prefill] += step.num_tokens if step.is_prefill else len(step.new_tokens)
        if not step.is_prefill:
            self.decode_steps.append(lasted)
        self.outputs += step.finished

    def draw(self, llm: LLM, step: StepOutput, end: float, used_blocks: int) -> None:
        schedule, decisions = llm.last_schedule, llm.scheduler.decisions
        seqs = schedule.seqs if schedule is not None else []
        preempted = [d.seq_id for d in decisions if d.kind is DecisionKind.PREEMPT and d.seq_id is not None]
        row = StepRow(
            end=end,
            is_prefill=step.is_prefill,
            num_tokens=step.num_tokens,
            scheduled=[self.ids[s.seq_id] for s in seqs],
            preempted=[self.ids[i] for i in preempted],
            used_blocks=used_blocks,
        )
        self.timeline.append(row)


def run_once(
    llm: LLM,
    work: Workload,
    options: Options,
    *,
    timeline: bool = False,
    plain: bool = False,
    prepare: Callable[[LLM, Workload], Workload] | None = None,
) -> Repeat:
    """Queue everything, step until all is done. The prefix cache is emptied first.

    plain: never the overlapped loop. timeline: keep every step (needs `plain`).
    prepare: untimed work before it, which returns the workload to time.
    """
    llm.scheduler.block_manager.reset_prefix_cache()
    if prepare is not None:
        work = prepare(llm, work)
    llm.ranks.call(reset_peak)
    began = time.perf_counter()
    ids = queue(llm, work, options)
    notes = _Notes(began, {request: i for i, request in enumerate(ids)})
    loop = OverlappedLoop(llm)
    before = began
    with launches(llm) as seen:
        try:
            while not llm.is_finished():
                step = llm.step() if plain else loop.step()
                now = time.perf_counter()
                notes.book(step, now - before)
                if timeline:
                    notes.draw(llm, step, now - began, seen.used_blocks)
                before = now
        finally:
            loop.cancel()
    return _repeat(notes, seen, before - began, llm.ranks.call(peak_bytes))


def queue(llm: LLM, work: Workload, options: Options) -> list[int]:
    """Queue every request; their ids. Each has its own seed, so that repeats draw the same tokens."""
    return [
        llm.add_request(p, SamplingParams(options.temperature, max_tokens=n, ignore_eos=True, seed=options.seed + i))
        for i, (p, n) in enumerate(zip(work.prompts, work.outputs, strict=True))
    ]


def _repeat(notes: _Notes, seen: Launches, seconds: float, memory: list[int]) -> Repeat:
    by_number = sorted(notes.outputs, key=lambda o: notes.ids[o.request_id])
    return Repeat(
        seconds=seconds,
        prefill_seconds=notes.seconds[True],
        decode_seconds=notes.seconds[False],
        prefill_tokens=notes.tokens[True],
        decode_tokens=notes.tokens[False],
        decode_step_seconds=statistics.median(notes.decode_steps) if notes.decode_steps else None,
        memory_bytes=memory,
        peak_blocks=seen.peak_blocks,
        requests=[_row(o, notes.began) for o in by_number],
        launch_seconds=statistics.median(seen.decode_seconds) if seen.decode_seconds else None,
        timeline=notes.timeline,
    )


def _row(output: RequestOutput, began: float) -> RequestRow:
    m = output.metrics
    assert m.finish_time is not None
    return RequestRow(
        arrival=m.arrival_time - began,
        first_token=None if m.first_token_time is None else m.first_token_time - began,
        finish=m.finish_time - began,
        prompt_tokens=m.num_prompt_tokens,
        completion_tokens=m.num_completion_tokens,
        prefix_tokens=m.num_prefix_tokens,
        preemptions=m.num_preemptions,
        recomputed_tokens=m.num_recomputed_tokens,
    )
