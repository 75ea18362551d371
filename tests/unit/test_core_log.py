"""The log scan: chains, chunks, and where and why it stops."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv._core import BAD_BODY, BAD_CHAIN, BAD_HEADER, SHORT, VALID, ZERO, Prepare, scan_log
from tests.support.batches import encode_batch
from tests.support.entries import SEND_MESSAGES, log_of, stamped

BODIES = [
    (161, b"one"),
    (SEND_MESSAGES, stamped(encode_batch([b"x", b"y"]), 0, 0, 5)),
    (192, b""),
    (SEND_MESSAGES, stamped(encode_batch([b"z"]), 0, 2, 6)),
]
LOG = log_of(BODIES)


def starts(log: bytes) -> list[int]:
    positions = [0]
    while positions[-1] < len(log):
        positions.append(positions[-1] + int.from_bytes(log[positions[-1] + 48 : positions[-1] + 52], "little"))
    return positions


EDGES = starts(LOG)


def test_the_whole_log() -> None:
    seen: list[tuple[int, int, bytes]] = []
    scan = scan_log(LOG, 0, 0, 1, lambda prepare, position: seen.append((prepare.op, position, bytes(prepare.body))))
    assert (scan.verdict, scan.position, scan.count, scan.first_op, scan.last_op, scan.needed) == (
        VALID,
        len(LOG),
        4,
        1,
        4,
        0,
    )
    last = Prepare.load(LOG, EDGES[3])
    assert (scan.last_checksum, scan.last_timestamp) == (last.checksum, last.timestamp)
    assert seen == [(op, EDGES[op - 1], body) for op, (_, body) in enumerate(BODIES, 1)]
    silent = scan_log(LOG, 0, 0, 1)
    assert all(
        getattr(silent, name) == getattr(scan, name)
        for name in ("verdict", "position", "count", "last_checksum", "last_timestamp")
    )


@given(st.lists(st.integers(0, len(LOG)), max_size=5))
@settings(max_examples=60)
def test_in_chunks_as_at_once(cuts: list[int]) -> None:
    parent, next_op, position, ops = 0, 1, 0, []
    for end in [*sorted(cuts), len(LOG)]:
        if end < position:
            continue
        scan = scan_log(LOG[:end], position, parent, next_op, lambda prepare, _: ops.append(prepare.op))
        assert scan.verdict in (VALID, SHORT)
        assert scan.position == max(edge for edge in EDGES if edge <= max(end, position))
        parent, next_op, position = scan.last_checksum, scan.last_op + 1, scan.position
    assert ops == [1, 2, 3, 4]


def test_every_cut_is_short_and_names_what_is_needed() -> None:
    for end in range(len(LOG)):
        scan = scan_log(LOG[:end], 0, 0, 1)
        if end in EDGES:
            assert (scan.verdict, scan.needed) == (VALID, 0)
        else:
            begin = max(edge for edge in EDGES if edge <= end)
            whole = EDGES[EDGES.index(begin) + 1] - begin
            assert (scan.verdict, scan.position, scan.needed) == (SHORT, begin, 256 if end - begin < 256 else whole)


def test_a_stop_says_where_and_why() -> None:
    def verdict_of(log: bytes, parent: int = 0, next_op: int = 1, check_body: bool = True) -> tuple[int, int, int]:
        scan = scan_log(log, 0, parent, next_op, None, check_body)
        return scan.verdict, scan.position, scan.count

    assert verdict_of(LOG + bytes(300)) == (ZERO, len(LOG), 4)
    assert verdict_of(LOG, parent=1) == (BAD_CHAIN, 0, 0)
    assert verdict_of(LOG, next_op=2) == (BAD_CHAIN, 0, 0)
    assert verdict_of(LOG[: EDGES[1]] + LOG[EDGES[2] :]) == (BAD_CHAIN, EDGES[1], 1)
    assert verdict_of(LOG[: EDGES[2]] + LOG[EDGES[1] :]) == (BAD_CHAIN, EDGES[2], 2)
    body = bytearray(LOG)
    body[EDGES[1] + 600] ^= 4
    assert verdict_of(bytes(body)) == (BAD_BODY, EDGES[1], 1)
    assert verdict_of(bytes(body), check_body=False) == (VALID, len(LOG), 4)
    header = bytearray(LOG)
    header[EDGES[3] + 100] ^= 4
    assert verdict_of(bytes(header)) == (BAD_HEADER, EDGES[3], 3)


def test_nothing_there() -> None:
    scan = scan_log(b"", 0, 77, 9)
    assert (scan.verdict, scan.first_op, scan.last_op, scan.last_checksum, scan.last_timestamp, scan.count) == (
        VALID,
        0,
        8,
        77,
        0,
        0,
    )


def test_what_the_callback_raises_comes_out_and_the_buffer_is_free() -> None:
    log = bytearray(LOG)
    with pytest.raises(ZeroDivisionError):
        scan_log(log, 0, 0, 1, lambda prepare, position: 1 // 0)
    log.clear()


def test_arguments_that_a_caller_must_not_pass() -> None:
    for position, next_op in ((-1, 1), (len(LOG) + 1, 1), (0, 0), (0, 2**62)):
        with pytest.raises(ValueError):
            scan_log(LOG, position, 0, next_op)


@given(st.integers(0, len(LOG) - 1), st.binary(min_size=1, max_size=9))
@settings(max_examples=150)
def test_damage_never_passes(at: int, garbage: bytes) -> None:
    log = bytearray(LOG)
    log[at : at + len(garbage)] = garbage
    damaged = bytes(log[: len(LOG)])
    scan = scan_log(damaged, 0, 0, 1)
    if damaged == LOG:
        assert scan.verdict == VALID
    else:
        assert scan.verdict not in (VALID, SHORT)
        assert scan.position <= at + len(garbage)
        assert damaged[: scan.position] == LOG[: scan.position]
