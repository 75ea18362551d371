"""Batches: a recorded send and its recorded polls, every check of a send body, stamping, mutations of valid input."""

import struct

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv import _core
from tests.support.batches import decode_batches, encode_batch
from tests.support.entries import cut, send_body, stamped

RESERVED = "00" * 204
RECORDED_SEND = bytes.fromhex(
    "1a0000000206676f6c64656e02066576656e747302040000000003000000"
    "0000000000000000000000000000000000000000000000006a02168b696106009b01000000000000e66e9104e29c2c4e03000000"
    + RESERVED
    + "d1fa5e01b2e635ba012de99383f5469f9f0aa4e72d616c210000000000000000000000000300000000000000000000006f6e65"
    "2e8c62ae45742b896ba759b8cb42428a94f677d463d4639201000000030000000000000003000000000000000000000074776f"
    "11c069a7eacbcb542da85c96d0ab46c49657ab7ebacdc6960200000003000000000000000500000000000000000000007468726565"
)
"""A client's send of the messages "one", "two", "three" to stream "golden", topic "events", partition 0."""

RECORDED_TIMESTAMP = 1795955793199961
RECORDED_POLL_END = bytes.fromhex(
    "000000000000000001000000000000005903168b696106006a02168b696106006601000000000000cbfdf6cddf069ad302000000"
    + RESERVED
    + "d1fa5e01b2e635ba012de99383f5469f9f0aa4e72d616c210000000000000000000000000300000000000000000000006f6e65"
    "2e8c62ae45742b896ba759b8cb42428a94f677d463d4639201000000030000000000000003000000000000000000000074776f"
)
"""The same batch as another server stored it at offset 1, cut behind its second message."""
RECORDED_POLL_START = bytes.fromhex(
    "000000000000000001000000000000005903168b696106006a02168b696106006801000000000000e6d6001c960a5d8502000000"
    + RESERVED
    + "2e8c62ae45742b896ba759b8cb42428a94f677d463d4639201000000030000000000000003000000000000000000000074776f"
    "11c069a7eacbcb542da85c96d0ab46c49657ab7ebacdc6960200000003000000000000000500000000000000000000007468726565"
)
"""The same stored batch from its second message on."""

STREAM = b"\x01\x04\x07\0\0\0"
TOPIC = b"\x02\x06events"
PARTITION = b"\x02\x04\0\0\0\0"
BATCH = encode_batch([b"first", b"", b"third" * 40])
BODY = send_body(BATCH, STREAM, TOPIC, PARTITION, 3)


def refused(body: bytes) -> _core.BatchRefused:
    with pytest.raises(_core.BatchRefused) as caught:
        _core.parse_send(body)
    return caught.value


def test_recorded_send() -> None:
    target = _core.parse_send(RECORDED_SEND)
    assert target.key == b"\x02\x06golden\x02\x06events\x02\x04\0\0\0\0"
    assert (target.batch_offset, target.batch_length, target.message_count) == (30, 411, 3)
    assert target.digest == int.from_bytes(bytes.fromhex("e66e9104e29c2c4e"), "little")
    assert target.origin_timestamp == 1795955793199722


def test_recorded_batch_stamped_and_cut_as_another_server_did() -> None:
    batch = bytearray(RECORDED_SEND[30:])
    _core.stamp_batch(batch, 0, 1, RECORDED_TIMESTAMP)
    assert cut(bytes(batch), 0, 2) == RECORDED_POLL_END
    assert cut(bytes(batch), 1, 3) == RECORDED_POLL_START
    assert [_core.check_batch(record) for record in (batch, RECORDED_POLL_END, RECORDED_POLL_START)] == [0, 0, 0]


@given(
    payloads=st.lists(st.binary(max_size=60), min_size=1, max_size=12),
    name=st.text(min_size=1, max_size=60).filter(lambda text: len(text.encode("utf-8", "surrogatepass")) <= 255),
    origin=st.integers(0, 2**64 - 1),
)
@settings(max_examples=60)
def test_send_round_trip(payloads: list[bytes], name: str, origin: int) -> None:
    encoded = name.encode()
    stream = bytes([2, len(encoded)]) + encoded
    batch = encode_batch(payloads, origin)
    target = _core.parse_send(bytearray(send_body(batch, stream, TOPIC, b"\x03\x03key", len(payloads))))
    assert target.key == stream + TOPIC + b"\x03\x03key"
    assert target.digest == int.from_bytes(batch[40:48], "little")
    assert (target.message_count, target.origin_timestamp) == (len(payloads), origin)


@pytest.mark.parametrize("messages", [1, 506, 507, 3000])
def test_batches_below_and_above_the_stack_gather(messages: int) -> None:
    batch = bytearray(encode_batch([b"m" * (index % 50) for index in range(messages)]))
    target = _core.parse_send(send_body(bytes(batch), STREAM, TOPIC, PARTITION, messages))
    assert target.message_count == messages
    expected = stamped(bytes(batch), 4, 77, 88)
    assert _core.stamp_batch(batch, 4, 77, 88) == int.from_bytes(expected[40:48], "little")
    assert batch == expected
    assert [message.offset for message in decode_batches(bytes(batch))[0].messages] == list(range(77, 77 + messages))


@pytest.mark.parametrize(
    ("stream", "partitioning"),
    [
        (b"\x01\x03\0\0\0", PARTITION),  # numeric of three bytes
        (b"\x01\x05\0\0\0\0\0", PARTITION),
        (b"\x02\x00", PARTITION),  # empty name
        (b"\x02\x02\xc3\x28", PARTITION),  # not UTF-8
        (b"\x02\x03\xed\xa0\x80", PARTITION),  # a surrogate
        (b"\x00\x04\0\0\0\0", PARTITION),  # unknown kinds
        (b"\x03\x04\0\0\0\0", PARTITION),
        (STREAM, b"\x01\x01\0"),  # balanced with a value
        (STREAM, b"\x02\x03\0\0\0"),
        (STREAM, b"\x03\x00"),  # empty key
        (STREAM, b"\x04\x04\0\0\0\0"),
        (STREAM, b"\x00\x00"),
    ],
)
def test_metadata_that_does_not_decode(stream: bytes, partitioning: bytes) -> None:
    assert refused(send_body(BATCH, stream, TOPIC, partitioning, 3)).code == 3


@pytest.mark.parametrize("partitioning", [b"\x01\x00", PARTITION, b"\x03\x01k", b"\x03\xff" + bytes(range(255))])
def test_every_partitioning(partitioning: bytes) -> None:
    assert _core.parse_send(send_body(BATCH, STREAM, TOPIC, partitioning, 3)).key == STREAM + TOPIC + partitioning


@pytest.mark.parametrize("change", [-1, 1, 2**31, 2**32 - 1 - len(STREAM + TOPIC + PARTITION) - 4])
def test_metadata_length_must_fit_its_fields(change: int) -> None:
    length = int.from_bytes(BODY[:4], "little") + change
    assert refused(struct.pack("<I", length) + BODY[4:]).code == 3


@pytest.mark.parametrize("count", [0, 2, 4, 2**32 - 1])
def test_counts_must_agree(count: int) -> None:
    assert refused(send_body(BATCH, STREAM, TOPIC, PARTITION, count)).code == 3
    changed = bytearray(BATCH)
    changed[48:52] = struct.pack("<I", count)
    assert refused(send_body(bytes(changed), STREAM, TOPIC, PARTITION, count)).code == 3


def test_no_messages() -> None:
    empty = bytearray(256)
    empty[32:40] = struct.pack("<Q", 256)
    empty[40:48] = struct.pack("<Q", xxhash.xxh3_64_intdigest(empty[:40] + empty[48:52]))
    assert refused(send_body(bytes(empty), STREAM, TOPIC, PARTITION, 0)).code == 3
    assert _core.check_batch(empty) == 3


def test_every_prefix_is_refused() -> None:
    for end in range(len(BODY)):
        assert refused(BODY[:end]).code == 3
    assert refused(BODY + b"\0").code == 3


def test_every_flipped_bit_of_the_batch_is_refused() -> None:
    begin = len(BODY) - len(BATCH)
    codes = set()
    for position in range(begin, len(BODY)):
        for bit in range(8):
            changed = bytearray(BODY)
            changed[position] ^= 1 << bit
            codes.add(refused(bytes(changed)).code)
    assert codes == {3, 4027, 4039}


@pytest.mark.parametrize(
    ("position", "code"),
    [
        (0, 4039),
        (8, 4039),
        (16, 4039),
        (24, 4039),
        (32, 3),
        (40, 4039),
        (48, 3),
        (52, 3),
        (255, 3),
        (256, 4027),
        (264, 4027),
        (296, 3),
        (304, 4027),
    ],
)
def test_code_of_a_fault(position: int, code: int) -> None:
    changed = bytearray(BATCH)
    changed[position] ^= 1
    assert _core.check_batch(changed) == code
    assert refused(send_body(bytes(changed), STREAM, TOPIC, PARTITION, 3)).code == code


def test_server_fields_sent_with_a_matching_checksum_are_overwritten() -> None:
    sent = stamped(BATCH, 9, 8, 7)
    assert _core.parse_send(send_body(sent, STREAM, TOPIC, PARTITION, 3)).digest == int.from_bytes(
        sent[40:48], "little"
    )
    stored = bytearray(sent)
    _core.stamp_batch(stored, 1, 2, 3)
    assert stored == stamped(BATCH, 1, 2, 3)


def test_stamping_refuses_and_leaves_the_bytes_alone() -> None:
    for damage in (
        lambda batch: batch[:-1],
        lambda batch: batch[:300],
        lambda batch: batch + b"\0",
        lambda batch: batch[:100],
    ):
        batch = bytearray(damage(BATCH))
        before = bytes(batch)
        with pytest.raises(_core.BatchRefused) as caught:
            _core.stamp_batch(batch, 1, 2, 3)
        assert caught.value.code == 3
        assert batch == before
    with pytest.raises(BufferError):
        _core.stamp_batch(BATCH, 1, 2, 3)
    for offset, time in ((2**62, 0), (0, 2**62)):
        with pytest.raises(ValueError, match="2\\*\\*62"):
            _core.stamp_batch(bytearray(BATCH), 0, offset, time)


@given(st.binary(max_size=700))
@settings(max_examples=150)
def test_random_bytes_are_refused_by_type(data: bytes) -> None:
    assert refused(data).code == 3
    assert _core.check_batch(data) == 3


@given(st.data())
@settings(max_examples=200)
def test_mutated_bodies_never_raise_anything_else(data: st.DataObject) -> None:
    body = bytearray(BODY)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        width = data.draw(st.sampled_from([1, 4, 8]))
        body[at : at + width] = data.draw(st.sampled_from([b"\0", b"\xff", b"\x01\x7f"])) * width
    try:
        target = _core.parse_send(bytes(body))
    except _core.BatchRefused as refusal:
        assert refusal.code in (3, 4027, 4039)
        assert 0 <= refusal.offset <= len(body)
        assert refusal.reason in str(refusal)
    else:
        assert body[target.batch_offset :] == BATCH
