"""The plots of each result. A plot takes its figures from the result alone, so a saved JSON can be drawn again."""

from collections.abc import Callable
from typing import Any

from nanovllm.bench.plots_serve import serve
from nanovllm.bench.record import (
    AnyResult,
    GraphsResult,
    PrefixResult,
    PressureResult,
    ThroughputPoint,
    ThroughputResult,
    TpResult,
)
from nanovllm.bench.stats import Spread
from nanovllm.bench.style import (
    BLUE,
    ENGINE_COLOURS,
    GREEN,
    LINES,
    MARKERS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Picture,
    bars,
    batch_axis,
    figure,
    picture,
    thousands,
    with_spread,
)
from nanovllm.bench.timeline import draw_timeline

FLOOR = "floor: what the bytes and operations allow"
FLOOR_TEXT = (
    "Dotted: the floor of the hardware. A decode step cannot take less than max(bytes / byte rate, operations / "
    "operation rate), with the weights and every request's K/V read once; a prefill not less than its operations / "
    "operation rate. Both rates were measured on this machine."
)
SPREAD = "Points and bars are medians over the repeats, whiskers reach from the smallest to the largest repeat."
_PANELS = (
    ("prefill_tok_s", "Prefill", "prompt tok/s"),
    ("decode_tok_s", "Decode", "tok/s"),
    ("total_tok_s", "Prompt + completion", "tok/s"),
    ("peak_memory", "Peak memory", "MiB"),
)


def pictures_of(result: AnyResult) -> list[Picture]:
    """Every plot of a result; none when it was skipped."""
    draw: dict[str, Callable[[Any], list[Picture]]] = {
        "throughput": throughput,
        "graphs": graphs,
        "prefix": prefix,
        "pressure": pressure,
        "tp": tp,
        "serve": serve,
    }
    if result.skipped or not result.points:
        return []
    return draw[result.experiment](result)


def throughput(result: ThroughputResult) -> list[Picture]:
    """Four panels over the batch, a line for each engine and shape; bars of engines where there is a peer."""
    series: dict[tuple[str, str], list[ThroughputPoint]] = {}
    for p in result.points:
        series.setdefault((p.engine, p.shape), []).append(p)
    batches = sorted({p.batch for p in result.points})
    shapes = list(dict.fromkeys(p.shape for p in result.points))
    engines = list(dict.fromkeys(p.engine for p in result.points))
    hues = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE)
    with figure(9.6, 6.4) as fig:
        axes = fig.subplots(2, 2).flatten()
        for ax, (name, title, unit) in zip(axes, _PANELS, strict=True):
            for (engine, shape), points in series.items():
                which = shapes.index(shape)
                colour = ENGINE_COLOURS[engine] if len(engines) > 1 else hues[which % len(hues)]
                told = [(p.batch, s) for p in points if (s := getattr(p, name)) is not None]
                if told:
                    style = {"color": colour, "marker": MARKERS[which % 6], "linestyle": LINES[which % 4]}
                    with_spread(ax, [b for b, _ in told], [s for _, s in told], label=f"{engine} {shape}", **style)
                _floor_line(ax, points, name, colour)
            ax.set_title(title)
            ax.set_ylabel(unit)
            batch_axis(ax, batches)
            thousands(ax)
        lines, names = axes[2].get_legend_handles_labels()
        texts = [n if n == FLOOR else f"{n} tokens" for n in names]
        fig.legend(lines, texts, loc="outside lower center", ncols=3, fontsize=9)
        caption = f"{SPREAD} {FLOOR_TEXT}" if any(p.floor for p in result.points) else SPREAD
        shown = [picture(fig, "throughput", "Throughput over the batch", caption)]
    return shown + ([_beside_peer(result, engines)] if len(engines) > 1 else [])


def _floor_line(ax: Any, points: list[ThroughputPoint], name: str, colour: str) -> None:
    """What the hardware allows at most, thin and dotted in the colour of its line."""
    told = [(p.batch, p.floor[name]) for p in points if name in p.floor]
    if told:
        label = None if FLOOR in ax.get_legend_handles_labels()[1] else FLOOR
        ax.plot(*zip(*told, strict=True), color=colour, linewidth=1, linestyle=(0, (1, 2)), alpha=0.8, label=label)


def _beside_peer(result: ThroughputResult, engines: list[str]) -> Picture:
    """Output tok/s of both engines on every workload."""
    labels = list(dict.fromkeys((p.shape, p.batch) for p in result.points))
    with figure(max(5.0, 1.8 + 1.3 * len(labels)), 4.0) as fig:
        ax = fig.subplots()
        width = 0.8 / len(engines)
        for number, engine in enumerate(engines):
            mine = [p.output_tok_s for p in result.points if p.engine == engine]
            xs = [i + (number - (len(engines) - 1) / 2) * width for i in range(len(mine))]
            ends = [[s.median - s.low for s in mine], [s.high - s.median for s in mine]]
            medians = [s.median for s in mine]
            ax.bar(xs, medians, width * 0.92, yerr=ends, capsize=3, color=ENGINE_COLOURS[engine], label=engine)
        ax.set_xticks(range(len(labels)), [f"{shape}\nx {batch}" for shape, batch in labels])
        ax.set_ylabel("completion tok/s")
        ax.set_title("Completion tokens a second, same requests")
        thousands(ax)
        ax.grid(False, axis="x")
        ax.legend()
        return picture(fig, "throughput_engines", "Beside another engine", SPREAD)


def graphs(result: GraphsResult) -> list[Picture]:
    """A decode step and the host's part of it, both modes, and the speed-up with its spread."""
    modes = {mode: [p for p in result.points if p.mode == mode] for mode in ("eager", "graph")}
    both = sorted({p.batch for p in modes["eager"]} & {p.batch for p in modes["graph"]})
    pairs = [[next(p for p in modes[m] if p.batch == b).tpot for m in ("eager", "graph")] for b in both]
    batches = sorted({p.batch for p in result.points})
    with figure(12.0, 3.8) as fig:
        left, middle, right = fig.subplots(1, 3)
        for (mode, points), colour, marker in zip(modes.items(), (VERMILION, BLUE), "os", strict=True):
            xs = [p.batch for p in points]
            with_spread(left, xs, [p.tpot for p in points], color=colour, marker=marker, label=mode)
            with_spread(middle, xs, [p.launch for p in points], color=colour, marker=marker, label=mode)
        floors = {p.batch: p.floor_ms for p in result.points if p.floor_ms is not None}
        if floors:
            left.plot(list(floors), list(floors.values()), color=GREEN, linestyle=":", label="floor of the hardware")
        if both:
            speedups = [speed_up(eager, graph) for eager, graph in pairs]
            bars(right, [str(b) for b in both], speedups, [BLUE] * len(both), "x")
        right.axhline(1, color=VERMILION, linewidth=1, linestyle="--")
        right.set_xlabel("requests in the batch")
        for ax, title, unit in ((left, "TPOT", "ms"), (middle, "Host time to launch a decode step", "ms")):
            ax.set_title(title)
            ax.set_ylabel(unit)
            batch_axis(ax, batches)
            thousands(ax)
            ax.legend()
        right.set_title("Speed-up of TPOT")
        right.set_ylabel("eager / graph")
        told = f"{SPREAD} {FLOOR_TEXT}" if floors else SPREAD
        return [picture(fig, "graphs", "CUDA graphs on and off", told)]


def speed_up(slow: Spread, fast: Spread) -> Spread:
    """slow / fast: of the medians, and the extremes that the spreads allow."""
    low, middle, high = slow.low / fast.high, slow.median / fast.median, slow.high / fast.low
    return Spread("x", "higher", middle, low, high, [low, middle, high])


def prefix(result: PrefixResult) -> list[Picture]:
    """Prefill time, blocks found, blocks in use and the speed-up, over the share of equal blocks."""
    names = [f"{p.shared_blocks} of\n{p.prompt_blocks}" for p in result.points]
    base = result.points[0].prefill_seconds
    with figure(12.0, 3.9) as fig:
        panels = (
            ("prefill_seconds", "Prefill time", "s", ORANGE),
            ("hit_blocks", "Blocks found in the cache", "blocks, all requests", GREEN),
            ("peak_blocks", "KV blocks in use, peak", "blocks", BLUE),
        )
        *first, last = fig.subplots(1, 4)
        for ax, (name, title, unit, colour) in zip(first, panels, strict=True):
            bars(ax, names, [getattr(p, name) for p in result.points], [colour] * len(names))
            ax.set_title(title)
            ax.set_ylabel(unit)
            ax.set_xlabel("shared blocks of each prompt")
        faster = result.points[1:]
        if faster and min(p.prefill_seconds.low for p in result.points) > 0:
            speedups = [speed_up(base, p.prefill_seconds) for p in faster]
            bars(
                last,
                [f"{p.shared_blocks} of\n{p.prompt_blocks}" for p in faster],
                speedups,
                [PURPLE] * len(faster),
                "x",
            )
        last.axhline(1, color=VERMILION, linewidth=1, linestyle="--")
        last.set_title("Speed-up of prefill")
        last.set_ylabel(f"time with {result.points[0].shared_blocks} shared / time")
        last.set_xlabel("shared blocks of each prompt")
        return [picture(fig, "prefix", "Prefix cache", SPREAD)]


def pressure(result: PressureResult) -> list[Picture]:
    """Preemptions, recomputed tokens and latency over the pool; then the timelines of the largest and smallest one."""
    names = [f"{p.num_blocks}\n{p.share:.0%}" for p in result.points]
    with figure(10.4, 3.9) as fig:
        first, second, third = fig.subplots(1, 3)
        bars(first, names, [p.preemptions for p in result.points], [VERMILION] * len(names))
        bars(second, names, [p.recomputed for p in result.points], [PURPLE] * len(names))
        for name, colour, marker, label in (
            ("e2e_p50", BLUE, "o", "p50"),
            ("e2e_p95", ORANGE, "s", "p95"),
            ("e2e_max", VERMILION, "^", "maximum"),
        ):
            shift = {"p50": -0.06, "p95": 0.0, "maximum": 0.06}[label]
            xs = [i + shift for i in range(len(names))]
            with_spread(third, xs, [getattr(p, name) for p in result.points], color=colour, marker=marker, label=label)
        third.set_xticks(range(len(names)), names)
        third.set_ylim(bottom=0)
        third.legend()
        for ax, title, unit in (
            (first, "Preemptions", "all requests"),
            (second, "Recomputed tokens", "tokens, all requests"),
            (third, "Completion latency", "s"),
        ):
            ax.set_title(title)
            ax.set_ylabel(unit)
            ax.set_xlabel("KV blocks in the pool, share of the need")
        shown = [picture(fig, "pressure", "KV pressure", SPREAD)]
    ends = [result.points[-1]] if len(result.points) == 1 else [result.points[0], result.points[-1]]
    return shown + [draw_timeline(p) for p in ends]


def tp(result: TpResult) -> list[Picture]:
    """Tokens a second, efficiency, and the part of a decode step that is spent in collectives."""
    names = [str(p.ranks) for p in result.points]
    with figure(10.4, 3.9) as fig:
        first, second, third = fig.subplots(1, 3)
        bars(first, names, [p.output_tok_s for p in result.points], [BLUE] * len(names))
        base = result.points[0]
        ideal = [base.output_tok_s.median * p.ranks / base.ranks for p in result.points]
        first.plot(range(len(names)), ideal, color=GREEN, linestyle="--", marker="_", label="linear scaling")
        first.set_ylim(0, max([*ideal, *(p.output_tok_s.high for p in result.points)]) * 1.2)
        first.legend(loc="upper left")
        percent = [_percent(p.efficiency) for p in result.points]
        bars(second, names, percent, [GREEN] * len(names), " %")
        steps = [p.decode_step.median for p in result.points]
        inside = [
            s * (p.collective_share.median if p.collective_share else 0)
            for s, p in zip(steps, result.points, strict=True)
        ]
        rest = [s - c for s, c in zip(steps, inside, strict=True)]
        third.bar(names, rest, 0.6, color=SKY, label="everything else")
        third.bar(names, inside, 0.6, bottom=rest, color=VERMILION, label="collectives, waiting included")
        third.set_ylim(0, max(steps) * 1.35)
        third.grid(False, axis="x")
        third.legend(loc="upper left", fontsize=9)
        for ax, title, unit in (
            (first, "Throughput", "completion tok/s"),
            (second, "Scaling efficiency", "%"),
            (third, "Decode step, median", "ms"),
        ):
            ax.set_title(title)
            ax.set_ylabel(unit)
            ax.set_xlabel("ranks")
        return [picture(fig, "tp", "Tensor parallelism", SPREAD)]


def _percent(s: Spread) -> Spread:
    return Spread.of([100 * v for v in s.values], "%", s.better)
