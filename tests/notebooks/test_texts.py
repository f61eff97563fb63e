"""The form of the notebooks, their links and spelling, and their static pages. Each check has a planted failure."""

import re
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from scripts.notebooks import FOLDER, ROOT, WIDGET, read, scrub, to_html
from tests.notebooks.form import faults
from tests.notebooks.links import broken

BOOKS = sorted(FOLDER.glob("*.ipynb"))
TEXTS = [*BOOKS, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", BOOKS, ids=name)
def test_form(path: Path) -> None:
    assert faults(path) == []


def first_code(book: NotebookNode, at: int = 1) -> NotebookNode:
    cell: NotebookNode = [cell for cell in book.cells if cell.cell_type == "code"][at]
    return cell


def say(text: str) -> NotebookNode:
    return nbformat.v4.new_output("stream", text=text)


PLANTED: dict[str, Callable[[NotebookNode], Any]] = {
    "does not begin with a title": lambda b: b.cells[0].update(source="words"),
    "first code cell is not": lambda b: first_code(b, 0).update(source="import nanovllm"),
    "last three sections": lambda b: b.cells[-1].update(source="## More"),
    "not numbered from 1": lambda b: first_code(b).update(execution_count=7),
    "more than 25": lambda b: first_code(b).update(source="\n".join(["x = 1"] * 26)),
    "unknown tag": lambda b: first_code(b).metadata.update(tags=["no-check"]),
    "go together": lambda b: first_code(b).metadata.update(tags=["exercise"]),
    "no exercise '9.9'": lambda b: first_code(b).metadata.update(tags=["exercise"], nanovllm={"exercise": "9.9"}),
    "uses with your": lambda b: first_code(b).metadata.update(tags=["exercise"], nanovllm={"exercise": "1.1"}),
    "names the exercise": lambda b: first_code(b).update(source='with your("1.1"):\n    pass'),
    "output is an error": lambda b: first_code(b).update(
        outputs=[nbformat.v4.new_output("error", ename="KeyError", evalue="0", traceback=[])]
    ),
    "stderr": lambda b: first_code(b).update(outputs=[nbformat.v4.new_output("stream", name="stderr", text="oh")]),
    "something of this machine": lambda b: first_code(b).update(outputs=[say("<Thing at 0x7f23ca4b56d0>")]),
    "looks like a picture": lambda b: first_code(b).update(outputs=[say("<svg>")]),
    "says nothing": lambda b: first_code(b).update(
        outputs=[nbformat.v4.new_output("display_data", {"text/plain": "VBox(children=())"})]
    ),
    "live widget": lambda b: first_code(b).update(
        outputs=[nbformat.v4.new_output("display_data", {"text/plain": "x", WIDGET: {}})]
    ),
    "names a value and there is no output": lambda b: first_code(b).update(source="x = 1\nx", outputs=[]),
    "its metadata is not": lambda b: b.metadata.update(author="me"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_form_finds_a_planted_fault(fault: str, tmp_path: Path) -> None:
    book = read(FOLDER / "00_start_here.ipynb")
    PLANTED[fault](book)
    path = tmp_path / "00_planted.ipynb"
    path.write_text(nbformat.writes(book))
    assert any(fault in found for found in faults(path)), faults(path)


def test_scrub_leaves_what_matters_and_nothing_else() -> None:
    book = read(FOLDER / "00_start_here.ipynb")
    cell = first_code(book)
    cell.metadata.update(execution={"iopub.status.busy": "2026-01-01"}, tags=["exercise"], collapsed=True)
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/plain": "x", WIDGET: {}}, metadata={"a": 1})]
    scrub(book)
    assert cell.metadata == {"tags": ["exercise"]}
    assert cell.outputs[0].data == {"text/plain": "x"}
    assert cell.outputs[0].metadata == {}
    assert nbformat.writes(scrub(book)) == nbformat.writes(book)


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_links(path: Path) -> None:
    assert list(broken(path)) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text('# One heading, `code`\n\n<a id="term"></a>**Term.**\n')
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#one-heading-code) [c](there.md#term) [d](https://elsewhere.example/x#y)\n"
        "`[e](in_code.md)`\n\n```\n[f](in_code.md)\n```\n[g](gone.md) [h](there.md#gone) ![i](gone.png)\n"
    )
    assert [found.split(":")[0] for found in broken(page)] == ["gone.md", "there.md#gone", "gone.png"]


TYPOS = shutil.which("typos", path=str(Path(sys.executable).parent)) or shutil.which("typos")


def misspelt(*paths: Path) -> str:
    command = [TYPOS, "--format", "brief", "--config", ROOT / "pyproject.toml", *paths]
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True).stdout


@pytest.mark.skipif(TYPOS is None, reason="typos is not installed: pip install typos")
def test_spelling(tmp_path: Path) -> None:
    assert misspelt(*TEXTS, ROOT / "CHANGELOG.md") == ""
    (tmp_path / "wrong.md").write_text("The seperate schedular recieves a request.\n")
    assert "seperate" in misspelt(tmp_path / "wrong.md")


@pytest.mark.parametrize("path", BOOKS, ids=name)
def test_every_view_is_in_the_static_page(path: Path) -> None:
    """The exported page shows each picture that the notebook holds, and asks no host for anything."""
    outputs = [output for cell in read(path).cells for output in cell.get("outputs", []) if "data" in output]
    pictures = sum(output.data.get("text/html", "").count("<svg") for output in outputs)
    page = to_html(path)
    assert page.count("<svg") >= pictures
    assert WIDGET not in page
    assert 'src="http' not in page
    assert "@import url" not in page
    linked = [src for src in re.findall(r'<img[^>]*? src="([^"]*)"', page) if not src.startswith("data:")]
    assert linked == [], "the page shows files that lie beside it only here"


def test_a_static_page_has_the_linked_images_in_it(tmp_path: Path) -> None:
    """To the byte, wherever the page lies; one that is not there is said."""
    picture = ROOT / "diagrams" / "svg" / "slot_mapping.svg"
    (tmp_path / "a b").mkdir()
    text = f"# Here\n\n![slots](../{picture.name}) and again ![slots](../{picture.name})\n\n[a link](../x.svg)"
    path = tmp_path / "a b" / "90_here.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)]), path)
    with pytest.raises(SystemExit, match=r"a text shows \.\./slot_mapping\.svg, and .*slot_mapping\.svg is no picture"):
        to_html(path)
    shutil.copy(picture, tmp_path)
    found = re.findall(r'<img[^>]*? src="data:image/svg\+xml;base64,([^"]*)"', to_html(path))
    assert [b64decode(data) for data in found] == [picture.read_bytes()] * 2
    assert "../x.svg" in to_html(path)
