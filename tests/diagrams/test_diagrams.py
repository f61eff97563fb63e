"""A diagram cannot go stale: the code that it names exists, and its committed picture is what its source says."""

import re
from pathlib import Path

import pytest

from diagrams import FOLDER, all_diagrams
from diagrams.__main__ import main
from diagrams.adapt import STAMP, digest
from diagrams.draw import Diagram
from diagrams.names import problem
from nanovllm.viz.svg import FULL

ALL = {diagram.name: diagram for diagram in all_diagrams()}
EVERY = pytest.mark.parametrize("name", ALL)
WANTED = {
    "architecture", "startup", "prefill_step", "decode_step", "sequence_states", "block_life", "prefix_chain",
    "slot_mapping", "memory_map", "tensor_parallel_layer", "control_channel", "topology", "bench_matrix",
}  # fmt: skip


def committed(name: str) -> str:
    return (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


def drift(diagram: Diagram, text: str) -> str | None:
    """How a file differs from what its source draws, or None. Needs no Graphviz, whose versions place things apart."""
    stamp = STAMP.search(text)
    if stamp is None:
        return f"{diagram.name} has no stamp"
    if stamp[1] != digest(diagram.source):
        return f"{diagram.name}'s source has changed since it was drawn: python -m diagrams {diagram.name}"
    if stamp[2] != digest(text.replace(stamp[0], "").removesuffix("\n")):
        return f"{diagram.name}.svg was changed by hand: change its source and run python -m diagrams {diagram.name}"
    return None


def test_every_diagram_has_its_picture_and_no_picture_is_left_over() -> None:
    assert set(ALL) == WANTED
    assert {path.stem for path in FOLDER.glob("*.svg")} == WANTED


@EVERY
def test_the_code_that_it_names_exists(name: str) -> None:
    names = [dotted for names in ALL[name].code.values() for dotted in names]
    assert names, "a diagram of the engine names code"
    assert [found for dotted in names if (found := problem(dotted))] == []


@pytest.mark.parametrize(
    ("dotted", "told"),
    [
        ("nanovllm.scheduler.scheduler.Scheduler.plan_step", "has no 'plan_step'"),
        ("nanovllm.scheduler.scheduler.Planner", "has no 'Planner'"),
        ("nanovllm.scheduler.planner.Planner", "nanovllm.scheduler has no 'planner'"),
        ("nanovllm.scheduler.scheduler.Scheduler.sleeping", "has no 'sleeping'"),
        ("nanovllmm.LLM", "no module 'nanovllmm'"),
    ],
)
def test_a_name_that_went_away_is_found(dotted: str, told: str) -> None:
    found = problem(dotted)
    assert found is not None
    assert told in found


def test_fields_that_an_instance_sets_count_as_code() -> None:
    assert problem("nanovllm.scheduler.scheduler.Scheduler.waiting") is None
    assert problem("nanovllm.paged_kv.memory.MemoryBudget.held") is None


@EVERY
def test_the_committed_picture_is_what_the_source_draws(name: str) -> None:
    assert drift(ALL[name], committed(name)) is None


def test_drift_is_found_on_either_side() -> None:
    diagram, text = all_diagrams()[0], committed("architecture")
    assert "by hand" in str(drift(diagram, text.replace("waiting deque", "waiting list")))
    diagram.node("more", "one more box")
    assert "source has changed" in str(drift(diagram, text))


@EVERY
def test_it_fits_a_page_and_can_be_read(name: str) -> None:
    text = committed(name)
    width = re.search(r'width="([\d.]+)"', text)
    shrunk = re.search(r"translate\([^)]*\) scale\(([\d.]+)\)", text)
    assert width is not None
    assert shrunk is not None
    smallest = min(float(size) for size in re.findall(r'font-size="([\d.]+)"', text))
    assert float(width[1]) <= FULL
    assert smallest * 4 / 3 * float(shrunk[1]) >= 10, "letters smaller than 10 px"


@EVERY
def test_it_follows_light_and_dark(name: str) -> None:
    """Words are in a colour of the theme, unless they stand on a request's full colour."""
    from nanovllm.viz.theme import HUES

    text = committed(name)
    assert "prefers-color-scheme:dark" in text
    plain = [shape for shape in re.findall(r"<text\b[^>]*>", text) if "class=" not in shape]
    assert [shape for shape in plain if not any(f'fill="{hue.on}"' in shape for hue in HUES)] == []


@EVERY
def test_it_says_in_words_what_it_shows(name: str) -> None:
    assert len(ALL[name].words) > 80
    assert "<desc>" in committed(name)


def test_facts_about_other_software_name_their_source() -> None:
    other = [key for key in ("api", "coordinator", "core", "worker") if key in ALL["topology"].sources]
    assert other == ["api", "coordinator", "core", "worker"]


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["architekture"]) == 1
    assert "the diagrams are architecture, startup" in capsys.readouterr().err


def test_one_command_rebuilds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygraphviz")
    monkeypatch.setattr("diagrams.__main__.FOLDER", tmp_path / "diagrams" / "svg")
    (tmp_path / "diagrams").mkdir()
    assert main(["slot_mapping"]) == 0
    assert drift(ALL["slot_mapping"], (tmp_path / "diagrams" / "svg" / "slot_mapping.svg").read_text()) is None


def test_the_page_lists_every_diagram_and_the_notebooks_that_show_it() -> None:
    root = FOLDER.parents[1]
    rows = re.findall(r"^\| \[(\w+)\]\(\.\./diagrams/svg/(\w+)\.svg\) \|.*\| ([^|]+) \|$", _page(root), re.M)
    assert {name for name, _, _ in rows} == {file for _, file, _ in rows} == WANTED
    for name, _, notebooks in rows:
        for number in re.findall(r"\d\d", notebooks):
            (book,) = (root / "notebooks").glob(f"{number}_*.ipynb")
            assert f"diagrams/svg/{name}.svg" in book.read_text(encoding="utf-8"), f"{number} does not show {name}"


def _page(root: Path) -> str:
    return (root / "docs" / "diagrams.md").read_text(encoding="utf-8")
