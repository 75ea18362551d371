"""The two codecs of a state transfer: golden bytes, every named defect under a trailer that holds, nothing else out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv.errors import DecodeError, EncodeError, OurFault, SealMismatch, Truncated
from shardsrv.vsr import client_table_wire as wire
from shardsrv.vsr.client_table import ClientTable
from shardsrv.wire import manifest
from shardsrv.wire.client_headers import ReplyHeader
from shardsrv.wire.manifest import Artifact, decode_manifest, encode_manifest
from shardsrv.wire.sealed_body import artifact_checksum, seal_body, verified_content
from tests.support.transfers import client_id, table_of

some = settings(max_examples=60, deadline=None)


# --- trailer ----------------------------------------------------------------------------------------------------------


def test_a_trailer_has_two_failures() -> None:
    body = seal_body(b"content")
    assert bytes(verified_content(body, "x")) == b"content"
    assert bytes(verified_content(seal_body(b""), "x")) == b""
    for length in range(8):
        with pytest.raises(Truncated):
            verified_content(body[:length], "x")
    for position in range(len(body)):
        bad = bytearray(body)
        bad[position] ^= 4
        with pytest.raises(SealMismatch) as mismatch:
            verified_content(bad, "x")
        assert mismatch.value.expected != mismatch.value.found


# --- manifest ---------------------------------------------------------------------------------------------------------

GOLDEN_MANIFEST = bytes.fromhex(
    "49534d31" + "02000000" + "19"
    "00" + "2800000000000000" + "f803000000000000" + "8877665544332211"
    "01" + "3200000000000000" + "6500000000000000" + "0100000000000000"
)  # fmt: skip


def test_manifest_bytes() -> None:
    artifacts = (Artifact(0, 40, 1016, 0x1122334455667788), Artifact(1, 50, 101, 1))
    assert encode_manifest(artifacts)[:-8] == GOLDEN_MANIFEST
    assert decode_manifest(encode_manifest(artifacts)) == artifacts


ARTIFACTS = st.lists(
    st.builds(Artifact, st.integers(0, 255), *[st.integers(0, 2**62 - 1)] * 2, st.integers(0, 2**64 - 1)), max_size=4
)


@some
@given(artifacts=ARTIFACTS, position=st.integers(0), bit=st.integers(0, 7), cut=st.integers(0))
def test_manifests(artifacts: list[Artifact], position: int, bit: int, cut: int) -> None:
    body = encode_manifest(artifacts)
    assert decode_manifest(body) == tuple(artifacts)
    damaged = bytearray(body)
    damaged[position % len(damaged)] ^= 1 << bit
    for bad in (bytes(damaged), body + b"x", body[: cut % len(body)]):
        with pytest.raises(manifest.ManifestError):
            decode_manifest(bad)


def _manifest(count: int, entry_length: int, entries: bytes, magic: bytes = b"ISM1") -> bytes:
    return seal_body(magic + count.to_bytes(4, "little") + bytes([entry_length]) + entries)


ENTRY = b"\x02" + (7).to_bytes(8, "little") + bytes(16)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", manifest.ManifestTruncated),
        (bytes(7), manifest.ManifestTruncated),
        (seal_body(b""), manifest.ManifestTruncated),
        (seal_body(b"ISM1\x01\0\0\0"), manifest.ManifestTruncated),
        (_manifest(1, 25, ENTRY, b"ISM2"), manifest.ManifestBadMagic),
        (_manifest(65_537, 25, ENTRY), manifest.ManifestTooManyEntries),
        (_manifest(1, 24, ENTRY), manifest.ManifestEntryTooShort),
        (_manifest(2, 25, ENTRY), manifest.ManifestTruncated),
        (_manifest(65_536, 255, ENTRY), manifest.ManifestTruncated),
        (_manifest(1, 25, ENTRY + b"x"), manifest.ManifestTruncated),
        (_manifest(1, 25, ENTRY) + b"x", manifest.ManifestChecksumMismatch),
        (_manifest(1, 25, b"\0" + b"\xff" * 24), manifest.ManifestNumberTooLarge),
    ],
)
def test_defects_of_a_manifest(body: bytes, error: type) -> None:
    with pytest.raises(error) as refusal:
        decode_manifest(body)
    assert type(refusal.value) is error and str(refusal.value)


@pytest.mark.parametrize("extra", [0, 2, 15])
def test_longer_entries_of_a_later_release_are_accepted(extra: int) -> None:
    entries = (ENTRY + b"x" * extra) * 2
    assert decode_manifest(_manifest(2, 25 + extra, entries)) == (Artifact(2, 7, 0, 0),) * 2


def test_the_encoder_refuses_what_it_would_not_decode() -> None:
    for bad in ([Artifact(0, 1, 1, 1)] * 65_537, [Artifact(0, 2**62, 1, 1)]):
        with pytest.raises(EncodeError):
            encode_manifest(bad)


# --- client table -----------------------------------------------------------------------------------------------------


def table_with_replies() -> ClientTable:
    table = table_of({7: 10, 9: 20})
    for number, op in ((1, 11), (2, 12), (3, 13), (4, 14), (5, 15)):
        table.commit_request(client_id(7), 10, number, number * 3, 128, op, op * 1000, b"reply" * number)
    return table


def encoded(table: ClientTable) -> bytes:
    return wire.encode(wire.view_of(table, 50))


def content_of(body: bytes) -> bytearray:
    return bytearray(body[:-8])


def test_a_table_travels_whole() -> None:
    table = table_with_replies()
    body = encoded(table)
    assert len(body) == wire.encoded_size(wire.view_of(table, 50))
    got = wire.decode(body, 4)
    assert got.state() == table.state() and got.capacity == 4
    entry = got.get(client_id(7))
    assert entry is not None and entry.latest_op == 15 and [reply.op for reply in entry.replies] == [11, 12, 13, 14, 15]
    assert encoded(got) == body


def test_table_bytes() -> None:
    body = encoded(table_of({7: 10}))
    assert body[:8] == b"SCT1\x01\0\0\0"
    assert body[8:61] == client_id(7) + (10).to_bytes(8, "little") + b"\1\0\0\0" + bytes(24) + b"\1"
    assert body[61:65] == (256).to_bytes(4, "little") and body[65 + 60] == 8, "a whole Reply frame"
    assert len(body) == 8 + 53 + 4 + 256 + 8
    assert encoded(ClientTable(4)) == seal_body(b"SCT1\0\0\0\0")


def test_the_magic_goes_with_the_layout_of_a_reply() -> None:
    """S2-13: whole Reply headers lie in the body, so another layout of theirs is another format of this one."""
    fields = [(field.offset, field.size, field.kind, field.name) for field in ReplyHeader.layout.fields]
    known = {b"SCT1": 0x96A80412988A54AD}
    assert known[wire.MAGIC] == artifact_checksum(repr(fields).encode()), "another layout of replies: bump the magic"


def test_slots_are_packed() -> None:
    table = table_of({7: 10, 8: 11, 9: 20})
    table.remove(client_id(8))
    got = wire.decode(encoded(table), 4)
    assert got.state() == table.state()
    assert [row[0] for row in table.rows()] == [0, 2] and [row[0] for row in got.rows()] == [0, 1]


def test_a_view_does_not_follow_the_table() -> None:
    table = table_with_replies()
    view = wire.view_of(table, 50)
    before = wire.encode(view)
    table.commit_request(client_id(7), 10, 6, 1, 128, 16, 1, b"later")
    table.remove(client_id(9))
    assert wire.encode(view) == before


def test_a_capacity_that_was_lowered_refuses_nothing() -> None:
    got = wire.decode(encoded(table_of({number: number for number in range(1, 9)})), 2)
    assert len(got) == 8 and got.capacity == 8


@pytest.mark.parametrize("cut", [1, 8, 9, 200])
def test_a_short_table_does_not_decode(cut: int) -> None:
    body = encoded(table_with_replies())
    with pytest.raises((wire.TableChecksumMismatch, wire.TableTruncated)):
        wire.decode(body[:-cut], 4)
    with pytest.raises(wire.TableTruncated):
        wire.decode(seal_body(body[: -8 - cut]), 4)


def test_every_flipped_byte_is_found() -> None:
    body = encoded(table_of({7: 10}))
    for position in range(len(body)):
        bad = bytearray(body)
        bad[position] ^= 0x20
        with pytest.raises(wire.TableChecksumMismatch):
            wire.decode(bad, 4)


def _with(offset: int, value: bytes) -> bytes:
    """The table of clients 7 and 9 with bytes replaced, sealed again."""
    content = content_of(encoded(table_of({7: 10, 9: 20})))
    content[offset : offset + len(value)] = value
    return seal_body(content)


SECOND = 8 + 53 + 4 + 256
REPLY = 8 + 53 + 4


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", wire.TableTruncated),
        (seal_body(b"SCT1"), wire.TableTruncated),
        (_with(0, b"ICT2"), wire.TableBadMagic),
        (_with(4, (65_537).to_bytes(4, "little")), wire.TableTooManyEntries),
        (_with(4, (3).to_bytes(4, "little")), wire.TableTruncated),
        (_with(4, (1).to_bytes(4, "little")), wire.TableTruncated),
        (_with(60, b"\0"), wire.TableEmptyRing),
        (_with(60, b"\6"), wire.TableRingTooLong),
        (_with(SECOND, client_id(7)), wire.TableInvalidReply),
        (_with(8, bytes(16)), wire.TableInvalidEntry),
        (_with(24, b"\xff" * 8), wire.TableInvalidEntry),
        (_with(36, b"\xff" * 8), wire.TableInvalidEntry),
        (_with(44, b"\xff" * 16), wire.TableInvalidEntry),
        (_with(61, (255).to_bytes(4, "little")), wire.TableInvalidReply),
        (_with(61, (2**32 - 1).to_bytes(4, "little")), wire.TableTruncated),
        (_with(REPLY + 60, b"\7"), wire.TableInvalidReply),
        (_with(REPLY + 48, (257).to_bytes(4, "little")), wire.TableInvalidReply),
        (_with(REPLY + 160, client_id(8)), wire.TableInvalidReply),
        (_with(REPLY + 176, (11).to_bytes(8, "little")), wire.TableInvalidReply),
        (_with(REPLY + 208, b"\0"), wire.TableInvalidReply),
        (_with(REPLY + 208, b"\3"), wire.TableInvalidReply),
        (_with(REPLY + 208, b"\xfe"), wire.TableInvalidReply),
        (_with(REPLY + 216, b"\1"), wire.TableInvalidReply),
    ],
)
def test_defects_under_a_trailer_that_holds(body: bytes, error: type) -> None:
    with pytest.raises(error) as refusal:
        wire.decode(body, 4)
    assert type(refusal.value) is error and str(refusal.value)


def test_one_client_twice_is_refused() -> None:
    """Planted: an entry that overwrites the other leaves a slot that nothing names."""
    content = content_of(encoded(table_of({7: 10, 9: 20})))
    content[SECOND : SECOND + 16] = client_id(7)
    content[SECOND + 53 + 4 + 160 : SECOND + 53 + 4 + 176] = client_id(7)
    with pytest.raises(wire.TableDuplicateClient) as refusal:
        wire.decode(seal_body(content), 4)
    assert refusal.value.slot == 0 and refusal.value.found == client_id(7)


def test_five_replies_are_kept_and_six_refused() -> None:
    body = encoded(table_with_replies())
    assert body[60] == 5
    content = content_of(body)
    content[60] = 6
    with pytest.raises(wire.TableRingTooLong) as refusal:
        wire.decode(seal_body(content), 4)
    assert (refusal.value.slot, refusal.value.expected, refusal.value.found) == (0, 5, 6)


def test_replies_out_of_order_are_refused() -> None:
    content = content_of(encoded(table_with_replies()))
    at = content.index(b"SCT1") + 8 + 53 + 4 + 176
    content[at : at + 8] = content[at + 8 : at + 16] = (99).to_bytes(8, "little")
    with pytest.raises(wire.TableInvalidReply):
        wire.decode(seal_body(content), 4)


def test_the_wire_form_and_the_checkpoint_form_reject_the_same() -> None:
    """Rows that `restore` refuses come out of no decoder; the two families of errors stay apart."""
    from shardsrv.errors import ClientTableMalformed

    good = table_with_replies().snapshot()

    def broken(change: Any) -> list[Any]:
        rows = [[*row[:6], [list(reply) for reply in row[6]]] for row in good]
        change(rows)
        return rows

    changes: list[Any] = [
        lambda rows: rows[0].__setitem__(6, []),
        lambda rows: rows[0][6].append(rows[0][6][-1]),
        lambda rows: rows[1].__setitem__(1, rows[0][1]),
        lambda rows: rows[0][6].reverse(),
        lambda rows: rows[0][6][0].__setitem__(4, 3),
        lambda rows: rows[0].__setitem__(1, bytes(16)),
    ]
    for change in changes:
        with pytest.raises(ClientTableMalformed):
            ClientTable.restore(broken(change), 4)
    assert not issubclass(wire.ClientTableWireError, ClientTableMalformed)


def test_a_size_that_was_not_foreseen_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    view = wire.view_of(table_with_replies(), 50)
    size = wire.encoded_size(view)
    monkeypatch.setattr(wire, "encoded_size", lambda _: size + 1)
    with pytest.raises(OurFault):
        wire.encode(view)


def test_one_hash_for_all() -> None:
    body = encoded(ClientTable(4))
    assert int.from_bytes(body[-8:], "little") == artifact_checksum(body[:-8])


@some
@given(body=st.binary(max_size=700), start=st.sampled_from([b"", b"SCT1\1\0\0\0", b"ISM1\1\0\0\0\x19"]))
def test_only_typed_errors_leave(body: bytes, start: bytes) -> None:
    for decode in (decode_manifest, lambda data: wire.decode(data, 4)):
        for data in (start + body, seal_body(start + body)):
            try:
                decode(data)
            except (manifest.ManifestError, wire.ClientTableWireError) as error:
                assert isinstance(error, DecodeError) and str(error)
