"""Every exercise of the course, by number."""

from nanovllm.course import part1, part2, part3, part4
from nanovllm.course.errors import CourseError
from nanovllm.course.exercise import Exercise

COURSE_POINTS = 100  # of all four parts together
PARTS = (part1, part2, part3, part4)
EXERCISES: dict[str, Exercise] = {exercise.number: exercise for part in PARTS for exercise in part.EXERCISES}


def get_exercise(number: str) -> Exercise:
    """The exercise of that number ("1.3"). Raises CourseError when there is none."""
    if number not in EXERCISES:
        raise CourseError(f"there is no exercise {number!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[number]


def select(what: str | None) -> list[Exercise]:
    """All exercises (None), those of a part ("1") or one of them ("1.3"). Raises CourseError for anything else."""
    if what is None:
        return list(EXERCISES.values())
    of_part = [exercise for exercise in EXERCISES.values() if str(exercise.part) == what]
    return of_part or [get_exercise(what)]


def select_all(what: list[str]) -> list[Exercise]:
    """The exercises of several parts and numbers, in the course's order, each once; all for an empty list."""
    if not what:
        return select(None)
    chosen = {exercise.number for one in what for exercise in select(one)}
    return [exercise for number, exercise in EXERCISES.items() if number in chosen]
