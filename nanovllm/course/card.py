"""The grade card in a terminal; `notebook_card` is the one with buttons."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nanovllm.cli.palette import BAD, DIM, GOOD, HEAD
from nanovllm.course.judge import Failure, Grade

if TYPE_CHECKING:
    from nanovllm.course.card_widget import NotebookCard

SAID = {
    "done": "done",
    "partial": "in part",
    "failed": "not yet",
    "todo": "not begun",
    "missing": "no file",
    "void": "no points",
}
_STYLE = {"done": GOOD, "partial": HEAD, "failed": BAD, "todo": DIM, "missing": DIM, "void": BAD}
BAR_WIDTH = 40
MOST_CHARACTERS = 300


def show_card(console: Console, grades: list[Grade]) -> None:
    """A table of all exercises, then what to do about those that are begun and not done."""
    table = Table(box=None, pad_edge=False, header_style=DIM)
    for title in ("exercise", "", "points", "", "seconds"):
        table.add_column(title, justify="right" if title in ("points", "seconds") else "left")
    for grade in grades:
        said = Text(SAID[grade.status], style=_STYLE[grade.status])
        table.add_row(grade.number, grade.title, f"{grade.earned}/{grade.points}", said, f"{grade.seconds:.1f}")
    console.print(table)
    for grade in grades:
        if grade.status not in ("done", "todo", "missing"):
            _show_details(console, grade)
    todo = [grade.number for grade in grades if grade.status == "todo"]
    if todo:
        console.print(Text(f"\nNot begun: {', '.join(todo)}.\nWhere to start: nanovllm hint {todo[0]}", style=DIM))


def _show_details(console: Console, grade: Grade) -> None:
    console.print(Text(f"\n{grade.name}: {grade.earned} of {grade.points} points", style=HEAD))
    if grade.reason:
        console.print(Text(f"  no points: {grade.reason}", style=BAD))
    for group in grade.groups:
        mark = Text("  ✗ ", style=BAD) if group.failure else Text("  ✓ ", style=GOOD)
        console.print(mark + Text(f"{group.name} ({group.earned}/{group.points})", style=""))
    first = next((group.failure for group in grade.groups if group.failure), None)
    if first:
        _show_failure(console, first)
    if grade.bug:
        console.print(Text(f"\n  Code that does this behaves the same: it {grade.bug}."))
    console.print(Text(f"  More help: nanovllm hint {grade.number}", style=DIM))


def _show_failure(console: Console, failure: Failure) -> None:
    console.print(Text(f"\n  Think about: {failure.think}"))
    console.print(Text(f"    expected: {short(failure.expected)}"))
    console.print(Text(f"    actual:   {short(failure.actual)}"))
    for line in failure.history:
        console.print(Text(f"      {short(line)}", style=DIM))
    if failure.cell:
        console.print(Text("\n  To see it again, paste this:\n"))
        for line in failure.cell.splitlines():
            console.print(Text(f"    {line}"), soft_wrap=True)


def short(text: str) -> str:
    """The text, cut where it grows long."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."


def bar(points: int, total: int) -> Text:
    """A bar of points out of total, and the numbers: they say it without colour too."""
    filled = BAR_WIDTH * points // total
    return Text.assemble(("█" * filled, GOOD), ("░" * (BAR_WIDTH - filled), DIM), f" {points}/{total}")


def notebook_card(exercise: str) -> "NotebookCard":
    """A card with buttons that grades `exercise` ("2.2") in a notebook; the last expression of its cell.

    Its text and HTML forms are the same on every machine; what is live is the widget. Raises CourseError for an
    exercise that does not exist.
    """
    from nanovllm.course.card_widget import NotebookCard

    return NotebookCard(exercise)
