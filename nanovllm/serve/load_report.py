"""What a load run measured: one record a request, and the figures made from them.

Formulas, per request (times in seconds):

    TTFT = first event - arrival          TPOT = (last event - first event) / (completion tokens - 1)
    E2E  = last event - arrival           ITL  = the times between two events, of all requests together

Arrival is when the request was due, not when the client came round to sending it: a client that falls behind must not
make the server look fast (`lateness` says how far it fell behind). An event is a chunk of the stream; one may carry
several tokens or, where a token ends within a character, none. Goodput = requests that met every limit / duration. Only
requests that were answered whole (status 200 and the end of the stream) count as completed; the others are counted by
status.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must meet to count for goodput, seconds; None sets no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None


@dataclass(slots=True)
class RequestRecord:
    """One request, in seconds after the start. status 0: no whole answer came, `error` says why."""

    number: int
    due: float
    sent: float = 0.0
    events: list[float] = field(default_factory=list)
    status: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.events[0] - self.due

    @property
    def e2e(self) -> float:
        """Time to the last token."""
        return self.events[-1] - self.due

    @property
    def tpot(self) -> float | None:
        """Time per token after the first; None where there is no second one."""
        steps = self.num_completion_tokens - 1
        return (self.events[-1] - self.events[0]) / steps if steps > 0 else None

    def meets(self, limits: Limits) -> bool:
        """True when no limit is exceeded."""
        pairs = ((self.ttft, limits.ttft), (self.tpot, limits.tpot), (self.e2e, limits.e2e))
        return all(value is None or limit is None or value <= limit for value, limit in pairs)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Every request, and the summary. duration: seconds from the start to the last event or refusal."""

    records: list[RequestRecord]
    duration: float
    limits: Limits

    @property
    def completed(self) -> list[RequestRecord]:
        """Requests that were answered whole."""
        return [record for record in self.records if record.status == 200]

    @property
    def goodput(self) -> float:
        """Completed requests that met every limit, per second of the whole run."""
        return sum(record.meets(self.limits) for record in self.completed) / self.duration

    def summary(self) -> dict[str, Any]:
        """Counts, rates per second, and percentiles in seconds (None where nothing was measured)."""
        done = self.completed
        gaps = [b - a for record in done for a, b in pairwise(record.events)]
        return {
            "requests": len(self.records),
            "completed": len(done),
            "by_status": dict(Counter(str(record.status) for record in self.records)),
            "duration": self.duration,
            "requests_per_second": len(done) / self.duration,
            "completion_tokens_per_second": sum(r.num_completion_tokens for r in done) / self.duration,
            "goodput": self.goodput,
            "limits": asdict(self.limits),
            "ttft": percentiles([record.ttft for record in done]),
            "tpot": percentiles([record.tpot for record in done if record.tpot is not None]),
            "itl": percentiles(gaps),
            "e2e": percentiles([record.e2e for record in done]),
            "lateness": percentiles([record.sent - record.due for record in self.records]),
        }


def percentiles(values: list[float]) -> dict[str, float] | None:
    """Mean, p50, p95, p99 (linear between neighbours) and the largest."""
    if not values:
        return None
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "p99": float(p99), "max": max(values)}
