"""Grading in processes: whatever a submission does, it gets its grade, with a reason, and the others get theirs."""

import json
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


BLOCKS = "    return -(-seq.num_tokens // seq.block_size)"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    return -(-seq.num_token // seq.block_size)", "Read the error and go to its line"),
        ("    -(-seq.num_tokens // seq.block_size)", "There is None where an answer should be"),
        ('    return {"blocks"}', "The error came after your code"),
        ("    while True:\n        pass", "what changes from one round to the next"),
    ],
    ids=["an exception of one's own", "no return", "another type", "an endless loop"],
)
def test_an_answer_that_is_none_has_words_of_its_own(tmp_path: Path, body: str, words: str) -> None:
    grade = graded(tmp_path, RIGHT.replace(BLOCKS, body))
    failure = next(group.failure for group in grade.groups if group.failure)
    assert failure.think.startswith(("Your code", "There is None", "The error came", "Go through the loop"))
    assert words in failure.think


def test_a_bug_with_another_exception_of_the_same_type_is_not_named(tmp_path: Path, solutions: Path) -> None:
    exercise = EXERCISES["2.2"]
    text = (solutions / exercise.file).read_text()
    wrong = text.replace("[row, :width] = table[:width]", "[row, : len(table)] = table")
    assert wrong != text
    grade = graded(tmp_path, wrong, exercise)
    failure = grade.groups[1].failure
    assert failure is not None
    assert "ValueError: could not broadcast" in failure.actual
    assert grade.bug == ""


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
    assert [(g.earned, g.status) for g in grades] == [(0, "void"), (2, "done"), (0, "missing")]
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
