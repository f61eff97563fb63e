"""Decode starvation with the real engine: seen with the plain policy, bounded with ours, the same tokens in both."""

import asyncio
import itertools
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers import greedy, make_llm, random_prompts, run_to_end

from nanovllm import LLM
from nanovllm.engine.outputs import StepOutput
from nanovllm.serve.policy import BoundedPrefill
from nanovllm.serve.server import BackgroundServer
from nanovllm.serve.settings import ServeSettings

STEPS = 60


@pytest.fixture
def engine(tiny: Path) -> Iterator[LLM]:
    with make_llm(tiny, max_num_seqs=64) as llm:
        yield llm


class StepWatch:
    """Notes in which steps a request got its tokens."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.tokens: dict[int, list[int]] = {}
        book = llm.book

        def watched(*arguments: Any) -> StepOutput:
            output = book(*arguments)
            self.steps += 1
            for request_id, _ in output.new_tokens:
                self.tokens.setdefault(request_id, []).append(self.steps)
            return output

        monkeypatch.setattr(llm, "book", watched)

    def longest_gap(self) -> int:
        return max(b - a for steps in self.tokens.values() for a, b in pairwise(steps))


def flood(llm: LLM, watch: StepWatch) -> list[int]:
    """One request of 20 tokens, and a new short one before every step; the tokens of the first."""
    first = llm.add_request(random_prompts([7])[0], greedy(20))
    for prompt in random_prompts([6] * STEPS, seed=1):
        llm.add_request(prompt, greedy(1))
        for output in llm.step().finished:
            if output.request_id == first:
                return output.token_ids
    return run_to_end(llm)[first].token_ids


def test_the_plain_policy_starves_and_ours_does_not(engine: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StepWatch(engine, monkeypatch)
    plain_tokens = flood(engine, watch)
    assert watch.longest_gap() >= STEPS - 1
    run_to_end(engine)
    engine.policy = policy = BoundedPrefill(2)
    watch = StepWatch(engine, monkeypatch)
    tokens = flood(engine, watch)
    run_to_end(engine)
    assert watch.longest_gap() == policy.gap_bound == 3
    assert tokens == plain_tokens
    assert engine.scheduler.block_manager.num_used_blocks == 0


@pytest.mark.parametrize("most", [1, 3])
def test_the_bound_holds_behind_the_server(engine: LLM, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    watch = StepWatch(engine, monkeypatch)
    body = {"temperature": 0, "ignore_eos": True}
    count = itertools.count()

    async def play(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            running = asyncio.create_task(
                client.post("/v1/completions", json=body | {"prompt": "the one that runs", "max_tokens": 100})
            )

            async def pester(number: int) -> None:
                while not running.done():  # six chunks each; no two begin alike, so none is in the prefix cache
                    ask = body | {"prompt": [next(count) % 256, number] * 45, "max_tokens": 1}
                    assert (await client.post("/v1/completions", json=ask)).status_code == 200

            await asyncio.gather(*(pester(number) for number in range(12)))
            assert (await running).json()["usage"]["completion_tokens"] == 100

    with BackgroundServer(engine, ServeSettings(port=0, max_prefill_steps=most, max_prefill_tokens=16)) as server:
        asyncio.run(play(server.url))
        load = server.service.engine.load
        assert load.prefill_steps > 10
        assert load.held_back_steps > 0
        assert f'nanovllm_held_back_total{{reason="max_prefill_steps"}} {load.held_back_steps}.0' in (
            httpx.get(f"{server.url}/metrics").text
        )
    assert watch.longest_gap() <= most + 1
