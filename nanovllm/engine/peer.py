"""The pipe between rank 0 and a worker, which carries one-byte events and says when the other side is gone."""

import time
from multiprocessing.connection import Connection, wait

from nanovllm.errors import NanoVLLMError

CHUNK, TAKEN = b"c", b"t"  # the events: a chunk is there; I took it, write the next


class PeerGoneError(NanoVLLMError):
    """The process at the other end of the channel is gone. `rank`: which one."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} is gone")
        self.rank = rank


class OverdueError(NanoVLLMError):
    """A rank did not answer before the deadline. `rank`: which one."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} did not answer in time")
        self.rank = rank


class Peer:
    """The pipe to another rank, with waits that end when that rank is gone or overdue."""

    def __init__(self, rank: int, events: Connection) -> None:
        self.rank = rank
        self.events = events

    def signal(self, event: bytes) -> None:
        """Tell the peer. Raises PeerGoneError."""
        try:
            self.events.send_bytes(event)
        except OSError:
            raise PeerGoneError(self.rank) from None

    def expect(self, event: bytes, deadline: float | None) -> None:
        """Wait for `event` until `deadline`, s of time.monotonic(). Raises PeerGoneError or OverdueError."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not wait([self.events], left):
            raise OverdueError(self.rank)
        try:
            received = self.events.recv_bytes()
        except (EOFError, OSError):
            raise PeerGoneError(self.rank) from None
        if received != event:
            raise NanoVLLMError(f"the control channel lost step: rank {self.rank} sent {received!r}, not {event!r}")
