"""Where the time of a step goes, and tokens a second over the steps."""

from typing import Any

from nanovllm.trace.record import PHASES, Record
from nanovllm.trace.trace import Trace
from nanovllm.viz.svg import FULL, HALF, box, label, line
from nanovllm.viz.view import View

_SHADES = dict(zip(PHASES, (1.0, 0.25, 0.6, 0.4, 0.85), strict=True))  # greys: colours belong to requests


class Phases(View):
    """The phases of the step, by their share of its time. Only the picture shows times; they differ run by run."""

    title = "Phases"

    @property
    def heading(self) -> str:
        """The title, with the duration."""
        return f"Phases of {self.record.when}: {1e3 * self.record.seconds:.2f} ms"

    def text(self, times: bool = False) -> str:
        """The phases in order; `times` adds milliseconds, which no two runs share."""
        phases = self.record.phases
        names = [p for p in PHASES if p in phases]
        return "\n".join(f"{n}: {1e3 * phases[n]:.3f} ms" for n in names) if times else " -> ".join(names)

    def draw(self) -> tuple[float, float, str]:
        """One bar, and a list beside the colours."""
        total = max(self.record.seconds, 1e-9)
        body, x = "", 16.0
        for index, phase in enumerate(PHASES):
            seconds = self.record.phases.get(phase, 0.0)
            w = (FULL - 32) * seconds / total
            words = f"{phase}: {1e3 * seconds:.3f} ms"
            shade: dict[str, Any] = {"fill": "muted", "fill_opacity": _SHADES[phase]}
            body += box(x, 46, max(w, 0.5), 24, stroke="card", rx=1, words=words, **shade)
            x += w
            at = 16 + index * 236
            body += box(at, 88, 11, 11, rx=2, **shade)
            body += label(at + 17, 98, phase, size=11.5)
            body += label(at + 96, 98, f"{1e3 * seconds:.2f} ms", "muted", 11.5)
        return FULL, 116, body


class Throughput(View):
    """Tokens a second over the steps up to the current one: all computed ones, and sampled ones."""

    title = "Tokens per second"

    def __init__(self, trace: Trace, index: int = -1, width: int = 60) -> None:
        super().__init__(trace[index])
        self.index = index % len(trace)
        first = max(0, self.index - width + 1)
        self.width = width
        self.records = [trace[i] for i in range(first, self.index + 1)]

    @property
    def heading(self) -> str:
        """The title, with the steps that are shown."""
        return f"Tokens computed per second, steps {self.records[0].step} to {self.index}"

    def text(self, times: bool = False) -> str:
        """Tokens of each step; `times` adds the rate, which no two runs share."""
        if not times:
            return "tokens a step: " + " ".join(f"{r.num_tokens}{r.kind[0]}" for r in self.records)
        return "\n".join(f"step {r.step}: {r.kind}, {r.num_tokens} tokens, {_rate(r):,.0f} tok/s" for r in self.records)

    def draw(self) -> tuple[float, float, str]:
        """A column a step; prefill is dark, decode open."""
        top, bottom, left = 48, 150, 62
        highest = max((_rate(r) for r in self.records), default=1.0) or 1.0
        pitch = (HALF - left - 16) / self.width
        body = ""
        for share in (0, 0.5, 1):
            y = bottom - share * (bottom - top)
            body += line(left, y, HALF - 16, y, "line", stroke_dasharray=None if share == 0 else "2 4")
            body += label(left - 6, y + 4, f"{highest * share:,.0f}", "muted", 10.5, "end")
        for index, record in enumerate(self.records):
            height = (bottom - top) * _rate(record) / highest
            words = f"step {record.step}: {record.kind}, {record.num_tokens} tokens, {_rate(record):,.0f} tok/s"
            fill = "muted" if record.kind == "prefill" else "soft"
            body += box(left + index * pitch, bottom - height, pitch - 1.2, height, fill, "muted", rx=1, words=words)
        body += box(left, 164, 10, 10, "muted", "muted", rx=1) + label(left + 16, 173, "prefill", "muted", 11)
        body += box(left + 80, 164, 10, 10, "soft", "muted", rx=1) + label(left + 96, 173, "decode", "muted", 11)
        return HALF, 194, body


def _rate(record: Record) -> float:
    return record.num_tokens / record.seconds if record.seconds else 0.0
