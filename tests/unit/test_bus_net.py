"""The reactor against real sockets: whole frames and pieces, pressure, endings, garbage."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from shardsrv._core import BatchRefused, pack_reply, parse_send
from shardsrv.bus._arena import Arena, Region
from shardsrv.bus._net import (
    CLOSED_BAD_COMMAND,
    CLOSED_BAD_SIZE,
    CLOSED_BY_PEER,
    CLOSED_BY_RESET,
    CLOSED_BY_US,
    CLOSED_OVER_BUDGET,
    Frame,
    Reactor,
)
from shardsrv.errors import ConfigurationError, NotAccepted, OurFault
from shardsrv.wire.messages import SendMessages
from shardsrv.wire.primitives import Partitioning
from tests.support.batches import encode_batch

KIB = 1024
MIB = 1024 * 1024
CLIENT = bytes(range(16))
Pair = Callable[[], tuple[socket.socket, socket.socket]]
"""Makes (client, server)."""


def request(body: bytes = b"", *, number: int = 1, command: int = 5, size: int | None = None) -> bytes:
    header = bytearray(256)
    struct.pack_into("<I", header, 48, 256 + len(body) if size is None else size)
    header[60] = command
    header[128:144] = CLIENT
    struct.pack_into("<QQ", header, 144, 0x1122334455667788, 3)
    struct.pack_into("<QQ", header, 160, 77, number)
    header[176] = 2
    struct.pack_into("<QII", header, 184, 99, 0, 302)
    return bytes(header) + body


class Recorder:
    """Keeps what it is told; answers each frame through ``answer`` where there is one."""

    def __init__(self, answer: Callable[[Frame], object] | None = None, *, keep: bool = True) -> None:
        self.answer = answer
        self.keep = keep
        self.frames: list[Frame] = []
        self.count = 0
        self.closes: list[tuple[int, int]] = []
        self.wakes: list[int] = []

    def on_frame(self, frame: Frame) -> None:
        self.count += 1
        if self.keep:
            self.frames.append(frame)
        if self.answer is not None:
            self.answer(frame)

    def on_close(self, connection: int, reason: int) -> None:
        self.closes.append((connection, reason))

    def on_wake(self, key: int) -> None:
        self.wakes.append(key)


def make_reactor(
    *,
    arena_bytes: int = 16 * MIB,
    frame_size_max: int = 4 * MIB,
    connections_max: int = 64,
    unauthenticated_bytes_max: int = 4 * MIB,
    ingress_bytes_max: int = 8 * MIB,
) -> Reactor:
    return Reactor(
        Arena(Region("arena", arena_bytes), owner=True),
        frame_size_max=frame_size_max,
        connections_max=connections_max,
        unauthenticated_bytes_max=unauthenticated_bytes_max,
        ingress_bytes_max=ingress_bytes_max,
    )


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    made = make_reactor()
    yield made
    made.shutdown()


@contextlib.contextmanager
def closing(reactor: Reactor) -> Iterator[Reactor]:
    try:
        yield reactor
    finally:
        reactor.shutdown()


def loopback() -> tuple[socket.socket, socket.socket]:
    """(client, server) over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.settimeout(5)
    return client, server


def unix() -> tuple[socket.socket, socket.socket]:
    client, server = socket.socketpair()
    client.settimeout(5)
    return client, server


KINDS = [pytest.param(loopback, id="tcp"), pytest.param(unix, id="unix")]


def connect(reactor: Reactor, kind: Pair = loopback) -> tuple[socket.socket, int]:
    client, server = kind()
    return client, reactor.adopt(server.detach())


def drive(reactor: Reactor, handler: Recorder, until: Callable[[], object], seconds: float = 5.0) -> None:
    """Poll and flush until a condition holds; fails past the deadline."""
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "the reactor never got there"
        reactor.poll(2000, handler)
        reactor.flush()
    reactor.flush()


def settle(reactor: Reactor, handler: Recorder) -> None:
    """Poll until nothing is left to do for 5 ms."""
    while reactor.poll(5000, handler) or reactor.has_backlog():
        reactor.flush()


def read_exactly(client: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = client.recv(count - len(data))
        assert piece, "the connection ended"
        data += piece
    return bytes(data)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


# --- whole frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_frame_fields_are_those_of_the_header(reactor: Reactor, kind: Pair) -> None:
    client, connection = connect(reactor, kind)
    handler = Recorder()
    sent = request(b"hello world", number=12)
    client.sendall(sent)
    drive(reactor, handler, lambda: handler.frames)
    (frame,) = handler.frames
    assert frame.connection == connection
    assert (frame.command, frame.operation, frame.code, frame.request, frame.session) == (5, 2, 302, 12, 99)
    assert (frame.client, frame.timestamp, frame.size) == (CLIENT, 77, 267)
    assert (frame.request_checksum, frame.request_checksum_high) == (0x1122334455667788, 3)
    assert bytes(frame.header) == sent[:256] and frame.header.readonly
    assert bytes(frame.body) == b"hello world" and not frame.body.readonly
    assert bytes(reactor.arena.view(frame.body_offset, 5)) == b"hello"
    assert "request=12" in repr(frame)
    client.close()


def test_frame_body_is_written_where_it_lies(reactor: Reactor) -> None:
    client, _ = connect(reactor)
    handler = Recorder()
    client.sendall(request(b"01234567"))
    drive(reactor, handler, lambda: handler.frames)
    frame = handler.frames[0]
    frame.body[2:4] = b"xy"
    assert bytes(frame.body) == b"01xy4567"
    with pytest.raises(TypeError):
        frame.header[0] = 1
    client.close()


def test_frame_body_from_an_offset_on(reactor: Reactor) -> None:
    client, _ = connect(reactor)
    handler = Recorder()
    client.sendall(request(b"01234567"))
    drive(reactor, handler, lambda: handler.frames)
    frame = handler.frames[0]
    rest = frame.body_from(3)
    assert bytes(rest) == b"34567" and bytes(frame.body_from(8)) == b""
    rest[0] = 120
    assert bytes(frame.body) == b"012x4567"
    with pytest.raises(ValueError, match="offset 9"):
        frame.body_from(9)
    client.close()


def test_frame_finds_the_batch_of_a_send_in_its_body(reactor: Reactor) -> None:
    client, _ = connect(reactor)
    handler = Recorder()
    body = SendMessages(1, 2, Partitioning.to_partition(3), 2, bytes(encode_batch([b"a", b"bc"]))).encode()
    client.sendall(request(body))
    drive(reactor, handler, lambda: handler.frames)
    found, expected = handler.frames[0].parse_send(), parse_send(body)
    assert (found.key, found.batch_offset, found.digest) == (expected.key, expected.batch_offset, expected.digest)
    assert (found.batch_length, found.message_count) == (expected.batch_length, 2)
    handler.frames[0].body[-1] ^= 1
    with pytest.raises(BatchRefused):
        handler.frames[0].parse_send()
    client.close()


def test_frame_answers_with_what_it_asked(reactor: Reactor) -> None:
    client, _ = connect(reactor)
    handler = Recorder()
    client.sendall(request(number=12))
    drive(reactor, handler, lambda: handler.frames)
    (frame,) = handler.frames
    cluster, own = bytes(range(200, 216)), b"\xee" * 16
    header = pack_reply(
        frame.header,
        status=0,
        body_length=2,
        op=8,
        commit=8,
        timestamp=9,
        operation=160,
        cluster=cluster,
        client=own,
    )
    assert frame.committed_reply(8, 9, 160, cluster, own, b"ok") == header + b"ok"
    for wrong in ((b"short", own), (cluster, b"short")):
        with pytest.raises(ValueError, match="16 bytes"):
            frame.committed_reply(8, 9, 160, *wrong, b"ok")
    client.close()


def test_frame_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError):
        Frame()


def test_reply_reaches_the_client_after_flush_only(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request())
    drive(reactor, handler, lambda: handler.frames)
    header = handler.frames[0].header
    assert reactor.reply(connection, [b"he", bytearray(b"ad"), memoryview(b"-body-")[1:5], b"", header])
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    assert reactor.flush() == 8 + 256
    client.settimeout(5)
    assert read_exactly(client, 264) == b"headbody" + bytes(handler.frames[0].header)
    assert reactor.bytes_sent == 264 and reactor.bytes_received == 256 and reactor.frames_received == 1
    client.close()


def test_reply_with_a_bad_part_queues_nothing(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request())
    drive(reactor, handler, lambda: handler.frames)
    with pytest.raises(TypeError):
        reactor.reply(connection, [b"half", 7])  # type: ignore[list-item]
    with pytest.raises(OurFault):
        reactor.reply(connection, [b"half", memoryview(b"abcd")[::2]])
    assert reactor.reply_one(connection, b"whole")
    reactor.flush()
    assert read_exactly(client, 5) == b"whole"
    client.close()


def test_reply_of_more_parts_than_one_vector_takes(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder(lambda frame: reactor.reply(frame.connection, [bytes([n & 255]) * 3 for n in range(3000)]))
    client.sendall(request())
    drive(reactor, handler, lambda: reactor.bytes_sent == 9000)
    assert read_exactly(client, 9000) == b"".join(bytes([n & 255]) * 3 for n in range(3000))
    assert reactor.reply_one(connection, b"next")
    reactor.flush()
    assert read_exactly(client, 4) == b"next"
    client.close()


# --- pieces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_frame_byte_at_a_time(reactor: Reactor, kind: Pair) -> None:
    client, _ = connect(reactor, kind)
    handler = Recorder(lambda frame: reactor.reply_one(frame.connection, b"k"))
    sent = [request(b"a" * 44, number=1), request(b"b" * 300, number=2)]
    for byte in b"".join(sent):
        client.sendall(bytes([byte]))
        reactor.poll(0, handler)
    drive(reactor, handler, lambda: handler.count == 2)
    assert [bytes(frame.header) + bytes(frame.body) for frame in handler.frames] == sent
    client.close()


def test_large_frame_in_random_pieces_lies_aligned_in_a_buffer_of_its_own(reactor: Reactor) -> None:
    draw = random.Random(5)
    client, _ = connect(reactor)
    handler = Recorder(lambda frame: reactor.reply_one(frame.connection, b"k"))
    for number in range(4):
        body = draw.randbytes(draw.choice([1, 70_000, 300_000, 3_000_000]))
        data = request(body, number=number)
        position = 0
        while position < len(data):
            piece = draw.choice([1, 100, 256, 5000, 200_000])
            client.sendall(data[position : position + piece])
            position += piece
            reactor.poll(0, handler)
        drive(reactor, handler, lambda: handler.count > number)  # noqa: B023
        frame = handler.frames.pop()
        assert frame.request == number and bytes(frame.body) == body
        assert frame.body_offset % 8 == 0
        del frame
        assert read_exactly(client, 1) == b"k"
    settle(reactor, handler)
    assert reactor.ingress_bytes == 0
    client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_thousand_pipelined_frames_come_one_by_one_in_order(reactor: Reactor, kind: Pair) -> None:
    client, _ = connect(reactor, kind)
    seen: list[int] = []

    def answer(frame: Frame) -> None:
        seen.append(frame.request)
        assert bytes(frame.body) == b"%d" % frame.request * 20
        reactor.reply_one(frame.connection, b"%04d" % frame.request)

    handler = Recorder(answer, keep=False)
    client.setblocking(False)
    data = b"".join(request(b"%d" % number * 20, number=number) for number in range(1000))
    replies = bytearray()
    deadline = time.monotonic() + 5
    while len(replies) < 4000 and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            data = data[client.send(data) :] if data else data
        reactor.poll(0, handler)
        reactor.flush()
        with contextlib.suppress(BlockingIOError):
            replies += client.recv(4000)
    assert seen == list(range(1000))
    assert replies == b"".join(b"%04d" % number for number in range(1000))
    settle(reactor, handler)
    assert reactor.ingress_bytes == 0
    client.close()


def test_next_frame_waits_for_the_answer_to_the_one_before(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request(number=1) + request(number=2) + request(number=3))
    settle(reactor, handler)
    assert [frame.request for frame in handler.frames] == [1] and not reactor.has_backlog()
    reactor.reply_one(connection, b"1")
    assert reactor.has_backlog()
    reactor.poll(0, handler)
    settle(reactor, handler)
    assert [frame.request for frame in handler.frames] == [1, 2]
    reactor.resume(connection)
    settle(reactor, handler)
    assert [frame.request for frame in handler.frames] == [1, 2, 3]
    client.close()


def test_frame_sent_while_the_one_before_waits_comes_without_a_further_event(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request(number=1))
    drive(reactor, handler, lambda: handler.count == 1)
    client.sendall(request(number=2))
    settle(reactor, handler)
    assert handler.count == 1
    reactor.reply_one(connection, b"1")
    drive(reactor, handler, lambda: handler.count == 2)
    client.close()


def test_idle_connection_holds_no_buffer(reactor: Reactor) -> None:
    handler = Recorder(lambda frame: reactor.reply_one(frame.connection, b"k"), keep=False)
    clients = [connect(reactor)[0] for _ in range(20)]
    for client in clients:
        client.sendall(request(b"x" * 5000) + request(b"y")[:100])
    drive(reactor, handler, lambda: handler.count == 20)
    settle(reactor, handler)
    assert reactor.ingress_bytes == 0
    # One turn chunk for all of them.
    assert reactor.arena.in_use == 256 * KIB
    for client in clients:
        client.close()


# --- refused input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [61, 256, 400])
@pytest.mark.parametrize(
    ("size", "command", "reason"),
    [
        (0, 5, CLOSED_BAD_SIZE),
        (255, 5, CLOSED_BAD_SIZE),
        (4 * MIB + 1, 5, CLOSED_BAD_SIZE),
        (2**32 - 1, 5, CLOSED_BAD_SIZE),
        (256, 30, CLOSED_BAD_COMMAND),
        (4 * MIB, 255, CLOSED_BAD_COMMAND),
    ],
)
def test_bad_header_ends_the_connection_without_a_reply(
    reactor: Reactor, size: int, command: int, reason: int, prefix: int
) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request(b"z" * 200, size=size, command=command)[:prefix])
    drive(reactor, handler, lambda: handler.closes)
    assert handler.closes == [(connection, reason)] and handler.count == 0
    assert is_closed(client) and reactor.connections == 0
    client.close()


def test_frame_before_a_bad_one_is_served(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder(lambda frame: reactor.reply_one(frame.connection, b"ok"))
    client.sendall(request() + b"\0" * 256)
    drive(reactor, handler, lambda: handler.closes)
    assert handler.count == 1 and handler.closes == [(connection, CLOSED_BAD_SIZE)]
    client.close()


def test_large_frame_before_login_ends_the_connection_and_after_login_does_not() -> None:
    with closing(make_reactor(unauthenticated_bytes_max=64 * KIB)) as reactor:
        handler = Recorder(lambda frame: reactor.reply_one(frame.connection, b"k"), keep=False)
        for authenticated in (False, True):
            client, connection = connect(reactor)
            reactor.set_authenticated(connection, authenticated)
            client.sendall(request(b"x" * (64 * KIB - 256)))
            drive(reactor, handler, lambda: handler.count % 2 == 1)
            assert read_exactly(client, 1) == b"k"
            with contextlib.suppress(ConnectionError):
                client.sendall(request(b"x" * (64 * KIB - 255)))
            if authenticated:
                drive(reactor, handler, lambda: handler.count == 3)
            else:
                drive(reactor, handler, lambda: handler.closes)
                assert handler.closes == [(connection, CLOSED_OVER_BUDGET)]
                handler.count = 2
            client.close()


@pytest.mark.parametrize("length", [1, 255, 256, 300])
def test_end_in_the_middle_of_a_frame_closes(reactor: Reactor, length: int) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request(b"b" * 100)[:length])
    settle(reactor, handler)
    client.close()
    drive(reactor, handler, lambda: handler.closes)
    assert handler.closes == [(connection, CLOSED_BY_PEER)] and handler.count == 0
    assert reactor.ingress_bytes == 0


def test_random_bytes_never_harm_the_reactor() -> None:
    draw = random.Random(11)
    with closing(make_reactor(frame_size_max=2000, ingress_bytes_max=100_000)) as reactor:
        handler = Recorder(lambda frame: reactor.reply_one(frame.connection, bytes(frame.body)), keep=False)
        for _ in range(150):
            client, _connection = connect(reactor, unix)
            data = bytearray()
            for _ in range(draw.randrange(1, 6)):
                frame = bytearray(request(draw.randbytes(draw.randrange(1500))))
                if draw.random() < 0.5:
                    for _ in range(draw.randrange(1, 8)):
                        frame[draw.choice([draw.randrange(len(frame)), 48, 49, 50, 51, 60])] = draw.randrange(256)
                data += frame if draw.random() < 0.8 else draw.randbytes(draw.randrange(700))
            position = 0
            with contextlib.suppress(ConnectionError):
                while position < len(data):
                    piece = draw.randrange(1, 900)
                    client.sendall(data[position : position + piece])
                    position += piece
                    if draw.random() < 0.5:
                        reactor.poll(0, handler)
                        reactor.flush()
            client.close()
            settle(reactor, handler)
        assert handler.count > 60 and len(handler.closes) == 150
        ends = {CLOSED_BY_PEER, CLOSED_BY_RESET}
        assert {reason for _, reason in handler.closes} - ends == {CLOSED_BAD_SIZE, CLOSED_BAD_COMMAND}
        assert reactor.connections == 0 and reactor.ingress_bytes == 0


# --- pressure ---------------------------------------------------------------------------------------------------------


def test_slow_reader_gets_a_large_reply_whole_and_its_next_frame_waits(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    reply = os.urandom(1 * MIB) * 24
    handler = Recorder(keep=False)
    client.sendall(request(number=1) + request(number=2))
    drive(reactor, handler, lambda: handler.count == 1)
    reactor.reply(connection, [reply[:100], memoryview(reply)[100:]])
    taken = reactor.flush()
    assert 0 < taken < len(reply)
    settle(reactor, handler)
    assert handler.count == 1
    received = bytearray()
    deadline = time.monotonic() + 5
    while len(received) < len(reply) and time.monotonic() < deadline:
        received += client.recv(1 * MIB)
        reactor.poll(0, handler)
        reactor.flush()
    assert received == reply
    drive(reactor, handler, lambda: handler.count == 2)
    client.close()


def test_references_of_a_reply_go_when_it_is_written(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder(keep=False)
    client.sendall(request())
    drive(reactor, handler, lambda: handler.count)
    part = bytearray(b"part")
    reactor.reply(connection, [part])
    with pytest.raises(BufferError):
        part.append(1)
    reactor.flush()
    part.append(1)
    client.close()


def test_full_ingress_budget_parks_and_recovers_when_frames_are_dropped() -> None:
    with closing(make_reactor(frame_size_max=MIB, ingress_bytes_max=2 * MIB)) as reactor:
        handler = Recorder()
        pairs = [connect(reactor) for _ in range(5)]
        for client, _ in pairs:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MIB)
            client.setblocking(False)
        pending = {client: request(bytes([number]) * (900 * KIB)) for number, (client, _) in enumerate(pairs)}
        order: list[int] = []

        def push() -> None:
            for client, data in pending.items():
                with contextlib.suppress(BlockingIOError):
                    pending[client] = data[client.send(data) :] if data else data
            reactor.poll(1000, handler)

        deadline = time.monotonic() + 5
        while reactor.parkings < 3 and time.monotonic() < deadline:
            push()
        for _ in range(20):
            push()
        # Two large frames fit; the rest waits in the sockets (the first bytes of each in the turn chunk).
        assert len(handler.frames) == 2 and reactor.parkings >= 3
        assert reactor.ingress_bytes <= 2 * MIB + 3 * 64 * KIB
        while len(order) < 5 and time.monotonic() < deadline:
            while handler.frames:
                frame = handler.frames.pop()
                assert bytes(frame.body) == frame.body[:1].tobytes() * (900 * KIB)
                order.append(frame.body[0])
                reactor.resume(frame.connection)
                del frame
            push()
        assert sorted(order) == [0, 1, 2, 3, 4]
        assert reactor.ingress_bytes == 0
        for client, _ in pairs:
            client.close()


def test_full_arena_parks_and_recovers_when_a_buffer_is_freed() -> None:
    with closing(make_reactor(arena_bytes=2 * MIB, frame_size_max=MIB, ingress_bytes_max=MIB)) as reactor:
        handler = Recorder(keep=False)
        client, _ = connect(reactor)
        blockers = []
        while (block := reactor.arena.allocate(4096)) is not None:
            blockers.append(block)
        del block
        client.sendall(request(b"x" * 1000))
        settle(reactor, handler)
        assert handler.count == 0 and reactor.parkings == 1 and not reactor.has_backlog()
        blockers.clear()
        assert reactor.has_backlog()
        drive(reactor, handler, lambda: handler.count == 1)
        client.close()


def test_parked_connection_notices_its_end() -> None:
    with closing(make_reactor(arena_bytes=2 * MIB, frame_size_max=MIB, ingress_bytes_max=MIB)) as reactor:
        handler = Recorder(lambda frame: reactor.reply_one(frame.connection, b"late"), keep=False)
        client, connection = connect(reactor)
        held = reactor.arena.allocate(2 * MIB)
        client.sendall(request(b"x" * 1000))
        settle(reactor, handler)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        settle(reactor, handler)
        del held
        drive(reactor, handler, lambda: handler.closes)
        # What came before the reset is still a frame; nobody reads its answer.
        assert handler.closes == [(connection, CLOSED_BY_RESET)] and handler.count == 1
        assert reactor.ingress_bytes == 0


def test_frame_kept_long_keeps_its_bytes_while_others_pass(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    other, _ = connect(reactor)
    kept: list[Frame] = []

    def answer(frame: Frame) -> None:
        if frame.connection == connection:
            kept.append(frame)
        else:
            reactor.reply_one(frame.connection, b"k")

    handler = Recorder(answer, keep=False)
    client.sendall(request(b"kept" * 100))
    drive(reactor, handler, lambda: kept)
    for number in range(300):
        other.sendall(request(b"%d" % number * 1000))
        drive(reactor, handler, lambda: handler.count == number + 2)  # noqa: B023
        assert read_exactly(other, 1) == b"k"
    view = kept.pop().body
    gc.collect()
    assert bytes(view) == b"kept" * 100
    assert reactor.ingress_bytes == 656
    view.release()
    assert reactor.ingress_bytes == 0
    client.close()
    other.close()


# --- endings ----------------------------------------------------------------------------------------------------------


def test_reply_to_a_connection_that_is_gone_is_false(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request())
    drive(reactor, handler, lambda: handler.frames)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    drive(reactor, handler, lambda: handler.closes)
    assert handler.closes == [(connection, CLOSED_BY_RESET)]
    assert not reactor.reply_one(connection, b"late") and not reactor.reply(connection, [b"late"])
    reactor.resume(connection)
    reactor.close(connection)
    reactor.set_authenticated(connection, True)
    assert reactor.address(connection) == "" and reactor.detach(connection) is None
    assert reactor.flush() == 0


def test_slot_is_reused_with_another_generation(reactor: Reactor) -> None:
    ids = set()
    handler = Recorder()
    for _ in range(50):
        client, connection = connect(reactor, unix)
        ids.add(connection)
        assert connection & 0xFFFFFFFF == 0
        client.sendall(request())
        drive(reactor, handler, lambda: handler.frames)
        reactor.close(handler.frames.pop().connection)
        assert not reactor.reply_one(connection, b"stale")
        client.close()
    settle(reactor, handler)
    assert len(ids) == 50 and [connection for connection, _ in handler.closes] == sorted(ids)


def test_close_with_output_pending_drops_it_or_flushes_first(reactor: Reactor) -> None:
    for after_flush in (False, True):
        client, connection = connect(reactor)
        handler = Recorder(keep=False)
        client.sendall(request() + request())
        drive(reactor, handler, lambda: handler.count == 1)  # noqa: B023
        reply = bytes(12 * MIB)
        reactor.reply_one(connection, reply)
        reactor.flush()
        reactor.close(connection, after_flush=after_flush)
        received = 0
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            reactor.poll(0, handler)
            reactor.flush()
            try:
                piece = len(client.recv(MIB))
            except ConnectionResetError:
                piece = 0
            if piece == 0:
                break
            received += piece
        settle(reactor, handler)
        assert handler.closes == [(connection, CLOSED_BY_US)] and handler.count == 1
        assert received == len(reply) if after_flush else received < len(reply)
        client.close()


def test_last_reply_survives_close_although_input_was_left_unread(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder(keep=False)
    client.sendall(request())
    drive(reactor, handler, lambda: handler.count == 1)
    client.sendall(request())
    settle(reactor, handler)
    reactor.reply_one(connection, b"last words")
    reactor.close(connection, after_flush=True)
    settle(reactor, handler)
    reactor.flush()
    settle(reactor, handler)
    assert read_exactly(client, 10) == b"last words" and is_closed(client)
    client.close()


def test_half_closed_client_gets_its_reply(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request())
    client.shutdown(socket.SHUT_WR)
    drive(reactor, handler, lambda: handler.frames)
    settle(reactor, handler)
    assert not handler.closes
    reactor.reply_one(connection, b"answer")
    reactor.poll(0, handler)
    drive(reactor, handler, lambda: handler.closes)
    assert read_exactly(client, 6) == b"answer" and is_closed(client)
    assert handler.closes == [(connection, CLOSED_BY_PEER)]
    client.close()


def test_write_to_a_reset_connection_is_reported_at_the_next_poll(reactor: Reactor) -> None:
    client, connection = connect(reactor, unix)
    handler = Recorder()
    client.sendall(request())
    drive(reactor, handler, lambda: handler.frames)
    reactor.reply_one(connection, b"one")
    client.close()
    assert reactor.flush() == 0
    assert handler.closes == []
    assert reactor.has_backlog()
    reactor.poll(0, handler)
    assert handler.closes == [(connection, CLOSED_BY_RESET)]


def test_adopt_beyond_the_limit_is_refused_and_the_socket_stays_with_the_caller() -> None:
    with closing(make_reactor(connections_max=2)) as reactor:
        pairs = [connect(reactor, unix) for _ in range(2)]
        client, server = unix()
        with pytest.raises(NotAccepted):
            reactor.adopt(server.fileno())
        server.sendall(b"alive")
        assert read_exactly(client, 5) == b"alive"
        reactor.close(pairs[0][1])
        assert reactor.adopt(server.detach()) & 0xFFFFFFFF == 0
        assert sorted(reactor.connection_ids()) == sorted(reactor.connection_ids()) and reactor.connections == 2


def test_adopt_of_a_dead_descriptor_changes_nothing(reactor: Reactor) -> None:
    reading, writing = os.pipe()
    with pytest.raises(OSError):
        reactor.adopt(reading)
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError):
        reactor.adopt(reading)
    assert reactor.connections == 0 and reactor.connection_ids() == []


def test_detach_gives_an_idle_connection_to_another_reactor(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder(keep=False)
    client.sendall(request() + request()[:10])
    drive(reactor, handler, lambda: handler.count == 1)
    assert reactor.detach(connection) is None
    reactor.reply_one(connection, b"1")
    assert reactor.detach(connection) is None
    reactor.flush()
    settle(reactor, handler)
    # The start of the next frame is here: not idle.
    assert reactor.detach(connection) is None
    client.sendall(request()[10:])
    drive(reactor, handler, lambda: handler.count == 2)
    reactor.reply_one(connection, b"2")
    settle(reactor, handler)
    reactor.flush()
    fd = reactor.detach(connection)
    assert fd is not None and reactor.connections == 0
    with closing(make_reactor()) as second:
        moved = second.adopt(fd)
        client.sendall(request(number=7))
        other = Recorder()
        drive(second, other, lambda: other.frames)
        assert other.frames[0].request == 7 and other.frames[0].connection == moved
        settle(reactor, handler)
        assert handler.count == 2 and handler.closes == []
    client.close()


def test_thousand_connections_are_served() -> None:
    with closing(make_reactor(connections_max=1000)) as reactor:
        handler = Recorder(lambda frame: reactor.reply_one(frame.connection, bytes(frame.body)), keep=False)
        clients = []
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            for _ in range(1000):
                clients.append(socket.create_connection(listener.getsockname()))
                reactor.adopt(listener.accept()[0].detach())
        for turn in range(2):
            for number, client in enumerate(clients):
                client.sendall(request(struct.pack("<II", turn, number)))
            drive(reactor, handler, lambda: handler.count == 1000 * (turn + 1))  # noqa: B023
            settle(reactor, handler)
            for number, client in enumerate(clients):
                assert read_exactly(client, 8) == struct.pack("<II", turn, number)
        assert len(reactor.connection_ids()) == reactor.connections == 1000
        for client in clients:
            client.close()
        drive(reactor, handler, lambda: len(handler.closes) == 1000)
        assert reactor.connections == 0


# --- handlers, watches, life ------------------------------------------------------------------------------------------


def test_handler_that_raises_leaves_the_other_frames_for_the_next_poll(reactor: Reactor) -> None:
    clients = [connect(reactor, unix)[0] for _ in range(5)]
    for number, client in enumerate(clients):
        client.sendall(request(number=number))

    def answer(frame: Frame) -> None:
        if frame.request == 1:
            raise KeyError(frame.request)

    handler = Recorder(answer)
    with pytest.raises(KeyError):
        reactor.poll(100_000, handler)
    assert reactor.has_backlog()
    settle(reactor, handler)
    assert [frame.request for frame in handler.frames] == [0, 1, 2, 3, 4]
    assert reactor.reply_one(handler.frames[1].connection, b"still there")
    reactor.flush()
    assert read_exactly(clients[1], 11) == b"still there"
    for client in clients:
        client.close()


def test_close_handler_that_raises_is_not_called_twice(reactor: Reactor) -> None:
    class Failing(Recorder):
        def on_close(self, connection: int, reason: int) -> None:
            super().on_close(connection, reason)
            raise KeyError(connection)

    ids = [connect(reactor, unix)[1] for _ in range(2)]
    for connection in ids:
        reactor.close(connection)
    handler = Failing()
    for _ in ids:
        with pytest.raises(KeyError):
            reactor.poll(0, handler)
    reactor.poll(0, handler)
    assert handler.closes == [(connection, CLOSED_BY_US) for connection in ids]


def test_handler_may_close_any_connection_while_frames_are_delivered(reactor: Reactor) -> None:
    pairs = [connect(reactor, unix) for _ in range(4)]
    for client, _ in pairs:
        client.sendall(request())

    def answer(frame: Frame) -> None:
        for _, connection in pairs:
            reactor.close(connection)

    handler = Recorder(answer)
    drive(reactor, handler, lambda: len(handler.closes) == 4)
    assert handler.count == 1 and reactor.connections == 0


def test_poll_inside_poll_is_refused(reactor: Reactor) -> None:
    client, _ = connect(reactor, unix)
    client.sendall(request())
    handler = Recorder(lambda frame: reactor.poll(0, handler))
    with pytest.raises(OurFault):
        reactor.poll(100_000, handler)
    reactor.poll(0, handler)
    client.close()


def test_watched_eventfd_is_read_and_reported_once(reactor: Reactor) -> None:
    handler = Recorder()
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    reactor.watch(fd, 42)
    os.eventfd_write(fd, 3)
    assert reactor.poll(100_000, handler) == 1 and handler.wakes == [42]
    assert reactor.poll(0, handler) == 0
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    reactor.unwatch(fd)
    os.eventfd_write(fd, 1)
    assert reactor.poll(0, handler) == 0
    with pytest.raises(OurFault):
        reactor.unwatch(fd)
    os.close(fd)


def test_watched_pipe_is_left_to_the_handler(reactor: Reactor) -> None:
    handler = Recorder()
    reading, writing = os.pipe()
    reactor.watch(reading, 7, is_eventfd=False)
    os.write(writing, b"note")
    for _ in range(2):
        reactor.poll(100_000, handler)
    assert handler.wakes == [7, 7] and os.read(reading, 10) == b"note"
    assert reactor.poll(0, handler) == 0
    reactor.unwatch(reading)
    os.close(reading)
    os.close(writing)


def test_poll_waits_for_fractions_of_a_millisecond(reactor: Reactor) -> None:
    handler = Recorder()
    waits = []
    for _ in range(20):
        start = time.perf_counter()
        assert reactor.poll(200, handler) == 0
        waits.append(time.perf_counter() - start)
    assert 0.0002 <= min(waits) < 0.0009


def test_stop_receiving_delivers_nothing_new_and_still_sends(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    handler = Recorder()
    client.sendall(request(number=1) + request(number=2))
    drive(reactor, handler, lambda: handler.frames)
    reactor.stop_receiving()
    reactor.reply_one(connection, b"1")
    settle(reactor, handler)
    reactor.flush()
    assert read_exactly(client, 1) == b"1" and handler.count == 1 and not reactor.has_backlog()
    client.close()


def test_addresses_of_all_families(reactor: Reactor) -> None:
    client, connection = connect(reactor)
    assert reactor.address(connection) == "{}:{}".format(*client.getsockname())
    client.close()
    client, connection = connect(reactor, unix)
    assert reactor.address(connection) == "unix"
    client.close()
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        connection = reactor.adopt(listener.accept()[0].detach())
    assert reactor.address(connection) == f"[::1]:{client.getsockname()[1]}"
    client.close()


def test_limits_that_cannot_work_are_refused() -> None:
    for limits in ({"ingress_bytes_max": 1000}, {"connections_max": 0}, {"frame_size_max": 255}, {"arena_bytes": MIB}):
        with pytest.raises(ConfigurationError):
            make_reactor(**limits)


def test_shutdown_closes_everything_and_is_idempotent() -> None:
    reactor = make_reactor()
    client, _ = connect(reactor)
    reactor.shutdown()
    reactor.shutdown()
    assert is_closed(client) and reactor.epoll_fd == -1
    with pytest.raises(OurFault):
        reactor.poll(0, Recorder())
    with pytest.raises(OurFault):
        connect(reactor)
    client.close()


def test_forked_child_that_drops_the_reactor_takes_no_socket_from_the_parent(reactor: Reactor) -> None:
    client, _ = connect(reactor)
    holder = [make_reactor()]
    inner_client, _ = connect(holder[0])
    pid = os.fork()
    if pid == 0:
        holder.clear()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    handler = Recorder()
    inner_client.sendall(request())
    drive(holder[0], handler, lambda: handler.frames)
    holder[0].shutdown()
    client.close()
    inner_client.close()


def test_client_with_nagle_that_writes_header_and_body_apart_does_not_wait_for_delayed_acknowledgements(
    reactor: Reactor,
) -> None:
    """Without TCP_QUICKACK after a partial frame each request costs 40 ms, once the first few are through."""
    handler = Recorder(lambda frame: reactor.reply_one(frame.connection, b"k"), keep=False)
    client, _ = connect(reactor)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    frame = request(b"x" * 20_000)
    start = time.perf_counter()
    for number in range(40):
        client.sendall(frame[:256])
        reactor.poll(1000, handler)
        client.sendall(frame[256:])
        drive(reactor, handler, lambda: handler.count == number + 1)  # noqa: B023
        assert read_exactly(client, 1) == b"k"
    assert time.perf_counter() - start < 0.8
    client.close()


def test_small_frame_after_a_large_one_and_back(reactor: Reactor) -> None:
    handler = Recorder(lambda frame: reactor.reply_one(frame.connection, b"k"))
    client, _ = connect(reactor)
    for number, size in enumerate((10, 100_000, 10, 0, 200_000, 70_000, 300)):
        body = bytes([number]) * size
        client.sendall(request(body, number=number))
        drive(reactor, handler, lambda: handler.count == number + 1)  # noqa: B023
        assert read_exactly(client, 1) == b"k"
        frame = handler.frames.pop()
        assert (frame.request, bytes(frame.body)) == (number, body)
        del frame
    settle(reactor, handler)
    assert reactor.ingress_bytes == 0
    client.close()


def forbid_epoll_pwait2() -> None:
    """Make the kernel answer ENOSYS for this process, as kernels before 5.11 do: a seccomp filter."""
    load_number, jump_if_equal, return_value = 0x20, 0x15, 0x06
    errno_38, allow = 0x00050000 | 38, 0x7FFF0000
    program = b"".join(
        struct.pack("<HBBI", *instruction)
        for instruction in (
            (load_number, 0, 0, 0),
            (jump_if_equal, 0, 1, 441),
            (return_value, 0, 0, errno_38),
            (return_value, 0, 0, allow),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_program = struct.pack("@HP", 4, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, mode_filter, filter_program, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def test_kernel_without_epoll_pwait2_waits_in_whole_milliseconds() -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            forbid_epoll_pwait2()
            reactor = make_reactor()
            client, _ = connect(reactor)
            handler = Recorder()
            start = time.perf_counter()
            assert reactor.poll(0, handler) == 1
            assert reactor.poll(100, handler) == 0
            assert time.perf_counter() - start >= 0.001
            client.sendall(request())
            drive(reactor, handler, lambda: handler.count == 1)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
