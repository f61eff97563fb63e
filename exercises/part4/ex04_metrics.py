# ruff: noqa: F401 (imports that you may need)
"""4.4 TTFT, TPOT, percentiles and goodput: the figures of a serving system, from timestamps.

One request arrives at 10.0 s, its first token comes at 10.4 s, its last one, the fifth, at 12.0 s:

    TTFT = 10.4 - 10.0            = 0.4 s        time to first token: queueing and prefill
    TPOT = (12.0 - 10.4) / (5-1)  = 0.4 s        time per output token after the first: decoding

There are four gaps between five tokens. A request with one token has no TPOT: None, which is something else than 0.

A percentile says what share of the requests was at least that fast. Between two values it is interpolated: of the
sorted values x[0] .. x[n-1] take position p = share x (n - 1). By hand: [10, 20, 40] at share 0.75 has p = 1.5, half
way between 20 and 40: 30.

Goodput counts useful work only: requests that kept every limit, per second of the whole run. By hand: 8 requests
completed in 4 s, 6 of them within the limits: goodput 1.5 requests/s, although the throughput is 2.
"""

from nanovllm.course import ExerciseNotDone
import math
from collections.abc import Sequence

from nanovllm.bench.errors import BenchError
from nanovllm.engine.metrics import RequestMetrics
from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord


def ttft(metrics: RequestMetrics) -> float | None:
    """Seconds from metrics.arrival_time to metrics.first_token_time; None while that is None (no token yet)."""
    raise ExerciseNotDone("4.4 metrics", "which two times? and what if the second is not there yet?")


def tpot(metrics: RequestMetrics) -> float | None:
    """Seconds per token after the first, from first_token_time to finish_time; num_completion_tokens is the count.

    None if one of the two times is None, or where there are fewer than 2 tokens.
    """
    raise ExerciseNotDone("4.4 metrics", "how many gaps are there between n tokens?")


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile `share` (0 .. 1) of `values`, in any order, with linear interpolation; values is not changed.

    By hand: [40, 10, 20] at 0.75 -> 30. Raises BenchError, with both numbers in its message, for no values or a share
    outside of 0 .. 1.
    """
    raise ExerciseNotDone("4.4 metrics", "sort; p = share * (n - 1); which two neighbours, in what mixture?")


def meets(record: RequestRecord, limits: Limits) -> bool:
    """True when the request exceeds none of limits.ttft, limits.tpot, limits.e2e (seconds; None: no such limit).

    record.ttft, record.tpot, record.e2e are its times in seconds; tpot is None for a request of one token, which no
    limit on TPOT can exclude. Exactly at a limit is within it.
    """
    raise ExerciseNotDone("4.4 metrics", "three pairs (time, limit); when does a pair object?")


def goodput(report: LoadReport) -> float:
    """Requests of report.completed (a list) that meet report.limits, per second of report.duration.

    record.meets(limits) is the function above. A request that was refused is in report.records, not in completed.
    """
    raise ExerciseNotDone("4.4 metrics", "count, then divide; by the time of the whole run")
