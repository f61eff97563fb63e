"""The article's workload, counts apart from times, and recorded results."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nanovllm.bench.record import RESULTS, save
from nanovllm.bench.stats import number
from nanovllm.course.errors import CourseError
from nanovllm.course.lessons_bench import Figures, published_lengths, recorded_run, small
from nanovllm.course.recorded import FOLDER, Recorded, recorded
from nanovllm.viz.theme import HUES

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
    result = small("prefix")
    save([result], tmp_path / "mine.json")
    shown = recorded_run("prefix", tmp_path / "mine.json", "a shelf")
    assert f"torch {result.environment.versions['torch']}" in shown.text()
    assert shown.text().endswith("the whole record: a shelf")
    assert "1,088" in shown.text()
    assert "found, blocks" in shown.text()
    assert "TTFT, ms" in shown.text()
    with pytest.raises(CourseError, match=r"no run of 'graphs' is recorded in mine\.json; there are prefix"):
        recorded_run("graphs", tmp_path / "mine.json")


@pytest.mark.parametrize("name", RESULTS)
def test_every_experiment_is_recorded_on_a_gpu(name: str) -> None:
    run = recorded_run(name)
    assert (DOCS.parent / run.source).exists()
    assert run.text().count("NVIDIA H200") == 1
    for point, shown in run.rows.items():
        row = next(line for line in run.text().splitlines() if line.startswith(point))
        assert shown
        assert [spread for spread in shown.values() if number(spread.median) not in row] == []


def test_the_picture_of_figures_has_a_bar_for_each() -> None:
    figures = Figures(small("prefix"))
    drawn = ElementTree.fromstring(figures.svg())
    tips = [element.text or "" for element in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert len(tips) == sum(len(row) for row in figures.rows.values())
    assert any(tip.startswith("1,088; repeats from 1,088 to 1,088") for tip in tips)


def test_points_of_a_mode_share_a_colour_and_a_floor_is_marked() -> None:
    text = recorded_run("graphs").svg()
    assert text.count(f'fill="{HUES[0].fill}"') == text.count(f'fill="{HUES[1].fill}"') == 5 * 4
    assert text.count("floor of the hardware") == 10
    assert "stroke-dasharray" not in recorded_run("prefix").svg()


def test_what_was_skipped_has_no_picture() -> None:
    bundle = Figures(small("graphs"))._repr_mimebundle_()
    assert set(bundle) == {"text/plain"}


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
