"""Many clients, impatient clients, clients that leave, an engine that fails: nothing is lost, told twice, or kept."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from helpers import make_llm

from nanovllm import LLM
from nanovllm.serve.server import BackgroundServer
from nanovllm.serve.settings import ServeSettings

Until = Callable[..., None]
LONG = {"prompt": "a long one", "max_tokens": 480, "temperature": 0, "ignore_eos": True}
SHORT = {"prompt": "short", "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def slow(tiny: Any) -> Any:
    """An engine that runs one request at a time."""
    with make_llm(tiny, max_num_seqs=1) as llm:
        yield llm


async def first_line(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """Start a stream and leave after its first event."""
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            return


def test_a_full_queue_is_a_429_with_retry_after(slow: LLM) -> None:
    async def play(url: str, server: BackgroundServer) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            kept = [asyncio.create_task(client.post("/v1/completions", json=LONG | {"max_tokens": 60})) for _ in "ab"]
            while len(server.service.open) < 2:
                await asyncio.sleep(0.002)
            refused = await client.post("/v1/completions", json=SHORT)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "7"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert "2 requests run or wait and the limit is 2" in refused.json()["error"]["message"]
            assert [(await task).status_code for task in kept] == [200, 200]
            assert (await client.post("/v1/completions", json=SHORT)).status_code == 200

    with BackgroundServer(slow, ServeSettings(port=0, max_queue=1, retry_after=7)) as server:
        asyncio.run(play(server.url, server))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_gives_all_blocks_back(server: BackgroundServer, until: Until, stream: bool) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            if stream:
                await first_line(client, LONG)
            else:
                task = asyncio.create_task(client.post("/v1/completions", json=LONG))
                while not server.service.engine.load.running:
                    await asyncio.sleep(0.001)
                task.cancel()

    asyncio.run(leave())
    until(lambda: not server.service.open and server.service.engine.load.used_blocks == 0)
    assert 'outcome="abort"} 1.0' in httpx.get(f"{server.url}/metrics").text


def test_a_deadline_ends_a_request_that_runs_and_one_that_waits(slow: LLM, until: Until) -> None:
    async def play(server: BackgroundServer) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            running = asyncio.create_task(client.post("/v1/completions", json=LONG))
            while not server.service.engine.load.running:
                await asyncio.sleep(0.002)
            waited = await client.post("/v1/completions", json=SHORT | {"timeout": 0.02, "stream": True})
            running.cancel()
            ran = await client.post("/v1/completions", json=LONG | {"timeout": 0.05})
            for answer in (waited, ran):
                assert answer.status_code == 504
                assert answer.json()["error"]["code"] == "deadline"

    with BackgroundServer(slow) as server:
        asyncio.run(play(server))
        until(lambda: not server.service.open and server.service.engine.load.used_blocks == 0)
        counted = httpx.get(f"{server.url}/metrics").text
    assert 'nanovllm_requests_total{outcome="504"} 2.0' in counted
    assert 'nanovllm_requests_total{outcome="abort"} 1.0' in counted  # the client that left


def test_a_deadline_within_a_stream_is_an_event(server: BackgroundServer) -> None:
    body = LONG | {"stream": True, "timeout": 0.15}
    lines = [line for line in httpx.post(f"{server.url}/v1/completions", json=body).text.split("\n") if line]
    assert len(lines) > 1
    assert json.loads(lines[-1][6:])["error"]["code"] == "deadline"


def test_a_failing_step_is_told_and_the_next_request_is_answered(
    server: BackgroundServer, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        for name in ("run", "launch"):  # the plain loop's way and the overlapped one's
            patch.setattr(llm.ranks, name, fail)
        answer = httpx.post(f"{server.url}/v1/completions", json=SHORT)
        assert answer.status_code == 500
        assert "the engine failed: RuntimeError: planted" in answer.json()["error"]["message"]
    assert httpx.post(f"{server.url}/v1/completions", json=SHORT).status_code == 200


def test_draining_finishes_what_runs_and_refuses_the_rest(slow: LLM) -> None:
    async def play(server: BackgroundServer) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            running = asyncio.create_task(client.post("/v1/completions", json=LONG))
            while not server.service.engine.load.running:
                await asyncio.sleep(0.002)
            waiting = [
                asyncio.create_task(client.post("/v1/completions", json=SHORT | {"stream": s})) for s in (True, False)
            ]
            while len(server.service.open) < 3:
                await asyncio.sleep(0.002)
            server.begin_drain()
            while not server.service.is_draining:
                await asyncio.sleep(0.002)
            late = await client.post("/v1/completions", json=SHORT)
            assert (await client.get("/health")).json()["status"] == "draining"
            for answer in (late, *[await task for task in waiting]):
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "1"
                assert "the server is shutting down" in answer.json()["error"]["message"]
            assert (await running).json()["usage"]["completion_tokens"] == LONG["max_tokens"]

    with BackgroundServer(slow) as server:
        asyncio.run(play(server))
    assert slow.scheduler.block_manager.num_used_blocks == 0


def test_what_does_not_finish_within_the_drain_is_cut_off_and_told(slow: LLM) -> None:
    async def play(server: BackgroundServer) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            running = asyncio.create_task(client.post("/v1/completions", json=LONG))
            while not server.service.engine.load.running:
                await asyncio.sleep(0.002)
            server.begin_drain()
            answer = await running
            assert answer.status_code == 503
            assert "drain_timeout is 0.02 s" in answer.json()["error"]["message"]

    with BackgroundServer(slow, ServeSettings(port=0, drain_timeout=0.02)) as server:
        asyncio.run(play(server))
    assert slow.scheduler.block_manager.num_used_blocks == 0
