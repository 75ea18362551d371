"""Clients that do not wait for an answer before they send the next frame: every frame is answered, in order."""

import struct
from pathlib import Path

import pytest

from tests.support.batches import encode_batch
from tests.support.client import Client
from tests.support.frames import (
    HEADER_SIZE,
    NON_REPLICATED,
    PING,
    PROTOCOL_VERSION,
    REGISTER,
    SEND_MESSAGES,
    request_header,
    send_body,
    text,
)
from tests.support.node import Node

PATIENCE = 5.0


def framed(client: Client, operation: int, body: bytes, request: int, code: int = 0) -> bytes:
    header = request_header(
        operation=operation,
        size=HEADER_SIZE + len(body),
        client=client.client,
        session=0 if operation == REGISTER else client.session,
        request=request,
        code=code,
    )
    return header + body


def answers(client: Client, count: int) -> list[tuple[int, int, int]]:
    """(operation, request, status) of the next answers."""
    frames = [client.connection.receive() for _ in range(count)]
    return [(frame.operation, frame.request, frame.status) for frame in frames]


def test_frames_behind_a_login_are_answered(node: Node) -> None:
    """A second login is answered by a task, while the frames behind it are here already: no event follows."""
    login = struct.pack("<I", PROTOCOL_VERSION) + text("sdk") + text("1") + text("iggy") + text("iggy") + bytes(4)
    with node.client(PATIENCE) as client:
        pings = [framed(client, NON_REPLICATED, b"", number, PING) for number in (7, 8, 9)]
        client.connection.send(framed(client, REGISTER, login, 0) + b"".join(pings))
        assert answers(client, 4) == [(REGISTER, 0, 0), *((NON_REPLICATED, number, 0) for number in (7, 8, 9))]


@pytest.mark.parametrize("durability", ["replicated", "persisted"])
def test_sends_in_a_row_are_answered(tmp_path: Path, durability: str) -> None:
    """Each of a persisted topic waits for a sync, which ends in a task of its own."""
    batch = encode_batch([b"x"])
    with Node(tmp_path, environment={"IGGY_TOPIC_DURABILITY": durability}) as node, node.client(PATIENCE) as client:
        client.create_stream("s")
        client.create_topic("s", "t")
        body = send_body("s", "t", 0, 1, batch)
        numbers = range(10, 30)
        client.connection.send(b"".join(framed(client, SEND_MESSAGES, body, number) for number in numbers))
        assert answers(client, 20) == [(SEND_MESSAGES, number, 0) for number in numbers]
