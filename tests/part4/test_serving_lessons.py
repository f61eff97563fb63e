"""Latencies in steps, mixed steps, and the comparison, as notebooks 43 and 44 show them."""

import pytest

from nanovllm.course.errors import CourseError
from nanovllm.course.lessons_gap import CONCERNS, GapTable, mixed
from nanovllm.course.lessons_serving import serve, steady, table
from nanovllm.serve.load_report import Limits
from nanovllm.serve.policy import BoundedPrefill


def test_a_request_alone_waits_for_nobody() -> None:
    run = serve([(0, 8, 5)])
    record = run.report.records[0]
    assert record.ttft == 1
    assert record.events == [1, 2, 3, 4, 5]
    assert record.tpot == 1
    assert run.longest_gap(0) == 1


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_bound_holds_and_is_reached(limit: int) -> None:
    policy = BoundedPrefill(limit)
    assert serve(steady(8), policy).longest_gap(0) == policy.gap_bound


def test_without_a_policy_the_gap_grows_with_the_arrivals() -> None:
    assert [serve(steady(n)).longest_gap(0) for n in (3, 6)] == [4, 7]


def test_goodput_counts_whole_promises() -> None:
    row = serve(steady(6), limits=Limits(ttft=1, tpot=2)).row()
    assert row["TTFT max"] == 1
    assert row["requests in time"] < 7
    assert "TTFT max" in table({"plain": row})


def test_mixed_steps_by_hand() -> None:
    # Budget 3. Step 0: 2 prompt tokens of request 0, 1 of request 1. Step 1: 0 decodes, 2 of 1. Step 2: 0 decodes, ...
    first, second = mixed([(0, 2, 3), (0, 4, 2)], budget=3)
    assert first.events == [1, 2, 3]
    assert second.events == [3, 4]


def test_a_mixed_step_never_exceeds_its_budget() -> None:
    arrivals = [(0, 9, 6), (1, 30, 4), (2, 5, 5), (2, 17, 3)]
    records = mixed(arrivals, budget=4)
    steps = max(int(record.events[-1]) for record in records)
    computed = sum(prompt + completion - 1 for _, prompt, completion in arrivals)
    assert computed <= 4 * steps
    assert [len(record.events) for record in records] == [completion for _, _, completion in arrivals]


def test_the_table_refuses_a_row_without_a_cell() -> None:
    here = {concern.name: "seen" for concern in CONCERNS}
    assert "read at https://docs.vllm.ai" in GapTable(here).text()
    assert GapTable(here).html().count("<tr>") == len(CONCERNS) + 1
    del here["scheduling"]
    with pytest.raises(CourseError, match="no cell has looked at scheduling yet"):
        GapTable(here)
