"""Links between nodes over real sockets: frames both ways at once, bounds, losses."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from shardsrv.bus._arena import Arena, Region
from shardsrv.bus._net import Frame, Reactor
from shardsrv.bus.replica_links import ReplicaLinks

MIB = 1024 * 1024
QUEUE = 8


def frame_of(body: bytes = b"", command: int = 9) -> tuple[bytes, bytes]:
    header = bytearray(256)
    header[48:52] = (256 + len(body)).to_bytes(4, "little")
    header[60] = command
    return bytes(header), body


class Side:
    """One shard's links to node 1 (named), with all that it was told."""

    def __init__(self) -> None:
        self.reactor = Reactor(
            Arena(Region("links", 64 * MIB), owner=True),
            frame_size_max=16 * MIB,
            connections_max=8,
            unauthenticated_bytes_max=64 * 1024,
            ingress_bytes_max=32 * MIB,
            lockstep=False,
        )
        self.links = ReplicaLinks(self.reactor, {1: "node-1", 2: "node-2"}, self, queue_frames=QUEUE)
        self.bodies: list[tuple[int, bytes]] = []
        self.changes: list[tuple[int, bool]] = []

    def on_replica_frame(self, peer: int, frame: Frame) -> None:
        self.bodies.append((peer, bytes(frame.body)))

    def on_link(self, peer: int, up: bool) -> None:
        self.changes.append((peer, up))

    def turn(self) -> None:
        self.links.receive()
        self.links.flush()


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.reactor.shutdown()


def joined(one: Side, other: Side) -> None:
    """A link between two shards, each calling the other node 1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    one.links.adopt(1, dialled.detach())
    other.links.adopt(1, accepted.detach())


def test_frames_come_in_order_many_in_one_turn(side: Side) -> None:
    with contextlib.closing(socketpair(side, 1)) as peer:
        peer.sendall(b"".join(b"".join(frame_of(b"%d" % number)) for number in range(40)))
        assert side.links.receive() == 1
        assert side.bodies == [(1, b"%d" % number) for number in range(40)]


def socketpair(side: Side, peer: int) -> socket.socket:
    ours, theirs = socket.socketpair()
    side.links.adopt(peer, ours.detach())
    theirs.settimeout(5)
    return theirs


def test_two_nodes_that_both_write_more_than_the_network_holds_still_read(side: Side) -> None:
    other = Side()
    try:
        joined(side, other)
        big = bytes(8 * MIB)
        for _ in range(3):
            assert side.links.send(1, frame_of(big)) and other.links.send(1, frame_of(big))
        for _ in range(20_000):
            side.turn()
            other.turn()
            if len(side.bodies) == len(other.bodies) == 3:
                break
        assert [len(body) for _, body in side.bodies + other.bodies] == [len(big)] * 6
    finally:
        other.reactor.shutdown()


def test_what_the_network_does_not_take_is_bounded_and_counted(side: Side) -> None:
    with contextlib.closing(socketpair(side, 1)):
        body = bytes(MIB)
        taken = [side.links.send(1, frame_of(body)) for _ in range(4 * QUEUE)]
        link = side.links.by_peer[1]
        assert taken[:QUEUE] == [True] * QUEUE and not taken[-1]
        assert link.sent == sum(taken) <= QUEUE + 2
        assert link.dropped == len(taken) - link.sent


def test_a_burst_of_small_frames_is_written_rather_than_dropped(side: Side) -> None:
    with contextlib.closing(socketpair(side, 1)) as peer:
        for _ in range(10 * QUEUE):
            assert side.links.send(1, frame_of())
        side.links.flush()
        received = b""
        while len(received) < 10 * QUEUE * 256:
            received += peer.recv(65536)


def test_a_frame_for_a_node_without_a_link_is_dropped(side: Side) -> None:
    assert not side.links.send(2, frame_of())
    assert side.links.by_peer[2].dropped == 1


def test_a_lost_link_is_told_once_and_a_new_one_counts(side: Side) -> None:
    socketpair(side, 1).close()
    side.links.receive()
    side.links.receive()
    assert side.changes == [(1, True), (1, False)] and not side.links.is_up(1)
    with contextlib.closing(socketpair(side, 1)):
        assert side.links.is_up(1) and side.changes[-1] == (1, True)


def test_the_newest_connection_of_a_node_takes_the_place_of_the_older(side: Side) -> None:
    with contextlib.closing(socketpair(side, 1)) as older, contextlib.closing(socketpair(side, 1)) as newer:
        older_end = older.recv(1)
        newer.sendall(b"".join(frame_of(b"new")))
        side.links.receive()
        assert older_end == b"" and side.bodies == [(1, b"new")]
        assert side.changes == [(1, True)]


def test_a_peer_that_sends_no_frames_loses_its_link(side: Side) -> None:
    with contextlib.closing(socketpair(side, 1)) as peer:
        peer.sendall(bytes(300))
        side.links.receive()
        assert side.changes[-1] == (1, False)
