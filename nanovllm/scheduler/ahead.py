"""The next step, scheduled while the last one still runs: possible because its tokens need not be known.

A decode step only needs to know that each request gets one more token, not which; a prefill does not even need that. A
request that reaches its length limit with the token in flight is known to end and left out. One that turns out to have
sampled an end-of-sequence token has run one step too many; that token is dropped when it arrives
(`Scheduler.postprocess` skips finished sequences).
"""

from dataclasses import dataclass

from nanovllm.scheduler.decisions import DecisionKind
from nanovllm.scheduler.scheduler import Schedule, Scheduler
from nanovllm.scheduler.sequence import ScheduledSlice, Sequence


@dataclass(slots=True)
class StepInFlight:
    """A launched step whose tokens nobody knows yet.

    slices: what it computes of each request of the schedule, in the same order. recomputed_before: each one's
    num_recomputed_tokens before what the step computes was counted as cached; None while that is still to come.
    """

    schedule: Schedule
    slices: list[ScheduledSlice]
    recomputed_before: list[int] | None = None

    @property
    def sampled(self) -> list[Sequence]:
        """The requests that it samples a token of, in order: all but one with an unfinished prompt chunk."""
        if not self.schedule.is_prefill:
            return self.schedule.seqs
        return [seq for seq, s in zip(self.schedule.seqs, self.slices, strict=True) if s.needs_token]

    @property
    def num_tokens(self) -> int:
        """Tokens that it computes."""
        return sum(len(s.token_ids) for s in self.slices) if self.schedule.is_prefill else len(self.slices)

    def to_book(self, token_ids: list[int | None]) -> tuple[Schedule, list[int | None]]:
        """What `Scheduler.postprocess` is to be told once the tokens are there.

        That is the whole step, or only its tokens if the rest was counted: the counts of an unfinished chunk are those
        of the step after by then.
        """
        if self.recomputed_before is None:
            return self.schedule, token_ids
        return Schedule(self.sampled, True), [token for token in token_ids if token is not None]


def schedule_ahead(scheduler: Scheduler, step: StepInFlight, hold_back: str | None = None) -> Schedule | None:
    """The batch after the one in flight, its blocks reserved; None when that step's tokens must be known first.

    hold_back: as for `Scheduler.schedule`.

    Waiting requests that can run come first, as in the plain schedule, and need no token. Otherwise the running ones
    decode. The tokens must be known when blocks run out (one request must be preempted), when nothing goes on, or when
    a request waits for the place of one that ends with the step in flight. Then no block was taken.
    """
    scheduler.decisions = []
    if scheduler.waiting and hold_back is None:
        if step.schedule.is_prefill:
            _count_computed(scheduler, step)
        if seqs := scheduler._schedule_prefill():
            return Schedule(seqs, True)
        if any(_ends_with_next_token(scheduler, seq) for seq in step.sampled if not seq.is_finished):
            return None
    elif scheduler.waiting:
        scheduler._note(DecisionKind.DEFER, scheduler.waiting[0], why=hold_back)
    seqs = _decode_ahead(scheduler, step)
    return Schedule(seqs, False) if seqs else None


def _decode_ahead(scheduler: Scheduler, step: StepInFlight) -> list[Sequence]:
    """The running requests that go on for certain, each with a block for the token it feeds in; [] if that can't be."""
    manager, unread = scheduler.block_manager, _unread(step)
    going_on = [s for s in scheduler.running if s.seq_id not in unread or not _ends_with_next_token(scheduler, s)]
    size = manager.block_size
    growing = [s for s in going_on if s.num_tokens + (s.seq_id in unread) > len(s.block_table) * size]
    if len(growing) > manager.num_free_blocks:
        return []
    for seq in growing:
        manager.append(seq, num_ahead=int(seq.seq_id in unread))
    return going_on


def _unread(step: StepInFlight) -> set[int]:
    """Ids of the requests that have a token more than the host knows."""
    return {seq.seq_id for seq in step.sampled}


def _ends_with_next_token(scheduler: Scheduler, seq: Sequence) -> bool:
    enough = seq.num_completion_tokens + 1 >= seq.sampling_params.max_tokens
    return enough or seq.num_tokens + 1 >= scheduler.max_model_len


def _count_computed(scheduler: Scheduler, step: StepInFlight) -> None:
    """Count what a prefill computes as cached: the next one goes on after it, and may find its blocks.

    The device computes in order, so whoever finds such a block reads it after it was written. If the step fails after
    all, `undo` takes this back.
    """
    seqs = step.schedule.seqs
    step.recomputed_before = [seq.num_recomputed_tokens for seq in seqs]
    scheduler.postprocess(seqs, [None] * len(seqs), is_prefill=True)


def slices_ahead(schedule: Schedule, step: StepInFlight) -> list[ScheduledSlice]:
    """What the step scheduled after `step` computes; where its input token is being sampled, a placeholder."""
    if schedule.is_prefill:
        return [seq.scheduled_slice() for seq in schedule.seqs]
    if not step.schedule.is_prefill:
        return [_fed_slice(seq) for seq in schedule.seqs]
    unread = _unread(step)
    return [_fed_slice(seq) if seq.seq_id in unread else _known_slice(seq) for seq in schedule.seqs]


def _fed_slice(seq: Sequence) -> ScheduledSlice:
    return ScheduledSlice(seq.seq_id, [0], seq.num_tokens, seq.num_tokens + 1, seq.block_table)


def _known_slice(seq: Sequence) -> ScheduledSlice:
    return ScheduledSlice(seq.seq_id, [seq.last_token], seq.num_tokens - 1, seq.num_tokens, seq.block_table)


def mark_in_flight(schedule: Schedule) -> None:
    """The step before was booked, which cleared its counts: these requests now have one token in the step after it.

    Those that ended with the step before, or were cancelled meanwhile, have none. A prefill's counts are its own.
    """
    if not schedule.is_prefill:
        for seq in schedule.seqs:
            if not seq.is_finished:
                seq.num_scheduled_tokens = 1


def undo(scheduler: Scheduler, step: StepInFlight, following: Schedule | None = None) -> None:
    """Roll back a step in flight, and the one scheduled after it: either failed, and both will be tried again.

    If what the step was to compute had been counted, its blocks can be found although they may not have been written.
    Then the whole prefix cache is emptied; that costs time and no token.
    """
    if following is not None:
        scheduler.rollback(following)
    scheduler.rollback(step.schedule)
    if step.recomputed_before is not None:
        scheduler.block_manager.reset_prefix_cache()
        for seq, count in zip(step.schedule.seqs, step.recomputed_before, strict=True):
            seq.num_recomputed_tokens = count
