"""What every exercise must satisfy before a learner sees it.

Each gate returns one sentence a breach, [] when all is well. Whoever writes an exercise runs them; the tests do, each
with a planted failure too.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from nanovllm.course.checks import Report, observe
from nanovllm.course.exercise import Exercise, Variant
from nanovllm.course.judge import judge
from nanovllm.course.load import load_pieces
from nanovllm.course.originals import original
from nanovllm.course.swap import plain_signature
from nanovllm.course.variants import build

FEWEST_BUGS, FEWEST_HARMLESS = 4, 2


def form_breaches(exercise: Exercise) -> list[str]:
    """Points, three hints, checks, planted bugs, harmless variants; seams with the signatures that the engine has."""
    name = exercise.name
    found = []
    if any(group.points < 1 for group in exercise.groups) or not exercise.groups:
        found.append(f"{name}: each group of checks needs points")
    if len(set(exercise.hints)) != 3 or not all(hint.strip() for hint in exercise.hints):
        found.append(f"{name}: three different hints are needed")
    idle = [g.name for g in exercise.groups if not (g.examples or g.traces or g.numeric)]
    found += [f"{name}: {group!r} checks nothing" for group in idle]
    found += [f"{name}: {g.name!r} gives nothing to think about" for g in exercise.groups if not g.think.strip()]
    if len(exercise.bugs) < FEWEST_BUGS:
        found.append(f"{name}: {len(exercise.bugs)} planted bugs, at least {FEWEST_BUGS}")
    if len(exercise.harmless) < FEWEST_HARMLESS:
        found.append(f"{name}: {len(exercise.harmless)} harmless variants, at least {FEWEST_HARMLESS}")
    for _, seam in exercise.pieces:
        actual = plain_signature(original(seam))
        if actual != seam.signature:
            found.append(f"{name}: the seam {seam.name} says {seam.signature} and the engine has {actual}")
    return found


def stub_breaches(exercise: Exercise, impl: str | Path) -> list[str]:
    """The stub loads, and every check of it ends in ExerciseNotDone with the exercise's name."""
    report = _observe(exercise, load_pieces(exercise, impl))
    found = []
    for group, seen in zip(exercise.groups, report["groups"], strict=True):
        results = [*seen["examples"], *([seen["traces"]] if seen["traces"] else []), *_cases(seen)]
        for result in results:
            if exercise.name not in result.get("not_done", ""):
                found.append(f"{exercise.name}: {group.name!r} of the stub gives {str(result)[:120]}")
    return found


def solution_breaches(exercise: Exercise, impl: str | Path) -> list[str]:
    """The solution earns all points."""
    return _not_accepted(exercise, load_pieces(exercise, impl), f"the solution in {impl}")


def bug_breaches(exercise: Exercise, bug: Variant) -> list[str]:
    """The planted bug loses points, by a check that failed; the groups after that one are not run."""
    pieces = build(exercise, bug)
    for group in exercise.groups:
        alone = replace(exercise, groups=(group,))
        grade = judge(alone, _observe(alone, pieces), "exercises", diagnosing=False)
        if any(graded.failure for graded in grade.groups):
            return []
    return [f"{exercise.name}: no check notices code that {bug.about}"]


def harmless_breaches(exercise: Exercise, variant: Variant) -> list[str]:
    """The harmless variant earns all points."""
    return _not_accepted(exercise, build(exercise, variant), f"the variant {variant.about!r}")


def _cases(seen: dict[str, Any]) -> list[dict[str, Any]]:
    return list(seen["numeric"]["cases"]) if seen["numeric"] else []


def _observe(exercise: Exercise, pieces: dict[str, Any]) -> Report:
    return observe(exercise, pieces, shrinking=False)


def _not_accepted(exercise: Exercise, pieces: dict[str, Any], what: str) -> list[str]:
    grade = judge(exercise, _observe(exercise, pieces), "exercises", diagnosing=False)
    if grade.earned == grade.points:
        return []
    failure = next((group.failure for group in grade.groups if group.failure), None)
    why = f"expected {failure.expected}; actual: {failure.actual}" if failure else grade.reason
    return [f"{exercise.name}: {what} earns {grade.earned} of {grade.points} points: {why}"]
