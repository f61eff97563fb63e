"""One process an exercise, with limits; whatever happens in it, a report or a reason comes back.

Process isolation keeps accidents apart. It is no security boundary: code from strangers belongs into a container.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nanovllm
from nanovllm.course.exercise import Exercise

# Grades are the same on every machine: no GPU, Triton's kernels in its interpreter, one thread.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one exercise's process: seconds by the wall clock, bytes of address space and of what it prints."""

    seconds: float = 20.0
    memory_bytes: int = 4 << 30
    torch_memory_bytes: int = 16 << 30  # with torch, whose libraries take several GiB of addresses
    output_bytes: int = 1_000_000


def run_child(exercise: Exercise, impl: str, limits: Limits) -> dict[str, Any]:
    """The report of the exercise's checks, or {"refused": why}. impl: the path of a file, or "reference"."""
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as output:
        request = {
            "number": exercise.number,
            "impl": impl,
            "result_fd": result.fileno(),
            "memory_bytes": limits.torch_memory_bytes if exercise.uses_torch else limits.memory_bytes,
            "cpu_seconds": int(limits.seconds) + 1,
            "file_bytes": 16 * limits.output_bytes,
        }
        package_root = str(Path(nanovllm.__file__).resolve().parents[1])
        search = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-m", "nanovllm.course.child", json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(result.fileno(),),
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": search},
            start_new_session=True,
        )
        try:
            reason = _wait(process, output, limits)
        finally:
            _end(process)
        return {"refused": reason} if reason else _read(process, result, output)


def _wait(process: subprocess.Popen[bytes], output: IO[bytes], limits: Limits) -> str:
    """Wait for its end; the reason why it was not waited for any longer, or ""."""
    deadline = time.monotonic() + limits.seconds
    while True:
        ended = process.poll() is not None
        if os.fstat(output.fileno()).st_size > limits.output_bytes:
            return f"it printed more than {limits.output_bytes:,} bytes"
        if ended:
            return ""
        if time.monotonic() > deadline:
            return f"it ran longer than {limits.seconds:g} s: is there a loop without an end?"
        time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and whatever it started in its own session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(process: subprocess.Popen[bytes], result: IO[bytes], output: IO[bytes]) -> dict[str, Any]:
    result.seek(0)
    try:
        report = json.loads(result.read())
        if isinstance(report, dict):
            return report
    except ValueError:
        pass
    output.seek(0)
    said = output.read().decode(errors="replace").strip().splitlines()
    code = process.returncode
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return {"refused": f"its process ended {how} before the checks were through" + (f": {said[-1]}" if said else "")}
