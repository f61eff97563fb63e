"""The same traces with decode steps launched ahead: the tokens of a step are known only after the next was launched.

This is what `engine/overlap.py` does with a GPU, here with the fake runner, which keeps the sampled tokens to itself
and feeds them to the next step. Before that step nobody but the runner knows them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nanovllm.course.oracle.invariants import Before, check_between_steps, check_rolled_back, check_state, ids
from nanovllm.course.oracle.play import Play
from nanovllm.course.oracle.report import Violation
from nanovllm.course.oracle.trace import Trace
from nanovllm.scheduler import Schedule, ScheduledSlice, mark_in_flight, schedule_ahead, slice_ahead


@dataclass(frozen=True, slots=True)
class Ahead:
    """The three functions that look ahead; each may be the one under test."""

    schedule: Callable[[Any, list[Any]], list[Any] | None] = schedule_ahead
    slice: Callable[[Any], ScheduledSlice] = slice_ahead
    mark: Callable[[list[Any]], None] = mark_in_flight


@dataclass(slots=True)
class _Flight:
    """A launched step; `tokens` are on the fake device until the step is booked."""

    schedule: Schedule
    slices: list[ScheduledSlice]
    tokens: list[int | None]


class PlayAhead(Play):
    """One trace being played by the overlapped loop.

    A failing step is a launch that breaks half-way, or, when nothing is launched, tokens that never arrive; either way
    the step in flight is undone as well. A request cancelled in flight is cancelled with two steps under way.
    """

    def __init__(self, *args: Any, ahead: Ahead) -> None:
        super().__init__(*args)
        self.ahead = ahead
        self.flight: _Flight | None = None

    def _step_bound(self) -> int:
        return self.trace.step_bound() + len(self.trace.requests)  # each may end with a step too many under way

    def _step(self) -> None:
        if self.flight is None:
            if self.scheduler.waiting:
                super()._step()
                return
            before, schedule, slices = self._schedule()
            if self.step in self.trace.failing_steps:
                self._fail(before, schedule, slices)
                return
            self.phase = "the forward pass"
            self.flight = _Flight(schedule, slices, self.cache.run(slices))
        flight = self.flight
        before = Before.of(self.scheduler, self.live.values())
        following = self._schedule_ahead(before, flight)
        if self.step in self.trace.failing_steps:
            self.flight = None
            self.cache.runner.corrupt(flight.slices if following is None else following.slices)
            self._undo(before, flight.schedule)
            return
        if following is not None:
            self.phase = "the forward pass ahead"
            following.tokens = self.cache.run(following.slices)
        self._cancel(in_flight=True)
        self.result.num_late += sum(s.seq_id not in self.live for s in flight.slices)
        self._book(flight.schedule, flight.slices, flight.tokens)
        if following is not None:
            self._mark(following.schedule.seqs)
        self.flight = following
        check_between_steps(self.scheduler, [] if following is None else ids(following.schedule.seqs))

    def _schedule_ahead(self, before: Before, flight: _Flight) -> _Flight | None:
        """The step after `flight`, scheduled while its tokens are unknown, and fed by the runner."""
        self.phase = "schedule_ahead()"
        seqs = self.ahead.schedule(self.scheduler, list(flight.schedule.seqs))
        check_ahead(before, flight.schedule.seqs, seqs, self.live, self.trace)
        check_state(self.scheduler, self.live, self.trace)
        if seqs is None:
            return None
        self.history.append(f"step {self.step}: the next step of requests {ids(seqs)} is launched ahead")
        self.phase = "slice_ahead()"
        sampled = {s.seq_id: token for s, token in zip(flight.slices, flight.tokens, strict=True)}
        slices = [self._fed(self._copied(self.ahead.slice(seq)), sampled) for seq in seqs]
        self.cache.begin_step(before, slices, num_ahead=1)
        self._note_batch(False, slices)
        self.result.num_ahead += 1
        return _Flight(Schedule(seqs, False), slices, [])

    def _mark(self, seqs: list[Any]) -> None:
        """The step launched ahead is the next to be booked; a request that has ended meanwhile has no token in it."""
        self.phase = "mark_in_flight()"
        self.ahead.mark(seqs)
        for seq in seqs:
            if seq.is_finished and seq.num_scheduled_tokens:
                expected = f"request {seq.seq_id} has ended: 0 of its tokens count in the step launched ahead"
                raise Violation("counts", expected, f"{seq.num_scheduled_tokens} do")

    @staticmethod
    def _fed(piece: ScheduledSlice, sampled: dict[int, int | None]) -> ScheduledSlice:
        """The slice with its placeholder replaced, on the device, by what the step in flight sampled."""
        token_id = sampled[piece.seq_id]
        if len(piece.token_ids) != 1 or token_id is None:
            raise Violation("slice", f"request {piece.seq_id} feeds in one token", f"its slice has {piece.token_ids}")
        return replace(piece, token_ids=[token_id])

    def _undo(self, before: Before, schedule: Schedule) -> None:
        self._cancel(in_flight=True)
        self.phase = "rollback()"
        self.scheduler.rollback(schedule)
        self.history.append(f"step {self.step}: it failed with a step in flight, which was rolled back")
        check_state(self.scheduler, self.live, self.trace)
        check_rolled_back(self.scheduler, before, schedule)
        check_between_steps(self.scheduler)

    def _check_end(self) -> None:
        if self.flight is not None:  # of requests that had all ended: undoing it must change nothing
            self.scheduler.rollback(self.flight.schedule)
        super()._check_end()


def check_ahead(before: Before, in_flight: list[Any], seqs: list[Any] | None, live: dict[int, Any], t: Trace) -> None:
    """A step is scheduled ahead exactly when the plain schedule would have no choice, and blocks are taken for it only.

    in_flight: the requests of the step under way, whose newest tokens are unknown. seqs: what was scheduled ahead.
    """
    longest = {i: t.longest(t.requests[i]) for i in live}
    going_on = [s for s in in_flight if s.seq_id in live and s.num_tokens < longest[s.seq_id]]
    needed = {s.seq_id: max(-(-(s.num_tokens + 1) // t.block_size), len(before.tables[s.seq_id])) for s in going_on}
    num_new = sum(count - len(before.tables[i]) for i, count in needed.items())
    why_not = f"requests {ids(before.waiting)} wait" if before.waiting else "no request goes on for certain"
    if going_on and not before.waiting:
        why_not = f"{num_new} blocks are needed and {before.num_free} are free" if num_new > before.num_free else ""
    if why_not:
        needed = {}
        if seqs is not None:
            raise Violation("ahead", f"nothing is scheduled ahead: {why_not}", f"requests {ids(seqs)} are")
    elif seqs is None or ids(seqs) != ids(going_on):
        actual = "nothing is" if seqs is None else f"requests {ids(seqs)} are"
        raise Violation("ahead", f"requests {ids(going_on)} are scheduled ahead, whatever they sample", actual)
    for index, seq in live.items():
        old, table = before.tables[index], seq.block_table
        count = needed.get(index, len(old))
        if len(table) != count or table[: len(old)] != old:
            raise Violation("ahead", f"request {index} has {count} blocks, the first {old}", f"block table {table}")
