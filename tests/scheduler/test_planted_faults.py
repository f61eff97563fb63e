"""The slot oracle must reject every planted fault, soon, and show it small."""

import pytest
from planted_faults import FAULTS, Variant, changed

from nanovllm.course.oracle import TraceFailure, explain, find_failure, random_trace, run_trace, shrink, size
from nanovllm.scheduler import BlockManager, Scheduler

MOST_TRACES = 500


def first_failure(variant: Variant) -> tuple[int, TraceFailure]:
    for seed in range(MOST_TRACES):
        failure = find_failure([seed], variant.make_scheduler, variant.sequence)
        if failure is not None:
            return seed + 1, failure
    raise AssertionError(f"{MOST_TRACES} random traces did not notice: {variant.name}")


@pytest.mark.parametrize("variant", FAULTS, ids=lambda v: v.name)
def test_random_traces_reject(variant: Variant, record_property: pytest.FixtureRequest) -> None:
    count, failure = first_failure(variant)
    record_property("traces", count)  # type: ignore[operator]
    assert count <= MOST_TRACES
    assert failure.expected
    assert failure.actual
    run_trace(failure.trace)  # the real classes pass the very same trace


@pytest.mark.parametrize("variant", FAULTS[::3], ids=lambda v: v.name)
def test_the_counterexample_is_small_and_can_be_pasted(variant: Variant) -> None:
    _, failure = first_failure(variant)
    small = shrink(failure.trace, variant.make_scheduler, variant.sequence, max_runs=1500)
    assert len(small.trace.requests) <= variant.small
    assert size(small.trace) <= size(failure.trace)
    call = "run_trace(trace, make_scheduler, make_sequence)"
    cell = explain(small, call=call).split("paste this cell:\n")[1]
    with pytest.raises(TraceFailure) as again:
        exec(cell, {"make_scheduler": variant.make_scheduler, "make_sequence": variant.sequence})
    assert (again.value.step, again.value.expected, again.value.actual) == (small.step, small.expected, small.actual)
    run_trace(small.trace)


def test_the_tenfold_shrunk_trace_is_minimal_in_words() -> None:
    """The whole explanation of one fault, as a learner reads it."""
    variant = next(v for v in FAULTS if v.name == "fully cached prompt leaves no token")
    small = shrink(first_failure(variant)[1].trace, variant.make_scheduler)
    first, second = small.trace.requests
    assert (first.prompt, second.prompt, small.trace.block_size) == ((0,), (0,), 1)
    text = explain(small)
    assert "expected: request 1 computes at least one token and at most those not cached" in text
    assert "actual:   0 are scheduled while 1 of 1 are cached" in text
    assert "step 0: request 0 admitted: 1 of 1 token to compute" in text


def test_exceptions_of_the_code_under_test_become_failures() -> None:
    class Broken(Scheduler):
        def schedule(self):
            raise ZeroDivisionError("half-written")

    broken = Variant("broken", scheduler=Broken)
    with pytest.raises(TraceFailure, match="ZeroDivisionError: half-written") as caught:
        run_trace(random_trace(0), broken.make_scheduler)
    assert caught.value.kind == "crash"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_passing_trace_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink(random_trace(0))


def test_planting_refuses_a_text_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        changed(BlockManager, "append", ("no such text", ""))
