"""The collectives of several ranks: gloo between CPUs, NCCL between GPUs, in a process group that is this engine's own.

torch's default process group is one a process, found through global state and a well-known port. Two engines in one
process need two groups, so the group is built from its parts here: a key-value store on a port that the system chose,
open to this machine only, and a backend object that is called directly.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from nanovllm.errors import CollectiveError
from nanovllm.qwen3.parallel import CollectiveRecord, TensorParallelGroup

LOOPBACK = "127.0.0.1"
# Whoever waits in a collective is freed by its supervisor, which knows the deadline; torch's own limits stay away.
NO_LIMIT = timedelta(days=1)
# By default torch ends the whole process when a NCCL peer is lost; here that process may be somebody's notebook.
# NCCL's monitoring service (RAS) would listen on a fixed port for as long as the process lives.
NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "NCCL_RAS_ENABLE": "0",
}
ABORT_SECONDS = 10.0  # for NCCL to end its threads once the captured graphs are gone


class Seat(Protocol):
    """A rank's place, and who is told when it goes into a collective and comes out (signs of progress)."""

    rank: int
    size: int

    def enter_collective(self) -> None:
        """Called before each collective."""
        ...

    def leave_collective(self) -> None:
        """Called after each collective."""
        ...


class CollectiveRecorder:
    """Notes each collective of the newest step. A replayed CUDA graph runs its own unseen: record with enforce_eager.

    `records` waits for the device where times are measured there.
    """

    def __init__(self) -> None:
        self._items: list[tuple[CollectiveRecord, tuple[Any, Any] | None]] = []

    def start_step(self) -> None:
        """Forget the step before."""
        self._items = []

    @property
    def records(self) -> list[CollectiveRecord]:
        """The collectives in the order in which they ran."""
        return [r if events is None else _with_time(r, events) for r, events in self._items]

    @contextmanager
    def note(self, kind: str, x: Tensor, where: str) -> Iterator[None]:
        """Measure what runs inside: host time on a CPU, where a collective blocks, CUDA events on a GPU."""
        on_gpu = x.device.type == "cuda"
        shape, dtype, num_bytes = tuple(x.shape), str(x.dtype).removeprefix("torch."), x.numel() * x.element_size()
        if on_gpu and torch.cuda.is_current_stream_capturing():
            yield
            self._items.append((CollectiveRecord(kind, where, shape, dtype, num_bytes, None), None))
            return
        events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) if on_gpu else None
        began = time.perf_counter()
        if events is not None:
            events[0].record()
        yield
        if events is not None:
            events[1].record()
        record = CollectiveRecord(kind, where, shape, dtype, num_bytes, time.perf_counter() - began)
        self._items.append((record, events))


def _with_time(record: CollectiveRecord, events: tuple[Any, Any]) -> CollectiveRecord:
    events[1].synchronize()
    seconds = events[0].elapsed_time(events[1]) / 1000
    return CollectiveRecord(record.kind, record.where, record.shape, record.dtype, record.num_bytes, seconds)


class DistributedGroup(TensorParallelGroup):
    """The group of one rank among several. `connect` must have run on every rank before the first collective.

    recorder: None (off, and free) or a `CollectiveRecorder`.
    """

    def __init__(self, seat: Seat, device: torch.device, connect_timeout: float) -> None:
        super().__init__(seat.rank, seat.size)
        self.recorder: CollectiveRecorder | None = None
        self.device = device
        self._seat = seat
        self._timeout = timedelta(seconds=connect_timeout)
        self._store: Any = None
        self._backend: Any = None
        self._abort_lock = threading.Lock()
        self._aborting: threading.Thread | None = None
        self._reduce_options: Any = None
        self._gather_options: Any = None
        self._broadcast_options: Any = None

    # --- coming and going -------------------------------------------------------------------------------------------

    def open_store(self) -> int:
        """On rank 0: start the store and return its port. Only this machine can reach it."""
        with socket.create_server((LOOPBACK, 0)) as listener:
            port: int = listener.getsockname()[1]
            fd = listener.detach()
        self._store = dist.TCPStore(LOOPBACK, port, self.size, True, self._timeout, False, master_listen_fd=fd)
        return port

    def connect(self, port: int) -> None:
        """On every rank at the same time: meet the others through rank 0's store, and try one all-reduce."""
        if self.rank == 0:
            self._wait_until_all_are_here()
        else:
            self._store = dist.TCPStore(LOOPBACK, port, self.size, False, self._timeout, False)
            self._store.set(f"here/{self.rank}", "")
        self._reduce_options = _synchronous(dist.AllreduceOptions())
        self._gather_options = _synchronous(dist.GatherOptions())
        self._gather_options.rootRank = 0
        self._broadcast_options = _synchronous(dist.BroadcastOptions())
        self._broadcast_options.rootRank = 0
        make = _nccl if self.device.type == "cuda" else _gloo
        with _environment(NCCL_ENVIRONMENT):  # read by the constructor and by the first collective
            self._backend = make(self._store, self.rank, self.size, self._timeout)
            probe = self.all_reduce(torch.ones(1, device=self.device), "connect")
        if probe.item() != self.size:
            raise CollectiveError(f"{self.size} ranks met and their ones add up to {probe.item()}")

    def _wait_until_all_are_here(self) -> None:
        """Rank 0 waits in a way that `close` can end: making a backend cannot be interrupted once it has begun."""
        keys = [f"here/{rank}" for rank in range(1, self.size)]
        while (store := self._store) is not None:
            if store.check(keys):
                return
            time.sleep(0.005)
        raise CollectiveError("the group was closed before all ranks had come")

    def abort(self) -> None:
        """Break off what is under way on a GPU, from any thread, without waiting for it.

        NCCL frees the kernels that wait for a peer at once, but its call returns only when every captured graph is
        gone; so it runs in a thread of its own, and `close` waits for that one. On a CPU a collective ends when its
        peers' sockets close.
        """
        with self._abort_lock:
            if self._backend is None or self.device.type != "cuda" or self._aborting is not None:
                return
            end = getattr(self._backend, "abort", getattr(self._backend, "_abort", lambda: None))
            self._aborting = threading.Thread(target=end, daemon=True, name="nccl-abort")
            self._aborting.start()

    def close(self) -> None:
        """Leave the group: its threads end and its ports close. Captured graphs must be gone. Harmless twice."""
        self.abort()
        if self._aborting is not None:
            self._aborting.join(ABORT_SECONDS)
        self._backend = self._store = self._aborting = None

    # --- collectives ------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Tensor, where: str) -> Tensor:
        """See the base class. In place."""
        if self.recorder is None:
            return self._all_reduce(x)
        with self.recorder.note("all_reduce", x, where):
            return self._all_reduce(x)

    def gather(self, x: Tensor, where: str) -> list[Tensor] | None:
        """See the base class."""
        if self.recorder is None:
            return self._gather(x)
        with self.recorder.note("gather", x, where):
            return self._gather(x)

    def broadcast(self, x: Tensor, where: str) -> Tensor:
        """See the base class. In place."""
        if self.recorder is None:
            return self._broadcast(x)
        with self.recorder.note("broadcast", x, where):
            return self._broadcast(x)

    def _all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._run("allreduce", [x], self._reduce_options)
        return x

    def _gather(self, x: Tensor) -> list[Tensor] | None:
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        self._run("gather", [] if parts is None else [parts], [x], self._gather_options)
        return parts

    def _broadcast(self, x: Tensor) -> Tensor:
        self._run("broadcast", [x], self._broadcast_options)
        return x

    def _run(self, name: str, *args: Any) -> None:
        """Start a collective and wait for it: the host on a CPU, the current stream on a GPU."""
        if self._backend is None:
            raise CollectiveError(f"rank {self.rank} is not connected to the other {self.size - 1}")
        self._seat.enter_collective()
        work = None
        try:
            work = getattr(self._backend, name)(*args)
            if work is not None:
                work.wait()
        except RuntimeError as e:
            raise CollectiveError(f"{name} of rank {self.rank} broke off: {e}") from e
        finally:
            del work  # a traceback that somebody keeps would keep the sockets open with it
        self._seat.leave_collective()


def _synchronous(options: Any) -> Any:
    """Ask for the current stream itself, where this torch has the choice; it saves two stream waits a collective."""
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    return options


def _gloo(store: Any, rank: int, size: int, connect_timeout: timedelta) -> Any:
    """A gloo backend that talks over the loopback interface only."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = connect_timeout
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._threads = 1  # one collective at a time
    backend = gloo(store, rank, size, options)
    backend._set_default_timeout(NO_LIMIT)
    return backend


def _nccl(store: Any, rank: int, size: int, connect_timeout: timedelta) -> Any:
    """A NCCL backend; its communicator is made by the first collective, on the device of that tensor."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = NO_LIMIT
    return dist.ProcessGroupNCCL(store, rank, size, options)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables that a library reads, and put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
