"""The overlapped loop: the next decode step is launched before the last one's tokens are read.

In the plain loop (`LLMEngine.step`) the GPU waits while the host books tokens, schedules and prepares. Here the host
does that for step n + 1 while the GPU runs step n, whose sampled ids go straight into step n + 1 on the device:

    plain       host  [schedule prepare]          [book schedule prepare]          [book ...
                GPU                     [ step n ]                       [step n+1]
    overlapped  host  [schedule prepare] [schedule prepare] [book n] [schedule prepare] [book n+1]
                GPU                     [ step n          ][ step n+1               ][ step n+2 ...

The tokens are the same. A request that ends by length is known to end beforehand; one that ends by an end-of-sequence
token has run one step too many, whose token is dropped. Anything but plain decoding (a waiting request, a preemption)
first lets the step in flight finish and then takes the plain step.
"""

from dataclasses import dataclass

import numpy as np

from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.outputs import StepOutput
from nanovllm.paged_kv.batch import SamplingInputs
from nanovllm.paged_kv.in_flight import Feed, PendingTokens
from nanovllm.scheduler import Schedule, Sequence, mark_in_flight, schedule_ahead, slice_ahead


@dataclass(slots=True)
class _Flight:
    """A launched step."""

    schedule: Schedule
    pending: PendingTokens
    sampling: SamplingInputs


class OverlappedLoop:
    """Drop-in for calling `engine.step()` in a loop. Call `cancel` when leaving it early."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._flight: _Flight | None = None

    def step(self) -> StepOutput:
        """Finish the step in flight (or run a plain one), with the next one launched before its tokens are read.

        If a launch or the reading fails, the step in flight is undone too: the next call runs it again.
        """
        engine = self._engine
        engine.check_open()
        if self._flight is None:
            if engine.scheduler.waiting or not engine.can_overlap:
                return engine.step()
            self._flight = self._launch_first()
        flight = self._flight
        if flight is None:
            return engine.step()
        try:
            following = self._launch_next(flight)
            token_ids = engine.ranks.read(flight.pending)
        except BaseException:
            self.cancel()  # a launch that broke half-way may have overwritten the samples it was fed from
            raise
        output = engine.book(flight.schedule, token_ids)
        if following is not None:
            mark_in_flight(following.schedule.seqs)
        self._flight = following
        return output

    def _launch_first(self) -> _Flight | None:
        """Start from a decode step of the plain schedule, whose input tokens the host knows."""
        schedule = self._engine.scheduler.schedule()
        if not schedule.seqs:
            return None
        try:
            slices = [seq.scheduled_slice() for seq in schedule.seqs]
            sampling, live = SamplingInputs.of(schedule.seqs), self._engine.scheduler.sequences
            pending = self._engine.ranks.launch(slices, schedule.is_prefill, sampling, live)
            return _Flight(schedule, pending, sampling)
        except BaseException:
            self._engine.scheduler.rollback(schedule)
            raise

    def _launch_next(self, flight: _Flight) -> _Flight | None:
        """Launch the step after `flight`, fed on the device by its samples; None when it must be waited for."""
        in_flight = flight.schedule.seqs
        seqs = schedule_ahead(self._engine.scheduler, in_flight) if self._engine.can_overlap else None
        if seqs is None:
            return None
        feed = Feed(flight.pending, _rows_of(seqs, in_flight))
        sampling = SamplingInputs.of(seqs, num_ahead=1, like=flight.sampling)
        live = self._engine.scheduler.sequences
        pending = self._engine.ranks.launch([slice_ahead(s) for s in seqs], False, sampling, live, feed)
        return _Flight(Schedule(seqs, False), pending, sampling)

    def cancel(self) -> None:
        """Forget the step in flight. Its requests stay as they were before it, so it can simply be run again."""
        if self._flight is not None:
            self._engine.scheduler.rollback(self._flight.schedule)
            self._flight = None


def _rows_of(seqs: list[Sequence], among: list[Sequence]) -> np.ndarray:
    """[B] int64: where each of `seqs` stands in `among`."""
    if len(seqs) == len(among):
        return np.arange(len(seqs))
    row = {seq.seq_id: i for i, seq in enumerate(among)}
    return np.array([row[seq.seq_id] for seq in seqs], np.int64)
