"""How each figure is made from what was counted and timed. The texts travel with every result."""

from collections.abc import Sequence

FORMULAS = {
    "repeat": "one timed run of the whole workload; every figure is the median over the repeats, its spread is the "
    "smallest and the largest of them",
    "seconds": "from before the first request is queued until the last token of the last request, time.perf_counter()",
    "prefill_seconds": "sum of the durations of the steps that computed prompts; a step lasts from the end of the one "
    "before it to its own end, so that prefill_seconds + decode_seconds = seconds",
    "decode_seconds": "the same for the steps that computed one token of each running request",
    "prefill_tok_s": "tokens computed in prefill steps (recomputed ones included, cached ones not) / prefill_seconds",
    "decode_tok_s": "tokens sampled in decode steps / decode_seconds",
    "output_tok_s": "completion tokens / seconds",
    "total_tok_s": "(prompt tokens + completion tokens) / seconds",
    "peak_memory": "GPU: torch.cuda.max_memory_allocated, KV pool included, largest of the ranks; CPU: largest "
    "resident memory of the process (libraries included), largest of the ranks; both reset before each repeat",
    "ttft": "first_token_time - arrival_time of a request; median over the requests",
    "tpot": "(finish_time - first_token_time) / (completion tokens - 1) of a request; median over the requests",
    "e2e": "finish_time - arrival_time of a request; p50, p95 and maximum over the requests",
    "percentile": "linear interpolation between the two nearest ranks",
    "decode_step": "median duration of the decode steps of a repeat",
    "launch": "host time of a decode step until everything is queued on the GPU (batch preparation, copies, kernel "
    "launches or graph replay), without waiting for results; median over the decode steps",
    "hit_blocks": "sum over the requests of (prompt tokens found in the prefix cache / block size)",
    "peak_blocks": "largest number of KV blocks in use during any step",
    "preemptions": "sum over the requests of the times each was put back to the queue",
    "recomputed": "sum over the requests of the tokens whose K/V were computed again after a preemption",
    "efficiency": "(output_tok_s with N ranks / N) / (output_tok_s with the fewest ranks n / n)",
    "collective_share": "seconds that rank 0 spends in all-reduces and gathers (waiting for the others included) / "
    "seconds of the same decode steps, over a stretch of decode steps after the timed repeats",
    "serve_ttft": "time of the first event - the time at which the request was due; percentiles over the requests that "
    "were answered whole, median of them over the repeats",
    "serve_tpot": "(time of the last event - time of the first) / (completion tokens - 1) of a request",
    "serve_e2e": "time of the last event - the time at which the request was due",
    "itl": "time between two events of a request, all requests together; an event is a chunk of the stream or, without "
    "HTTP, what one step brought",
    "requests_s": "requests answered whole / seconds from the start of the run to its last event",
    "goodput": "requests answered whole that met every limit (see settings) / the same seconds",
    "in_time": "requests that met every limit / requests sent",
    "lateness": "time of sending - time at which the request was due, p99 over the requests: how far the client itself "
    "fell behind",
    "capacity": "requests_s of a closed loop that always has max_num_seqs requests under way",
    "floor": "the floor of the hardware: seconds that the bytes and operations of the workload take at the rates that "
    "were measured on this machine (settings, floor_rates). Decode step: max(bytes / byte rate, operations / operation "
    "rate), with the weights once and the K/V of every context; prefill: max(weights / byte rate, operations / "
    "operation rate). nanovllm/bench/floor.py has the terms",
    "ratio": "median of B / median of A; its spread is B.low / A.high to B.high / A.low",
}


def rate(count: float, seconds: float) -> float:
    """count / seconds; 0 where nothing took time."""
    return count / seconds if seconds > 0 else 0.0


def efficiency(output_tok_s: float, ranks: int, base_tok_s: float, base_ranks: int) -> float:
    """(tok/s a rank) / (tok/s a rank with the fewest ranks)."""
    return (output_tok_s / ranks) / (base_tok_s / base_ranks) if base_tok_s else 0.0


def chosen(names: Sequence[str]) -> dict[str, str]:
    """The texts of some formulas; those of repeats and seconds always."""
    return {name: FORMULAS[name] for name in ("repeat", "seconds", *names)}
