"""1.6 Prefill admission with budgets and chunking."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant

_MAKE = """\
def make(lengths, blocks=20, seqs=4, budget=64):
    scheduler = Scheduler(BlockManager(blocks, 4), seqs, budget, 64)
    for i, length in enumerate(lengths):
        scheduler.add(Sequence(i, [10 * i + j for j in range(length)], SamplingParams(max_tokens=2), block_size=4))
    return scheduler

def step(scheduler):
    seqs = scheduler._schedule_prefill()
    batch = [[s.seq_id, s.num_scheduled_tokens] for s in seqs]
    for s in seqs:  # what a forward pass and postprocess would do
        s.num_cached_tokens += s.num_scheduled_tokens
        s.num_scheduled_tokens = 0
    return [batch, [s.seq_id for s in scheduler.waiting], [s.seq_id for s in scheduler.running]]

"""
_ALL = (
    _MAKE
    + """\
scheduler = make([5, 6, 2])
result = [step(scheduler), [s.status.value for s in scheduler.running], [d.kind.value for d in scheduler.decisions]]"""
)
_SEQS = (
    _MAKE
    + """\
scheduler = make([3, 3, 3], seqs=2)
result = [step(scheduler), step(scheduler), [d.kind.value for d in scheduler.decisions]]"""
)
_BLOCKS = (
    _MAKE
    + """\
scheduler = make([9, 9, 2], blocks=4)
result = [step(scheduler), [d.kind.value for d in scheduler.decisions]]"""
)
_CHUNK = (
    _MAKE
    + """\
scheduler = make([5, 6, 2], budget=8)
result = [step(scheduler), step(scheduler), [d.kind.value for d in scheduler.decisions]]"""
)
_LONG = (
    _MAKE
    + """\
scheduler = make([9], budget=4)
result = [step(scheduler)[0] for _ in range(3)]"""
)

_LIMIT = "if len(self.running) >= self.max_num_seqs:"

EXERCISE = Exercise(
    number="1.6",
    title="Prefill admission with budgets and chunking",
    file="part1/ex06_prefill_admission.py",
    pieces=(("schedule_prefill", seams.SCHEDULE_PREFILL),),
    hints=(
        "One loop over the head of the queue. First admit everybody who fits; then add one reason to stop at a time.",
        "Order inside the loop: the limit on running requests, blocks (unless it holds some), then the size of its "
        "share: that is known only after the allocation. Leave the queue only if nothing of the request is left.",
        "while waiting and budget > 0: seq = waiting[0]; DEFER and break at max_num_seqs; plan, DEFER and break if "
        "missing, else allocate; needed = num_tokens - num_cached_tokens; scheduled = min(needed, budget); note; break "
        "if scheduled < needed; popleft, RUNNING, running.append.",
    ),
    groups=(
        Group(
            "admitting in order, within the limits",
            1,
            "Of each step: who computes how many tokens, who waits afterwards, who runs; last, the kinds of "
            "decisions. Who is counted against max_num_seqs? And when the head of the queue must wait, who may pass "
            "it?",
            (
                Example(_ALL, [[[[0, 5], [1, 6], [2, 2]], [], [0, 1, 2]], ["running"] * 3, ["admit"] * 3]),
                Example(
                    _SEQS, [[[[0, 3], [1, 3]], [2], [0, 1]], [[], [2], [0, 1]], ["admit", "admit", "defer", "defer"]]
                ),
                Example(_BLOCKS, [[[[0, 9]], [1, 2], [0]], ["admit", "defer"]]),
            ),
        ),
        Group(
            "chunks",
            1,
            "Of each step: who computes how many tokens, then who waits and who runs. A chunk uses up the budget. "
            "Where is its request in the next step, and what has it got left to compute?",
            (
                Example(
                    _CHUNK,
                    [
                        [[[0, 5], [1, 3]], [1, 2], [0]],
                        [[[1, 3], [2, 2]], [], [0, 1, 2]],
                        ["admit", "admit", "continue", "admit"],
                    ],
                ),
                Example(_LONG, [[[0, 4]], [[0, 4]], [[0, 1]]]),
            ),
        ),
        Group(
            "random arrivals, prefixes and tight memory",
            2,
            "Which limit did the step meet, and in what order?",
            traces=250,
        ),
    ),
    bugs=(
        Variant(
            "sizes the chunk before the prefix match",
            "schedule_prefill",
            (
                (
                    "        if seq.block_table:\n",
                    "        needed = seq.num_tokens - seq.num_cached_tokens\n        if seq.block_table:\n",
                ),
                ("        needed = seq.num_tokens - seq.num_cached_tokens\n        seq.num_sch", "        seq.num_sch"),
            ),
        ),
        Variant("lets a chunk ignore the budget", "schedule_prefill", (("min(needed, budget)", "needed"),)),
        Variant("never uses the budget up", "schedule_prefill", (("budget -= seq.num_scheduled_tokens", "pass"),)),
        Variant(
            "counts only the requests of this step against max_num_seqs",
            "schedule_prefill",
            ((_LIMIT, "if len(scheduled) >= self.max_num_seqs:"),),
        ),
        Variant(
            "admits one request too many", "schedule_prefill", ((_LIMIT, "if len(self.running) > self.max_num_seqs:"),)
        ),
        Variant(
            "takes a request out of the queue after its first chunk",
            "schedule_prefill",
            (("if seq.num_scheduled_tokens < needed:", "if False:"),),
        ),
        Variant(
            "admits only whole prompts",
            "schedule_prefill",
            (
                (
                    "        seq.num_scheduled_tokens = min(needed, budget)",
                    "        if needed > budget:\n            break\n"
                    "        seq.num_scheduled_tokens = min(needed, budget)",
                ),
            ),
        ),
        Variant("admits without blocks", "schedule_prefill", (("if plan.missing:", "if False:"),)),
        Variant(
            "lets a smaller request overtake the head of the queue",
            "schedule_prefill",
            (
                (
                    "                self._note_lack_of_blocks(seq, plan)\n                break",
                    "                self._note_lack_of_blocks(seq, plan)\n"
                    "                if len(self.waiting) == 1:\n                    break\n"
                    "                self.waiting.rotate(-1)\n"
                    "                if self.block_manager.plan(self.waiting[0]).missing:\n"
                    "                    break\n                continue",
                ),
            ),
        ),
        Variant("leaves the status at waiting", "schedule_prefill", (("seq.status = SequenceStatus.RUNNING", "pass"),)),
        Variant(
            "puts the newest first in running",
            "schedule_prefill",
            (("self.running.append(seq)", "self.running.appendleft(seq)"),),
        ),
        Variant(
            "admits one request a step",
            "schedule_prefill",
            (("if seq.num_scheduled_tokens < needed:", "if len(scheduled) > 1:"),),
        ),
    ),
    harmless=(
        Variant(
            "asks can_allocate and lets allocate plan again",
            "schedule_prefill",
            (
                ("if plan.missing:", "if not self.block_manager.can_allocate(seq):"),
                ("allocate(seq, plan)", "allocate(seq)"),
            ),
        ),
        Variant(
            "counts the budget upwards",
            "schedule_prefill",
            (
                ("budget = self.max_num_batched_tokens", "used, most = 0, self.max_num_batched_tokens"),
                ("and budget > 0:", "and used < most:"),
                ("min(needed, budget)", "min(needed, most - used)"),
                ("budget -= seq", "used += seq"),
            ),
        ),
        Variant(
            "says in other words why a request must wait",
            "schedule_prefill",
            (
                (
                    'limit = f"{len(self.running)} requests run and max_num_seqs is {self.max_num_seqs}"',
                    'limit = "no seat is free"',
                ),
            ),
        ),
    ),
)
