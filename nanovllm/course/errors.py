"""What the course raises on purpose: each message says what to do next."""

import os
from typing import Final

from nanovllm.errors import NanoVLLMError

LEARNER: Final = "learner_"  # how the names of modules made from learners' files begin


class ExerciseNotDone(Exception):
    """A function that the learner has not written yet. exercise: "1.3 allocate"; hint: where to start."""

    def __init__(self, exercise: str, hint: str) -> None:
        super().__init__(f"exercise {exercise} is not done yet: {hint}")
        self.exercise = exercise
        self.hint = hint


class SwapError(NanoVLLMError, TypeError):
    """What was given cannot stand in for the engine's own piece; nothing was installed."""


class CourseError(NanoVLLMError, ValueError):
    """An exercise, a part or a file that does not exist was asked for."""


class StillRunning(BaseException):
    """A check was given up after its time; no `except Exception` of the learner's code catches it."""


def outcome_of(error: BaseException) -> dict[str, str]:
    """{"not_done": text} for an exercise that is not written yet, {"error": text} for anything else.

    Triton's interpreter wraps what a kernel raises, so the causes are looked at too.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ExerciseNotDone):
            return {"not_done": str(cause)}
        cause = cause.__cause__
    return {"error": f"{type(error).__name__}: {error}"[:400] + _where(error)}


def _where(error: BaseException) -> str:
    """The innermost line of a learner's file on the way to the error, as " (line 12 of ex01_a.py)", or ""."""
    found, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith(LEARNER):
            found = f" (line {trace.tb_lineno} of {os.path.basename(frame.f_code.co_filename)})"
        trace = trace.tb_next
    return found
