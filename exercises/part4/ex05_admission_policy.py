# ruff: noqa: F401 (imports that you may need)
"""4.5 An admission policy that bounds starvation: running requests get their next token however many others arrive.

The plain scheduler computes prompts whenever one waits and decodes otherwise. Under a permanent stream of arrivals it
never decodes, and a running request waits as long as the stream lasts. A policy chooses in each step who may run.

The bound: with max_prefill_steps = m, at most m prefill steps lie between two decode steps while requests run; so a
running request gets its next token within m + 1 steps. But no fewer prefill steps than that either: holding arrivals
back for longer than needed costs their time to first token, and while nothing runs nobody starves.

By hand, m = 2, request A runs, and somebody arrives before every step:

    step   1        2        3         4        5        6         ...
           prefill  prefill  decode    prefill  prefill  decode

A trap. A long prompt is computed in chunks, and between two of them it stands at the head of the queue and holds
blocks for its whole length. If a decode step then ran out of blocks it would preempt a running request, which goes to
the head of the queue, *in front of* the half-computed prompt, and waits there for blocks that the prompt behind it
holds. Neither can go on. So the half-computed prompt must give up its blocks before a decode step that may need them.
"""

from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import Decision, DecisionKind, Schedule, Scheduler
from nanovllm.serve.policy import BoundedPrefill


def next_batch(policy: BoundedPrefill, scheduler: Scheduler) -> Schedule:
    """The batch of the next step.

    policy.max_prefill_steps: m. policy.prefill_steps: a counter of yours, 0 at first. scheduler.waiting and
    scheduler.running: deques of requests, as they are before this step. Two ways to get a batch:

      policy._plain(scheduler, others_run): prefill if it can, else decode. others_run: are requests running?
      policy._decode(scheduler): hold waiting requests back for one step and decode; needs some of each, waiting and
      running. It calls give_up_half_computed (below).

    Both return a Schedule: schedule.is_prefill says which kind of step it became. Count the prefill steps that were
    taken while others ran; a decode step starts the count anew.
    """
    raise ExerciseNotDone("4.5 admission_policy", "play the six steps above on paper, with the counter beside")


def give_up_half_computed(scheduler: Scheduler) -> Decision | None:
    """Before a decode step that holds others back: free the blocks of a half-computed prompt if the step may need them.

    The head of scheduler.waiting is half-computed when it holds blocks (head.block_table). A running request needs one
    more block when seq.num_tokens > len(seq.block_table) * seq.block_size. manager = scheduler.block_manager has
    num_free_blocks and deallocate(seq), after which the prompt begins anew (what it published stays in the prefix
    cache, while nobody recycles it).

    If all running requests together need more blocks than are free: deallocate, and return
    Decision(DecisionKind.DEFER, head.seq_id, {"why": "..."}) with a sentence for the learner who watches. Otherwise
    change nothing and return None.
    """
    raise ExerciseNotDone("4.5 admission_policy", "two numbers: blocks that the step may need, blocks free")
