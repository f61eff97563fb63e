"""JSON round trip, the environment record, the report."""

import json
from pathlib import Path

import pytest

from nanovllm.bench import style
from nanovllm.bench.environment import PACKAGES, files_hash
from nanovllm.bench.errors import BenchError
from nanovllm.bench.record import load, save
from tests.bench.made import environment, skipped, throughput_result


def test_results_come_back_from_json_as_they_were(tmp_path: Path) -> None:
    results = [throughput_result(4.0, 5.0), skipped()]
    save(results, tmp_path / "deep" / "r.json")
    assert load(tmp_path / "deep" / "r.json") == results


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.update(schema="other/1"), "no benchmark result of schema"),
        (lambda d: d["results"][0].update(experiment="speed"), "unknown experiment 'speed'"),
        (lambda d: d["results"][0].pop("environment"), "lacks the field 'environment'"),
        (lambda d: d["results"][0].update(colour=1), "has a field 'colour'"),
        (lambda d: d["results"][0]["points"][0].update(batch="two"), r"points\[0\].batch must be a int"),
        (lambda d: d["results"][0].update(points={}), "points must be a list"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, change, sentence: str) -> None:
    path = tmp_path / "r.json"
    save([throughput_result()], path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(BenchError, match=sentence):
        load(path)


def test_a_missing_file_and_broken_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot read"):
        load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(BenchError, match="not valid JSON"):
        load(tmp_path / "bad.json")


def test_the_environment_record_is_complete() -> None:
    found = environment()
    assert set(found.versions) == {"python", "nanovllm", *PACKAGES}
    assert found.versions["torch"]
    assert found.cpu
    assert found.cpu_cores >= 1
    assert found.torch_threads >= 1
    assert found.gpu_count == len(found.gpus)
    assert found.date.endswith("Z")
    assert found.model.name == "qwen3-tiny"
    assert len(found.model.files_hash) == 64
    assert found.model.tokenizer_hash
    assert found.model.shape["num_hidden_layers"] == 5
    assert environment().model == found.model


def test_the_hash_of_a_checkpoint_sees_names_sizes_and_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "a.json", tmp_path / "w.safetensors"
    one.write_text("{}")
    two.write_bytes(bytes(3 * 2**20))
    before = files_hash([one, two])
    two.write_bytes(bytes(3 * 2**20 - 1) + b"x")
    assert files_hash([one, two]) != before
    two.write_bytes(bytes(3 * 2**20))
    assert files_hash([one, two]) == before
    one.write_text("[]")
    assert files_hash([one, two]) != before


def test_the_report_needs_no_network_and_says_what_was_skipped(tmp_path: Path) -> None:
    from nanovllm.bench.report import write_report

    pytest.importorskip("matplotlib")
    written = write_report([throughput_result(4.0, 5.0), skipped()], tmp_path)
    page = written[0].read_text(encoding="utf-8")
    assert [p.name for p in written] == ["report.html", "throughput.png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert page.count("<svg") == 1
    assert "<script" not in page
    assert "src=" not in page
    assert "Not run: it needs a GPU." in page
    assert "completion tokens / seconds" in page  # the formulas travel along
    assert "files_hash" in page


def test_without_matplotlib_there_is_a_sentence(monkeypatch) -> None:
    import builtins

    ordinary = builtins.__import__

    def without(name: str, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return ordinary(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BenchError, match=r"nanovllm\[notebooks\]"):
        style.require_matplotlib()
