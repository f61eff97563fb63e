"""Whatever a submission does, it gets its grade, with the reason, nothing else is harmed, and no process is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanovllm.course import nursery as nursery_module
from nanovllm.course import process
from nanovllm.course.exercise import Exercise
from nanovllm.course.grade import Conditions, grade_exercise
from nanovllm.course.judge import Grade
from nanovllm.course.process import Limits, Nursery
from nanovllm.course.registry import EXERCISES
from tests.course.hostile import CLAIMS, FAST, RIGHT, SLOW, START, TORCH, inside

EASY = EXERCISES["1.1"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def graded(folder: Path, text: str, nursery: Nursery, seconds: float = 30.0, exercise: Exercise = EASY) -> Grade:
    path = folder / Path(exercise.file).name
    path.write_text(text)
    return grade_exercise(exercise, path, conditions=Conditions(Limits(seconds=seconds), nursery=nursery))


def left_over(nursery: Nursery) -> list[int]:
    """Processes with the nursery's token, but for the nursery itself."""
    mark = f"{process.TOKEN}={nursery._token}".encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    own = {nursery._process.pid if nursery._process else 0}
    return [pid for pid in pids if pid not in own and process._carries(pid, mark)]


@pytest.mark.parametrize("name", FAST)
def test_it_gets_zero_with_the_reason_and_leaves_nothing(tmp_path: Path, name: str, nursery: Nursery) -> None:
    text, reason = FAST[name]
    start = time.monotonic()
    grade = graded(tmp_path, text, nursery)
    assert grade.earned == 0
    said = grade.reason or " ".join(group.failure.actual for group in grade.groups if group.failure)
    assert reason in said
    assert said
    assert time.monotonic() - start < 20
    assert left_over(nursery) == []
    assert [p.name for p in tmp_path.iterdir()] == [Path(EASY.file).name], "it wrote nothing"


@pytest.mark.parametrize("name", TORCH)
def test_where_checks_run_tensors_too(tmp_path: Path, name: str, nursery: Nursery, solutions: Path) -> None:
    exercise = EXERCISES["3.1"]
    text, reason = TORCH[name]
    text = text.replace("SOLUTION", (solutions / exercise.file).read_text())
    grade = graded(tmp_path, text, nursery, exercise=exercise)
    assert grade.earned == 0
    said = grade.reason or " ".join(group.failure.actual for group in grade.groups if group.failure)
    assert reason in said
    assert left_over(nursery) == []


@pytest.mark.parametrize("name", SLOW)
def test_it_ends_in_time(tmp_path: Path, name: str, nursery: Nursery) -> None:
    text, reason = SLOW[name]
    seconds = 30.0 if reason != "ran longer than" else 2.0
    start = time.monotonic()
    grade = graded(tmp_path, text, nursery, seconds)
    assert (grade.earned, grade.status) == (0, "void")
    assert reason in grade.reason
    assert time.monotonic() - start < seconds + 5
    assert left_over(nursery) == []


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_to_be_equal_earns_nothing(tmp_path: Path, name: str, nursery: Nursery) -> None:
    grade = graded(tmp_path, CLAIMS[name], nursery)
    assert (grade.earned, grade.status, grade.reason) == (0, "failed", "")


def test_after_all_of_them_a_right_submission_is_right(tmp_path: Path, nursery: Nursery) -> None:
    for text in (FAST["patches a builtin"][0], FAST["closes everything"][0], RIGHT):
        grade = graded(tmp_path, text, nursery)
    assert (grade.earned, grade.status, grade.reason) == (2, "done", "")


def test_code_for_its_own_use_may_do_what_it_likes(tmp_path: Path, nursery: Nursery) -> None:
    own = 'if __name__ == "__main__":\n    from nanovllm.course import swap\n    with swap("1.1", globals()): pass\n'
    tells = '"""Grade with nanovllm.course and so on."""\n'
    prints = RIGHT.replace("    return -(", "    print(seq.num_tokens)\n    return -(")
    grade = graded(tmp_path, tells + "from nanovllm.course import ExerciseNotDone\n" + prints + own, nursery)
    assert grade.status == "done"


def test_a_printed_traceback_harms_nobody(tmp_path: Path, nursery: Nursery) -> None:
    """It reads the engine's source to print its lines, which is closed: the lines are left out, no more."""
    lines = (
        "if not told:\n    import traceback\n    told.append(1)\n    traceback.print_stack()\n"
        "    try: seq.nothing\n    except AttributeError: traceback.print_exc()"
    )
    assert graded(tmp_path, "told = []\n" + inside(lines), nursery).status == "done"


def test_neighbours_are_closed(tmp_path: Path, nursery: Nursery) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "bob").mkdir()
    name = Path(EASY.file).name
    (tmp_path / "ann" / name).write_text(RIGHT)
    (tmp_path / "bob" / name).write_text(f"exec(open({str(tmp_path / 'ann' / name)!r}).read())")
    conditions = Conditions(closed=(tmp_path,), nursery=nursery)
    assert grade_exercise(EASY, tmp_path / "ann", conditions=conditions).earned == 2
    grade = grade_exercise(EASY, tmp_path / "bob", conditions=conditions)
    assert "which is closed while it is graded" in grade.reason


def test_a_forged_report_earns_nothing(tmp_path: Path, nursery: Nursery) -> None:
    """A submission that writes the report itself: answers are compared elsewhere, so saying "passed" is not enough."""
    forged = """
import json, os
report = {
    "groups": [{"examples": [{"value": "1"}] * 2, "traces": {"played": []}}] * 2,
    "calls": {"num_blocks": 9, "last_block_num_tokens": 9, "block": 9}}
for fd in range(3, 64):
    try: os.write(fd, json.dumps(report).encode())
    except OSError: pass
os._exit(0)
"""
    grade = graded(tmp_path, forged, nursery)
    assert (grade.earned, grade.status) == (0, "failed"), "the report was read, and it is wrong"
    nonsense = graded(tmp_path, forged.replace('"groups"', '"grouse"'), nursery)
    assert nonsense.reason == "the report of its checks makes no sense"


def test_when_it_ends_its_watcher_the_next_one_is_graded_all_the_same(tmp_path: Path) -> None:
    """Started unheard, outside Python's audit, a process ends the one that watches; nothing of it is left."""
    kill = "import os, signal, time\\nos.setsid()\\nos.kill(int(PID), signal.SIGKILL)\\ntime.sleep(99)"
    text = START + f"import os, time\nstart('{kill}'.replace('PID', str(os.getppid())))\ntime.sleep(30)"
    with Nursery() as nursery:
        grade = graded(tmp_path, text, nursery)
        assert grade.earned == 0
        assert "another process" in grade.reason or "watches over it" in grade.reason
        assert left_over(nursery) == []
        assert graded(tmp_path, RIGHT, nursery).earned == 2


def test_a_dead_watcher_is_noticed_and_swept_up_after(tmp_path: Path) -> None:
    import threading

    with Nursery() as nursery:
        assert graded(tmp_path, RIGHT, nursery).earned == 2
        assert nursery._process is not None
        watcher = nursery._process.pid
        threading.Timer(1.0, os.kill, (watcher, signal.SIGKILL)).start()
        grade = graded(tmp_path, "while True: pass", nursery)
        assert grade.reason == "it ended or stopped the process that watches over it"
        assert left_over(nursery) == [], "what the dead one was grading has ended too"
        assert graded(tmp_path, RIGHT, nursery).earned == 2


def test_a_nursery_ends_with_close(tmp_path: Path) -> None:
    nursery = Nursery()
    graded(tmp_path, RIGHT, nursery)
    assert nursery._process is not None
    pid = nursery._process.pid
    nursery.close()
    nursery.close()
    assert not Path(f"/proc/{pid}").exists()


def test_without_a_fork_the_grades_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FORKS", False)
    with Nursery() as nursery:
        assert graded(tmp_path, RIGHT, nursery).earned == 2
        assert "ran longer than" in graded(tmp_path, "while True: pass", nursery, 1.5).reason
        assert "printed more than" in graded(tmp_path, FAST["prints without end"][0], nursery).reason
        assert "(os.fork)" in graded(tmp_path, FAST["forks"][0], nursery).reason
        assert nursery._process is None


def test_both_ways_to_find_the_processes_below_this_one() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"])
    try:
        deadline = time.monotonic() + 20
        while len(below := nursery_module._children(child.pid)) < 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert nursery_module._children_by_parent()(child.pid) == below
        assert {child.pid, *below} <= set(nursery_module.descendants())
    finally:
        for pid in (*below, child.pid):
            os.kill(pid, signal.SIGKILL)
        child.wait()
