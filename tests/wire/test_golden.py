"""Every recorded exchange, against the codecs: requests, replies and headers decode to the recorded values and encode
to the recorded bytes. Lines that must not decode are named below with the reason; no line is left out silently."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import xxhash

from shardsrv.errors import DecodeError
from shardsrv.wire import batch as batches
from shardsrv.wire.client_headers import EvictionHeader, ReplyHeader, RequestHeader
from shardsrv.wire.codes import COMMANDS
from shardsrv.wire.constants import EvictionReason, is_result_framed
from shardsrv.wire.frames import build_eviction, build_reply, checksum_matches
from shardsrv.wire.headers import frame_size
from shardsrv.wire.login import LoginWithPassword, LoginWithToken, decode_login
from shardsrv.wire.messages import PollReply, SendMessages
from shardsrv.wire.replies import REPLIES, decode_reply, split_result
from shardsrv.wire.requests import REQUESTS, decode_request
from tests.wire.rendering import render

Exchange = dict[str, Any]

RECORDING = Path(__file__).parent.parent / "golden" / "tcp.jsonl.xz"

TRAILING = {496: "get_stream", 558: "login", 646: "ping"}
"""seq -> request with bytes behind its last field: accepted, but the bytes are not kept."""

REFUSED = {
    491: "unknown command code",
    492: "truncated identifier",
    493: "unknown identifier kind",
    494: "numeric identifier of 3 bytes",
    495: "empty name in an identifier",
    497: "no name",
    498: "empty name",
    499: "name that is not UTF-8",
    501: "unknown polling strategy",
    502: "unknown compression of a snapshot",
    503: "unknown scope of options",
    566: "login without a body",
    567: "login of three bytes",
    568: "login that ends behind its prefix",
    569: "login with an empty SDK name",
    576: "legacy login code",
    577: "legacy login code",
    583: "send without a body",
    587: "unknown command code",
    648: "send without a body",
    649: "send of four bytes",
    650: "truncated offset",
    652: "unknown acknowledgement level",
    654: "truncated identifier",
    655: "truncated poll",
}
"""seq -> why the request must be refused by the decoder."""

UNDEFINED = {601, 603, 605, 607, 609, 611, 613, 615, 617, 619, 621, 623, 625, 661}
"""Operations that no client may send: the header is refused before a body is looked at."""

COMMANDS_OF_OTHERS = {627, 629, 631, 633, 635, 637, 639, 641, 643}
"""Frames whose command is not Request."""

OTHER_CODES = {570, 578, 579, 580}
"""Bodies that are recorded without a value but do decode: a token login with an unknown token, and login bodies under
the login codes sent as non-replicated requests (the shapes are of another command)."""

TRANSIENT = (57, 58)
"""Results given before anything is committed: the reply keeps the request's own operation."""


def load() -> list[Exchange]:
    with lzma.open(RECORDING, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def exchanges() -> list[Exchange]:
    found = load()
    assert len(found) == 730
    return found


def failures(errors: list[str]) -> None:
    assert not errors, f"{len(errors)} lines differ:\n" + "\n".join(error[:600] for error in errors[:10])


def body_of(exchange: Exchange) -> bytes:
    return bytes.fromhex(exchange["request_body"])


def decode(exchange: Exchange) -> Any:
    """The request of a line; a register by the shape that the recording states."""
    body = body_of(exchange)
    if exchange["operation_byte"] == 1:
        attempt = decode_login(body)
        wanted = attempt.token if "token" in exchange.get("request", {}) else attempt.password
        if wanted is None:
            raise DecodeError("login", 0, "the recorded shape", body)
        return wanted
    return decode_request(exchange["code"], body)


def test_requests_decode_to_the_recorded_value_and_encode_to_the_recorded_bytes(
    exchanges: list[Exchange], capsys: pytest.CaptureFixture[str]
) -> None:
    errors, count = [], 0
    for exchange in exchanges:
        seq = exchange["seq"]
        if "request" not in exchange or seq in REFUSED:
            continue
        count += 1
        try:
            request = decode(exchange)
        except DecodeError as error:
            errors.append(f"{seq} {exchange['operation']} ({exchange['note']}): {error}")
            continue
        if render(request) != exchange["request"]:
            errors.append(f"{seq} {exchange['operation']}: {render(request)} is not {exchange['request']}")
        elif request.encode() != body_of(exchange):
            errors.append(f"{seq} {exchange['operation']}: encodes to {request.encode().hex()}")
    failures(errors)
    with capsys.disabled():
        print(f"\ngolden: {count} requests decoded and encoded")
    assert count > 670


def test_requests_with_trailing_bytes_are_accepted(exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        if exchange["seq"] in TRAILING:
            request = decode(exchange)
            assert body_of(exchange).startswith(request.encode())
            assert len(request.encode()) < len(body_of(exchange))


@pytest.mark.parametrize("seq", sorted(REFUSED))
def test_malformed_requests_are_refused_with_a_typed_error(seq: int, exchanges: list[Exchange]) -> None:
    exchange = next(one for one in exchanges if one["seq"] == seq)
    with pytest.raises(DecodeError) as caught:
        decode(exchange)
    assert caught.value.code in (3, 4), REFUSED[seq]


def test_every_line_is_accounted_for(exchanges: list[Exchange]) -> None:
    covered = set(TRAILING) | set(REFUSED) | UNDEFINED | COMMANDS_OF_OTHERS | OTHER_CODES
    without = {exchange["seq"] for exchange in exchanges if "request" not in exchange}
    assert without <= covered
    decoded_yet_refused = set(REFUSED) - without
    assert decoded_yet_refused == {498, 499, 501, 502, 503, 569, 652}


def test_request_headers(exchanges: list[Exchange]) -> None:
    errors, count = [], 0
    for exchange in exchanges:
        seq, raw = exchange["seq"], bytes.fromhex(exchange["request_header"])
        if seq in COMMANDS_OF_OTHERS:
            with pytest.raises(DecodeError):
                RequestHeader.unpack(raw)
            continue
        count += 1
        header = RequestHeader.unpack(raw)
        fields = exchange["request_fields"]
        stated = (fields["size"], fields["request"], fields["session"], exchange["operation_byte"])
        if (header.size, header.request, header.session, header.operation) != stated:
            errors.append(f"{seq}: {header} is not {stated}")
        if int.from_bytes(header.client, "little") != fields["client"] or header.pack() != raw:
            errors.append(f"{seq}: packs to {header.pack().hex()}")
        if header.operation == 2 and header.code != exchange["code"]:
            errors.append(f"{seq}: code {header.code} is not {exchange['code']}")
        if header.operation != 2 and exchange["code"] and COMMANDS[exchange["code"]].operation != header.operation:
            errors.append(f"{seq}: code {exchange['code']} has another operation")
        if frame_size(raw) != 256 + len(body_of(exchange)):
            errors.append(f"{seq}: frame size")
    failures(errors)
    assert count == 721


def test_headers_that_break_a_field_rule_are_those_that_met_silence(exchanges: list[Exchange]) -> None:
    """Rules on arrival: exactly the recorded silences (but for a body that was dropped) and internal operations."""
    broken = set()
    for exchange in exchanges:
        if exchange["seq"] in COMMANDS_OF_OTHERS:
            continue
        try:
            RequestHeader.unpack(bytes.fromhex(exchange["request_header"])).validate()
        except DecodeError:
            broken.add(exchange["seq"])
    silent = {exchange["seq"] for exchange in exchanges if exchange["outcome"] == "silence"}
    dropped_body, admitted_internal = {654}, {661}
    assert broken == silent - COMMANDS_OF_OTHERS - dropped_body - admitted_internal


def test_request_checksums(exchanges: list[Exchange]) -> None:
    kinds: Counter[str] = Counter()
    for exchange in exchanges:
        if exchange["seq"] in COMMANDS_OF_OTHERS:
            continue
        header, body = RequestHeader.unpack(bytes.fromhex(exchange["request_header"])), body_of(exchange)
        kind = exchange["request_fields"]["request_checksum"]
        kinds[kind] += 1
        assert checksum_matches(header, body) is (kind != "wrong"), exchange["seq"]
        if kind == "xxh3":
            assert header.request_checksum == xxhash.xxh3_64_intdigest(body)
            assert not checksum_matches(header, body + b"\0")
            if body:
                flipped = bytes([body[0] ^ 1]) + body[1:]
                assert not checksum_matches(header, flipped), exchange["seq"]
    assert kinds["xxh3"] > 200 and kinds["wrong"] == 1


def test_replies_decode_to_the_recorded_value_and_encode_to_the_recorded_bytes(
    exchanges: list[Exchange], capsys: pytest.CaptureFixture[str]
) -> None:
    errors, count = [], 0
    for exchange in exchanges:
        seq = exchange["seq"]
        if exchange["outcome"] != "reply" or "synthetic" in exchange or "reply" not in exchange:
            continue
        count += 1
        body = bytes.fromhex(exchange["reply_body"])
        framed = exchange.get("result") is not None
        code, payload = split_result(body) if framed else (0, memoryview(body))
        if framed and code != exchange["result"]:
            errors.append(f"{seq}: result {code} is not {exchange['result']}")
        command = 40 if exchange["operation_byte"] == 1 else exchange["code"]
        reply = decode_reply(command, payload)
        if reply is None:
            if exchange["reply"] is not None:
                errors.append(f"{seq} {exchange['operation']}: absent is not {exchange['reply']}")
        elif render(reply) != exchange["reply"]:
            errors.append(f"{seq} {exchange['operation']}: {render(reply)} is not {exchange['reply']}")
        elif reply.encode() != payload:
            errors.append(f"{seq} {exchange['operation']}: encodes to {reply.encode().hex()}")
    failures(errors)
    with capsys.disabled():
        print(f"\ngolden: {count} replies decoded and encoded")
    assert count > 400


def test_refusals_have_one_code_and_no_payload(exchanges: list[Exchange]) -> None:
    count = 0
    for exchange in exchanges:
        if not exchange.get("result"):
            continue
        count += 1
        assert split_result(bytes.fromhex(exchange["reply_body"])) == (exchange["result"], b"")
    assert count > 60


def test_reply_headers(exchanges: list[Exchange]) -> None:
    """Built from the request's header and the outcome, all bytes equal but for those that depend on what ran before."""
    errors, count = [], 0
    for exchange in exchanges:
        if exchange["outcome"] != "reply" or "synthetic" in exchange:
            continue
        count += 1
        raw = bytes.fromhex(exchange["reply_header"])
        header = ReplyHeader.unpack(raw)
        request = RequestHeader.unpack(bytes.fromhex(exchange["request_header"]))
        body = bytes.fromhex(exchange["reply_body"] or "") or bytes(exchange.get("reply_body_omitted", 0))
        built = build_reply(
            request,
            exchange["status"],
            body,
            operation=request.operation if exchange.get("result") in TRANSIENT else None,
            op=header.op,
            commit=header.commit,
            timestamp=header.timestamp,
            client=header.client,
            cluster=header.cluster,
            view=header.view,
            replica=header.replica,
        )
        if header.pack() != raw:
            errors.append(f"{exchange['seq']}: packs to {header.pack().hex()}")
        echoed = request.request_checksum == header.request_checksum
        if not echoed and not echoes_another_checksum(exchange):
            errors.append(f"{exchange['seq']}: request_checksum {header.request_checksum}")
        if built[:128] + built[144:256] != raw[:128] + raw[144:]:
            errors.append(f"{exchange['seq']}: built {ReplyHeader.unpack(built)} is not {header}")
        header.validate()
    failures(errors)
    assert count > 650


def echoes_another_checksum(exchange: Exchange) -> bool:
    """The server saw another body (adapted or redacted lines), or proposed the operation itself, unstamped."""
    return "adapted" in exchange or "redacted" in exchange or exchange["operation"] == "delete_segments"


def test_result_framing_follows_the_operation_of_the_reply(exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        if exchange["outcome"] != "reply" or exchange["status"] != 0 or "synthetic" in exchange:
            continue
        operation = bytes.fromhex(exchange["reply_header"])[208]
        assert is_result_framed(operation) is (exchange.get("result") is not None), exchange["seq"]


def test_evictions(exchanges: list[Exchange]) -> None:
    count = 0
    for exchange in exchanges:
        if exchange["outcome"] != "eviction":
            continue
        count += 1
        raw = bytes.fromhex(exchange["reply_header"])
        header = EvictionHeader.unpack(raw)
        header.validate()
        assert header.reason == exchange["eviction_reason"]
        assert build_eviction(header.client, EvictionReason(header.reason), cluster=header.cluster) == raw
    assert count == 30


def test_batches_carry_correct_checksums(exchanges: list[Exchange], capsys: pytest.CaptureFixture[str]) -> None:
    sent = polled = 0
    for exchange in exchanges:
        if exchange["code"] == SendMessages.code and "request" in exchange:
            send = SendMessages.decode(body_of(exchange))
            batches.verify_sent_batch(send.batch, send.messages_count)
            sent += 1
        if REPLIES.get(exchange["code"]) is PollReply and exchange.get("reply"):
            for one in batches.batches_of(PollReply.decode(bytes.fromhex(exchange["reply_body"])).records):
                batches.verify_batch(one)
                polled += 1
    with capsys.disabled():
        print(f"\ngolden: checksums of {sent} sent and {polled} polled batches")
    assert sent > 80 and polled > 60


def test_a_flipped_byte_of_a_sent_batch_is_found(exchanges: list[Exchange]) -> None:
    send = next(one for one in exchanges if one["code"] == SendMessages.code and "request" in one)
    request = SendMessages.decode(body_of(send))
    for position in range(len(request.batch)):
        damaged = bytearray(request.batch)
        damaged[position] ^= 0x40
        with pytest.raises(batches.BatchError):
            batches.verify_sent_batch(damaged, request.messages_count)


def test_login_shapes(exchanges: list[Exchange]) -> None:
    """A body of one shape that also decodes as the other is tried as both; the recorded one is always among them."""
    shapes: Counter[type] = Counter()
    for exchange in exchanges:
        if exchange["operation_byte"] == 1 and "request" in exchange and exchange["seq"] not in REFUSED:
            shapes[type(decode(exchange))] += 1
    assert shapes[LoginWithPassword] > 50 and shapes[LoginWithToken] >= 1


def test_every_command_of_the_protocol_is_recorded(exchanges: list[Exchange]) -> None:
    """Codes without a single decoded request in the recording are known by name."""
    seen = {exchange["code"] for exchange in exchanges if "request" in exchange}
    assert set(REQUESTS) - seen == {45}
