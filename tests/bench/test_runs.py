"""Tiny real runs of each experiment on a two-layer random checkpoint; refusals of the command. No time is asserted."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

from nanovllm import LLM
from nanovllm.bench.errors import BenchError
from nanovllm.bench.experiments import graphs, prefix, pressure, throughput, tp
from nanovllm.bench.options import Options
from nanovllm.bench.peers import check_peer
from nanovllm.bench.plots import pictures_of
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import load
from nanovllm.bench.workload import Shape
from nanovllm.cli.main import main
from tests.bench.made import FAKE_NANO_VLLM, FAKE_VLLM, fake_checkout
from tests.helpers import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def options(model: str) -> Options:
    return Options(model, quick=True, repeats=2, limits={"device": "cpu", "kvcache_block_size": 4}, progress=False)


def test_throughput(options: Options) -> None:
    options.shapes, options.batches = [Shape.parse("6/3"), Shape.parse("2:9/1")], [1, 3]
    result = throughput.run(options)
    assert [(p.shape, p.batch) for p in result.points] == [("6/3", 1), ("6/3", 3), ("2:9/1", 1), ("2:9/1", 3)]
    point = result.points[1]
    assert len(point.repeats) == 2
    for r in point.repeats:
        assert [q.completion_tokens for q in r.requests] == [3, 3, 3]
        assert (r.prefill_tokens, r.decode_tokens) == (18, 6)
        assert r.prefill_seconds is not None
        assert r.decode_seconds is not None
        assert math.isclose(r.prefill_seconds + r.decode_seconds, r.seconds)
        assert all(0 <= q.arrival <= q.first_token <= q.finish for q in r.requests if q.first_token is not None)
        assert r.memory_bytes[0] > 0
    assert result.points[2].decode_tok_s is None  # one token each: it comes from the prefill
    assert result.engines[0].kv["block_size"] == 4
    assert result.engines[0].limits["max_num_seqs"] == 3
    assert [p.name for p in pictures_of(result)] == ["throughput"]


def test_prefix_finds_exactly_the_whole_shared_blocks(options: Options) -> None:
    result = prefix.run(options)
    batch = result.settings["batch"]
    for p in result.points:
        assert p.hit_blocks.values == [batch * p.shared_blocks] * 2
    per_prompt = result.settings["prompt_blocks"] * 4 + result.settings["own_tail_tokens"]
    assert result.points[0].computed_tokens.median == batch * per_prompt
    assert result.points[-1].computed_tokens.median == batch * result.settings["own_tail_tokens"]
    assert pictures_of(result)


def test_pressure_preempts_only_where_the_pool_is_short(options: Options) -> None:
    options.shapes, options.batches = [Shape.parse("8/12")], [4]
    result = pressure.run(options)
    assert result.points[0].num_blocks == result.settings["needed_blocks"] == 20
    assert result.points[0].preemptions.high == 0
    assert result.points[-1].preemptions.low > 0
    assert result.points[-1].recomputed.low > 0
    assert all(p.peak_blocks.high <= p.num_blocks for p in result.points)
    first, last = result.points[-1].repeats
    assert not first.timeline
    assert sum(len(s.preempted) for s in last.timeline) == sum(q.preemptions for q in last.requests)
    assert [p.name for p in pictures_of(result)] == ["pressure", "pressure_timeline_20", "pressure_timeline_7"]


def test_tp_measures_collectives_on_two_ranks(options: Options) -> None:
    options.shapes, options.batches, options.repeats = [Shape.parse("6/3")], [2], 1
    result = tp.run(options)
    assert [p.ranks for p in result.points] == [1, 2]
    alone, both = (p.collective_share for p in result.points)
    assert alone is not None
    assert both is not None
    assert alone.median == 0
    assert 0 < both.median < 1
    assert len(result.points[1].repeats[0].memory_bytes) == 2
    assert pictures_of(result)


def test_graphs_are_skipped_on_a_cpu_and_the_measuring_itself_runs_anywhere(options: Options) -> None:
    result = graphs.run(options)
    assert result.skipped is not None
    assert "needs an NVIDIA GPU" in result.skipped
    assert pictures_of(result) == []
    with LLM(options.model, device="cpu", num_kvcache_blocks=8, max_num_seqs=2) as llm, Progress("", 1, False) as bar:
        for mode in graphs.MODES:
            points = [graphs.measure_batch(llm, mode, Shape.parse("4/3"), n, options, bar) for n in (1, 2)]
            result.points += points
        assert "launch" not in vars(llm.model_runner)
    assert all(0 < p.launch.median <= p.decode_step.median for p in result.points)
    result.skipped = None
    assert [p.name for p in pictures_of(result)] == ["graphs"]


# --- peers ----------------------------------------------------------------------------------------------------------


def test_transformers_runs_the_same_requests(options: Options) -> None:
    options.shapes, options.batches, options.peer = [Shape.parse("6/3")], [2], "transformers"
    result = throughput.run(options)
    assert [p.engine for p in result.points] == ["nanovllm", "transformers"]
    ours, theirs = (p.repeats[0].requests for p in result.points)
    assert [(q.prompt_tokens, q.completion_tokens) for q in ours] == [
        (q.prompt_tokens, q.completion_tokens) for q in theirs
    ]
    assert result.points[1].prefill_tok_s is None
    assert "transformers" in result.engines[1].versions
    assert [p.name for p in pictures_of(result)] == ["throughput", "throughput_engines"]


@pytest.mark.parametrize(
    ("peer", "package", "source"), [("nano-vllm", "nanovllm", FAKE_NANO_VLLM), ("vllm", "vllm", FAKE_VLLM)]
)
def test_adapters_call_a_peer_as_it_wants_to_be_called(options: Options, tmp_path, peer, package, source) -> None:
    """Against a stand-in with the peer's signatures; the peers themselves need a GPU."""
    options.shapes, options.batches, options.repeats, options.peer = [Shape.parse("6/3")], [2], 1, peer
    options.peer_path = fake_checkout(tmp_path / "checkout", package, source)
    result = throughput.run(options)
    assert [p.engine for p in result.points] == ["nanovllm", peer]


def test_a_peer_that_gives_other_counts_is_no_comparison(options: Options, tmp_path: Path) -> None:
    options.shapes, options.batches, options.peer = [Shape.parse("6/3")], [2], "vllm"
    source = FAKE_VLLM.replace("one(p.max_tokens)", "one(1)")
    options.peer_path = fake_checkout(tmp_path / "checkout", "vllm", source)
    with pytest.raises(BenchError, match="gave 2 completion tokens where 6 were asked for"):
        throughput.run(options)


def test_a_peer_that_fails_is_told_with_its_last_line(options: Options, tmp_path: Path) -> None:
    options.shapes, options.batches, options.peer = [Shape.parse("6/3")], [2], "vllm"
    options.peer_path = fake_checkout(tmp_path / "checkout", "vllm", "raise RuntimeError('no driver')")
    with pytest.raises(BenchError, match=r"vllm failed with exit code 1: RuntimeError: no driver"):
        throughput.run(options)


@pytest.mark.parametrize(
    ("peer", "sentence"), [("nano-vllm", "pass --peer-path nano-vllm"), ("vllm", "vllm is not installed: pip install")]
)
def test_a_missing_peer_says_how_to_add_it(options: Options, peer: str, sentence: str) -> None:
    if peer == "vllm" and importlib.util.find_spec("vllm"):
        pytest.skip("vllm is installed here")
    options.peer = peer
    with pytest.raises(BenchError, match=sentence):
        check_peer(options, "cpu")


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_everything_and_compares(model: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # 80 may not be enough for a table: that depends on what was measured
    out, extra = tmp_path / "out", tmp_path / "extra.json"
    command = ["bench", "throughput", "--model", model, "--shape", "4/2", "--batch", "1,2", "--repeats", "1",
               "--device", "cpu", "--num-kvcache-blocks", "8"]  # fmt: skip
    assert main([*command, "--out", str(out), "--json", str(extra)]) == 0
    told = capsys.readouterr().out
    assert "Offline batch throughput" in told
    assert {p.name for p in out.iterdir()} == {"results.json", "report.html", "throughput.png"}
    assert load(extra) == load(out / "results.json")
    assert main([*command, "--out", str(out), "--json", "-", "--no-report"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["experiment"] == "throughput"
    assert main(["bench", "--compare", str(extra), str(out / "results.json")]) == 0
    told = capsys.readouterr().out
    assert "B / A" in told
    assert "environment and settings are the same" in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name an experiment (throughput"),
        (["graphs", "--device", "cpu"], "needs an NVIDIA GPU"),
        (["graphs", "--enforce-eager"], "graphs varies enforce_eager itself: leave --enforce-eager out"),
        (["tp", "--tensor-parallel-size", "2"], "leave --tensor-parallel-size out"),
        (["pressure", "--num-kvcache-blocks", "4"], "leave --num-kvcache-blocks out"),
        (["prefix", "--engine", "vllm"], "--engine runs throughput on another engine"),
        (["throughput", "--batch", "1,x"], "no list of integers"),
        (["throughput", "--batch", "0"], "a batch size must be between 1 and 4,096"),
        (["throughput", "--repeats", "0"], "repeats must be between 1 and 1,000"),
        (["throughput", "--shape", "12"], "is no shape"),
        (["throughput", "--model", "no-such-model"], "no checkpoint 'no-such-model'"),
        (["--compare", "a.json", "b.json"], "cannot read a.json"),
    ],
)
def test_refusals_are_one_sentence(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.startswith("nanovllm bench: ")
    assert told.count("\n") == 1
