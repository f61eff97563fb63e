"""The channel by itself: both ends in one process, the worker's in a thread."""

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from nanovllm.engine.control_channel import (
    HEADER,
    STATUS,
    ChannelClient,
    ChannelHost,
    Kind,
    Layout,
    Message,
)
from nanovllm.engine.peer import OverdueError, PeerGoneError

SMALL = 64  # bytes of a chunk


@pytest.fixture
def host() -> Iterator[ChannelHost]:
    host = ChannelHost(2, os.getpid(), down_bytes=SMALL)
    yield host
    host.close()


def clients_of(host: ChannelHost) -> list[ChannelClient]:
    clients = [ChannelClient(link) for link in host.links]
    host.unlink()
    return clients


def soon() -> float:
    return time.monotonic() + 5


def in_threads(clients: list[ChannelClient], work: Callable[[ChannelClient], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(c,), daemon=True) for c in clients]
    for t in threads:
        t.start()
    return threads


@pytest.mark.parametrize("num_workers", [1, 3, 7])
def test_the_places_in_the_segment_do_not_overlap(num_workers: int) -> None:
    layout = Layout(num_workers, 100, 50)
    places = [(layout.down, HEADER.size + 100)]
    for rank in range(1, num_workers + 1):
        places += [(layout.status(rank), STATUS.size), (layout.up(rank), HEADER.size + 50)]
    places.sort()
    assert places[0][0] == 0
    for (start, size), (following, _) in pairwise(places):
        assert start + size == following
    assert sum(places[-1]) == layout.total


@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL, 10 * SMALL + 7])
def test_a_message_of_any_size_arrives_whole_at_every_worker(host: ChannelHost, size: int) -> None:
    payload = os.urandom(size)
    got: dict[int, Message] = {}

    def work(client: ChannelClient) -> None:
        got[client.rank] = message = client.receive()
        client.send(Message(message.number, Kind.RESULT, message.payload[::-1] * 2))

    threads = in_threads(clients_of(host), work)
    host.post("echo", payload, soon())
    answers = [host.answer(rank, soon()) for rank in (1, 2)]
    for t in threads:
        t.join(5)
    assert got == {1: (1, Kind.CALL, payload), 2: (1, Kind.CALL, payload)}
    assert [a.payload for a in answers] == [payload[::-1] * 2] * 2
    assert host.traffic.num_chunks == max(1, -(-size // SMALL))
    assert host.traffic.num_bytes == host.traffic.last_bytes == size


def test_a_result_larger_than_its_area_arrives_whole(host: ChannelHost) -> None:
    big = os.urandom(host.layout.up_bytes * 3 + 5)
    threads = in_threads(clients_of(host), lambda c: c.send(Message(0, Kind.RESULT, big + bytes([c.rank]))))
    assert [host.answer(rank, soon()).payload for rank in (1, 2)] == [big + b"\1", big + b"\2"]
    for t in threads:
        t.join(5)


def test_calls_are_numbered_and_arrive_in_order(host: ChannelHost) -> None:
    seen: list[tuple[int, Any]] = []

    def work(client: ChannelClient) -> None:
        for _ in range(20):
            message = client.receive()
            if client.rank == 1:
                seen.append((message.number, pickle.loads(message.payload)))
            client.send(Message(message.number, Kind.RESULT, b""))

    in_threads(clients_of(host), work)
    for i in range(20):
        host.post("count", pickle.dumps("x" * i * 10), soon())
        assert [host.answer(rank, soon()).number for rank in (1, 2)] == [i + 1] * 2
    assert seen == [(i + 1, "x" * i * 10) for i in range(20)]


def test_a_worker_that_is_gone_or_silent_is_named(host: ChannelHost) -> None:
    one, two = clients_of(host)
    with pytest.raises(OverdueError) as overdue:
        host.answer(2, time.monotonic() + 0.05)
    assert overdue.value.rank == 2
    two.host.events.close()
    with pytest.raises(PeerGoneError) as gone:
        host.answer(2, soon())
    assert gone.value.rank == 2
    with pytest.raises(PeerGoneError):
        host.post("x", b"", soon())
    one.host.events.close()


def test_a_worker_notices_that_rank_0_is_gone(host: ChannelHost) -> None:
    client = clients_of(host)[0]
    host.peers[0].events.close()
    with pytest.raises(PeerGoneError):
        client.receive()


def test_signs_of_life(host: ChannelHost) -> None:
    one, two = clients_of(host)
    one.beat()
    two.beat()
    two.beat()
    two.count_collective()
    assert host.status(1) == (1, 0)
    assert host.status(2) == (2, 1)


def test_the_name_goes_as_soon_as_all_have_attached(host: ChannelHost) -> None:
    name = f"/dev/shm/{host.segment.name}"
    assert os.path.exists(name) or not os.path.isdir("/dev/shm")
    clients = clients_of(host)
    assert not os.path.exists(name)
    threads = in_threads(clients, lambda c: c.send(Message(0, Kind.RESULT, b"still here")))
    assert host.answer(1, soon()).payload == b"still here"
    for thread in threads:
        thread.join()


def test_two_channels_share_nothing() -> None:
    first, second = ChannelHost(1, os.getpid()), ChannelHost(1, os.getpid())
    try:
        assert first.segment.name != second.segment.name
    finally:
        first.close()
        second.close()
        second.close()
