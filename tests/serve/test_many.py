"""1,000 requests over sockets, 64 at a time, from clients that stay, leave, give up and hang up while they send."""

import asyncio
import gc
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from helpers import assert_idle, greedy, make_llm

from nanovllm import LLM
from nanovllm.serve.server import BackgroundServer
from nanovllm.serve.settings import ServeSettings

REQUESTS, AT_ONCE = 1000, 64
WARM_UP = 200  # requests before the memory is read: buffers, caches and connections are there by then
MAX_GROWTH = 24 * 2**20  # bytes of resident memory in the rest
PLANS = ("whole", "stream", "leave", "give up", "hang up")
WEIGHTS = (4, 4, 2, 2, 1)


@pytest.fixture
def engine(tiny: Path) -> Iterator[LLM]:
    with make_llm(tiny, max_num_seqs=32, num_kvcache_blocks=192) as llm:  # fewer blocks than 32 requests may need
        yield llm


def prompt_of(number: int) -> list[int]:
    return [1 + number % 250, 2 + number // 250, *range(3, 3 + number % 7)]


def length_of(number: int) -> int:
    return 1 + number % 16


class Crowd:
    """The clients. answers: text by number, for those that stayed; every number at most once."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.rng = random.Random(seed)
        self.answers: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()

    async def play(self, numbers: range) -> None:
        todo = iter(numbers)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=60, limits=limits) as client:

            async def worker() -> None:
                for number in todo:
                    await self.one(client, number, self.rng.choices(PLANS, WEIGHTS)[0])

            await asyncio.gather(*(worker() for _ in range(AT_ONCE)))

    async def one(self, client: httpx.AsyncClient, number: int, plan: str) -> None:
        body: dict[str, Any] = {"prompt": prompt_of(number), "max_tokens": length_of(number)}
        body |= {"temperature": 0, "ignore_eos": True, "stream": plan in ("stream", "leave")}
        if plan == "whole":
            answer = (await client.post("/v1/completions", json=body)).json()
            assert answer["usage"]["completion_tokens"] == length_of(number)
            self.keep(number, answer["choices"][0]["text"])
        elif plan == "stream":
            self.keep(number, await read_stream(client, body))
        elif plan == "leave":
            async with client.stream("POST", "/v1/completions", json=body | {"max_tokens": 200}) as response:
                lines = response.aiter_lines()
                for _ in range(self.rng.randrange(1, 12)):
                    await anext(lines)
        elif plan == "give up":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(
                    client.post("/v1/completions", json=body | {"max_tokens": 400}), self.rng.uniform(0.001, 0.05)
                )
        else:
            await self.hang_up(json.dumps(body).encode())
        self.outcomes[plan] += 1

    def keep(self, number: int, text: str) -> None:
        assert number not in self.answers
        self.answers[number] = text

    async def hang_up(self, body: bytes) -> None:
        """Promise a body, send half of it, and close the connection."""
        host, port = self.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[: len(body) // 2])
        await writer.drain()
        writer.close()


async def read_stream(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """The text of a whole stream, which ends exactly once."""
    pieces, ends, reasons = [], 0, []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                ends += 1
            elif line:
                choice = json.loads(line[6:])["choices"][0]
                pieces.append(choice["text"])
                reasons.append(choice["finish_reason"])
    assert ends == 1
    assert [r for r in reasons if r] == ["length"]
    return "".join(pieces)


def resident() -> int:
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


def test_a_thousand_requests_lose_nothing_and_keep_nothing(engine: LLM, until: Callable[..., None]) -> None:
    with BackgroundServer(engine, ServeSettings(port=0, max_queue=2 * AT_ONCE)) as server:
        crowd, service = Crowd(server.url, seed=0), server.service

        def idle() -> bool:
            return not service.open and service.engine.load.used_blocks == 0

        asyncio.run(crowd.play(range(WARM_UP)))
        until(idle)
        before = resident()
        asyncio.run(crowd.play(range(WARM_UP, REQUESTS)))
        until(idle)
        growth = resident() - before
        ended = {
            sample.labels["outcome"]: int(sample.value)
            for family in service.metrics.requests.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }
    assert_idle(engine)
    assert crowd.outcomes.total() == REQUESTS
    assert min(crowd.outcomes[plan] for plan in PLANS) > 40
    stayed = crowd.outcomes["whole"] + crowd.outcomes["stream"]
    assert len(crowd.answers) == stayed
    # 499: gone before the body was read. Who gave up early may not have been read at all.
    assert set(ended) <= {"length", "abort", "499"}
    assert ended["length"] >= stayed
    assert ended["abort"] >= 0.9 * crowd.outcomes["leave"]  # stopped within a few steps, not run to their 200 tokens
    unseen = REQUESTS - sum(ended.values())
    assert 0 <= unseen <= crowd.outcomes["give up"] + crowd.outcomes["hang up"]
    assert growth < MAX_GROWTH, f"{growth / 2**20:.1f} MiB more after {REQUESTS - WARM_UP} requests"
    check_texts(engine, crowd)


def check_texts(engine: LLM, crowd: Crowd) -> None:
    """Each of some got the text of its own prompt: nobody was given another's tokens."""
    numbers = sorted(crowd.answers)[::8]
    outputs = engine.generate([prompt_of(n) for n in numbers], [greedy(length_of(n)) for n in numbers], use_tqdm=False)
    wrong = [n for n, output in zip(numbers, outputs, strict=True) if crowd.answers[n] != output.text]
    assert not wrong, f"{len(wrong)} of {len(numbers)} answers differ from generate()'s, request {wrong[0]} first"
