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
