# ruff: noqa: F401 (imports that you may need)
"""1.6 Prefill admission with budgets and chunking: which waiting requests run in this step.

A step computes prompts first. Waiting requests are taken in order until one of these ends it:

* nobody waits, or the token budget of the step (scheduler.max_num_batched_tokens) is used up;
* scheduler.max_num_seqs requests run already;
* the head of the queue does not get its blocks: nobody overtakes it.

Example: budget 8, block_size 4, plenty of blocks; waiting are A with 5 tokens, B with 6 and C with 2. A gets 5 tokens
and runs. B gets the 3 that are left of the budget, a chunk: it stays at the head of the queue, keeps its blocks, and
goes on in the next step with the 3 tokens that it lacks. C follows in that step too.
"""

from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import DecisionKind, Scheduler, Sequence, SequenceStatus


def schedule_prefill(scheduler: Scheduler) -> list[Sequence]:
    """Take requests from scheduler.waiting (a deque) for this step and return them in order; the last may be a chunk.

    For each one: allocate blocks unless it holds some (then its prefill is under way); set seq.num_scheduled_tokens;
    when that is all that is left of it, move it from `waiting` to the end of `running` and set seq.status to RUNNING.
    What is left is seq.num_tokens - seq.num_cached_tokens, and allocation sets num_cached_tokens to what the prefix
    cache holds. manager = scheduler.block_manager has plan(seq) with `missing`, and allocate(seq, plan).

    Every decision is noted with the numbers behind it:
      scheduler._note(kind, seq, tokens=..., needed=..., hit=seq.num_prefix_tokens, blocks=len(seq.block_table)), where
      kind is DecisionKind.ADMIT, or CONTINUE for a prefill under way; tokens of the `needed` ones are scheduled;
      scheduler._note(DecisionKind.DEFER, seq, why="...") when max_num_seqs stops the head of the queue, and
      scheduler._note_lack_of_blocks(seq, plan) when blocks do.
    """
    raise ExerciseNotDone("1.6 prefill_admission", "start with one request that fits; then add limits")
