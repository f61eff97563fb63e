"""Calls as they happened, each in the lane of the layer that it belongs to: request state, rank control, forward."""

from dataclasses import dataclass

from nanovllm.viz.svg import FULL, box, document, element, label, line
from nanovllm.viz.theme import HUES

TITLES = ("request state", "rank control", "forward pass")
_HUES = (0, 1, 2)
_ROW, _TOP, _WIDTH = 25, 74, 384


@dataclass(slots=True)
class Call:
    """A function by its dotted name; `depth`: watched calls around it, `count`: how often it followed itself."""

    name: str
    depth: int
    lane: int
    count: int = 1

    @property
    def short(self) -> str:
        """The class and its method, or the module and its function."""
        parts = [part for part in self.name.split(".") if part not in ("__init__", "__call__")]
        return ".".join(parts[-2:] if parts[-2][:1].isupper() or not parts[-1][:1].isupper() else parts[-1:])


class Lanes:
    """The calls of a stretch of a program. Its text indents them; its picture gives each layer a column."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls

    def text(self) -> str:
        """A line a call, indented by its depth, with its layer."""
        width = max((2 * c.depth + len(c.short) for c in self.calls), default=0) + 6
        lines = []
        for call in self.calls:
            name = f"{'  ' * call.depth}{call.short}{f' x {call.count}' if call.count > 1 else ''}"
            lines.append(f"{name:<{width}}{TITLES[call.lane]}")
        return "\n".join(lines) or "nothing was called"

    def names(self) -> list[str]:
        """The calls in order, by their short names."""
        return [call.short for call in self.calls]

    def svg(self) -> str:
        """Three columns and one row a call; an arrow wherever the next call is in another layer."""
        height = _TOP + _ROW * len(self.calls) + 14
        body = ""
        for lane, title in enumerate(TITLES):
            x = 16 + lane * (_WIDTH + 16)
            body += box(x, 44, _WIDTH, height - 56, "soft", "line", rx=6)
            body += label(x + 12, 62, title, "muted", 12, bold=True)
        for row, call in enumerate(self.calls):
            body += self._call(row, call)
        return document(FULL, height, body, "Calls, in the order in which they happened", self.text())

    def _call(self, row: int, call: Call) -> str:
        x, y = 16 + call.lane * (_WIDTH + 16) + 10 + 12 * call.depth, _TOP + row * _ROW
        w = _WIDTH - 20 - 12 * call.depth
        hue = HUES[_HUES[call.lane]]
        paint = {"fill": hue.fill, "fill_opacity": "0.2", "stroke": hue.light, "class_": f"nv-s{_HUES[call.lane]}"}
        shape = element("rect", x=x, y=y, width=w, height=_ROW - 5, rx=4, **paint)
        words = call.short + (f"  x {call.count}" if call.count > 1 else "")
        shape += label(x + 9, y + 14, words, size=11.5, mono=True)
        if row and self.calls[row - 1].lane != call.lane:
            shape += self._arrow(row, call)
        return shape

    def _arrow(self, row: int, call: Call) -> str:
        """From the call above, down into this one's row, then across."""
        before = self.calls[row - 1]
        y = _TOP + row * _ROW + 10
        left = 16 + call.lane * (_WIDTH + 16) + 10 + 12 * call.depth
        from_left = before.lane < call.lane
        start = 16 + before.lane * (_WIDTH + 16) + (_WIDTH - 14 if from_left else 14)
        end = left - 2 if from_left else 16 + call.lane * (_WIDTH + 16) + _WIDTH - 8
        tip = f"M{end - 6 if from_left else end + 6} {y - 4}L{end} {y}L{end - 6 if from_left else end + 6} {y + 4}"
        drawn = line(start, y - 15, start, y, "muted") + line(start, y, end, y, "muted")
        return drawn + element("path", d=tip, fill="none", stroke="#55606e", class_="nv-s-muted")

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.svg()}

    def __repr__(self) -> str:
        return self.text()
