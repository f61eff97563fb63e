"""Runs a notebook's cells in this process, without a kernel, and compares what they say with what is committed."""

import ast
import asyncio
import contextlib
import inspect
import io
import linecache
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from IPython.core.formatters import PlainTextFormatter
from nbformat import NotebookNode

from scripts.notebooks import read

SECONDS = 60


class TooLong(Exception):
    """A cell did not come to an end."""


class Notebook:
    """The cells of a notebook and the names that they have made so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: list[NotebookNode] = [c for c in read(path).cells if c.cell_type == "code"]
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._plain = PlainTextFormatter()
        self._printed = io.StringIO()

    def run(self, cell: NotebookNode, names: dict[str, Any] | None = None, seconds: float = SECONDS) -> str:
        """What the cell says, as text. Raises what it raises, and TooLong. names: instead of the notebook's own."""
        names = self.names if names is None else names
        names["display"] = self._display
        source = re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", cell.source)  # installing is not for a test
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._printed = io.StringIO()
        with contextlib.redirect_stdout(self._printed), contextlib.chdir(self.path.parent), limit(seconds):
            self._do(tree, "exec", source, names)
            if last is not None and not source.rstrip().endswith(";"):
                value = self._do(ast.Expression(last.value), "eval", source, names)
                if value is not None:
                    self._display(value)
        return self._printed.getvalue()

    def _do(self, tree: ast.Module | ast.Expression, mode: str, source: str, names: dict[str, Any]) -> Any:
        name = f"<{self.path.stem} {hash(source):x}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        code = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, names)
        return asyncio.run(value) if inspect.iscoroutine(value) else value

    def _display(self, *values: Any) -> None:
        for value in values:
            bundle = value._repr_mimebundle_() if hasattr(value, "_repr_mimebundle_") else {}
            self._printed.write(f"{bundle.get('text/plain') or self._plain(value)}\n")


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block after that many seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    old = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *old)


def committed(cell: NotebookNode) -> str:
    """What the committed cell says, as text."""
    said = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(said)


def same(a: str, b: str) -> bool:
    """Equal but for empty lines and blanks at the ends of lines."""
    return _lines(a) == _lines(b)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def tags(cell: NotebookNode) -> set[str]:
    """The cell's tags."""
    return set(cell.metadata.get("tags", []))


def exercise_of(cell: NotebookNode) -> str | None:
    """The exercise that the cell shows, or None."""
    number: str | None = cell.metadata.get("nanovllm", {}).get("exercise")
    return number


def first_fault(path: Path) -> str:
    """Run the notebook until a cell raises or says something else than is committed; what happened, or ""."""
    book = Notebook(path)
    for index, cell in enumerate(book.cells):
        if "nbval-skip" in tags(cell):
            continue
        try:
            said = book.run(cell)
        except Exception as error:
            return f"cell {index} raised {type(error).__name__}: {error}"
        if "nbval-ignore-output" not in tags(cell) and not same(said, committed(cell)):
            return f"cell {index} said\n{said}\nand not\n{committed(cell)}"
    return ""
