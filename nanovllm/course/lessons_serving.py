"""What notebooks 43 and 44 use: arrivals and latencies counted in steps, so that they are the same on every machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nanovllm.course.lessons_part1 import longest_gap, token_steps
from nanovllm.engine.llm import LLM
from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import Schedule, Scheduler
from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord
from nanovllm.trace.trace import Trace
from nanovllm.trace.workload import Arrival, record_run

Policy = Callable[[Scheduler], Schedule]
ENGINE: dict[str, Any] = {
    "kvcache_block_size": 4,
    "num_kvcache_blocks": 160,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 32,
    "max_model_len": 160,
    "enforce_eager": True,
}


@dataclass(frozen=True, slots=True)
class Served:
    """A run whose clock is the step: a request is due before step `due`, and the token of step s is there at s + 1.

    So a TTFT of 1 is the best there is, and so is a gap of 1 between two tokens.
    """

    trace: Trace
    report: LoadReport

    def longest_gap(self, request: int) -> int:
        """The most steps between two tokens of `request`."""
        return longest_gap(self.trace, request)

    def row(self) -> dict[str, float]:
        """The figures of the whole run, in steps."""
        summary = self.report.summary()
        return {
            "steps": len(self.trace),
            "TTFT p50": summary["ttft"]["p50"],
            "TTFT max": summary["ttft"]["max"],
            "longest gap": summary["itl"]["max"],
            "requests in time": sum(r.meets(self.report.limits) for r in self.report.completed),
        }


def serve(
    arrivals: Sequence[tuple[int, int, int]],
    policy: Policy | None = None,
    limits: Limits | None = None,
    **engine: Any,
) -> Served:
    """Run (step, prompt tokens, completion tokens) through an engine of its own, each queued before its step.

    The prompts are different from the first token on, so nothing is found in the prefix cache. `limits` are in steps.
    """
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for _, _, n in arrivals]
    requests = [
        Arrival(step, [(7 * i + j) % 200 + 20 for j in range(length)], p)
        for i, ((step, length, _), p) in enumerate(zip(arrivals, params, strict=True))
    ]
    with LLM("qwen3-tiny", **(ENGINE | engine)) as llm:
        llm.policy = policy
        trace = record_run(llm, requests, watch_cache=False)
    records = [_record(trace, i, *arrival) for i, arrival in enumerate(sorted(arrivals, key=lambda a: a[0]))]
    return Served(trace, LoadReport(records, float(len(trace)), limits or Limits()))


def _record(trace: Trace, number: int, due: int, prompt: int, completion: int) -> RequestRecord:
    events = [step + 1.0 for step in token_steps(trace, number)]
    return RequestRecord(number, float(due), float(due), events, 200, prompt, completion)


def table(rows: dict[str, dict[str, float]]) -> str:
    """Rows of figures under each other."""
    names = list(next(iter(rows.values())))
    width = max(map(len, rows))
    lines = [" " * width + "  " + "  ".join(names)]
    for title, row in rows.items():
        lines.append(f"{title:<{width}}  " + "  ".join(f"{row[n]:g}".rjust(len(n)) for n in names))
    return "\n".join(lines)


def steady(count: int, prompt: int = 8, completion: int = 2) -> list[tuple[int, int, int]]:
    """A long-running request, then a new one before each of `count` steps."""
    return [(0, prompt, 12), *((step, prompt, completion) for step in range(1, count + 1))]
