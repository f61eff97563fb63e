"""The worked solution beside the learner's file: open once the exercise is passed, or to whoever asks for it."""

import difflib
from pathlib import Path

from nanovllm.course.errors import CourseError
from nanovllm.course.exercise import Exercise
from nanovllm.course.load import find_file
from nanovllm.course.progress import Progress
from nanovllm.course.stubs import BEGIN, END, HEAD, STUB


def solution_text(solution: str) -> str:
    """A solution as one reads it: without the marks from which its stub is made."""
    lines = [line for line in solution.splitlines() if not _is_mark(line.strip())]
    return "\n".join(lines) + "\n"


def _is_mark(line: str) -> bool:
    return line in (BEGIN, END, HEAD) or line.startswith(STUB)


def solution_diff(exercise: Exercise, impl: str | Path, show_me: bool, progress: Progress) -> list[str]:
    """Lines of a unified diff from the learner's file to the solution.

    Raises CourseError unless the exercise has been passed or `show_me` says that the learner gives it up; that is
    noted in the progress, and costs no points.
    """
    best = progress.earned.get(exercise.number, 0)
    if best < exercise.points and not show_me:
        raise CourseError(
            f"the solution of {exercise.name} opens when you have its {exercise.points} points (now {best}): "
            f"grade it with `nanovllm grade {exercise.number}`, or add --show-me to see it now"
        )
    try:
        solution = find_file(exercise, "solutions")
    except CourseError:
        raise CourseError(f"the solution of {exercise.name} is not part of this hand-out: ask your teacher") from None
    yours = find_file(exercise, impl)
    if best < exercise.points:
        progress.note_shown(exercise.number)
    return list(
        difflib.unified_diff(
            yours.read_text(encoding="utf-8").removeprefix(f"{HEAD}\n").splitlines(),
            solution_text(solution.read_text(encoding="utf-8")).splitlines(),
            f"yours: {yours.name}",
            f"solution: {solution.name}",
            lineterm="",
        )
    )
