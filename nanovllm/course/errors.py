"""What the course raises on purpose: each message says what to do next."""

from nanovllm.errors import NanoVLLMError


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
    return {"error": f"{type(error).__name__}: {error}"[:400]}
