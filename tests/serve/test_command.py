"""`nanovllm serve` as a process: it says where it listens, and SIGTERM in the middle of an answer drains it."""

import gc
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from nanovllm.cli.main import main
from nanovllm.errors import ConfigError, NanoVLLMError
from nanovllm.serve import server
from nanovllm.serve.server import bind, listen
from nanovllm.serve.settings import ServeSettings


def test_sigterm_lets_running_streams_finish_and_refuses_the_rest(tiny: Path) -> None:
    """One stream runs, two requests wait, one comes late; then the process ends with code 0."""
    command = [sys.executable, "-m", "nanovllm", "serve", "--model", str(tiny), "--port", "0", "--json"]
    limits = ["--max-model-len", "512", "--num-kvcache-blocks", "8", "--device", "cpu", "--max-num-seqs", "1"]
    with subprocess.Popen([*command, *limits], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            body = {"prompt": "hello", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
            with (
                ThreadPoolExecutor(2) as pool,
                httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response,
            ):
                lines = response.iter_lines()
                next(lines)
                short = {"prompt": "short", "max_tokens": 3}
                waiting = [
                    pool.submit(httpx.post, f"{url}/v1/completions", json=short | {"stream": s}, timeout=30)
                    for s in (True, False)
                ]
                while httpx.get(f"{url}/health").json()["open"] < 3:
                    time.sleep(0.002)
                process.send_signal(signal.SIGTERM)
                refused = [task.result() for task in waiting]
                refused.append(httpx.post(f"{url}/v1/completions", json=short, timeout=30))
                rest = [line for line in lines if line]
            for answer in refused:
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "shutting_down"
                assert answer.headers["retry-after"] == "1"
            assert rest[-1] == "data: [DONE]"
            assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
            _, complaint = process.communicate(timeout=20)
            assert process.returncode == 0, complaint
            assert complaint == ""
        finally:
            process.kill()


def test_a_port_in_use_is_told_before_anything_is_loaded(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    port = start().url.rsplit(":", 1)[1]
    assert main(["serve", "--model", "no-such-checkpoint", "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a second bind is refused at once")
def test_of_two_servers_that_load_at_once_one_gets_the_port() -> None:
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        listen(first)
        with pytest.raises(NanoVLLMError, match=r"cannot listen on 127\.0\.0\.1 port"):
            listen(second)


def test_a_missing_extra_is_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert main(["serve"]) == 2
    assert 'uvicorn not installed: a server needs pip install "nanovllm[serve]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"port": 70_000}, "port must be between 0 and 65,535"),
        ({"max_queue": -1}, "max_queue must be at least 0"),
        ({"request_timeout": 0}, "request_timeout must be a number above 0"),
        ({"api_key": ""}, "api_key is empty"),
        ({"model_name": ""}, "model_name is empty: give it at least one character, or leave it out"),
        ({"host": ""}, "host is empty: name 0.0.0.0"),
        ({"host": None}, "host must be a text, not None"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ServeSettings(**wrong)


def test_it_binds_to_loopback_unless_told_otherwise() -> None:
    assert ServeSettings().host == "127.0.0.1"


def test_no_thread_is_left(start: Any) -> None:
    assert start().url
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("engine") == 1


def test_the_collector_spares_the_engine_while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    class Stopped:
        def run(self, sockets: Any) -> None:
            counts.append(gc.get_freeze_count())

    monkeypatch.setattr(server, "make_server", lambda *args: Stopped())
    sock = bind("127.0.0.1", 0)
    with sock:
        server.serve(None, ServeSettings(), sock, print)  # type: ignore[arg-type]
    assert counts[0] > 1000
    assert gc.get_freeze_count() == 0
