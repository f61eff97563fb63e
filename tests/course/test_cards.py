"""The grade card in a notebook and as a page, and the solution that opens when an exercise is passed."""

import re
import shutil
from pathlib import Path

import pytest

from nanovllm.cli.main import main
from nanovllm.course.card import notebook_card
from nanovllm.course.card_html import grade_page
from nanovllm.course.errors import CourseError
from nanovllm.course.judge import Failure, Grade, GroupGrade
from nanovllm.course.progress import Progress
from nanovllm.course.registry import EXERCISES

FILE = Path(EXERCISES["1.2"].file)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exercises: Path) -> Path:
    """A folder as a learner has it, which is the working folder; the file of 1.2 in it."""
    target = tmp_path / "exercises" / FILE
    target.parent.mkdir(parents=True)
    shutil.copy(exercises / FILE, target)
    monkeypatch.chdir(tmp_path)
    return target


def press(box, text: str) -> str:
    """Press the button with that text; the HTML that shows afterwards."""
    (button,) = [b for b in box.children[1].children if b.description == text]
    button.click()
    assert not button.disabled
    return box.children[2].value


def words(html: str) -> str:
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html).split())


def test_the_buttons_of_a_card(work: Path, solutions: Path) -> None:
    card = notebook_card("1.2")
    box = card.box()
    assert "not begun 0/2 points" in words(press(box, "grade 1.2"))
    assert press(box, "hint").partition("<ol>")[2].count("<li>") == 1
    assert press(box, "hint").partition("<ol>")[2].count("<li>") == 2
    work.write_text("def chained_hash(previous, token_ids):\n    return 1\n")
    said = words(press(box, "grade 1.2"))
    assert "not yet 0/2 points" in said
    assert "Think about: " in said
    assert "expected" in said
    grade, _, hints = press(box, "hint").partition("<ol>")
    assert "Think about: " in words(grade), "what failed stays in view"
    assert hints.count("<li>") == 3
    assert "opens when you have its 2 points (now 0)" in words(press(box, "solution"))
    shutil.copy(solutions / FILE, work)
    assert "done 2/2 points" in words(press(box, "grade 1.2"))
    assert "2/100" in words(box.children[2].value)
    assert Progress().earned == {"1.2": 2}
    work.write_text(work.read_text().replace("previous", "before", 1))
    assert "--- yours: ex02_block_hash.py" in words(press(box, "solution"))


def test_the_solution_button_pressed_twice_shows_it(work: Path) -> None:
    box = notebook_card("1.2").box()
    assert "press the button once more" in words(press(box, "solution"))
    assert "+++ solution: ex02_block_hash.py" in words(press(box, "solution"))
    assert Progress().shown == {"1.2"}
    assert Progress().points == 0


def test_a_card_says_the_same_everywhere_and_needs_no_widgets(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = notebook_card("1.2")
    before = (repr(card), card.html())
    assert "exercises/part1/ex02_block_hash.py" in before[0]
    bundle = card._repr_mimebundle_()
    assert bundle["text/plain"] == before[0]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    card.grade()
    assert (repr(card), card.html()) == before, "what a notebook stores does not depend on the learner"
    monkeypatch.setitem(__import__("sys").modules, "ipywidgets", None)
    assert card._repr_mimebundle_() == {"text/plain": before[0], "text/html": before[1]}
    with pytest.raises(CourseError, match=r"no exercise '9\.9'"):
        notebook_card("9.9")


def test_a_missing_file_is_said_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanovllm.course.card_widget.IMPL", str(tmp_path))
    assert "has no file part1/ex02_block_hash.py" in words(notebook_card("1.2").grade())


def test_a_page_escapes_what_a_submission_says() -> None:
    failure = Failure("think", "1", "<script>alert(1)</script>", ["<b>step</b>"], "print('<i>')")
    grade = Grade("1.1", "1.1 x", "Title", 2, 0, "failed", "<img>", [GroupGrade("<u>", 2, 0, failure)], "does <that>")
    page = grade_page([grade], note="<note>")
    for tag in ("<script", "<b>step", "<i>'", "<img", "<u>", "<that>", "<note>"):
        assert tag not in page
    assert "default-src 'none'" in page


def test_grade_html(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    page = tmp_path / "grades.html"
    assert main(["grade", "1.1", "--impl", "reference", "--html", str(page)]) == 0
    assert "done 2/2 points" in words(page.read_text())
    assert main(["grade", "1.1", "--impl", "reference", "--html", "/nowhere/g.html"]) == 2
    assert "cannot be written to /nowhere/g.html" in capsys.readouterr().err


def test_the_solution_on_the_command_line(work: Path, capsys: pytest.CaptureFixture, solutions: Path) -> None:
    assert main(["hint", "1.2", "--solution"]) == 2
    assert "add --show-me to see it now" in capsys.readouterr().err
    assert main(["hint", "1.2", "--show-me"]) == 0
    shown = capsys.readouterr().out
    assert "+++ solution: ex02_block_hash.py" in shown
    assert "# stub" not in shown
    assert "# solution" not in shown
    shutil.copy(solutions / FILE, work)
    assert main(["grade", "1.2"]) == 0
    capsys.readouterr()
    assert main(["hint", "1.2", "--solution"]) == 0
    assert "-    # solution: begin" in capsys.readouterr().out


def test_a_hand_out_has_no_solution_to_show(work: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanovllm.course.load.__file__", str(work.parents[3] / "a" / "b" / "c.py"))
    assert main(["hint", "1.2", "--show-me"]) == 2
    assert "is not part of this hand-out: ask your teacher" in capsys.readouterr().err
