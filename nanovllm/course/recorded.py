"""Measured results that a notebook shows where the machine cannot measure them; each carries its environment."""

import json
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from nanovllm.course.errors import CourseError

FOLDER = Path(str(files("nanovllm") / "assets" / "recorded"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A table of figures, and all that one must know to compare with it. source: where the same table is published."""

    title: str
    environment: str
    how: str
    columns: list[str]
    rows: list[list[str]]
    source: str
    note: str = ""

    def column(self, name: str) -> dict[str, str]:
        """The cells of a column, by the first cell of their row. Raises CourseError when there is no such column."""
        if name not in self.columns:
            raise CourseError(f"{self.title!r} has no column {name!r}; it has {', '.join(self.columns)}")
        return {row[0]: row[self.columns.index(name)] for row in self.rows}

    def numbers(self, name: str) -> dict[str, float]:
        """The same as numbers, without those cells that are ranges."""
        cells = self.column(name).items()
        return {
            key: float(cell.replace(",", "")) for key, cell in cells if cell.replace(",", "").replace(".", "").isdigit()
        }

    def text(self) -> str:
        """Title, table, environment."""
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]
        lines = [self.title, ""]
        for row in [self.columns, *self.rows]:
            first, *rest = (
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join([first, *rest]).rstrip())
        lines += ["", f"recorded on: {self.environment}", f"how: {self.how}", f"source: {self.source}"]
        return "\n".join([*lines, *([f"note: {self.note}"] if self.note else [])])

    def html(self) -> str:
        """The same for a page."""
        head = "".join(f"<th>{escape(c)}</th>" for c in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        notes = f"Recorded on {self.environment}. How: {self.how}. Source: {self.source}."
        notes += f" {self.note[:1].upper()}{self.note[1:]}." if self.note else ""
        return (
            f"<div><b>{escape(self.title)}</b><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p style='max-width:820px'><small>{escape(notes)}</small></p></div>"
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def __repr__(self) -> str:
        return self.text()


def recorded(name: str) -> Recorded:
    """The recorded table of this name. Raises CourseError when there is none."""
    tables = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))
    if name not in tables:
        raise CourseError(f"there is no recorded table {name!r}; there are {', '.join(tables)}")
    return Recorded(**tables[name])
