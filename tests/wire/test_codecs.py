"""Field codecs, cursor, options, groups, frames and registries of the wire: edges and refusals by hand."""

from __future__ import annotations

from typing import Any

import pytest

from shardsrv import errors
from shardsrv.errors import BatchError, DecodeError, EncodeError, RequestRefused, ShardsrvError, Truncated
from shardsrv.wire import batch, codec, frames, groups, options, primitives, replies, requests
from shardsrv.wire.client_headers import ReplyHeader, RequestHeader
from shardsrv.wire.codes import CODE_OF_OPERATION, COMMANDS, CommandCode
from shardsrv.wire.constants import METADATA_GROUP, ConsumerKind, Operation, PartitioningKind, version_accepted
from shardsrv.wire.cursor import Cursor
from shardsrv.wire.error_codes import ERROR_NAMES, ErrorCode, error_name
from shardsrv.wire.login import decode_login
from shardsrv.wire.messages import PollReply, SendMessages, SendReply, decode_send_target
from shardsrv.wire.permissions import decode_permissions
from shardsrv.wire.streams import CreateStream, StreamDetailsReply, StreamRecord
from shardsrv.wire.typed_values import TypedValue, ValueKind, decode_user_headers, encode_user_headers

CLIENT = b"c" * 16


def every_error() -> list[type[ShardsrvError]]:
    found: list[type[ShardsrvError]] = []
    waiting = [ShardsrvError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting.extend(kind.__subclasses__())
    return found


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_code_of_the_table_and_a_message(kind: type[ShardsrvError]) -> None:
    if kind is RequestRefused:
        return
    error = kind()
    assert int(error.code) in ERROR_NAMES
    assert str(error) and error.facts() == {name: getattr(error, name) for name in error.facts()}


def test_a_refusal_says_its_code_and_facts() -> None:
    error = RequestRefused(ErrorCode.STREAM_ID_NOT_FOUND, stream=7)
    assert (error.code, error.facts()) == (1009, {"stream": 7})
    assert str(error) == "StreamIdNotFound (1009), stream=7"


def test_transient_errors_say_what_a_client_may_do() -> None:
    assert (errors.NotAccepted().code, errors.OutcomeUnknown().code) == (58, 57)
    assert issubclass(errors.NotAccepted, errors.Transient)


def test_error_table() -> None:
    assert len(ERROR_NAMES) == len(ErrorCode) == 240
    assert error_name(3024) == "TooManyConsumerOffsets" and error_name(99_999) == "Error"
    assert ErrorCode.INVALID_BATCH_CHECKSUM == 4039


# --- cursor ----------------------------------------------------------------------------------------------------------


def test_cursor_reads_little_endian() -> None:
    cursor = Cursor(bytes(range(1, 32)) + b"\x00\x00\xc0\x3f" + b"tail")
    assert cursor.u8() == 1
    assert cursor.u16() == 0x0302
    assert cursor.u32() == 0x07060504
    assert cursor.u64() == 0x0F0E0D0C0B0A0908
    assert cursor.u128() == int.from_bytes(range(16, 32), "little")
    assert cursor.f32() == 1.5
    assert bytes(cursor.take(2)) == b"ta" and cursor.remaining == 2
    assert bytes(cursor.rest()) == b"il" and cursor.remaining == 0


@pytest.mark.parametrize("read", ["u8", "u16", "u32", "u64", "u128", "f32"])
def test_a_read_past_the_end_consumes_nothing(read: str) -> None:
    size = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "u128": 16, "f32": 4}[read]
    cursor = Cursor(bytes(size + 2))
    cursor.take(3)
    with pytest.raises(Truncated) as caught:
        getattr(cursor, read)()
    assert (cursor.position, cursor.remaining) == (3, size - 1)
    assert (caught.value.offset, caught.value.expected, caught.value.found) == (3, size, size - 1)


@pytest.mark.parametrize("length", [-1, 5, 2**63])
def test_lengths_outside_the_buffer(length: int) -> None:
    cursor = Cursor(bytes(4))
    with pytest.raises(Truncated):
        cursor.take(length)
    assert cursor.position == 0


# --- primitives ------------------------------------------------------------------------------------------------------

MALFORMED: list[tuple[str, Any, str]] = [
    ("empty name", primitives.NAME_CODEC, "00"),
    ("name past the end", primitives.NAME_CODEC, "0561"),
    ("name that is not UTF-8", primitives.NAME_CODEC, "02fffe"),
    ("surrogate in a name", primitives.NAME_CODEC, "03eda080"),
    ("identifier kind 0", primitives.IDENTIFIER_CODEC, "000400000000"),
    ("identifier kind 3", primitives.IDENTIFIER_CODEC, "030400000000"),
    ("numeric identifier of 5 bytes", primitives.IDENTIFIER_CODEC, "01050000000000"),
    ("named identifier without a name", primitives.IDENTIFIER_CODEC, "0200"),
    ("consumer kind 3", primitives.ConsumerCodec(), "03010400000000"),
    ("partition without its number", primitives.OptionalPartitionCodec(), "00"),
    ("partitioning kind 4", primitives.PARTITIONING_CODEC, "0400"),
    ("balanced with a value", primitives.PARTITIONING_CODEC, "010400000000"),
    ("partition id of 2 bytes", primitives.PARTITIONING_CODEC, "02020000"),
    ("empty messages key", primitives.PARTITIONING_CODEC, "0300"),
    ("polling kind 6", primitives.PollingStrategyCodec(), "060000000000000000"),
    ("count beyond the body", codec.Counted(4, codec.U32_CODEC), "ffffffff00000000"),
    ("text longer than its body", codec.Text(4), "ffffffff61"),
]


@pytest.mark.parametrize(("what", "field", "raw"), MALFORMED, ids=[what for what, _, _ in MALFORMED])
def test_malformed_fields_are_refused(what: str, field: Any, raw: str) -> None:
    with pytest.raises(DecodeError):
        field.read(Cursor(bytes.fromhex(raw)), what)


UNENCODABLE: list[tuple[Any, Any]] = [
    (primitives.NAME_CODEC, ""),
    (primitives.NAME_CODEC, "n" * 256),
    (primitives.NAME_CODEC, "\ud800"),
    (primitives.IDENTIFIER_CODEC, -1),
    (primitives.IDENTIFIER_CODEC, 2**32),
    (primitives.PARTITIONING_CODEC, primitives.Partitioning(PartitioningKind.BALANCED, 4)),
    (primitives.PARTITIONING_CODEC, primitives.Partitioning(PartitioningKind.MESSAGES_KEY, b"")),
    (primitives.IdBytes(), b"short"),
    (codec.Enum8(ConsumerKind), 9),
    (codec.Float32(), 1e300),
    (codec.Counted(1, codec.U8_CODEC), (0,) * 256),
]


@pytest.mark.parametrize(("field", "value"), UNENCODABLE, ids=[str(i) for i in range(len(UNENCODABLE))])
def test_values_that_do_not_fit_are_not_written(field: Any, value: Any) -> None:
    with pytest.raises(EncodeError):
        field.write(bytearray(), value, "field")


@pytest.mark.parametrize("make", [codec.UntilEnd, lambda item: codec.Counted(4, item)], ids=["to the end", "counted"])
def test_items_without_bytes_are_refused_at_import(make: Any) -> None:
    with pytest.raises(ValueError):
        make(codec.Rest())


def test_a_flag_that_is_neither_0_nor_1_means_absent_for_partitions() -> None:
    read = primitives.OptionalPartitionCodec().read
    assert read(Cursor(bytes.fromhex("0107000000")), "") == 7
    assert read(Cursor(bytes.fromhex("0207000000")), "") is None


def test_offset_keys() -> None:
    assert primitives.Consumer(ConsumerKind.CONSUMER, 17).offset_key() == 17
    assert primitives.Consumer(ConsumerKind.CONSUMER, "").offset_key() == 0x02CC5D05


def test_requests_for_bytes_in_any_buffer() -> None:
    encoded = CreateStream("s").encode()
    for buffer in (encoded, bytearray(encoded), memoryview(encoded)):
        assert CreateStream.decode(buffer) == CreateStream("s")


# --- options, headers, permissions -----------------------------------------------------------------------------------


def option(key: str, value: str = "v") -> options.Option:
    return options.Option(key, TypedValue.text(value))


def test_options_refuse_what_the_block_forbids() -> None:
    one = options.encode_options((option("a"),))
    with pytest.raises(DecodeError):
        options.decode_options(one + one)
    with pytest.raises(DecodeError):
        options.decode_options(b"\x01" + one[1:])
    with pytest.raises(DecodeError):
        options.decode_options(one[:-1])
    with pytest.raises(DecodeError):
        options.decode_options(b"\x02\x00\x00\x00\x00" + one[6:])
    many = tuple(option(f"{i}") for i in range(1024))
    assert len(options.decode_options(options.encode_options(many))) == 1024
    extra = options.encode_options((option("one more"),))
    with pytest.raises(DecodeError):
        options.decode_options(options.encode_options(many) + extra)
    with pytest.raises(EncodeError):
        options.encode_options((*many, option("one more")))
    with pytest.raises(EncodeError):
        options.encode_options((option("a"), option("a")))


def test_options_are_bounded_in_bytes() -> None:
    wide = tuple(option(f"{i:0255}", "v" * 255) for i in range(193))
    with pytest.raises(EncodeError):
        options.encode_options(wide)
    assert len(options.encode_options(wide[:192])) <= options.MAX_OPTIONS_SIZE
    with pytest.raises(DecodeError):
        options.decode_options(bytes(options.MAX_OPTIONS_SIZE + 1))


def test_options_of_a_mapping_are_sorted() -> None:
    values = {"b": TypedValue.of(ValueKind.UINT64, 1), "a": TypedValue.of(ValueKind.BOOL, True)}
    assert [one.key for one in options.options_of(values)] == ["a", "b"]


def test_unknown_kinds_pass_through() -> None:
    raw = bytes.fromhex("63010000006b") + bytes.fromhex("ff020000000102")
    headers = decode_user_headers(raw)
    assert headers[0].value.decoded() == b"\x01\x02"
    assert encode_user_headers(headers) == raw


@pytest.mark.parametrize("raw", ["00010000006b0101000000ff", "01000000000101000000ff", "01010000006b", "0101000000"])
def test_malformed_user_headers(raw: str) -> None:
    with pytest.raises(DecodeError):
        decode_user_headers(bytes.fromhex(raw))


def test_user_headers_are_bounded() -> None:
    with pytest.raises(DecodeError):
        decode_user_headers(bytes(100_001))


def test_permissions_without_streams_end_after_eleven_bytes() -> None:
    found = decode_permissions(bytes(9) + b"\x05\x00")
    assert found.global_permissions.send_messages and not found.streams
    with pytest.raises(DecodeError):
        decode_permissions(bytes(12))
    with pytest.raises(Truncated):
        decode_permissions(bytes(10) + b"\x01")


def test_of_duplicate_stream_permissions_the_last_wins() -> None:
    entry = b"\x07\x00\x00\x00" + bytes(5)
    raw = bytes(10) + b"\x01" + entry + b"\x01\x00\x01" + entry + b"\x00\x00\x00"
    assert not decode_permissions(raw).streams[7].send_messages


# --- groups, codes, frames -------------------------------------------------------------------------------------------


def test_group_ids() -> None:
    group = groups.pack_group(3, 5, 999_999)
    assert group == 3 << 32 | 5 << 20 | 999_999 and groups.unpack_group(group) == (3, 5, 999_999)
    assert groups.is_group(0) and groups.is_group(METADATA_GROUP) and not groups.is_group(METADATA_GROUP | 1)
    for ids in ((2**20, 0, 0), (0, 4096, 0), (0, 0, 1_000_000), (-1, 0, 0)):
        with pytest.raises(EncodeError):
            groups.pack_group(*ids)
    for foreign in (METADATA_GROUP, 1_000_000, 1 << 52):
        with pytest.raises(DecodeError):
            groups.unpack_group(foreign)


def test_commands_carry_the_operations_of_the_protocol() -> None:
    assert len(COMMANDS) == 55
    by_operation = {int(info.operation) for info in COMMANDS.values()} - {1, 2}
    assert by_operation == set(CODE_OF_OPERATION) == {3, *range(128, 150), 160, 161, 162}
    assert COMMANDS[302].reply_operation == 64 and COMMANDS[402].reply_operation == 65
    assert COMMANDS[503].reply_operation == 68 and COMMANDS[101].operation == 160
    assert not COMMANDS[1].needs_session and COMMANDS[12].needs_session


def test_the_command_of_a_header() -> None:
    assert requests.command_of(2, 9999) == 9999
    assert requests.command_of(1, 0) == 40 and requests.command_of(138, 0) == CommandCode.DELETE_SEGMENTS
    for operation in (0, 4, 64, 68, 150, 192):
        with pytest.raises(DecodeError):
            requests.command_of(operation, 0)
    with pytest.raises(DecodeError):
        requests.decode_request(38, b"")
    with pytest.raises(DecodeError):
        replies.decode_reply(9999, b"")


def test_a_request_frame_and_its_answers() -> None:
    frame = frames.build_request(CreateStream("s"), client=CLIENT, session=4, number=9)
    header = RequestHeader.unpack(frame)
    header.validate()
    assert (header.size, header.operation, header.code, header.request) == (len(frame), 128, 0, 9)
    assert frames.checksum_matches(header, frame[256:]) and not frames.checksum_matches(header, frame[255:])
    refused = ReplyHeader.unpack(frames.build_reply(header, 41, op=5))
    assert (refused.status, refused.operation, refused.body_size, refused.request) == (41, 128, 0, 9)
    with pytest.raises(EncodeError):
        frames.build_reply(header, 41, b"body")
    body = frames.refusal_body(1012)
    assert replies.split_result(body) == (1012, b"") and len(body) == 12
    assert replies.split_result(frames.success_body(b"xy")) == (0, b"xy")


@pytest.mark.parametrize(
    "raw", ["", "0100000000000000", "ffffffff", "010000000000000000000000", "0100000000000000290000000a"]
)
def test_malformed_result_sections(raw: str) -> None:
    with pytest.raises(DecodeError):
        replies.split_result(bytes.fromhex(raw))


def test_empty_replies() -> None:
    assert replies.decode_reply(CommandCode.GET_STREAM, b"") is None
    assert SendReply.decode(b"").confirmations == ()
    assert PollReply.resync().encode() == bytes.fromhex("ffffffff" + "00" * 12)
    with pytest.raises(DecodeError):
        replies.decode_reply(CommandCode.POLL_MESSAGES, bytes(15))
    with pytest.raises(DecodeError):
        replies.decode_reply(CommandCode.DELETE_STREAM, b"x")


def test_records_and_their_counts_agree() -> None:
    record = StreamRecord(0, 1, 2, 0, 0, "s")
    with pytest.raises(DecodeError):
        StreamDetailsReply.decode(StreamDetailsReply(record, ()).encode())


def test_login_shapes() -> None:
    prefix = bytes.fromhex("002c0000" + "0172" + "0131")
    with_password = decode_login(prefix + b"\x04iggy\x04iggy" + bytes(4))
    assert with_password.password is not None and with_password.password.username == "iggy"
    token_only = decode_login(prefix + b"\x05token" + bytes(4))
    assert token_only.token is not None and token_only.token.token == "token"
    assert token_only.password is None
    neither = decode_login(prefix + b"\x00")
    assert neither.password is None and neither.token is None
    with pytest.raises(DecodeError):
        decode_login(prefix[:5])


@pytest.mark.parametrize(
    ("version", "accepted"),
    [(11264, True), (11265, True), (12287, True), (10240, False), (12288, False), (1 << 20, False)],
)
def test_version_window(version: int, accepted: bool) -> None:
    assert version_accepted(version) is accepted


# --- sends -----------------------------------------------------------------------------------------------------------


def send(**changes: Any) -> SendMessages:
    made = batch.Batch.build((batch.Message(id=1, payload=b"p"),), 5)
    fields: dict[str, Any] = {
        "stream": 1,
        "topic": "t",
        "partitioning": primitives.Partitioning.to_partition(0),
        "messages_count": 1,
        "batch": made.encode(),
    }
    return SendMessages(**fields | changes)


def test_the_metadata_of_a_send_fills_its_length_exactly() -> None:
    body = bytearray(send().encode())
    assert SendMessages.decode(body) == send()
    for wrong in (body[0] - 1, body[0] + 1, 255):
        damaged = bytes([wrong]) + bytes(body[1:])
        with pytest.raises(DecodeError):
            SendMessages.decode(damaged)


def test_the_target_of_a_send_from_its_raw_bytes() -> None:
    body = send().encode()
    key = body[4 : 4 + body[0] - 4]
    assert decode_send_target(key) == (1, "t", primitives.Partitioning.to_partition(0))
    with pytest.raises(DecodeError):
        decode_send_target(key + b"x")


@pytest.mark.parametrize("count", [0, 2])
def test_a_send_with_another_count_is_refused(count: int) -> None:
    with pytest.raises(BatchError):
        batch.verify_sent_batch(send().batch, count)


def test_batches_that_are_not_as_sent_are_refused() -> None:
    made = batch.Batch.decode(send().batch)
    with pytest.raises(BatchError):
        batch.verify_sent_batch(made.stamped(0, 4, 0).encode(), 1)
    empty = batch.Batch.build((), 5).encode()
    assert batch.verify_batch(empty).message_count == 0
    with pytest.raises(BatchError):
        batch.verify_sent_batch(empty, 0)
    for position, code in ((48, 3), (60, 3), (256 + 40, 3), (256 + 8, 4027), (40, 4039), (24, 4039), (32, 3)):
        damaged = bytearray(send().batch)
        damaged[position] ^= 1
        with pytest.raises(BatchError) as caught:
            batch.verify_sent_batch(damaged, 1)
        assert caught.value.code == code, position
    with pytest.raises(BatchError):
        batch.verify_batch(send().batch + b"x")
    with pytest.raises(BatchError):
        batch.BatchHeader.unpack(bytes(256))


def test_operation_names_are_those_of_the_codes() -> None:
    for code, info in COMMANDS.items():
        if info.operation not in (Operation.REGISTER, Operation.NON_REPLICATED, Operation.LOGOUT):
            assert info.operation.name == CommandCode(code).name
