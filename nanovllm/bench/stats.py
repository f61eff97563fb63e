"""A figure over repeats: its median and its spread."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nanovllm.bench.errors import BenchError

HIGHER, LOWER, NEITHER = "higher", "lower", "neither"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of `values` lie, interpolated linearly between the two nearest ranks.

    With sorted x[0..n-1] and position p = share * (n - 1): x[floor p] + (p - floor p) * (x[ceil p] - x[floor p]).
    """
    if not values or not 0.0 <= share <= 1.0:
        raise BenchError(f"a percentile needs values and a share from 0 to 1, not {len(values)} values and {share}")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure: `median` of the repeats' `values`, `low` the smallest and `high` the largest of them.

    better: "higher", "lower" or "neither", for comparisons.
    """

    unit: str
    better: str
    median: float
    low: float
    high: float
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float], unit: str, better: str = NEITHER) -> "Spread":
        """Make it from the repeats' values, at least one."""
        if not values:
            raise BenchError("a figure needs at least one repeat")
        return cls(unit, better, statistics.median(values), min(values), max(values), list(values))

    @property
    def relative(self) -> float:
        """(high - low) / median; 0 where the median is 0."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def text(self) -> str:
        """The figure for a table: median with its spread, or the median alone where all repeats agree."""
        if self.low == self.high:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)} – {number(self.high)})"


def number(value: float) -> str:
    """Three significant digits, whole numbers with separators."""
    if value == 0 or abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
