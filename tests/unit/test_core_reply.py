"""Reply headers, byte for byte, and the deduplication key."""

import struct
from typing import Any

import pytest

from shardsrv import _core

CLIENT = bytes(range(16))
REQUEST_CHECKSUM = bytes(range(50, 66))


def request(number: int = 21) -> bytes:
    return b"\xaa" * 128 + CLIENT + REQUEST_CHECKSUM + b"\xbb" * 8 + struct.pack("<Q", number) + b"\xcc" * 80


def test_reply_header() -> None:
    cluster = bytes(range(200, 216))
    reply = _core.pack_reply(
        request(),
        status=20,
        body_length=12,
        op=5,
        commit=6,
        timestamp=7,
        operation=64,
        cluster=cluster,
        view=8,
        replica=2,
    )
    assert reply == (
        bytes(32)
        + cluster
        + struct.pack("<IIIBB", 268, 8, 0, 8, 2)
        + bytes(66)
        + REQUEST_CHECKSUM
        + bytes(16)
        + CLIENT
        + struct.pack("<QQQQB7xI", 5, 6, 7, 21, 64, 20)
        + bytes(36)
    )


def test_client_can_be_given() -> None:
    fields: dict[str, Any] = {
        "status": 0,
        "body_length": 0,
        "op": 0,
        "commit": 0,
        "timestamp": 0,
        "operation": 2,
        "cluster": bytes(16),
    }
    given = _core.pack_reply(request(), **fields, client=b"\xff" * 16)
    echoed = _core.pack_reply(request(), **fields)
    assert given[160:176] == b"\xff" * 16
    assert echoed[160:176] == CLIENT
    assert given[:160] + given[176:] == echoed[:160] + echoed[176:]


def test_send_reply_is_a_reply_with_one_confirmation() -> None:
    frame = _core.pack_send_reply(request(), 9, 1000, 1, 2, 3, 44)
    header = _core.pack_reply(
        request(), status=0, body_length=24, op=9, commit=9, timestamp=1000, operation=160, cluster=bytes(16)
    )
    assert frame == header + struct.pack("<IIIIQ", 1, 1, 2, 3, 44)


def test_recorded_send_reply() -> None:
    sent = bytes(48) + bytes.fromhex("b902000000000000000000000500") + bytes(66)
    sent += (
        bytes.fromhex("9daf8bf4ae1247daa3676ea160e5c95d")
        + bytes(24)
        + b"\1"
        + bytes(7)
        + b"\xa0"
        + bytes(7)
        + b"\xd6"
        + bytes(71)
    )
    assert len(sent) == 256
    recorded = "010000000000000000000000000000000100000000000000"
    frame = _core.pack_send_reply(sent, 2, 1795955793199961, 0, 0, 0, 1)
    assert frame[256:].hex() == recorded
    assert frame[48:52].hex() == "18010000"
    assert frame[60] == 8
    assert (
        frame[176:220].hex()
        == "020000000000000002000000000000005903168b696106000100000000000000a00000000000000000000000"
    )


@pytest.mark.parametrize("length", [0, 255, 257])
def test_a_request_header_of_another_length(length: int) -> None:
    with pytest.raises(ValueError, match="256 bytes"):
        _core.pack_send_reply(bytes(length), 1, 1, 0, 0, 0, 0)


def test_bounds_of_a_reply() -> None:
    fields: dict[str, Any] = {
        "status": 0,
        "body_length": 0,
        "op": 0,
        "commit": 0,
        "timestamp": 0,
        "operation": 2,
        "cluster": bytes(16),
    }
    for change in ({"cluster": b""}, {"client": bytes(15)}, {"body_length": 2**32 - 1}, {"op": -1}, {"status": 2**32}):
        with pytest.raises((ValueError, OverflowError)):
            _core.pack_reply(request(), **{**fields, **change})


def test_dedup_key_is_the_fields_in_order() -> None:
    key = _core.dedup_key(CLIENT, 2, 160, 2**64 - 1, 4)
    assert key == CLIENT + struct.pack("<QBQQ", 2, 160, 2**64 - 1, 4)
    assert len(key) == 41
    with pytest.raises(ValueError, match="client"):
        _core.dedup_key(b"", 0, 0, 0, 0)
