"""Every request and reply: encoding and decoding are inverse, and nothing but a typed error leaves a decoder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardsrv.errors import BatchError, DecodeError, EncodeError, Truncated
from shardsrv.wire import batch, replies, requests
from shardsrv.wire.login import decode_login
from shardsrv.wire.message import Message, Reply, Request
from shardsrv.wire.messages import SendReply
from shardsrv.wire.options import decode_options, encode_options
from shardsrv.wire.permissions import decode_permissions, encode_permissions
from shardsrv.wire.typed_values import (
    TypedValue,
    UserHeader,
    ValueKind,
    decode_user_headers,
    encode_user_headers,
)
from tests.properties.wire_strategies import OPTIONS, PERMISSIONS, TYPED, messages_of

REQUESTS: list[type[Request]] = sorted(set(requests.REQUESTS.values()), key=lambda kind: kind.__name__)
REPLIES: list[type[Reply]] = sorted(set(replies.REPLIES.values()), key=lambda kind: kind.__name__)
few = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
some = settings(max_examples=50, deadline=None)


def name(kind: type[Message]) -> str:
    return kind.__name__


@pytest.mark.parametrize("kind", [*REQUESTS, *REPLIES], ids=name)
@few
@given(data=st.data())
def test_a_message_survives_the_wire(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    encoded = message.encode()
    decoded = kind.decode(encoded)
    assert decoded == message
    assert decoded.encode() == encoded


@pytest.mark.parametrize("kind", [*REQUESTS, *REPLIES], ids=name)
@few
@given(data=st.data())
def test_only_typed_errors_leave_a_decoder(kind: type[Message], data: st.DataObject) -> None:
    encoded = bytearray(data.draw(messages_of(kind)).encode())
    assert_cut_is_told(kind, bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))
    for position, byte in data.draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)):
        if encoded:
            encoded[position % len(encoded)] = byte
    for body in (bytes(encoded), data.draw(st.binary(max_size=80))):
        try:
            decoded = kind.decode(body)
        except DecodeError as error:
            assert error.code in (3, 4)
            assert str(error)
        else:
            decoded.encode()


def assert_cut_is_told(kind: type[Message], cut: bytes) -> None:
    """A body that is cut short is refused, or is a whole message of its own."""
    try:
        decoded = kind.decode(cut)
    except DecodeError:
        return
    assert decoded.encode() in (cut, SendReply().encode())


@some
@given(code=st.sampled_from(sorted(requests.REQUESTS)), body=st.binary(max_size=60))
def test_any_body_of_any_command_is_decoded_or_refused(code: int, body: bytes) -> None:
    for decode in (requests.decode_request, replies.decode_reply):
        try:
            decode(code, body)
        except DecodeError:
            continue


@some
@given(body=st.binary(max_size=60))
def test_login_bodies_are_decoded_or_refused(body: bytes) -> None:
    try:
        attempt = decode_login(body)
    except DecodeError:
        return
    assert attempt.prefix.sdk_name


@some
@given(body=st.binary(max_size=40))
def test_result_sections(body: bytes) -> None:
    try:
        code, payload = replies.split_result(body)
    except DecodeError:
        return
    assert code == 0 or len(payload) == 0


@some
@given(options=OPTIONS, extra=st.binary(max_size=30))
def test_options_blocks(options: Any, extra: bytes) -> None:
    encoded = encode_options(options)
    assert decode_options(encoded) == options
    try:
        longer = decode_options(encoded + extra)
    except DecodeError:
        return
    assert longer[: len(options)] == options


@some
@given(permissions=PERMISSIONS, garbage=st.binary(max_size=40))
def test_permissions(permissions: Any, garbage: bytes) -> None:
    assert decode_permissions(encode_permissions(permissions)) == permissions
    try:
        found = decode_permissions(garbage)
    except DecodeError:
        return
    assert decode_permissions(encode_permissions(found)) == found


@some
@given(pairs=st.lists(st.tuples(TYPED, TYPED), max_size=5), garbage=st.binary(max_size=60))
def test_user_headers(pairs: list[tuple[TypedValue, TypedValue]], garbage: bytes) -> None:
    headers = tuple(UserHeader(key, value) for key, value in pairs)
    assert decode_user_headers(encode_user_headers(headers)) == headers
    try:
        assert encode_user_headers(decode_user_headers(garbage)) == garbage
    except DecodeError:
        return


@some
@given(kind=st.integers(1, 20), raw=st.binary(min_size=1, max_size=16))
def test_typed_values_decode_to_what_encodes_to_them(kind: int, raw: bytes) -> None:
    value = TypedValue(kind, raw)
    try:
        decoded = value.decoded()
    except DecodeError:
        return
    if kind > ValueKind.FLOAT64 or (isinstance(decoded, float) and decoded != decoded):
        return
    assert TypedValue.of(kind, decoded) == value


@some
@given(
    kind=st.integers(-1, 17), value=st.none() | st.integers() | st.text() | st.floats() | st.binary() | st.booleans()
)
def test_typed_values_that_do_not_fit_are_refused(kind: int, value: Any) -> None:
    try:
        encoded = TypedValue.of(kind, value)
    except EncodeError:
        return
    assert encoded.kind == kind


MESSAGES = st.lists(
    st.builds(batch.Message, st.integers(0, 2**128 - 1), st.binary(max_size=50), st.binary(max_size=20)),
    min_size=1,
    max_size=5,
).map(tuple)


@some
@given(messages=MESSAGES, time=st.integers(0, 2**62), position=st.integers(0), bit=st.integers(0, 7))
def test_batches(messages: tuple[batch.Message, ...], time: int, position: int, bit: int) -> None:
    sent = batch.Batch.build(messages, time)
    encoded = sent.encode()
    assert batch.Batch.decode(encoded) == sent
    assert batch.verify_sent_batch(encoded, len(messages)) == sent.header
    stored = sent.stamped(7, 100, time)
    assert batch.verify_batch(stored.encode()) == stored.header
    part = stored.sliced(stored.messages[:1])
    assert batch.verify_batch(part.encode()).message_count == 1
    joined = stored.encode() + part.encode()
    assert [bytes(one) for one in batch.batches_of(joined)] == [stored.encode(), part.encode()]
    damaged = bytearray(encoded)
    damaged[position % len(damaged)] ^= 1 << bit
    with pytest.raises(BatchError):
        batch.verify_sent_batch(damaged, len(messages))


@some
@given(records=st.binary(max_size=700), count=st.integers(0, 5))
def test_records_that_are_no_batches(records: bytes, count: int) -> None:
    for check in (batch.verify_batch, batch.Batch.decode, lambda view: list(batch.batches_of(view))):
        try:
            check(records)  # type: ignore[operator]
        except BatchError as error:
            assert error.code in (3, 4027, 4039)
    try:
        list(batch.frames_of(bytes(256) + records, count))
    except BatchError:
        return


def test_truncation_names_the_place() -> None:
    with pytest.raises(Truncated) as caught:
        requests.decode_request(21, b"\x01\x02")
    assert (caught.value.offset, caught.value.expected, caught.value.found) == (0, 4, 2)
