"""What learners handed in: one folder each, with the files of the exercises somewhere in it."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nanovllm.course.errors import CourseError
from nanovllm.course.exercise import Exercise
from nanovllm.course.load import find_file

NO_FILE = "there is no file"
LARGEST_FILE = 200_000  # bytes; the longest solution has 5,000


@dataclass(frozen=True, slots=True)
class Submission:
    """One learner's folder. name: the folder's, which stands for the learner in all tables."""

    name: str
    folder: Path

    def text_of(self, exercise: Exercise) -> str:
        """The file of `exercise`. Raises CourseError with the reason when there is none that can be graded."""
        try:
            path = find_file(exercise, self.folder)
        except CourseError:
            raise CourseError(f"{NO_FILE} {exercise.file}") from None
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise CourseError(f"{path.name} is a link to a file outside of the submission")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise CourseError(f"{path.name} has {size:,} bytes: at most {LARGEST_FILE:,} are graded")
        try:
            return path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError) as error:
            raise CourseError(f"{path.name} cannot be read as text: {error}") from error


def find_submissions(folder: Path) -> list[Submission]:
    """The submissions in `folder`, by name: every folder in it whose name does not begin with a dot.

    Raises CourseError when there is none, or when the folder is one learner's.
    """
    if not folder.is_dir():
        raise CourseError(f"there is no folder {folder}")
    entries: Iterable[os.DirEntry[str]] = os.scandir(folder)
    names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    if not names:
        raise CourseError(f"{folder} holds no submission: each learner's files belong into a folder of their own there")
    own = [name for name in names if name == "exercises" or re.fullmatch(r"part\d", name)]
    if own:
        raise CourseError(
            f"{folder} holds {own[0]}/, as one learner's folder does: name the folder above, with a folder for each"
        )
    return [Submission(name, folder / name) for name in names]
