"""Ctrl-C, failing steps, failing hooks and cancellation: nothing is left behind, nobody else's tokens change."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_idle, assert_same_greedy, greedy, make_llm, run_to_end, token_ids_of

from nanovllm import LLM

Prompts = list[list[int]]
TIGHT = {"num_kvcache_blocks": 21, "max_num_batched_tokens": 20}  # chunked prefills and preemptions


@pytest.fixture(autouse=True)
def default_sigint() -> Iterator[None]:
    """Python's own handler, as in a terminal or a notebook, and a check that it is put back."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are delivered to the main thread only")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def on_step(llm: LLM, number: int, act: Callable[[], Any], phase: str = "forward") -> None:
    """Do `act` once inside step `number` (1 is the first), when the runner reaches `phase`."""
    seen = 0

    def hook(name: str) -> None:
        nonlocal seen
        if name == phase:
            seen += 1
            if seen == number:
                act()

    llm.model_runner.on_phase = hook


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def ctrl_c_from_a_thread() -> None:
    thread = threading.Thread(target=ctrl_c)
    thread.start()
    thread.join()


def ctrl_c_twice() -> None:
    ctrl_c()
    ctrl_c()


def raise_in_the_runner() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt", [ctrl_c, ctrl_c_from_a_thread, ctrl_c_twice, raise_in_the_runner])
@pytest.mark.parametrize("step", [1, 2, 4, 7, 12])
@pytest.mark.parametrize("overlap", [False, True])
def test_ctrl_c_leaves_nothing_behind(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, step: int, interrupt: Callable[[], None], overlap: bool
) -> None:
    """The interrupted generate cancels its own requests; those queued before it give the tokens they would have."""
    with make_llm(tiny, overlap=overlap, **TIGHT) as llm:
        earlier = {llm.add_request(prompts[n], greedy(14)): n for n in (5, 1)}
        for _ in range(2):
            llm.step()
        on_step(llm, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, greedy(14), use_tqdm=False)
        llm.model_runner.on_phase = None
        llm.scheduler.check_integrity()
        assert llm.scheduler.sequences.keys() <= earlier.keys()
        outputs = {**llm.uncollected, **run_to_end(llm)}
        assert outputs.keys() == earlier.keys()
        got = [outputs[i].token_ids for i in earlier]
        assert_same_greedy(judge, [prompts[n] for n in earlier.values()], [expected[n] for n in earlier.values()], got)
        assert_idle(llm)
        again = llm.generate(prompts, greedy(14), use_tqdm=False)
        assert_same_greedy(judge, prompts, expected, token_ids_of(again))


def test_the_first_ctrl_c_waits_for_the_end_of_the_step(llm: LLM, prompts: Prompts) -> None:
    """The step under way is finished and booked, so that no request is lost half-way through the scheduler."""
    events: list[str] = []
    llm.on_event = events.append
    on_step(llm, 2, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, greedy(14), use_tqdm=False)
    assert events.count("begin") == events.count("end") == 2


def test_generate_in_a_thread_installs_no_handler(llm: LLM, prompts: Prompts, expected: Prompts) -> None:
    """Only the main thread may; elsewhere generate works as always."""
    got: list[list[int]] = []
    thread = threading.Thread(target=lambda: got.extend(token_ids_of(llm.generate(prompts, greedy(14), False))))
    thread.start()
    thread.join()
    assert got == expected


def test_a_handler_of_ones_own_is_kept(llm: LLM, prompts: Prompts) -> None:
    """Whoever has installed another handler (a server) gets the signal, and generate goes on."""
    caught: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        on_step(llm, 2, ctrl_c)
        assert len(llm.generate(prompts[:2], greedy(5), use_tqdm=False)) == 2
        assert caught == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Boom(Exception):
    """What a failing kernel raises."""


def boom() -> None:
    raise Boom


@pytest.mark.parametrize("phase", ["prepare", "forward", "sample"])
@pytest.mark.parametrize("step", range(1, 16))
def test_a_failing_step_is_undone(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, step: int, phase: str
) -> None:
    """The error reaches the caller, the scheduler is consistent, and stepping on gives the right tokens."""
    with make_llm(tiny, **TIGHT) as llm:
        ids = [llm.add_request(p, greedy(14)) for p in prompts]
        on_step(llm, step, boom, phase)
        outputs = {}
        failures = 0
        while not llm.is_finished():
            try:
                outputs.update((o.request_id, o.token_ids) for o in llm.step().finished)
            except Boom:
                failures += 1
                assert all(s.num_scheduled_tokens == 0 for s in llm.scheduler.sequences.values())
            llm.scheduler.check_integrity()
        assert failures == 1
        assert_same_greedy(judge, prompts, expected, [outputs[i] for i in ids])
        assert_idle(llm)


@pytest.mark.parametrize("budget", [16, 16384])
def test_every_step_fails_once(tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, budget: int) -> None:
    """Twice the steps, the same tokens."""
    with make_llm(tiny, num_kvcache_blocks=21, max_num_batched_tokens=budget) as llm:
        ids = [llm.add_request(p, greedy(14)) for p in prompts]
        outputs = {}
        failures, fail = 0, True

        def hook(name: str) -> None:
            if name == "forward" and fail:
                raise Boom

        llm.model_runner.on_phase = hook
        while not llm.is_finished():
            fail = True
            try:
                assert llm.step().num_seqs == 0  # only an empty step runs nothing: all were preempted
            except Boom:
                failures += 1
            fail = False
            outputs.update((o.request_id, o.token_ids) for o in llm.step().finished)
        assert failures >= 14
        assert_same_greedy(judge, prompts, expected, [outputs[i] for i in ids])
        assert_idle(llm)


@pytest.mark.parametrize("event", ["begin", "schedule", "run", "postprocess"])
@pytest.mark.parametrize("step", [1, 3, 8])
def test_a_failing_hook_is_undone(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, step: int, event: str
) -> None:
    """A tracer that raises must not leave requests scheduled that never ran."""
    with make_llm(tiny, **TIGHT) as llm:
        ids = [llm.add_request(p, greedy(14)) for p in prompts]
        seen = 0

        def hook(name: str) -> None:
            nonlocal seen
            seen += name == event
            if name == event and seen == step:
                raise Boom

        llm.on_event = hook
        outputs = {}
        failures = 0
        while not llm.is_finished():
            try:
                outputs.update((o.request_id, o.token_ids) for o in llm.step().finished)
            except Boom:
                failures += 1
            llm.scheduler.check_integrity()
        assert failures == 1
        assert_same_greedy(judge, prompts, expected, [outputs[i] for i in ids])
        assert_idle(llm)


def test_a_failing_generate_cancels_its_own_requests_only(
    llm: LLM, judge: Any, prompts: Prompts, expected: Prompts
) -> None:
    earlier = llm.add_request(prompts[4], greedy(14))
    on_step(llm, 3, boom)
    with pytest.raises(Boom):
        llm.generate(prompts, greedy(14), use_tqdm=False)
    assert list(llm.scheduler.sequences) == [earlier]
    outputs = run_to_end(llm)
    assert_same_greedy(judge, [prompts[4]], [expected[4]], [outputs[earlier].token_ids])
    assert_idle(llm)


# --- abort ----------------------------------------------------------------------------------------------------------


def test_abort_while_waiting(llm: LLM, prompts: Prompts) -> None:
    request_id = llm.add_request(prompts[3], greedy(14))
    output = llm.abort(request_id)
    assert output is not None
    assert (output.request_id, output.finish_reason, output.token_ids) == (request_id, "abort", [])
    assert output.metrics.ttft is None
    assert output.metrics.tpot is None
    assert output.metrics.e2e_latency is not None
    assert_idle(llm)


def test_abort_in_the_middle_of_a_prefill(tiny: Path, prompts: Prompts) -> None:
    with make_llm(tiny, max_num_batched_tokens=10) as llm:
        request_id = llm.add_request(prompts[5], greedy(14))
        llm.step()
        assert llm.scheduler.sequences[request_id].num_cached_tokens == 10
        assert llm.scheduler.block_manager.num_used_blocks > 0
        output = llm.abort(request_id)
        assert output is not None
        assert (output.finish_reason, output.token_ids) == ("abort", [])
        assert_idle(llm)


def test_abort_while_running(llm: LLM, prompts: Prompts, expected: Prompts) -> None:
    """What it had so far is returned."""
    request_id = llm.add_request(prompts[4], greedy(14))
    for _ in range(5):
        llm.step()
    output = llm.abort(request_id)
    assert output is not None
    assert output.token_ids == expected[4][:5]
    assert output.metrics.num_completion_tokens == 5
    assert_idle(llm)


def test_abort_after_preemption(tiny: Path, judge: Any, prompts: Prompts, expected: Prompts) -> None:
    """A preempted request waits with the tokens it has sampled, and is cancelled with them."""
    with make_llm(tiny, num_kvcache_blocks=16) as llm:
        first, second = (llm.add_request(p, greedy(14)) for p in (prompts[5], prompts[4]))
        while not llm.scheduler.sequences[second].num_preemptions:
            llm.step()
        assert llm.scheduler.sequences[second] in llm.scheduler.waiting
        output = llm.abort(second)
        assert output is not None
        assert output.token_ids == expected[4][: len(output.token_ids)]
        assert output.token_ids
        assert output.metrics.num_preemptions == 1
        assert_same_greedy(judge, [prompts[5]], [expected[5]], [run_to_end(llm)[first].token_ids])
        assert_idle(llm)


def test_abort_of_what_is_over_or_unknown(llm: LLM, prompts: Prompts) -> None:
    """None, twice too, and nothing changes."""
    request_id = llm.add_request(prompts[1], greedy(2))
    run_to_end(llm)
    other = llm.add_request(prompts[1], greedy(2))
    assert llm.abort(request_id) is None
    assert llm.abort(12345) is None
    assert llm.abort(other) is not None
    assert llm.abort(other) is None
    assert_idle(llm)


@pytest.mark.parametrize("step", range(1, 16))
@pytest.mark.parametrize("phase", ["prepare", "forward", "sample"])
def test_abort_inside_a_step(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, step: int, phase: str
) -> None:
    """Cancelled while its own step runs, the last one too: blocks are given back once, mates are untouched."""
    with make_llm(tiny, **TIGHT) as llm:
        ids = [llm.add_request(p, greedy(14)) for p in prompts]
        cancelled: list[Any] = []
        on_step(llm, step, lambda: cancelled.extend([llm.abort(ids[0]), llm.abort(ids[3])]), phase)
        outputs = run_to_end(llm)
        assert len(cancelled) == 2
        for n, output in zip((0, 3), cancelled, strict=True):
            if output is None:
                assert outputs[ids[n]].token_ids == expected[n]
            else:
                assert ids[n] not in outputs
                assert output.token_ids == expected[n][: len(output.token_ids)]
        rest = [n for n in range(len(prompts)) if n not in (0, 3)]
        assert_same_greedy(
            judge, [prompts[n] for n in rest], [expected[n] for n in rest], [outputs[ids[n]].token_ids for n in rest]
        )
        assert_idle(llm)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 12, 17])
@pytest.mark.parametrize("event", ["begin", "schedule", "run", "postprocess", "end"])
def test_abort_in_a_hook(tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, step: int, event: str) -> None:
    """Cancelled between any two parts of a step, also when it was scheduled and has not run yet."""
    with make_llm(tiny, **TIGHT) as llm:
        ids = [llm.add_request(p, greedy(14)) for p in prompts]
        seen: list[str] = []

        def hook(name: str) -> None:
            seen.append(name)
            if name == event and seen.count(name) == step:
                llm.abort(ids[0])
                llm.abort(ids[3])

        llm.on_event = hook
        outputs = run_to_end(llm)
        rest = [n for n in range(len(prompts)) if n not in (0, 3)]
        assert_same_greedy(
            judge, [prompts[n] for n in rest], [expected[n] for n in rest], [outputs[ids[n]].token_ids for n in rest]
        )
        assert_idle(llm)


def test_abort_of_a_whole_scheduled_batch(llm: LLM, prompts: Prompts) -> None:
    for prefill in (True, False):
        ids = [llm.add_request(p, greedy(14)) for p in prompts[:3]]
        if not prefill:
            llm.step()
        llm.on_event = lambda name: [llm.abort(i) for i in ids if name == "run"]  # noqa: B023
        step = llm.step()
        assert (step.num_seqs, step.num_tokens, step.new_tokens, step.finished) == (0, 0, [], [])
        llm.on_event = None
        assert_idle(llm)


@pytest.mark.parametrize("which", [[1], [0, 1, 2]])
def test_abort_of_a_request_that_generate_waits_for(
    llm: LLM, prompts: Prompts, expected: Prompts, which: list[int]
) -> None:
    """A stop button: generate returns, with what the cancelled request had, in its place."""
    on_step(llm, 4, lambda: [llm.abort(n) for n in which])
    budget = 200

    def give_up(event: str) -> None:
        nonlocal budget
        budget -= event == "begin"
        assert budget > 0, "generate waits for a request that was cancelled"

    llm.on_event = give_up
    outputs = llm.generate(prompts[:3], greedy(14), use_tqdm=False)
    assert [o.finish_reason for o in outputs] == ["abort" if n in which else "length" for n in range(3)]
    for n, output in enumerate(outputs):
        assert output.token_ids == (expected[n][:3] if n in which else expected[n])
    assert_idle(llm)
