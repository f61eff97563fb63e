"""1.8 Postprocess."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant

_MAKE = """\
def make(*prompts, budget=64, eos=(), **params):
    scheduler = Scheduler(BlockManager(8, 2), 4, budget, 12, frozenset(eos))
    for i, prompt in enumerate(prompts):
        scheduler.add(Sequence(i, prompt, SamplingParams(**params), block_size=2))
    return scheduler

def counts(seq):
    return [list(seq.token_ids), seq.num_cached_tokens, seq.num_scheduled_tokens]

"""
_BOOK = (
    _MAKE
    + """\
scheduler = make([5, 6, 7])
seqs, is_prefill = scheduler.schedule()
scheduler.postprocess(seqs, [9], is_prefill)
result = [counts(seqs[0]), [b.token_ids for b in scheduler.block_manager.blocks[:2]]]"""
)
_CHUNK = (
    _MAKE
    + """\
scheduler = make([5, 6, 7, 8, 9], budget=3)
result = []
for token in (None, 4):
    seqs, is_prefill = scheduler.schedule()
    scheduler.postprocess(seqs, [token], is_prefill)
    result.append([counts(seqs[0]), len(scheduler.block_manager.hash_to_block_id)])"""
)
_CANCELLED = (
    _MAKE
    + """\
scheduler = make([5, 6, 7], [1, 2])
seqs, is_prefill = scheduler.schedule()
scheduler.abort(0)
scheduler.postprocess(seqs, [9, 8], is_prefill)
result = [seqs[0].token_ids, seqs[1].token_ids, [s.seq_id for s in scheduler.running]]"""
)
_AGAIN = (
    _MAKE
    + """\
scheduler = make([5, 6, 7], max_tokens=8)
for token in (9, 8):
    seqs, is_prefill = scheduler.schedule()
    scheduler.postprocess(seqs, [token], is_prefill)
seq = scheduler.running.pop()
scheduler._preempt(seq, by=seq)
scheduler.block_manager.reset_prefix_cache()
seqs, is_prefill = scheduler.schedule()
scheduler.postprocess(seqs, [1], is_prefill)
result = [seq.num_recomputed_tokens, seq.token_ids]"""
)
_ENDS = (
    _MAKE
    + """\
scheduler = make([5], [6], [7], max_tokens=2, eos=[3])
answers = []
for tokens in ([3, 1, 1], [1, 2]):
    seqs, is_prefill = scheduler.schedule()
    scheduler.postprocess(seqs, tokens, is_prefill)
    answers.append([[s.seq_id, s.finish_reason.value if s.finish_reason else None] for s in seqs])
result = [answers, len(scheduler.running), scheduler.block_manager.num_free_blocks]"""
)
_REASONS = (
    _MAKE
    + """\
scheduler = make([5])
def reason(tokens, token, **params):
    seq = Sequence(9, [5], SamplingParams(**params), block_size=2)
    for t in [*tokens, token]:
        seq.append_token(t)
    found = scheduler._finish_reason(seq, token)
    return found.value if found else None
scheduler.eos_token_ids = frozenset([3])
result = [reason([1], 2, max_tokens=3), reason([1, 2], 2, max_tokens=3), reason([], 3), reason([], 3, ignore_eos=True),
          reason([], 4, stop_token_ids=(4,), ignore_eos=True), reason([1], 3, max_tokens=2),
          reason([1] * 9, 1, max_tokens=50), reason([1] * 10, 1, max_tokens=50)]"""
)


def _booked(about: str, *changes: tuple[str, str]) -> Variant:
    return Variant(about, "postprocess", changes)


def _ended(about: str, *changes: tuple[str, str]) -> Variant:
    return Variant(about, "finish_reason", changes)


EXERCISE = Exercise(
    number="1.8",
    title="Postprocess",
    file="part1/ex08_postprocess.py",
    pieces=(("postprocess", seams.POSTPROCESS), ("finish_reason", seams.FINISH_REASON)),
    hints=(
        "Do the bookkeeping of one request that goes on: what is cached now, what is scheduled, which token is new?",
        "In order: skip the finished; count and publish (also for a chunk); then only if there is a "
        "token: append it, ask "
        "for a reason, finish. Remove from `running` after the loop.",
        "before = num_cached_tokens; num_cached_tokens += num_scheduled_tokens; num_scheduled_tokens = "
        "0; recomputed += "
        "min(num_cached_tokens, num_tokens - 1) - before if is_prefill and num_preemptions; publish(seq, before); "
        "continue if token_id is None; append_token; reason; note; _finish.",
    ),
    groups=(
        Group(
            "booking what was computed",
            1,
            "A chunk is booked too, but samples nothing. The newest token is never among the cached ones.",
            (
                Example(
                    _BOOK,
                    [[[5, 6, 7, 9], 3, 0], [[5, 6], None]],
                    "Known tokens, cached and scheduled count after the step; then what is published of blocks 0 and "
                    "1. The "
                    "newest token is never among the cached ones: which block is full?",
                ),
                Example(_CHUNK, [[[[5, 6, 7, 8, 9], 3, 0], 1], [[[5, 6, 7, 8, 9, 4], 5, 0], 2]]),
                Example(
                    _CANCELLED,
                    [[5, 6, 7], [1, 2, 8], [1]],
                    "Request 0 was cancelled while the step ran. What may still be booked for it?",
                ),
                Example(
                    _AGAIN,
                    [4, [5, 6, 7, 9, 8, 1]],
                    "num_recomputed_tokens after a preemption. Five tokens were known: which of them had been computed "
                    "before, and which one is computed for the first time?",
                ),
            ),
        ),
        Group(
            "ending what is done",
            1,
            "Count the completion tokens after the new one is in. Which end comes first when two hold?",
            (
                Example(_REASONS, [None, "length", "stop", None, "stop", "stop", None, "length"]),
                Example(_ENDS, [[[[0, "stop"], [1, None], [2, None]], [[1, "length"], [2, "length"]]], 0, 8]),
            ),
        ),
        Group(
            "random traces with chunks, stops and cancellations", 1, "Compare the counts before and after.", traces=250
        ),
    ),
    bugs=(
        _booked("books a cancelled request", ("if seq.is_finished:", "if False:")),
        _booked(
            "lets a chunk sample a token", ("if token_id is None:\n            continue", "token_id = token_id or 0")
        ),
        _booked(
            "counts the sampled token as cached",
            (
                "        seq.append_token(token_id)",
                "        seq.append_token(token_id)\n        seq.num_cached_tokens += 1",
            ),
        ),
        _booked("leaves the step's tokens scheduled", ("        seq.num_scheduled_tokens = 0\n", "")),
        _booked("publishes nothing", ("self.block_manager.publish(seq, before)", "pass")),
        _booked(
            "publishes the blocks of a chunk not",
            (
                "self.block_manager.publish(seq, before)",
                "token_id is None or self.block_manager.publish(seq, before)",
            ),
        ),
        _booked("keeps a finished request running", ("if finished:", "if False:")),
        _booked(
            "counts every token of a prefill after a preemption",
            ("min(seq.num_cached_tokens, seq.num_tokens - 1)", "seq.num_cached_tokens"),
        ),
        _ended("gives one token too many", ("num_prompt_tokens >= params", "num_prompt_tokens > params")),
        _ended(
            "loses the last token of a full answer",
            ("num_prompt_tokens >= params", "num_prompt_tokens + 1 >= params"),
        ),
        _ended("runs past max_model_len", ("num_tokens >= self.max_model_len", "num_tokens > self.max_model_len")),
        _ended("does not see the end of the sequence", ("token_id in self.eos_token_ids", "False")),
        _ended("does not see ignore_eos", ("not params.ignore_eos and ", "")),
        _ended(
            "lets ignore_eos ignore stop tokens too",
            (
                "token_id in params.stop_token_ids or (not params.ignore_eos and token_id in self.eos_token_ids)",
                "not params.ignore_eos and (token_id in params.stop_token_ids or token_id in self.eos_token_ids)",
            ),
        ),
    ),
    harmless=(
        _booked("removes finished requests one by one", ("finished = True", "self.running.remove(seq)")),
        _booked("always filters the running deque", ("if finished:", "if True:")),
        Variant(
            "asks for each end in a line of its own",
            "finish_reason",
            source="""
def finish_reason(scheduler, seq, token_id):
    params = seq.sampling_params
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(scheduler.eos_token_ids))
    if token_id in ends:
        return FinishReason.STOP
    room = min(params.max_tokens - seq.num_completion_tokens, scheduler.max_model_len - seq.num_tokens)
    return FinishReason.LENGTH if room <= 0 else None
""",
        ),
    ),
)
