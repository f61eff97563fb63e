"""The numeric oracle: what becomes of values on their way, what counts as equal, and the smallest case that fails."""

import json
import math
import random
import re
from collections import namedtuple
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from nanovllm.course.cells import example_cell, numeric_cell
from nanovllm.course.checks import no_limit, observe
from nanovllm.course.errors import ExerciseNotDone, outcome_of
from nanovllm.course.exercise import Exercise, Group, Numeric
from nanovllm.course.judge import judge
from nanovllm.course.numeric import difference, numbers, plain
from nanovllm.course.numeric.checkpoint import ANSWERS, engine_example, transformers_answers
from nanovllm.course.numeric.compare import place, show
from nanovllm.course.numeric.observe import observe_case, observe_numeric
from nanovllm.course.numeric.show import describe_inputs, side_by_side
from nanovllm.course.registry import EXERCISES

SLOTS = EXERCISES["2.2"]


def test_the_answers_are_those_of_transformers() -> None:
    assert transformers_answers() == [list(answer) for answer in ANSWERS]


def test_the_engine_shares_a_prefix_cuts_chunks_and_preempts_for_them() -> None:
    namespace: dict[str, Any] = {}
    example = engine_example("prefills = []", "llm.on_event = lambda name: prefills.append(llm.last_schedule)")
    exec(example.code, namespace)
    assert namespace["result"] == example.expected
    metrics = [output.metrics for output in namespace["outputs"]]
    assert sum(m.num_prefix_tokens for m in metrics) > 0
    assert sum(m.num_preemptions for m in metrics) > 0
    assert len(namespace["prompts"][0]) > namespace["limits"]["max_num_batched_tokens"]


# --- values ------------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    ids: np.ndarray
    longest: int


Pair = namedtuple("Pair", "first second")


class Liar:
    """Claims to be equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class LyingTensor(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (1.5, 1.5),
        ((1, [2]), [1, [2]]),
        (Pair(1, None), [1, None]),
        ({1: "a"}, {"1": "a"}),
        (np.int64(3), 3),
        (np.array([1, 2], np.int32), {"dtype": "int32", "shape": [2], "values": [1, 2]}),
        (torch.ones(1, 2, dtype=torch.bfloat16), {"dtype": "bfloat16", "shape": [1, 2], "values": [[1.0, 1.0]]}),
        (torch.nn.Parameter(torch.zeros(1)), {"dtype": "float32", "shape": [1], "values": [0.0]}),
        (Batch(np.array([4]), 2), {"ids": {"dtype": "int64", "shape": [1], "values": [4]}, "longest": 2}),
        (Liar(), {"object": "Liar"}),
        (torch.zeros(1).as_subclass(LyingTensor), {"object": "LyingTensor"}),
        (torch.zeros(30_000), {"object": "a tensor of 30,000 numbers"}),
        (Batch, {"object": "type"}),
    ],
)
def test_plain_values(value: Any, expected: Any) -> None:
    assert plain(value) == expected


def test_what_is_nested_without_end_is_cut() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert "nested too deeply" in str(plain(endless))


def test_numbers_are_the_same_for_the_same_seed() -> None:
    first, again, other = (numbers(random.Random(seed), 2, 3) for seed in (1, 1, 2))
    assert first == again != other
    assert [len(first), len(first[0])] == [2, 3]
    assert all(-2 <= x <= 2 and x == round(x, 2) for row in first for x in row)


# --- equal or not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([[1.0, 2.0]], torch.tensor([[1.00005, 2.0]])),
        ([1000.0], [1000.05]),
        ([1, 2], np.array([1, 2], np.int32)),
        (torch.tensor([1.0]), torch.tensor([1.0])),
        ([math.nan, math.inf], [math.nan, math.inf]),
        ([2.0], [2]),
        ({"a": [1]}, {"a": (1,), "b": 7}),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([], np.zeros(0)),
        (None, None),
    ],
)
def test_what_agrees(expected: Any, actual: Any) -> None:
    assert difference(plain(expected), plain(actual), 1e-4) is None


@pytest.mark.parametrize(
    ("expected", "actual", "path", "said"),
    [
        ([1.0, 2.0], [1.0, 2.1], "[1]", ("2.0000", "2.1000")),
        ([1, 2], [1.0, 2.0], "[0]", ("1", "1.0000")),
        ([1], [True], "[0]", ("1", "True")),
        ([1.0], [math.nan], "[0]", ("1.0000", "nan")),
        ([[1.0]], torch.tensor([1.0]), "", ("shape [1, 1]", "shape [1]")),
        (torch.zeros(1), torch.zeros(1, dtype=torch.float64), "", ("dtype float32", "dtype float64")),
        (np.zeros(1, np.int32), np.zeros(1, np.int64), "", ("dtype int32", "dtype int64")),
        ([1, 2], [1], "", ("2 values: [1, 2]", "1 values: [1]")),
        ([1], None, "", ("[1]", "None")),
        (None, [1], "", ("None", "[1]")),
        ([1], Liar(), "", ("[1]", "(Liar)")),
        ({"a": 1}, {"b": 1}, "", ("values named a", "{b: 1}")),
        ({"a": {"b": [[3, 4]]}}, {"a": {"b": np.array([[3, 5]])}}, "a.b[0, 1]", ("4", "5")),
        ({"a": 1}, [1], "", ("values named a", "[1]")),
    ],
)
def test_what_does_not_agree(expected: Any, actual: Any, path: str, said: tuple[str, str]) -> None:
    found = difference(plain(expected), plain(actual), 1e-4)
    assert found is not None
    assert (place(found.path), found.expected, found.actual) == (path, *said)


def test_side_by_side_marks_what_differs() -> None:
    lines = side_by_side({"slots": [28, 29, 30], "same": [1]}, plain({"slots": np.array([28, 29, 8]), "same": [1]}), 0)
    assert lines == [
        "slots      0   1   2",
        "expected  28  29  30",
        "actual    28  29   8",
        "                   ^",
    ]
    wide = side_by_side([0] * 100, [0] * 60 + [1] + [0] * 39, 0)
    assert "60" in wide[0]
    assert len(wide[0]) < 80
    assert side_by_side([[i] for i in range(9)], [[0]] * 9, 0)[-1] == "and 5 more rows differ"
    assert side_by_side([1, 2], [1], 0)[2].split() == ["actual", "1", "none"]
    assert side_by_side([1], None, 0) == []


def test_long_inputs_are_cut() -> None:
    assert describe_inputs({"a": 1, "b": list(range(100))})[0] == "a = 1"
    assert len(describe_inputs({"b": list(range(100))})[0]) < 170


# --- cases ---------------------------------------------------------------------------------------------------------


def _inputs(rng: random.Random, tokens: int, width: int) -> dict[str, Any]:
    return {"x": numbers(rng, tokens, width)}


def _sums(x: list[list[float]]) -> list[float]:
    return [sum(row) for row in x]


SUMS = Numeric(
    (("tokens", 1, 6), ("width", 1, 5)),
    _inputs,
    "import torch\nresult = torch.tensor(x).sum(1) * (1 if len(x) < 3 else 2)",  # wrong from 3 tokens on
    _sums,
)
RIGHT_SUMS = replace(SUMS, code="import torch\nresult = torch.tensor(x).sum(1)")


def test_cases_go_from_the_smallest_to_the_largest_and_on_at_random() -> None:
    assert SUMS.sizes_of(0) == {"tokens": 1, "width": 1}
    assert SUMS.sizes_of(1) == {"tokens": 6, "width": 5}
    assert len({str(SUMS.sizes_of(i)) for i in range(2, 24)}) > 8
    assert SUMS.inputs_of(3, {"tokens": 2, "width": 2}) == SUMS.inputs_of(3, {"tokens": 2, "width": 2})


def test_a_failure_is_shrunk_over_its_sizes() -> None:
    seen = observe_numeric(SUMS, no_limit, 3.0, shrinking=True)
    assert [len(seen["cases"]), seen["small"]["sizes"]] == [2, {"tokens": 3, "width": 1}]
    seen = observe_numeric(RIGHT_SUMS, no_limit, 3.0, shrinking=True)
    assert [len(seen["cases"]), seen["small"]] == [24, None]


def made_report(numeric: Numeric, **changes: Any) -> Any:
    exercise = replace(SLOTS, groups=(Group("sums", 1, "think", numeric=numeric),), bugs=())
    seen = observe_numeric(numeric, no_limit, 3.0, shrinking=True) | changes
    groups = [{"examples": [], "traces": None, "numeric": seen}]
    return judge(exercise, {"groups": groups, "calls": dict.fromkeys(dict(SLOTS.pieces), 1)}, "exercises")


def test_the_judge_shows_the_shrunk_case() -> None:
    failure = made_report(SUMS).groups[0].failure
    assert failure.history[0].startswith("x = [[")
    assert failure.history[-4].split() == ["0", "1", "2"]
    assert failure.expected.startswith("[0]: ")


def test_the_judge_believes_no_report() -> None:
    """It works every answer out itself; a small case that is none, or does not fail, is not shown."""
    right = observe_numeric(RIGHT_SUMS, no_limit, 3.0, shrinking=True)
    assert made_report(SUMS, **right).earned == 1
    assert made_report(SUMS, cases=right["cases"][:-1]).groups[0].failure.actual == "some are missing"
    forged = [{"value": 0}, *right["cases"][1:]]
    assert made_report(SUMS, cases=forged, small=None).earned == 0
    fine = {"seed": 0, "sizes": {"tokens": 1, "width": 1}, "observed": right["cases"][0]}
    huge = {"seed": 0, "sizes": {"tokens": 10**9, "width": 1}, "observed": {"value": 0}}
    for small in (
        fine,
        huge,
        huge | {"sizes": {"tokens": 1}},
        huge | {"seed": "x", "sizes": {"tokens": 1, "width": 1}},
    ):
        failure = made_report(SUMS, small=small).groups[0].failure
        assert failure.history[-4].split() == ["0", "1", "2", "3", "4", "5"], "the first case that failed"


def test_the_cell_shows_the_failure_again() -> None:
    numeric = SLOTS.groups[1].numeric
    assert numeric is not None
    case = numeric.inputs_of(7, {"seqs": 2, "blocks": 3})
    namespace: dict[str, Any] = {}
    exec(numeric_cell(SLOTS, numeric, case, "reference").removesuffix("result"), namespace)
    assert plain(namespace["result"]) == observe_case(numeric, 7, {"seqs": 2, "blocks": 3})["value"]


def test_the_cell_of_an_example_imports_each_name_once() -> None:
    for number, part, index in (("4.1", 0, 3), ("2.3", 0, 0), ("1.8", 0, 0)):
        exercise = EXERCISES[number]
        cell = example_cell(exercise, exercise.groups[part].examples[index], "reference")
        names = re.findall(r"^(?:from [\w.]+ )?import (.*)", cell, re.MULTILINE)
        brought = ", ".join(names).split(", ")
        assert len(set(brought)) == len(brought)
        namespace: dict[str, Any] = {}
        exec(cell.removesuffix("result"), namespace)
        assert json.dumps(namespace["result"]) == json.dumps(exercise.groups[part].examples[index].expected)


def test_an_exception_is_an_answer_too() -> None:
    broken = replace(SUMS, code="result = x[7]")
    assert made_report(broken).groups[0].failure.actual.startswith("IndexError")
    assert made_report(replace(SUMS, code="pass")).groups[0].failure.actual == "KeyError: 'result'"


def test_not_done_is_found_behind_what_wraps_it() -> None:
    wrapper = RuntimeError("from the interpreter")
    wrapper.__cause__ = ExerciseNotDone("2.5 store_kernel", "a hint")
    assert "2.5 store_kernel" in outcome_of(wrapper)["not_done"]
    assert outcome_of(KeyError("a")) == {"error": "KeyError: 'a'"}


def test_a_wrong_size_for_the_dtype_is_said_in_words() -> None:
    """As a learner meets it: 2.3 with lengths of 64 bits."""
    exercise: Exercise = EXERCISES["2.3"]
    from nanovllm.course.variants import build

    bug = next(bug for bug in exercise.bugs if "64 bits" in bug.about)
    grade = judge(exercise, observe(exercise, build(exercise, bug)), "exercises")
    failure = next(group.failure for group in grade.groups if group.failure)
    assert (failure.expected, failure.actual) == ("context_lens: dtype int32", "context_lens: dtype int64")
    assert show([1.0, None]) == "[1.0000, None]"
