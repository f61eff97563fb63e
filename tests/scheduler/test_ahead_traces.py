"""Random traces with steps launched ahead: the same answers, every rule holds, planted faults are noticed."""

from collections import Counter

import pytest
from planted_ahead import AHEAD_FAULTS, AheadFault, in_ahead

from nanovllm.course.oracle import Ahead, TraceFailure, explain, find_failure, random_trace, run_trace, shrink

NUM_TRACES = 1500
MOST_TRACES = 500
CALL = "run_trace(trace, make_scheduler, ahead=ahead)"


def first_failure(fault: AheadFault) -> TraceFailure:
    failure = find_failure(range(MOST_TRACES), fault.variant.make_scheduler, ahead=fault.ahead)
    assert failure is not None, f"{MOST_TRACES} random traces did not notice: {fault.name}"
    return failure


def test_random_traces_pass() -> None:
    failure = find_failure(range(NUM_TRACES), ahead=Ahead())
    assert failure is None, explain(failure, call="run_trace(trace, ahead=Ahead())")


def test_random_traces_reach_the_hard_places() -> None:
    """What 600 traces contain, and that looking ahead changes no answer."""
    seen: Counter[str] = Counter()
    for seed in range(600):
        trace = random_trace(seed)
        plain, ahead = run_trace(trace), run_trace(trace, ahead=Ahead())
        if all(r.cancel_at is None for r in trace.requests):  # a cancelled one is further or less far by then
            assert (ahead.completions, ahead.finish_reasons) == (plain.completions, plain.finish_reasons)
        seen["ahead"] += ahead.num_ahead
        seen["prefills ahead"] += ahead.num_prefills_ahead
        seen["late tokens"] += ahead.num_late
        seen["preemptions"] += ahead.num_preemptions
        seen["failures with a step in flight"] += bool(trace.failing_steps) and ahead.num_ahead > 0
        seen["cancelled in flight"] += any(r.cancel_in_flight for r in trace.requests) and ahead.num_ahead > 0
        seen.update(ahead.finish_reasons.values())
    least = {
        "ahead": 1500, "prefills ahead": 100, "late tokens": 40, "preemptions": 100,
        "failures with a step in flight": 80, "cancelled in flight": 40, "stop": 100, "length": 500, "abort": 40,
    }  # fmt: skip
    too_few = {name: (seen[name], count) for name, count in least.items() if seen[name] < count}
    assert not too_few, f"(seen, wanted): {too_few}"


@pytest.mark.parametrize("fault", AHEAD_FAULTS, ids=lambda f: f.name)
def test_random_traces_reject(fault: AheadFault) -> None:
    failure = first_failure(fault)
    assert failure.expected
    assert failure.actual
    run_trace(failure.trace, ahead=Ahead())  # the real functions pass the very same trace


@pytest.mark.parametrize("fault", AHEAD_FAULTS[::4], ids=lambda f: f.name)
def test_the_counterexample_is_small_and_can_be_pasted(fault: AheadFault) -> None:
    make = fault.variant.make_scheduler
    small = shrink(first_failure(fault).trace, make, max_runs=1500, ahead=fault.ahead)
    assert len(small.trace.requests) <= fault.small
    cell = explain(small, call=CALL).split("paste this cell:\n")[1]
    with pytest.raises(TraceFailure) as again:
        exec(cell, {"make_scheduler": make, "ahead": fault.ahead})
    assert (again.value.step, again.value.expected, again.value.actual) == (small.step, small.expected, small.actual)
    run_trace(small.trace, ahead=Ahead())


def test_a_pasted_cell_imports_what_it_names() -> None:
    fault = next(f for f in AHEAD_FAULTS if f.name == "block not reserved ahead")
    failure = first_failure(fault)
    assert (failure.phase, failure.kind) == ("schedule_ahead()", "ahead")
    cell = explain(failure, call="run_trace(trace, ahead=Ahead())").split("paste this cell:\n")[1]
    exec(cell, {})


def test_planting_refuses_a_text_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        in_ahead("nothing", ("no such text", ""))
