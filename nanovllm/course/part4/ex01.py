"""4.1 The step loop."""

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Variant
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part4 import step_checks

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
                Example(
                    step_checks.ORDER, [step_checks.EVENTS * 2, [[True, 2, 5, 2], [False, 1, 1, 1]], [[1], [0]], 1]
                ),
                Example(
                    step_checks.POLICY,
                    [[1], 1],
                    "A policy, where the engine has one, is asked instead of scheduler.schedule().",
                ),
                Example(
                    step_checks.CLOSED,
                    "NanoVLLMError",
                    "What is the first thing to ask of an engine that may be closed?",
                ),
                Example(
                    step_checks.CANCELLED,
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
                    step_checks.FAILS,
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
                    step_checks.SLICES,
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
                    step_checks.ENDS,
                    [[28, 27, 26], [4, 1, 2], True, False],
                    "Two requests were there before: one ends on the way, one goes on. Where does the output of the "
                    "first belong, and who waits for the second?",
                ),
                Example(
                    step_checks.REFUSED,
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
            (Example(step_checks.BREAKS, ["KeyboardInterrupt", True, 3]),),
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
