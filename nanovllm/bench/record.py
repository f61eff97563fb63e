"""What an experiment leaves: raw data of every repeat, figures over the repeats, and what they depend on.

Times are seconds since the first request of a repeat was queued; tokens are counts. Every result is one dataclass, and
a JSON file holds a list of them with the version of this schema.
"""

import gzip
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanovllm.bench.codec import from_plain, to_plain
from nanovllm.bench.environment import EngineRecord, Environment
from nanovllm.bench.errors import BenchError
from nanovllm.bench.record_serve import ServePoint
from nanovllm.bench.stats import Spread

SCHEMA = "nanovllm-bench/1"


@dataclass(slots=True)
class RequestRow:
    """One request of one repeat, as it was measured. A peer tells only the counts and when the batch was done."""

    arrival: float
    first_token: float | None
    finish: float
    prompt_tokens: int
    completion_tokens: int
    prefix_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0

    @property
    def e2e(self) -> float:
        """End-to-end latency, s: finish - arrival."""
        return self.finish - self.arrival

    @property
    def ttft(self) -> float | None:
        """Time to first token, s: first_token - arrival."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first: (finish - first_token) / (completion_tokens - 1)."""
        if self.first_token is None or self.completion_tokens < 2:
            return None
        return (self.finish - self.first_token) / (self.completion_tokens - 1)


@dataclass(slots=True)
class StepRow:
    """One step of a timeline. scheduled, preempted: numbers of requests in the order in which they arrived."""

    end: float
    is_prefill: bool
    num_tokens: int
    scheduled: list[int]
    preempted: list[int]
    used_blocks: int


@dataclass(slots=True)
class Repeat:
    """One timed run of a workload. memory_bytes: the peak of each rank. timeline: every step, where asked for."""

    seconds: float
    prefill_seconds: float | None
    decode_seconds: float | None
    prefill_tokens: int
    decode_tokens: int
    decode_step_seconds: float | None
    memory_bytes: list[int]
    peak_blocks: int | None
    requests: list[RequestRow]
    launch_seconds: float | None = None
    timeline: list[StepRow] = field(default_factory=list)


@dataclass(slots=True)
class ThroughputPoint:
    """One engine, shape and batch. What a peer does not tell is None. floor: tok/s that the hardware allows at most."""

    name: str
    engine: str
    shape: str
    batch: int
    output_tok_s: Spread
    total_tok_s: Spread
    prefill_tok_s: Spread | None
    decode_tok_s: Spread | None
    peak_memory: Spread | None
    ttft: Spread | None
    tpot: Spread | None
    repeats: list[Repeat]
    floor: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class GraphsPoint:
    """One mode ("eager" or "graph") and batch. floor_ms: of the decode step in the middle of the completions."""

    name: str
    mode: str
    batch: int
    tpot: Spread
    decode_step: Spread
    launch: Spread
    decode_tok_s: Spread
    repeats: list[Repeat]
    floor_ms: float | None = None


@dataclass(slots=True)
class PrefixPoint:
    """Prompts of equal length of which the first `shared_blocks` whole blocks are the same, and were seen before."""

    name: str
    shared_blocks: int
    prompt_blocks: int
    hit_blocks: Spread
    prefill_seconds: Spread
    computed_tokens: Spread
    ttft: Spread
    peak_blocks: Spread
    repeats: list[Repeat]


@dataclass(slots=True)
class PressurePoint:
    """One size of the pool; `share` of what all requests need at once at their full length."""

    name: str
    share: float
    num_blocks: int
    preemptions: Spread
    recomputed: Spread
    e2e_p50: Spread
    e2e_p95: Spread
    e2e_max: Spread
    output_tok_s: Spread
    peak_blocks: Spread
    repeats: list[Repeat]


@dataclass(slots=True)
class TpPoint:
    """One number of ranks. collective_share is None where it could not be seen."""

    name: str
    ranks: int
    output_tok_s: Spread
    total_tok_s: Spread
    efficiency: Spread
    decode_step: Spread
    collective_share: Spread | None
    memory_per_rank: Spread
    repeats: list[Repeat]


@dataclass(slots=True, kw_only=True)
class Result:
    """What all results have. skipped: why the experiment did not run, None if it did.

    error: why it ended early; its points are those that were measured before. traceback: where.
    """

    experiment: str
    environment: Environment
    engines: list[EngineRecord] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    formulas: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: str | None = None
    error: str | None = None
    traceback: str | None = None


@dataclass(slots=True, kw_only=True)
class ThroughputResult(Result):
    """Offline batch throughput."""

    points: list[ThroughputPoint] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class GraphsResult(Result):
    """CUDA graphs on and off."""

    points: list[GraphsPoint] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class PrefixResult(Result):
    """A shared prefix, or none."""

    points: list[PrefixPoint] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class PressureResult(Result):
    """A shrinking KV pool."""

    points: list[PressurePoint] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class TpResult(Result):
    """Tensor parallelism."""

    points: list[TpPoint] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class ServeResult(Result):
    """Requests that arrive over time."""

    points: list[ServePoint] = field(default_factory=list)


AnyResult = ThroughputResult | GraphsResult | PrefixResult | PressureResult | TpResult | ServeResult
RESULTS: dict[str, type[AnyResult]] = {
    "throughput": ThroughputResult,
    "graphs": GraphsResult,
    "prefix": PrefixResult,
    "pressure": PressureResult,
    "tp": TpResult,
    "serve": ServeResult,
}


def save(results: list[AnyResult], path: Path) -> None:
    """Write the results as one JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"schema": SCHEMA, "results": [to_plain(r) for r in results]}
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def load(path: Path) -> list[AnyResult]:
    """Read what `save` wrote, compressed by gzip or not. Raises BenchError when the file is something else."""
    try:
        document = json.loads(_text(path))
    except (OSError, EOFError, zlib.error) as e:
        reason = getattr(e, "strerror", None) or e
        raise BenchError(f"cannot read {path} ({reason}): pass a results.json that `nanovllm bench` wrote") from e
    except ValueError as e:
        raise BenchError(f"{path} is not valid JSON ({e}): pass a results.json that `nanovllm bench` wrote") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise BenchError(f"{path} is no benchmark result of schema {SCHEMA!r}: run `nanovllm bench` again")
    return [_result(plain, f"{path.name}: result {i}") for i, plain in enumerate(document.get("results", []))]


def _text(path: Path) -> str:
    if path.suffix != ".gz":
        return path.read_text(encoding="utf-8")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def _result(plain: Any, where: str) -> AnyResult:
    name = plain.get("experiment") if isinstance(plain, dict) else None
    if name not in RESULTS:
        raise BenchError(f"{where} is of an unknown experiment {name!r}: known are {', '.join(RESULTS)}")
    return from_plain(RESULTS[name], plain, where)
