"""The process of a rank other than 0: attach to the channel, do what rank 0 says, end when it ends.

This module imports no torch, so that a worker is attached, watched and able to report a failure before the slow part
of its start begins.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from nanovllm.engine.control_channel import ChannelClient, Kind, Message, WorkerLink
from nanovllm.engine.peer import PeerGoneError
from nanovllm.errors import CollectiveError

BEAT_SECONDS = 0.25
MAX_TRACEBACK_CHARS = 12_000  # an error is one chunk: rank 0 may be in a collective and not there to take a second


class WorkerSeat:
    """A worker's place among the ranks, as its executor and its collectives see it."""

    def __init__(self, rank: int, size: int, client: ChannelClient) -> None:
        self.rank = rank
        self.size = size
        self._client = client

    def enter_collective(self) -> None:
        """Called before each collective."""
        self._client.count_collective()

    def leave_collective(self) -> None:
        """Called after each collective."""


def worker_main(link: WorkerLink) -> None:
    """Run a worker until it is told to exit, raises, or rank 0 is gone."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; rank 0 decides
    client = ChannelClient(link)
    threading.Thread(target=_watch_parent, args=(client, link.parent_pid), daemon=True, name="watch-parent").start()
    try:
        client.send(Message(0, Kind.RESULT, b""))  # attached
        _serve(client, link.layout.num_workers + 1)
    except PeerGoneError:
        os._exit(1)  # rank 0 is gone: nobody to tell, nothing to save
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is given back; taking the interpreter apart with torch in it costs time for nothing


def _watch_parent(client: ChannelClient, parent_pid: int) -> None:
    """Show signs of life, and end the process at once when rank 0's is gone, whatever the main thread is doing."""
    parent = multiprocessing.parent_process()
    sentinels = [] if parent is None else [parent.sentinel]
    while True:
        client.beat()
        if wait(sentinels, BEAT_SECONDS) or os.getppid() != parent_pid:
            os._exit(1)


def _serve(client: ChannelClient, size: int) -> None:
    """Answer calls in order. The first one, "create", brings the executor whose methods the others name."""
    executor: Any = None
    while True:
        message = client.receive()
        method = "?"
        try:
            method, args = pickle.loads(message.payload)
            if method == "create":
                executor, result = _create(WorkerSeat(client.rank, size, client), *args), None
            else:
                result = getattr(executor, method)(*args)
            payload = pickle.dumps(result)
        except BaseException as error:
            client.send(Message(message.number, Kind.ERROR, pickle.dumps(describe(error, method))))
            os._exit(1)  # closes its sockets, which frees the ranks that wait for it in a collective
        client.send(Message(message.number, Kind.RESULT, payload))
        if method == "exit":
            return


def _create(seat: WorkerSeat, factory: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return factory(seat, *args)


def describe(error: BaseException, method: str) -> dict[str, Any]:
    """An exception as plain values: what was raised, in which call, where, and whether another rank's end caused it."""
    text = "".join(traceback.format_exception(error))
    if len(text) > MAX_TRACEBACK_CHARS:
        half = MAX_TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
    summary = f"{type(error).__name__}: {error}"
    return {
        "summary": summary[:2000],
        "method": method,
        "traceback": text,
        "is_consequence": isinstance(error, CollectiveError),
    }
