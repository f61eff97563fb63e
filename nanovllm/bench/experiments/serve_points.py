"""Figures of one load: from requests to a run, from runs to a point."""

import statistics
from collections.abc import Callable
from itertools import pairwise

from nanovllm.bench.errors import BenchError
from nanovllm.bench.record_serve import ServedRow, ServePoint, ServeRun
from nanovllm.bench.stats import HIGHER, LOWER, NEITHER, Spread, percentile
from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord

SHARES = (0.5, 0.95, 0.99)
Figure = Callable[[ServedRow], float | None]


def run_of(report: LoadReport) -> ServeRun:
    """What is kept of one run: every request, and of the times between events their percentiles."""
    gaps = [b - a for record in report.completed for a, b in pairwise(record.events)]
    return ServeRun(
        seconds=report.duration,
        lateness_p99=percentile([record.sent - record.due for record in report.records], 0.99),
        itl=[percentile(gaps, share) for share in SHARES] if gaps else [],
        requests=[_row(record) for record in report.records],
    )


def _row(record: RequestRecord) -> ServedRow:
    gaps = [b - a for a, b in pairwise(record.events)]
    return ServedRow(
        due=record.due,
        sent=record.sent,
        first=record.events[0] if record.events else None,
        last=record.events[-1] if record.events else None,
        status=record.status,
        prompt_tokens=record.num_prompt_tokens,
        completion_tokens=record.num_completion_tokens,
        events=len(record.events),
        gap_median=statistics.median(gaps) if gaps else None,
        gap_longest=max(gaps) if gaps else None,
        error=record.error,
    )


def ttft(row: ServedRow) -> float | None:
    """First event - due, s."""
    return None if row.first is None else row.first - row.due


def e2e(row: ServedRow) -> float | None:
    """Last event - due, s."""
    return None if row.last is None else row.last - row.due


def tpot(row: ServedRow) -> float | None:
    """(Last event - first event) / (completion tokens - 1), s; None for one token."""
    if row.first is None or row.last is None or row.completion_tokens < 2:
        return None
    return (row.last - row.first) / (row.completion_tokens - 1)


def answered(run: ServeRun) -> list[ServedRow]:
    """The requests that were answered whole."""
    return [row for row in run.requests if row.status == 200 and row.first is not None]


def meets(row: ServedRow, goal: Limits) -> bool:
    """True when no limit is exceeded."""
    pairs = ((ttft(row), goal.ttft), (tpot(row), goal.tpot), (e2e(row), goal.e2e))
    return all(value is None or limit is None or value <= limit for value, limit in pairs)


def point_of(
    name: str, arrivals: str, rate: float | None, concurrency: int | None, runs: list[ServeRun], goal: Limits
) -> ServePoint:
    """The figures of one load over its repeats. Raises BenchError when a run has no whole answer."""
    for run in runs:
        if not answered(run):
            raise BenchError(f"{name}: none of {len(run.requests)} requests was answered: {run.requests[0].error}")

    def every(figure: Callable[[ServeRun], float], unit: str, better: str) -> Spread:
        return Spread.of([figure(run) for run in runs], unit, better)

    def late(figure: Figure, unit: str, factor: float) -> tuple[Spread | None, ...]:
        values = [[factor * v for row in answered(run) if (v := figure(row)) is not None] for run in runs]
        if not all(values):
            return (None,) * len(SHARES)
        return tuple(Spread.of([percentile(v, share) for v in values], unit, LOWER) for share in SHARES)

    first, each, whole = late(ttft, "ms", 1e3), late(tpot, "ms", 1e3), late(e2e, "s", 1.0)
    has_gaps = all(run.itl for run in runs)
    gaps = [every(lambda run, i=i: 1e3 * run.itl[i], "ms", LOWER) for i in range(3)] if has_gaps else [None] * 3  # type: ignore[misc]
    good = [sum(meets(row, goal) for row in answered(run)) for run in runs]
    assert first[0] and first[1] and first[2] and whole[0] and whole[1] and whole[2]  # noqa: PT018
    return ServePoint(
        name=name,
        arrivals=arrivals,
        rate=rate,
        concurrency=concurrency,
        num_requests=len(runs[0].requests),
        requests_s=every(lambda run: len(answered(run)) / run.seconds, "requests/s", HIGHER),
        goodput=Spread.of([n / run.seconds for n, run in zip(good, runs, strict=True)], "requests/s", HIGHER),
        in_time=Spread.of([n / len(run.requests) for n, run in zip(good, runs, strict=True)], "share", HIGHER),
        output_tok_s=every(lambda run: sum(r.completion_tokens for r in answered(run)) / run.seconds, "tok/s", HIGHER),
        ttft_p50=first[0],
        ttft_p95=first[1],
        ttft_p99=first[2],
        tpot_p50=each[0],
        tpot_p95=each[1],
        tpot_p99=each[2],
        itl_p50=gaps[0],
        itl_p95=gaps[1],
        itl_p99=gaps[2],
        e2e_p50=whole[0],
        e2e_p95=whole[1],
        e2e_p99=whole[2],
        lateness_p99=every(lambda run: 1e3 * run.lateness_p99, "ms", NEITHER),
        repeats=runs,
    )
