"""What a report is worth: compared here, away from the learner's code, with answers worked out independently."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from nanovllm.course.cells import example_cell, numeric_cell, trace_cell
from nanovllm.course.checks import Report
from nanovllm.course.diagnose import Finding, same_bug
from nanovllm.course.exercise import Exercise, Group, Numeric, seeds
from nanovllm.course.numeric.compare import difference, place, show
from nanovllm.course.numeric.observe import agrees, answer_of
from nanovllm.course.numeric.show import describe_inputs, side_by_side
from nanovllm.course.oracle import Trace, random_trace, reference
from nanovllm.course.plain import trace_from
from nanovllm.course.words import ENDLESS, think_of, think_of_outcome

SHORT = 60  # characters of an answer in which one sees at once what differs


@dataclass(slots=True)
class Failure:
    """Why a group was not earned. think: what to think about next; cell: Python to paste that shows it again."""

    think: str
    expected: str
    actual: str
    history: list[str] = field(default_factory=list)
    cell: str = ""
    not_done: bool = False


@dataclass(slots=True)
class GroupGrade:
    """One behaviour group."""

    name: str
    points: int
    earned: int
    failure: Failure | None = None


@dataclass(slots=True)
class Grade:
    """What an exercise came to.

    status: "done", "partial", "failed", "todo" (not begun), "missing" (no file) or "void" (see reason).
    """

    number: str
    name: str
    title: str
    points: int
    earned: int
    status: str
    reason: str = ""
    groups: list[GroupGrade] = field(default_factory=list)
    bug: str = ""  # the planted bug that behaves the same
    calls: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def void(exercise: Exercise, reason: str) -> Grade:
    """No points, for a reason that concerns the whole exercise."""
    return Grade(exercise.number, exercise.name, exercise.title, exercise.points, 0, "void", reason)


def judge(exercise: Exercise, report: Report, impl: str, seed: int = 0, diagnosing: bool = True) -> Grade:
    """The grade for a report of `checks.observe`, made with the same seed. impl: what the cells to paste swap in.

    diagnosing: also look for the planted bug that behaves the same, which runs checks again.
    """
    if "stuck" in report:
        return _stuck(exercise, report["stuck"], impl)
    if len(report["groups"]) != len(exercise.groups):
        return void(exercise, "the report of its checks is incomplete")
    groups, findings = [], []
    for group, seen in zip(exercise.groups, report["groups"], strict=True):
        failure, finding = _first_failure(exercise, group, seen, impl, seed)
        groups.append(GroupGrade(group.name, group.points, 0 if failure else group.points, failure))
        findings += [finding] if finding else []
    calls = {name: int(report["calls"].get(name, 0)) for name, _ in exercise.pieces}
    never = [name for name, count in calls.items() if not count]
    if never and not any(group.failure for group in groups):
        return void(exercise, f"the checks never reached your {' and '.join(never)}: was another function in the way?")
    earned = sum(group.earned for group in groups)
    failures = [group.failure for group in groups if group.failure]
    if not failures:
        status = "done"
    elif not earned and all(failure.not_done for failure in failures):
        status = "todo"
    else:
        status = "partial" if earned else "failed"
    grade = Grade(exercise.number, exercise.name, exercise.title, exercise.points, earned, status, "", groups)
    grade.calls = calls
    examples = [seen["examples"] for seen in report["groups"]]
    if diagnosing:
        grade.bug = same_bug(exercise, examples, findings)
    return grade


def _stuck(exercise: Exercise, where: dict[str, Any], impl: str) -> Grade:
    group = exercise.groups[int(where["group"])]
    grade = void(exercise, f'"{group.name}" did not come to an end: is there a loop whose condition never changes?')
    if where["example"] is not None:
        example = group.examples[int(where["example"])]
        failure = Failure(ENDLESS, repr(example.expected), "no answer in time")
        failure.cell = example_cell(exercise, example, impl)
        grade.groups = [GroupGrade(group.name, group.points, 0, failure)]
    return grade


def _first_failure(
    exercise: Exercise, group: Group, seen: dict[str, Any], impl: str, seed: int
) -> tuple[Failure | None, Finding | None]:
    if len(seen["examples"]) != len(group.examples):
        return Failure(group.think, "a result of each example", "some are missing"), None
    for example, observed in zip(group.examples, seen["examples"], strict=True):
        expected = json.dumps(example.expected, sort_keys=True)
        if observed.get("value") == expected:
            continue
        actual = repr(json.loads(observed["value"])) if "value" in observed else str(next(iter(observed.values())))
        think = think_of_outcome(observed, expected, example.think or group.think)
        failure = Failure(think, repr(example.expected), actual, not_done="not_done" in observed)
        if "value" in observed and len(expected) > SHORT:
            failure.history = side_by_side(example.expected, json.loads(observed["value"]), 0.0)
        failure.cell = example_cell(exercise, example, impl)
        return failure, Finding(example=example, observed=observed)
    if group.traces:
        found = _trace_failure(exercise, group, seen["traces"], impl, seed)
        if found[0]:
            return found
    if group.numeric:
        return _numeric_failure(exercise, group, seen["numeric"], impl, seed)
    return None, None


def _trace_failure(
    exercise: Exercise, group: Group, seen: dict[str, Any], impl: str, seed: int
) -> tuple[Failure | None, Finding | None]:
    if "not_done" in seen:
        return Failure(group.think, "an answer", str(seen["not_done"]), not_done=True), None
    if "played" in seen:
        return _wrong_answers(group, seen["played"], seed), None
    trace = trace_from(seen["trace"])
    failure = Failure(think_of(seen["kind"], group.think), str(seen["expected"]), str(seen["actual"]))
    failure.history = [f"step {seen['step']}, {seen['phase']}", *map(str, seen["history"]), *map(str, seen["requests"])]
    failure.cell = trace_cell(exercise, trace, impl)
    return failure, Finding(trace=trace, observed=seen)


def _numeric_failure(
    exercise: Exercise, group: Group, seen: dict[str, Any], impl: str, first_seed: int
) -> tuple[Failure | None, Finding | None]:
    """Every case compared with its answer; of the failures the shrunk one is shown, if it is one indeed."""
    numeric = group.numeric
    assert numeric is not None
    for index, seed in enumerate(seeds(numeric.cases, first_seed)):
        if index >= len(seen["cases"]):
            return Failure(group.think, "a result of each case", "some are missing"), None
        sizes, observed = numeric.sizes_of(index, first_seed), seen["cases"][index]
        if agrees(numeric, seed, sizes, observed):
            continue
        if seen["small"] and _is_case(numeric, seen["small"]):
            small = seen["small"]
            if not agrees(numeric, small["seed"], small["sizes"], small["observed"]):
                seed, sizes, observed = small["seed"], small["sizes"], small["observed"]
        failure = _shown(group, numeric, (seed, sizes), observed)
        failure.cell = numeric_cell(exercise, numeric, numeric.inputs_of(seed, sizes), impl)
        return failure, Finding(numeric=numeric, case=(seed, sizes), observed=observed)
    return None, None


def _is_case(numeric: Numeric, small: dict[str, Any]) -> bool:
    """Whether the process that ran the learner's code reported a case that there can be."""
    limits = {name: (low, high) for name, low, high in numeric.sizes}
    sizes = small["sizes"]
    inside = all(type(v) is int and limits[name][0] <= v <= limits[name][1] for name, v in sizes.items())
    return inside and sizes.keys() == limits.keys() and type(small["seed"]) is int and 0 <= small["seed"] < 2**63


def _shown(group: Group, numeric: Numeric, case: tuple[int, dict[str, int]], observed: dict[str, Any]) -> Failure:
    answer, inputs = answer_of(numeric, *case), describe_inputs(numeric.inputs_of(*case))
    if "value" not in observed:
        text = str(next(iter(observed.values())))
        think = think_of_outcome(observed, "", group.think)
        return Failure(think, show(answer), text, inputs, not_done="not_done" in observed)
    found = difference(answer, observed["value"], numeric.tolerance)
    if found is None:  # cannot be: it was no failure then
        return Failure(group.think, show(answer), show(observed["value"]), inputs)
    where = f"{place(found.path)}: " if found.path else ""
    history = [*inputs, *side_by_side(answer, observed["value"], numeric.tolerance)]
    return Failure(group.think, f"{where}{found.expected}", f"{where}{found.actual}", history)


def _wrong_answers(group: Group, played: list[dict[str, Any]], seed: int) -> Failure | None:
    """The answers once more against the reference: the process that sent them ran the learner's code."""
    for index, number in enumerate(seeds(group.traces, seed)):
        trace = random_trace(number)
        wanted = f"the answers of random trace {number}"
        if index >= len(played) or not _answers_agree(trace, played[index]):
            return Failure(group.think, wanted, "other ones were reported")
    return None


def _answers_agree(trace: Trace, played: dict[str, Any]) -> bool:
    refused = [i for i, request in enumerate(trace.requests) if not trace.fits(request)]
    answered = [i for i in range(len(trace.requests)) if i not in refused]
    if json.dumps(played["refused"]) != json.dumps(refused) or [a[0] for a in played["answers"]] != answered:
        return False
    for index, tokens, reason in played["answers"]:
        request = trace.requests[index]
        expected = reference(trace, request)
        if reason == "abort":
            agrees = request.cancel_at is not None and tokens == expected.completion[: len(tokens)]
        else:
            agrees = reason == expected.finish_reason and tokens == expected.completion
        if not agrees:
            return False
    return True
