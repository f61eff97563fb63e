"""Grading in processes: whatever a submission does, it gets its grade, with a reason, and the others get theirs."""

import json
import os
import time
from pathlib import Path

import pytest

from nanovllm.course import CourseError
from nanovllm.course.exercise import Exercise
from nanovllm.course.grade import grade_all, grade_exercise
from nanovllm.course.judge import judge
from nanovllm.course.process import Limits
from nanovllm.course.registry import EXERCISES, select

EASY = EXERCISES["1.1"]
RIGHT = """
def num_blocks(seq):
    return -(-seq.num_tokens // seq.block_size)
def last_block_num_tokens(seq):
    return (seq.num_tokens - 1) % seq.block_size + 1
def block(seq, index):
    if not 0 <= index < seq.num_blocks:
        raise IndexError(index)
    return seq.token_ids[index * seq.block_size:][:seq.block_size]
"""
QUICK = Limits(seconds=8.0)


def graded(tmp_path: Path, text: str, exercise: Exercise = EASY, limits: Limits = QUICK):
    path = tmp_path / Path(exercise.file).name
    path.write_text(text)
    return grade_exercise(exercise, path, limits)


def test_a_right_submission(tmp_path: Path) -> None:
    grade = graded(tmp_path, RIGHT)
    assert (grade.earned, grade.status, grade.reason, grade.bug) == (2, "done", "", "")
    assert min(grade.calls.values()) > 5


def test_partial_credit_with_words_example_and_bug(tmp_path: Path) -> None:
    text = RIGHT.replace("(seq.num_tokens - 1) % seq.block_size + 1", "seq.num_tokens % seq.block_size")
    grade = graded(tmp_path, text)
    assert (grade.earned, grade.status) == (1, "partial")
    failed, passed = grade.groups
    assert passed.failure is None
    assert failed.failure is not None
    assert "exactly full" in failed.failure.think
    assert failed.failure.expected.startswith("[[1, 1], [1, 2], [1, 3], [1, 4]")
    assert failed.failure.actual.startswith("[[1, 1], [1, 2], [1, 3], [1, 0]")
    assert grade.bug == "says 0 tokens where the last block is full"
    namespace: dict = {}
    exec(failed.failure.cell.removesuffix("result"), namespace)
    assert json.dumps(namespace["result"]) == failed.failure.actual


def test_a_failing_trace_is_shrunk_to_a_cell_that_fails_again(tmp_path: Path, solutions: Path) -> None:
    exercise = EXERCISES["1.7"]
    text = (solutions / exercise.file).read_text().replace("waiting.appendleft(seq)", "waiting.append(seq)")
    grade = graded(tmp_path, text, exercise)
    assert grade.status == "partial"
    assert grade.bug == "sends the victim to the end of the queue"
    failure = grade.groups[-1].failure
    assert failure is not None
    assert "At which end of the deque" in failure.think
    assert failure.cell.count("Request(prompt") <= 3
    with pytest.raises(AssertionError, match="preempted requests at the head"):
        exec(failure.cell, {})


def test_a_function_that_raises_is_a_failure_with_its_message(tmp_path: Path) -> None:
    grade = graded(tmp_path, RIGHT.replace("return -(-seq.num_tokens // seq.block_size)", "return seq.length"))
    assert grade.earned == 0
    assert "AttributeError" in grade.groups[0].failure.actual  # type: ignore[union-attr]


HOSTILE = {
    "hangs when imported": ("while True: pass", "ran longer than"),
    "hangs in a function": (RIGHT.replace("return -(", "while True: pass\n    return -("), "did not come to an end"),
    "hangs and catches everything": (
        RIGHT.replace("return -(", "\n    while True:\n        try:\n            while True: pass\n"
        "        except BaseException: pass\n    return -("),
        "ran longer than",
    ),
    "exits when imported": ("import sys; sys.exit(0)", "SystemExit"),
    "exits hard": ("import os; os._exit(0)", "ended with exit code 0 before"),
    "exits in a function": (RIGHT.replace("return -(", "raise SystemExit\n    return -("), "SystemExit"),
    "raises when imported": ("raise KeyError('a slip')", "KeyError: 'a slip'"),
    "is no Python": ("def num_blocks(seq:", "SyntaxError"),
    "prints without end": ("while True: print('x' * 100000)", "printed more than"),
    "takes 50 GB": ("data = bytearray(50 << 30)", "MemoryError"),
    "recurses": ("def f(): return f()\nf()", "RecursionError"),
    "kills itself": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "by signal SIGKILL"),
    "closes everything": ("import os\nos.closerange(0, 100)" + RIGHT, "before the checks were through"),
    "has no function": ("x = 1", "needs a function named num_blocks"),
    "has another signature": (RIGHT.replace("block(seq, index)", "block(seq, i)"), r"yours is block(seq, i)"),
    "patches the engine": (RIGHT + "from nanovllm.scheduler import Sequence\nSequence.__len__ = len", "it replaced"),
    "patches the grader": (
        RIGHT + "import nanovllm.course.checks as c\nc.observe_example = lambda e: {}",
        "it replaced nanovllm.course.checks.observe_example",
    ),
    "patches code": (
        RIGHT + "import nanovllm.course.checks as c\nc.play.__code__ = (lambda trace: ({}, None)).__code__",
        "it replaced nanovllm.course.checks.play",
    ),
    "patches the clock": (RIGHT + "import time\ntime.monotonic = lambda: 0", "it replaced time.monotonic"),
    "patches a builtin": (RIGHT + "import builtins\nbuiltins.sorted = lambda *a, **k: []", "builtins.sorted"),
    "patches late": (
        RIGHT.replace("return -(", "import json; json.dumps = lambda *a, **k: '1'\n    return -("),
        "it replaced json.dumps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_submissions_get_zero_with_the_reason(tmp_path: Path, name: str) -> None:
    text, reason = HOSTILE[name]
    seconds = 4.0 if reason != "ran longer than" else 1.5
    start = time.monotonic()
    grade = graded(tmp_path, text, limits=Limits(seconds=seconds))
    assert (grade.earned, grade.status) == (0, "void")
    assert reason in grade.reason
    assert time.monotonic() - start < seconds + 3


def test_a_forged_report_earns_nothing(tmp_path: Path) -> None:
    """A submission that writes the report itself: the parent compares answers, so saying "passed" is not enough."""
    forged = """
import json, os, sys
request = json.loads(sys.argv[1])
os.write(request["result_fd"], json.dumps({
    "groups": [{"examples": [{"value": "1"}] * 2, "traces": {"played": []}}] * 2,
    "calls": {"num_blocks": 9, "last_block_num_tokens": 9, "block": 9}}).encode())
os._exit(0)
"""
    assert graded(tmp_path, forged).earned == 0
    assert graded(tmp_path, forged.replace('"groups"', '"grouse"')).reason == "the report of its checks makes no sense"


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    fork = f"""
import os, time
if not os.fork():
    open({str(mark)!r}, "w").write(str(os.getpid()))
    time.sleep(60)
time.sleep(0.3)
"""
    graded(tmp_path, fork + RIGHT)
    pid = int(mark.read_text())
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.02)
    os.kill(pid, 9)
    pytest.fail("a process of the submission outlived its grading")


def test_never_calling_the_code_is_no_pass() -> None:
    from nanovllm.course.checks import observe
    from nanovllm.course.load import load_pieces

    report = observe(EASY, load_pieces(EASY, "reference"))
    assert judge(EASY, report, "reference").earned == 2
    report["calls"]["block"] = 0
    grade = judge(EASY, report, "reference")
    assert (grade.earned, grade.status) == (0, "void")
    assert "never reached your block" in grade.reason


def test_one_bad_file_costs_only_its_exercise(tmp_path: Path, solutions: Path) -> None:
    (tmp_path / "ex01_sequence_blocks.py").write_text("import os; os._exit(3)")
    (tmp_path / "ex02_block_hash.py").write_text((solutions / EXERCISES["1.2"].file).read_text())
    heard = []
    grades = grade_all(select(None)[:3], tmp_path, QUICK, heard.append)
    assert heard == grades
    assert [(g.earned, g.status) for g in grades] == [(0, "void"), (2, "done"), (0, "void")]
    assert "has no file part1/ex03_allocate.py" in grades[2].reason


def test_no_file_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="is that the right folder"):
        grade_all(select("1"), tmp_path)


def test_answers_of_traces_are_compared_again_where_the_code_never_ran() -> None:
    from nanovllm.course.checks import observe
    from nanovllm.course.load import load_pieces

    report = observe(EASY, load_pieces(EASY, "reference"))
    played = report["groups"][1]["traces"]["played"]
    index = next(i for i, one in enumerate(played) if one["answers"] and one["answers"][0][2] != "abort")
    answer = played[index]["answers"][0]
    tokens = answer[1]
    for wrong in ([*tokens, 1], tokens[:-1], [-1, *tokens[1:]]):
        answer[1] = wrong
        assert judge(EASY, report, "reference").earned == 1
    answer[1] = tokens
    played[index]["refused"].append(99)
    assert judge(EASY, report, "reference").earned == 1
    played[index]["refused"].pop()
    assert judge(EASY, report, "reference").earned == 2
    del played[-1]
    assert judge(EASY, report, "reference").earned == 1
