"""The plots of the serve experiment: percentiles over the rate, arrival processes side by side, one run's requests."""

from collections.abc import Sequence

from nanovllm.bench.experiments.serve_points import answered, ttft
from nanovllm.bench.record import ServeResult
from nanovllm.bench.record_serve import ServePoint
from nanovllm.bench.stats import Spread
from nanovllm.bench.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Picture,
    bars,
    figure,
    picture,
    thousands,
    with_spread,
)
from nanovllm.viz.theme import neutral

SPREAD = "Points and bars are medians over the repeats, whiskers reach from the smallest to the largest repeat."
PERCENTILES = (("p50", BLUE, "o"), ("p95", ORANGE, "s"), ("p99", VERMILION, "^"))
LATENCIES = (("ttft", "TTFT", "ms"), ("tpot", "TPOT", "ms"), ("itl", "ITL", "ms"), ("e2e", "End to end", "s"))


def serve(result: ServeResult) -> list[Picture]:
    """Over rates, over concurrencies, beside each other at one rate, and the requests of the hardest load."""
    rated = [p for p in result.points if p.rate is not None]
    main = _most_common([p.arrivals for p in rated])
    line = sorted((p for p in rated if p.arrivals == main), key=lambda p: p.rate or 0)
    shown = [_over_load(result, line, "rate", f"offered requests/s, {main} arrivals")] if len(line) > 1 else []
    closed = sorted((p for p in result.points if p.concurrency), key=lambda p: p.concurrency or 0)
    if len(closed) > 1:
        shown.append(_over_load(result, closed, "concurrency", "requests under way at any time"))
    beside = _same_rate(rated)
    if len(beside) > 1:
        shown.append(_processes(beside))
    return [*shown, _requests(result, (line or closed or result.points)[-1])]


def _most_common(names: list[str]) -> str:
    return max(dict.fromkeys(names), key=names.count, default="")


def _same_rate(points: list[ServePoint]) -> list[ServePoint]:
    """The points at the rate that most arrival processes have, the most regular one first."""
    rates = [p.rate for p in points]
    best = max(dict.fromkeys(rates), key=rates.count, default=None)
    order = {"fixed": 0, "poisson": 1, "gamma": 2}
    return sorted((p for p in points if p.rate == best), key=lambda p: order.get(p.arrivals, 3))


def _over_load(result: ServeResult, points: list[ServePoint], name: str, label: str) -> Picture:
    """Four latency panels and two of rates over the load, the limits of goodput and the capacity as lines."""
    xs = [float(getattr(p, name)) for p in points]
    limits, capacity = result.settings.get("limits", {}), result.settings.get("capacity_requests_s")
    with figure(11.4, 6.6) as fig:
        panels = fig.subplots(2, 3).flatten()
        for ax, (figure_name, title, unit) in zip((*panels[:2], *panels[3:5]), LATENCIES, strict=True):
            _percentile_lines(ax, xs, points, figure_name)
            limit = limits.get(figure_name)
            if limit is not None:
                ax.axhline(limit * (1e3 if unit == "ms" else 1), color=GREEN, linestyle="--", label="limit of goodput")
            ax.set_title(title)
            ax.set_ylabel(unit)
            thousands(ax)
        answered_ax, tokens_ax = panels[2], panels[5]
        if name == "rate":
            answered_ax.plot(xs, xs, color=neutral("muted"), linestyle=":", label="offered")
        with_spread(answered_ax, xs, [p.requests_s for p in points], color=BLUE, marker="o", label="answered")
        with_spread(answered_ax, xs, [p.goodput for p in points], color=GREEN, marker="s", label="within the limits")
        with_spread(tokens_ax, xs, [p.output_tok_s for p in points], color=PURPLE, marker="D", label="completion tok/s")
        for ax, title, unit in ((answered_ax, "Goodput", "requests/s"), (tokens_ax, "Throughput", "tok/s")):
            ax.set_title(title)
            ax.set_ylabel(unit)
            thousands(ax)
            ax.set_ylim(bottom=0)
        for ax in panels:
            ax.set_xlim(0, max(xs) * 1.05)
            ax.set_xlabel(label)
            if name == "rate" and capacity:
                ax.axvline(capacity, color=neutral("muted"), linewidth=1, linestyle="--")
            ax.legend(fontsize=8)
        dashed = " The grey dashed line is the capacity that a closed loop reached." if name == "rate" else ""
        return picture(fig, f"serve_{name}", f"Latency and goodput over the {name}", SPREAD + dashed)


def _percentile_lines(ax: object, xs: Sequence[float], points: list[ServePoint], name: str) -> None:
    for percentile, colour, marker in PERCENTILES:
        told = [(x, s) for x, p in zip(xs, points, strict=True) if (s := getattr(p, f"{name}_{percentile}"))]
        if told:
            style = {"color": colour, "marker": marker, "label": percentile}
            with_spread(ax, [x for x, _ in told], [s for _, s in told], **style)


def _processes(points: list[ServePoint]) -> Picture:
    """The same mean rate with other gaps: TTFT p99, end-to-end p99, share in time."""
    names = [p.name.split(",")[0] for p in points]
    colours = [(SKY, BLUE, PURPLE, ORANGE)[i % 4] for i in range(len(points))]
    panels = (("ttft_p99", "TTFT p99", "ms"), ("e2e_p99", "End to end p99", "s"), ("in_time", "In time", "%"))
    with figure(10.4, 3.9) as fig:
        for ax, (name, title, unit) in zip(fig.subplots(1, 3), panels, strict=True):
            spreads = [getattr(p, name) for p in points]
            if name == "in_time":
                spreads = [Spread.of([100 * v for v in s.values], "%", s.better) for s in spreads]
            bars(ax, names, spreads, colours)
            ax.set_title(title)
            ax.set_ylabel(unit)
            ax.set_xlabel("arrivals")
        title = f"Arrival processes at {points[0].rate:g} requests/s"
        return picture(fig, "serve_arrivals", title, f"The same mean rate; only the gaps differ. {SPREAD}")


def _requests(result: ServeResult, point: ServePoint) -> Picture:
    """Each request of the last repeat: when it was due, its TTFT, its end to end."""
    rows = answered(point.repeats[-1])
    due = [row.due for row in rows]
    with figure(10.4, 3.6) as fig:
        ax = fig.subplots()
        ax.vlines(due, [ttft(r) or 0 for r in rows], [(r.last or 0) - r.due for r in rows], color=SKY, linewidth=1.4)
        ax.plot(due, [(r.last or 0) - r.due for r in rows], "s", color=BLUE, markersize=3.5, label="last token")
        ax.plot(due, [ttft(r) or 0 for r in rows], "o", color=ORANGE, markersize=3.5, label="first token (TTFT)")
        limit = result.settings.get("limits", {}).get("ttft")
        if limit is not None:
            ax.axhline(limit, color=GREEN, linestyle="--", linewidth=1.2, label="limit of TTFT")
        ax.set_ylim(bottom=0)
        ax.set_xlabel("s after the start at which the request was due")
        ax.set_ylabel("s since then")
        ax.set_title(f"{point.name}: every request of the last repeat", pad=24)
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=8.5, borderpad=0)
        caption = "A queue that grows shows as latencies that rise from left to right."
        return picture(fig, "serve_requests", "Requests of the hardest load", caption)
