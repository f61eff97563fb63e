"""The same traces with steps launched ahead: the tokens of a step are known only after the next was launched.

This is what `engine/overlap.py` does with a GPU, here with the fake runner, which keeps the sampled tokens to itself
and feeds them to the next step. Before that step nobody but the runner knows them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nanovllm.course.oracle.invariants import (
    Before,
    check_ahead,
    check_between_steps,
    check_rolled_back,
    check_state,
    ids,
)
from nanovllm.course.oracle.play import Play
from nanovllm.course.oracle.report import Violation
from nanovllm.scheduler import (
    Schedule,
    ScheduledSlice,
    StepInFlight,
    mark_in_flight,
    schedule_ahead,
    slices_ahead,
    undo,
)


@dataclass(frozen=True, slots=True)
class Ahead:
    """The functions that look ahead; each may be the one under test."""

    schedule: Callable[[Any, Any], Schedule | None] = schedule_ahead
    slices: Callable[[Schedule, Any], list[ScheduledSlice]] = slices_ahead
    mark: Callable[[Schedule], None] = mark_in_flight
    undo: Callable[..., None] = undo
    in_flight: Callable[[Schedule, list[ScheduledSlice]], Any] = StepInFlight


@dataclass(slots=True)
class _Flight:
    """A launched step; `tokens` are on the fake device until the step is booked."""

    step: Any
    slices: list[ScheduledSlice]
    tokens: list[int | None]

    @property
    def unread(self) -> dict[int, int]:
        """The token that each request has sampled."""
        return {s.seq_id: t for s, t in zip(self.slices, self.tokens, strict=True) if t is not None}


class PlayAhead(Play):
    """One trace being played by the overlapped loop.

    A failing step is a launch that breaks half-way, or, when nothing is launched, tokens that never arrive; either way
    the step in flight is undone as well. A request cancelled in flight is cancelled with two steps under way.
    """

    def __init__(self, *args: Any, ahead: Ahead) -> None:
        super().__init__(*args)
        self.ahead = ahead
        self.flight: _Flight | None = None
        self.is_counted = False  # what the step in flight completes was entered into the model of the prefix cache

    def _step_bound(self) -> int:
        return self.trace.step_bound() + len(self.trace.requests)  # each may end with a step too many under way

    def _step(self) -> None:
        if self.flight is None:
            before, schedule, slices = self._schedule()
            if self.step in self.trace.failing_steps:
                self._fail(before, schedule, slices)
                return
            self.phase = "the forward pass"
            self.flight = _Flight(self.ahead.in_flight(schedule, slices), slices, self.cache.run(slices))
        flight = self.flight
        before = Before.of(self.scheduler, self.live.values())
        schedule_next = self._schedule_ahead(before, flight)
        following = None if schedule_next is None else self._slices_ahead(before, flight, schedule_next)
        if self.step in self.trace.failing_steps:
            self._undo(before, flight, following)
            return
        if following is not None:
            self.phase = "the forward pass ahead"
            following.tokens = self.cache.run(following.slices)
        self._cancel(in_flight=True)
        self._book_flight(flight)
        if following is not None:
            self._mark(following.step.schedule)
        self.flight, self.is_counted = following, False
        check_between_steps(self.scheduler, [] if following is None else following.slices)

    def _schedule_ahead(self, before: Before, flight: _Flight) -> Schedule | None:
        """Ask for the batch after `flight`, whose tokens are unknown, and check it."""
        self.phase = "schedule_ahead()"
        if before.waiting and flight.step.schedule.is_prefill:  # a prefill may follow, and finds what this one computes
            self.is_counted = True
            for piece in flight.slices:
                if piece.seq_id in self.live:
                    self.cache.booked(piece)
        schedule = self.ahead.schedule(self.scheduler, flight.step)
        check_ahead(self.scheduler, before, flight.unread, schedule, self.trace)
        check_state(self.scheduler, self.live, self.trace)
        if schedule is not None:
            kind = "prefill" if schedule.is_prefill else "decode"
            self.history.append(f"step {self.step}: a {kind} of requests {ids(schedule.seqs)} is launched ahead")
        return schedule

    def _slices_ahead(self, before: Before, flight: _Flight, schedule: Schedule) -> _Flight:
        """What the step scheduled ahead computes, checked, with unknown tokens fed by the runner."""
        self.phase = "slices_ahead()"
        pieces = self.ahead.slices(schedule, flight.step)
        unread = {} if schedule.is_prefill else flight.unread
        slices = [self._fed(self._copied(piece), unread) for piece in pieces]
        self.cache.begin_step(before, slices, unread)
        self._note_batch(schedule.is_prefill, slices)
        self.result.num_ahead += 1
        self.result.num_prefills_ahead += schedule.is_prefill
        return _Flight(self.ahead.in_flight(schedule, slices), slices, [])

    @staticmethod
    def _fed(piece: ScheduledSlice, unread: dict[int, int]) -> ScheduledSlice:
        """The slice with its placeholder replaced, on the device, by what the step in flight sampled."""
        if piece.seq_id not in unread:
            return piece
        if len(piece.token_ids) != 1:
            raise Violation("slice", f"request {piece.seq_id} feeds in one token", f"its slice has {piece.token_ids}")
        return replace(piece, token_ids=[unread[piece.seq_id]])

    def _book_flight(self, flight: _Flight) -> None:
        """Hand over the tokens of the step in flight, and the rest of it where that was not counted before."""
        self.phase = "to_book()"
        self.result.num_late += sum(s.seq_id not in self.live for s in flight.slices)
        schedule, tokens = flight.step.to_book(flight.tokens)
        self._book(schedule, flight.slices, tokens)

    def _note_completed(self, piece: ScheduledSlice) -> None:
        if not self.is_counted:
            super()._note_completed(piece)

    def _mark(self, schedule: Schedule) -> None:
        """The step launched ahead is the next to be booked; a request that has ended meanwhile has no token in it."""
        self.phase = "mark_in_flight()"
        self.ahead.mark(schedule)
        for seq in schedule.seqs:
            if seq.is_finished and seq.num_scheduled_tokens:
                expected = f"request {seq.seq_id} has ended: 0 of its tokens count in the step launched ahead"
                raise Violation("counts", expected, f"{seq.num_scheduled_tokens} do")

    def _undo(self, before: Before, flight: _Flight, following: _Flight | None) -> None:
        """A launch fails, or the tokens never arrive: neither step has happened, nor can their blocks be found."""
        for failed in (flight, following):
            if failed is not None:
                self.cache.runner.corrupt(failed.slices)
        self._cancel(in_flight=True)
        self.phase = "undo()"
        self.ahead.undo(self.scheduler, flight.step, None if following is None else following.step.schedule)
        if self.is_counted:
            self.cache.prefixes.reset()
        self.flight, self.is_counted = None, False
        self.history.append(f"step {self.step}: it failed with a step in flight, which was undone")
        check_state(self.scheduler, self.live, self.trace)
        schedule = flight.step.schedule
        check_rolled_back(self.scheduler, before.without(schedule.seqs) if schedule.is_prefill else before, schedule)
        check_between_steps(self.scheduler)

    def _check_end(self) -> None:
        if self.flight is not None:  # of requests that had all ended: undoing it must change nothing
            self.ahead.undo(self.scheduler, self.flight.step)
        super()._check_end()
