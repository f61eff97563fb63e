"""Which planted bug behaves as the learner's code did: run on the very checks that failed."""

from dataclasses import dataclass
from typing import Any

from nanovllm.course.checks import describe, observe_example, play
from nanovllm.course.exercise import Example, Exercise
from nanovllm.course.oracle import Trace
from nanovllm.course.swap import install
from nanovllm.course.variants import build


@dataclass(frozen=True, slots=True)
class Finding:
    """A failed check, an example or a trace, and what was observed there."""

    observed: dict[str, Any]
    example: Example | None = None
    trace: Trace | None = None


def same_bug(exercise: Exercise, examples: list[list[dict[str, Any]]], findings: list[Finding]) -> str:
    """What the planted bug does that fails `findings` in the same way; "" if there is none.

    examples: what was observed of all examples, by group. A bug that agrees with every one of them is preferred to one
    that agrees with the failed checks only.
    """
    if not findings or any("not_done" in finding.observed for finding in findings):
        return ""
    alike = ""
    for bug in exercise.bugs:
        pieces = build(exercise, bug)
        with install({name: (seam, pieces[name]) for name, seam in exercise.pieces}):
            if not all(_signature(_again(finding)) == _signature(finding.observed) for finding in findings):
                continue
            alike = alike or bug.about
            if _agrees(exercise, examples):
                return bug.about
    return alike


def _agrees(exercise: Exercise, examples: list[list[dict[str, Any]]]) -> bool:
    for group, observed in zip(exercise.groups, examples, strict=True):
        again = [observe_example(example) for example in group.examples]
        if [_signature(one) for one in again] != [_signature(one) for one in observed]:
            return False
    return True


def _again(finding: Finding) -> dict[str, Any]:
    if finding.example is not None:
        return observe_example(finding.example)
    assert finding.trace is not None
    _, failure = play(finding.trace)
    return describe(failure) if failure else {}


def _signature(observed: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two failures the same: the place and the rule, and the values unless it is an exception's text."""
    if "kind" not in observed:
        return tuple(observed.items()) if "error" not in observed else ("error", observed["error"].split(":")[0])
    place = (observed["step"], observed["phase"], observed["kind"])
    return place if observed["kind"] == "crash" else (*place, observed["expected"], observed["actual"])
