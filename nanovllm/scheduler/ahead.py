"""The next decode step, scheduled while the last one still runs: possible because its tokens need not be known.

A decode step only needs to know that each request gets one more token, not which. A request that reaches its length
limit with the token in flight is known to end and left out. One that turns out to have sampled an end-of-sequence token
has run one step too many; that token is dropped when it arrives (`Scheduler.postprocess` skips finished sequences).
"""

from nanovllm.scheduler.scheduler import Scheduler
from nanovllm.scheduler.sequence import ScheduledSlice, Sequence


def schedule_ahead(scheduler: Scheduler, in_flight: list[Sequence]) -> list[Sequence] | None:
    """The decode batch after the one in flight, its blocks reserved; None when the plain schedule must decide.

    That is the case when a request waits (it may be admitted), when blocks run out (one must be preempted), or when
    nothing goes on. Then nothing has changed.
    """
    if scheduler.waiting:
        return None
    manager = scheduler.block_manager
    going_on = [seq for seq in in_flight if not seq.is_finished and not _ends_with_next_token(scheduler, seq)]
    growing = [seq for seq in going_on if seq.num_tokens + 1 > len(seq.block_table) * manager.block_size]
    if not going_on or len(growing) > manager.num_free_blocks:
        return None
    for seq in growing:
        manager.append(seq, num_ahead=1)
    scheduler.decisions = []
    return going_on


def _ends_with_next_token(scheduler: Scheduler, seq: Sequence) -> bool:
    enough = seq.num_completion_tokens + 1 >= seq.sampling_params.max_tokens
    return enough or seq.num_tokens + 1 >= scheduler.max_model_len


def slice_ahead(seq: Sequence) -> ScheduledSlice:
    """The slice of a step whose input token is still being sampled: a placeholder at the right position."""
    return ScheduledSlice(seq.seq_id, [0], seq.num_tokens, seq.num_tokens + 1, seq.block_table)


def mark_in_flight(seqs: list[Sequence]) -> None:
    """The step before was booked, which cleared its counts: these requests now have one token in the step after it.

    Those that ended with the step before, or were cancelled meanwhile, have none.
    """
    for seq in seqs:
        if not seq.is_finished:
            seq.num_scheduled_tokens = 1
