"""Run a group's random cases beside the learner's code, and shrink the first that fails over its sizes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from nanovllm.course.errors import StillRunning, outcome_of
from nanovllm.course.exercise import Numeric, seeds
from nanovllm.course.numeric.compare import difference
from nanovllm.course.numeric.values import plain

Limit = Callable[[float], AbstractContextManager[None]]
Observed = dict[str, Any]
SHRINK_RUNS = 80
MOST_SEEDS = 4  # tried at each smaller size: the numbers of one of them may hide what fails


def observe_case(numeric: Numeric, seed: int, sizes: dict[str, int]) -> Observed:
    """{"value": plain value}, {"error": text} or {"not_done": text} of one case, as the code under test answers it."""
    from nanovllm.course.cells import names_for_examples

    namespace = names_for_examples() | numeric.inputs_of(seed, sizes)
    try:
        exec(numeric.code, namespace)
        return {"value": plain(namespace["result"])}
    except Exception as error:
        return outcome_of(error)


def answer_of(numeric: Numeric, seed: int, sizes: dict[str, int]) -> Any:
    """The expected answer of one case, as a plain value."""
    return plain(numeric.expected(**numeric.inputs_of(seed, sizes)))


def agrees(numeric: Numeric, seed: int, sizes: dict[str, int], observed: Observed) -> bool:
    """Whether what was observed is the expected answer."""
    if "value" not in observed:
        return False
    return difference(answer_of(numeric, seed, sizes), observed["value"], numeric.tolerance) is None


def observe_numeric(numeric: Numeric, limit: Limit, seconds: float, shrinking: bool, seed: int = 0) -> dict[str, Any]:
    """{"cases": what each case came to, up to the first failure, "small": the smallest failing case found or None}."""
    seen: list[Observed] = []
    for index, number in enumerate(seeds(numeric.cases, seed)):
        sizes = numeric.sizes_of(index, seed)
        with limit(seconds):
            observed = observe_case(numeric, number, sizes)
        seen.append(observed)
        if not agrees(numeric, number, sizes, observed):
            small = None
            if shrinking and index > 0 and "not_done" not in observed:
                small = _shrunk(numeric, number, sizes, observed, limit, seconds)
            return {"cases": seen, "small": small}
    return {"cases": seen, "small": None}


def _shrunk(
    numeric: Numeric, seed: int, sizes: dict[str, int], observed: Observed, limit: Limit, seconds: float
) -> dict[str, Any] | None:
    """Make one size after the other smaller while the case still fails."""
    best: dict[str, Any] | None = None
    runs = 0
    try:
        with limit(seconds):
            while runs < SHRINK_RUNS:
                for smaller, other_seed in _smaller(numeric, sizes, seed):
                    runs += 1
                    again = observe_case(numeric, other_seed, smaller)
                    if not agrees(numeric, other_seed, smaller, again):
                        seed, sizes = other_seed, smaller
                        best = {"seed": seed, "sizes": sizes, "observed": again}
                        break
                    if runs >= SHRINK_RUNS:
                        break
                else:
                    return best
    except StillRunning:  # a smaller one hangs
        pass
    return best


def _smaller(numeric: Numeric, sizes: dict[str, int], seed: int) -> list[tuple[dict[str, int], int]]:
    """Cases with one size smaller: the smallest possible, the half, one less; each with a few seeds."""
    found = []
    for name, low, _ in numeric.sizes:
        for value in dict.fromkeys((low, (low + sizes[name]) // 2, sizes[name] - 1)):
            if low <= value < sizes[name]:
                seeds = dict.fromkeys((seed, *range(MOST_SEEDS)))
                found += [(sizes | {name: value}, s) for s in seeds]
    return found
