"""Pure decisions of a partition: where a poll begins, which segments go, and the bodies of its entries."""

import pytest

from shardsrv.errors import DecodeError
from shardsrv.plane.partition import offsets
from shardsrv.plane.partition.poll import PollPlan, plan_poll
from shardsrv.plane.partition.retention import (
    NEVER,
    RetentionPlan,
    SegmentTotals,
    plan_empty,
    plan_expiry,
    plan_explicit,
    plan_size,
)

OFFSET, TIMESTAMP, FIRST, LAST, NEXT = 1, 2, 3, 4, 5


def plan(start: int, count: int, by_time: bool = False) -> PollPlan:
    return PollPlan(by_time, start, count)


# kind, value, count, first offset, next offset, stored
POLLS = {
    "offset": ((OFFSET, 3, 4, 0, 10, None), plan(3, 4)),
    "offset, fewer left than asked": ((OFFSET, 8, 5, 0, 10, None), plan(8, 2)),
    "offset of the last message": ((OFFSET, 9, 5, 0, 10, None), plan(9, 1)),
    "offset behind the end": ((OFFSET, 10, 5, 0, 10, None), None),
    "offset far behind the end": ((OFFSET, 2**64 - 1, 5, 0, 10, None), None),
    "offset that retention took": ((OFFSET, 3, 4, 6, 10, None), plan(6, 4)),
    "first": ((FIRST, 77, 4, 0, 10, None), plan(0, 4)),
    "first after retention": ((FIRST, 0, 4, 6, 10, None), plan(6, 4)),
    "last": ((LAST, 0, 3, 0, 10, None), plan(7, 3)),
    "last of more than there are": ((LAST, 0, 30, 0, 10, None), plan(0, 10)),
    "last of more than retention left": ((LAST, 0, 30, 6, 10, None), plan(6, 4)),
    "next without a stored offset": ((NEXT, 0, 3, 0, 10, None), plan(0, 3)),
    "next after a stored offset": ((NEXT, 0, 3, 0, 10, 4), plan(5, 3)),
    "next after stored offset 0": ((NEXT, 0, 3, 0, 10, 0), plan(1, 3)),
    "next at the end": ((NEXT, 0, 3, 0, 10, 9), None),
    "next after retention": ((NEXT, 0, 3, 6, 10, 2), plan(6, 3)),
    "timestamp": ((TIMESTAMP, 123, 3, 0, 10, None), plan(123, 3, True)),
    "timestamp, more than there are": ((TIMESTAMP, 123, 30, 6, 10, None), plan(123, 4, True)),
    "nothing asked": ((FIRST, 0, 0, 0, 10, None), None),
    "empty partition": ((FIRST, 0, 5, 0, 0, None), None),
    "empty partition by time": ((TIMESTAMP, 0, 5, 0, 0, None), None),
    "emptied by retention": ((FIRST, 0, 5, 10, 10, None), None),
    "unknown strategy": ((9, 0, 5, 0, 10, None), None),
}


@pytest.mark.parametrize("case", POLLS)
def test_poll(case: str) -> None:
    asked, expected = POLLS[case]
    assert plan_poll(*asked) == expected


def test_no_plan_leaves_what_is_readable() -> None:
    for kind in range(1, 6):
        for value in (0, 1, 5, 9, 10, 2**63):
            for count in (0, 1, 4, 2**32 - 1):
                for first, end in ((0, 0), (0, 10), (4, 10), (10, 10)):
                    for stored in (None, 0, 5, 9, 50):
                        found = plan_poll(kind, value, count, first, end, stored)
                        if found is not None and not found.by_time:
                            assert first <= found.start and found.start + found.count <= end
                            assert 1 <= found.count <= count


# --- retention --------------------------------------------------------------------------------------------------------


def segments(*sealed: bool, messages: int = 10) -> list[SegmentTotals]:
    """Segment n holds offsets 10 n .. 10 n + 9, 100 bytes, ops 5 n + 1 .. 5 n + 5, newest entry at 1000 n."""
    return [
        SegmentTotals(5 * n + 1, 5 * n + 5, 10 * n + messages, messages, 10 * messages, 1000 * n, seal)
        for n, seal in enumerate(sealed)
    ]


FOUR = segments(True, True, True, False)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (99, None),
        (100, RetentionPlan(1, 10, 100)),
        (1100, RetentionPlan(2, 20, 200)),
        (10**9, RetentionPlan(3, 30, 300)),
    ],
)
def test_expired_segments_go_and_the_newest_stays(now: int, expected: RetentionPlan | None) -> None:
    assert plan_expiry(FOUR, 0, now, 100) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(400, None), (399, RetentionPlan(1, 10, 100)), (200, RetentionPlan(2, 20, 200)), (0, RetentionPlan(3, 30, 300))],
)
def test_the_oldest_go_until_the_size_holds(limit: int, expected: RetentionPlan | None) -> None:
    assert plan_size(FOUR, 0, limit) == expected


@pytest.mark.parametrize(("wanted", "gone"), [(0, 0), (1, 1), (3, 3), (9, 3)])
def test_as_many_as_were_asked_for_but_only_sealed_ones(wanted: int, gone: int) -> None:
    found = plan_explicit(FOUR, 0, wanted)
    assert (found.segments if found else 0) == gone


def test_nothing_behind_a_segment_that_stays_goes() -> None:
    row = segments(True, False, True, False)
    assert plan_expiry(row, 0, 10**9, 1) == RetentionPlan(1, 10, 100)
    late = [*FOUR[:1], SegmentTotals(6, 10, 20, 10, 100, 10**9, True), *FOUR[2:]]
    assert plan_expiry(late, 0, 5000, 100) == RetentionPlan(1, 10, 100)


def test_a_limit_of_never_removes_nothing() -> None:
    assert plan_expiry(FOUR, 0, 10**18, NEVER) is None and plan_size(FOUR, 0, NEVER) is None
    assert plan_expiry([], 0, 5, 1) is None and plan_explicit(FOUR[3:], 0, 5) is None


def test_segments_without_messages_fall_once_a_checkpoint_covers_them() -> None:
    empty = segments(True, True, False, messages=0)
    assert plan_empty(empty, 7, 4) is None
    assert plan_empty(empty, 7, 5) == RetentionPlan(1, 7, 0)
    assert plan_empty(empty, 7, 99) == RetentionPlan(2, 7, 0)
    assert plan_empty(FOUR, 0, 99) is None


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_bodies_are_pinned() -> None:
    stores = offsets.encode_stores([(1, 1, 0x01020304, 5), (2, 0, 6, 2**62 - 1)])
    assert stores == bytes.fromhex("02000000 01010000 04030201 0500000000000000 02000000 06000000 ffffffffffffff3f")
    assert offsets.decode_stores(memoryview(stores)) == [(1, 1, 0x01020304, 5), (2, 0, 6, 2**62 - 1)]
    keys = offsets.encode_keys([(2, 9)])
    assert keys == bytes.fromhex("01000000 02000000 09000000") and offsets.decode_keys(keys) == [(2, 9)]
    assert offsets.encode_purge(5) == bytes([5]) + bytes(7) and offsets.decode_purge(offsets.encode_purge(5)) == 5
    assert offsets.decode_truncate(offsets.encode_truncate(5, 6)) == (5, 6)


BAD_STORES = {
    "empty": b"",
    "short count": b"\0\0\0",
    "short entry": bytes.fromhex("01000000 01000000 04030201 05000000000000"),
    "trailing byte": bytes.fromhex("00000000 00"),
    "huge count": b"\xff" * 4 + bytes(16),
    "kind 0": bytes.fromhex("01000000 00000000 04030201 0500000000000000"),
    "kind 3": bytes.fromhex("01000000 03000000 04030201 0500000000000000"),
    "unknown flag": bytes.fromhex("01000000 01020000 04030201 0500000000000000"),
    "padding": bytes.fromhex("01000000 01000100 04030201 0500000000000000"),
    "offset of 2**62": bytes.fromhex("01000000 01000000 04030201 0000000000000040"),
}


@pytest.mark.parametrize("case", BAD_STORES)
def test_a_store_that_does_not_decode(case: str) -> None:
    with pytest.raises(DecodeError):
        offsets.decode_stores(BAD_STORES[case])


@pytest.mark.parametrize(
    "body", [b"", b"\x01\0\0\0\x01\0\0\0", bytes.fromhex("01000000 01010000 09000000"), b"\x01\0\0\0" + bytes(8)]
)
def test_a_delete_that_does_not_decode(body: bytes) -> None:
    with pytest.raises(DecodeError):
        offsets.decode_keys(body)


def test_purge_and_truncation_have_one_length_and_a_bound() -> None:
    for body in (b"", bytes(7), bytes(9), b"\xff" * 8):
        with pytest.raises(DecodeError):
            offsets.decode_purge(body)
    for body in (b"", bytes(15), bytes(17), b"\xff" * 8 + bytes(8), bytes(8) + b"\xff" * 8):
        with pytest.raises(DecodeError):
            offsets.decode_truncate(body)
