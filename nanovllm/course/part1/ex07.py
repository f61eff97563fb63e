"""1.7 Decode with preemption."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant

_MAKE = """\
def make(lengths, blocks):
    scheduler = Scheduler(BlockManager(blocks, 4), 8, 64, 64)
    for i, length in enumerate(lengths):
        scheduler.add(Sequence(i, [10 * i + j for j in range(length)], SamplingParams(max_tokens=8), block_size=4))
    batch = scheduler.schedule()
    scheduler.postprocess(batch.seqs, [99] * len(batch.seqs), True)
    return scheduler

def show(scheduler, seqs):
    return [[s.seq_id for s in seqs], [s.seq_id for s in scheduler.running], [s.seq_id for s in scheduler.waiting]]

"""
_PLAIN = (
    _MAKE
    + """\
scheduler = make([2, 4, 3], blocks=6)
scheduler.decisions = []
seqs = scheduler._schedule_decode()
result = [show(scheduler, seqs), [s.num_scheduled_tokens for s in seqs], [len(s.block_table) for s in seqs],
          [d.kind.value for d in scheduler.decisions]]"""
)
_VICTIM = (
    _MAKE
    + """\
scheduler = make([4, 2, 2], blocks=3)
scheduler.decisions = []
seqs = scheduler._schedule_decode()
result = [show(scheduler, seqs), [d.kind.value for d in scheduler.decisions]]"""
)
_CHAIN = (
    _MAKE
    + """\
scheduler = make([4, 4, 4], blocks=3)
scheduler.decisions = []
seqs = scheduler._schedule_decode()
result = [show(scheduler, seqs), [[d.kind.value, d.seq_id] for d in scheduler.decisions]]"""
)
_PREEMPT = (
    _MAKE
    + """\
scheduler = make([3, 2], blocks=4)
scheduler.add(Sequence(7, [1, 2], SamplingParams(max_tokens=8), block_size=4))
victim = scheduler.running.pop()
scheduler._preempt(victim, by=scheduler.running[0])
result = [show(scheduler, []), victim.status.value, victim.token_ids, victim.block_table, victim.num_cached_tokens,
          victim.num_preemptions, scheduler.block_manager.num_free_blocks]"""
)

EXERCISE = Exercise(
    number="1.7",
    title="Decode with preemption",
    file="part1/ex07_decode_preemption.py",
    pieces=(("schedule_decode", seams.SCHEDULE_DECODE), ("preempt", seams.PREEMPT)),
    hints=(
        "First without preemption: every running request appends and is scheduled. Then: what if can_append says no?",
        "Take requests from the left. While one cannot append, take a victim from the right of those "
        "not yet scheduled; "
        "if there is none, the request itself gives way. What was scheduled in this step is never a victim.",
        "while running: seq = popleft(); while not can_append(seq): victim = running.pop() if running "
        "else seq; preempt; "
        "if victim is seq: break; else: append, 1 token, scheduled. preempt: note, WAITING, count, deallocate, "
        "waiting.appendleft.",
    ),
    groups=(
        Group(
            "one token each, oldest first",
            1,
            "First three lists: who is scheduled, who is in `running` afterwards, who in `waiting`. In which order? "
            "Who needed a block?",
            (Example(_PLAIN, [[[0, 1, 2], [0, 1, 2], []], [1, 1, 1], [1, 2, 1], ["decode"]]),),
        ),
        Group(
            "who gives way",
            1,
            "First three lists: who is scheduled, who runs afterwards, who waits. The youngest first, only as many as "
            "needed; then in the queue they stand oldest first, with "
            "all they know.",
            (
                Example(_VICTIM, [[[0, 1], [0, 1], [2]], ["preempt", "decode"]]),
                Example(_CHAIN, [[[0], [0], [1, 2]], [["preempt", 2], ["preempt", 1], ["decode", None]]]),
                Example(_PREEMPT, [[[], [0], [1, 7]], "waiting", [10, 11, 99], [], 0, 1, 3]),
            ),
        ),
        Group(
            "random traces in tight memory", 2, "Look at the queue before and after the step that failed.", traces=300
        ),
    ),
    bugs=(
        Variant("preempts the oldest", "schedule_decode", (("pending.pop()", "pending.popleft()"),)),
        Variant(
            "preempts only the request that needs the block",
            "schedule_decode",
            (("pending.pop() if pending else seq", "seq"),),
        ),
        Variant(
            "preempts one after another although one would do",
            "schedule_decode",
            (
                (
                    "            if victim is seq:",
                    "            while pending:\n                self._preempt(pending.pop(), by=seq)\n"
                    "            if victim is seq:",
                ),
            ),
        ),
        Variant("runs the batch newest first", "schedule_decode", (("return scheduled", "return scheduled[::-1]"),)),
        Variant("reserves no block for the token", "schedule_decode", (("manager.append(seq)", "pass"),)),
        Variant("does not schedule a token", "schedule_decode", (("seq.num_scheduled_tokens = 1", "pass"),)),
        Variant(
            "leaves the running deque empty",
            "schedule_decode",
            (("self.running = deque(scheduled)", "self.running = deque()"),),
        ),
        Variant("says nothing of the decode", "schedule_decode", (("if scheduled:", "if False:"),)),
        Variant("sends the victim to the end of the queue", "preempt", (("waiting.appendleft(", "waiting.append("),)),
        Variant("lets the victim keep its blocks", "preempt", (("self.block_manager.deallocate(seq)", "pass"),)),
        Variant(
            "loses the token that was sampled last",
            "preempt",
            (
                (
                    "seq.num_preemptions += 1",
                    "seq.num_preemptions += 1\n    seq.num_tokens -= 1\n    seq.token_ids.pop()",
                ),
            ),
        ),
        Variant(
            "starts the victim's answer anew",
            "preempt",
            (
                (
                    "seq.num_preemptions += 1",
                    "seq.num_preemptions += 1\n    seq.num_tokens = seq.num_prompt_tokens\n"
                    "    del seq.token_ids[seq.num_tokens :]",
                ),
            ),
        ),
        Variant("leaves the victim's status at running", "preempt", (("seq.status = SequenceStatus.WAITING", "pass"),)),
        Variant(
            "does not note the preemption", "preempt", (("self._note(DecisionKind.PREEMPT, seq, **facts)", "pass"),)
        ),
        Variant("does not count the preemption", "preempt", (("seq.num_preemptions += 1", "pass"),)),
    ),
    harmless=(
        Variant(
            "works on a copy of the deque",
            "schedule_decode",
            (("pending = self.running", "pending = deque(self.running)"),),
        ),
        Variant(
            "chooses the victim by position",
            "schedule_decode",
            (
                (
                    "victim = pending.pop() if pending else seq",
                    "victim = pending[-1] if pending else seq\n            if pending:\n"
                    "                del pending[len(pending) - 1]",
                ),
            ),
        ),
        Variant("puts the victim in by position", "preempt", (("waiting.appendleft(seq)", "waiting.insert(0, seq)"),)),
    ),
)
