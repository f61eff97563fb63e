"""The load generator: its arrivals, its figures, and a run against a real server."""

import asyncio
import json
import statistics
from itertools import pairwise
from typing import Any

import httpx
import pytest
from helpers import make_llm

from nanovllm.errors import ConfigError
from nanovllm.serve.command import KEY_VARIABLE
from nanovllm.serve.load import LoadPlan, main, run_load
from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord, percentiles
from nanovllm.serve.server import BackgroundServer, bind
from nanovllm.serve.settings import ServeSettings

BODY = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize(("arrivals", "shape", "variation"), [("poisson", 1, 1), ("gamma", 0.25, 2), ("fixed", 1, 0)])
def test_gaps_have_the_mean_and_the_spread_they_should(arrivals: str, shape: float, variation: float) -> None:
    plan = LoadPlan(["a"] * 20_000, rate=50, arrivals=arrivals, burstiness=shape, seed=3)
    times = list(plan.arrival_times())
    gaps = [b - a for a, b in pairwise(times)]
    mean = statistics.mean(gaps)
    assert times[0] == 0
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert statistics.pstdev(gaps) / mean == pytest.approx(variation, rel=0.06, abs=1e-6)
    assert times == list(plan.arrival_times())
    other = LoadPlan(["a"] * 10, rate=50, arrivals=arrivals, burstiness=shape, seed=4)
    assert (list(other.arrival_times()) == times[:10]) == (arrivals == "fixed")


def test_figures_of_known_records() -> None:
    quick = RequestRecord(0, due=1.0, sent=1.1, events=[1.5, 1.7, 2.5], status=200, num_completion_tokens=3)
    slow = RequestRecord(1, due=2.0, sent=2.0, events=[4.0], status=200, num_completion_tokens=1)
    refused = RequestRecord(2, due=2.0, sent=2.0, status=429)
    assert (quick.ttft, quick.tpot, quick.e2e, slow.tpot) == (0.5, 0.5, 1.5, None)
    summary = LoadReport([quick, slow, refused], 4.0, Limits(ttft=1.0)).summary()
    assert summary["by_status"] == {"200": 2, "429": 1}
    assert summary["requests_per_second"] == 0.5
    assert summary["completion_tokens_per_second"] == 1.0
    assert summary["goodput"] == 0.25
    assert summary["itl"]["max"] == pytest.approx(0.8)
    assert summary["ttft"]["p50"] == 1.25
    assert percentiles([]) is None


@pytest.mark.parametrize(
    "load", [{"rate": 200.0}, {"rate": 200.0, "arrivals": "gamma", "burstiness": 0.5}, {"concurrency": 4}]
)
def test_a_run_counts_what_the_server_counts(server: BackgroundServer, load: dict[str, Any]) -> None:
    plan = LoadPlan([f"prompt {i}" for i in range(24)], BODY, **load, limits=Limits(e2e=60.0))
    report = asyncio.run(run_load(server.url, plan))
    summary = report.summary()
    assert summary["completed"] == summary["requests"] == 24
    assert all(record.num_completion_tokens == 6 for record in report.records)
    assert all(record.due <= record.sent <= record.events[0] <= record.events[-1] for record in report.records)
    assert summary["goodput"] == pytest.approx(summary["requests_per_second"])
    metrics = httpx.get(f"{server.url}/metrics").text
    assert f"nanovllm_generation_tokens_total {24 * 6}.0" in metrics
    assert 'nanovllm_requests_total{outcome="length"} 24.0' in metrics
    (line,) = [line for line in metrics.splitlines() if line.startswith("nanovllm_time_to_first_token_seconds_sum")]
    assert 0 < float(line.split()[1]) <= sum(record.ttft for record in report.records)


def test_refusals_are_part_of_the_result(tiny: Any) -> None:
    with make_llm(tiny, max_num_seqs=1) as llm, BackgroundServer(llm, ServeSettings(port=0, max_queue=0)) as server:
        plan = LoadPlan(["a"] * 8, BODY | {"max_tokens": 100}, concurrency=8)
        counts = asyncio.run(run_load(server.url, plan)).summary()["by_status"]
        assert set(counts) == {"200", "429"}
        assert sum(counts.values()) == 8
        nobody = asyncio.run(run_load(server.url, LoadPlan(["a"], {"n": 3}, concurrency=1)))
        assert nobody.records[0].status == 400
    gone = asyncio.run(run_load(server.url, LoadPlan(["a"], BODY, concurrency=1)))
    assert gone.records[0].status == 0
    assert "ConnectError" in str(gone.records[0].error)


def test_a_load_is_either_open_or_closed() -> None:
    for both in ({}, {"rate": 1.0, "concurrency": 2}):
        with pytest.raises(ConfigError, match="either a rate or a concurrency"):
            LoadPlan(["a"], **both)
    with pytest.raises(ConfigError, match="arrivals must be one of"):
        LoadPlan(["a"], rate=1.0, arrivals="uniform")


def test_the_command(server: BackgroundServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([server.url, "--requests", "5", "--concurrency", "2", "--max-tokens", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 5


def test_the_command_with_the_key_that_the_server_asks_for(
    start: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [start(api_key="secret").url, "--requests", "2", "--concurrency", "1", "--max-tokens", "3"]
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert main(argv) == 1
    assert "2 of 2 requests failed, the first with: " in (told := capsys.readouterr().err)
    assert "this server asks for an API key" in told
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    assert main(argv) == 0
    assert capsys.readouterr().err == ""


def test_the_command_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as nobody:  # bound and not listening: refused at once
        assert main([f"http://127.0.0.1:{nobody.getsockname()[1]}", "--requests", "2", "--concurrency", "1"]) == 1
    streams = capsys.readouterr()
    assert json.loads(streams.out)["completed"] == 0
    assert "2 of 2 requests failed, the first with: ConnectError" in streams.err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("--requests", "0", "--rate", "1"), "--requests must be at least 1, not 0"),
        (("--rate", "-1"), "rate must be a number above 0"),
        (("--concurency", "2"), "unknown option '--concurency': did you mean '--concurrency'?"),
    ],
)
def test_a_wrong_load_is_one_sentence(argv: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["http://127.0.0.1:1", *argv])
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
