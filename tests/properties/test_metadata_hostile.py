"""Bytes of strangers: whatever comes as a body or as a snapshot is answered by a typed refusal, and changes nothing."""

from __future__ import annotations

from functools import cache

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardsrv.errors import DecodeError, RequestRefused, UnsupportedVersion
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.admission import REQUESTS
from shardsrv.plane.metadata.apply import COMMANDS
from shardsrv.plane.metadata.queries import QUERIES
from shardsrv.wire.replies import split_result
from tests.support.metadata import Driver, entry, passwords_for, zero_counters
from tests.unit.test_metadata_snapshot import encoded, populated

names = st.sampled_from([b"\x02\x04zeta", b"\x01\x04\x00\x00\x00\x00", b"\x02\x06events", b"\x04zeta", b"\x05alice"])
numbers = st.integers(0, 3).map(lambda number: number.to_bytes(4, "little"))
bodies = st.lists(st.one_of(names, numbers, st.binary(max_size=9)), max_size=7).map(b"".join)


@cache
def payload() -> bytes:
    return encoded(populated())


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(REQUESTS)), bodies, st.sampled_from([0, 1, 99]))
@example(128, b"", 0)
def test_a_body_of_a_client_is_admitted_or_refused(operation: int, body: bytes, user: int) -> None:
    driver = populated()
    plane = driver.plane
    before = plane.encode_snapshot(1, 1, [])
    refusal = plane.refusal(operation, body, user)
    if refusal is not None:
        assert 0 < refusal.code < 20_000
        with pytest.raises(RequestRefused):
            plane.resolve(operation, body, 0, None, user)
    elif passwords_for(plane.password_task(operation, body)) is None:
        split_result(driver.submit(operation, body, user, b"c" * 16, 1))
        return
    assert plane.encode_snapshot(1, 1, []) == before


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(COMMANDS)), bodies)
def test_the_body_of_an_entry_is_applied_or_refused_the_same_way_everywhere(operation: int, body: bytes) -> None:
    drivers = [populated(), populated()]
    prepare = entry(drivers[0].plane.op + 1, operation, body, 0, b"c" * 16, 1)
    before = drivers[0].plane.encode_snapshot(1, 1, [])
    replies = [driver.plane.apply(prepare) for driver in drivers]
    after = [driver.plane.encode_snapshot(1, 1, []) for driver in drivers]
    assert (replies[0], after[0]) == (replies[1], after[1])
    code, _ = split_result(replies[0])
    if code:
        drivers[0].plane.op, drivers[0].plane.timestamp = prepare.op - 1, drivers[0].log[-1].timestamp
        assert drivers[0].plane.encode_snapshot(1, 1, []) == before


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(QUERIES)), bodies, st.sampled_from([0, 1, 99]))
def test_a_read_is_answered_or_refused(code: int, body: bytes, user: int) -> None:
    try:
        assert isinstance(Driver(populated().plane).plane.query(code, body, user, zero_counters), bytes)
    except RequestRefused as refusal:
        assert refusal.code in (3, 41, 1009, 2010)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_snapshot_is_refused(data: st.DataObject) -> None:
    """One to three bytes of the payload are changed; what still decodes is exactly what it encodes to."""
    damaged = bytearray(payload())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = snapshot.decode(bytes(damaged))
    except (DecodeError, UnsupportedVersion):
        return
    assert snapshot.reencode(decoded) == bytes(damaged)


values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.binary(max_size=3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(snapshot.SECTIONS) - 1), values)
def test_a_section_of_another_shape_is_refused(section: int, value: object) -> None:
    sections = msgpack.unpackb(payload())
    sections[section] = value
    try:
        decoded = snapshot.decode(msgpack.packb(sections))
    except (DecodeError, UnsupportedVersion):
        return
    assert snapshot.reencode(decoded) == msgpack.packb(sections)
