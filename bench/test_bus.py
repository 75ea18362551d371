"""Movement: lanes, arena, counters, and the reactor over loopback, each in one process; lanes between two as well.

What the hardware allows: a record of 100 bytes through a lane is two copies and a bytes object, near 150 ns; a round
trip between two sleeping processes is two wake-ups by the kernel, 20 to 50 us; a request through the reactor is three
system calls, near 4 us.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from shardsrv.bus._memory import Arena, Region
from shardsrv.bus._net import Frame, Reactor
from shardsrv.bus.shared import Shared

RECORD = (b"x" * 100,)
BATCH = 64


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared.create(2, lane_bytes=1 << 16, arena_bytes=1 << 28, counter_slots=64)
    yield made
    made.close()


@pytest.mark.benchmark(group="lane")
def test_lane_record_alone(benchmark: BenchmarkFixture, shared: Shared) -> None:
    lane, wake = shared.lane(0, 1), shared.wake(1)
    seen: list[bytes] = []

    def move() -> None:
        seen.clear()
        lane.push(1, RECORD)
        lane.deliver(wake)
        lane.drain(lambda kind, payload: seen.append(payload), 1)

    benchmark(move)
    assert seen == [RECORD[0]]


@pytest.mark.benchmark(group="lane")
def test_lane_batch_of_64(benchmark: BenchmarkFixture, shared: Shared) -> None:
    lane, wake = shared.lane(0, 1), shared.wake(1)
    seen: list[bytes] = []

    def move() -> None:
        seen.clear()
        for _ in range(BATCH):
            lane.push(1, RECORD)
        lane.deliver(wake)
        lane.drain(lambda kind, payload: seen.append(payload), BATCH)

    benchmark(move)
    assert len(seen) == BATCH


@pytest.mark.parametrize("window", [1, 64])
@pytest.mark.benchmark(group="lane between processes")
def test_lane_round_trip(benchmark: BenchmarkFixture, shared: Shared, window: int) -> None:
    """`window` records there and back; both sides sleep when there is nothing, as shards do."""

    def receive(me: int, count: int) -> list[int]:
        lane, wake = shared.lane(1 - me, me), shared.wake(me)
        kinds: list[int] = []
        while len(kinds) < count:
            if not lane.drain(lambda kind, payload: kinds.append(kind), count) and wake.may_sleep([lane]):
                select.select([wake.fd], [], [], 5.0)
                wake.awake()
                if select.select([wake.fd], [], [], 0)[0]:
                    os.eventfd_read(wake.fd)
        return kinds

    def send(me: int, kind: int, count: int) -> None:
        lane = shared.lane(me, 1 - me)
        for _ in range(count):
            assert lane.push(kind, RECORD)
        lane.deliver(shared.wake(1 - me))

    child = os.fork()
    if child == 0:
        code = 1
        try:
            while 2 not in receive(1, window):
                send(1, 1, window)
            code = 0
        finally:
            os._exit(code)

    def round_trip() -> list[int]:
        send(0, 1, window)
        return receive(0, window)

    assert len(benchmark.pedantic(round_trip, rounds=300, warmup_rounds=10)) == window
    send(0, 2, window)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("size", [400, 20_000, 1_064_000])
@pytest.mark.benchmark(group="arena")
def test_arena_allocate_and_free(benchmark: BenchmarkFixture, size: int) -> None:
    arena = Arena(Region("bench", 1 << 28), owner=True)
    held = [arena.allocate(size) for _ in range(8)]

    def turn() -> None:
        buffer = arena.allocate(size)
        assert buffer is not None

    benchmark(turn)
    assert arena.in_use == sum(buffer.capacity for buffer in held if buffer is not None)


@pytest.mark.benchmark(group="counters")
def test_counters_write_and_read(benchmark: BenchmarkFixture, shared: Shared) -> None:
    counters = shared.counters

    def turn() -> tuple[int, ...]:
        counters.write(5, 1, 2, 3, 4, 5, 6)
        return counters.read(5)

    assert benchmark(turn) == (1, 2, 3, 4, 5, 6)


class Echo:
    """Answers each frame with its own bytes."""

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor

    def on_frame(self, frame: Frame) -> None:
        self.reactor.reply(frame.connection, (frame.header, frame.body))

    def on_close(self, connection: int, reason: int) -> None: ...

    def on_wake(self, key: int) -> None: ...


@pytest.mark.parametrize("body", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("connections", [1, 16])
@pytest.mark.benchmark(group="reactor")
def test_reactor_echo(benchmark: BenchmarkFixture, connections: int, body: int) -> None:
    """One request on each connection: send, receive, callback, reply, receive. The calls of the client are included."""
    reactor = Reactor(
        Arena(Region("bench", 1 << 28), owner=True),
        frame_size_max=1 << 24,
        connections_max=connections,
        unauthenticated_bytes_max=1 << 24,
        ingress_bytes_max=1 << 26,
    )
    header = bytearray(256)
    struct.pack_into("<I", header, 48, 256 + body)
    header[60] = 5
    frame = bytes(header) + bytes(body)
    clients = []
    with socket.create_server(("127.0.0.1", 0), backlog=connections) as listener:
        for _ in range(connections):
            clients.append(socket.create_connection(listener.getsockname()))
            reactor.adopt(listener.accept()[0].detach())
    for client in clients:
        client.setblocking(False)
    handler = Echo(reactor)
    received = bytearray(len(frame))

    def turn() -> int:
        left: dict[socket.socket, list[Any]] = {client: [memoryview(frame), len(frame)] for client in clients}
        while left:
            for client, state in list(left.items()):
                unsent = state[0]
                if unsent:
                    try:
                        state[0] = unsent[client.send(unsent) :]
                    except BlockingIOError:
                        pass
            reactor.poll(0, handler)
            reactor.flush()
            for client, state in list(left.items()):
                try:
                    rest = memoryview(received)[len(frame) - state[1] :]
                    state[1] -= client.recv_into(rest)
                except BlockingIOError:
                    continue
                if state[1] == 0:
                    del left[client]
        return len(left)

    assert benchmark.pedantic(turn, rounds=200 if body < 100_000 else 20, warmup_rounds=2) == 0
    assert bytes(received) == frame and reactor.frames_received >= connections
    reactor.shutdown()
    for client in clients:
        client.close()
