"""Exercises, oracles and the grader. Looks at the engine; nothing in the engine imports it.

    from nanovllm.course import swap

    with swap("BlockManager.allocate", my_allocate) as calls:  # or swap("1.3", "exercises")
        ...

Read in this order: `exercise.py` (what an exercise is), `seams.py` and `swap.py` (where a learner's function goes),
`registry.py` and `part1/` (the exercises), `checks.py` (what is observed), `judge.py` (what it is worth), `child.py`
and `process.py` (in a process of its own), `grade.py`, `card.py`, `command.py` (the command line).
"""

from nanovllm.course.errors import CourseError, ExerciseNotDone, SwapError
from nanovllm.course.swap import swap

__all__ = ["CourseError", "ExerciseNotDone", "SwapError", "swap"]
