"""The bounded reader: values, bounds, and that a failed read consumes nothing."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsrv._core import Cursor, Truncated

WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "u128": 16}


def test_every_width_in_order() -> None:
    data = (
        struct.pack("<BHIQ", 0xFE, 0xBEEF, 0xDEADBEEF, 2**64 - 2)
        + (2**127 + 5).to_bytes(16, "little")
        + struct.pack("<f", 1.5)
    )
    cursor = Cursor(data + b"tail")
    assert [cursor.u8(), cursor.u16(), cursor.u32(), cursor.u64(), cursor.u128(), cursor.f32()] == [
        0xFE,
        0xBEEF,
        0xDEADBEEF,
        2**64 - 2,
        2**127 + 5,
        1.5,
    ]
    assert cursor.position == len(data)
    assert cursor.remaining == 4
    assert bytes(cursor.take(2)) == b"ta"
    assert bytes(cursor.rest()) == b"il"
    assert cursor.remaining == 0
    assert bytes(cursor.rest()) == b""


@given(st.binary(max_size=40), st.lists(st.sampled_from(sorted(WIDTHS)), max_size=12))
def test_against_int_from_bytes(data: bytes, reads: list[str]) -> None:
    cursor = Cursor(data)
    position = 0
    for name in reads:
        width = WIDTHS[name]
        if position + width > len(data):
            with pytest.raises(Truncated) as caught:
                getattr(cursor, name)()
            assert (caught.value.position, caught.value.needed, caught.value.left) == (
                position,
                width,
                len(data) - position,
            )
        else:
            assert getattr(cursor, name)() == int.from_bytes(data[position : position + width], "little")
            position += width
        assert cursor.position == position
        assert cursor.remaining == len(data) - position


@pytest.mark.parametrize("length", [-1, 5, 2**62])
def test_take_outside_the_buffer(length: int) -> None:
    cursor = Cursor(b"1234")
    with pytest.raises(Truncated):
        cursor.take(length)
    assert cursor.position == 0


def test_position_can_be_set_within_the_buffer_only() -> None:
    cursor = Cursor(b"1234")
    cursor.position = 4
    assert cursor.remaining == 0
    for outside in (-1, 5):
        with pytest.raises(Truncated):
            cursor.position = outside
    assert cursor.position == 4


def test_views_are_read_only_and_keep_the_buffer() -> None:
    source = bytearray(b"1234")
    view = Cursor(source).take(2)
    with pytest.raises(TypeError):
        view[0] = 0
    source[0] = ord("9")
    assert bytes(view) == b"92"
