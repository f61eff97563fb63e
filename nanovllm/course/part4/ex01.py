"""4.1 The step loop."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant
from nanovllm.course.numeric.checkpoint import engine_example

# A small engine that can be closed; `tokens` and `params` are for requests.
_MAKE = """\
from nanovllm import LLM, SamplingParams
from nanovllm.errors import NanoVLLMError, RequestError
def params(n):
    return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
limits = dict(kvcache_block_size=4, num_kvcache_blocks=16, max_num_batched_tokens=6, max_model_len=32)
llm = LLM("qwen3-tiny", device="cpu", skip_tokenizer_init=True, **limits)
"""
_ORDER = (
    _MAKE
    + """\
events = []
llm.on_event = events.append
llm.add_request([462, 28, 223], params(2))
llm.add_request([899, 28], params(1))
steps = [llm.step(), llm.step()]
result = [events, [[s.is_prefill, s.num_seqs, s.num_tokens, len(s.new_tokens)] for s in steps],
          [[o.request_id for o in s.finished] for s in steps], len(llm.last_schedule.seqs)]
llm.exit()"""
)
_EVENTS = ["begin", "schedule", "run", "postprocess", "end"]
_POLICY = (
    _MAKE
    + """\
asked = []
def policy(scheduler):
    asked.append(len(scheduler.waiting))
    return scheduler.schedule()
llm.policy = policy
llm.add_request([462, 28, 223], params(1))
output = llm.step()
result = [asked, len(output.finished)]
llm.exit()"""
)
_CLOSED = (
    _MAKE
    + """\
llm.exit()
try:
    llm.step()
    result = "no error"
except NanoVLLMError:
    result = NanoVLLMError.__name__"""
)
_CANCELLED = (
    _MAKE
    + """\
first, second = (llm.add_request(prompt, params(1)) for prompt in ([462, 28], [899, 28]))
llm.on_event = lambda name: llm.abort(first) if name == "run" else None
output = llm.step()
result = [output.num_seqs, [request_id for request_id, token in output.new_tokens], len(llm.last_schedule.seqs)]
llm.exit()"""
)
_FAILS = (
    _MAKE
    + """\
llm.add_request([462, 28, 223], params(2))
def counts():
    pool = llm.scheduler.block_manager
    return [len(llm.scheduler.waiting), len(llm.scheduler.running), pool.num_free_blocks]
result = [counts()]
run = llm.ranks.run
for error in (RuntimeError, KeyboardInterrupt):
    def broken(*args):
        raise error
    llm.ranks.run = broken
    try:
        llm.step()
        result.append("no error")
    except error:
        result.append(error.__name__)
    result.append(counts())
llm.ranks.run = run
result.append([len(llm.step().new_tokens), len(llm.step().finished)])
llm.exit()"""
)
_SLICES = (
    _MAKE
    + """\
seen = []
run = llm.ranks.run
def watched(slices, is_prefill, inputs, live):
    rows = [[s.seq_id, s.start, len(s.token_ids)] for s in slices]
    seen.append([is_prefill, rows, inputs.position.tolist(), sorted(live)])
    return run(slices, is_prefill, inputs, live)
llm.ranks.run = watched
llm.add_request([462, 28, 223, 19], params(2))
llm.add_request([899, 28, 223, 27, 223], params(1))  # 6 tokens a step: two of it fit into the first one
tokens = []
for _ in range(3):
    schedule = llm.scheduler.schedule()
    token_ids = llm._run(schedule)
    tokens.append([token is not None for token in token_ids])
    llm.book(schedule, token_ids)
empty = llm._run(llm.scheduler.schedule())
result = [seen, tokens, empty]
llm.exit()"""
)
_ENDS = (
    _MAKE
    + """\
earlier = llm.add_request([462, 28, 223], params(9))
soon = llm.add_request([462, 28], params(1))
outputs = llm.generate([[899, 28], [899, 27], [899, 26]], [params(4), params(1), params(2)], use_tqdm=False)
answered, lengths = [o.prompt_token_ids[1] for o in outputs], [len(o.token_ids) for o in outputs]
result = [answered, lengths, sorted(llm.uncollected) == [soon], llm.is_finished()]
llm.exit()"""
)
_REFUSED = (
    _MAKE
    + """\
try:
    llm.generate([[462, 28], [999999]], params(2), use_tqdm=False)
    said = "no error"
except RequestError:
    said = "RequestError"
result = [said, llm.is_finished(), [o.token_ids for o in llm.generate([], use_tqdm=False)]]
llm.exit()"""
)
_BREAKS = (
    _MAKE
    + """\
earlier = llm.add_request([462, 28, 223], params(9))
run, calls = llm.ranks.run, []
def breaks_later(*args):
    calls.append(1)
    if len(calls) == 3:
        raise KeyboardInterrupt
    return run(*args)
llm.ranks.run = breaks_later
try:
    llm.generate([[899, 28], [899, 27]], params(5), use_tqdm=False)
    said = "no error"
except KeyboardInterrupt:
    said = "KeyboardInterrupt"
result = [said, sorted(llm.scheduler.sequences) == [earlier], len(calls)]
llm.exit()"""
)

_GENERATE = """
from nanovllm.engine.requests import check_lists
def generate(llm, prompts, sampling_params=None, use_tqdm=True):
    texts, params = check_lists(prompts, sampling_params)
    checked = [llm.check_request(text, p) for text, p in zip(texts, params)]
    wanted, found = [], {}
    try:
        for text, (token_ids, p) in zip(texts, checked):
            wanted.append(llm._enqueue(text, token_ids, p))
        while len(found) < len(wanted):
            for output in llm.step().finished:
                if output.request_id in wanted:
                    found[output.request_id] = output
                else:
                    llm.uncollected[output.request_id] = output
    except BaseException:
        for request_id in wanted:
            llm.abort(request_id)
        raise
    return [found[request_id] for request_id in wanted]
"""


def _loop(about: str, *changes: tuple[str, str]) -> Variant:
    return Variant(about, "generate", changes, source=_GENERATE)


EXERCISE = Exercise(
    number="4.1",
    title="The step loop",
    file="part4/ex01_step_loop.py",
    pieces=(("step", seams.STEP), ("run", seams.RUN), ("generate", seams.GENERATE)),
    uses_torch=True,
    hints=(
        "Write a step that goes well: five events, three calls. Then mark the calls that change the scheduler's state, "
        "and ask at each line: if this raises, what is left half done?",
        'step: try from the event "run" to "postprocess", except BaseException: rollback, raise. run: slices of all, '
        "SamplingInputs of those with needs_token. generate: outputs = {request id: None}; step until no None is left.",
        "step: book() comes after the try. run: sampled = [seq for seq, s in zip(schedule.seqs, slices) if "
        "s.needs_token]. generate: check all, then queue all; home = outputs if output.request_id in outputs "
        "else llm.uncollected; in except BaseException: abort each of outputs and raise.",
    ),
    groups=(
        Group(
            "the order of a step",
            1,
            "Who is told what, and when? Compare the five events, and what the step's output says.",
            (
                Example(_ORDER, [_EVENTS * 2, [[True, 2, 5, 2], [False, 1, 1, 1]], [[1], [0]], 1]),
                Example(
                    _POLICY, [[1], 1], "A policy, where the engine has one, is asked instead of scheduler.schedule()."
                ),
                Example(_CLOSED, "NanoVLLMError", "What is the first thing to ask of an engine that may be closed?"),
                Example(
                    _CANCELLED,
                    [1, [1], 1],
                    'A watcher cancelled a request at "run". Which schedule is without it, and who must know it?',
                ),
            ),
        ),
        Group(
            "a step that fails is undone",
            1,
            "After scheduling, the request is in another queue and owns blocks. Which call puts that back, and does it "
            "happen for every kind of exception?",
            (
                Example(
                    _FAILS,
                    [[1, 0, 16], "RuntimeError", [1, 0, 16], "KeyboardInterrupt", [1, 0, 16], [1, 1]],
                ),
            ),
        ),
        Group(
            "slices for all, sampling for those that get a token",
            1,
            "A chunk that does not reach the end of its prompt is computed, but nothing is sampled for it.",
            (
                Example(
                    _SLICES,
                    [
                        [
                            [True, [[0, 0, 4], [1, 0, 2]], [4], [0, 1]],
                            [True, [[1, 2, 3]], [5], [0, 1]],
                            [False, [[0, 4, 1]], [5], [0]],
                        ],
                        [[True, False], [True], [True]],
                        [],
                    ],
                ),
            ),
        ),
        Group(
            "outputs in order, and what belongs to others",
            1,
            "Requests end in another order than they came. Whose outputs are returned, and when is the loop over?",
            (
                Example(
                    _ENDS,
                    [[28, 27, 26], [4, 1, 2], True, False],
                    "Two requests were there before: one ends on the way, one goes on. Where does the output of the "
                    "first belong, and who waits for the second?",
                ),
                Example(
                    _REFUSED,
                    ["RequestError", True, []],
                    "The second prompt is refused. What has happened to the first one by then?",
                ),
                engine_example(),
            ),
        ),
        Group(
            "an interrupted loop leaves nothing behind",
            1,
            "Whose requests are in the scheduler after the exception? Those of this call must be gone, all others not.",
            (Example(_BREAKS, ["KeyboardInterrupt", True, 3]),),
        ),
    ),
    bugs=(
        Variant("does not undo a step that failed", "step", (("        self.scheduler.rollback(schedule)\n", ""),)),
        Variant(
            "undoes the step and hides the error",
            "step",
            (
                (
                    "rollback(schedule)\n        raise",
                    "rollback(schedule)\n        return StepOutput(schedule.is_prefill, 0, 0)",
                ),
            ),
        ),
        Variant(
            "does not undo a step that was interrupted by Ctrl-C",
            "step",
            (("except BaseException:", "except Exception:"),),
        ),
        Variant(
            "does not ask the policy",
            "step",
            (
                (
                    "self.policy(self.scheduler) if self.policy else self.scheduler.schedule()",
                    "self.scheduler.schedule()",
                ),
            ),
        ),
        Variant("steps an engine that is closed", "step", (("self.check_open()", "pass"),)),
        Variant(
            "runs what a watcher has just cancelled",
            "step",
            (("schedule = self.last_schedule = schedule.without_finished()", "pass"),),
        ),
        Variant("does not tell that the model runs", "step", (('self._event("run")', "pass"),)),
        Variant(
            "tells the end before it has booked",
            "step",
            (
                (
                    '    output = self.book(schedule, token_ids)\n    self._event("end")\n',
                    '    self._event("end")\n    output = self.book(schedule, token_ids)\n',
                ),
                ('self._event("postprocess")', 'self._event("end")'),
            ),
        ),
        Variant("samples for every sequence", "run", (("if s.needs_token]", "]"),)),
        Variant("runs a step without sequences", "run", (("if not schedule.seqs:\n        return []", "pass"),)),
        Variant(
            "says that every step is a prefill",
            "run",
            (("slices, schedule.is_prefill, inputs", "slices, True, inputs"),),
        ),
        _loop(
            "returns outputs in the order of their ends",
            ("[found[request_id] for request_id in wanted]", "list(found.values())"),
        ),
        _loop("loses the outputs of others", ("llm.uncollected[output.request_id] = output", "pass")),
        _loop("returns the outputs of others too", ("if output.request_id in wanted:", "if True:")),
        _loop(
            "waits until the engine has nothing to do",
            ("while len(found) < len(wanted):", "while not llm.is_finished():"),
        ),
        _loop(
            "queues each prompt before the next one is checked",
            (
                "checked = [llm.check_request(text, p) for text, p in zip(texts, params)]",
                "checked = [(text, p) for text, p in zip(texts, params)]",
            ),
            ("wanted.append(llm._enqueue(text, token_ids, p))", "wanted.append(llm.add_request(text, p))"),
            ("except BaseException:", "except KeyboardInterrupt:"),
        ),
        _loop(
            "leaves its requests in the queue when it is interrupted",
            ("            llm.abort(request_id)\n", "            pass\n"),
        ),
        _loop(
            "cancels everybody's requests when it is interrupted",
            (
                "for request_id in wanted:\n            llm",
                "for request_id in list(llm.scheduler.sequences):\n            llm",
            ),
        ),
        _loop(
            "returns what it has when it is interrupted",
            (
                "            llm.abort(request_id)\n        raise\n",
                "            llm.abort(request_id)\n        return list(found.values())\n",
            ),
        ),
    ),
    harmless=(
        Variant(
            "undoes in a finally block",
            "step",
            source="""
def step(self):
    self.check_open()
    for name in ("begin", "schedule"):
        self._event(name)
    choose = self.policy or (lambda scheduler: scheduler.schedule())
    schedule = self.last_schedule = choose(self.scheduler)
    went_well = False
    try:
        self._event("run")
        self.last_schedule = schedule = schedule.without_finished()
        token_ids = self._run(schedule)
        self._event("postprocess")
        went_well = True
    finally:
        if not went_well:
            self.scheduler.rollback(schedule)
    output = self.book(schedule, token_ids)
    self._event("end")
    return output
""",
        ),
        Variant(
            "compares the end of the slice itself",
            "run",
            (("if s.needs_token]", "if s.start + len(s.token_ids) == seq.num_tokens]"),),
        ),
        _loop("keeps a list of ids and a dict of outputs"),
        _loop(
            "asks all outputs whether they are there",
            ("while len(found) < len(wanted):", "while not all(i in found for i in wanted):"),
        ),
    ),
)
