"""The six experiments: what varies, what is measured, what it isolates."""

from itertools import pairwise

from diagrams.draw import Diagram

BENCH = "nanovllm.bench.experiments."


def bench_matrix() -> Diagram:
    """A row an experiment."""
    d = Diagram(
        "bench_matrix",
        "Benchmark matrix: six questions, six experiments",
        "Each experiment changes one thing and measures what that thing should move. `nanovllm bench` "
        "runs them all. Five are offline; for serving, requests arrive over time.",
        {"rankdir": "LR", "ranksep": "0.55", "nodesep": "0.22"},
        legend=False,
    )
    rows = (
        (
            "throughput",
            "Offline throughput",
            "throughput.run",
            "prompt and output lengths, requests",
            "prefill, decode, total tok/s; peak memory",
            "the engine's base line",
        ),
        (
            "graphs",
            "CUDA graphs",
            "graphs.run",
            "enforce_eager on and off, batch size",
            "TPOT, the host's launch time",
            "what replay removes",
        ),
        (
            "prefix",
            "Prefix cache",
            "prefix.run",
            "shared blocks at the start, or none",
            "prefill time, blocks found, blocks used",
            "reuse against recomputation",
        ),
        (
            "pressure",
            "KV pressure",
            "pressure.run",
            "blocks in the pool",
            "preemptions, recomputed tokens, latency",
            "the price of too little memory",
        ),
        (
            "tp",
            "Tensor parallelism",
            "tp.run",
            "number of ranks",
            "tok/s, scaling efficiency, share in collectives",
            "computing against communicating",
        ),
        (
            "serving",
            "Online serving",
            "serve.run",
            "arrival rate, concurrency, policy",
            "TTFT, TPOT, ITL, p50/p95/p99, goodput",
            "what a user feels",
        ),
    )
    with d.row():
        for key, title, code, *_ in rows:
            d.node(key, title, code=BENCH + code, role="outside" if key == "serving" else "request", width="2.2")
    for above, below in pairwise(rows):
        d.edge(above[0], below[0], kind="link", style="invis")
    for key, _, _, vary, measure, isolates in rows:
        d.node(f"{key}_vary", "vary", vary, role="rank", width="3.1")
        d.node(f"{key}_measure", "measure", measure, role="gpu", width="3.6")
        d.node(f"{key}_why", "isolates", isolates, role="plain", width="2.4")
        d.edge(key, f"{key}_vary", kind="then")
        d.edge(f"{key}_vary", f"{key}_measure", kind="then")
        d.edge(f"{key}_measure", f"{key}_why", kind="then")
    return d
