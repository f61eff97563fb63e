"""What the serve experiment leaves: every request, every run, and the figures of a load over its runs."""

from dataclasses import dataclass

from nanovllm.bench.stats import Spread


@dataclass(slots=True)
class ServedRow:
    """One request of a load run, in seconds after its start. status 0: no whole answer; error says why.

    due: when it should be sent; latencies count from here. gaps: of the times between two events, the median and the
    longest; None where there is one event or none.
    """

    due: float
    sent: float
    first: float | None
    last: float | None
    status: int
    prompt_tokens: int
    completion_tokens: int
    events: int
    gap_median: float | None
    gap_longest: float | None
    error: str | None = None


@dataclass(slots=True)
class ServeRun:
    """One timed load run. lateness_p99: how far the client fell behind with sending, s. itl: p50, p95, p99, s."""

    seconds: float
    lateness_p99: float
    itl: list[float]
    requests: list[ServedRow]


@dataclass(slots=True)
class ServePoint:
    """One arrival process at one rate, one concurrency, or one trace. rate: offered requests/s, where there is one."""

    name: str
    arrivals: str
    rate: float | None
    concurrency: int | None
    num_requests: int
    requests_s: Spread
    goodput: Spread
    in_time: Spread
    output_tok_s: Spread
    ttft_p50: Spread
    ttft_p95: Spread
    ttft_p99: Spread
    tpot_p50: Spread | None
    tpot_p95: Spread | None
    tpot_p99: Spread | None
    itl_p50: Spread | None
    itl_p95: Spread | None
    itl_p99: Spread | None
    e2e_p50: Spread
    e2e_p95: Spread
    e2e_p99: Spread
    lateness_p99: Spread
    repeats: list[ServeRun]
