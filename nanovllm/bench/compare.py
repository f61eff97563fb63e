"""Two files of results side by side: the ratio of every figure that both have, with the spread it can have."""

from dataclasses import dataclass
from typing import Any

from nanovllm.bench.codec import to_plain
from nanovllm.bench.errors import BenchError
from nanovllm.bench.record import AnyResult
from nanovllm.bench.stats import HIGHER, LOWER, Spread, number
from nanovllm.bench.tables import HEADINGS, figures

ALIKE = 0.005  # medians that differ by less are neither better nor worse, however little they spread
IGNORED = ("date", "load_average", "clocks", "floor_rates", "capacity_requests_s")  # measured: no two runs are alike


@dataclass(frozen=True, slots=True)
class Ratio:
    """B / A of one figure. verdict: "better", "worse" (both beyond the spreads), "within the spread", "under 0.5 %", or
    "" when the figure has no better side.
    """

    experiment: str
    point: str
    figure: str
    unit: str
    a: Spread
    b: Spread
    ratio: float
    low: float
    high: float
    verdict: str


def compare(a: list[AnyResult], b: list[AnyResult]) -> list[Ratio]:
    """Every figure of A that B has too, matched by experiment and point. Raises BenchError if there is none."""
    others = {(r.experiment, p.name): p for r in b for p in r.points}
    found = []
    for result in a:
        for point in result.points:
            other = others.get((result.experiment, point.name))
            theirs = figures(other) if other is not None else {}
            for name, mine in figures(point).items():
                if name in theirs and min(mine.low, theirs[name].low) > 0:
                    found.append(ratio_of(result.experiment, point.name, name, mine, theirs[name]))
    if not found:
        raise BenchError("the two files have no point in common: compare runs of the same experiment and workload")
    return found


def ratio_of(experiment: str, point: str, figure: str, a: Spread, b: Spread) -> Ratio:
    """median B / median A; at least b.low / a.high, at most b.high / a.low."""
    ratio, low, high = b.median / a.median, b.low / a.high, b.high / a.low
    verdict = ""
    if a.better in (HIGHER, LOWER):
        if low <= 1 <= high:
            verdict = "within the spread"
        elif abs(ratio - 1) < ALIKE:
            verdict = f"under {100 * ALIKE:g} %"
        else:
            verdict = "better" if (low > 1) == (a.better == HIGHER) else "worse"
    return Ratio(experiment, point, figure, a.unit, a, b, ratio, low, high, verdict)


def differences(a: list[AnyResult], b: list[AnyResult]) -> list[str]:
    """What differs between the environments and settings of the experiments that both files have, one line each."""
    others = {r.experiment: r for r in b}
    lines: list[str] = []
    for result in a:
        other = others.get(result.experiment)
        if other is None:
            continue
        for part in ("environment", "settings"):
            mine, theirs = _flat(_plain(getattr(result, part))), _flat(_plain(getattr(other, part)))
            for key in sorted(mine.keys() | theirs.keys()):
                if key.split(".")[0] not in IGNORED and mine.get(key) != theirs.get(key):
                    lines.append(f"{key}: {mine.get(key)} -> {theirs.get(key)}")
    return list(dict.fromkeys(lines))


def _plain(value: Any) -> Any:
    return value if isinstance(value, dict) else to_plain(value)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def rows(ratios: list[Ratio]) -> tuple[list[str], list[list[str]]]:
    """(headings, one row a figure) for a table."""
    heads = ["point", "figure", "A", "B", "B / A", "possible", "verdict"]
    return heads, [
        [
            r.point,
            f"{HEADINGS.get(r.figure, r.figure)}, {r.unit}",
            number(r.a.median),
            number(r.b.median),
            f"{r.ratio:.2f}",
            f"{r.low:.2f} – {r.high:.2f}",
            r.verdict,
        ]
        for r in ratios
    ]
