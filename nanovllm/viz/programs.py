"""Programs on a GPU that has room for some at a time: who runs where and when, for one order or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from nanovllm.viz.svg import FULL, document, label, line, of_request, request_box, request_label

_LEFT, _ROW, _HEAD, _GAP = 80, 22, 22, 14


@dataclass(frozen=True, slots=True)
class Run:
    """One program: of which row, in which place, from when to when."""

    row: int
    place: int
    start: int
    end: int


def runs_of(lengths: Sequence[int], order: Sequence[int], room: int) -> list[Run]:
    """Each row of `order` begins in the first place that is free and lasts as long as `lengths` says.

    lengths: of all rows, one or more, in any unit. Raises ValueError unless `order` names every row once and there is
    room.
    """
    if not lengths or sorted(order) != list(range(len(lengths))):
        raise ValueError(
            f"there are {len(lengths)} rows and the order is {list(order)}: name each of 1 or more rows once"
        )
    if room < 1:
        raise ValueError(f"there is room for {room} programs at a time: make it 1 or more")
    free, runs = [(0, place) for place in range(room)], []
    heapify(free)
    for row in order:
        start, place = free[0]
        heapreplace(free, (start + lengths[row], place))
        runs.append(Run(row, place, start, start + lengths[row]))
    return runs


class Programs:
    """The same programs begun in several orders, one under the other on one scale.

    lengths: of each row. orders: a name and the rows as they are begun. room: programs that run at a time.
    """

    def __init__(self, lengths: Sequence[int], orders: Mapping[str, Sequence[int]], room: int) -> None:
        self.lengths, self.room = list(lengths), room
        self.runs = {name: runs_of(self.lengths, order, room) for name, order in orders.items()}

    def end(self, name: str) -> int:
        """When the last program of that order is done."""
        return max(run.end for run in self.runs[name])

    def text(self) -> str:
        """A line an order, and a line a place."""
        lines = []
        for name, runs in self.runs.items():
            lines.append(f"{name}: done at {self.end(name)}")
            for place in range(self.room):
                here = "  ".join(f"#{r.row} {r.start}..{r.end}" for r in runs if r.place == place)
                lines.append(f"  place {place}: {here or 'nothing'}")
        return "\n".join(lines)

    def svg(self) -> str:
        """A bar a program, in its row's colour; a mark where the last one ends."""
        unit = (FULL - _LEFT - 150) / max(map(self.end, self.runs))
        y, body = 44.0, ""
        for name, runs in self.runs.items():
            body += label(16, y + 14, name, "ink", 12.5, bold=True)
            y += _HEAD
            last, bottom = _LEFT + self.end(name) * unit, y + self.room * _ROW
            for place in range(self.room):
                body += label(16, y + place * _ROW + 15, f"place {place}", "muted", 11.5)
                body += line(_LEFT, y + place * _ROW + 19.5, FULL - 16, y + place * _ROW + 19.5, "line")
            body += "".join(self._bar(run, y, unit) for run in runs)
            body += line(last, y - 4, last, bottom + 2, "mark", stroke_dasharray="3 3")
            body += label(last + 8, y + 12, f"done at {self.end(name)}", "ink", 12)
            y = bottom + _GAP
        return document(FULL, y, body, f"{len(self.lengths)} programs, room for {self.room} at a time", self.text())

    def _bar(self, run: Run, y: float, unit: float) -> str:
        x, width, top = _LEFT + run.start * unit, (run.end - run.start) * unit - 1.5, y + run.place * _ROW + 1
        words = f"row {run.row}: {run.end - run.start} long, from {run.start} to {run.end}"
        shape = request_box(run.row, x, top, max(width, 0.5), _ROW - 5, words=words)
        if width > 18:
            shape += request_label(run.row, x + width / 2, top + 13, f"#{run.row}", 11)
        return of_request(run.row, shape)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.svg()}

    def __repr__(self) -> str:
        return self.text()
