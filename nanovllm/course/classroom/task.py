"""One exercise of one learner: what is graded, and how, on whatever machine."""

import functools
import hashlib
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nanovllm
from nanovllm.course.grade import Conditions, grade_exercise
from nanovllm.course.process import Limits, Nursery
from nanovllm.course.registry import get_exercise

Row = dict[str, Any]  # a grade as plain values, without how long it took

_one_at_a_time = threading.Lock()  # judging swaps planted bugs in, and a process has one engine to swap them into


@dataclass(frozen=True, slots=True)
class Task:
    """A file's text, and what it is graded under. It travels; nothing of it depends on the machine.

    closed: the folder with everybody's submissions, which no submission may read.
    """

    submission: str
    number: str
    text: str
    seed: int
    limits: Limits
    closed: str

    @property
    def key(self) -> tuple[str, str]:
        """Whose, and which exercise."""
        return self.submission, self.number

    @property
    def digest(self) -> str:
        """Changes with anything that could change the grade: the file, the seed, the limits, the course."""
        said = [self.number, self.text, self.seed, asdict(self.limits), course_digest()]
        return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def grade_task(task: Task) -> Row:
    """The grade. Runs in a process of its own choosing; several threads of one process wait for each other."""
    exercise = get_exercise(task.number)
    with _one_at_a_time, tempfile.TemporaryDirectory(prefix="nanovllm-") as folder:
        path = Path(folder) / Path(exercise.file).name
        path.write_text(task.text, encoding="utf-8")
        conditions = Conditions(task.limits, task.seed, (Path(task.closed),), _nursery(), shown_as="exercises")
        row = grade_exercise(exercise, path, conditions=conditions).as_dict()
    del row["seconds"]  # everything else is the same every time
    return without(row, folder)


def without(value: Any, folder: str) -> Any:
    """`value` with the name of a temporary folder left out of all its texts."""
    if isinstance(value, str):
        return value.replace(f"{folder}/", "")
    if isinstance(value, dict):
        return {name: without(item, folder) for name, item in value.items()}
    return [without(item, folder) for item in value] if isinstance(value, list) else value


@functools.cache
def _nursery() -> Nursery:
    """One for this process, for as long as it lives."""
    return Nursery()


@functools.cache
def course_digest() -> str:
    """Of the whole package: a grade of another version is none of this one."""
    digest = hashlib.sha256()
    root = Path(nanovllm.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
