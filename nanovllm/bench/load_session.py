"""Where a load goes: a server on loopback with the client in a process of its own, or the engine loop in this one."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO

from nanovllm import LLM
from nanovllm.bench.errors import BenchError
from nanovllm.serve.load_engine import EngineServer
from nanovllm.serve.load_plan import LoadPlan
from nanovllm.serve.load_report import LoadReport, RequestRecord
from nanovllm.serve.policy import BoundedPrefill
from nanovllm.serve.settings import ServeSettings

MAX_QUEUE = 100_000  # nothing is refused: an overload shows as waiting


class Session:
    """Plays plans, one after another."""

    def __init__(self, play: Callable[[LoadPlan], LoadReport]) -> None:
        self._play = play

    def run(self, plan: LoadPlan) -> LoadReport:
        """Send every request, wait for every answer."""
        return self._play(plan)


@contextmanager
def open_session(llm: LLM, transport: str) -> Iterator[Session]:
    """A session over "http" or straight to the "engine"."""
    with _over_http(llm) if transport == "http" else _in_process(llm) as session:
        yield session


@contextmanager
def _in_process(llm: LLM) -> Iterator[Session]:
    """In a thread with an asyncio loop of its own, so that it also works where a loop already runs (a notebook)."""
    steps = ServeSettings().max_prefill_steps
    server, runner = EngineServer(llm, BoundedPrefill(steps)), asyncio.Runner()
    with ThreadPoolExecutor(1, thread_name_prefix="load") as thread:
        thread.submit(lambda: runner.run(server.__aenter__())).result()
        try:
            yield Session(lambda plan: thread.submit(lambda: runner.run(server.run(plan))).result())
        finally:
            thread.submit(lambda: runner.run(server.__aexit__())).result()
            thread.submit(runner.close).result()


@contextmanager
def _over_http(llm: LLM) -> Iterator[Session]:
    from nanovllm.serve.server import BackgroundServer

    with BackgroundServer(llm, ServeSettings(port=0, max_queue=MAX_QUEUE)) as server, _client() as client:
        yield Session(lambda plan: _ask(client, server.url, plan))


@contextmanager
def _client() -> Iterator[subprocess.Popen[str]]:
    """The load generator as a process: a client in the server's process would take turns with it."""
    command = [sys.executable, "-m", "nanovllm.bench.load_worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        _pipe(process.stdin).close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _pipe(process.stdout).close()


def _ask(client: subprocess.Popen[str], url: str, plan: LoadPlan) -> LoadReport:
    fields = {name: getattr(plan, name) for name in LoadPlan.__dataclass_fields__ if name != "limits"}
    try:
        stdin = _pipe(client.stdin)
        stdin.write(json.dumps({"url": url, "plan": fields}) + "\n")
        stdin.flush()
        line = _pipe(client.stdout).readline()
    except OSError as error:
        raise BenchError(f"the load generator's process is gone ({error}): run this again") from error
    if not line:
        raise BenchError(f"the load generator's process ended with code {client.wait()}: its message stands above")
    told = json.loads(line)
    return LoadReport([RequestRecord(**record) for record in told["records"]], told["duration"], plan.limits)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
