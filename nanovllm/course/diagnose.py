"""Which planted bug behaves as the learner's code did: run on the very checks that failed."""

from dataclasses import dataclass
from typing import Any

from nanovllm.course.checks import describe, observe_example, play
from nanovllm.course.exercise import Example, Exercise, Numeric
from nanovllm.course.numeric.compare import show
from nanovllm.course.numeric.observe import observe_case
from nanovllm.course.oracle import Trace
from nanovllm.course.swap import install
from nanovllm.course.variants import build


@dataclass(frozen=True, slots=True)
class Finding:
    """A failed check (an example, a trace, or a numeric case as seed and sizes) and what was observed there."""

    observed: dict[str, Any]
    example: Example | None = None
    trace: Trace | None = None
    numeric: Numeric | None = None
    case: tuple[int, dict[str, int]] = (0, {})


def same_bug(exercise: Exercise, examples: list[list[dict[str, Any]]], findings: list[Finding]) -> str:
    """What the planted bug does that fails `findings` in the same way; "" if there is none.

    examples: what was observed of all examples, by group. A bug that agrees with every one of them is preferred to one
    that agrees with the failed checks only, and that to one with the same values in the first of them, which is shown.
    What is not written yet says nothing.
    """
    findings = [finding for finding in findings if "not_done" not in finding.observed]
    if not findings:
        return ""
    alike = shown = ""
    for bug in exercise.bugs:
        pieces = build(exercise, bug)
        with install({name: (seam, pieces[name]) for name, seam in exercise.pieces}):
            if not _same(findings[0]):
                continue
            if "value" in findings[0].observed:
                shown = shown or bug.about
            if not all(_same(finding) for finding in findings[1:]):
                continue
            alike = alike or bug.about
            if _agrees(exercise, examples):
                return bug.about
    return alike or shown


def _same(finding: Finding) -> bool:
    return _signature(_again(finding)) == _signature(finding.observed)


def _agrees(exercise: Exercise, examples: list[list[dict[str, Any]]]) -> bool:
    for group, observed in zip(exercise.groups, examples, strict=True):
        again = [observe_example(example) for example in group.examples]
        if [_signature(one) for one in again] != [_signature(one) for one in observed]:
            return False
    return True


def _again(finding: Finding) -> dict[str, Any]:
    if finding.example is not None:
        return observe_example(finding.example)
    if finding.numeric is not None:
        return observe_case(finding.numeric, *finding.case)
    assert finding.trace is not None
    _, failure = play(finding.trace)
    return describe(failure) if failure else {}


def _signature(observed: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two failures the same: the place and the rule, the values, an exception's words but not its line."""
    if "value" in observed:
        return ("value", show(observed["value"]))
    if "kind" not in observed:
        return tuple(observed.items()) if "error" not in observed else ("error", observed["error"].split(" (line ")[0])
    place = (observed["step"], observed["phase"], observed["kind"])
    return place if observed["kind"] == "crash" else (*place, observed["expected"], observed["actual"])
