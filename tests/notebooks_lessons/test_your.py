"""Which pieces of a learner's file count as done, and how an unfinished one is named."""

from pathlib import Path

import pytest

from nanovllm.course import ExerciseNotDone
from nanovllm.course.notebook import done_names, your

FILE = """
from nanovllm.course import ExerciseNotDone


def finished(x):
    return helper(x)


def helper(x):
    return x + 1


def launcher(x):
    return between(x)


def between(x):
    return _kernel[(1,)](x)


def _kernel(x):
    raise ExerciseNotDone("2.5 store_kernel", "one number first")
"""


def test_a_launcher_is_no_more_done_than_its_kernel(tmp_path: Path) -> None:
    path = tmp_path / "ex.py"
    path.write_text(FILE)
    assert done_names(path) == {"finished", "helper"}
    path.write_text(FILE.replace('raise ExerciseNotDone("2.5 store_kernel", "one number first")', "return x"))
    assert done_names(path) == {"finished", "helper", "launcher", "between", "_kernel"}


def fail_as(error: Exception, behind: Exception) -> None:
    """Raise `error`, caused by `behind`."""
    try:
        raise behind
    except type(behind) as caught:
        raise error from caught


def test_an_unfinished_piece_is_named_through_other_errors() -> None:
    """Triton's interpreter and a lost rank report it as the cause of an error of their own."""
    unfinished = ExerciseNotDone("2.5 store_kernel", "one number first")
    with pytest.raises(ExerciseNotDone, match="store_kernel"), your("1.1", "reference"):
        fail_as(RuntimeError("InterpreterError(...)"), unfinished)


def test_other_errors_come_through_as_they_are() -> None:
    with pytest.raises(ValueError, match="mine"), your("1.1", "reference"):
        fail_as(ValueError("mine"), KeyError("first"))
