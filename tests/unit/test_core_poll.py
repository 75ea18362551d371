"""Poll slices against plain Python, over logs with other operations between; continuation, commit bound and damage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv import _core
from shardsrv._core import BAD_BODY, BAD_HEADER, VALID, ZERO, PollSlice, slice_prepares
from tests.support.batches import decode_batches, encode_batch
from tests.support.entries import SEND_MESSAGES, log_of, poll, stamped


def stored(sizes: list[int], base: int = 0) -> list[bytes]:
    """Batches of so many messages each, offsets back to back, base timestamps 1000, 1010, ..."""
    batches = []
    for index, size in enumerate(sizes):
        batches.append(
            stamped(encode_batch([b"m%d" % (base + n) * (n % 3) for n in range(size)]), 3, base, 1000 + 10 * index)
        )
        base += size
    return batches


BATCHES = stored([3, 1, 4, 2], base=5)
LOG = log_of(
    [(161, b"o"), (160, BATCHES[0]), (160, BATCHES[1]), (162, b""), (160, BATCHES[2]), (192, b"p"), (160, BATCHES[3])]
)
EVER = 2**62 - 1


def joined(slice: PollSlice) -> bytes:
    return b"".join(slice.parts)


@given(
    offset=st.integers(0, 20),
    count=st.integers(0, 14),
    by_time=st.booleans(),
    check=st.booleans(),
    messages=st.lists(st.integers(1, 6), max_size=6),
    between=st.lists(st.booleans(), min_size=6, max_size=6),
)
@settings(max_examples=200)
def test_as_plain_python(
    offset: int, count: int, by_time: bool, check: bool, messages: list[int], between: list[bool]
) -> None:
    batches = stored(messages)
    entries = []
    for batch, other in zip(batches, between, strict=False):
        entries += [(161, b"other")] * other + [(SEND_MESSAGES, batch)]
    log = log_of(entries)
    start = 1000 + offset * 3 if by_time else offset
    slice = slice_prepares(b"." + log, 1, 1 + len(log), start, count, EVER, by_time, check)
    expected = poll(batches, start, count, by_time)
    assert joined(slice) == expected
    assert (slice.bytes, slice.verdict) == (len(expected), VALID)
    offsets = [message.offset for batch in decode_batches(expected) for message in batch.messages]
    assert slice.count == len(offsets)
    if offsets:
        assert (slice.first_offset, slice.last_offset) == (offsets[0], offsets[-1])
    assert slice.needed == (0 if slice.count == count else 256)


@pytest.mark.parametrize("step", [1, 100, 256, 700])
@pytest.mark.parametrize("check", [True, False])
def test_going_on_with_more_bytes(step: int, check: bool) -> None:
    parts, count, position, end = b"", 8, 0, 0
    for _ in range(100):
        slice = slice_prepares(LOG[:end], position, end, 6, count, EVER, check=check)
        assert slice.verdict == VALID
        parts += joined(slice)
        count -= slice.count
        position = slice.position
        if slice.needed == 0:
            break
        assert slice.needed > end - position
        end = min(len(LOG), max(position + slice.needed, end + step))
    assert parts == poll(BATCHES, 6, 8)


def test_views_are_of_the_data_and_read_only() -> None:
    data = bytearray(LOG)
    slice = slice_prepares(data, 0, len(data), 6, 5, EVER)
    assert [type(part) for part in slice.parts] == [bytes, memoryview, memoryview, bytes, memoryview]
    assert all(part.obj is data for part in slice.parts if isinstance(part, memoryview))
    assert all(_core.check_batch(record) == 0 for record in (b"".join(slice.parts[:2]), slice.parts[2]))
    with pytest.raises(TypeError):
        slice.parts[2][0] = 1  # type: ignore[index]


def test_never_beyond_the_committed_op() -> None:
    expected = {0: 0, 1: 0, 2: 3, 3: 4, 4: 4, 5: 8, 6: 8, 7: 10}
    for committed, count in expected.items():
        slice = slice_prepares(LOG, 0, len(LOG), 0, 100, committed)
        assert (slice.count, slice.needed, slice.verdict) == (count, 0, VALID)
    assert slice_prepares(LOG, 0, len(LOG), 0, 100, 8).needed == 256


def test_where_the_next_poll_goes_on() -> None:
    second = slice_prepares(LOG, 0, len(LOG), 5, 3, EVER)
    inside = slice_prepares(LOG, second.position, len(LOG), 8, 3, EVER)
    rest = slice_prepares(LOG, inside.position, len(LOG), 11, 99, EVER)
    assert joined(second) + joined(inside) + joined(rest) == poll(BATCHES, 5, 3) + poll(BATCHES, 8, 3) + poll(
        BATCHES, 11, 99
    )
    assert LOG[inside.position + 208] == SEND_MESSAGES


def test_preallocated_space_ends_the_walk() -> None:
    for check in (True, False):
        slice = slice_prepares(LOG + bytes(512), 0, len(LOG) + 512, 0, 100, EVER, check=check)
        assert (slice.count, slice.verdict, slice.needed, slice.position) == (10, ZERO, 0, len(LOG))


def test_damage_is_a_verdict_and_what_came_before_is_good() -> None:
    begin = LOG.index(BATCHES[1]) - 256
    for position, verdict in (
        (begin + 120, BAD_HEADER),
        (begin + 256 + 8, BAD_BODY),
        (begin + 256 + 60, BAD_BODY),
        (begin + 256 + 258, BAD_BODY),
    ):
        damaged = bytearray(LOG)
        damaged[position] ^= 1
        slice = slice_prepares(damaged, 0, len(LOG), 0, 100, EVER)
        assert (slice.verdict, slice.position, slice.count, slice.needed) == (verdict, begin, 3, 0)
        assert joined(slice) == BATCHES[0]


def test_rot_in_a_skipped_batch_is_no_empty_answer() -> None:
    damaged = bytearray(LOG)
    damaged[LOG.index(BATCHES[0]) + 8] ^= 1  # its base offset: the poll would skip what it should return
    assert slice_prepares(damaged, 0, len(LOG), 8, 1, EVER).verdict == BAD_BODY
    payload = bytearray(LOG)
    payload[LOG.index(BATCHES[0]) + 256 + 60] ^= 1  # bytes that are not returned are not hashed
    assert slice_prepares(payload, 0, len(LOG), 8, 1, EVER).verdict == VALID


def test_a_consistent_batch_of_another_entry_is_refused() -> None:
    begin = LOG.index(BATCHES[3])
    other = stamped(encode_batch([b"", b"m99" * 1]), 3, 13, 1030)
    other = stamped(encode_batch([b"", b"X" * (len(BATCHES[3]) - len(other) + 3)]), 3, 13, 1030)
    assert len(other) == len(BATCHES[3])
    swapped = LOG[:begin] + other
    assert slice_prepares(swapped, 0, len(LOG), 13, 9, EVER).verdict == BAD_BODY


def test_ranges_outside_the_data() -> None:
    for position, end in ((-1, 5), (5, 4), (0, len(LOG) + 1)):
        with pytest.raises(ValueError, match="not a range"):
            slice_prepares(LOG, position, end, 0, 1, EVER)


def test_a_large_batch_without_the_interpreter() -> None:
    batch = stamped(encode_batch([b"payload" * 40] * 900), 0, 0, 1)
    log = log_of([(160, batch)])
    slice = slice_prepares(log, 0, len(log), 450, 300, EVER)
    assert joined(slice) == poll([batch], 450, 300)


@given(st.integers(0, len(LOG) - 1), st.binary(min_size=1, max_size=9), st.booleans(), st.integers(0, 20))
@settings(max_examples=200)
def test_mutations_never_crash_and_never_give_a_bad_record(at: int, garbage: bytes, check: bool, offset: int) -> None:
    log = bytearray(LOG)
    log[at : at + len(garbage)] = garbage
    slice = slice_prepares(log, 0, len(LOG), offset, 6, EVER, check=check)
    assert slice.bytes == len(joined(slice))
    if check:
        assert sum(len(batch.messages) for batch in decode_batches(joined(slice))) == slice.count
