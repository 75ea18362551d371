"""Suffixes and heartbeats between replicas: round trips and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv.errors import DecodeError, EncodeError, SealMismatch
from shardsrv.wire import replica_bodies as bodies
from shardsrv.wire.prepare_header import PrepareHeader

some = settings(max_examples=60, deadline=None)


def chain(length: int, **fields: Any) -> list[PrepareHeader]:
    """Entries 1..length, newest first."""
    made: list[PrepareHeader] = []
    parent = 0
    for op in range(1, length + 1):
        header = PrepareHeader(op=op, parent=parent, timestamp=op * 10, operation=160, group=5, **fields).sealed()
        parent = header.checksum
        made.insert(0, header)
    return made


def test_a_suffix_survives_the_wire() -> None:
    headers = chain(4)
    headers[1] = PrepareHeader.blank(3)
    body = bodies.encode_suffix(headers, (7, 2**128 - 1))
    assert bodies.decode_suffix(body, 4, 2) == (tuple(headers), (7, 2**128 - 1))
    assert bodies.decode_suffix(b"", 4) == ((), ())


def reseal(header: PrepareHeader, **fields: Any) -> PrepareHeader:
    made = {name: getattr(header, name) for name in header.layout.names} | fields
    return PrepareHeader(**made).sealed()


def test_suffixes_are_refused_whole() -> None:
    good = chain(3)
    cases = {
        "part of a header": bodies.encode_suffix(good)[:-1],
        "another head": bodies.encode_suffix(good[1:]),
        "out of sequence": bodies.encode_suffix([good[0], good[2], good[1]]),
        "wrong parent": bodies.encode_suffix([reseal(good[0], parent=1), *good[1:]]),
        "time that does not fall": bodies.encode_suffix([reseal(good[0], timestamp=20), *good[1:]]),
        "time across a blank": bodies.encode_suffix([reseal(good[0], timestamp=5), PrepareHeader.blank(2), good[2]]),
        "damaged header": bodies.encode_suffix(good)[:300] + b"\xff" + bodies.encode_suffix(good)[301:],
        "more than there can be": bodies.encode_suffix([*good, PrepareHeader(op=0, size=0)]),
    }
    for what, body in cases.items():
        with pytest.raises(DecodeError):
            bodies.decode_suffix(body, 3)
            pytest.fail(what)
    with pytest.raises(DecodeError):
        bodies.decode_suffix(bodies.encode_suffix(good), 3, 1)
    with pytest.raises(EncodeError):
        bodies.encode_suffix([PrepareHeader.blank(op) for op in range(129, 0, -1)])


def test_bodies_match_their_seal() -> None:
    bodies.verify_body(0, b"")
    bodies.verify_body(xxhash.xxh3_64_intdigest(b"body"), b"body")
    for checksum in (0, 1):
        with pytest.raises(SealMismatch):
            bodies.verify_body(checksum, b"body")


@some
@given(lives=st.lists(st.builds(bodies.GroupLife, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=5))
def test_groups_not_served(lives: list[bodies.GroupLife]) -> None:
    body = bodies.encode_not_served(lives)
    assert bodies.decode_not_served(body) == tuple(lives)
    with pytest.raises(DecodeError):
        bodies.decode_not_served(body + b"x")


@some
@given(body=st.binary(max_size=600), op=st.integers(0, 5), incarnations=st.integers(0, 3))
def test_only_typed_errors_leave(body: bytes, op: int, incarnations: int) -> None:
    for decode in (
        lambda: bodies.decode_suffix(body, op, incarnations),
        lambda: bodies.decode_not_served(body),
    ):
        try:
            decode()
        except DecodeError as error:
            assert str(error)
