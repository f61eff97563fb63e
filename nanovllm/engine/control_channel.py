"""The control channel: how rank 0 tells the other ranks what to do, through one segment of host shared memory.

It carries method names and small Python values, pickled; tensors never pass here (they travel in the collectives of
`qwen3/distributed.py`). The segment of an engine with N ranks, W = N - 1 of them workers:

    status[0] .. status[W-1]    STATUS, one a worker: signs of life, written by the worker only
    down                        AREA, written by rank 0, read by every worker
    up[0] .. up[W-1]            AREA, one a worker, written by the worker, read by rank 0

    STATUS    0  uint64  heartbeat     grows several times a second while the process runs
              8  uint64  collectives   how many collectives the rank has entered
    AREA      0  uint64  number        of the call, from 1; a result carries the number of its call, "attached" is 0
              8  uint64  total         bytes of the whole message
             16  uint64  offset        where this chunk starts in the message
             24  uint32  length        bytes of this chunk
             28  uint32  kind          CALL, RESULT or ERROR
             32  ...     chunk

A message longer than an area travels in chunks. The event that says "a chunk is there" (or "I took it, write the next")
is one byte in a pipe between rank 0 and the worker. A pipe does what an Event does, in less time, leaves no named
semaphore behind, and ends with EOF when the process at its other end is gone. A result acknowledges the last chunk of
its call, and rank 0 sends the next call only when it has every result of the one before.
"""

import os
import secrets
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple

from nanovllm.engine.peer import CHUNK, TAKEN, Peer
from nanovllm.errors import NanoVLLMError

HEADER = struct.Struct("<QQQII")
STATUS = struct.Struct("<QQ")
DOWN_BYTES = 2**20  # of one chunk from rank 0
UP_BYTES = 2**16  # of one chunk from a worker


class Kind(IntEnum):
    """What a message is."""

    CALL = 1
    RESULT = 2
    ERROR = 3


class Message(NamedTuple):
    """One whole message. `payload` is a pickle."""

    number: int
    kind: Kind
    payload: bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies in the segment, in bytes; see the module's head."""

    num_workers: int
    down_bytes: int = DOWN_BYTES
    up_bytes: int = UP_BYTES

    @property
    def down(self) -> int:
        """Start of the area that rank 0 writes."""
        return self.num_workers * STATUS.size

    def status(self, rank: int) -> int:
        """Start of a worker's status."""
        return (rank - 1) * STATUS.size

    def up(self, rank: int) -> int:
        """Start of the area that a worker writes."""
        return self.down + HEADER.size + self.down_bytes + (rank - 1) * (HEADER.size + self.up_bytes)

    @property
    def total(self) -> int:
        """Bytes of the segment."""
        return self.up(self.num_workers + 1)


@dataclass(slots=True)
class WorkerLink:
    """A worker's end of the channel as it is handed over when the process is spawned."""

    rank: int
    segment: str
    layout: Layout
    events: Connection
    parent_pid: int


@dataclass(slots=True)
class Traffic:
    """What rank 0 has sent: counts, and bytes of pickled payload."""

    num_messages: int = 0
    num_chunks: int = 0
    num_bytes: int = 0
    last_bytes: int = 0
    by_method: dict[str, int] = field(default_factory=dict)  # bytes


class Area:
    """One place in the segment that holds a header and a chunk; one side writes it, the other reads."""

    def __init__(self, memory: memoryview, offset: int, capacity: int) -> None:
        self.memory = memory
        self.offset = offset
        self.capacity = capacity

    def write(self, message: Message, peers: list[Peer], deadline: float | None) -> int:
        """Pass a message on, chunk by chunk; each but the last is acknowledged here. Returns the number of chunks."""
        body, total = memoryview(message.payload), len(message.payload)
        starts = range(0, max(total, 1), self.capacity)
        for start in starts:
            chunk = body[start : start + self.capacity]
            first = self.offset + HEADER.size
            HEADER.pack_into(self.memory, self.offset, message.number, total, start, len(chunk), message.kind)
            self.memory[first : first + len(chunk)] = chunk
            for peer in peers:
                peer.signal(CHUNK)
            if start != starts[-1]:
                for peer in peers:
                    peer.expect(TAKEN, deadline)
        return len(starts)

    def read(self, peer: Peer, deadline: float | None) -> Message:
        """The next whole message, waiting for it. Raises PeerGoneError or OverdueError."""
        body = bytearray()
        while True:
            peer.expect(CHUNK, deadline)
            number, total, start, length, kind = HEADER.unpack_from(self.memory, self.offset)
            if start != len(body):
                raise NanoVLLMError(f"the control channel lost step: a chunk starts at {start}, not {len(body)}")
            first = self.offset + HEADER.size
            body += self.memory[first : first + length]
            if len(body) == total:
                return Message(number, Kind(kind), bytes(body))
            peer.signal(TAKEN)


def unique_name() -> str:
    """A name for a segment that nobody else has and that tells whose it is; at most 30 characters, as macOS asks."""
    return f"nanovllm-{os.getpid()}-{secrets.token_hex(4)}"


def memory_of(segment: SharedMemory) -> memoryview:
    """The bytes of an attached segment."""
    assert segment.buf is not None
    return segment.buf


class ChannelHost:
    """Rank 0's end. The segment's name lives only until every worker has attached; see `unlink`."""

    def __init__(self, num_workers: int, parent_pid: int, down_bytes: int = DOWN_BYTES) -> None:
        self.layout = Layout(num_workers, down_bytes)
        self.segment = SharedMemory(unique_name(), create=True, size=self.layout.total)
        self._memory = memory_of(self.segment)
        self.down = Area(self._memory, self.layout.down, down_bytes)
        self.ups = [Area(self._memory, self.layout.up(r), self.layout.up_bytes) for r in range(1, num_workers + 1)]
        self.peers: list[Peer] = []
        self.links: list[WorkerLink] = []
        self.traffic = Traffic()
        self._number = 0
        self._is_linked = True
        for rank in range(1, num_workers + 1):
            ours, theirs = Pipe()
            self.peers.append(Peer(rank, ours))
            self.links.append(WorkerLink(rank, self.segment.name, self.layout, theirs, parent_pid))

    def release_links(self) -> None:
        """Close the workers' ends in this process, so that only the workers hold them open."""
        for link in self.links:
            link.events.close()

    def unlink(self) -> None:
        """Take the segment's name away; those who attached keep the memory until they end, however they end."""
        if self._is_linked:
            self._is_linked = False
            self.segment.unlink()

    def post(self, method: str, payload: bytes, deadline: float | None) -> None:
        """Send a call, a pickled (method, arguments), to every worker. Raises PeerGoneError or OverdueError."""
        self._number += 1
        chunks = self.down.write(Message(self._number, Kind.CALL, payload), self.peers, deadline)
        self.traffic.num_messages += 1
        self.traffic.num_chunks += chunks
        self.traffic.num_bytes += len(payload)
        self.traffic.last_bytes = len(payload)
        self.traffic.by_method[method] = self.traffic.by_method.get(method, 0) + len(payload)

    def answer(self, rank: int, deadline: float | None) -> Message:
        """What worker `rank` answered to the newest call, waiting for it. Raises PeerGoneError or OverdueError."""
        return self.ups[rank - 1].read(self.peers[rank - 1], deadline)

    def status(self, rank: int) -> tuple[int, int]:
        """(heartbeat, collectives entered) of a worker."""
        heartbeat, collectives = STATUS.unpack_from(self._memory, self.layout.status(rank))
        return heartbeat, collectives

    def close(self) -> None:
        """Let go of everything. Doing it twice is harmless."""
        for peer in self.peers:
            peer.events.close()
        self.release_links()
        self.unlink()
        self.segment.close()


class ChannelClient:
    """A worker's end."""

    def __init__(self, link: WorkerLink) -> None:
        self.rank = link.rank
        self.segment = SharedMemory(link.segment)
        self._memory = memory_of(self.segment)
        self.host = Peer(0, link.events)
        self.down = Area(self._memory, link.layout.down, link.layout.down_bytes)
        self.up = Area(self._memory, link.layout.up(link.rank), link.layout.up_bytes)
        self._status = link.layout.status(link.rank)
        self._heartbeat = 0
        self._collectives = 0

    def receive(self) -> Message:
        """The next call, waiting for it as long as rank 0 lives. Raises PeerGoneError."""
        return self.down.read(self.host, None)

    def send(self, message: Message) -> None:
        """Answer a call. Raises PeerGoneError."""
        self.up.write(message, [self.host], None)

    def beat(self) -> None:
        """Show that the process runs."""
        self._heartbeat += 1
        struct.pack_into("<Q", self._memory, self._status, self._heartbeat)

    def count_collective(self) -> None:
        """Show how far the rank has come."""
        self._collectives += 1
        struct.pack_into("<Q", self._memory, self._status + 8, self._collectives)
