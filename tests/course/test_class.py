"""A class: the same grades twice, on cores and on Dask, after a kill in the middle; hand-outs; the tables."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from nanovllm.cli.main import main
from nanovllm.course.classroom.bulk import on_cores
from nanovllm.course.classroom.journal import Journal
from nanovllm.course.classroom.tables import as_text
from nanovllm.course.classroom.task import Task, _nursery, grade_task
from nanovllm.course.errors import CourseError
from nanovllm.course.process import Limits
from nanovllm.course.registry import EXERCISES, select, select_all
from tests.course.make_class import Expected, check, make_class

PART = select("1")
LEARNERS = 8


@pytest.fixture(scope="module")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    folder = tmp_path_factory.mktemp("class") / "handed-in"
    return folder, make_class(folder, LEARNERS, seed=5, exercises=PART)


@pytest.fixture(scope="module")
def first(classroom: tuple[Path, Expected], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The grades of the whole class, in one go."""
    out = tmp_path_factory.mktemp("first") / "grades.json"
    assert main(["class", "grade", str(classroom[0]), "1", "--json", str(out), "--jobs", "2", "--seconds", "20"]) == 0
    return out.read_text()


def test_everybody_gets_what_is_due(first: str, classroom: tuple[Path, Expected]) -> None:
    kinds = {kind for exercises in classroom[1].values() for kind, _ in exercises.values()}
    assert kinds == {"right", "harmless", "bug", "stub", "missing", "hostile"}, "the class is a mixture"
    assert check(json.loads(first), classroom[1]) == []


def test_the_check_of_a_class_notices(first: str, classroom: tuple[Path, Expected]) -> None:
    document = json.loads(first)
    for grade in document["submissions"][0]["exercises"]:
        grade["earned"] = 1 - bool(grade["earned"])
    assert len(check(document, classroom[1])) >= 4


def test_killed_in_the_middle_it_goes_on_and_gives_the_same(
    first: str, classroom: tuple[Path, Expected], tmp_path: Path
) -> None:
    folder, _ = classroom
    mark, journal, out = uuid.uuid4().hex, tmp_path / "journal.jsonl", tmp_path / "grades.json"
    options = ["1", "--json", str(out), "--jobs", "2", "--seconds", "20", "--journal", str(journal)]
    argv = [sys.executable, "-m", "nanovllm", "class", "grade", str(folder), *options]
    grading = subprocess.Popen(argv, env=os.environ | {"NANOVLLM_TEST_MARK": mark}, stdout=subprocess.DEVNULL)
    while not journal.exists() or journal.read_bytes().count(b"\n") < 12:
        assert grading.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    grading.send_signal(signal.SIGKILL)
    grading.wait()
    deadline = time.monotonic() + 30
    while left := [pid for pid in os.listdir("/proc") if pid.isdigit() and carries(pid, mark)]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.05)
    known = journal.read_bytes().count(b"\n")
    with journal.open("a") as file:
        file.write('{"submission": "000-go')  # as a kill may leave it
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250)
    with_files = sum(1 for g in map(json.loads, journal.read_text().splitlines()) if g)
    graded = int(done.stdout.split(" graded now")[0].split()[-1])
    assert with_files == known + graded
    assert known >= 12
    assert graded > 0
    assert out.read_text() == first
    again = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250)
    assert ": 0 graded now" in again.stdout
    assert out.read_text() == first


def carries(pid: str, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def test_graded_afresh_it_is_the_same_to_the_byte(first: str, classroom: tuple[Path, Expected], tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    options = ["--json", str(out), "--fresh", "--jobs", "2", "--seconds", "20", "--journal", str(tmp_path / "j")]
    assert main(["class", "grade", str(classroom[0]), "1", *options]) == 0
    assert out.read_text() == first


def test_on_dask_it_is_the_same(first: str, classroom: tuple[Path, Expected], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    out = tmp_path / "dask.json"
    options = ["--json", str(out), "--seconds", "20", "--journal", str(tmp_path / "j")]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, local_directory=str(tmp_path)
    ) as cluster:
        address = cluster.scheduler_address
        assert main(["class", "grade", str(classroom[0]), "1", "--dask", address, *options]) == 0
    assert out.read_text() == first


def test_an_absent_scheduler_is_said(classroom: tuple[Path, Expected], tmp_path: Path, monkeypatch, capsys) -> None:
    distributed = pytest.importorskip("distributed")
    real = distributed.Client
    monkeypatch.setattr(distributed, "Client", lambda address, timeout: real(address, timeout="1s"))
    argv = ["class", "grade", str(classroom[0]), "1.1", "--journal", str(tmp_path / "j"), "--dask", "tcp://127.0.0.1:9"]
    assert main(argv) == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(argv) == 2
    assert "pip install 'nanovllm[class]'" in capsys.readouterr().err


# --- hidden seeds ------------------------------------------------------------------------------------------------


def test_other_seeds_are_other_checks_of_the_same_kind(solutions: Path, tmp_path: Path) -> None:
    """A function that knows the public traces by heart passes them and fails on hidden ones."""
    exercise = EXERCISES["1.2"]
    text = (solutions / exercise.file).read_text()
    for seed in (0, 7):
        assert grade_task(Task("ann", "1.2", text, seed, Limits(), str(tmp_path)))["status"] == "done"
    from nanovllm.course.exercise import seeds

    assert list(seeds(3, 0)) == [0, 1, 2]
    assert list(seeds(2, 7)) == [70_000, 70_001]


def test_learning_the_public_cases_by_heart_does_not_help(solutions: Path, tmp_path: Path) -> None:
    exercise = next(e for e in EXERCISES.values() if any(g.numeric for g in e.groups) and e.number == "3.2")
    group = next(g for g in exercise.groups if g.numeric)
    from nanovllm.course.numeric.observe import answer_of

    numeric = group.numeric
    assert numeric is not None
    one, other = (answer_of(numeric, seed, numeric.sizes_of(5, seed)) for seed in (0, 7))
    assert one != other


def test_code_that_draws_random_numbers_gets_the_same_grade_twice(tmp_path: Path) -> None:
    body = "    return random.randrange(2**64) ^ hash(str(previous))\n"
    text = f"import random\ndef chained_hash(previous, token_ids):\n{body}"
    task = Task("ann", "1.2", text, 0, Limits(), str(tmp_path))
    rows = []
    for _ in range(2):
        _nursery.cache_clear()  # another process, with another hash of texts
        rows.append(grade_task(task))
    assert rows[0]["earned"] < rows[0]["points"]
    assert rows[0] == rows[1]


# --- tables ------------------------------------------------------------------------------------------------------


def small_class(tmp_path: Path, solutions: Path) -> Path:
    folder = tmp_path / "in"
    for name, text in {
        "ann": (solutions / EXERCISES["1.2"].file).read_text(),
        "=bob": "import os; os._exit(0)",
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "ex02_block_hash.py").write_text(text)
    (folder / "cyd").mkdir()
    (folder / ".hidden").mkdir()
    return folder


def test_csv_json_and_gradescope(tmp_path: Path, solutions: Path, capsys: pytest.CaptureFixture) -> None:
    folder = small_class(tmp_path, solutions)
    (folder / "cyd" / "ex02_block_hash.py").write_text("def chained_hash(previous, token_ids):\n    return 1\n")
    out = {kind: tmp_path / kind for kind in ("csv", "json", "gradescope")}
    argv = ["class", "grade", str(folder), "1.2", "1.1"]
    assert main([*argv, *(f"--{kind}={path}" for kind, path in out.items())]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "submission  points  exercises with points lost\n"
        "=bob           0/4  1.1, 1.2\n"
        "ann            2/4  1.1\n"
        "cyd            0/4  1.1, 1.2\n"
        "3 submissions, 2 exercises each: 3 graded now, 3 known or without a file"
    ), said
    rows = list(csv.reader(io.StringIO(out["csv"].read_text())))
    assert rows[0] == ["submission", "earned", "points", "1.1", "1.2", "remarks"]
    assert [row[:5] for row in rows[1:]] == [
        ["'=bob", "0", "4", "0", "0"],
        ["ann", "2", "4", "0", "2"],
        ["cyd", "0", "4", "0", "0"],
    ]
    assert rows[1][5].startswith("1.2: its process ended with exit code 0")
    assert rows[1][5].endswith("no file: 1.1")
    document = json.loads(out["json"].read_text())
    assert [s["earned"] for s in document["submissions"]] == [0, 2, 0]
    result = json.loads((out["gradescope"] / "cyd.json").read_text())
    assert result["score"] == 0 == sum(test["score"] for test in result["tests"])
    assert sum(test["max_score"] for test in result["tests"]) == 4
    assert all({"name", "score", "max_score", "status", "output"} <= test.keys() for test in result["tests"])
    assert "Think about: " in next(test for test in result["tests"] if test["number"] == "1.2.1")["output"]
    assert main([*argv, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_the_table_in_the_terminal_keeps_lines_short_and_names_harmless() -> None:
    grades = {number: {"earned": 0, "points": 2, "status": "failed"} for number in list(EXERCISES)[:10]}
    said = as_text(
        {
            "a\x1b[2J": grades,
            "b": {number: {"earned": 2, "points": 2, "status": "done"} for number in grades},
            "c": {number: grade | {"status": "missing"} for number, grade in grades.items()},
        }
    )
    assert said.splitlines()[1:] == [
        "a?[2J         0/20  1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8 and 2 more",
        "b            20/20",
        "c             0/20  no file",
    ]


def test_one_submission_for_gradescope(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    assert main(["grade", "1.1", "--impl", "reference", "--gradescope", str(out), "--seed", "3"]) == 0
    assert json.loads(out.read_text())["score"] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["IN", "9"], "there is no exercise '9'"),
        (["IN", "--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["IN", "--seconds", "0"], "--seconds must be above 0 and at most 86,400, a day, not 0"),
        (["IN", "--seconds", "nan"], "at most 86,400, a day, not nan"),
        (["IN", "--seed", "-1"], "--seed must be at least 0, not -1"),
        (["IN", "1.2", "--csv", "/nowhere/x.csv"], "cannot be written to /nowhere/x.csv"),
        (["EMPTY"], "holds no submission"),
        (["ONE"], "holds exercises/, as one learner's folder does: name the folder above"),
        (["FLAT"], "holds part1/, as one learner's folder does"),
    ],
)
def test_refusals(options: list[str], said: str, tmp_path: Path, solutions: Path, capsys) -> None:
    for name in ("empty", "one/exercises/part1", "flat/part1"):
        (tmp_path / name).mkdir(parents=True)
    places = {"IN": str(small_class(tmp_path, solutions))}
    places |= {name.upper(): str(tmp_path / name) for name in ("empty", "one", "flat")}
    assert main(["class", "grade", *(places.get(option, option) for option in options)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["release", "grade"])
def test_only_the_folder_is_required(command: str, capsys: pytest.CaptureFixture) -> None:
    """The usage, the sentence about what is missing and the behaviour (test_release, above) agree."""
    with pytest.raises(SystemExit) as ended:
        main(["class", command])
    assert ended.value.code == 2
    assert "the following arguments are required: DIR (options:" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["class", command, "--help"])
    assert "DIR [PART|EXERCISE ...]" in capsys.readouterr().out


def test_files_that_are_not_graded(tmp_path: Path, solutions: Path) -> None:
    folder = small_class(tmp_path, solutions)
    file = folder / "cyd" / "ex02_block_hash.py"
    file.symlink_to(folder / "ann" / "ex02_block_hash.py")
    (folder / "ann" / "ex02_block_hash.py").write_bytes(b"\xff\xfe\xfa")
    (folder / "=bob" / "ex02_block_hash.py").write_text("#" * 200_001)
    out = tmp_path / "grades.json"
    assert main(["class", "grade", str(folder), "1.2", "--json", str(out)]) == 0
    reasons = {s["submission"]: s["exercises"][0]["reason"] for s in json.loads(out.read_text())["submissions"]}
    assert "a link to a file outside" in reasons["cyd"]
    assert "cannot be read as text" in reasons["ann"]
    assert "200,001 bytes: at most 200,000" in reasons["=bob"]


def test_a_changed_file_is_graded_again(tmp_path: Path) -> None:
    task = Task("ann", "1.1", "x = 1", 0, Limits(), "/x")
    with Journal(tmp_path / "j") as journal:
        journal.add(task, {"earned": 1})
    for other in (
        {"text": "x = 2"},
        {"seed": 1},
        {"number": "1.2"},
        {"limits": Limits(seconds=1)},
        {"submission": "b"},
    ):
        with Journal(tmp_path / "j") as journal:
            assert journal.find(task) == {"earned": 1}
            assert journal.find(replace(task, **other)) is None
    with Journal(tmp_path / "j", fresh=True) as journal:
        assert journal.find(task) is None


def test_a_grading_process_that_dies_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanovllm.course.classroom.bulk.grade_task", os._exit)
    with pytest.raises(CourseError, match="run the command again to go on from here"):
        list(on_cores(1)([3]))  # type: ignore[list-item]


def test_selecting() -> None:
    assert [e.number for e in select_all(["1.3", "1.1", "1.3"])] == ["1.1", "1.3"]
    assert select_all([]) == list(EXERCISES.values())
