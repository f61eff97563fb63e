"""A random tiny checkpoint, one engine for all tests of a module, and servers on free loopback ports."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures import one_thread as one_thread
from fixtures import tiny as tiny
from helpers import assert_idle, make_llm

pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")

from nanovllm import LLM
from nanovllm.serve.server import BackgroundServer
from nanovllm.serve.settings import ServeSettings

StartServer = Callable[..., BackgroundServer]


@pytest.fixture(scope="module")
def llm(tiny: Path) -> Iterator[LLM]:
    with make_llm(tiny) as engine:
        yield engine


@pytest.fixture
def start(llm: LLM) -> Iterator[StartServer]:
    """Start a server with some settings, on the module's engine or on another one; all blocks must be back after."""
    with ExitStack() as stack:

        def start_server(engine: LLM | None = None, **settings: Any) -> BackgroundServer:
            chosen = engine or llm
            stack.callback(assert_idle, chosen)
            return stack.enter_context(BackgroundServer(chosen, ServeSettings(**({"port": 0} | settings))))

        yield start_server


@pytest.fixture
def server(start: StartServer) -> BackgroundServer:
    return start()


@pytest.fixture
def client(server: BackgroundServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as made:
        yield made


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for a condition, a few seconds at most."""

    def wait(condition: Callable[[], bool], seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.005)

    return wait
