"""`nanovllm grade` and `nanovllm hint` as a learner calls them."""

import json
import shutil
from pathlib import Path

import pytest

from nanovllm.cli.main import main
from nanovllm.course.judge import Grade
from nanovllm.course.progress import Progress, data_folder


def test_untouched_stubs_are_not_begun(capsys: pytest.CaptureFixture, exercises: Path) -> None:
    assert main(["grade", "1", "--impl", str(exercises)]) == 1
    said = capsys.readouterr().out
    assert said.count("not begun") == 8
    assert "0 of 25 points in this run" in said
    assert "0/100" in said
    assert "nanovllm hint 1.1" in said


def test_points_are_kept_and_never_lost(tmp_path: Path, capsys: pytest.CaptureFixture, solutions: Path) -> None:
    shutil.copy(solutions / "part1" / "ex02_block_hash.py", tmp_path)
    assert main(["grade", "1.2", "--impl", str(tmp_path)]) == 0
    assert " 2/100" in capsys.readouterr().out
    (tmp_path / "ex02_block_hash.py").write_text("def chained_hash(previous, token_ids):\n    return 1\n")
    assert main(["grade", "1.2", "--impl", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert " 2/100" in said, "the best result counts"
    assert "Think about: Does the order of the tokens count" in said
    assert 'with swap("1.2"' in said


def test_the_engine_itself_is_nobodys_progress(capsys: pytest.CaptureFixture) -> None:
    assert main(["grade", "1.1", "--impl", "reference"]) == 0
    assert "/100" not in capsys.readouterr().out
    assert Progress().earned == {}


def test_a_learners_work_is_not_the_instructors_progress(capsys: pytest.CaptureFixture, solutions: Path) -> None:
    asked = ["grade", "1.2", "--impl", str(solutions)]
    assert main([*asked, "--not-mine"]) == 0
    assert "/100" not in capsys.readouterr().out
    assert Progress().earned == {}
    assert main(asked) == 0
    assert Progress().earned == {"1.2": 2}


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["grade", "1.1", "--impl", "reference", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["earned"], document["points"]) == (2, 2)
    assert document["exercises"][0]["groups"][0]["earned"] == 1
    assert main(["grade", "1.1", "--impl", "reference", "--json", str(tmp_path / "g.json")]) == 0
    assert json.loads((tmp_path / "g.json").read_text())["exercises"][0]["status"] == "done"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["grade", "9.9"], "there is no exercise '9.9'; there are 1.1"),
        (["grade", "1.1", "--impl", "nowhere"], "has no file part1/ex01_sequence_blocks.py in nowhere"),
        (["grade", "1.1", "--impl", "reference", "--json", "/nowhere/g.json"], "cannot be written to /nowhere/g.json"),
        (["grade", "1.1", "--seconds", "0"], "--seconds must be above 0 and at most 86,400, a day, not 0"),
        (["grade", "1.1", "--seconds", "nan"], "at most 86,400, a day, not nan"),
        (["grade", "1.1", "--seconds", "inf"], "at most 86,400, a day, not inf"),
        (["grade", "1.1", "--seed", "-1"], "--seed must be at least 0, not -1"),
        (["hint", "7"], "there is no exercise '7'"),
    ],
)
def test_refusals(argv: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err


def test_hints_rise(capsys: pytest.CaptureFixture) -> None:
    assert main(["hint", "1.3"]) == 0
    first = capsys.readouterr().out
    assert "hint 1 of 3" in first
    assert "--level 2" in first
    assert main(["hint", "1.3", "--level", "3"]) == 0
    last = capsys.readouterr().out
    assert "hint 3 of 3" in last
    assert "--level" not in last


def test_where_progress_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data_folder() == tmp_path / "data"
    monkeypatch.delenv("NANOVLLM_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_folder() == tmp_path / "xdg" / "nanovllm"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert data_folder() == Path.home() / ".local" / "share" / "nanovllm"


def test_an_unreadable_progress_file_is_moved_aside(own_progress: Path) -> None:
    progress = Progress()
    progress.record([Grade("1.1", "1.1 x", "", 2, 2, "done")])
    assert Progress().points == 2
    progress.path.write_text("{")
    assert Progress().points == 0
    assert (own_progress / "progress.unreadable").read_text() == "{"
