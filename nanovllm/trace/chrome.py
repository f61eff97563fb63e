"""Export to the Chrome trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

import json
from pathlib import Path
from typing import Any

from nanovllm.trace.record import PHASES, Record
from nanovllm.trace.trace import Trace

_ENGINE, _REQUESTS = 1, 2  # process ids in the picture: one track of phases, and one track a request


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """Steps and phases on one track, each request on its own, counters for deques and blocks. Times in microseconds."""
    events: list[dict[str, Any]] = [_name(_ENGINE, 0, "engine"), _name(_REQUESTS, 0, "requests")]
    events += [_name(_REQUESTS, i + 1, f"request {i}", "thread_name") for i in trace.request_ids]
    for record in trace:
        events += _step(record) + _rows(record) + _counters(record) + _instants(record)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": trace.header["limits"]}


def save_chrome_trace(trace: Trace, path: str | Path) -> Path:
    """Write the export as JSON."""
    path = Path(path)
    path.write_text(json.dumps(chrome_trace(trace), separators=(",", ":")), encoding="utf-8")
    return path


def _name(pid: int, tid: int, name: str, what: str = "process_name") -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _span(pid: int, tid: int, name: str, start: float, seconds: float, **args: Any) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, **times, "args": args}


def _step(record: Record) -> list[dict[str, Any]]:
    name = f"step {record.step}: {record.kind}"
    spans = [_span(_ENGINE, 0, name, record.start, record.seconds, tokens=record.num_tokens)]
    at = record.start
    for phase in PHASES:
        seconds = record.phases.get(phase, 0.0)
        spans.append(_span(_ENGINE, 0, phase, at, seconds))
        at += seconds
    return spans


def _rows(record: Record) -> list[dict[str, Any]]:
    if record.tensors is None:
        return []
    counts = record.scheduled.column("num_scheduled_tokens")
    return [
        _span(_REQUESTS, s + 1, record.kind, record.start, record.seconds, tokens=counts[s], step=record.step)
        for s in record.tensors.rows
    ]


def _counters(record: Record) -> list[dict[str, Any]]:
    after = record.after
    values = {"waiting": len(after.waiting), "running": len(after.running), "free blocks": len(after.free)}
    ts = round((record.start + record.seconds) * 1e6, 3)
    return [{"ph": "C", "pid": _ENGINE, "name": k, "ts": ts, "args": {k: v}} for k, v in values.items()]


def _instants(record: Record) -> list[dict[str, Any]]:
    ts = round(record.start * 1e6, 3)
    return [
        {
            "ph": "i",
            "s": "t",
            "pid": _REQUESTS,
            "tid": (n.seq_id or 0) + 1,
            "name": n.kind,
            "ts": ts,
            "args": {"reason": n.reason},
        }
        for n in record.decisions
        if n.seq_id is not None
    ]
