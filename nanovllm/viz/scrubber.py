"""The whole run in one strip: a tick a step, taller for prefill, with marks for what happened."""

from nanovllm.trace.record import EventKind
from nanovllm.trace.trace import Trace
from nanovllm.viz.svg import FULL, box, element, neutral

_GLYPHS = {
    EventKind.PREEMPTION: "M-3 -3L3 3M-3 3L3 -3",
    EventKind.PREFIX_HIT: "M-3.5 0A3.5 3.5 0 1 0 3.5 0A3.5 3.5 0 1 0 -3.5 0",
    EventKind.FINISH: "M-3.5 0L-1 3L3.5 -3.5",
}


def events_by_step(trace: Trace) -> list[list[str]]:
    """The kinds of events of each step, for "run to the next"."""
    return [list(dict.fromkeys(e.kind.value for e in record.events())) for record in trace]


def strip(trace: Trace, kinds: list[list[str]]) -> str:
    """The strip as SVG; `data-step` names the step of each tick."""
    width = FULL / max(1, len(trace))
    body = ""
    for step, found in enumerate(kinds):
        x, kind = step * width, trace.lines[step]["k"]
        tall = 26 if kind == "prefill" else 14
        tick = box(x + 0.5, 40 - tall, max(1.0, width - 1.2), tall, "muted" if kind == "prefill" else "line", rx=1.5)
        marks, y = "", 40 - tall - 6
        for event, glyph in _GLYPHS.items():
            if event.value in found and width > 5:
                move = f"translate({x + width / 2:.1f} {y})"
                look = {"fill": "none", "stroke": neutral("ink"), "class_": "nv-s-ink", "stroke_width": 1.6}
                marks += element("path", d=glyph, transform=move, **look)
                y -= 8
        words = f"step {step}: {kind}" + (f" ({', '.join(found)})" if found else "")
        hit = element("rect", f"<title>{words}</title>", x=x, y=0, width=width, height=44, fill="transparent")
        body += f'<g data-step="{step}">{tick}{marks}{hit}</g>'
    cursor = box(0, 2, max(3.0, width), 40, None, "mark", rx=3, stroke_width=1.8, id="nv-cursor")
    return (
        f'<svg class="nv nv-strip" viewBox="0 0 {FULL} 44" width="{FULL}" height="44" preserveAspectRatio="none" '
        f'role="img" aria-label="all steps of the run">{body}{cursor}</svg>'
    )
