"""Failures in words: what was expected, what happened, and a cell to paste that makes it happen again."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanovllm.course.oracle.trace import Request, Trace


class Violation(Exception):
    """A rule was broken. kind: a word to group failures by; expected and actual: sentences without a full stop."""

    def __init__(self, kind: str, expected: str, actual: str) -> None:
        super().__init__(f"expected: {expected}; actual: {actual}")
        self.kind = kind
        self.expected = expected
        self.actual = actual


class TraceFailure(AssertionError):
    """A trace on which an implementation broke a rule.

    step: the number of the step (-1 before the first). phase: what was being done.
    history: the decisions that the scheduler noted, in order. state: its snapshot at the failure, when it has one.
    requests: one line a request, its actual completion beside the expected one.
    """

    def __init__(
        self,
        trace: "Trace",
        step: int,
        phase: str,
        violation: Violation,
        history: Sequence[str] = (),
        requests: Sequence[str] = (),
        state: Any = None,
    ) -> None:
        super().__init__(f"step {step}, {phase}: expected {violation.expected}; actual: {violation.actual}")
        self.trace = trace
        self.step = step
        self.phase = phase
        self.kind = violation.kind
        self.expected = violation.expected
        self.actual = violation.actual
        self.history = list(history)
        self.requests = list(requests)
        self.state = state


def _arguments(value: Any) -> list[str]:
    """`name=value` for each field that differs from its default."""
    parts = []
    for f in fields(value):
        current = getattr(value, f.name)
        if f.default is MISSING or current != f.default:
            parts.append((f.name, current))
    return [f"{name}={current!r}" for name, current in parts if name != "requests"]


def _render_request(request: "Request") -> str:
    return f"Request({', '.join(_arguments(request))})"


def render_trace(trace: "Trace") -> str:
    """The trace as Python source; evaluating it gives an equal trace."""
    requests = "".join(f"        {_render_request(r)},\n" for r in trace.requests)
    arguments = "".join(f"    {a},\n" for a in _arguments(trace))
    return f"Trace(\n{arguments}    requests=(\n{requests}    ),\n)"


def render_cell(trace: "Trace", setup: str = "", call: str = "run_trace(trace)") -> str:
    """A cell to paste that plays the trace. setup: lines before it, e.g. the import of the code under test."""
    names = "Ahead, " * ("Ahead(" in setup + call) + "Request, Trace, run_trace"
    names += ", scheduler_factory" * ("scheduler_factory" in setup + call)
    head = f"from nanovllm.course.oracle import {names}\n"
    head += f"{setup.rstrip()}\n" if setup else ""
    return f"{head}\ntrace = {render_trace(trace)}\n{call}\n"


def explain(failure: TraceFailure, setup: str = "", call: str = "run_trace(trace)") -> str:
    """The failure for a reader: expected beside actual, how it came to that, and the cell that reproduces it."""
    lines = [
        f"Step {failure.step}, {failure.phase}:",
        f"  expected: {failure.expected}",
        f"  actual:   {failure.actual}",
    ]
    if failure.history:
        lines += ["", "What happened:", *(f"  {line}" for line in failure.history)]
    if failure.requests:
        lines += ["", "The requests then:", *(f"  {line}" for line in failure.requests)]
    lines += ["", "To see it again, paste this cell:", "", render_cell(failure.trace, setup, call)]
    return "\n".join(lines)
