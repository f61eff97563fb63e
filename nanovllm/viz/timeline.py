"""A row a request, a column a step: who was computed when, who waited, who was preempted."""

from enum import Enum

from nanovllm.trace.record import Record
from nanovllm.trace.trace import Trace
from nanovllm.viz.svg import HALF, box, element, label, line, of_request, request_box, request_label
from nanovllm.viz.theme import HUES, hue_of
from nanovllm.viz.view import View

_ROW, _LEFT, _TOP = 22, 62, 64


class Cell(Enum):
    """What a request did in a step; the value is its letter in the text form."""

    PREFILL = "P"
    CHUNK = "p"
    DECODE = "d"
    WAIT = "."
    STALL = "-"  # it was running and a prefill step went first
    PREEMPT = "x"
    FINISH = "F"
    GONE = " "


_LEGEND = (
    (Cell.PREFILL, "prefill"),
    (Cell.CHUNK, "chunk"),
    (Cell.DECODE, "decode"),
    (Cell.STALL, "stalled"),
    (Cell.WAIT, "waiting"),
    (Cell.PREEMPT, "preempted"),
    (Cell.FINISH, "finished"),
)


def cell_of(record: Record, seq_id: int) -> Cell:
    """What `seq_id` did in the step."""
    if any(n.kind == "preempt" and n.seq_id == seq_id for n in record.decisions):
        return Cell.PREEMPT
    if seq_id not in record.scheduled.tables:
        return Cell.GONE
    scheduled = record.scheduled.sequence(seq_id)
    if scheduled["num_scheduled_tokens"] == 0:
        return Cell.STALL if scheduled["status"] == "running" else Cell.WAIT
    if record.after.column("status").get(seq_id) == "finished":
        return Cell.FINISH
    if record.kind == "decode":
        return Cell.DECODE
    end = scheduled["num_cached_tokens"] + scheduled["num_scheduled_tokens"]
    return Cell.PREFILL if end == scheduled["num_tokens"] else Cell.CHUNK


class Timeline(View):
    """Every request over the steps of a trace, up to and around the step that is shown.

    width: steps that are visible at once. Steps after the current one are drawn pale.
    """

    title = "Requests over time"

    def __init__(self, trace: Trace, index: int = -1, width: int = 44, max_rows: int = 12) -> None:
        super().__init__(trace[index])
        self.trace = trace
        self.index = index % len(trace)
        first = max(0, min(self.index - width * 2 // 3, len(trace) - width))
        self.steps = range(first, min(first + width, len(trace)))
        self.width, self.max_rows = width, max_rows
        self.cells = {step: _cells(trace[step]) for step in self.steps}

    @property
    def heading(self) -> str:
        """The title, with the steps that are shown."""
        return f"Requests over time, steps {self.steps.start} to {self.steps.stop - 1}"

    @property
    def rows(self) -> list[int]:
        """The requests that do something in the visible steps; those that are there now go first when many are."""
        present = [i for i in self.trace.request_ids if any(i in self.cells[s] for s in self.steps)]
        if len(present) <= self.max_rows:
            return present
        now = [i for i in present if i in self.cells[self.index]]
        return sorted((now + [i for i in reversed(present) if i not in now])[: self.max_rows])

    def text(self) -> str:
        """A line a request, a letter a step, up to the current one."""
        legend = ", ".join(f"{cell.value} {name}" for cell, name in _LEGEND)
        shown = [s for s in self.steps if s <= self.index]
        lines = [
            f"request {i:>2} |" + "".join(self.cells[s].get(i, Cell.GONE).value for s in shown) + "|" for i in self.rows
        ]
        return "\n".join([f"steps {self.steps.start} to {self.index} ({legend})", *lines])

    def draw(self) -> tuple[float, float, str]:
        """The chart: full boxes are prefill, low ones decode, thin lines waiting."""
        pitch = (HALF - _LEFT - 16) / self.width
        height = _TOP + max(9, len(self.rows)) * _ROW
        body = self._axis(pitch, height)
        for row, seq_id in enumerate(self.rows):
            y = _TOP + row * _ROW
            marks = [
                self._mark(
                    seq_id, self.cells[s].get(seq_id, Cell.GONE), _LEFT + (s - self.steps.start) * pitch, y, pitch
                )
                for s in self.steps
                if s <= self.index
            ]
            later = [
                self._mark(
                    seq_id, self.cells[s].get(seq_id, Cell.GONE), _LEFT + (s - self.steps.start) * pitch, y, pitch
                )
                for s in self.steps
                if s > self.index
            ]
            chip = request_box(seq_id, 16, y + 2, 36, 16, 4) + request_label(seq_id, 34, y + 14, seq_id, 11)
            body += of_request(seq_id, chip, *marks, element("g", *later, opacity="0.28") if any(later) else "")
        return HALF, height + 42, body + _legend(height + 24)

    def _axis(self, pitch: float, height: float) -> str:
        body = ""
        for step in self.steps:
            x = _LEFT + (step - self.steps.start) * pitch
            if step % 5 == 0 and abs(step - self.index) > 2:
                body += label(x + pitch / 2, _TOP - 8, step, "muted", 10.5, "middle")
            kind = self.trace.lines[step]["k"]
            if kind == "prefill" and step <= self.index:
                body += box(x, _TOP - 4, pitch, height - _TOP + 4, "soft", rx=0, words=f"step {step}: prefill")
        x = _LEFT + (self.index - self.steps.start) * pitch
        body += box(x - 1, _TOP - 4, pitch + 2, height - _TOP + 6, None, "mark", rx=3, stroke_width=1.5)
        return body + label(x + pitch / 2, _TOP - 9, self.index, size=12, anchor="middle", bold=True)

    def _mark(self, seq_id: int, cell: Cell, x: float, y: float, w: float) -> str:
        return mark(seq_id, cell, x, y, w)


def _cells(record: Record) -> dict[int, Cell]:
    members = [*record.scheduled.tables]
    return {i: cell_of(record, i) for i in members}


def mark(seq_id: int, cell: Cell, x: float, y: float, w: float) -> str:
    """One cell of the chart, `w` px wide."""
    hue = hue_of(seq_id)
    stroke = {"stroke": HUES[hue].light, "class_": f"nv-s{hue}", "fill": "none"}
    mid = y + 10
    if cell in (Cell.PREFILL, Cell.CHUNK):
        shape = request_box(seq_id, x + 0.8, y + 1, w - 1.6, 18, 2)
        notch = element("path", d=f"M{x + w - 2.5:.1f} {y + 4:.1f}v12", stroke=HUES[hue].on, stroke_width=1.5)
        return shape + (notch if cell is Cell.CHUNK else "")
    if cell is Cell.DECODE:
        return request_box(seq_id, x + 0.8, y + 6, w - 1.6, 8, 2)
    if cell is Cell.FINISH:
        return request_box(seq_id, x + 0.8, y + 6, w - 1.6, 8, 2) + element(
            "path", d=f"M{x + w - 1.2:.1f} {y + 1:.1f}v18", stroke_width=2.6, **stroke
        )
    if cell is Cell.PREEMPT:
        a, b, c, d = x + 1.5, mid - 4, x + w - 1.5, mid + 4
        cross = f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}M{a:.1f} {d:.1f}L{c:.1f} {b:.1f}"
        return element("path", d=cross, stroke_width=2.4, stroke_linecap="round", **stroke)
    if cell in (Cell.WAIT, Cell.STALL):
        dash = "2 2.5" if cell is Cell.WAIT else None
        return element("path", d=f"M{x:.1f} {mid:.1f}h{w:.1f}", stroke_width=1.4, stroke_dasharray=dash, **stroke)
    return ""


def _legend(y: float) -> str:
    body, x = line(16, y - 14, HALF - 16, y - 14), 16.0
    for cell, name in _LEGEND:
        body += mark(0, cell, x, y - 7, 12) + label(x + 17, y + 7, name, "muted", 11)
        x += 30 + len(name) * 6.3
    return body
