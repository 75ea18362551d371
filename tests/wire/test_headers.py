"""Header layouts: where each field lies, what is refused, and agreement with the compiled twin."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv import _core
from shardsrv.errors import DecodeError, EncodeError, SealMismatch, Truncated
from shardsrv.wire import headers as h
from shardsrv.wire import layout
from shardsrv.wire.constants import (
    METADATA_GROUP,
    Command,
    EvictionReason,
    Operation,
    is_internal,
    is_metadata,
    is_partition,
    is_result_framed,
)
from shardsrv.wire.frames import build_eviction
from shardsrv.wire.manifest import ManifestTooManyEntries, decode_manifest
from shardsrv.wire.sealed_body import seal_body

some = settings(max_examples=60, deadline=None)

OFFSETS: dict[type[h.Header], dict[str, tuple[int, int]]] = {
    h.GatheredHeader: {"created_revision": (64, 8)},
    h.RequestHeader: {
        "client": (128, 16),
        "request_checksum": (144, 16),
        "timestamp": (160, 8),
        "request": (168, 8),
        "operation": (176, 1),
        "session": (184, 8),
        "user_id": (192, 4),
        "code": (196, 4),
    },
    h.ReplyHeader: {
        "request_checksum": (128, 16),
        "context": (144, 16),
        "client": (160, 16),
        "op": (176, 8),
        "commit": (184, 8),
        "timestamp": (192, 8),
        "request": (200, 8),
        "operation": (208, 1),
        "status": (216, 4),
    },
    h.EvictionHeader: {
        "client": (128, 16),
        "protocol_version": (144, 4),
        "protocol_version_min": (148, 4),
        "reason": (255, 1),
    },
    h.PrepareHeader: {
        "client": (128, 16),
        "parent": (144, 16),
        "request_checksum": (160, 16),
        "op": (176, 8),
        "commit": (184, 8),
        "timestamp": (192, 8),
        "request": (200, 8),
        "operation": (208, 1),
        "group": (216, 8),
        "user_id": (224, 4),
        "created_revision": (228, 8),
        "stored_seal": (236, 8),
        "born_view": (244, 4),
        "durability": (248, 1),
    },
    h.PrepareOkHeader: {
        "created_revision": (64, 8),
        "parent": (128, 16),
        "prepare_checksum": (144, 16),
        "op": (160, 8),
        "commit": (168, 8),
        "timestamp": (176, 8),
        "request": (184, 8),
        "operation": (192, 1),
        "group": (200, 8),
        "acked_as": (208, 1),
    },
    h.CommitHeader: {
        "commit_checksum": (128, 16),
        "timestamp_monotonic": (144, 8),
        "commit": (152, 8),
        "checkpoint_op": (160, 8),
        "group": (168, 8),
    },
    h.StartViewChangeHeader: {"group": (128, 8)},
    h.DoViewChangeHeader: {
        "op": (128, 8),
        "commit": (136, 8),
        "group": (144, 8),
        "log_view": (152, 4),
        "nack_bitset": (224, 16),
        "present_bitset": (240, 16),
    },
    h.StartViewHeader: {"op": (128, 8), "commit": (136, 8), "group": (144, 8), "incarnation": (240, 16)},
    h.RequestStartViewHeader: {"group": (128, 8), "incarnation": (240, 16)},
    h.RequestPreparesHeader: {"nonce": (128, 16), "from_op": (144, 8), "to_op": (152, 8), "group": (160, 8)},
    h.RepairDoneHeader: {"nonce": (128, 16), "op": (144, 8), "group": (152, 8)},
    h.RangeEvictedHeader: {"nonce": (128, 16), "op": (144, 8), "group": (152, 8)},
    h.RequestStateTransferHeader: {"nonce": (128, 16), "group": (144, 8)},
    h.StateTransferTargetHeader: {
        "nonce": (128, 16),
        "commit_op": (144, 8),
        "group": (152, 8),
        "available": (160, 1),
        "unavailable_transient": (161, 1),
        "commit_max": (168, 8),
    },
    h.RequestStateChunkHeader: {
        "nonce": (128, 16),
        "offset": (144, 8),
        "group": (152, 8),
        "length": (160, 4),
        "artifact": (164, 4),
    },
    h.StateChunkHeader: {"nonce": (128, 16), "offset": (144, 8), "group": (152, 8), "artifact": (160, 4)},
    h.ForwardRegisterHeader: {"client": (128, 16), "nonce": (144, 16), "user_id": (160, 4)},
    h.ForwardRegisterResultHeader: {
        "nonce": (128, 16),
        "client": (144, 16),
        "epoch": (160, 8),
        "watermark": (168, 8),
        "outcome": (255, 1),
    },
    h.ForwardLogoutHeader: {"client": (128, 16), "nonce": (144, 16), "session": (160, 8), "request": (168, 8)},
    h.ForwardLogoutResultHeader: {"nonce": (128, 16), "client": (144, 16), "commit": (160, 8), "outcome": (255, 1)},
    h.ReplicaHelloHeader: {"nonce": (128, 32)},
    h.ReplicaChallengeHeader: {"nonce": (128, 32), "mac": (160, 32), "status": (192, 1)},
    h.ReplicaFinishHeader: {"mac": (160, 32)},
}
PREFIX = {
    "checksum": (0, 16),
    "checksum_body": (16, 16),
    "cluster": (32, 16),
    "size": (48, 4),
    "view": (52, 4),
    "release": (56, 4),
    "replica": (61, 1),
}


def value_of(field: layout.Field, byte: int) -> Any:
    raw = bytes([byte]) + bytes(field.size - 1)
    return raw if field.kind == layout.BYTES else int.from_bytes(raw, "little")


@pytest.mark.parametrize("kind", h.HEADERS.values(), ids=lambda kind: kind.__name__)
def test_every_field_lies_where_the_protocol_says(kind: type[h.Header]) -> None:
    expected = PREFIX | OFFSETS.get(kind, OFFSETS[h.PrepareHeader])
    fields = {field.name: field for field in kind.layout.fields if field.name}
    for name, (offset, size) in expected.items():
        assert (fields[name].offset, fields[name].size) == (offset, size), name
        if name == "checksum" and kind.layout.sealed:
            continue
        packed = kind(**{name: value_of(fields[name], 0x5A)}).pack()
        assert packed[offset] == 0x5A, name
    assert kind().pack()[60] == kind.layout.command


def test_every_command_with_a_frame_has_a_header() -> None:
    without = {Command.RESERVED, Command.PONG, Command.PING_CLIENT, Command.PONG_CLIENT}
    assert set(h.HEADERS) == set(Command) - without


@pytest.mark.parametrize(
    "fields",
    [
        (layout.number(0, layout.U64, "a"), layout.reserved(8, 255)),
        (layout.number(0, layout.U64, "a"), layout.reserved(9, 256)),
        (layout.number(0, layout.U64, "a"), layout.number(4, layout.U64, "b"), layout.reserved(12, 256)),
        (layout.number(0, layout.U64, "a"), layout.number(8, layout.U64, "a"), layout.reserved(16, 256)),
    ],
    ids=["short", "gap", "overlap", "name twice"],
)
def test_a_layout_with_a_hole_is_refused_at_import(fields: tuple[layout.Field, ...]) -> None:
    with pytest.raises(ValueError):
        layout.Layout(Command.COMMIT, fields)


def test_a_header_class_must_name_the_fields_of_its_layout() -> None:
    @attrs.frozen(kw_only=True)
    class Odd(h.Header):
        layout = h.StartViewHeader.layout

    with pytest.raises(ValueError):
        layout.check_layout(Odd)


def fields_of(kind: type[h.Header]) -> st.SearchStrategy[dict[str, Any]]:
    made: dict[str, st.SearchStrategy[Any]] = {}
    for field in kind.layout.fields:
        if not field.name or field.name == "command":
            continue
        if field.kind == layout.BYTES:
            made[field.name] = st.binary(min_size=field.size, max_size=field.size)
        else:
            bits = 62 if field.kind == layout.U62 else 8 * field.size
            made[field.name] = st.integers(0, 2**bits - 1)
    return st.fixed_dictionaries(made)


@some
@given(data=st.data(), kind=st.sampled_from([*h.HEADERS.values(), h.RoutedRequestHeader]))
def test_a_header_survives_the_wire(data: st.DataObject, kind: type[h.Header]) -> None:
    header = kind(**data.draw(fields_of(kind)))
    packed = header.pack()
    assert len(packed) == 256
    decoded = kind.unpack(packed)
    assert attrs.evolve(decoded, checksum=0) == attrs.evolve(header, checksum=0)
    assert decoded.pack() == packed
    if kind.layout.sealed:
        assert decoded.checksum == xxhash.xxh3_64_intdigest(packed[16:])


@some
@given(data=st.data(), position=st.integers(0, 255), bit=st.integers(0, 7))
def test_one_flipped_bit_of_a_sealed_header_is_found(data: st.DataObject, position: int, bit: int) -> None:
    kind = data.draw(st.sampled_from([kind for kind in h.HEADERS.values() if kind.layout.sealed]))
    packed = bytearray(kind(**data.draw(fields_of(kind))).pack())
    packed[position] ^= 1 << bit
    with pytest.raises(DecodeError):
        kind.unpack(packed)


@settings(max_examples=150, deadline=None)
@given(raw=st.binary(min_size=256, max_size=256), command=st.integers(0, 31), zeros=st.booleans(), data=st.data())
def test_only_typed_errors_leave_the_parser(raw: bytes, command: int, zeros: bool, data: st.DataObject) -> None:
    made = bytearray(256 if zeros else raw)
    made[60] = command
    for _ in range(4):
        made[data.draw(st.integers(61, 255))] = data.draw(st.integers(0, 255))
    kind = h.HEADERS.get(command)
    if kind is not None and kind.layout.sealed:
        made[:16] = layout.seal_of(made).to_bytes(16, "little")
    try:
        header = h.parse_header(made)
    except DecodeError as error:
        assert str(error)
    else:
        header.validate()


def prepare(**fields: Any) -> h.PrepareHeader:
    return h.PrepareHeader(**{"op": 7, "operation": 160, "group": 5, "timestamp": 9} | fields).sealed()


def test_the_identity_of_a_prepare_survives_a_new_view_and_its_seal_does_not() -> None:
    stored = prepare(view=3, born_view=3)
    sent = stored.restamped(9)
    stored.validate()
    sent.validate()
    assert sent.checksum == stored.checksum and sent.stored_seal != stored.stored_seal
    assert sent.restamped(sent.born_view) == stored


def test_a_repair_prepare_is_its_prepare_but_for_the_command() -> None:
    stored = prepare()
    fields = {name: getattr(stored, name) for name in stored.layout.names}
    repair = h.RepairPrepareHeader(**fields)
    assert h.RepairPrepareHeader.unpack(repair.pack()).as_prepare() == stored
    assert [i for i in range(256) if repair.pack()[i] != stored.pack()[i]] == [60]
    parsed = h.parse_header(repair.pack())
    assert isinstance(parsed, h.RepairPrepareHeader)


def test_a_flipped_bit_of_a_prepare_is_found() -> None:
    packed = prepare(client=b"c" * 16, parent=77).pack()
    for position in range(256):
        damaged = bytearray(packed)
        damaged[position] ^= 0x10
        with pytest.raises(DecodeError):
            h.parse_header(damaged)


def test_a_blank_is_known_and_is_no_prepare() -> None:
    blank = h.PrepareHeader.unpack(h.PrepareHeader.blank(12).pack())
    assert blank.is_blank and blank.op == 12
    assert not prepare().is_blank
    with pytest.raises(DecodeError):
        blank.validate()


@some
@given(data=st.data())
def test_prepares_are_those_of_the_compiled_core(data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=40))
    given_fields = data.draw(fields_of(h.PrepareHeader))
    fields = {
        name: given_fields[name]
        for name in (
            "cluster",
            "replica",
            "client",
            "op",
            "commit",
            "timestamp",
            "request",
            "user_id",
            "created_revision",
        )
    }
    fields["op"] = max(fields["op"], 1)
    view = given_fields["view"]
    low = (1 << 64) - 1
    extra = {
        "operation": int(data.draw(st.sampled_from([op for op in Operation if op]))),
        "group": data.draw(st.sampled_from([METADATA_GROUP, 5 << 32 | 7 << 20 | 9])),
        "durability": data.draw(st.integers(0, 1)),
        "parent": given_fields["parent"] & low,
        "request_checksum": given_fields["request_checksum"] & low,
        "checksum_body": xxhash.xxh3_64_intdigest(body),
    }
    built = _core.Prepare.build(**fields, **extra, view=view, body=body)
    ours = h.PrepareHeader(**fields, **extra, view=view, born_view=view, size=256 + len(body)).sealed()
    assert bytes(built.header) == ours.pack()
    assert built.checksum == ours.checksum
    later = min(view + 3, 2**32 - 1)
    assert built.restamped(later) == ours.restamped(later).pack()


def violations() -> list[tuple[str, h.Header]]:
    client = b"c" * 16
    request = h.RequestHeader(client=client, operation=128, session=4, request=1)
    vote = h.DoViewChangeHeader(op=5, commit=5, view=2, log_view=1)
    target = h.StateTransferTargetHeader(nonce=1)
    chunk = h.RequestStateChunkHeader(length=1)
    register = h.ForwardRegisterResultHeader(client=client, nonce=1, outcome=1)
    logout = h.ForwardLogoutHeader(client=client, nonce=1, session=1, request=1)
    eviction = h.EvictionHeader(client=client, reason=1)
    rules: list[tuple[str, h.Header, dict[str, Any]]] = [
        ("size below a header", request, {"size": 255}),
        ("client zero", request, {"client": bytes(16)}),
        ("operation zero", request, {"operation": 0}),
        ("operation unknown", request, {"operation": 63}),
        ("register with a session", request, {"operation": 1, "request": 0}),
        ("register with a number", request, {"operation": 1, "session": 0}),
        ("session zero", request, {"session": 0}),
        ("number zero", request, {"request": 0}),
        ("number too large", request, {"request": 2**62}),
        ("body beside a status", h.ReplyHeader(operation=128), {"status": 3, "size": 260}),
        ("reply operation", h.ReplyHeader(operation=128), {"operation": 4}),
        ("eviction without a client", eviction, {"client": bytes(16)}),
        ("eviction reason 0", eviction, {"reason": 0}),
        ("eviction reason 16", eviction, {"reason": 16}),
        ("window without reason 14", eviction, {"protocol_version": 1, "protocol_version_min": 1}),
        ("reason 14 without a window", eviction, {"reason": 14}),
        ("eviction with a body", eviction, {"size": 257}),
        ("acknowledgement level", h.PrepareOkHeader(), {"acked_as": 3}),
        ("acknowledgement with a body", h.PrepareOkHeader(), {"size": 300}),
        ("replica", h.CommitHeader(), {"replica": 32}),
        ("group", h.CommitHeader(), {"group": METADATA_GROUP + 1}),
        ("release", h.StartViewChangeHeader(), {"release": 1}),
        ("commit above op", vote, {"commit": 6}),
        ("log view above view", vote, {"log_view": 3}),
        ("bit without a slot", vote, {"nack_bitset": 1}),
        ("too many slots", vote, {"size": 256 + 129 * 256}),
        ("part of a slot", vote, {"size": 300}),
        ("suspect", vote, {"suspect": 2}),
        ("more incarnations than body", vote, {"incarnations": 1}),
        ("view with part of a slot", h.StartViewHeader(op=1), {"size": 300}),
        ("view with commit above op", h.StartViewHeader(op=1), {"commit": 2}),
        ("probe with a release", h.RequestStartViewHeader(), {"release": 1}),
        ("empty range", h.RequestPreparesHeader(from_op=3, to_op=4), {"to_op": 2}),
        ("range from 0", h.RequestPreparesHeader(from_op=3, to_op=4), {"from_op": 0}),
        ("available without a manifest", target, {"available": 1}),
        ("manifest when unavailable", target, {"size": 300}),
        ("available and transient", target, {"available": 1, "unavailable_transient": 1, "size": 300}),
        ("chunk of nothing", chunk, {"length": 0}),
        ("epoch beside a failure", register, {"epoch": 1}),
        ("register outcome", register, {"outcome": 7}),
        ("forward without a nonce", register, {"nonce": 0}),
        ("logout of session 0", logout, {"session": 0}),
        ("logout outcome", h.ForwardLogoutResultHeader(client=client, nonce=1), {"outcome": 5}),
        ("hello without versions", h.ReplicaHelloHeader(), {"version_min": 0}),
        ("challenge with versions reversed", h.ReplicaChallengeHeader(), {"version_max": 0}),
        ("prepare of op 0", prepare(), {"op": 0}),
        ("born after its view", prepare(), {"born_view": 1}),
        ("durability", prepare(), {"durability": 2}),
    ]
    found: list[tuple[str, h.Header]] = []
    for name, header, change in rules:
        header.validate()
        found.append((name, attrs.evolve(header, **change)))
    return found


@pytest.mark.parametrize(("rule", "header"), violations(), ids=[rule for rule, _ in violations()])
def test_each_field_rule_refuses(rule: str, header: h.Header) -> None:
    with pytest.raises(DecodeError):
        header.validate()


HEADER_ONLY = {
    h.PrepareOkHeader,
    h.StartViewChangeHeader,
    h.RequestStartViewHeader,
    h.RequestPreparesHeader,
    h.RepairDoneHeader,
    h.RangeEvictedHeader,
    h.RequestStateTransferHeader,
    h.RequestStateChunkHeader,
}
"""Frames of groups whose size is fully determined. The others have a body: entries, suffixes, manifests, chunks."""


@pytest.mark.parametrize("kind", sorted(HEADER_ONLY, key=lambda kind: kind.__name__))
@pytest.mark.parametrize("size", [0, 255, 257, 512, 2**32 - 1])
def test_a_frame_without_a_body_has_one_size(kind: type[h.Header], size: int) -> None:
    """S2-01, S2-02: expected and found are named; the command is looked at before the size."""
    with pytest.raises(DecodeError) as refusal:
        kind(size=size).validate()
    assert (refusal.value.what, refusal.value.expected, refusal.value.found) == ("size", 256, size)
    foreign = bytearray(kind(size=size).pack())
    foreign[60] = Command.COMMIT
    with pytest.raises(DecodeError) as other:
        kind.unpack(foreign)
    assert other.value.what == "command"


def test_which_frames_of_groups_have_a_body() -> None:
    """S2-05: every frame that can be strict is; the outer bound on a frame's length is no reason not to be."""
    groups = {kind for kind in h.HEADERS.values() if "group" in kind.layout.names and kind.layout.sealed}
    assert {kind for kind in groups if kind.layout.fixed_size} == HEADER_ONLY


def test_the_manifest_of_an_offer_is_bounded_where_it_is_decoded() -> None:
    """S2-04: the header says nothing about how long a manifest may be, the frame limit and the decoder do."""
    offer = h.StateTransferTargetHeader(nonce=1, available=1, size=2**32 - 1)
    offer.validate()
    with pytest.raises(DecodeError):
        h.frame_size(offer.pack(), 64 << 20)
    entries = seal_body(b"ISM1" + (2**32 - 1).to_bytes(4, "little") + b"\x19")
    with pytest.raises(ManifestTooManyEntries):
        decode_manifest(entries)


def test_reserved_bytes_are_strict_only_where_they_are_ours() -> None:
    lenient: tuple[type[h.Header], ...] = (h.RequestHeader, h.ReplyHeader)
    strict: tuple[type[h.Header], ...] = (h.EvictionHeader, h.PrepareHeader, h.ReplicaHelloHeader)
    for kind in lenient:
        packed = bytearray(kind().pack())
        packed[250] = packed[70] = 1
        kind.unpack(packed)
    for kind in strict:
        packed = bytearray(kind().pack())
        packed[70] = 1
        with pytest.raises(DecodeError):
            kind.unpack(packed)


def test_values_out_of_range_are_not_packed() -> None:
    for header in (
        h.CommitHeader(commit=2**62),
        h.CommitHeader(view=2**32),
        h.RequestHeader(client=b"short"),
        h.RequestHeader(request_checksum=2**128),
        h.RequestHeader(request=-1),
    ):
        with pytest.raises(EncodeError):
            header.pack()


def test_short_and_foreign_buffers() -> None:
    with pytest.raises(Truncated):
        h.parse_header(bytes(255))
    with pytest.raises(Truncated):
        h.frame_size(bytes(10))
    with pytest.raises(DecodeError):
        h.parse_header(bytes(256))
    sealed = bytearray(h.CommitHeader(commit=5).pack())
    sealed[152] ^= 1
    with pytest.raises(SealMismatch) as caught:
        h.parse_header(sealed)
    assert caught.value.expected != caught.value.found


@pytest.mark.parametrize(("size", "limit", "whole"), [(255, 1000, False), (256, 256, True), (1001, 1000, False)])
def test_frame_sizes(size: int, limit: int, whole: bool) -> None:
    packed = h.RequestHeader(size=size).pack()
    if whole:
        assert h.frame_size(packed, limit) == size
        return
    with pytest.raises(DecodeError):
        h.frame_size(packed, limit)


def test_sets_of_operations() -> None:
    metadata = {1, 3, *range(64, 69), *range(128, 150)} - {138}
    framed = {*range(64, 69), *range(128, 138), *range(139, 150), 161, 162, 1}
    assert {op for op in range(256) if is_metadata(op)} == metadata
    assert {op for op in range(192) if is_partition(op)} == {160, 161, 162}
    assert {op for op in range(256) if is_result_framed(op)} == framed
    assert {op for op in range(192) if is_internal(op)} == set(range(64, 128))
    assert Operation.PURGE_PARTITION.is_partition and Operation.PURGE_PARTITION.is_internal
    assert Operation.CREATE_STREAM.is_metadata and Operation.CREATE_STREAM.is_result_framed


def test_evictions_carry_the_window_with_reason_14_only() -> None:
    for reason in EvictionReason:
        header = h.parse_header(build_eviction(b"c" * 16, reason))
        assert isinstance(header, h.EvictionHeader)
        window = (11264, 11264) if reason is EvictionReason.INCOMPATIBLE_PROTOCOL else (0, 0)
        assert (header.protocol_version_min, header.protocol_version) == window
