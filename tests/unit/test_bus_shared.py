"""What the processes of a node share, and the hand-over of descriptors between them."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from shardsrv.bus._arena import Region
from shardsrv.bus.handover import DESCRIPTORS_MAX, NOTE_MAX, receive_descriptors, send_descriptors
from shardsrv.bus.shared import Shared
from shardsrv.errors import OurFault


def make_shared(shards: int = 3) -> Shared:
    return Shared.create(shards, lane_bytes=4096, arena_bytes=1 << 20, counter_slots=16)


def test_lanes_between_all_pairs_are_apart() -> None:
    shared = make_shared(4)
    pairs = [(sender, receiver) for sender in range(4) for receiver in range(4) if sender != receiver]
    for sender, receiver in pairs:
        lane = shared.lane(sender, receiver)
        assert lane.push(sender * 4 + receiver, (bytes([sender, receiver]) * 100,))
        assert not lane.deliver(shared.wake(receiver))
    for receiver in range(4):
        heard: list[tuple[int, bytes]] = []
        for lane in shared.lanes_to(receiver):
            lane.drain(lambda kind, payload: heard.append((kind, payload)), 10)  # noqa: B023
        assert heard == [
            (sender * 4 + receiver, bytes([sender, receiver]) * 100) for sender in range(4) if sender != receiver
        ]
    shared.close()


def test_child_shard_answers_over_lane_arena_and_counters() -> None:
    shared = make_shared(2)
    pid = os.fork()
    if pid == 0:
        try:
            arena = shared.arena(1, owner=True)
            buffer = arena.allocate(5000)
            assert buffer is not None
            memoryview(buffer)[:4] = b"bulk"
            shared.counters.write(3, 1, 2, 3, 4, 5, 6)
            shared.lane(1, 0).push(9, (buffer.offset.to_bytes(8, "little"),))
            shared.lane(1, 0).deliver(shared.wake(0))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    places: list[int] = []
    shared.lane(1, 0).drain(lambda kind, payload: places.append(int.from_bytes(payload, "little")), 9)
    assert [bytes(shared.arena(1).view(place, 4)) for place in places] == [b"bulk"]
    assert shared.counters.read(3) == (1, 2, 3, 4, 5, 6)
    shared.close()


def test_arena_view_becomes_an_owner_when_asked() -> None:
    shared = make_shared()
    assert not shared.arena(1).owner
    owned = shared.arena(1, owner=True)
    assert owned.owner and shared.arena(1) is owned
    shared.close()


def test_impossible_shards_and_sizes_are_refused() -> None:
    shared = make_shared()
    for ask in (lambda: shared.lane(0, 3), lambda: shared.lane(1, 1), lambda: shared.wake(-1), lambda: shared.arena(3)):
        with pytest.raises(OurFault):
            ask()
    with pytest.raises(OurFault):
        Shared.create(0, lane_bytes=4096, arena_bytes=4096, counter_slots=1)
    with pytest.raises(OurFault):
        Shared.create(2, lane_bytes=1000, arena_bytes=4096, counter_slots=1).lane(0, 1)
    shared.close()


def test_close_gives_all_descriptors_back_and_is_idempotent() -> None:
    before = set(os.listdir("/proc/self/fd"))
    shared = make_shared()
    shared.arena(0, owner=True).allocate(10)
    shared.close()
    shared.close()
    del shared
    assert set(os.listdir("/proc/self/fd")) == before


def test_socket_and_memory_are_handed_over() -> None:
    shared = make_shared()
    zero, one = shared.handover(1)
    left, right = socket.socketpair()
    region = Region("handed", 4096)
    region.view(0, 6)[:] = b"shared"
    assert receive_descriptors(one) is None
    assert send_descriptors(zero, b"session", [right.fileno(), region.fd])
    assert send_descriptors(zero, b"second")
    right.close()
    received = receive_descriptors(one)
    assert received is not None
    note, (moved, memory) = received
    assert note == b"session" and os.pread(memory, 6, 0) == b"shared"
    assert not os.get_inheritable(moved)
    with socket.socket(fileno=moved) as again:
        left.sendall(b"hi")
        assert again.recv(2) == b"hi"
    os.close(memory)
    assert receive_descriptors(one) == (b"second", [])
    left.close()
    shared.close()


def test_full_link_sends_nothing_and_the_caller_keeps_it() -> None:
    zero, one = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sent = 0
    while send_descriptors(zero, sent.to_bytes(4, "little") * 500):
        sent += 1
    assert sent > 0
    for number in range(sent):
        assert receive_descriptors(one) == (number.to_bytes(4, "little") * 500, [])
    assert receive_descriptors(one) is None
    zero.close()
    one.close()


def test_handover_outside_its_limits_is_refused() -> None:
    zero, one = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for note, count in ((b"", 0), (b"x" * (NOTE_MAX + 1), 0), (b"x", DESCRIPTORS_MAX + 1)):
        with pytest.raises(OurFault):
            send_descriptors(zero, note, [0] * count)
    zero.send(b"x" * (NOTE_MAX + 1))
    with pytest.raises(OurFault):
        receive_descriptors(one)
    zero.close()
    with pytest.raises(OurFault):
        receive_descriptors(one)
    one.close()


def test_gone_receiver_is_a_fault() -> None:
    zero, one = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.close()
    with pytest.raises(OurFault):
        send_descriptors(zero, b"x")
    zero.close()


def test_descriptors_that_find_no_place_are_a_fault_and_leak_nothing() -> None:
    zero, one = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    send_descriptors(zero, b"x", [0, 0, 0])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[-1] + 2, hard))
        with pytest.raises(OSError):
            while True:
                held.append(os.dup(0))
        os.close(held.pop())
        with pytest.raises(OurFault):
            receive_descriptors(one)
        held.append(os.dup(0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    zero.close()
    one.close()
