"""The serve experiment: figures by hand, real runs on a tiny checkpoint, and errors that lose nothing."""

import contextlib
import json
from pathlib import Path

import pytest

from nanovllm.bench.errors import BenchError
from nanovllm.bench.experiments import prefix, pressure, registry, serve, throughput, tp
from nanovllm.bench.experiments.registry import run_experiment
from nanovllm.bench.experiments.serve_points import point_of, run_of
from nanovllm.bench.floor import Floor, Rates
from nanovllm.bench.options import PROFILES, Options, ServeOptions
from nanovllm.bench.plots import pictures_of
from nanovllm.bench.record import load, save
from nanovllm.bench.workload import Shape
from nanovllm.cli.main import main
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord
from tests.helpers import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def options(model: str, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr(serve, "MOST", 12)  # requests of a run
    options = Options(model, quick=True, repeats=2, limits={"device": "cpu", "kvcache_block_size": 4}, progress=False)
    options.shapes = [Shape.parse("2:9/3:5")]
    options.limits["max_num_seqs"] = 4
    options.serve = ServeOptions(rates=[400.0], concurrency=[3], transport="engine")
    return options


def test_figures_of_known_requests() -> None:
    quick = RequestRecord(0, due=1.0, sent=1.1, events=[1.5, 1.7, 2.5], status=200, num_completion_tokens=3)
    slow = RequestRecord(1, due=2.0, sent=2.0, events=[4.0], status=200, num_completion_tokens=1)
    lost = RequestRecord(2, due=2.0, sent=2.0, status=503, error="no")
    run = run_of(LoadReport([quick, slow, lost], 4.0, Limits()))
    assert run.requests[0].gap_longest == pytest.approx(0.8)
    assert run.requests[2].error == "no"
    point = point_of("p", "poisson", 5.0, None, [run], Limits(ttft=1.0))
    assert (point.requests_s.median, point.goodput.median, point.output_tok_s.median) == (0.5, 0.25, 1.0)
    assert point.in_time.median == pytest.approx(1 / 3)
    assert point.ttft_p50.median == pytest.approx(1250)
    assert point.tpot_p50 is not None
    assert point.tpot_p50.median == pytest.approx(500)
    assert point.e2e_p99.median == pytest.approx(1.5 + 0.99 * 0.5)
    assert point.itl_p50 is not None
    assert point.itl_p50.median == pytest.approx(500)  # gaps of 200 and 800 ms
    with pytest.raises(BenchError, match="none of 1 requests was answered: no"):
        point_of("p", "poisson", 5.0, None, [run_of(LoadReport([lost], 1.0, Limits()))], Limits())


@pytest.mark.parametrize("transport", ["engine", "http"])
def test_rates_and_concurrency(options: Options, transport: str, tmp_path: Path) -> None:
    options.serve.transport = transport
    options.model = "qwen3-tiny" if transport == "http" else options.model  # a server of text needs a tokenizer
    result = serve.run(options)
    assert [p.name for p in result.points] == ["poisson, 400 requests/s", "concurrency 3"]
    assert result.settings["transport"] == transport
    assert result.settings["capacity_requests_s"] > 0
    for point in result.points:
        for run in point.repeats:
            assert len(run.requests) == point.num_requests
            assert all(q.status == 200 and 3 <= q.completion_tokens <= 5 for q in run.requests)
            assert all(q.due <= q.sent <= q.first <= q.last for q in run.requests if q.first and q.last)
            assert all(2 <= q.prompt_tokens <= 9 for q in run.requests)
    first, second = (run.requests for run in result.points[0].repeats)
    assert [q.due for q in first] != [q.due for q in second]
    save([result], tmp_path / "r.json")
    assert load(tmp_path / "r.json") == [result]
    assert [p.name for p in pictures_of(result)] == ["serve_requests"]


def test_rates_are_shares_of_the_capacity_and_processes_stand_beside_each_other(options: Options) -> None:
    options.serve, options.repeats = ServeOptions(transport="engine"), 1
    result = serve.run(options)
    capacity = result.settings["capacity_requests_s"]
    rates = [p.rate / capacity for p in result.points if p.rate]
    assert rates == pytest.approx([0.4, 0.8, 1.2, 0.8, 0.8], rel=0.06)
    assert [p.arrivals for p in result.points] == ["poisson"] * 3 + ["fixed", "gamma"]
    assert [p.name for p in pictures_of(result)] == ["serve_rate", "serve_arrivals", "serve_requests"]
    assert "hardly more than the slowest" in result.notes[-1]


def test_a_trace_is_replayed_as_it_was(options: Options, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival,prompt_tokens,completion_tokens\n5.0,3,2\n5.05,7,4\n5.02,2,1\n")
    options.serve = ServeOptions(trace=path, transport="engine")
    (point,) = serve.run(options).points
    for run in point.repeats:
        assert [q.due for q in run.requests] == pytest.approx([0.0, 0.02, 0.05])
        assert [(q.prompt_tokens, q.completion_tokens) for q in run.requests] == [(3, 2), (2, 1), (7, 4)]


def test_http_without_a_tokenizer_is_refused_and_auto_goes_without_http() -> None:
    assert serve.choose_transport(ServeOptions(), has_tokenizer=True)[0] == "http"
    transport, why = serve.choose_transport(ServeOptions(), has_tokenizer=False)
    assert (transport, why) == ("engine", "the checkpoint has no tokenizer, and a server of text needs one")
    with pytest.raises(BenchError, match="pass --transport engine"):
        serve.choose_transport(ServeOptions(transport="http"), has_tokenizer=False)


def test_a_half_installed_server_is_measured_without_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastapi may be there while something that it needs is not."""

    def import_module(name: str) -> None:
        raise ModuleNotFoundError("No module named 'typing_inspection'")

    monkeypatch.setattr(serve.importlib, "import_module", import_module)
    transport, why = serve.choose_transport(ServeOptions(), has_tokenizer=True)
    assert transport == "engine"
    assert why.startswith("No module named 'typing_inspection'")
    with pytest.raises(BenchError, match="no HTTP server can run here: No module named 'typing_inspection'"):
        serve.choose_transport(ServeOptions(transport="http"), has_tokenizer=True)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rates": [0.0]}, "a rate must be a number above 0"),
        ({"concurrency": [0]}, "a concurrency must be at least 1|a concurrency must be between"),
        ({"arrivals": "uniform"}, "arrivals must be one of"),
        ({"transport": "grpc"}, "transport must be one of"),
        ({"tpot": -1.0}, "tpot limit must be"),
    ],
)
def test_wrong_loads_are_refused(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(BenchError, match=sentence):
        ServeOptions(**wrong)  # type: ignore[arg-type]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_keeps_the_points_before_it(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary, calls = pressure.measured, []

    def failing(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("planted")
        return ordinary(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(pressure, "measured", failing)
    options.shapes = [Shape.parse("12/12")]
    with pytest.raises(RuntimeError, match="planted"):
        run_experiment("pressure", options)
    calls.clear()
    options.keep_errors = True
    result = run_experiment("pressure", options)
    assert len(result.points) == 1
    assert result.error == "RuntimeError: planted"
    assert result.traceback is not None
    assert "failing" in result.traceback
    assert pictures_of(result)


def test_all_goes_on_after_an_error_and_says_so(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: Options) -> None:
        raise RuntimeError("planted")

    monkeypatch.setitem(registry.RUN, "prefix", fail)
    monkeypatch.setattr(serve, "MOST", 12)
    command = ["bench", "all", "--quick", "--model", model, "--device", "cpu", "--out", str(tmp_path), "--repeats", "1"]
    command += ["--shape", "6/3", "--batch", "2", "--ranks", "1", "--rates", "200", "--transport", "engine"]
    assert main([*command, "--no-progress"]) == 1
    results = {r.experiment: r for r in load(tmp_path / "results.json")}
    assert list(results) == ["throughput", "graphs", "prefix", "pressure", "tp", "serve"]
    assert results["prefix"].error == "RuntimeError: planted"
    assert all(results[name].points for name in ("throughput", "pressure", "tp", "serve"))
    assert "Prefix cache: ended by an error: RuntimeError: planted" in capsys.readouterr().out
    assert "Ended by an error" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_results_are_written_before_the_next_experiment_begins(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(options: Options) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(registry.RUN, "prefix", cut_off)
    command = ["bench", "all", "--quick", "--model", model, "--device", "cpu", "--out", str(tmp_path), "--repeats", "1"]
    with contextlib.suppress(KeyboardInterrupt):
        main([*command, "--shape", "6/3", "--batch", "2", "--no-progress"])
    told = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [r["experiment"] for r in told] == ["throughput", "graphs"]


# --- sizes and floors -------------------------------------------------------------------------------------------------


def test_every_profile_has_sizes_on_every_device() -> None:
    wanted = {(device, profile) for device in ("cpu", "cuda") for profile in PROFILES}
    for module in (serve, throughput, prefix, pressure, tp):
        assert set(module.DEFAULTS) == wanted, module.__name__
    with pytest.raises(BenchError, match="profile must be one of"):
        Options(profile="huge")


def test_the_floor_of_a_known_shape() -> None:
    raw = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_bias": False,
    }  # fmt: skip
    floor = Floor(Qwen3Config.from_dict(raw), 2, Rates(1e12, 1e15))
    assert floor.kv_bytes == 28 * 2 * 8 * 128 * 2
    assert floor.weights == 596_049_920  # the published parameter count, the embedding tied
    assert floor.decode_seconds([1000]) == pytest.approx((596_049_920 * 2 + 1000 * 114_688) / 1e12)
    many = floor.decode_seconds([1] * 4096)  # so many rows that the operations count
    assert many == pytest.approx(4096 * (2 * 596_049_920 + 4 * 16 * 128 * 28) / 1e15)
    told = floor.workload([10, 10], [3, 1])
    steps = [floor.decode_seconds([11]), floor.decode_seconds([12])]
    assert told["decode_tok_s"] == pytest.approx(2 / sum(steps))
    assert told["output_tok_s"] == pytest.approx(4 / (floor.prefill_seconds([10, 10]) + sum(steps)))
    assert "decode_tok_s" not in floor.workload([10], [1])


def test_throughput_has_a_floor_with_its_rates(options: Options) -> None:
    options.batches = [1, 2]
    result = throughput.run(options)
    assert result.settings["floor_rates"]["bytes_s"] > 1e6
    assert all(set(p.floor) >= {"prefill_tok_s", "decode_tok_s", "total_tok_s", "output_tok_s"} for p in result.points)
    assert "floor" in result.formulas
