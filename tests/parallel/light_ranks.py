"""An executor without torch, so that the channel and the processes can be tested in a fraction of a second each."""

import os
import signal
import time
from typing import Any


class LightExecutor:
    """Answers calls, and fails in the way it is told to: `fault` is (rank, method, kind)."""

    def __init__(self, seat: Any, fault: tuple[int, str, str] | None = None) -> None:
        self.seat = seat
        self.fault = fault
        self.steps: list[Any] = []
        self.closed = 0
        self._maybe_fail("create")

    def _maybe_fail(self, method: str) -> None:
        if self.fault is None or self.fault[:2] != (self.seat.rank, method):
            return
        kind = self.fault[2]
        if kind == "raise":
            raise ValueError(f"planted in {method}")
        if kind == "system_exit":
            raise SystemExit(3)
        if kind == "hang":
            time.sleep(3600)
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])

    def echo(self, value: Any) -> Any:
        self._maybe_fail("echo")
        return self.seat.rank, value

    def sized(self, num_bytes: int) -> bytes:
        return bytes([self.seat.rank]) * num_bytes

    def run_step(self, message: Any) -> None:
        self._maybe_fail("run_step")
        self.steps.append(message)

    def num_steps(self) -> int:
        return len(self.steps)

    def unpicklable(self) -> Any:
        return (lambda: None) if self.seat.rank else None

    def exit(self) -> None:
        self._maybe_fail("exit")
        self.closed += 1
