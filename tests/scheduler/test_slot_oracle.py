"""The parts of the slot oracle: the reference, the fake cache, the prefix model, the rendering."""

import pytest

from nanovllm.course.oracle import (
    FakeRunner,
    Request,
    Trace,
    TraceFailure,
    Violation,
    kv_value,
    next_token,
    random_trace,
    reference,
    render_cell,
    render_trace,
    run_trace,
    scheduler_factory,
)
from nanovllm.course.oracle.prefix_model import PrefixModel
from nanovllm.course.oracle.reference import ROOT
from nanovllm.scheduler import ScheduledSlice


def test_reference_follows_the_rule_by_hand() -> None:
    trace = Trace(4, 4, (Request((5, 6), max_tokens=2),), vocab_size=10)
    first = kv_value(ROOT, 5, 0)
    values = [first, kv_value(first, 6, 1)]
    one = next_token(values, 10)
    values.append(kv_value(values[1], one, 2))
    two = next_token(values, 10)
    expected = reference(trace, trace.requests[0])
    assert expected.token_ids == [5, 6, one, two]
    assert expected.values[:3] == values
    assert (expected.completion, expected.finish_reason) == ([one, two], "length")


def test_reference_stops_at_each_kind_of_end() -> None:
    def end(trace: Trace) -> tuple[int, str]:
        expected = reference(trace, trace.requests[0])
        return len(expected.completion), expected.finish_reason

    assert end(Trace(4, 9, (Request((1,), 5),), eos_token_ids=(0,), vocab_size=1)) == (1, "stop")
    assert end(Trace(4, 9, (Request((1,), 5, ignore_eos=True),), eos_token_ids=(0,), vocab_size=1)) == (5, "length")
    assert end(Trace(4, 9, (Request((1,), 5, stop_token_ids=(0,)),), vocab_size=1)) == (1, "stop")
    assert end(Trace(4, 9, (Request((1,), 5),), max_model_len=3)) == (2, "length")


def test_a_value_depends_on_token_position_and_everything_before() -> None:
    values = {kv_value(p, t, n) for p in (ROOT, 1, 2) for t in range(20) for n in range(20)}
    assert len(values) == 3 * 20 * 20


def test_the_fake_runner_answers_from_what_it_reads() -> None:
    runner = FakeRunner(num_blocks=3, block_size=2, vocab_size=1000)
    trace = Trace(2, 3, (Request((4, 5, 6), 1),), vocab_size=1000)
    answer = reference(trace, trace.requests[0]).completion[0]
    assert runner.run([ScheduledSlice(0, [4, 5], 0, 3, [2, 0])]) == [None]
    assert runner.run([ScheduledSlice(0, [6], 2, 3, [2, 0])]) == [answer]
    assert runner.run([ScheduledSlice(0, [6], 2, 3, [1, 0])]) != [answer], "another block, another answer"
    assert "slot 1 of block 2, written by request 0: its token 5 at position 1" in runner.describe(
        ScheduledSlice(0, [6], 2, 3, [2, 0]), 1
    )
    runner.scramble(2)
    assert runner.run([ScheduledSlice(0, [6], 2, 3, [2, 0])]) != [answer], "stale contents are noticed"
    assert "not written since" in runner.describe(ScheduledSlice(0, [6], 2, 3, [2, 0]), 0)


def test_the_fake_runner_refuses_a_position_without_a_block() -> None:
    with pytest.raises(Violation, match=r"block table \[1\] covers 2 tokens"):
        FakeRunner(3, 2, 10).run([ScheduledSlice(0, [1, 2, 3], 0, 3, [1])])


def test_the_prefix_model_is_certain_only_of_single_unbroken_chains() -> None:
    model = PrefixModel(block_size=1)
    model.completed(0, (1,))
    model.completed(1, (1, 2))
    assert model.least_hits([1, 2, 3]) == 2
    assert model.least_hits([1, 2]) == 1, "one token is always left to compute"
    model.completed(2, (1, 2))
    assert model.least_hits([1, 2, 3]) == 1, "either twin may be the one that is found"
    model.recycled(0)
    assert model.least_hits([1, 2, 3]) == 0
    model.completed(0, (1,))
    assert model.least_hits([1, 2, 3]) == 1
    model.reset()
    assert model.least_hits([1, 2, 3]) == 0


def test_a_rendered_trace_evaluates_to_itself() -> None:
    for seed in range(50):
        trace = random_trace(seed)
        assert eval(render_trace(trace), {"Trace": Trace, "Request": Request}) == trace


def test_a_rendered_cell_runs() -> None:
    exec(render_cell(random_trace(1)), {})
    exec(render_cell(random_trace(1), "import math", "run_trace(trace, scheduler_factory())"), {})


def test_scheduler_factory_passes_every_limit_on() -> None:
    trace = Trace(
        3, 7, (), max_num_seqs=2, max_num_batched_tokens=5, max_model_len=11, eos_token_ids=(4,), hash_range=2
    )
    scheduler = scheduler_factory()(trace)
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.max_model_len) == (2, 5, 11)
    assert scheduler.eos_token_ids == {4}
    assert (scheduler.block_manager.num_blocks, scheduler.block_manager.block_size) == (7, 3)


def test_an_empty_trace_ends_at_once() -> None:
    result = run_trace(Trace(4, 4, ()))
    assert (result.completions, result.batches) == ({}, [])


def test_a_failure_says_where_and_shows_the_requests() -> None:
    with pytest.raises(TraceFailure) as caught:
        run_trace(Trace(2, 2, (Request((1,), 2),)), lambda trace: scheduler_factory()(Trace(2, 2, (), max_model_len=2)))
    failure = caught.value
    assert (failure.step, failure.phase, failure.kind) == (0, "postprocess()", "end")
    assert str(failure).startswith("step 0, postprocess(): expected request 0 goes on after 2 tokens; actual: ")
    assert failure.requests[0].startswith("request 0 finished: completion [")
    assert failure.state["running"] == []
