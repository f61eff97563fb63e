"""The batch sizes for which a decode step is recorded, and what padding to the next one costs."""

from collections.abc import Sequence
from itertools import groupby

from nanovllm.viz.svg import HALF, box, document, label, line

_LEFT, _TOP, _HIGH = 56, 50, 190


class Buckets:
    """For every batch from 1 to the largest size: which recorded size takes it, and how many rows are padding."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sorted(sizes)

    @property
    def largest(self) -> int:
        """The largest recorded size."""
        return self.sizes[-1]

    def bucket(self, num_seqs: int) -> int:
        """The smallest size that holds `num_seqs` rows."""
        return next(size for size in self.sizes if size >= num_seqs)

    @property
    def mean_padding(self) -> float:
        """Share of the rows that is padding, over all batches from 1 to the largest, each as likely as the other."""
        rows = [self.bucket(n) for n in range(1, self.largest + 1)]
        return 1 - sum(range(1, self.largest + 1)) / sum(rows)

    def text(self, max_lines: int = 12) -> str:
        """A line a recorded size, the middle ones left out when they are many."""
        lines = []
        for size, group in groupby(range(1, self.largest + 1), self.bucket):
            batches = list(group)
            who = f"batch {batches[0]}" if len(batches) == 1 else f"batches {batches[0]} to {batches[-1]}"
            lines.append(f"{who:<18} -> {size:>3} rows, at most {size - batches[0]} of them padding")
        if len(lines) > max_lines:
            half = max_lines // 2
            lines = [*lines[:half], f"... {len(lines) - 2 * half} more ...", *lines[-half:]]
        return "\n".join([f"{len(self.sizes)} recorded sizes, {self.mean_padding:.1%} of all rows are padding", *lines])

    def svg(self) -> str:
        """A stair: the dark part of a column is the batch, the pale part on top of it padding."""
        width = HALF
        pitch, unit = (width - _LEFT - 20) / self.largest, (_HIGH - 10) / self.largest
        bottom = _TOP + _HIGH
        body = ""
        for n in range(1, self.largest + 1):
            x, size = _LEFT + (n - 1) * pitch, self.bucket(n)
            gap = 0.8 if pitch > 4 else 0.0
            words = f"a batch of {n} runs as {size} rows"
            body += box(x, bottom - size * unit, pitch - gap, (size - n) * unit, "line", rx=0, words=words)
            body += box(x, bottom - n * unit, pitch - gap, n * unit, "muted", rx=0, words=words)
        for value in (self.largest, self.bucket(max(1, self.largest // 2))):
            y = bottom - value * unit
            body += line(_LEFT - 4, y, width - 16, y, "line", stroke_dasharray="2 4")
            body += label(_LEFT - 8, y + 4, value, "muted", 11, "end")
        body += line(_LEFT, bottom, width - 16, bottom, "ink")
        for n in sorted({1, self.largest // 2 or 1, self.largest}):
            body += label(_LEFT + (n - 0.5) * pitch, bottom + 16, n, "muted", 11, "middle")
        body += label(_LEFT, bottom + 34, "requests that decode", "muted", 11.5)
        body += box(_LEFT + 170, bottom + 25, 10, 10, "muted", rx=1) + label(
            _LEFT + 186, bottom + 34, "rows", "muted", 11.5
        )
        body += box(_LEFT + 240, bottom + 25, 10, 10, "line", rx=1) + label(
            _LEFT + 256, bottom + 34, "padding", "muted", 11.5
        )
        title = f"Rows that are computed for a batch: {len(self.sizes)} recorded sizes"
        return document(width, bottom + 48, body, title, self.text())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.svg()}

    def __repr__(self) -> str:
        return self.text()
