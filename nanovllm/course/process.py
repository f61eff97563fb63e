"""One process an exercise, with limits; whatever happens in it, a report or a reason comes back.

Process isolation keeps accidents apart. It is no security boundary: code from strangers belongs into a container.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nanovllm
from nanovllm.course.exercise import Exercise

# Grades are the same on every machine and day: no GPU, Triton's kernels in its interpreter, one thread, one hash seed.
ENVIRONMENT = {
    **{"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    **{"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"},
}
TOKEN = "NANOVLLM_GRADING"  # in the environment of a nursery and of all that it forks
IMPORT_SECONDS = 120.0  # for the first exercise that needs torch
FORKS = sys.platform == "linux"
_STRAY = "it read or wrote memory that is not its own; does a pointer of a kernel leave its tensor?"


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one exercise's process: seconds by the wall clock, bytes of memory and of what it prints."""

    seconds: float = 20.0
    memory_bytes: int = 2 << 30  # of address space, beyond what is mapped when the file is loaded
    output_bytes: int = 1_000_000


class Nursery:
    """Grades one exercise after the other in processes of their own, without importing everything each time.

    Its helper process starts with the first exercise and ends with `close`, or when this process does. Where the
    system cannot fork safely each exercise gets a fresh interpreter instead; the results are the same.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._token = secrets.token_hex(16)

    def run(
        self, exercise: Exercise, impl: str, limits: Limits, seed: int = 0, closed: Iterable[Path] = ()
    ) -> dict[str, Any]:
        """The report of the exercise's checks, or {"refused": why}.

        impl: the path of a file, or "reference". seed: of the random traces and cases. closed: folders that the
        submission may not read.
        """
        request = {
            "number": exercise.number,
            "impl": impl,
            "seed": seed,
            "closed": [str(folder) for folder in closed],
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
            "output_bytes": limits.output_bytes,
            "cpu_seconds": int(limits.seconds) + 1,
            "file_bytes": 16 * limits.output_bytes,
        }
        with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as output:
            if FORKS:
                reason, code = self._forked(request, result, output)
            else:
                reason, code = _alone(request, result, output, limits)
            return {"refused": reason} if reason else _read(result, output, code)

    def close(self) -> None:
        """End the helper process. Harmless twice."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _forked(self, request: dict[str, Any], result: IO[bytes], output: IO[bytes]) -> tuple[str, int]:
        channel = self._start()
        try:
            socket.send_fds(channel, [json.dumps(request).encode()], [result.fileno(), output.fileno()])
            channel.settimeout(request["seconds"] + IMPORT_SECONDS)
            said = b""
            while not said.endswith(b"\n"):
                more = channel.recv(1 << 16)
                if not more:
                    raise ConnectionError
                said += more
        except (OSError, ConnectionError):
            self._channel = None
            channel.close()
            self.close()
            self._sweep()
            return "it ended or stopped the process that watches over it", 0
        except BaseException:  # interrupted: nothing of this exercise is to go on
            self.close_at_once()
            raise
        answer = json.loads(said)
        return answer["reason"], answer["code"]

    def close_at_once(self) -> None:
        """End the helper process and what it is grading."""
        if self._process is not None:
            self._process.kill()
        self.close()
        self._sweep()

    def _start(self) -> socket.socket:
        if self._channel is None:
            here, there = socket.socketpair()
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-B", "-m", "nanovllm.course.nursery"],
                    stdin=there.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment() | {TOKEN: self._token},
                    start_new_session=True,
                )
            self._channel = here
        return self._channel

    def _sweep(self) -> None:
        """End what a helper process that is gone has left: all that carries its token."""
        mark = f"{TOKEN}={self._token}".encode()
        for _ in range(50):
            left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _carries(pid, mark)]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False


def _environment() -> dict[str, str]:
    package_root = str(Path(nanovllm.__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    return os.environ | ENVIRONMENT | {"PYTHONPATH": search}


# --- a fresh interpreter an exercise ---------------------------------------------------------------------------------


def _alone(request: dict[str, Any], result: IO[bytes], output: IO[bytes], limits: Limits) -> tuple[str, int]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-B",
            "-m",
            "nanovllm.course.child",
            json.dumps(request | {"result_fd": result.fileno()}),
        ],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(result.fileno(),),
        env=_environment(),
        start_new_session=True,
    )
    try:
        reason = _wait(process, output, limits)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return reason, process.returncode


def _wait(process: subprocess.Popen[bytes], output: IO[bytes], limits: Limits) -> str:
    """Wait for its end; the reason why it was not waited for any longer, or ""."""
    deadline = time.monotonic() + limits.seconds
    while True:
        ended = process.poll() is not None
        if os.fstat(output.fileno()).st_size > limits.output_bytes:
            return f"it printed more than {limits.output_bytes:,} bytes: is there a print left from debugging?"
        if ended:
            return ""
        if time.monotonic() > deadline:
            return f"it ran longer than {limits.seconds:g} s: is there a loop without an end?"
        time.sleep(0.01)


def _read(result: IO[bytes], output: IO[bytes], code: int) -> dict[str, Any]:
    """The report, or how its process ended without one."""
    result.seek(0)
    try:
        report = json.loads(result.read())
        if isinstance(report, dict):
            return report
    except ValueError:
        pass
    output.seek(0)
    said = output.read().decode(errors="replace").strip().splitlines()
    name = signal.Signals(-code).name if code < 0 else ""
    how = f"by signal {name}" if name else f"with exit code {code}"
    why = said[-1] if said else _STRAY if name in ("SIGSEGV", "SIGBUS", "SIGABRT") else ""
    return {"refused": f"its process ended {how} before the checks were through" + (f": {why}" if why else "")}
