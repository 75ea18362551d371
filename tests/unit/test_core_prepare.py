"""Prepares: byte-exact against plain Python, every verdict, every flipped bit, views that change, identities that
stay."""

import pickle
import struct

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv import _core
from shardsrv._core import BAD_BODY, BAD_HEADER, BAD_IDENTITY, SHORT, VALID, ZERO, Prepare, scan_log
from shardsrv.errors import Damaged
from tests.support.batches import encode_batch
from tests.support.entries import FIELDS, SEND_MESSAGES, entry, identity, reseal, stamped, stored_seal

BODY = b"a body of a few bytes"
ENTRY = entry(BODY, xxhash.xxh3_64_intdigest(BODY))
BATCH = stamped(encode_batch([b"one", b"two"]), 1, 10, 1_000)
BATCH_ENTRY = entry(BATCH, int.from_bytes(BATCH[40:48], "little"), operation=SEND_MESSAGES)

bounded = st.integers(0, 2**62 - 1)
u64 = st.integers(0, 2**64 - 1)
fields = st.fixed_dictionaries(
    {
        "cluster": st.binary(min_size=16, max_size=16),
        "view": st.integers(0, 2**32 - 1),
        "replica": st.integers(0, 255),
        "client": st.binary(min_size=16, max_size=16),
        "parent": u64,
        "request_checksum": u64,
        "request_checksum_high": bounded,
        "op": st.integers(1, 2**62 - 1),
        "commit": bounded,
        "timestamp": bounded,
        "request": bounded,
        "operation": st.integers(1, 255),
        "group": u64,
        "user_id": st.integers(0, 2**32 - 1),
        "created_revision": bounded,
        "durability": st.integers(0, 1),
    }
)


@given(fields, st.binary(max_size=300), st.integers(1, 2**64 - 1))
@settings(max_examples=150)
def test_build_is_byte_exact(values: dict, body: bytes, checksum_body: int) -> None:
    prepare = Prepare.build(**values, body=body, checksum_body=checksum_body)
    expected = entry(body, checksum_body, **values)
    assert bytes(prepare.header) + bytes(prepare.body) == expected
    assert {name: getattr(prepare, name) for name in values} == values
    assert (prepare.born_view, prepare.size, prepare.checksum_body) == (values["view"], len(expected), checksum_body)
    assert (prepare.checksum, prepare.stored_seal) == (identity(expected), stored_seal(expected))
    assert Prepare.verify(expected, check_body=False) == VALID


def test_an_entry_says_which_offsets_its_batch_holds() -> None:
    body = BATCH_ENTRY[256:]
    there = struct.unpack_from("<Q", body, 8)[0], struct.unpack_from("<I", body, 48)[0]
    assert there != (0, 0)
    scanned: list[Prepare] = []
    parent, op = struct.unpack_from("<Q", BATCH_ENTRY, 144)[0], struct.unpack_from("<Q", BATCH_ENTRY, 176)[0]
    scan_log(BATCH_ENTRY, 0, parent, op, lambda prepare, _: scanned.append(prepare))
    loaded = Prepare.load(BATCH_ENTRY)
    apart = Prepare.load_parts(BATCH_ENTRY[:256], body)
    for prepare in (loaded, apart, *scanned, loaded.with_view(loaded.view + 1)):
        assert (prepare.base_offset, prepare.message_count) == there
        assert (prepare.op, prepare.operation, prepare.timestamp) == (op, 160, loaded.timestamp)
    assert len(scanned) == 1
    for prepare in (Prepare.load_header(BATCH_ENTRY), Prepare.load(ENTRY)):
        assert (prepare.base_offset, prepare.message_count) == (0, 0)


@pytest.mark.parametrize("raw", [ENTRY, BATCH_ENTRY])
@pytest.mark.parametrize("before", [0, 13])
def test_load_at_a_position(raw: bytes, before: int) -> None:
    data = b"\xee" * before + raw + b"\xee" * 5
    assert Prepare.verify(data, before) == VALID
    prepare = Prepare.load(data, before)
    assert bytes(prepare.header) == raw[:256]
    assert bytes(prepare.body) == raw[256:]
    assert prepare.has_body
    assert prepare == Prepare.load(raw)
    assert hash(prepare) == hash(Prepare.load(raw))


@pytest.mark.parametrize("raw", [ENTRY, BATCH_ENTRY])
def test_every_flipped_bit_is_detected(raw: bytes) -> None:
    verdicts = set()
    for position in range(len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[position] ^= 1 << bit
            verdict = Prepare.verify(changed)
            assert verdict != VALID, (position, bit)
            assert verdict == (BAD_HEADER if position < 256 else BAD_BODY)
            verdicts.add(verdict)
    assert verdicts == {BAD_HEADER, BAD_BODY}


def test_every_prefix_is_short_and_says_so_when_loaded() -> None:
    for end in range(len(ENTRY)):
        assert Prepare.verify(ENTRY[:end]) == SHORT
        with pytest.raises(Damaged) as caught:
            Prepare.load(ENTRY[:end])
        assert caught.value.found == "short"


def test_zero_and_almost_zero() -> None:
    assert Prepare.verify(bytes(256)) == ZERO
    assert Prepare.verify(bytes(255)) == SHORT
    assert Prepare.verify(bytes(255) + b"\1") == BAD_HEADER


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (8, b"\1"),
        (24, b"\1"),
        (48, (255).to_bytes(4, "little")),
        (48, (2**28 + 1).to_bytes(4, "little")),
        (60, b"\5"),
        (62, b"\1"),
        (127, b"\1"),
        (152, b"\1"),
        (168, (2**62).to_bytes(8, "little")),
        (176, bytes(8)),
        (176, (2**62).to_bytes(8, "little")),
        (184, b"\xff" * 8),
        (192, b"\xff" * 8),
        (200, b"\xff" * 8),
        (208, b"\0"),
        (209, b"\1"),
        (215, b"\1"),
        (228, b"\xff" * 8),
        (244, b"\4"),
        (248, b"\2"),
        (249, b"\1"),
        (255, b"\1"),
        (16, bytes(8)),
    ],
)
def test_a_sealed_header_out_of_bounds_is_refused(position: int, value: bytes) -> None:
    header = bytearray(ENTRY[:256])
    header[position : position + len(value)] = value
    sealed = bytearray(reseal(header))
    if position == 8:
        sealed[8] = 1
        sealed[236:244] = stored_seal(sealed).to_bytes(8, "little")
    assert Prepare.verify(bytes(sealed) + BODY) == BAD_HEADER


def test_a_foreign_identity_under_a_good_seal() -> None:
    header = bytearray(ENTRY[:256])
    header[0] ^= 1
    header[236:244] = stored_seal(header).to_bytes(8, "little")
    assert Prepare.verify(bytes(header) + BODY) == BAD_IDENTITY
    assert Prepare.verify_header(header) == BAD_IDENTITY
    with pytest.raises(Damaged) as caught:
        Prepare.load(bytes(9) + bytes(header) + BODY, 9)
    assert (caught.value.offset, caught.value.op, caught.value.found) == (9, 1, "bad identity")


def test_a_batch_is_bound_to_its_header() -> None:
    other = stamped(encode_batch([b"one", b"twO"]), 1, 10, 1_000)
    assert _core.check_batch(other) == 0
    assert Prepare.verify(BATCH_ENTRY[:256] + other) == BAD_BODY
    assert Prepare.verify(BATCH_ENTRY[:256] + other, check_body=False) == VALID


def test_a_view_changes_without_the_identity() -> None:
    prepare = Prepare.load(ENTRY)
    sent = prepare.restamped(9)
    assert Prepare.verify(sent + BODY) == VALID
    assert identity(sent) == prepare.checksum
    later = prepare.with_view(9)
    assert bytes(later.header) == sent
    assert (later.view, later.born_view, later.checksum, bytes(later.body)) == (9, 3, prepare.checksum, BODY)
    assert later != prepare
    assert later.with_view(later.born_view) == prepare
    assert prepare.with_view(3) is prepare
    for earlier in (prepare.restamped, prepare.with_view):
        with pytest.raises(ValueError, match="before the view 3"):
            earlier(2)


def test_header_and_body_apart_also_as_repair() -> None:
    prepare = Prepare.load(ENTRY)
    assert Prepare.load_parts(ENTRY[:256], BODY) == prepare
    repair = prepare.restamped(9, repair=True)
    assert repair[60] == 19
    assert Prepare.verify(repair + BODY) == BAD_HEADER
    received = Prepare.load_parts(repair, BODY)
    assert received == prepare.with_view(9)
    assert bytes(received.body) == BODY
    for wrong, verdict in ((BODY[:-1], "short"), (BODY + b"x", "bad body"), (BODY[:-1] + b"x", "bad body")):
        with pytest.raises(Damaged) as caught:
            Prepare.load_parts(ENTRY[:256], wrong)
        assert caught.value.found == verdict
    assert Prepare.load_parts(ENTRY[:256], BODY[:-1] + b"x", check_body=False).op == 1


def test_a_header_alone() -> None:
    slot = Prepare.load_header(b"..." + ENTRY, 3)
    assert slot == Prepare.load(ENTRY)
    assert not slot.has_body
    assert bytes(slot.body) == b""
    assert slot.size == len(ENTRY)
    assert not slot.with_view(5).has_body
    with pytest.raises(Damaged):
        Prepare.load_header(ENTRY[:255])


def test_an_empty_body_is_sealed_too() -> None:
    raw = entry(b"", xxhash.xxh3_64_intdigest(b""))
    assert Prepare.verify(raw) == VALID
    assert Prepare.load(raw).has_body


def test_the_body_stays_where_it_is_and_cannot_be_written_through() -> None:
    source = bytearray(ENTRY)
    prepare = Prepare.load(source)
    with pytest.raises(BufferError):
        source.clear()
    source[256] ^= 1
    assert bytes(prepare.body) == bytes(source[256:])
    for view in (prepare.body, prepare.header):
        with pytest.raises(TypeError):
            view[0] = 0
    del prepare, view
    source.clear()


@pytest.mark.parametrize(
    "change",
    [
        {"op": 2**62},
        {"op": 0},
        {"commit": 2**62},
        {"timestamp": 2**62},
        {"request": 2**62},
        {"created_revision": 2**62},
        {"request_checksum_high": 2**62},
        {"operation": 0},
        {"durability": 2},
        {"checksum_body": 0},
        {"cluster": b"short"},
        {"client": bytes(17)},
        {"op": -1},
        {"view": 2**32},
        {"replica": 256},
        {"parent": 2**64},
    ],
)
def test_build_refuses_fields_out_of_bounds(change: dict) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Prepare.build(**{**FIELDS, "body": BODY, "checksum_body": 1, **change})


def test_positions_outside_the_buffer() -> None:
    for position in (-1, len(ENTRY) + 1):
        for call in (Prepare.verify, Prepare.load, Prepare.load_header, Prepare.verify_header):
            with pytest.raises(ValueError, match="outside a buffer"):
                call(ENTRY, position)
    assert Prepare.verify(ENTRY, len(ENTRY)) == SHORT


def test_it_is_made_by_its_constructors_only() -> None:
    with pytest.raises(TypeError):
        Prepare()
    with pytest.raises(TypeError):
        pickle.dumps(Prepare.load(ENTRY))


@given(st.binary(max_size=600), st.integers(0, 600))
@settings(max_examples=150)
def test_random_bytes_have_a_verdict(data: bytes, position: int) -> None:
    position = min(position, len(data))
    assert Prepare.verify(data, position) in (SHORT, ZERO, BAD_HEADER)


@given(st.data())
@settings(max_examples=150)
def test_resealed_mutations_have_a_verdict(data: st.DataObject) -> None:
    header = bytearray(BATCH_ENTRY[:256])
    at = data.draw(st.integers(16, 250))
    width = data.draw(st.sampled_from([1, 2, 4, 6]))
    header[at : at + width] = data.draw(st.binary(min_size=width, max_size=width))
    raw = reseal(header) + BATCH
    verdict = Prepare.verify(raw)
    assert verdict in (VALID, SHORT, BAD_HEADER, BAD_BODY)
    if verdict == VALID:
        assert bytes(Prepare.load(raw).header) == raw[:256]
    else:
        with pytest.raises(Damaged):
            Prepare.load(raw)
