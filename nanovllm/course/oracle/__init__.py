"""The slot oracle: judges a scheduler by what its block tables make a fake model read. No torch, no weights.

    failure = find_failure(range(500), make_scheduler=scheduler_factory(block_manager=MyBlockManager))
    if failure is not None:
        print(explain(shrink(failure.trace, make_scheduler=...)))

Read in this order: `trace.py` (a scenario), `reference.py` (what its requests must answer), `fake_runner.py` (the fake
KV cache), `invariants.py`, `prefix_model.py` and `cache_watch.py` (what must hold at every step), `play.py`,
`play_ahead.py` and `run.py` (playing) and `shrink.py` and `report.py` (the smallest failing scenario, in words).
"""

from nanovllm.course.oracle.fake_runner import FakeRunner
from nanovllm.course.oracle.play import TraceResult
from nanovllm.course.oracle.play_ahead import Ahead
from nanovllm.course.oracle.reference import Expected, kv_value, next_token, reference
from nanovllm.course.oracle.report import TraceFailure, Violation, explain, render_cell, render_trace
from nanovllm.course.oracle.run import colliding_hash, find_failure, run_trace, scheduler_factory
from nanovllm.course.oracle.shrink import shrink, size
from nanovllm.course.oracle.trace import Request, Trace, random_trace

__all__ = [
    "Ahead",
    "Expected",
    "FakeRunner",
    "Request",
    "Trace",
    "TraceFailure",
    "TraceResult",
    "Violation",
    "colliding_hash",
    "explain",
    "find_failure",
    "kv_value",
    "next_token",
    "random_trace",
    "reference",
    "render_cell",
    "render_trace",
    "run_trace",
    "scheduler_factory",
    "shrink",
    "size",
]
