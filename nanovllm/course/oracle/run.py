"""The ways in: play a trace against an implementation, or search random traces for one that it fails."""

from collections.abc import Callable, Iterable
from typing import Any

from nanovllm.course.oracle.play import Play, TraceResult
from nanovllm.course.oracle.play_ahead import Ahead, PlayAhead
from nanovllm.course.oracle.report import TraceFailure, Violation
from nanovllm.course.oracle.trace import Trace, random_trace
from nanovllm.scheduler import BlockManager, Scheduler, Sequence
from nanovllm.scheduler.block_manager import HashFunction, chained_hash

MakeScheduler = Callable[[Trace], Any]
MakeSequence = Callable[..., Any]


def colliding_hash(num_values: int, base: HashFunction = chained_hash) -> HashFunction:
    """A hash function of blocks that takes only `num_values` values."""
    return lambda previous, token_ids: base(previous, token_ids) % num_values


def scheduler_factory(
    scheduler: Callable[..., Any] = Scheduler,
    block_manager: Callable[..., Any] = BlockManager,
    hash_function: HashFunction = chained_hash,
) -> MakeScheduler:
    """A `make_scheduler` for these two classes; either may be the one under test."""

    def make(trace: Trace) -> Any:
        chosen = hash_function if trace.hash_range is None else colliding_hash(trace.hash_range, hash_function)
        manager = block_manager(trace.num_blocks, trace.block_size, chosen)
        return scheduler(
            manager,
            max_num_seqs=trace.max_num_seqs,
            max_num_batched_tokens=trace.max_num_batched_tokens,
            max_model_len=trace.max_model_len,
            eos_token_ids=frozenset(trace.eos_token_ids),
        )

    return make


def run_trace(
    trace: Trace,
    make_scheduler: MakeScheduler | None = None,
    make_sequence: MakeSequence = Sequence,
    ahead: Ahead | None = None,
) -> TraceResult:
    """Play `trace` and return what it came to. Raises TraceFailure when a rule is broken or the code under test raises.

    make_scheduler: builds the scheduler (with its block manager) for a trace; the engine's own when left out.
    make_sequence: called as the `Sequence` class is.
    ahead: with it decode steps are launched ahead, as the overlapped loop does; `Ahead()` holds the engine's functions.
    """
    play = Play(trace, make_scheduler or scheduler_factory(), make_sequence)
    if ahead is not None:
        play = PlayAhead(trace, make_scheduler or scheduler_factory(), make_sequence, ahead=ahead)
    try:
        play.run()
    except Violation as violation:
        raise play.failure(violation) from None
    except Exception as error:
        crash = Violation("crash", "no exception", f"{type(error).__name__}: {error}")
        raise play.failure(crash) from error
    return play.result


def find_failure(
    seeds: Iterable[int],
    make_scheduler: MakeScheduler | None = None,
    make_sequence: MakeSequence = Sequence,
    ahead: Ahead | None = None,
) -> TraceFailure | None:
    """The failure of the first seed whose random trace fails, or None if all pass."""
    for seed in seeds:
        try:
            run_trace(random_trace(seed), make_scheduler, make_sequence, ahead)
        except TraceFailure as failure:
            return failure
    return None
