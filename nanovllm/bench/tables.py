"""The figures of a result as rows of text: for the terminal, the report and comparisons."""

from dataclasses import fields

from nanovllm.bench.record import AnyResult
from nanovllm.bench.stats import Spread, number

TITLES = {
    "throughput": "Offline batch throughput",
    "graphs": "CUDA graphs on and off",
    "prefix": "Prefix cache",
    "pressure": "KV pressure",
    "tp": "Tensor parallelism",
    "serve": "Serving under arrivals",
}
ISOLATES = {
    "throughput": "What the engine does with a whole batch that is there from the start: prompt and completion lengths "
    "and the number of requests vary, nothing is shared, nothing is short.",
    "graphs": "What replaying a recorded decode step saves the host: the same requests in the same plain loop, with "
    "and without graphs.",
    "prefix": "Reuse against recomputation: prompts of equal length of which a growing part is already in the cache.",
    "pressure": "The scheduler's and block manager's trade-off: the same requests in a pool that shrinks until they "
    "have to give way to each other.",
    "tp": "What more ranks bring in compute and memory, and what they cost in communication.",
    "serve": "Service as clients see it: requests arrive over time, whether or not earlier ones were answered, and "
    "latencies count from when each was due.",
}
HEADINGS = {
    "requests_s": "answered",
    "goodput": "goodput",
    "in_time": "in time",
    "output_tok_s": "completion",
    "total_tok_s": "total",
    "prefill_tok_s": "prefill",
    "decode_tok_s": "decode",
    "peak_memory": "peak memory",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "decode_step": "decode step",
    "launch": "host launch",
    "ttft_p50": "TTFT p50",
    "ttft_p95": "TTFT p95",
    "ttft_p99": "TTFT p99",
    "tpot_p50": "TPOT p50",
    "tpot_p95": "TPOT p95",
    "tpot_p99": "TPOT p99",
    "itl_p50": "ITL p50",
    "itl_p95": "ITL p95",
    "itl_p99": "ITL p99",
    "hit_blocks": "found",
    "prefill_seconds": "prefill time",
    "computed_tokens": "computed",
    "peak_blocks": "in use",
    "preemptions": "preempted",
    "recomputed": "recomputed",
    "e2e_p50": "latency p50",
    "e2e_p95": "latency p95",
    "e2e_p99": "latency p99",
    "e2e_max": "latency max",
    "lateness_p99": "client late p99",
    "efficiency": "efficiency",
    "collective_share": "in collectives",
    "memory_per_rank": "memory a rank",
}
# Columns of the terminal where all of them would be too many; the report has them all.
SHORT = {
    "serve": ("requests_s", "goodput", "output_tok_s", "ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2e_p99"),
}


def figures(point: object) -> dict[str, Spread]:
    """The figures of a point that were measured, by the name of their field."""
    found = {f.name: getattr(point, f.name) for f in fields(point)}  # type: ignore[arg-type]
    return {name: value for name, value in found.items() if isinstance(value, Spread)}


def table(result: AnyResult) -> tuple[list[str], list[list[str]]]:
    """(column headings with units, one row a point)."""
    measured = {p.name: figures(p) for p in result.points}
    columns = {name: s.unit for row in measured.values() for name, s in row.items()}
    order = [name for name in HEADINGS if name in columns]
    heads = ["", *(f"{HEADINGS[name]}, {columns[name]}" for name in order)]
    rows = [[name, *(row[c].text() if c in row else "–" for c in order)] for name, row in measured.items()]
    return heads, rows


def short_table(result: AnyResult) -> tuple[list[str], list[list[str]]]:
    """The same for a terminal: medians, and in the last column the widest spread among them, (high - low) / median."""
    measured = {p.name: figures(p) for p in result.points}
    columns = {name: s.unit for row in measured.values() for name, s in row.items()}
    chosen = SHORT.get(result.experiment, tuple(HEADINGS))
    order = [name for name in HEADINGS if name in columns and name in chosen]
    heads = ["", *(f"{HEADINGS[name]}, {columns[name]}" for name in order)]
    rows = []
    for name, row in measured.items():
        widest = max((row[c].relative for c in order if c in row), default=0.0)
        rows.append([name, *(number(row[c].median) if c in row else "–" for c in order), f"{widest:.0%}"])
    return [*heads, "spread"], rows
