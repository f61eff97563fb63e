"""The notebooks' cells with other implementations: a wrong engine, solutions, unfinished exercises, planted bugs."""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from nanovllm.course import ExerciseNotDone
from nanovllm.course.notebook import your
from nanovllm.course.registry import get_exercise
from nanovllm.course.variants import build
from scripts.notebooks import FOLDER, ROOT
from tests.notebooks.cells import Notebook, committed, exercise_of, first_fault, same, tags

BOOKS = sorted(FOLDER.glob("*.ipynb"))
BUG_SECONDS = 5


@pytest.fixture(autouse=True)
def nobody_elses_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No implementation is chosen from outside, and the reader's progress is left alone."""
    monkeypatch.delenv("NANOVLLM_IMPL", raising=False)
    monkeypatch.setenv("NANOVLLM_DATA_DIR", str(tmp_path / "data"))


def book_of(number: str) -> Path:
    """The notebook that begins with that number; the test is skipped where it is missing."""
    found = [path for path in BOOKS if path.stem.startswith(number)]
    if not found:
        pytest.skip(f"there is no notebook {number}")
    return found[0]


def said(book: Notebook, cell: Any, impl: str, names: dict[str, Any] | None = None) -> str:
    """The text of an exercise cell with `impl`. names: where its names go; None drops them."""
    os.environ["NANOVLLM_IMPL"] = impl
    try:
        return book.run(cell, dict(book.names) if names is None else names)
    finally:
        del os.environ["NANOVLLM_IMPL"]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_every_implementation(path: Path) -> None:
    """Cells and solutions say what is committed, a planted bug shows, unfinished exercises fail by name, only they."""
    book = Notebook(path)
    for cell in book.cells:
        number = exercise_of(cell)
        if number is None:
            if "nbval-skip" not in tags(cell):
                text = book.run(cell)
                assert "nbval-ignore-output" in tags(cell) or same(text, committed(cell)), text
            continue
        after_failure = dict(book.names)
        with pytest.raises(ExerciseNotDone, match=rf"^exercise {number} "):
            said(book, cell, "exercises", after_failure)
        assert same(said(book, cell, "solutions"), committed(cell)), f"{number}: the solution says something else"
        if number[0] == path.stem[0]:  # where it is at home; elsewhere it may only be used
            exercise = get_exercise(number)
            assert any(shows(book, cell, build(exercise, bug)) for bug in exercise.bugs), (
                f"{number}: no planted bug shows"
            )
        book.names = after_failure  # the rest of the notebook goes on without what the exercise would have made


def shows(book: Notebook, cell: Any, pieces: dict[str, Any]) -> bool:
    """Whether the exercise cell says something else with `pieces`."""
    yours = partial(your, implementation=pieces)
    try:
        with patch("nanovllm.course.notebook.your", yours):  # for a cell that imports it
            return not same(book.run(cell, book.names | {"your": yours}, BUG_SECONDS), committed(cell))
    except Exception:
        return True


def test_a_folder_with_one_planted_bug(tmp_path: Path) -> None:
    """NANOVLLM_IMPL as a learner uses it: a folder of files, one of which preempts the oldest request."""
    folder = shutil.copytree(ROOT / "solutions", tmp_path / "mine")
    file = folder / "part1" / "ex07_decode_preemption.py"
    text = file.read_text()
    assert text.count("pending.pop()") == 1
    file.write_text(text.replace("pending.pop()", "pending.popleft()"))
    book = Notebook(book_of("12"))
    verdicts = {}
    for cell in book.cells:
        number = exercise_of(cell)
        if number is None:
            book.run(cell)
        else:
            verdicts[number] = same(said(book, cell, str(folder)), committed(cell))
    assert verdicts == {"1.4": True, "1.7": False}


@pytest.fixture
def slots_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong engine: every key and value goes to the slot behind its own."""
    from nanovllm.paged_kv import batch

    right = batch.slots_of

    monkeypatch.setattr(batch, "slots_of", lambda *args: right(*args) + 1)


@pytest.mark.parametrize("path", [path for path in BOOKS if path.stem[0] in "24"], ids=lambda path: path.stem)
@pytest.mark.usefixtures("slots_off_by_one")
def test_a_wrong_engine_does_not_pass(path: Path) -> None:
    """Every notebook of parts 2 and 4 notices it."""
    assert first_fault(path), "the notebook did not notice that slots were off by one"
