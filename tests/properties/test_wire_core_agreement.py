"""The compiled twins of the wire's batches and sends agree with the reference: same verdicts, same bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv import _core
from shardsrv.errors import BatchError, DecodeError
from shardsrv.wire import batch
from shardsrv.wire.client_headers import RequestHeader
from shardsrv.wire.cursor import Cursor
from shardsrv.wire.frames import build_reply
from shardsrv.wire.messages import SendConfirmation, SendMessages, SendReply, decode_send_target
from tests.properties.wire_strategies import IDENTIFIERS, PARTITIONINGS

some = settings(max_examples=100, deadline=None)
more = settings(max_examples=300, deadline=None)

MESSAGES = st.lists(
    st.builds(batch.Message, st.integers(0, 2**128 - 1), st.binary(max_size=50), st.binary(max_size=20)),
    min_size=1,
    max_size=4,
).map(tuple)
SENT = st.builds(batch.Batch.build, MESSAGES, st.integers(0, 2**62))


@st.composite
def sends(draw: st.DrawFn) -> SendMessages:
    sent = draw(SENT)
    return SendMessages(draw(IDENTIFIERS), draw(IDENTIFIERS), draw(PARTITIONINGS), len(sent.messages), sent.encode())


def reference_accepts(body: bytes) -> bool:
    try:
        send = SendMessages.decode(body)
        batch.verify_sent_batch(send.batch, send.messages_count)
    except (DecodeError, BatchError):
        return False
    return True


def core_accepts(body: bytes) -> bool:
    try:
        _core.parse_send(body)
    except _core.BatchRefused:
        return False
    return True


@some
@given(send=sends())
def test_a_send_is_read_alike(send: SendMessages) -> None:
    body = send.encode()
    target = _core.parse_send(body)
    assert decode_send_target(target.key) == (send.stream, send.topic, send.partitioning)
    assert body[target.batch_offset :] == send.batch
    header = batch.BatchHeader.unpack(send.batch)
    assert (target.digest, target.message_count) == (header.batch_checksum, header.message_count)
    assert (target.batch_length, target.origin_timestamp) == (header.batch_length, header.origin_timestamp)


@more
@given(
    send=sends(), changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=2), cut=st.integers(0, 40)
)
def test_a_damaged_send_is_judged_alike(send: SendMessages, changes: list[tuple[int, int]], cut: int) -> None:
    body = bytearray(send.encode())
    for position, byte in changes:
        body[position % len(body)] = byte
    damaged = bytes(body[: len(body) - cut] if cut < 20 else body)
    assert reference_accepts(damaged) is core_accepts(damaged)


@some
@given(sent=SENT, partition=st.integers(0, 2**20), offset=st.integers(0, 2**61), time=st.integers(0, 2**61))
def test_a_batch_is_stamped_alike(sent: batch.Batch, partition: int, offset: int, time: int) -> None:
    stored = sent.stamped(partition, offset, time)
    stamped = bytearray(sent.encode())
    assert _core.stamp_batch(stamped, partition, offset, time) == stored.header.batch_checksum
    assert bytes(stamped) == stored.encode()
    assert _core.check_batch(stamped) == 0
    stamped[-1] ^= 1
    assert _core.check_batch(stamped) != 0


@some
@given(
    body=st.binary(max_size=40),
    steps=st.lists(st.sampled_from(["u8", "u16", "u32", "u64", "u128", "rest"]), max_size=6),
)
def test_cursors_read_alike(body: bytes, steps: list[str]) -> None:
    ours, theirs = Cursor(body), _core.Cursor(body)
    for step in steps:
        results = []
        for cursor, failure in ((ours, DecodeError), (theirs, _core.Truncated)):
            try:
                results.append(bytes(value) if isinstance(value := getattr(cursor, step)(), memoryview) else value)
            except failure:
                results.append(None)
        assert results[0] == results[1]
        assert (ours.position, ours.remaining) == (theirs.position, theirs.remaining)


@some
@given(
    checksum=st.integers(0, 2**64 - 1),
    request=st.integers(0, 2**62),
    op=st.integers(0, 2**61),
    status=st.sampled_from([0, 41]),
)
def test_reply_headers_are_packed_alike(checksum: int, request: int, op: int, status: int) -> None:
    header = RequestHeader(client=b"c" * 16, operation=161, request=request, request_checksum=checksum, session=3)
    body = b"" if status else b"\0\0\0\0"
    fields: dict[str, Any] = {"op": op, "commit": op, "timestamp": 77, "operation": 161, "cluster": b"k" * 16}
    packed = _core.pack_reply(header.pack(), status=status, body_length=len(body), **fields)
    assert packed + body == build_reply(header, status, body, **fields)


def test_send_replies_are_packed_alike() -> None:
    assert _core.send_reply_body(1, 2, 3, 99) == SendReply((SendConfirmation(1, 2, 3, 99),)).encode()
