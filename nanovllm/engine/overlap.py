"""The overlapped loop: the next step is launched before the last one's tokens are read.

In the plain loop (`LLMEngine.step`) the GPU waits while the host books tokens, schedules and prepares. Here the host
does that for step n + 1 while the GPU runs step n, whose sampled ids go straight into step n + 1 on the device:

    plain       host  [schedule prepare]          [book schedule prepare]          [book ...
                GPU                     [ step n ]                       [step n+1]
    overlapped  host  [schedule prepare] [schedule prepare] [book n] [schedule prepare] [book n+1]
                GPU                     [ step n          ][ step n+1               ][ step n+2 ...

The tokens are the same. A request that ends by length is known to end beforehand; one that ends by an end-of-sequence
token has run one step too many, whose token is dropped. A prefill needs no token of the step before it, and a decode
step after a prefill takes some ids from it and others from the host. Where the next step depends on the tokens (a
preemption, a place that becomes free, the choice of a policy that cannot look ahead) they are read first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.outputs import StepOutput
from nanovllm.paged_kv.batch import SamplingInputs
from nanovllm.paged_kv.in_flight import Feed, PendingTokens
from nanovllm.scheduler import Schedule, Scheduler, StepInFlight, mark_in_flight, schedule_ahead, slices_ahead, undo


@dataclass(slots=True)
class _Flight:
    """A launched step."""

    step: StepInFlight
    pending: PendingTokens
    sampling: SamplingInputs


@runtime_checkable
class ChoosesAhead(Protocol):
    """A policy that can choose the step after one in flight. One that cannot is asked once the tokens are read."""

    def ahead(self, scheduler: Scheduler, step: StepInFlight) -> Schedule | None:
        """The batch after `step`, its blocks reserved; None when its tokens must be known first."""
        ...


class OverlappedLoop:
    """Drop-in for calling `engine.step()` in a loop. Call `cancel` when leaving it early.

    meanwhile: called while a step runs, with a function that tells whether its tokens are there: work for the host
    that nobody waits for.
    """

    def __init__(self, engine: LLMEngine, meanwhile: Callable[[Callable[[], bool]], None] | None = None) -> None:
        self._engine = engine
        self._meanwhile = meanwhile
        self._flight: _Flight | None = None

    def step(self) -> StepOutput:
        """Finish the step in flight (or run a plain one), with the next one launched before its tokens are read.

        If a launch or the reading fails, the step in flight is undone too: the next call runs it again.
        """
        engine = self._engine
        engine.check_open()
        if self._flight is None:
            if not engine.can_overlap:
                return engine.step()
            self._flight = self._launch_first()
        flight, following, schedule = self._flight, None, None
        if flight is None:
            return engine.step()
        try:
            schedule = self._schedule_next(flight)
            if schedule is not None:
                following = self._launch_next(schedule, flight)
            if self._meanwhile is not None:
                flight.pending.send()
                self._meanwhile(flight.pending.has_arrived)
            token_ids = engine.ranks.read(flight.pending)
        except BaseException:
            # A launch that broke half-way may have overwritten the samples it was fed from.
            self._flight = None
            undo(engine.scheduler, flight.step, schedule)
            raise
        output = engine.book(*flight.step.to_book(token_ids))
        output.num_seqs, output.num_tokens = len(flight.step.slices), flight.step.num_tokens
        if schedule is not None:
            mark_in_flight(schedule)
        self._flight = following
        return output

    def _launch_first(self) -> _Flight | None:
        """Start from a step of the plain schedule, whose input tokens the host knows."""
        engine = self._engine
        schedule = engine.policy(engine.scheduler) if engine.policy else engine.scheduler.schedule()
        if not schedule.seqs:
            return None
        try:
            step = StepInFlight(schedule, [seq.scheduled_slice() for seq in schedule.seqs])
            return self._launch(step, SamplingInputs.of(step.sampled))
        except BaseException:
            engine.scheduler.rollback(schedule)
            raise

    def _schedule_next(self, flight: _Flight) -> Schedule | None:
        """The batch of the step after `flight`; None when it must be waited for."""
        engine = self._engine
        if not engine.can_overlap:
            return None
        if isinstance(engine.policy, ChoosesAhead):
            return engine.policy.ahead(engine.scheduler, flight.step)
        if engine.policy is not None and engine.scheduler.waiting:
            return None  # it must be asked; while nothing waits there is nothing to choose
        return schedule_ahead(engine.scheduler, flight.step)

    def _launch_next(self, schedule: Schedule, flight: _Flight) -> _Flight:
        """Launch the step after `flight`; a decode step is fed on the device by its samples."""
        step = StepInFlight(schedule, slices_ahead(schedule, flight.step))
        if schedule.is_prefill:
            return self._launch(step, SamplingInputs.of(step.sampled))
        rows = _rows_of(step, flight.step)
        sampling = SamplingInputs.of(schedule.seqs, num_ahead=rows >= 0, like=flight.sampling)
        return self._launch(step, sampling, Feed(flight.pending, rows))

    def _launch(self, step: StepInFlight, sampling: SamplingInputs, feed: Feed | None = None) -> _Flight:
        ranks, live = self._engine.ranks, self._engine.scheduler.sequences
        return _Flight(step, ranks.launch(step.slices, step.schedule.is_prefill, sampling, live, feed), sampling)

    def cancel(self) -> None:
        """Forget the step in flight. Its requests stay as they were before it, so it can simply be run again."""
        if self._flight is not None:
            undo(self._engine.scheduler, self._flight.step)
            self._flight = None


def _rows_of(step: StepInFlight, before: StepInFlight) -> np.ndarray:
    """[B] int64: where each request of `step` stands among the samples of the step before, -1 if it is not there."""
    seqs, among = step.schedule.seqs, before.sampled
    if len(seqs) == len(among) and not before.schedule.is_prefill:
        return np.arange(len(seqs))
    row = {seq.seq_id: i for i, seq in enumerate(among)}
    return np.array([row.get(seq.seq_id, -1) for seq in seqs], np.int64)
