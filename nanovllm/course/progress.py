"""What a learner has earned so far, kept outside the package so that an update never loses it."""

import json
import os
from pathlib import Path

from nanovllm.course.judge import Grade

ENVIRONMENT = "NANOVLLM_DATA_DIR"


def data_folder() -> Path:
    """$NANOVLLM_DATA_DIR, or nanovllm/ in $XDG_DATA_HOME, which is ~/.local/share unless set."""
    if own := os.environ.get(ENVIRONMENT):
        return Path(own)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "nanovllm"


class Progress:
    """The best points of each exercise. earned: exercise number -> points.

    shown: exercises whose solution was asked for before they were passed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or data_folder()) / "progress.json"
        self.earned: dict[str, int] = {}
        self.shown: set[str] = set()
        self._read()

    def _read(self) -> None:
        """Take what the file holds; a file that cannot be read is moved aside, never overwritten."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            self.earned = {str(number): int(points) for number, points in stored["earned"].items()}
            self.shown = {str(number) for number in stored.get("shown", [])}
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError):
            self.path.replace(self.path.with_suffix(".unreadable"))
            self.earned = {}

    @property
    def points(self) -> int:
        """Points of all exercises."""
        return sum(self.earned.values())

    def record(self, grades: list[Grade]) -> None:
        """Keep what is better than before, and write it down in one piece."""
        for grade in grades:
            self.earned[grade.number] = max(self.earned.get(grade.number, 0), grade.earned)
        self._write()

    def note_shown(self, number: str) -> None:
        """Remember that the solution was shown before the exercise was passed."""
        self.shown.add(number)
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}.new")
        new.write_text(
            json.dumps({"earned": self.earned, "shown": sorted(self.shown)}, indent=1) + "\n", encoding="utf-8"
        )
        new.replace(self.path)
