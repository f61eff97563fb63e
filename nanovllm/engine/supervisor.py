"""Watching over the worker processes from rank 0: who died, who hangs, and how all of them are ended.

A thread of its own, because rank 0's main thread may be inside a collective that waits for the very rank that died.
Ending the other workers closes their sockets, which makes that collective fail and sets the main thread free.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess

from nanovllm.engine.control_channel import ChannelHost

POLL_SECONDS = 0.25
STALE_SECONDS = 1.0  # several heartbeats


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rank that failed first, as far as can be told from outside, and how."""

    rank: int
    what: str


class HostSeat:
    """Rank 0's place among the ranks, and how long it has been waiting for them.

    On a CPU it waits inside collectives; time that rank 0 spends elsewhere (in a debugger, say) is not held against
    the others. On a GPU the host waits for results at the end of a call, so there the whole call counts.
    """

    def __init__(self, size: int) -> None:
        self.rank = 0
        self.size = size
        self.collectives = 0
        self.limit = 0.0  # s, of the call under way
        self.waiting_since: float | None = None  # s of time.monotonic()
        self._call_since: float | None = None

    def begin_call(self, limit: float, counts_whole: bool) -> None:
        """Rank 0's part of a call begins."""
        self.limit = limit
        self.waiting_since = self._call_since = time.monotonic() if counts_whole else None

    def end_call(self) -> None:
        """Rank 0's part of a call is over."""
        self.waiting_since = self._call_since = None

    def enter_collective(self) -> None:
        """Called before each collective."""
        self.collectives += 1
        if self._call_since is None:
            self.waiting_since = time.monotonic()

    def leave_collective(self) -> None:
        """Called after each collective."""
        self.waiting_since = self._call_since


class Supervisor:
    """Owns the processes. `verdict` is set once, when something has gone wrong, and then everything is killed.

    on_failure: called when the workers are killed, in whichever thread does it.
    """

    def __init__(self, processes: list[SpawnProcess], channel: ChannelHost, seat: HostSeat) -> None:
        self.processes = processes
        self.verdict: Verdict | None = None
        self.on_failure: Callable[[], None] | None = None
        self._channel = channel
        self._seat = seat
        self._lock = threading.Lock()
        self._wake, self._woken = Pipe()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._watch, daemon=True, name="rank-supervisor")

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    @property
    def is_watching(self) -> bool:
        """True until `stop_watching`."""
        return self._thread.is_alive() and not self._is_stopping

    def stop_watching(self) -> None:
        """End the thread; deaths are expected from now on."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._wake.send_bytes(b"w")
            self._thread.join()
        self._wake.close()
        self._woken.close()

    def _watch(self) -> None:
        sentinels: list[object] = [p.sentinel for p in self.processes]
        while not self._is_stopping and self.verdict is None:
            ready = wait([*sentinels, self._woken], POLL_SECONDS)  # type: ignore[list-item]
            if self._is_stopping:
                return
            since = self._seat.waiting_since
            dead = [rank for rank, process in enumerate(self.processes, 1) if process.sentinel in ready]
            if dead:
                self.give_up(self.dead(*dead))
            elif since is not None and time.monotonic() - since > self._seat.limit:
                self.give_up(self.overdue(range(1, len(self.processes) + 1), self._seat.limit))

    def overdue(self, ranks: Iterable[int], limit: float) -> Verdict:
        """Blame one of the silent `ranks`."""
        rank, sign = self._most_suspect(list(ranks))
        return Verdict(rank, f"did not answer within {limit:g} s ({sign})")

    def _most_suspect(self, ranks: list[int]) -> tuple[int, str]:
        """The rank to blame for a silence and the sign that says so: no heartbeat, or fewest collectives entered."""
        before = {r: self._channel.status(r) for r in ranks}
        time.sleep(STALE_SECONDS)
        after = {r: self._channel.status(r) for r in ranks}
        for rank in ranks:
            if before[rank][0] == after[rank][0]:
                return rank, "its process is stopped or frozen"
        rank = min(ranks, key=lambda r: after[r][1])
        return (
            rank,
            f"its process runs; it has entered {after[rank][1]} collectives and rank 0 {self._seat.collectives}",
        )

    def give_up(self, verdict: Verdict) -> None:
        """Record the first failure and kill every worker."""
        with self._lock:
            if self.verdict is not None:
                return
            self.verdict = verdict
        self.kill()

    def dead(self, *ranks: int) -> Verdict:
        """How one of `ranks` ended: one that was killed before one that left by itself, which may have followed."""
        for rank in ranks:
            self.processes[rank - 1].join(1.0)  # a dying process's pipes close a moment before its status can be had
        codes = [(self.processes[rank - 1].exitcode, rank) for rank in ranks]
        code, rank = min((1 if code is None else code, rank) for code, rank in codes)
        return Verdict(rank, describe_exit(code))

    def kill(self) -> None:
        """End every worker that still lives, at once, and collect them all."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
        if self.on_failure is not None:
            self.on_failure()
        for process in self.processes:
            process.join()

    def release(self, owner_pid: int) -> None:
        """End the processes and free the channel, unless this is a forked copy of the process that owns them."""
        if os.getpid() == owner_pid:
            self.stop_watching()
            self.kill()
            self._channel.close()

    def wait_for_exit(self, deadline: float) -> None:
        """Give the workers until `deadline`, s of time.monotonic(), to end by themselves."""
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
