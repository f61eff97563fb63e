"""Traces from plain values that a process running a learner's code sent: checked before they are believed."""

from typing import Any

from nanovllm.course.oracle import Request, Trace

LARGEST = 1000
MOST_REQUESTS = 16


def trace_from(plain: dict[str, Any]) -> Trace:
    """The trace behind `dataclasses.asdict`. Raises ValueError for anything that no shrunk trace can be."""
    requests = plain["requests"]
    if not 1 <= len(requests) <= MOST_REQUESTS:
        raise ValueError(f"{len(requests)} requests")
    fields = {name: _value(value) for name, value in plain.items() if name != "requests"}
    made = tuple(Request(**{name: _value(value) for name, value in request.items()}) for request in requests)
    return Trace(requests=made, **fields)


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple):
        if len(value) > LARGEST or not all(type(v) is int and 0 <= v <= LARGEST for v in value):
            raise ValueError(f"{value!r:.60} is no list of small numbers")
        return tuple(value)
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return value
    raise ValueError(f"{value!r:.60} is no small number")
