"""The timeline of a pressure run: what each request did at every moment, and how full the pool was."""

from dataclasses import dataclass

from nanovllm.bench.record import PressurePoint, Repeat
from nanovllm.bench.style import BLUE, ORANGE, PURPLE, SKY, VERMILION, Picture, figure, picture
from nanovllm.viz.theme import neutral

WAITING, PREFILL, AGAIN, DECODE, STALLED, PREEMPTED = (
    "waiting",
    "prefill",
    "recompute",
    "decode",
    "stalled",
    "preempted",
)
COLOURS = {
    WAITING: neutral("line"),
    PREFILL: ORANGE,
    AGAIN: PURPLE,
    DECODE: BLUE,
    STALLED: SKY,
    PREEMPTED: "#f6c9a8",  # vermilion, pale: the request is there and holds nothing
}
MEANING = {
    WAITING: "waits for its first prefill",
    PREFILL: "prefill",
    AGAIN: "computed again",
    DECODE: "decode",
    STALLED: "holds blocks, waits for others' prefill",
    PREEMPTED: "preempted, waits",
}


@dataclass(slots=True)
class Span:
    """A request was in one state from `start` to `end`, s."""

    request: int
    state: str
    start: float
    end: float


def spans(repeat: Repeat) -> list[Span]:
    """The timeline's steps as spans, equal neighbours merged; each request's end with its finish."""
    found: list[Span] = []
    newest: dict[int, Span] = {}
    admitted: set[int] = set()
    out: set[int] = set()  # preempted, and not admitted again
    again: set[int] = set()  # preempted at least once
    left = dict.fromkeys(range(len(repeat.requests)))
    start = 0.0
    for step in repeat.timeline:
        out |= set(step.preempted)
        again |= set(step.preempted)
        scheduled = set(step.scheduled)
        for request in list(left):
            state = _state(request in scheduled, step.is_prefill, request, admitted, out, again)
            span = newest.get(request)
            if span is not None and span.state == state:
                span.end = step.end
            else:
                span = newest[request] = Span(request, state, start, step.end)
                found.append(span)
            if repeat.requests[request].finish <= step.end:
                del left[request]
        admitted |= scheduled
        out -= scheduled
        start = step.end
    return found


def _state(runs: bool, is_prefill: bool, request: int, admitted: set[int], out: set[int], again: set[int]) -> str:
    if runs:
        return DECODE if not is_prefill else AGAIN if request in again else PREFILL
    if request in out:
        return PREEMPTED
    return STALLED if request in admitted else WAITING


def draw_timeline(point: PressurePoint) -> Picture:
    """A row a request over the seconds; below it the blocks in use, with a mark at each preemption."""
    from matplotlib.ticker import MaxNLocator

    repeat = point.repeats[-1]
    rows = len(repeat.requests)
    with figure(10.4, 2.9 + 0.24 * rows) as fig:
        top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=[0.24 * rows + 0.6, 1.3])
        found = spans(repeat)
        for state in MEANING:
            mine = [s for s in found if s.state == state]
            if mine:
                widths = [s.end - s.start for s in mine]
                rows_of, starts = [s.request for s in mine], [s.start for s in mine]
                top.barh(rows_of, widths, 0.72, starts, color=COLOURS[state], label=MEANING[state])
        top.set_yticks(range(rows), [f"#{i}" for i in range(rows)])
        top.set_ylim(rows - 0.4, -0.6)
        top.grid(False, axis="y")
        top.set_title(f"{point.num_blocks} KV blocks, {point.share:.0%} of what all requests need at once", pad=26)
        top.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, fontsize=8.5, handlelength=1.2, borderpad=0)
        ends = [0.0, *(s.end for s in repeat.timeline)]
        blocks = [s.used_blocks for s in repeat.timeline]
        bottom.stairs(blocks, ends, fill=True, color=BLUE, alpha=0.35)
        bottom.axhline(point.num_blocks, color=neutral("ink"), linewidth=1, linestyle="--")
        bottom.text(ends[-1], point.num_blocks, "pool ", ha="right", va="bottom", fontsize=9)
        for began, step in zip(ends, repeat.timeline, strict=False):  # a step is scheduled where it begins
            for request in step.preempted:
                top.plot(began, request, marker="x", color=VERMILION, markersize=6, markeredgewidth=2)
                bottom.axvline(began, color=VERMILION, linewidth=1)
        bottom.set_ylim(0, point.num_blocks * 1.25)
        bottom.set_ylabel("blocks in use")
        bottom.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        bottom.set_xlabel("s since the first request was queued")
        bottom.set_xlim(0, ends[-1])
        caption = (
            "Every step of the last repeat. A cross and a red line: a request lost its blocks, because an older one "
            "needed one and none was free."
        )
        return picture(
            fig, f"pressure_timeline_{point.num_blocks}", f"Timeline with {point.num_blocks} blocks", caption
        )
