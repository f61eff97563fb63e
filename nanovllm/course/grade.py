"""Grade exercises: each in a process of its own, judged here."""

import time
from collections.abc import Callable
from pathlib import Path

from nanovllm.course.errors import CourseError
from nanovllm.course.exercise import Exercise
from nanovllm.course.judge import Grade, judge, void
from nanovllm.course.load import REFERENCE, find_file
from nanovllm.course.process import Limits, run_child

NO_LIMITS_GIVEN = Limits()


def grade_exercise(exercise: Exercise, impl: str | Path = "exercises", limits: Limits = NO_LIMITS_GIVEN) -> Grade:
    """The grade of one exercise. impl: "exercises", "solutions", "reference", a folder or a file.

    Raises CourseError when there is no such file. Whatever the file does, the grade says so and nothing is raised.
    """
    path = REFERENCE if impl == REFERENCE else str(find_file(exercise, impl).resolve())
    start = time.monotonic()
    report = run_child(exercise, path, limits)
    grade = void(exercise, str(report["refused"])) if "refused" in report else _judged(exercise, report, str(impl))
    grade.seconds = round(time.monotonic() - start, 2)
    return grade


def _judged(exercise: Exercise, report: dict[str, object], impl: str) -> Grade:
    try:
        return judge(exercise, report, impl)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, StopIteration):  # not of our own making
        return void(exercise, "the report of its checks makes no sense")


def grade_all(
    exercises: list[Exercise],
    impl: str | Path = "exercises",
    limits: Limits = NO_LIMITS_GIVEN,
    on_grade: Callable[[Grade], None] = lambda grade: None,
) -> list[Grade]:
    """The grades of all `exercises`, in order; a file that is missing costs its exercise only.

    Raises CourseError when none of the files is there.
    """
    grades: list[Grade] = []
    missing: list[CourseError] = []
    for exercise in exercises:
        try:
            grade = grade_exercise(exercise, impl, limits)
        except CourseError as error:
            missing.append(error)
            grade = void(exercise, str(error))
        grades.append(grade)
        on_grade(grade)
    if exercises and len(missing) == len(exercises):
        raise missing[0]
    return grades
