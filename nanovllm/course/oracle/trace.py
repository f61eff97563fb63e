"""A scenario for the scheduler as plain data, and a generator of random ones that are likely to hurt."""

import random
from dataclasses import dataclass, field, replace

from nanovllm.course.oracle.reference import reference


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace. Its id is its index in `Trace.requests`.

    arrival: the step before which it is added.
    cancel_at: the step at which it is cancelled, or None; `cancel_in_flight` means while that step runs (after it was
    scheduled, before it is booked) instead of before it.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 1
    arrival: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    cancel_at: int | None = None
    cancel_in_flight: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """Limits, requests and mishaps; everything that happens follows from it.

    block_size in tokens, num_blocks in blocks, the three limits as in the scheduler.
    failing_steps: steps whose forward pass fails half-way, so that the schedule is rolled back.
    cache_resets: steps before which the prefix cache is emptied.
    hash_range: None for the real hash of a block, n for one that takes only n values and so collides all the time.
    """

    block_size: int
    num_blocks: int
    requests: tuple[Request, ...]
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 64
    max_model_len: int = 64
    vocab_size: int = 50
    eos_token_ids: tuple[int, ...] = ()
    failing_steps: tuple[int, ...] = ()
    cache_resets: tuple[int, ...] = ()
    hash_range: int | None = None

    def longest(self, request: Request) -> int:
        """Tokens of `request` that ever need a slot: the last sampled token is never fed in."""
        return min(len(request.prompt) + request.max_tokens, self.max_model_len) - 1

    def blocks_needed(self, request: Request) -> int:
        """Blocks that `request` needs at most."""
        return -(-self.longest(request) // self.block_size)

    def fits(self, request: Request) -> bool:
        """False if it could never finish, even alone; then it must be refused when it is added."""
        return len(request.prompt) < self.max_model_len and self.blocks_needed(request) <= self.num_blocks

    def step_bound(self) -> int:
        """Steps that a scheduler which never loses progress takes at most.

        Each sampled token costs one decode step or, after a preemption, one prefill in chunks; each failed step costs
        at most one more prefill.
        """
        lengths = [self.longest(r) + 1 for r in self.requests]
        chunks = -(-max(lengths, default=1) // self.max_num_batched_tokens)
        tokens = sum(r.max_tokens for r in self.requests)
        return (tokens + len(self.failing_steps) + 1) * (chunks + 1)


@dataclass(slots=True)
class _Maker:
    """Draws the parts of one random trace."""

    rng: random.Random
    block_size: int
    vocab_size: int
    crowded: bool  # many short prompts with long answers, all at once: they preempt each other
    prefixes: list[tuple[int, ...]] = field(default_factory=list)

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(self.vocab_size) for _ in range(count))

    def prompt(self) -> tuple[int, ...]:
        """A prompt of 1 .. 5 blocks or so; half of them share a prefix, some are exactly k whole blocks."""
        rng, bs = self.rng, self.block_size
        kind = rng.random()
        if kind < 0.2:
            return self.tokens(rng.randint(1, 3 * bs + 1))
        prefix = rng.choice(self.prefixes)
        if self.crowded:
            return prefix[: rng.randint(1, bs)]
        if kind < 0.4:  # whole blocks only: fully cached the second time
            return prefix[: max(1, len(prefix) // bs) * bs]
        cut = rng.randint(0, len(prefix) // bs) * bs if kind < 0.7 else rng.randint(0, len(prefix))
        return prefix[:cut] + self.tokens(rng.randint(0 if cut else 1, bs + 1))

    def request(self, arrival: int) -> Request:
        rng = self.rng
        cancel_at = arrival + rng.randint(-1, 12) if rng.random() < 0.15 else None
        return Request(
            prompt=self.prompt(),
            max_tokens=rng.randint(1, 4 * self.block_size if self.crowded else rng.choice((2, 6, 4 * self.block_size))),
            arrival=arrival,
            ignore_eos=rng.random() < 0.4,
            stop_token_ids=self.tokens(1) if rng.random() < 0.1 else (),
            cancel_at=cancel_at,
            cancel_in_flight=cancel_at is not None and rng.random() < 0.5,
        )


def random_trace(seed: int, max_requests: int = 7) -> Trace:
    """The random trace of that seed: tight memory, shared prefixes, chunks, follow-ups, cancellations, failures.

    The same seed always gives the same trace.
    """
    rng = random.Random(seed)
    maker = _Maker(rng, rng.randint(1, 5), rng.choice((2, 3, 5, 50)), crowded=rng.random() < 0.25)
    maker.prefixes = [maker.tokens(rng.randint(1, 4 * maker.block_size)) for _ in range(rng.choice((1, 1, 2)))]
    arrival, requests = 0, []
    for _ in range(rng.randint(1, max_requests)):
        requests.append(maker.request(arrival))
        arrival += 0 if maker.crowded else rng.choice((0, 0, 0, 0, 1, 2, 5))
    longest = max(len(r.prompt) + r.max_tokens for r in requests)
    max_model_len = longest + rng.choice((0, 1, 40)) if rng.random() < 0.8 else max(2, longest - rng.randint(1, 4))
    trace = Trace(
        block_size=maker.block_size,
        num_blocks=1,
        requests=tuple(requests),
        max_num_seqs=8 if maker.crowded else rng.choice((1, 2, 2, 3, 4, 5, 8)),
        max_num_batched_tokens=rng.choice((rng.randint(1, longest), rng.randint(1, 3 * longest), 100)),
        max_model_len=max_model_len,
        vocab_size=maker.vocab_size,
        eos_token_ids=maker.tokens(1) if rng.random() < 0.4 else (),
        failing_steps=tuple(sorted(rng.sample(range(10), rng.randint(1, 3)))) if rng.random() < 0.4 else (),
        cache_resets=tuple(sorted(rng.sample(range(10), rng.randint(1, 2)))) if rng.random() < 0.2 else (),
        hash_range=rng.choice((1, 3)) if rng.random() < 0.25 else None,
    )
    needed = [trace.blocks_needed(r) for r in requests]
    spare = rng.choice((0, 0, 0, 1, 1, 2, sum(needed))) if rng.random() < 0.9 else -1  # -1: one is too large
    trace = replace(trace, num_blocks=max(1, max(needed) + spare))
    return _with_follow_ups(trace, rng)


def _with_follow_ups(trace: Trace, rng: random.Random) -> Trace:
    """Let some later requests go on from an earlier one's prompt and answer, as the next turn of a chat does."""
    requests = list(trace.requests)
    for i in range(1, len(requests)):
        if rng.random() < 0.75:
            continue
        earlier = requests[rng.randrange(i)]
        if not trace.fits(earlier):
            continue
        talk = tuple(reference(trace, earlier).token_ids)
        follow_up = replace(requests[i], prompt=talk[: rng.randint(len(earlier.prompt), len(talk))])
        if trace.fits(follow_up):
            requests[i] = replace(follow_up, arrival=follow_up.arrival + rng.choice((0, 3, 9)))
    return replace(trace, requests=tuple(requests))
