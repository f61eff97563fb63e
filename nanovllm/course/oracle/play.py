"""One trace being played: requests come, are cancelled, run and fail as it says; each step is checked in full."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from nanovllm.course.oracle.cache_watch import CacheWatch
from nanovllm.course.oracle.invariants import (
    Before,
    check_between_steps,
    check_rolled_back,
    check_schedule,
    check_state,
)
from nanovllm.course.oracle.reference import reference
from nanovllm.course.oracle.report import TraceFailure, Violation
from nanovllm.course.oracle.trace import Trace
from nanovllm.errors import RequestError
from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import Schedule, ScheduledSlice


@dataclass(slots=True)
class TraceResult:
    """What a trace came to when every rule held.

    completions: request id -> sampled tokens, for requests that were accepted. finish_reasons: the same keys.
    batches: one entry a step: (is it a prefill, [(request id, start, tokens)]). refused: ids refused when added.
    """

    completions: dict[int, list[int]] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    batches: list[tuple[bool, list[tuple[int, int, int]]]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    num_hits: int = 0  # tokens found in the prefix cache
    num_ahead: int = 0  # steps launched before the tokens of the last one were read
    num_prefills_ahead: int = 0  # those of them that were prefills
    num_late: int = 0  # tokens that such steps sampled for a request which had ended


class Play:
    """One trace being played."""

    def __init__(self, trace: Trace, make_scheduler: Callable[[Trace], Any], make_sequence: Callable[..., Any]) -> None:
        self.trace = trace
        self.make_scheduler = make_scheduler
        self.make_sequence = make_sequence
        self.scheduler: Any = None
        self.cache = CacheWatch(trace)
        self.live: dict[int, Any] = {}
        self.known: dict[int, Any] = {}
        self.to_add = sorted(range(len(trace.requests)), key=lambda i: trace.requests[i].arrival)
        self.to_cancel = [i for i, r in enumerate(trace.requests) if r.cancel_at is not None]
        self.result = TraceResult()
        self.history: list[str] = []
        self.step = -1
        self.phase = "building the scheduler"

    def failure(self, violation: Violation) -> TraceFailure:
        """The violation with its place in the trace."""
        try:
            state = self.scheduler.snapshot()
            if self.phase == "schedule()" and violation.kind == "crash":
                self.history += [f"step {self.step}, before it raised: {d.reason}" for d in self.scheduler.decisions]
            rows = [self._row(seq) for seq in self.known.values()]
        except Exception:  # the code under test may have left anything behind
            state, rows = None, []
        return TraceFailure(self.trace, self.step, self.phase, violation, self.history, rows, state)

    def _row(self, seq: Any) -> str:
        """A request as it is, beside what it should come to."""
        expected = self.cache.expected[seq.seq_id].completion
        return (
            f"request {seq.seq_id} {seq.status.value}: completion {list(seq.completion_token_ids)} of expected "
            f"{expected}, {seq.num_cached_tokens} of {seq.num_tokens} tokens cached in blocks {list(seq.block_table)}"
        )

    # --- the course of a trace --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the trace to its end. Raises Violation, or whatever the code under test raises."""
        self.scheduler = self.make_scheduler(self.trace)
        bound, num_steps, self.step = self._step_bound(), 0, 0
        while self.to_add or self.live:
            self._arrive()
            self._cancel(in_flight=False)
            if self.step in self.trace.cache_resets:
                self.scheduler.block_manager.reset_prefix_cache()
                self.cache.prefixes.reset()
            self.phase = "between steps"
            if bool(self.scheduler.is_finished()) != (not self.live):
                raise Violation("deques", f"is_finished() is {not self.live}", f"unfinished: {sorted(self.live)}")
            if self.live:
                num_steps += 1
                if num_steps > bound:
                    raise Violation("stall", f"all requests end within {bound} steps", f"{sorted(self.live)} did not")
                self._step()
            self.step += 1
        self._check_end()

    def _step_bound(self) -> int:
        return self.trace.step_bound()

    def _arrive(self) -> None:
        self.phase = "adding requests"
        while self.to_add and self.trace.requests[self.to_add[0]].arrival <= self.step:
            index = self.to_add.pop(0)
            request = self.trace.requests[index]
            params = SamplingParams(
                max_tokens=request.max_tokens, ignore_eos=request.ignore_eos, stop_token_ids=request.stop_token_ids
            )
            seq = self.make_sequence(index, list(request.prompt), params, block_size=self.trace.block_size)
            fits = self.trace.fits(request)
            try:
                self.scheduler.add(seq)
            except RequestError as error:
                if fits:
                    raise Violation("refusal", f"request {index} is accepted", f"refused: {error}") from None
                self.result.refused.append(index)
            else:
                if not fits:
                    expected = f"request {index} is refused: it can never finish in {self.trace.num_blocks} blocks"
                    raise Violation("refusal", expected, "it was accepted")
                self.live[index] = self.known[index] = seq
                self.cache.expected[index] = reference(self.trace, request)
        check_state(self.scheduler, self.live, self.trace)

    def _cancel(self, in_flight: bool) -> None:
        """Cancel what the trace cancels now; each twice, as the second must change nothing."""
        for index in list(self.to_cancel):
            request = self.trace.requests[index]
            if request.cancel_in_flight != in_flight or request.cancel_at is None or request.cancel_at > self.step:
                continue
            self.phase = f"cancelling request {index}"
            self.to_cancel.remove(index)
            was_live = self.live.pop(index, None) is not None
            answer = self.scheduler.abort(index)
            if bool(answer) != was_live:
                raise Violation("cancel", f"abort({index}) answers {was_live}", f"{answer}")
            if was_live:
                self._collect(self.known[index], "abort")
            check_state(self.scheduler, self.live, self.trace)
            if self.scheduler.abort(index):
                raise Violation("cancel", f"a second abort({index}) answers False", "it answered True")
            check_state(self.scheduler, self.live, self.trace)

    def _step(self) -> None:
        before, schedule, slices = self._schedule()
        if self.step in self.trace.failing_steps:
            self._fail(before, schedule, slices)
            return
        self.phase = "the forward pass"
        tokens = self.cache.run(slices)
        self._cancel(in_flight=True)
        self._book(schedule, slices, tokens)
        check_between_steps(self.scheduler)

    def _schedule(self) -> tuple[Before, Schedule, list[ScheduledSlice]]:
        """Ask for the next batch and check it: the state before, the schedule, what its step is to compute."""
        scheduler = self.scheduler
        before = Before.of(scheduler, self.live.values())
        self.phase = "schedule()"
        schedule = scheduler.schedule()
        self.history += [f"step {self.step}: {d.reason}" for d in scheduler.decisions]
        check_schedule(scheduler, before, schedule, self.trace)
        check_state(scheduler, self.live, self.trace)
        slices = [self._slice(seq) for seq in schedule.seqs]
        self.cache.begin_step(before, slices)
        self._note_batch(schedule.is_prefill, slices)
        return before, schedule, slices

    def _note_batch(self, is_prefill: bool, slices: list[ScheduledSlice]) -> None:
        self.result.batches.append((is_prefill, [(s.seq_id, s.start, len(s.token_ids)) for s in slices]))

    def _book(self, schedule: Schedule, slices: list[ScheduledSlice], tokens: list[int | None]) -> None:
        """Hand the sampled tokens over and compare what became of each request."""
        self.phase = "postprocess()"
        self.scheduler.postprocess(schedule.seqs, tokens, schedule.is_prefill)
        for piece in slices:
            self._check_booked(piece)
        check_state(self.scheduler, self.live, self.trace)

    def _fail(self, before: Before, schedule: Schedule, slices: list[ScheduledSlice]) -> None:
        """The forward pass breaks half-way; the schedule is undone and will be tried again."""
        self.cache.runner.corrupt(slices)
        self._cancel(in_flight=True)
        self.phase = "rollback()"
        self.scheduler.rollback(schedule)
        self.history.append(f"step {self.step}: the forward pass failed and was rolled back")
        check_state(self.scheduler, self.live, self.trace)
        check_rolled_back(self.scheduler, before, schedule)
        check_between_steps(self.scheduler)

    @classmethod
    def _slice(cls, seq: Any) -> ScheduledSlice:
        return cls._copied(seq.scheduled_slice())

    @staticmethod
    def _copied(piece: ScheduledSlice) -> ScheduledSlice:
        """A copy, as another process would get it: what the scheduler does to its lists later cannot reach it."""
        return replace(piece, token_ids=list(piece.token_ids), block_table=list(piece.block_table))

    def _check_booked(self, piece: ScheduledSlice) -> None:
        """The sequence has exactly the tokens of the reference, and has ended exactly when that one ends."""
        if piece.seq_id not in self.live:
            return
        seq, expected = self.live[piece.seq_id], self.cache.expected[piece.seq_id]
        count = piece.num_tokens + piece.needs_token
        self.cache.num_tokens[piece.seq_id] = count
        if list(seq.token_ids) != expected.token_ids[:count] or seq.num_tokens != count:
            wanted = f"request {piece.seq_id} has completion {expected.token_ids[expected.num_prompt_tokens : count]}"
            raise Violation("tokens", wanted, f"it has {list(seq.token_ids[expected.num_prompt_tokens :])}")
        self._note_completed(piece)
        ends = count == len(expected.token_ids)
        if ends != bool(seq.is_finished):
            wanted = f"request {piece.seq_id} {'ends' if ends else 'goes on'} after {count} tokens"
            raise Violation("end", wanted, f"its status is {seq.status.value}")
        if ends:
            del self.live[piece.seq_id]
            self._collect(seq, expected.finish_reason)
        elif seq.num_cached_tokens != piece.end:
            wanted = f"request {piece.seq_id} has {piece.end} cached tokens"
            raise Violation("counts", wanted, f"it has {seq.num_cached_tokens}")

    def _note_completed(self, piece: ScheduledSlice) -> None:
        self.cache.booked(piece)

    def _collect(self, seq: Any, reason: str) -> None:
        """Keep the answer of a request that has ended, whole or cancelled."""
        actual = seq.finish_reason.value if seq.finish_reason is not None else None
        if actual != reason:
            raise Violation("end", f"request {seq.seq_id} ends by {reason}", f"its finish reason is {actual}")
        self.result.completions[seq.seq_id] = list(seq.completion_token_ids)
        self.result.finish_reasons[seq.seq_id] = reason
        self.result.num_preemptions += seq.num_preemptions

    def _check_end(self) -> None:
        """Nothing is left behind, and no answer changed after its request had ended."""
        self.phase = "at the end"
        self.result.num_hits = self.cache.num_hits
        check_state(self.scheduler, self.live, self.trace)
        for index, completion in self.result.completions.items():
            wanted = self.cache.expected[index].completion[: len(completion)]
            if list(self.known[index].completion_token_ids) != completion or completion != wanted:
                actual = f"{self.known[index].completion_token_ids}"
                raise Violation("tokens", f"request {index} ended with {wanted}", actual)
