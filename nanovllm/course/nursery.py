"""A helper process that has imported everything and forks one process an exercise: importing costs more than checking.

It runs none of a submission's code itself. It is told what to grade through a socket, watches over the process that
does it, and makes sure that nothing which that one started is left. Linux only; started by `process.py`.
"""

import ctypes
import gc
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanovllm.course.child import import_all, report_and_leave
from nanovllm.course.registry import get_exercise

TICK = 0.02  # s between two looks at a submission
SWEEP_SECONDS = 10.0
_BECOME_SUBREAPER = 36  # prctl: what loses its parent becomes a child of this process


def main() -> None:
    """Serve one request after the other until the other end is closed."""
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    with socket.socket(fileno=0) as channel:
        while True:
            message, fds, _, _ = socket.recv_fds(channel, 1 << 16, 2)
            if not message:
                return
            result, output = fds
            try:
                answer = grade(channel, json.loads(message), result, output)
            finally:
                os.close(result)
                os.close(output)
            channel.sendall(json.dumps(answer).encode() + b"\n")


def grade(channel: socket.socket, request: dict[str, Any], result: int, output: int) -> dict[str, Any]:
    """{"reason": why it was ended, or "", "code": its exit status as `os.waitstatus_to_exitcode` has it}."""
    exercise = get_exercise(request["number"])
    import_all(exercise)
    gc.collect()
    gc.freeze()  # the pages stay shared
    pid = os.fork()
    if pid == 0:
        try:
            _become_submission(channel, output)
            report_and_leave(exercise, request, result)
        finally:
            os._exit(70)
    reason = ""
    try:
        reason = watch(pid, output, request)
    finally:
        code = end(pid)
    return {"reason": reason, "code": code}


def _become_submission(channel: socket.socket, output: int) -> None:
    os.setsid()
    os.nice(5)
    channel.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, fd)


def watch(pid: int, output: int, request: dict[str, Any]) -> str:
    """Wait for its end; the reason why it was not waited for any longer, or ""."""
    deadline = time.monotonic() + request["seconds"]
    handle = os.pidfd_open(pid)
    try:
        ends = select.poll()
        ends.register(handle, select.POLLIN)
        while True:
            ended = bool(ends.poll(TICK * 1000))
            if os.fstat(output).st_size > request["output_bytes"]:
                return f"it printed more than {request['output_bytes']:,} bytes: is there a print left from debugging?"
            if len(descendants()) > 1:
                return "it started another process"
            if ended:
                return ""
            if time.monotonic() > deadline:
                return f"it ran longer than {request['seconds']:g} s: is there a loop without an end?"
    finally:
        os.close(handle)


def end(pid: int) -> int:
    """End the submission's process and whatever it started, wherever that is now; the exit status of the first."""
    code: int | None = None
    deadline = time.monotonic() + SWEEP_SECONDS
    _kill(-pid)
    while left := descendants():
        for one in left:
            _kill(one)
        while True:
            try:
                gone, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if gone == 0:
                break
            if gone == pid:
                code = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            break
    return -signal.SIGKILL if code is None else code


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def descendants() -> list[int]:
    """The processes below this one: its children, and theirs. Zombies count, for they are to be collected."""
    found, todo = [], [os.getpid()]
    children_of = _children if Path(f"/proc/{todo[0]}/task/{todo[0]}/children").exists() else _children_by_parent()
    while todo:
        children = children_of(todo.pop())
        found += children
        todo += children
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _children_by_parent() -> Callable[[int], list[int]]:
    """For kernels that list no children: every process is asked for its parent."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state = Path(f"/proc/{name}/stat").read_text()
            children.setdefault(int(state.rpartition(")")[2].split()[1]), []).append(int(name))
    return lambda pid: children.get(pid, [])


if __name__ == "__main__":
    main()
