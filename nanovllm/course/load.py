"""Find a learner's file and take the functions of an exercise from it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from nanovllm.course.errors import LEARNER, CourseError, SwapError
from nanovllm.course.exercise import Exercise
from nanovllm.course.originals import original

FOLDERS = ("exercises", "solutions")
REFERENCE = "reference"


def find_file(exercise: Exercise, impl: str | Path) -> Path:
    """The file of `exercise` under `impl`: "exercises", "solutions", a folder, or the file itself.

    The first two are looked for in the working folder, in the one above (a notebook runs in notebooks/), then in the
    checkout that this package runs from.
    """
    place = Path(impl)
    roots = [place]
    if str(impl) in FOLDERS:
        roots += [Path("..") / place, Path(__file__).resolve().parents[2] / place]
    for root in roots:
        if root.is_file():
            return root
        for candidate in (root / exercise.file, root / FOLDERS[0] / exercise.file, root / Path(exercise.file).name):
            if candidate.is_file():
                return candidate
    raise CourseError(f"exercise {exercise.name} has no file {exercise.file} in {place}: is that the right folder?")


def load_file(path: Path) -> ModuleType:
    """Run the file as a fresh module, always from its text. Whatever it raises comes through."""
    return load_source(path, path.read_text(encoding="utf-8"))


def load_source(path: Path, text: str) -> ModuleType:
    """Run `text`, the content of the file at `path`, as a fresh module."""
    module = ModuleType(f"{LEARNER}{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def load_pieces(exercise: Exercise, implementation: Any) -> dict[str, Any]:
    """The functions of `exercise` by the learner's names, from a dict, a module, a path, or the engine itself."""
    if implementation == REFERENCE:
        return {name: original(seam) for name, seam in exercise.pieces}
    if isinstance(implementation, str | Path):
        implementation = load_file(find_file(exercise, implementation))
    found: Mapping[str, Any] = implementation if isinstance(implementation, Mapping) else vars(implementation)
    missing = [name for name, _ in exercise.pieces if name not in found]
    if missing:
        raise SwapError(f"exercise {exercise.name} needs a function named {' and one named '.join(missing)}")
    return {name: found[name] for name, _ in exercise.pieces}
