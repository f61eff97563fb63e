"""Measured figures as a table with a bar in every cell: one row a measured point, one column a figure."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm.viz.svg import FULL, HALF, box, clip, document, element, label, line, wrap
from nanovllm.viz.theme import HUES

_ROW, _TOP, _GAP, _WIDEST = 34, 82, 18, 150


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure. low, high: its smallest and largest repeat. floor: what the hardware allows, in the same unit."""

    text: str
    value: float
    low: float
    high: float
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A measured point. hue: the same for points that belong together. cells: a figure or None for each column."""

    name: str
    hue: int
    cells: list[Bar | None]


class FigureBars:
    """Bars begin at 0; each column has a scale of its own, up to its largest repeat or floor."""

    def __init__(self, title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Row], words: str) -> None:
        """columns: (heading, unit) of each. words: the same as text."""
        self.title, self.columns, self.rows, self.words = title, list(columns), list(rows), words

    def svg(self, notes: Sequence[str] = ()) -> str:
        """The picture; notes: lines of small print below it."""
        left = 24 + 7.2 * max((len(row.name) for row in self.rows), default=0)
        needed = left + _WIDEST * len(self.columns)
        width = min(FULL, max(HALF, needed + 8))
        pitch = min(_WIDEST, (width - left - 8) / max(1, len(self.columns)))
        body = "".join(self._heading(i, left + i * pitch, pitch) for i in range(len(self.columns)))
        for number, row in enumerate(self.rows):
            top = _TOP + number * _ROW
            body += label(16, top + 17, clip(row.name, left - 20), size=12)
            for i, cell in enumerate(row.cells):
                if cell is not None:
                    body += self._cell(cell, row.hue, self._most(i), left + i * pitch, top, pitch - _GAP)
        below = _TOP + len(self.rows) * _ROW + 14
        for text in [part for note in [self._legend(), *notes] for part in wrap(note, width - 32, 11)]:
            body += label(16, below, text, "muted", 11)
            below += 15
        return document(width, below, body, self.title, self.words)

    def _heading(self, column: int, x: float, pitch: float) -> str:
        name, unit = self.columns[column]
        return label(x, 52, clip(name, pitch - 8), size=12, bold=True) + label(
            x, 67, clip(unit, pitch - 8), "muted", 11
        )

    def _most(self, column: int) -> float:
        told = [cell for row in self.rows if (cell := row.cells[column]) is not None]
        return max((max(cell.high, cell.floor or 0.0) for cell in told), default=0.0) or 1.0

    def _cell(self, cell: Bar, hue: int, most: float, x: float, top: float, room: float) -> str:
        scale, y = room / most, top + 19
        words = f"{cell.text}; repeats from {cell.low:,.4g} to {cell.high:,.4g}"
        words += f"; floor of the hardware {cell.floor:,.4g}" if cell.floor else ""
        paint = HUES[hue % len(HUES)]
        shape = element(
            "rect", f"<title>{words}</title>", x=x, y=y, width=max(cell.value * scale, 0.6), height=8, rx=1.5,
            fill=paint.fill,
        )  # fmt: skip
        drawn = box(x, y, room, 8, "soft", rx=1.5) + shape + label(x, top + 14, cell.text, size=12)
        if cell.high > cell.low:
            drawn += line(x + cell.low * scale, y + 4, x + cell.high * scale, y + 4, "ink", stroke_width=1.6)
        if cell.floor:
            at = x + cell.floor * scale
            drawn += line(at, y - 3, at, y + 11, "ink", stroke_width=1.2, stroke_dasharray="2 2")
        return drawn

    def _legend(self) -> str:
        cells = [cell for row in self.rows for cell in row.cells if cell is not None]
        told = ["A bar is the median of the repeats"]
        if any(cell.high > cell.low for cell in cells):
            told.append("the line in it reaches from the smallest to the largest of them")
        if any(cell.floor for cell in cells):
            told.append("a dashed mark is what the bytes and operations allow at best")
        return "; ".join(told) + "."
