"""docs/coverage.md names cells that exist, and the questions' notebooks are all there."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[(\d\d): ([^\]]+)\]\(\.\./notebooks/([\w.]+)\)")


def headings(name: str) -> set[str]:
    book = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    return set(re.findall(r"^#+ (.+)$", text, re.M))


def faults(page: str) -> list[str]:
    """Places that the page names and that are not there."""
    found = []
    for number, heading, name in LINK.findall(page):
        if not (ROOT / "notebooks" / name).exists():
            found.append(f"there is no notebook {name}")
        elif not name.startswith(number) or heading not in headings(name):
            found.append(f"{name} has no heading {heading!r}")
    return found


def test_every_place_exists() -> None:
    assert len(LINK.findall(PAGE)) > 100
    assert faults(PAGE) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[41: Buckets]", "[41: Bucket brigade]", "has no heading 'Bucket brigade'"),
        ("../notebooks/41_graphs_and_compile.ipynb", "../notebooks/41_graphs.ipynb", "no notebook 41_graphs.ipynb"),
    ],
)
def test_a_place_that_went_away_is_found(old: str, new: str, told: str) -> None:
    assert old in PAGE
    assert told in faults(PAGE.replace(old, new, 1))[0]


def test_every_row_of_a_claim_names_a_place_and_what_was_seen() -> None:
    tables = PAGE.split("## Measured beside the claims")[0]
    rows = [
        line for line in tables.splitlines() if line.startswith("| ") and not line.startswith(("| claim", "| section"))
    ]
    assert len(rows) > 80
    for row in rows:
        cells = [cell.strip() for cell in re.sub(r"\\\|", "", row).strip("|").split(" | ")]
        assert len(cells) == 3, row
        assert LINK.search(cells[1]), row
        assert cells[2], row


def test_no_notebook_is_left_out() -> None:
    named = {name for _, _, name in LINK.findall(PAGE)}
    assert {path.name for path in (ROOT / "notebooks").glob("*.ipynb")} == named


def test_three_questions_for_each_notebook_of_part_4() -> None:
    text = (ROOT / "docs" / "questions_part4.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("4*.ipynb")):
        part = re.search(rf"^## {path.stem[:2]} .*?(?=^## |\Z)", text, re.M | re.S)
        assert part is not None, path.name
        assert len(re.findall(r"^\d\. \*", part[0], re.M)) == 3
