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


def test_the_body_of_a_send_reply_is_one_confirmation() -> None:
    assert _core.send_reply_body(1, 2, 3, 44) == struct.pack("<IIIIQ", 1, 1, 2, 3, 44)
    recorded = "010000000000000000000000000000000100000000000000"
    assert _core.send_reply_body(0, 0, 0, 1).hex() == recorded


@pytest.mark.parametrize("length", [0, 255, 257])
def test_a_request_header_of_another_length(length: int) -> None:
    fields = {"status": 0, "body_length": 0, "op": 1, "commit": 1, "timestamp": 1, "operation": 2}
    with pytest.raises(ValueError, match="256 bytes"):
        _core.pack_reply(bytes(length), **fields, cluster=bytes(16))  # type: ignore[arg-type]


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
