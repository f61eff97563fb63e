"""A bound on decode starvation: at most N prefill steps between two decode steps while requests run.

The plain scheduler prefills whenever it can, so under a permanent stream of arrivals a running request may wait for its
next token as long as the stream lasts. This policy counts the prefill steps taken while requests run; after
`max_prefill_steps` of them the waiting requests are held back for one step and the running ones decode.

The bound: between two tokens of a running request lie at most `max_prefill_steps` prefill steps, so its next token
comes at the latest in step `max_prefill_steps + 1` after the last one (`gap_bound`). With `max_prefill_tokens` each of
those prefill steps computes that many tokens at most, so the work between two tokens is bounded by

    max_prefill_steps x max_prefill_tokens  prompt tokens  +  one decode step.

The bound is one of *running* requests. A request that is preempted for lack of KV blocks gives up its place; it waits
until blocks are free again, as in the plain scheduler.

Why nothing locks up. A long prompt is computed in chunks; between two of them it stands at the head of the queue and
holds blocks for its whole length. The plain scheduler never decodes in that state; this policy does. If the decode step
then preempted a running request, that one would queue up *in front of* the half-computed prompt: it waits for blocks
that the prompt behind it holds, and the prompt waits for its turn. So when a held-back step may run out of blocks, the
half-computed prompt gives up its blocks first (it is the youngest; what it published stays in the prefix cache while
nobody recycles it). Every state after that is one that the plain scheduler reaches too. The oldest running request gets
a token in every decode step, so running requests end, and the head of the queue is not overtaken by new arrivals.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nanovllm.checks import check_int
from nanovllm.errors import ConfigError
from nanovllm.scheduler import Decision, DecisionKind, Schedule, Scheduler, Sequence, StepInFlight, schedule_ahead


@dataclass(slots=True)
class BoundedPrefill:
    """Set it as an engine's `policy`. One object serves one engine.

    max_prefill_steps: prefill steps between two decode steps while requests run, at least 1.
    max_prefill_tokens: tokens of a prefill step while requests run; None leaves max_num_batched_tokens as it is.
    held_back: how often waiting requests were held back, and how often a half-computed prompt gave up its blocks.

    Raises ConfigError for a value out of range.
    """

    max_prefill_steps: int = 1
    max_prefill_tokens: int | None = None
    held_back: Counter[str] = field(default_factory=Counter)
    prefill_steps: int = 0  # since the last decode step, counted while requests run

    def __post_init__(self) -> None:
        self.max_prefill_steps = check_int("max_prefill_steps", self.max_prefill_steps, 1, error=ConfigError)
        if self.max_prefill_tokens is not None:
            self.max_prefill_tokens = check_int("max_prefill_tokens", self.max_prefill_tokens, 1, error=ConfigError)

    @property
    def gap_bound(self) -> int:
        """Steps from one token of a running request to its next one, at most."""
        return self.max_prefill_steps + 1

    def __call__(self, scheduler: Scheduler) -> Schedule:
        """The next batch of `scheduler`."""
        others_run = bool(scheduler.running)
        if others_run and scheduler.waiting and self.prefill_steps >= self.max_prefill_steps:
            schedule = self._decode(scheduler)
        else:
            schedule = self._plain(scheduler, others_run)
        if not schedule.is_prefill:
            self.decoded()
        elif others_run:
            self.prefill_steps += 1
        return schedule

    def ahead(self, scheduler: Scheduler, step: StepInFlight) -> Schedule | None:
        """As `__call__`, for the batch after a step whose tokens nobody knows yet (`schedule_ahead`).

        None when they must be known first. A prompt that should give up its blocks is such a case: it may be in flight.
        """
        others_run = bool(scheduler.running)
        if others_run and scheduler.waiting and self.prefill_steps >= self.max_prefill_steps:
            schedule = schedule_ahead(scheduler, step, self._why())
            if schedule is not None:
                self.held_back["max_prefill_steps"] += 1
        else:
            with self._budget(scheduler, others_run):
                schedule = schedule_ahead(scheduler, step)
        if schedule is not None and not schedule.is_prefill:
            self.decoded()
        elif schedule is not None and others_run:
            self.prefill_steps += 1
        return schedule

    def decoded(self) -> None:
        """A decode step was scheduled: the count begins anew."""
        self.prefill_steps = 0

    def _plain(self, scheduler: Scheduler, others_run: bool) -> Schedule:
        """Prefill first, with the smaller budget while requests run."""
        with self._budget(scheduler, others_run):
            return scheduler.schedule()

    @contextmanager
    def _budget(self, scheduler: Scheduler, others_run: bool) -> Iterator[None]:
        """Inside the block a prefill has the smaller budget, if requests run and there is one."""
        budget = scheduler.max_num_batched_tokens
        if self.max_prefill_tokens is not None and others_run:
            scheduler.max_num_batched_tokens = min(budget, self.max_prefill_tokens)
        try:
            yield
        finally:
            scheduler.max_num_batched_tokens = budget

    def _why(self) -> str:
        """Why the waiting requests are held back."""
        steps = f"{self.prefill_steps} prefill step{'s' if self.prefill_steps > 1 else ''}"
        return (
            f"held back for one step, because {steps} ran since the last decode step and max_prefill_steps "
            f"is {self.max_prefill_steps}"
        )

    def _decode(self, scheduler: Scheduler) -> Schedule:
        """One decode step, with the reason noted as the head of the queue's."""
        gave_up = _give_up_half_computed(scheduler)
        schedule = scheduler.schedule(hold_back=self._why())
        self.held_back["max_prefill_steps"] += 1
        if gave_up is not None:
            self.held_back["half-computed prompt gave up its blocks"] += 1
            scheduler.decisions.insert(0, gave_up)
        return schedule


def _give_up_half_computed(scheduler: Scheduler) -> Decision | None:
    """Release the blocks of a half-computed prompt if the coming decode step may need them; the decision, or None."""
    head, manager = scheduler.waiting[0], scheduler.block_manager
    needed = sum(_needs_block(seq) for seq in scheduler.running)
    free = manager.num_free_blocks
    if not head.block_table or needed <= free:
        return None
    why = (
        f"running requests need {needed} blocks and {free} are free, so its half-computed prompt gives up "
        f"{len(head.block_table)} blocks ({head.num_cached_tokens} of {head.num_tokens} tokens were computed)"
    )
    manager.deallocate(head)
    return Decision(DecisionKind.DEFER, head.seq_id, {"why": why})


def _needs_block(seq: Sequence) -> bool:
    return seq.num_tokens > len(seq.block_table) * seq.block_size
