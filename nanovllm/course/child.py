"""The process that runs one submission's code: load, observe, report. Started by `process.py`, of no use by hand."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from nanovllm.course.checks import observe
from nanovllm.course.errors import StillRunning, SwapError
from nanovllm.course.exercise import Exercise
from nanovllm.course.guard import Guard
from nanovllm.course.load import load_pieces
from nanovllm.course.registry import get_exercise

try:
    import resource
except ImportError:  # not a POSIX system: only the wall clock limits it there
    resource = None  # type: ignore[assignment]


def set_limits(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Limits of this process that it cannot raise again."""
    if resource is None:
        return
    for kind, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise StillRunning in the block after that time."""

    def ring(number: int, frame: Any) -> None:
        raise StillRunning

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(exercise: Exercise, impl: str) -> dict[str, Any]:
    """The report, or {"refused": why}."""
    if exercise.uses_torch:  # before the guard looks and any clock runs
        import_module("nanovllm.engine.llm")
    guard = Guard()
    try:
        pieces = load_pieces(exercise, impl)
    except SwapError as error:
        return {"refused": str(error)}
    except BaseException as error:
        return {"refused": f"the file could not be run: {type(error).__name__}: {error}"[:600]}
    if changed := guard.changes():
        return {"refused": _tampered(changed)}
    try:
        report = observe(exercise, pieces, alarm)
    except SwapError as error:
        return {"refused": str(error)}
    except BaseException as error:
        return {"refused": f"a function ended the process: {type(error).__name__}: {error}"[:600]}
    if changed := guard.changes():
        return {"refused": _tampered(changed)}
    return report


def _tampered(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"it replaced {', '.join(names[:3])}{more}: a submission only fills its own functions in"


def main() -> None:
    """Read the request from the command line, write the report to the given file descriptor, and leave at once."""
    request = json.loads(sys.argv[1])
    write, leave = os.write, os._exit
    exercise = get_exercise(request["number"])
    set_limits(request["memory_bytes"], request["cpu_seconds"], request["file_bytes"])
    data = json.dumps(run(exercise, request["impl"])).encode()
    while data:
        data = data[write(request["result_fd"], data) :]
    leave(0)  # without what the submission may have registered for the end


if __name__ == "__main__":
    main()
