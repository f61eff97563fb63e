"""Grade exercises: each in a process of its own, judged here."""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from nanovllm.course.errors import CourseError
from nanovllm.course.exercise import Exercise
from nanovllm.course.judge import Grade, judge, void
from nanovllm.course.load import REFERENCE, find_file
from nanovllm.course.process import Limits, Nursery

NO_LIMITS_GIVEN = Limits()


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for all exercises of a run.

    seed: of the random traces and cases; another one gives others of the same kind. closed: folders that no submission
    may read. nursery: to grade many with; without one each exercise starts its own. shown_as: what cells to paste swap
    in, where that is not the file that is graded.
    """

    limits: Limits = NO_LIMITS_GIVEN
    seed: int = 0
    closed: tuple[Path, ...] = ()
    nursery: Nursery | None = None
    shown_as: str = ""


def grade_exercise(
    exercise: Exercise,
    impl: str | Path = "exercises",
    limits: Limits = NO_LIMITS_GIVEN,
    conditions: Conditions | None = None,
) -> Grade:
    """The grade of one exercise. impl: "exercises", "solutions", "reference", a folder or a file.

    conditions: instead of `limits`. Raises CourseError when there is no such file. Whatever the file does, the grade
    says so and nothing is raised.
    """
    conditions = conditions or Conditions(limits)
    path = REFERENCE if impl == REFERENCE else str(find_file(exercise, impl).resolve())
    start = time.monotonic()
    with nullcontext(conditions.nursery) if conditions.nursery else Nursery() as nursery:
        report = nursery.run(exercise, path, conditions.limits, conditions.seed, conditions.closed)
    refused = "refused" in report
    shown = conditions.shown_as or str(impl)
    grade = void(exercise, str(report["refused"])) if refused else _judged(exercise, report, shown, conditions.seed)
    grade.seconds = round(time.monotonic() - start, 2)
    return grade


def _judged(exercise: Exercise, report: dict[str, object], impl: str, seed: int) -> Grade:
    try:
        return judge(exercise, report, impl, seed)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, StopIteration):  # not of our own making
        return void(exercise, "the report of its checks makes no sense")


def grade_all(
    exercises: Iterable[Exercise],
    impl: str | Path = "exercises",
    limits: Limits = NO_LIMITS_GIVEN,
    on_grade: Callable[[Grade], None] = lambda grade: None,
    seed: int = 0,
) -> list[Grade]:
    """The grades of all `exercises`, in order; a file that is missing costs its exercise only.

    seed: of the random checks.

    Raises CourseError when none of the files is there.
    """
    grades: list[Grade] = []
    missing: list[CourseError] = []
    with Nursery() as nursery:
        conditions = Conditions(limits, seed, nursery=nursery)
        for exercise in exercises:
            try:
                grade = grade_exercise(exercise, impl, conditions=conditions)
            except CourseError as error:
                missing.append(error)
                grade = void(exercise, str(error))
                grade.status = "missing"
            grades.append(grade)
            on_grade(grade)
    if missing and len(missing) == len(grades):
        raise missing[0]
    return grades
