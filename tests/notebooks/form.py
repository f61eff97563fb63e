"""What every notebook has in common, as a list of faults: `python scripts/notebooks.py lint`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from scripts.notebooks import FIRST_CELL, METADATA, WIDGET, read

MAX_LINES = 25
TAGS = {"exercise", "nbval-ignore-output", "nbval-skip", "nbval-raises-exception"}
CLOSING = ("What can go wrong", "Checklist", "Exercises")
FILES = {1: 8, 2: 8, 3: 8, 4: 5}  # exercises of each part
EXERCISES = {f"{part}.{i}" for part, count in FILES.items() for i in range(1, count + 1)}
# What differs from machine to machine: an address, a path of somebody's, a run's own name of an object.
_LOCAL = re.compile(r"0x[0-9a-f]{6,}|(?<![\w.])/(?:home|root|tmp|work|Users|usr|opt)/|\bcuda:\d\b")
_IMAGE = re.compile(r"\A\s*<(svg|div|style|pre|figure)\b")  # what nbval.cfg leaves out


def faults(path: Path) -> list[str]:
    """What is wrong with the form of the notebook, each with its cell."""
    book = read(path)
    found = (
        [f"its name should be NN_words.ipynb, not {path.name}"] if not re.match(r"\d\d_[a-z0-9_]+$", path.stem) else []
    )
    if dict(book.metadata) != METADATA:
        found.append("its metadata is not that of scripts/notebooks.py: run `scrub`")
    found += _structure(book)
    for index, cell in enumerate(book.cells):
        found += [f"cell {index}: {fault}" for fault in _cell_faults(cell)]
    return found


def _structure(book: NotebookNode) -> Iterator[str]:
    """The order of things: title, first cell, a prediction, the closing sections."""
    texts = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    if not texts or not texts[0].startswith("# ") or book.cells[0].cell_type != "markdown":
        yield "it does not begin with a title (# ...)"
    if not code or code[0].source != FIRST_CELL:
        yield "its first code cell is not FIRST_CELL of scripts/notebooks.py"
    headings = tuple(re.findall(r"^## (.+)$", "\n".join(texts), re.M))
    if headings[-3:] != CLOSING:
        yield f"its last three sections are {headings[-3:]}, not {CLOSING}"
    if not any("predict(" in cell.source for cell in code):
        yield "nothing in it asks the reader to predict"
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        yield "its code cells are not numbered from 1: run it"


def _cell_faults(cell: NotebookNode) -> Iterator[str]:
    lines = cell.source.count("\n") + 1
    if lines > MAX_LINES:
        yield f"it has {lines} lines, more than {MAX_LINES}"
    if cell.source != cell.source.strip() or not cell.source:
        yield "it is empty, or begins or ends with an empty line"
    yield from _metadata_faults(cell)
    if cell.cell_type == "code":
        yield from _output_faults(cell)


def _metadata_faults(cell: NotebookNode) -> Iterator[str]:
    tags = set(cell.metadata.get("tags", []))
    for tag in sorted(tags - TAGS):
        yield f"it has the unknown tag {tag!r}; there are {', '.join(sorted(TAGS))}"
    number = cell.metadata.get("nanovllm", {}).get("exercise")
    if ("exercise" in tags) != (number is not None):
        yield 'the tag "exercise" and the metadata {"nanovllm": {"exercise": "N.M"}} go together'
    if number is not None and number not in EXERCISES:
        yield f"there is no exercise {number!r}"
    if number is not None and f'your("{number}"' not in cell.source:
        yield f'an exercise cell uses with your("{number}")'
    if number is None and cell.cell_type == "code" and "with your(" in cell.source:
        yield 'a cell that uses your(...) has the tag "exercise" and names the exercise in its metadata'


def _output_faults(cell: NotebookNode) -> Iterator[str]:
    tags = set(cell.metadata.get("tags", []))
    checked = not tags & {"nbval-ignore-output", "nbval-skip"}
    for output in cell.outputs:
        if output.output_type == "error" and "nbval-raises-exception" not in tags:
            yield f"its output is an error: {output.ename}"
        if output.get("name") == "stderr":
            yield f"it writes to stderr: {output.text[:60]!r}"
        data = output.get("data", {})
        if WIDGET in data:
            yield "its output has a live widget: run or scrub it"
        if data and "text/plain" not in data:
            yield "its output has no text form"
        text = output.get("text", "") + data.get("text/plain", "")
        if checked and (local := _LOCAL.search(text)):
            yield f"its text has something of this machine: {local[0]!r}"
        if checked and _IMAGE.search(text):
            yield "its text looks like a picture, which nbval.cfg leaves out"
        if re.match(r"<[\w.]+( object)? at |VBox\(|HBox\(|HTML\(", data.get("text/plain", "")):
            yield f"its text form says nothing: {data['text/plain'][:40]!r}"
    if "nbval-skip" not in tags and _shows_a_value(cell.source) and not cell.outputs:
        yield "its last line names a value and there is no output: run it"


def _shows_a_value(source: str) -> bool:
    """Whether the last line is the name of something to be shown."""
    try:
        body = ast.parse(re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source)).body
    except SyntaxError:
        return False
    last = body[-1] if body else None
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Name | ast.Attribute | ast.Subscript)
