"""The article's workload, counts apart from times, and recorded results."""

import json
import re
from pathlib import Path

import pytest

from nanovllm.bench.record import save
from nanovllm.course.errors import CourseError
from nanovllm.course.lessons_bench import Figures, published_lengths, recorded_run, small
from nanovllm.course.recorded import FOLDER, Recorded, recorded

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLES = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))


def test_the_published_workload_has_the_published_number_of_tokens() -> None:
    lengths = published_lengths()
    assert len(lengths) == 256
    assert sum(completion for _, completion in lengths) == 133_966
    assert all(100 <= n <= 1024 for pair in lengths for n in pair)


def test_counts_are_exact_and_times_are_kept_apart() -> None:
    result = small("prefix")
    counts, times = Figures(result, counted=True), Figures(result, counted=False)
    assert [spread["computed_tokens"].median for spread in counts.rows.values()] == [1088, 576, 64]
    assert set(counts.names) & set(times.names) == set()
    assert "prefill_seconds" in times.names
    assert "0 of 8 blocks shared" in counts.text()


def test_an_experiment_that_cannot_run_says_why() -> None:
    assert "needs an NVIDIA GPU" in Figures(small("graphs"), counted=False).text()


def test_a_run_recorded_elsewhere_is_shown_with_its_environment(tmp_path: Path) -> None:
    assert recorded_run("prefix", tmp_path).startswith("no run is recorded yet")
    result = small("prefix")
    save([result], tmp_path / "prefix.json")
    shown = recorded_run("prefix", tmp_path)
    assert str(Figures(result, counted=False)) in shown
    assert f"torch {result.environment.versions['torch']}" in shown


@pytest.mark.parametrize("name", TABLES)
def test_a_recorded_table_carries_its_environment(name: str) -> None:
    table = recorded(name)
    assert len(table.environment) > 40
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.environment in table.text()


def missing(table: Recorded) -> list[str]:
    """Rows whose figures no line of the published table has in this order."""
    lines = (DOCS.parent / table.source).read_text(encoding="utf-8").splitlines()
    rows = [re.findall(r"[\d.,]+", " ".join(row)) for row in table.rows]
    return [row for row in table.rows if not any(_in_order(row[1:], line) for line in lines)] if rows else []


def _in_order(cells: list[str], line: str) -> bool:
    at = 0
    for cell in cells:
        at = line.find(cell, at)
        if at < 0:
            return False
        at += len(cell)
    return True


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table["source"].endswith(".md")])
def test_recorded_figures_are_the_published_ones(name: str) -> None:
    assert missing(recorded(name)) == []


def test_a_figure_that_is_not_published_is_found() -> None:
    table = recorded("decode_step")
    wrong = Recorded(**(TABLES["decode_step"] | {"rows": [["1", "1.112", "0.954", "0.086", "0.172"], *table.rows[1:]]}))
    assert missing(wrong) == [["1", "1.112", "0.954", "0.086", "0.172"]]


def test_columns_by_name() -> None:
    table = recorded("vllm")
    assert table.numbers("vLLM 0.26.0")["single"] == 456
    assert "single" not in table.numbers("nano-vLLM")  # a range is no number
    with pytest.raises(CourseError, match="has no column 'vLLM'"):
        table.column("vLLM")
    with pytest.raises(CourseError, match="there is no recorded table"):
        recorded("nothing")
