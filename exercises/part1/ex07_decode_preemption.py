# ruff: noqa: F401 (imports that you may need)
"""1.7 Decode with preemption: every running request gets one token, or the youngest make room.

A decode step runs all of scheduler.running (oldest admission first), one token each. A request at a block edge needs
a block. When none is free, the *youngest* running request gives way: it is preempted, which means that it loses its
blocks and goes back to the head of the waiting queue, to be computed again later. Example: running are A, B, C, each at
a block edge, no block is free, and each holds one block:

    A needs a block: C is preempted, A takes the block that C gave up
    B needs a block: no one younger is left, so B itself is preempted
    the step runs A alone; waiting is B, C: the older one first

A request that cannot go on even then is preempted itself; the blocks of one that runs alone always suffice.
"""

from collections import deque

from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import Decision, DecisionKind, Scheduler, Sequence, SequenceStatus


def schedule_decode(scheduler: Scheduler) -> list[Sequence]:
    """The running requests of this step, oldest first, each with seq.num_scheduled_tokens = 1 and room for its token.

    manager.can_append(seq) says whether the newest token gets a slot, manager.append(seq) makes room for it, and
    scheduler._preempt(victim, by=seq) is the function below. Afterwards scheduler.running (a deque) holds exactly the
    scheduled requests, in order. When there are any, one Decision(DecisionKind.DECODE, None, {"count": how many,
    "why": "a sentence"}) goes to the end of scheduler.decisions.
    """
    raise ExerciseNotDone("1.7 decode_preemption", "take the oldest with popleft(), a victim with pop()")


def preempt(scheduler: Scheduler, seq: Sequence, by: Sequence) -> None:
    """Release the blocks of `seq` and put it back at the head of scheduler.waiting.

    It keeps all its tokens, sampled ones too; its status is WAITING and seq.num_preemptions is one more. (The caller
    has taken it out of `running`.) Noted, before the blocks go, as
    scheduler._note(DecisionKind.PREEMPT, seq, by=by.seq_id, blocks=len(seq.block_table), tokens=seq.num_tokens).
    By hand: waiting [D], C preempted -> waiting [C, D], C's block_table [] and its num_cached_tokens 0.
    """
    raise ExerciseNotDone("1.7 decode_preemption", "note it, release the blocks, go to the head of the queue")
