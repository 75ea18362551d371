"""What a running node does with frames that no recording holds: sizes out of bounds, frames in pieces, many at once."""

import struct
from collections.abc import Iterator

import pytest
import xxhash

from tests.support.batches import encode_batch
from tests.support.client import Client, Refused
from tests.support.frames import (
    COMMAND_REPLY,
    CREATE_STREAM,
    HEADER_SIZE,
    NON_REPLICATED,
    PING,
    Connection,
    ConnectionLost,
    request_header,
    text,
)
from tests.support.node import Node

LIMIT = 64 << 20
"""Longest frame that a node takes, in bytes."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("framing")) as running:
        yield running


@pytest.fixture
def connection(node: Node) -> Iterator[Connection]:
    opened = Connection(node.host, node.port, timeout=10.0)
    yield opened
    opened.close()


def ping(request: int, size: int = HEADER_SIZE) -> bytes:
    return request_header(operation=NON_REPLICATED, size=size, client=b"\1" * 16, session=0, request=request, code=PING)


@pytest.mark.parametrize("size", [0, HEADER_SIZE - 1, LIMIT + 1, 0xFFFFFFFF])
def test_a_size_out_of_bounds_closes_the_connection(node: Node, connection: Connection, size: int) -> None:
    connection.send(ping(1, size=size))
    with pytest.raises(ConnectionLost):
        connection.receive()
    with node.client() as other:
        other.ping()


@pytest.mark.parametrize("cut", [1, 47, 50, 128, HEADER_SIZE - 1])
def test_a_frame_in_two_pieces_is_one_frame(connection: Connection, cut: int) -> None:
    first, second = ping(7)[:cut], ping(7)[cut:]
    connection.send(ping(6) + first)
    assert connection.receive().request == 6
    connection.send(second)
    assert connection.receive().request == 7


def test_many_frames_in_one_segment_are_answered_in_order(connection: Connection) -> None:
    count = 300
    connection.send(b"".join(map(ping, range(1, count + 1))))
    assert [connection.receive().request for _ in range(count)] == list(range(1, count + 1))


def test_a_flipped_byte_under_a_checksum_is_status_4(node: Node) -> None:
    body = bytearray(text("flipped"))
    checksum = xxhash.xxh3_64_intdigest(bytes(body))
    body[3] ^= 1
    with node.client() as client:
        frame = client.exchange(CREATE_STREAM, bytes(body), request=1, checksum=checksum)
        assert (frame.command, frame.status, frame.body) == (COMMAND_REPLY, 4, b"")
        assert client.create_stream("flipped") >= 0


def test_a_batch_of_the_longest_frame_is_kept(node: Node) -> None:
    payload = bytes(60_000_000)
    with node.client() as client:
        client.create_stream("long")
        client.create_topic("long", "frames")
        assert client.send("long", "frames", 0, [payload]) == 0
        (message,) = client.poll("long", "frames", 0, count=1)
        assert message.payload == payload


def test_a_batch_with_a_wrong_checksum_is_not_stored(node: Node) -> None:
    batch = bytearray(encode_batch([b"right", b"wrong"]))
    batch[-1] ^= 1
    with node.client() as client:
        client.create_stream("sealed")
        client.create_topic("sealed", "frames")
        with pytest.raises(Refused) as refusal:
            client.send_batch("sealed", "frames", 0, 2, bytes(batch))
        assert refusal.value.channel == "status"
        assert client.send("sealed", "frames", 0, [b"next"]) == 0
        assert [message.payload for message in client.poll("sealed", "frames", 0)] == [b"next"]


def test_the_connection_that_logged_out_may_log_in_again(node: Node) -> None:
    with Client(node.host, node.port) as client:
        first = client.login()
        client.logout()
        assert client.login() > first
        client.ping()


def test_session_numbers_rise(node: Node) -> None:
    sessions = []
    for _ in range(3):
        with node.client() as client:
            sessions.append(client.session)
    assert sessions == sorted(set(sessions))


def test_a_reply_is_256_bytes_and_its_body(connection: Connection) -> None:
    connection.send(ping(1))
    frame = connection.receive()
    assert struct.unpack_from("<I", frame.header, 48)[0] == len(frame.header) + len(frame.body) == HEADER_SIZE
