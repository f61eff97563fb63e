"""What the course's notebooks use: ready(), your(), predict() and card().

The first code cell of every notebook is the same (`python scripts/notebooks.py new` writes it) and ends in

    from nanovllm.course.notebook import ready
    ready()

An exercise cell has the tag "exercise" and the metadata {"nanovllm": {"exercise": "2.2"}}, and a demonstration whose
printed text is the same for every correct implementation:

    with your("2.2"):
        ...  # use the engine; what you write here calls your function

`predict("How many ...?", lambda: ...)` asks before the next cell shows (see `predict.py`); `card("2.2")` is a button
that grades the exercise.
"""

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nanovllm.course.card import notebook_card as card
from nanovllm.course.errors import CourseError, ExerciseNotDone
from nanovllm.course.predict import predict

__all__ = ["card", "predict", "ready", "your"]

ENVIRONMENT = "NANOVLLM_IMPL"
NEEDED = ("torch", "ipywidgets", "graphviz", "matplotlib")


def ready() -> None:
    """Check that this notebook can run here, and prepare the process. The first cell of each notebook.

    Without a GPU, Triton's kernels run in its interpreter, which must be chosen before Triton is imported. Raises
    RuntimeError with what to install when something is missing. Prints one line, the same everywhere.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        wanted = " and ".join(missing)
        raise RuntimeError(
            f"{wanted} is not installed here: pip install 'nanovllm[notebooks]', then restart the kernel"
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # ranks are started from a process that has used them
    import torch

    if not torch.cuda.is_available() and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    print("nanovllm is ready.")  # noqa: T201 (in a cell, the output is the point)


@contextmanager
def your(exercise: str, implementation: Any = None) -> Iterator[dict[str, int]]:
    """Use your solution of `exercise` in the running engine; yields the calls of each piece so far.

    Without more, your functions in `exercises/` where they are done, and the engine's own where they are not. The
    environment variable NANOVLLM_IMPL names another implementation for all notebooks: "reference" (the engine's own),
    "solutions", "exercises" or the path of a folder; then a piece that is not done raises ExerciseNotDone with the
    exercise's name. implementation: what to use instead of both, as `nanovllm.course.swap` takes it (`globals()` for
    functions written in the notebook).

    Raises CourseError when the block ends and no piece of the exercise was called: then the block shows nothing of it.
    """
    from nanovllm.course.swap import swap

    chosen = (
        implementation if implementation is not None else os.environ.get(ENVIRONMENT) or _done_or_reference(exercise)
    )
    with swap(exercise, chosen) as calls:
        try:
            yield calls
        except Exception as error:
            if (unfinished := _not_done_behind(error)) is not None:
                raise unfinished from None
            raise
    if not any(calls.values()):
        raise CourseError(f"nothing called a function of exercise {exercise} here: {', '.join(calls)}")


def _not_done_behind(error: BaseException) -> ExerciseNotDone | None:
    """The ExerciseNotDone that `error` reports in its own words (Triton's interpreter and a lost rank do), or None."""
    while not isinstance(error, ExerciseNotDone):
        behind = error.__cause__ or error.__context__
        if behind is None:
            return None
        error = behind
    return error


def _done_or_reference(number: str) -> Mapping[str, Any]:
    """Each function of the exercise: the learner's where it is done, else the engine's own."""
    from nanovllm.course.load import REFERENCE, find_file, load_file, load_pieces
    from nanovllm.course.registry import get_exercise

    exercise = get_exercise(number)
    pieces = load_pieces(exercise, REFERENCE)
    try:
        path = find_file(exercise, "exercises")
    except CourseError:  # the notebook alone, without a checkout
        return pieces
    done = done_names(path) & set(pieces)
    if done:
        learner = vars(load_file(path))
        pieces |= {name: learner[name] for name in done}
    return pieces


def done_names(path: Path) -> set[str]:
    """Names of the functions and classes of a learner's file that are done.

    No `raise ExerciseNotDone` is left in them, nor in one that they use: a launcher is no more done than its kernel.
    Read from the text: nothing of the file runs. Raises SyntaxError when it is no Python.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    uses = {node.name: {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} for node in definitions}
    open_ones = {node.name for node in definitions if any(map(_is_not_done, ast.walk(node)))}
    while more := {name for name, used in uses.items() if name not in open_ones and used & open_ones}:
        open_ones |= more
    return set(uses) - open_ones


def _is_not_done(node: ast.AST) -> bool:
    if not isinstance(node, ast.Raise) or node.exc is None:
        return False
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return getattr(raised, "id", getattr(raised, "attr", "")) == "ExerciseNotDone"
