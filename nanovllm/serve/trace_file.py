"""Traces: when requests came and how long they were, for replay.

A trace is a CSV file with a header, or JSON Lines. It needs a time of arrival and the two lengths in tokens, under the
names of this project or of two published traces:

    arrival, prompt_tokens, completion_tokens          seconds; ours
    timestamp, input_length, output_length             milliseconds; Mooncake
    TIMESTAMP, ContextTokens, GeneratedTokens          date and time; Azure's LLM inference traces
"""

import csv
import json
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nanovllm.errors import ConfigError

_NAMES = (
    ("arrival", "prompt_tokens", "completion_tokens"),
    ("timestamp", "input_length", "output_length"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace: seconds after the first one, and its lengths in tokens."""

    time: float
    prompt_tokens: int
    completion_tokens: int


def read_trace(path: Path) -> list[Arrival]:
    """The requests in the order of their arrival, the first at 0. Raises ConfigError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path} ({error}): pass a CSV or JSON Lines file") from None
    rows = _json_rows(path, text) if text.lstrip().startswith("{") else _csv_rows(text)
    found = sorted((_arrival(path, line, row) for line, row in rows), key=lambda a: a.time)
    if not found:
        raise ConfigError(f"the trace {path} has no request: give it at least one line besides a CSV header")
    start = found[0].time
    return [Arrival(a.time - start, a.prompt_tokens, a.completion_tokens) for a in found]


def _json_rows(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except ValueError as error:
                raise ConfigError(f"{path} line {number} is not valid JSON: {error}") from None
    return rows


def _csv_rows(text: str) -> list[tuple[int, dict[str, Any]]]:
    return [(number, row) for number, row in enumerate(csv.DictReader(text.splitlines()), 2) if any(row.values())]


def _arrival(path: Path, line: int, row: Any) -> Arrival:
    names = next((n for n in _NAMES if isinstance(row, dict) and set(n) <= row.keys()), None)
    if names is None:
        told = list(row) if isinstance(row, dict) else row
        wanted = " or ".join(", ".join(n) for n in _NAMES)
        raise ConfigError(f"{path} line {line} has {told}, and a trace needs {wanted}")
    time, prompt, completion = (row[name] for name in names)
    try:
        at = float(time) if names[0] != "TIMESTAMP" else datetime.fromisoformat(str(time)[:26]).timestamp()
        lengths = int(prompt), int(completion)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path} line {line}: {error}") from None
    if not math.isfinite(at) or min(lengths) < 1:
        raise ConfigError(f"{path} line {line}: arrival {time}, {prompt} and {completion} tokens: lengths start at 1")
    return Arrival(at / 1000 if names[0] == "timestamp" else at, *lengths)
