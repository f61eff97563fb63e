"""From a failing trace to the smallest one that still fails: drop and shorten for as long as the failure stays."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from nanovllm.course.oracle.play_ahead import Ahead
from nanovllm.course.oracle.report import TraceFailure
from nanovllm.course.oracle.run import MakeScheduler, MakeSequence, run_trace
from nanovllm.course.oracle.trace import Request, Trace
from nanovllm.scheduler import Sequence


def size(trace: Trace) -> tuple[int, ...]:
    """What "smaller" means, most important first; shrinking only ever goes down in it."""
    requests = trace.requests
    return (
        len(requests),
        sum(len(r.prompt) + r.max_tokens for r in requests),
        len(trace.failing_steps) + len(trace.cache_resets) + sum(r.cancel_at is not None for r in requests),
        (trace.hash_range is not None) + bool(trace.eos_token_ids) + sum(bool(r.stop_token_ids) for r in requests),
        trace.num_blocks,
        trace.block_size,
        trace.max_num_seqs,
        abs(64 - trace.max_num_batched_tokens),  # no chunks is simpler than chunks
        abs(64 - trace.max_model_len),
        sum(r.arrival + max(0, r.cancel_at or 0) + r.cancel_in_flight + r.ignore_eos for r in requests),
        sum(trace.failing_steps) + sum(trace.cache_resets),
        trace.vocab_size,
        sum(map(sum, (r.prompt for r in requests))),
    )


def shrink(
    trace: Trace,
    make_scheduler: MakeScheduler | None = None,
    make_sequence: MakeSequence = Sequence,
    max_runs: int = 3000,
    ahead: Ahead | None = None,
) -> TraceFailure:
    """The failure of the smallest failing trace found from `trace` within `max_runs` plays.

    Raises ValueError if `trace` does not fail. Any failure counts, not only one of the first kind.
    """
    failure = _failure(trace, make_scheduler, make_sequence, ahead)
    if failure is None:
        raise ValueError("this trace does not fail, so there is nothing to shrink")
    runs, shrunk = 1, True
    while shrunk:
        shrunk = False
        for candidate in _smaller(failure.trace):
            if runs >= max_runs:
                return failure
            if size(candidate) >= size(failure.trace):
                continue
            runs += 1
            found = _failure(candidate, make_scheduler, make_sequence, ahead)
            if found is not None:
                failure, shrunk = found, True
                break
    return failure


def _failure(
    trace: Trace, make_scheduler: MakeScheduler | None, make_sequence: MakeSequence, ahead: Ahead | None
) -> TraceFailure | None:
    try:
        run_trace(trace, make_scheduler, make_sequence, ahead)
    except TraceFailure as failure:
        return failure
    return None


def _smaller(trace: Trace) -> Iterator[Trace]:
    """Traces a little simpler than this one, the boldest first."""
    requests = trace.requests
    for i in range(len(requests)):
        if len(requests) > 1:
            yield replace(trace, requests=requests[:i] + requests[i + 1 :])
    yield from _sooner(trace)
    yield from _without_mishaps(trace)
    for i, request in enumerate(requests):
        for simpler in _smaller_requests(request):
            yield replace(trace, requests=(*requests[:i], simpler, *requests[i + 1 :]))
    yield from _same_cut_from_all(trace)
    yield from _simpler_limits(trace)
    for token_id in sorted({t for r in requests for t in r.prompt} - {0}):
        for other in (0, 1):
            yield _map_tokens(trace, lambda t, a=token_id, b=other: b if t == a else t)  # type: ignore[misc]


def _sooner(trace: Trace) -> Iterator[Trace]:
    """The whole trace earlier, when nothing arrives at first."""
    idle = min(r.arrival for r in trace.requests)
    if idle > 0:
        moved = (
            replace(r, arrival=r.arrival - idle, cancel_at=None if r.cancel_at is None else r.cancel_at - idle)
            for r in trace.requests
        )
        yield replace(
            trace,
            requests=tuple(moved),
            failing_steps=tuple(s - idle for s in trace.failing_steps if s >= idle),
            cache_resets=tuple(s - idle for s in trace.cache_resets if s >= idle),
        )


def _without_mishaps(trace: Trace) -> Iterator[Trace]:
    for step in trace.failing_steps:
        yield replace(trace, failing_steps=tuple(s for s in trace.failing_steps if s != step))
        if step > 0:
            yield replace(trace, failing_steps=tuple(s - (s == step) for s in trace.failing_steps))
    for step in trace.cache_resets:
        yield replace(trace, cache_resets=tuple(s for s in trace.cache_resets if s != step))
        if step > 0:
            yield replace(trace, cache_resets=tuple(s - (s == step) for s in trace.cache_resets))
    if trace.hash_range is not None:
        yield replace(trace, hash_range=None)
    if trace.eos_token_ids:
        yield replace(trace, eos_token_ids=())


def _smaller_requests(r: Request) -> Iterator[Request]:
    if r.cancel_at is not None:
        yield replace(r, cancel_at=None, cancel_in_flight=False)
        yield replace(r, cancel_in_flight=False)
        yield replace(r, cancel_at=r.cancel_at - 1)
    n = len(r.prompt)
    for keep in (n // 2, n - 1):
        if 0 < keep < n:
            yield replace(r, prompt=r.prompt[:keep])
            yield replace(r, prompt=r.prompt[n - keep :])
    for fewer in (1, r.max_tokens // 2, r.max_tokens - 1):
        if 0 < fewer < r.max_tokens:
            yield replace(r, max_tokens=fewer)
    for earlier in (0, r.arrival // 2, r.arrival - 1):
        if 0 <= earlier < r.arrival:
            yield replace(r, arrival=earlier)
    yield replace(r, stop_token_ids=(), ignore_eos=False)


def _same_cut_from_all(trace: Trace) -> Iterator[Trace]:
    """Cuts that keep a shared prefix shared, and all prompts aligned to the blocks."""
    longest = max(len(r.prompt) for r in trace.requests)
    for length in range(1, longest):
        yield replace(trace, requests=tuple(replace(r, prompt=r.prompt[:length]) for r in trace.requests))
    for budget in range(1, min(longest, trace.max_num_batched_tokens)):  # shorter prompts, still in chunks
        shorter = tuple(replace(r, prompt=r.prompt[: budget + 1]) for r in trace.requests)
        yield replace(trace, requests=shorter, max_num_batched_tokens=budget)
    for cut in (1, trace.block_size):
        if all(len(r.prompt) > cut for r in trace.requests):
            yield replace(trace, requests=tuple(replace(r, prompt=r.prompt[cut:]) for r in trace.requests))
    for smaller in range(1, trace.block_size):
        yield replace(trace, block_size=smaller)


def _simpler_limits(trace: Trace) -> Iterator[Trace]:
    for fewer in (trace.num_blocks // 2, trace.num_blocks - 1):
        if fewer > 0:
            yield replace(trace, num_blocks=fewer)
    for fewer in range(1, trace.max_num_seqs):
        yield replace(trace, max_num_seqs=fewer)
    yield replace(trace, max_num_batched_tokens=64)
    yield replace(trace, max_num_batched_tokens=trace.max_num_batched_tokens + 1)
    yield replace(trace, max_model_len=64)
    for fewer in (2, 3):
        if max((t for r in trace.requests for t in (*r.prompt, *trace.eos_token_ids)), default=0) < fewer:
            yield replace(trace, vocab_size=fewer)


def _map_tokens(trace: Trace, change: Callable[[int], int]) -> Trace:
    return replace(trace, requests=tuple(replace(r, prompt=tuple(map(change, r.prompt))) for r in trace.requests))
