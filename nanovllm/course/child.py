"""The process that runs one submission's code: load, observe, report. Started by `nursery.py` or `process.py`."""

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from nanovllm.course.cells import split_imports
from nanovllm.course.checks import observe
from nanovllm.course.closed import Refused, Watch, conceal, look
from nanovllm.course.errors import StillRunning, SwapError
from nanovllm.course.exercise import Exercise
from nanovllm.course.guard import Guard
from nanovllm.course.load import REFERENCE, load_pieces
from nanovllm.course.registry import get_exercise

try:
    import resource
except ImportError:  # not a POSIX system: only the wall clock limits it there
    resource = None  # type: ignore[assignment]

SECONDS_TO_LOAD = 5.0
WAITING = 4.0  # a check may wait that many times as long as it may compute: other processes want the cores too
MOST_TASKS = 64  # more than the user has now, where the system counts them


def import_all(exercise: Exercise) -> None:
    """Import what the checks use, before the guard looks and any clock runs."""
    if exercise.uses_torch:
        import_module("nanovllm.engine.llm")
    for _, seam in exercise.pieces:
        import_module(seam.owner.split(":")[0])
    for group in exercise.groups:
        code = [example.code for example in group.examples] + ([group.numeric.code] if group.numeric else [])
        for one in code:
            exec("\n".join(split_imports(one)[0]), {})


def set_limits(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Limits of this process that it cannot raise again. memory_bytes: beyond what is mapped now."""
    if resource is None:
        return
    limits = [
        (resource.RLIMIT_AS, mapped_bytes() + memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ]
    if sys.platform == "linux":
        limits.append((resource.RLIMIT_NPROC, tasks_of_user() + MOST_TASKS))
    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def mapped_bytes() -> int:
    """Bytes of address space that this process has taken; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def tasks_of_user() -> int:
    """Processes and threads of this user."""
    count = 0
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and folder.stat().st_uid == os.getuid():
                count += len(os.listdir(folder / "task"))
        except OSError:  # it has ended
            continue
    return count


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise StillRunning in the block after that time on a core, or a multiple of it by the clock."""

    def ring(number: int, frame: Any) -> None:
        raise StillRunning

    kinds = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, WAITING * seconds))
    before = [signal.signal(number, ring) for number, _, _ in kinds]
    try:
        for _, timer, limit in kinds:
            signal.setitimer(timer, limit)
        yield
    finally:
        for (number, timer, _), handler in zip(kinds, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def run(exercise: Exercise, request: dict[str, Any]) -> dict[str, Any]:
    """The report, or {"refused": why}. request: "impl", "seed", "closed" (folders that may not be read)."""
    impl = request["impl"]
    _seed_all(request["seed"])
    watch = Watch(request["closed"], impl)
    if impl != REFERENCE:
        if reason := look(Path(impl).read_text(encoding="utf-8", errors="replace")):
            return {"refused": reason}
        conceal(exercise)
    guard = Guard()
    watch.start()
    try:
        with alarm(SECONDS_TO_LOAD):
            pieces = load_pieces(exercise, impl)
    except (SwapError, Refused) as error:
        return {"refused": str(error)}
    except StillRunning:
        return {"refused": "the file did not come to an end: is there a loop outside of the functions?"}
    except BaseException as error:
        return {"refused": f"the file could not be run: {type(error).__name__}: {error}"[:600]}
    if reason := _tampered(guard, watch):
        return {"refused": reason}
    try:
        report = observe(exercise, pieces, alarm, seed=request["seed"])
    except SwapError as error:
        return {"refused": str(error)}
    except BaseException as error:
        return {"refused": f"a function ended the process: {type(error).__name__}: {error}"[:600]}
    if reason := _tampered(guard, watch):
        return {"refused": reason}
    return report


def _seed_all(seed: int) -> None:
    """A submission that draws random numbers gets the same ones every time."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _tampered(guard: Guard, watch: Watch) -> str:
    """What the submission changed or tried, or ""."""
    if watch.seen:
        return f"{watch.seen[0]}: a submission has no need to"
    names = guard.changes()
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    what = f"replaced {', '.join(names[:3])}{more}" if names else guard.closed()
    return f"it {what}: a submission only fills its own functions in" if what else ""


def report_and_leave(exercise: Exercise, request: dict[str, Any], result_fd: int) -> None:
    """Everything that happens in the process, once it is its own: limits, checks, report, end."""
    write, leave, encode = os.write, os._exit, json.JSONEncoder().encode
    set_limits(request["memory_bytes"], request["cpu_seconds"], request["file_bytes"])
    data = encode(run(exercise, request)).encode()
    while data:
        data = data[write(result_fd, data) :]
    leave(0)  # without what the submission may have registered for the end


def main() -> None:
    """Read the request from the command line."""
    request = json.loads(sys.argv[1])
    exercise = get_exercise(request["number"])
    import_all(exercise)
    report_and_leave(exercise, request, request["result_fd"])


if __name__ == "__main__":
    main()
