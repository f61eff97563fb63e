"""What has been graded already, one line each, so that a run which was killed goes on where it was."""

import json
from pathlib import Path
from types import TracebackType

from nanovllm.course.classroom.task import Row, Task

NAME = ".nanovllm-grades.jsonl"


class Journal:
    """A file of lines, each a grade with the digest of what was graded. A line cut off by a kill is forgotten.

    fresh: forget everything that stands there.
    """

    def __init__(self, path: Path, fresh: bool = False) -> None:
        self.path = path
        self._rows: dict[str, Row] = {}
        if fresh:
            path.unlink(missing_ok=True)
        elif path.exists():
            self._read()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def _read(self) -> None:
        whole = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                self._rows[f"{entry['submission']}/{entry['digest']}"] = entry["grade"]
                whole.append(line)
            except (ValueError, KeyError, TypeError):  # cut off
                continue
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
        new.replace(self.path)

    def find(self, task: Task) -> Row | None:
        """The grade of this very task, if it is there."""
        return self._rows.get(f"{task.submission}/{task.digest}")

    def add(self, task: Task, row: Row) -> None:
        """Write a grade down at once."""
        entry = {"submission": task.submission, "digest": task.digest, "grade": row}
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
