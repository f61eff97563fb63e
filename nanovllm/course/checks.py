"""Run an exercise's checks with a learner's functions swapped in, and write down what happened as plain values.

Nothing is judged here: this runs beside the learner's code, `judge.py` does not. A report holds lists, dicts, numbers
and texts only, so that it can travel between processes.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any

from nanovllm.course.cells import names_for_examples
from nanovllm.course.errors import ExerciseNotDone, StillRunning, outcome_of
from nanovllm.course.exercise import Example, Exercise, seeds
from nanovllm.course.numeric.observe import observe_numeric
from nanovllm.course.oracle import Trace, TraceFailure, random_trace, run_trace, shrink
from nanovllm.course.swap import install

Report = dict[str, Any]
Limit = Callable[[float], AbstractContextManager[None]]
SECONDS_A_CHECK = 3.0
SECONDS_WITH_TORCH = 8.0
SHRINK_RUNS = 400


@contextmanager
def no_limit(seconds: float) -> Iterator[None]:
    """For callers that trust the code."""
    yield


def observe(
    exercise: Exercise, pieces: dict[str, Any], limit: Limit = no_limit, shrinking: bool = True, seed: int = 0
) -> Report:
    """The report: {"groups": [{"examples": [...], "traces": {...}, "numeric": {...}}], "calls": {function: count}}.

    seed: another one gives other random traces and cases of the same kind.

    A check that does not end in time ends the report: {"stuck": what, "group": index, "example": index or None, ...}.
    """
    groups: list[dict[str, Any]] = []
    seconds = SECONDS_WITH_TORCH if exercise.uses_torch else SECONDS_A_CHECK
    seams = {name: (seam, pieces[name]) for name, seam in exercise.pieces}
    with install(seams) as calls:
        for group in exercise.groups:
            seen: dict[str, Any] = {"examples": [], "traces": None, "numeric": None}
            groups.append(seen)
            try:
                for example in group.examples:
                    with limit(seconds):
                        seen["examples"].append(observe_example(example))
                if group.traces:
                    seen["traces"] = observe_traces(group.traces, limit, shrinking, seed)
                if group.numeric:
                    seen["numeric"] = observe_numeric(group.numeric, limit, seconds, shrinking, seed)
            except StillRunning:
                stuck = len(seen["examples"]) if len(seen["examples"]) < len(group.examples) else None
                return {"groups": groups, "calls": dict(calls), "stuck": {"group": len(groups) - 1, "example": stuck}}
    return {"groups": groups, "calls": dict(calls)}


def observe_example(example: Example) -> dict[str, Any]:
    """{"value": JSON text}, {"error": text} or {"not_done": text}."""
    namespace = names_for_examples()
    try:
        exec(example.code, namespace)
        return {"value": json.dumps(namespace["result"], sort_keys=True)}
    except Exception as error:
        return outcome_of(error)


def observe_traces(count: int, limit: Limit, shrinking: bool, seed: int = 0) -> dict[str, Any]:
    """{"played": answers of each trace} when all pass, or what is said of the first failure."""
    played = []
    for number in seeds(count, seed):
        with limit(SECONDS_A_CHECK):
            answers, failure = play(random_trace(number))
        if failure is not None:
            small = _shrunk(failure, limit) if shrinking else failure
            return describe(small)
        played.append(answers)
    return {"played": played}


def play(trace: Trace) -> tuple[dict[str, Any] | None, TraceFailure | None]:
    """The answers of one trace as plain values, or its failure."""
    try:
        result = run_trace(trace)
    except TraceFailure as failure:
        return None, failure
    answers = [[i, list(tokens), result.finish_reasons[i]] for i, tokens in sorted(result.completions.items())]
    return {"answers": answers, "refused": sorted(result.refused)}, None


def _shrunk(failure: TraceFailure, limit: Limit) -> TraceFailure:
    if isinstance(failure.__cause__, ExerciseNotDone):
        return failure
    try:
        with limit(SECONDS_A_CHECK):
            return shrink(failure.trace, max_runs=SHRINK_RUNS)
    except (StillRunning, ValueError):  # a smaller one hangs, or this one passes the second time
        return failure


def describe(failure: TraceFailure) -> dict[str, Any]:
    """A failure as plain values."""
    if isinstance(failure.__cause__, ExerciseNotDone):
        return {"not_done": str(failure.__cause__)}
    return {
        "trace": asdict(failure.trace),
        "step": failure.step,
        "phase": failure.phase,
        "kind": failure.kind,
        "expected": failure.expected,
        "actual": failure.actual[:400],
        "history": failure.history[-12:],
        "requests": failure.requests[-8:],
    }
