"""One look for all plots: the colours of `viz.theme`, units on axes, the spread of the repeats as bars."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nanovllm.bench.errors import BenchError
from nanovllm.bench.stats import Spread
from nanovllm.viz.theme import HUES, neutral

NEEDS_MATPLOTLIB = (
    'the report needs matplotlib: pip install "nanovllm[notebooks]" (or pip install matplotlib), or pass --no-report '
    "to write the JSON alone"
)
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, _ = (hue.fill for hue in HUES)
ENGINE_COLOURS = {"nanovllm": BLUE, "transformers": ORANGE, "nano-vllm": GREEN, "vllm": PURPLE}
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", ":", "-.")
DPI = 144
RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": neutral("line"),
    "axes.labelcolor": neutral("ink"),
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": neutral("soft"),
    "grid.linewidth": 1.2,
    "text.color": neutral("ink"),
    "xtick.color": neutral("muted"),
    "ytick.color": neutral("muted"),
    "legend.frameon": False,
    "figure.facecolor": neutral("card"),
    "axes.facecolor": neutral("card"),
    "svg.fonttype": "path",
    "svg.hashsalt": "nanovllm",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot in both forms. name: of the PNG file; caption: what it shows and how it is to be read."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def require_matplotlib() -> None:
    """Raise BenchError when there is nothing to draw with."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise BenchError(NEEDS_MATPLOTLIB) from None


@contextmanager
def figure(width: float, height: float) -> Iterator[Any]:
    """A figure in the house style that belongs to nobody else: no global state of pyplot."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(RC):
        yield Figure(figsize=(width, height), layout="constrained")


def picture(fig: Any, name: str, title: str, caption: str) -> Picture:
    """Render a figure; call it inside `figure`."""
    svg, png = io.StringIO(), io.BytesIO()
    fig.savefig(svg, format="svg", metadata={"Date": None})
    fig.savefig(png, format="png", dpi=DPI)
    text = svg.getvalue()
    return Picture(name, title, caption, text[text.index("<svg") :], png.getvalue())


def with_spread(axes: Any, xs: Sequence[float], spreads: Sequence[Spread], **style: Any) -> None:
    """A line through the medians with a bar from the smallest to the largest repeat."""
    medians = [s.median for s in spreads]
    bars = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    axes.errorbar(xs, medians, yerr=bars, capsize=3, markersize=5, linewidth=1.8, elinewidth=1.2, **style)


def bars(axes: Any, names: Sequence[str], spreads: Sequence[Spread], colours: Sequence[str], unit: str = "") -> None:
    """Bars of medians, each with its spread and its value above it."""
    from matplotlib.ticker import MaxNLocator

    xs = range(len(spreads))
    axes.bar(xs, [s.median for s in spreads], color=colours, width=0.6)
    for x, s in zip(xs, spreads, strict=True):
        if s.high > s.low:
            ends = [[s.median - s.low], [s.high - s.median]]
            axes.errorbar([x], [s.median], yerr=ends, fmt="none", ecolor=neutral("ink"), capsize=4, elinewidth=1.2)
    if all(v == int(v) for s in spreads for v in s.values):
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    thousands(axes)
    axes.set_xticks(list(xs), names)
    axes.grid(False, axis="x")
    top = max([s.high for s in spreads] + [1e-9])
    axes.set_ylim(0, top * 1.15)
    for x, s in zip(xs, spreads, strict=True):
        axes.text(x, s.high + top * 0.03, value_text(s.median) + unit, ha="center", va="bottom", fontsize=9)


def value_text(value: float) -> str:
    """A value above a bar."""
    if value == 0 or abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.1f}"


def thousands(axes: Any) -> None:
    """Separators on the y axis, which begins at 0."""
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v == int(v) else f"{v:,.4g}"))
    axes.set_ylim(0, axes.get_ylim()[1] * 1.04)


def batch_axis(axes: Any, batches: Sequence[int]) -> None:
    """A logarithmic axis that names exactly the measured batch sizes."""
    from matplotlib.ticker import NullFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xticks(list(batches), [str(b) for b in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("requests in the batch")
