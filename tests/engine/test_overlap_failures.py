"""A step of the overlapped loop that fails loses nothing: the same requests, asked again, give the same tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import random_prompts

from nanovllm import LLM, SamplingParams
from nanovllm.engine.outputs import StepOutput
from nanovllm.engine.overlap import OverlappedLoop
from nanovllm.errors import NanoVLLMError
from nanovllm.paged_kv.in_flight import PendingTokens

PROMPTS = random_prompts([3, 7, 12, 5, 9])
PARAMS = [SamplingParams(temperature=t, seed=4, max_tokens=n) for t, n in ((0, 9), (1, 12), (0, 5), (1, 7), (0, 12))]
LIMITS: dict[str, Any] = {"overlap": True, "skip_tokenizer_init": True, "kvcache_block_size": 2}


class StepError(RuntimeError):
    """What the tests make a step fail with."""


def fail_launches(llm: LLM, failing: set[int], after: bool) -> list[int]:
    """Let the launches with these numbers fail, before they start or (`after`) with all their work done."""
    launch, calls = llm.model_runner.launch, []

    def flaky(*args: Any, **kwargs: Any) -> PendingTokens:
        calls.append(len(calls))
        if calls[-1] in failing and not after:
            raise StepError("before")
        pending = launch(*args, **kwargs)
        if calls[-1] in failing:
            feed = args[3] if len(args) > 3 else None
            fed_from = pending if feed is None else feed.pending
            if fed_from.sampled is not None:
                with torch.inference_mode():
                    fed_from.sampled.fill_(0)  # with CUDA graphs all steps sample into the same memory
            raise StepError("after")
        return pending

    llm.model_runner.launch = flaky  # type: ignore[method-assign]
    return calls


def finish(llm: LLM, again: Callable[[], Any]) -> tuple[dict[int, list[int]], int]:
    """Step until nothing is left, calling again after each failure: the tokens, and how many steps failed."""
    done, failures = {}, 0
    while not llm.is_finished():
        try:
            step = again()
        except StepError:
            failures += 1
            assert all(seq.num_scheduled_tokens == 0 for seq in llm.scheduler.running), "nothing is left in flight"
            llm.scheduler.check_integrity()
            continue
        done.update({o.request_id: o.token_ids for o in step.finished})
    llm.scheduler.check_integrity()
    assert llm.scheduler.block_manager.num_used_blocks == 0
    return done, failures


@pytest.fixture(scope="module")
def wanted(tiny: Path) -> list[list[int]]:
    with LLM(str(tiny), overlap=False, skip_tokenizer_init=True) as llm:
        return [o.token_ids for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("failing", [{0}, {1}, {2}, {3, 4}, {5, 8, 9}], ids=str)
@pytest.mark.parametrize("max_num_batched_tokens", [64, 5])
def test_a_launch_that_fails_is_tried_again(
    tiny: Path, wanted: list[list[int]], failing: set[int], after: bool, max_num_batched_tokens: int
) -> None:
    """Launch 0 is a prefill; from 1 on each is launched with another one in flight. 5 tokens a step: 8 prefills."""
    with LLM(str(tiny), **LIMITS, max_num_batched_tokens=max_num_batched_tokens) as llm:
        ids = [llm.add_request(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        calls = fail_launches(llm, failing, after)
        done, failures = finish(llm, OverlappedLoop(llm).step)
        assert failures == len(failing)
        assert len(calls) > max(failing) + 1
    assert [done[i] for i in ids] == wanted


@pytest.mark.parametrize("read", [1, 3])
@pytest.mark.parametrize("max_num_batched_tokens", [64, 5])
def test_tokens_that_never_arrive_are_sampled_again(
    tiny: Path,
    wanted: list[list[int]],
    read: int,
    max_num_batched_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU a kernel's error shows when the tokens are read, with the next step launched already."""
    reads, result = [], PendingTokens.result

    def flaky(pending: PendingTokens) -> list[int | None]:
        reads.append(pending)
        if len(reads) == read + 1:
            raise StepError("an error of the device")
        return result(pending)

    with LLM(str(tiny), **LIMITS, max_num_batched_tokens=max_num_batched_tokens) as llm:
        ids = [llm.add_request(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        monkeypatch.setattr(PendingTokens, "result", flaky)
        done, failures = finish(llm, OverlappedLoop(llm).step)
    assert failures == 1
    assert [done[i] for i in ids] == wanted


def test_after_a_failure_the_plain_step_can_go_on(tiny: Path, wanted: list[list[int]]) -> None:
    """The loop may be dropped without `cancel` then: it left nothing in flight."""
    with LLM(str(tiny), **LIMITS) as llm:
        ids = [llm.add_request(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        fail_launches(llm, {3}, after=True)
        loop = OverlappedLoop(llm)
        for _ in range(2):
            loop.step()
        with pytest.raises(StepError):
            loop.step()
        done, failures = finish(llm, llm.step)
    assert failures == 0
    assert [done[i] for i in ids] == wanted


def test_generate_that_fails_cancels_its_requests_and_leaves_the_others(tiny: Path, wanted: list[list[int]]) -> None:
    with LLM(str(tiny), **LIMITS) as llm:
        earlier = llm.add_request(PROMPTS[0], PARAMS[0])
        fail_launches(llm, {4}, after=True)
        with pytest.raises(StepError):
            llm.generate(PROMPTS[1:], PARAMS[1:], use_tqdm=False)
        assert list(llm.scheduler.sequences) == [earlier]
        llm.scheduler.check_integrity()
        again = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [o.token_ids for o in again] == wanted
        assert llm.uncollected[earlier].token_ids == wanted[0]
        assert llm.scheduler.block_manager.num_used_blocks == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_closed_under_way_says_so(tiny: Path, overlap: bool) -> None:
    """Closed between two steps, with one in flight: the engine's own sentence, not an error from inside."""
    with LLM(str(tiny), **(LIMITS | {"overlap": overlap})) as llm:
        book, steps = llm.book, []

        def close_after_three(*args: Any) -> StepOutput:
            steps.append(book(*args))
            if len(steps) == 3:
                llm.exit()
            return steps[-1]

        llm.book = close_after_three  # type: ignore[method-assign]
        with pytest.raises(NanoVLLMError, match="this engine is closed: build a new one"):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert llm.is_finished()
