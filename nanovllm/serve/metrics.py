"""What Prometheus reads: counters and histograms of requests, and gauges of the engine. A registry of its own."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nanovllm.serve.engine_loop import EngineLoop
from nanovllm.serve.ticket import Finished, LastEvent

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ServerMetrics:
    """Metrics of one server. Times are taken where the server hands tokens to the connection."""

    def __init__(self, engine: EngineLoop) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineLoad(engine))
        self.requests = Counter(
            "nanovllm_requests",
            "Requests by outcome: finish reason, or status of the refusal",
            ["outcome"],
            registry=self.registry,
        )
        self.prompt_tokens = Counter("nanovllm_prompt_tokens", "Tokens of accepted prompts", registry=self.registry)
        self.generation_tokens = Counter("nanovllm_generation_tokens", "Tokens generated", registry=self.registry)
        self.ttft = self._histogram("nanovllm_time_to_first_token_seconds", "From arrival to the first token")
        self.itl = self._histogram("nanovllm_inter_token_latency_seconds", "Between two tokens of a request")
        self.e2e = self._histogram("nanovllm_e2e_request_latency_seconds", "From arrival to the last token")

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self.registry)

    def refused(self, status: int) -> None:
        """Count a request that never reached the engine."""
        self.requests.labels(str(status)).inc()

    def ended(self, event: LastEvent, cancelled_as: str | None) -> None:
        """Count a request by its last event; one that was cancelled by what its client was told, if it was told."""
        outcome = event.reason if isinstance(event, Finished) else str(event.error.status)
        if outcome == "abort" and cancelled_as is not None:
            outcome = cancelled_as
        self.requests.labels(outcome).inc()

    def clock(self, arrival: float) -> "RequestClock":
        """Times one request. arrival: when its body had been read, in time.perf_counter() seconds."""
        return RequestClock(self, arrival)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class RequestClock:
    """Books the times of one request. ITL = time since the last hand-over / tokens in this one."""

    def __init__(self, metrics: ServerMetrics, arrival: float) -> None:
        self._metrics = metrics
        self._start = arrival
        self._last: float | None = None

    def tokens(self, count: int) -> None:
        """Some tokens have come."""
        if not count:
            return
        now = time.perf_counter()
        self._metrics.generation_tokens.inc(count)
        if self._last is None:
            self._metrics.ttft.observe(now - self._start)
        else:
            for _ in range(count):
                self._metrics.itl.observe((now - self._last) / count)
        self._last = now

    def done(self) -> None:
        """The request ran to its end."""
        self._metrics.e2e.observe(time.perf_counter() - self._start)


class _EngineLoad(Collector):
    """Reads the engine's load when Prometheus asks."""

    def __init__(self, engine: EngineLoop) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """One family a figure."""
        load = self._engine.load
        yield GaugeMetricFamily("nanovllm_requests_waiting", "Requests in the waiting deque", load.waiting)
        yield GaugeMetricFamily("nanovllm_requests_running", "Requests in the running deque", load.running)
        yield GaugeMetricFamily("nanovllm_kv_blocks_used", "KV blocks with an owner", load.used_blocks)
        yield GaugeMetricFamily("nanovllm_kv_blocks", "KV blocks of the pool", load.total_blocks)
        steps = CounterMetricFamily("nanovllm_steps", "Engine steps", labels=["kind"])
        steps.add_metric(["prefill"], load.prefill_steps)
        steps.add_metric(["decode"], load.decode_steps)
        yield steps
        held = CounterMetricFamily("nanovllm_held_back", "Interventions of the starvation bound", labels=["reason"])
        held.add_metric(["max_prefill_steps"], load.held_back_steps)
        held.add_metric(["blocks_given_up"], load.blocks_given_up)
        yield held
