"""One decoder layer as it ran: every operation in order, with the shapes that went in and came out."""

from dataclasses import dataclass

from nanovllm.viz.svg import FULL, box, clip, element, label
from nanovllm.viz.theme import neutral
from nanovllm.viz.view import View

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One operation of a layer. weight: the shape of its weight, () where it has none.

    residual: it adds its input to the residual stream first.
    """

    module: str
    op: str
    shape_in: Shape
    shape_out: Shape
    weight: Shape = ()
    residual: bool = False


class LayerFlow(View):
    """The operations of a decoder layer from left to right; the residual stream runs above them."""

    title = "One decoder layer"

    def __init__(self, calls: list[LayerCall], title: str | None = None) -> None:
        self.calls = calls
        self._heading = title or self.title

    @property
    def heading(self) -> str:
        """The title, with the number of tokens."""
        return f"{self._heading}: {len(self.calls)} operations on {self.calls[0].shape_in[0]} tokens"

    def text(self) -> str:
        """A line an operation."""
        lines = []
        for call in self.calls:
            weight = f", weight {list(call.weight)}" if call.weight else ""
            name = f"{call.module}: {call.op}"
            lines.append(f"{name:<42} {list(call.shape_in)!s:>10} -> {list(call.shape_out)}{weight}")
        return "\n".join(lines)

    def draw(self) -> tuple[float, float, str]:
        """Boxes joined by arrows, each with the shape that leaves it."""
        count = len(self.calls)
        step = (FULL - 32) / count
        width, top, rail = step - 34, 104.0, 62.0
        body = element(
            "path",
            d=f"M16 {rail}H{FULL - 16}",
            fill="none",
            stroke=neutral("muted"),
            class_="nv-s-muted",
            stroke_width=2,
            stroke_dasharray="6 4",
        )
        body += label(16, rail - 7, "residual stream", "muted", 11)
        for index, call in enumerate(self.calls):
            x = 16 + index * step
            attends = call.op == "attend"
            words = f"{call.module}: {call.op}"
            frame = "ink" if call.weight or attends else "line"
            body += box(x, top, width, 48, "soft", frame, rx=5, words=words)
            name = "attention" if attends else call.module.split(".")[-1].replace("layernorm", "norm")
            size = 10.5 if len(name) < 17 else 8.8
            body += label(x + width / 2, top + 20, clip(name, width, size), "ink", size, "middle", bold=True)
            body += label(x + width / 2, top + 37, call.op, "muted", 10.5, "middle")
            if call.weight:
                shape = "×".join(map(str, call.weight))
                body += label(x + width / 2, top + 64, f"weight {shape}", "muted", 10, "middle")
            body += label(x + width + 15, top - 6, "×".join(map(str, call.shape_out[1:])), "ink", 10.5, "middle")
            body += _arrow(x + width + 2, top + 24, x + step - 3, top + 24)
            if call.residual:
                body += _arrow(x + 12, rail, x + 12, top - 2)
                body += label(x + 18, rail + 22, "+", "ink", 14, bold=True)
        return FULL, 190, body


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head, right or down."""
    across = y1 == y2
    head = f"M{x2 - 5:.1f} {y2 - 4:.1f}l5 4l-5 4" if across else f"M{x2 - 4:.1f} {y2 - 5:.1f}l4 5l4 -5"
    d = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}{head}"
    return element("path", d=d, fill="none", stroke=neutral("ink"), class_="nv-s-ink", stroke_width=1.4)
