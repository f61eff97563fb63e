"""What a group of ranks must not leave behind: processes, shared segments, threads, open files, listening ports."""

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil


def worker_pids() -> set[int]:
    """Living processes that this one spawned as ranks."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if "spawn_main" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
        except psutil.Error:
            pass
    return found


def segments() -> set[str]:
    """Shared segments that this process has named."""
    return {p.name for p in Path("/dev/shm").glob(f"nanovllm-{os.getpid()}-*")}


def listening_ports() -> set[int]:
    """TCP ports on which this process listens."""
    connections = psutil.Process().net_connections("tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


def num_files() -> int:
    return psutil.Process().num_fds()


def rank_threads() -> int:
    return sum(t.name in ("rank-supervisor", "rank-0") for t in threading.enumerate())


@dataclass
class State:
    """A picture of this process, to compare with a later one."""

    pids: set[int] = field(default_factory=worker_pids)
    segments: set[str] = field(default_factory=segments)
    ports: set[int] = field(default_factory=listening_ports)
    threads: int = field(default_factory=rank_threads)

    def assert_restored(self, seconds: float = 5.0) -> None:
        """Nothing more than before, after `seconds` at most."""
        deadline = time.monotonic() + seconds
        while True:
            more = [
                sorted(worker_pids() - self.pids),
                sorted(segments() - self.segments),
                sorted(listening_ports() - self.ports),
                max(0, rank_threads() - self.threads),
            ]
            if not any(more):
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"left behind: processes {more[0]}, segments {more[1]}, ports {more[2]}, threads {more[3]}"
                )
            time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.Error):
        return False


def wait_until_gone(pids: list[int], seconds: float = 10.0) -> list[int]:
    """The pids that still live after `seconds` at most."""
    deadline = time.monotonic() + seconds
    while (left := [p for p in pids if is_alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
