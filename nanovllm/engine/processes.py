"""Starting the worker processes, from a script, `python -c`, standard input or a notebook cell alike."""

import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from types import ModuleType

from nanovllm.engine.control_channel import WorkerLink
from nanovllm.engine.worker import worker_main

_spawn_lock = threading.Lock()  # `sys.modules` is one a process, whatever the number of engines


def spawn_workers(links: list[WorkerLink], processes: list[SpawnProcess]) -> None:
    """Start one process a link and append each to `processes` as soon as it exists, so that none can get lost."""
    context = multiprocessing.get_context("spawn")
    with _spawn_lock, _caller_script_hidden(), _interrupts_blocked():
        for link in links:
            process = context.Process(target=worker_main, args=(link,), name=f"nanovllm-rank-{link.rank}", daemon=True)
            process.start()
            processes.append(process)


@contextmanager
def _caller_script_hidden() -> Iterator[None]:
    """Keep multiprocessing from running the caller's script again in every worker.

    It would do so to find functions defined there, which breaks any script without an `if __name__ == "__main__"`
    guard, and one read from standard input. A worker needs nothing from it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let the workers inherit a blocked SIGINT: Ctrl-C reaches them too, even before their first line has run."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
