"""The committed record of a GPU: it can be read, names no machine, and is what the docs and the package show."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanovllm.bench.codec import to_plain
from nanovllm.bench.errors import BenchError
from nanovllm.bench.record import RESULTS, AnyResult, PrefixResult, TpResult, load
from nanovllm.course.recorded import FOLDER
from scripts.recorded_run import PICTURES, summary, tables

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "docs" / "results").glob("*.json*"))
SHOWN = ROOT / "docs" / "results" / "h200-short-2026-11-30.json.gz"
NEWER = ROOT / "docs" / "results" / "h200-short-2026-12-01.json.gz"
SUMMARY = FOLDER / "h200-short.json.gz"
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
A_PLACE = re.compile(r"(^|[\s\"'=:])(/|~/|[A-Z]:\\)\w|\b\w+@\w|\.(local|internal|lan)\b|\bip-\d|Traceback")


@pytest.fixture(scope="module")
def results() -> list[AnyResult]:
    return load(SHOWN)


def strings(value: Any) -> Iterator[str]:
    """Every text in plain values, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


@pytest.mark.parametrize("path", [*RECORDS, SUMMARY], ids=lambda path: path.name)
def test_a_committed_record_loads_and_names_no_machine(path: Path) -> None:
    for result in load(path):
        assert (result.error, result.traceback, result.skipped) == (None, None, None)
        assert result.points
        said = set(strings(to_plain(result) | {"formulas": {}}))
        assert [text for text in said if A_PLACE.search(text)] == []


@pytest.mark.parametrize("text", ["/a/b", "model=/a/b", "C:\\m", "me@host", "a.internal", "Traceback (most"])
def test_a_place_would_be_found(text: str) -> None:
    assert A_PLACE.search(text)


def test_it_has_all_six_experiments_with_raw_data(results: list[AnyResult]) -> None:
    assert [r.experiment for r in results] == list(RESULTS)
    for result in results:
        assert result.environment.gpus[0]["name"] == "NVIDIA H200"
        assert all(len(p.repeats) == result.settings["repeats"] == 3 for p in result.points)


def test_the_page_has_the_tables_of_the_record(results: list[AnyResult]) -> None:
    made = tables(results)
    assert set(made) == set(RESULTS) - {"tp"}
    for name, table in made.items():
        assert table in PAGE, name
    (one,) = next(r for r in results if isinstance(r, TpResult)).points
    assert one.output_tok_s.text() in PAGE


def test_the_page_has_the_throughput_of_the_newer_record() -> None:
    assert tables(load(NEWER))["throughput"] in PAGE


def test_another_figure_would_give_another_table(results: list[AnyResult]) -> None:
    other = copy.deepcopy(next(r for r in results if isinstance(r, PrefixResult)))
    other.points[0].hit_blocks = other.points[1].hit_blocks
    assert tables([other])["prefix"] not in PAGE


def test_the_page_shows_its_pictures() -> None:
    shown = set(re.findall(r"images/bench-h200-([\w-]+)\.png", PAGE))
    assert shown == set(PICTURES.values())
    assert {path.stem.removeprefix("bench-h200-") for path in (ROOT / "docs/images").glob("bench-h200-*")} == shown


def test_the_package_has_the_same_figures(results: list[AnyResult], tmp_path: Path) -> None:
    assert SUMMARY.stat().st_size < 100_000
    (tmp_path / "s.json.gz").write_bytes(summary(results))
    assert load(SUMMARY) == load(tmp_path / "s.json.gz")


@pytest.mark.parametrize("content", [b"{}", SHOWN.read_bytes()[:5000]], ids=["not compressed", "cut off"])
def test_a_compressed_file_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.json.gz").write_bytes(content)
    with pytest.raises(BenchError, match=r"cannot read .*: pass a results\.json"):
        load(tmp_path / "r.json.gz")
