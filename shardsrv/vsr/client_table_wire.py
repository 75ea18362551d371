"""The client table as it travels in a state transfer: this node's table for a peer, a peer's table for this node.

Layout, little-endian: magic "SCT1", count u32, then per client in slot order

    Off Len Field
      0  16 client
     16   8 epoch u64
     24   4 user id u32
     28   8 watermark u64
     36  16 watermark checksum u128
     52   1 ring length u8, 1..5
     53   . per reply: length u32, then a whole Reply frame (header of 256 bytes and body)

and XXH3-64 u64 of everything before it. The magic changes with this layout and with that of the Reply header.

Invariants: equal tables that were reached in the same way give equal bytes, yet the bytes are no identity between
replicas: decoding packs the slots to 0..count. What a decoder returns is a table that its own rules could have made
(no client twice, rings of 1 to 5 replies, ops rising), whatever the trailer says. The op of a client's newest reply is
that of the last reply in its ring, it does not travel beside it. These bytes are a peer's: the errors are a family
apart from those of the checkpoint form (`shardsrv.vsr.client_table`), which is this node's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import attrs

from shardsrv import errors
from shardsrv.errors import DecodeError, OurFault, SealMismatch
from shardsrv.vsr.client_table import REPLIES_KEPT, CachedReply, ClientTable
from shardsrv.vsr.policy import CLIENTS_MAX
from shardsrv.wire.client_headers import ReplyHeader
from shardsrv.wire.constants import HEADER_SIZE, MAX_OP, ZERO_ID, Operation
from shardsrv.wire.cursor import Buffer, Cursor
from shardsrv.wire.sealed_body import TRAILER_SIZE, artifact_checksum, verified_content

MAGIC: Final = b"SCT1"
ENTRY_FIXED_SIZE: Final = 53
_REPLY_LENGTH_SIZE: Final = 4
_LOGOUT: Final = int(Operation.LOGOUT)
"""The operation whose reply no table keeps: it takes its client away."""


@attrs.define(slots=False)
class ClientTableWireError(DecodeError):
    """A peer's client table that is not one; base of its defects. `slot` is the entry's number in the body."""

    summary: ClassVar[str] = "transferred client table does not decode"
    slot: int | None = None


@attrs.define(slots=False)
class TableTruncated(ClientTableWireError):
    """It ends within a field, or goes on behind the last entry."""

    summary: ClassVar[str] = "transferred client table has another length than it says"


@attrs.define(slots=False)
class TableBadMagic(ClientTableWireError):
    """Another format, or another version of this one."""

    summary: ClassVar[str] = "transferred client table has another magic"


@attrs.define(slots=False)
class TableChecksumMismatch(ClientTableWireError):
    """The trailer does not match: `expected` is the stored value, `found` the computed one."""

    summary: ClassVar[str] = "transferred client table does not match its checksum"


@attrs.define(slots=False)
class TableTooManyEntries(ClientTableWireError):
    """More clients than any table may hold: `found`, at most `expected`."""

    summary: ClassVar[str] = "transferred client table has too many entries"


@attrs.define(slots=False)
class TableEmptyRing(ClientTableWireError):
    """A client without a reply: its registration left one."""

    summary: ClassVar[str] = "transferred client table has an entry without replies"


@attrs.define(slots=False)
class TableRingTooLong(ClientTableWireError):
    """A client with more replies than are kept."""

    summary: ClassVar[str] = "transferred client table has an entry with too many replies"


@attrs.define(slots=False)
class TableDuplicateClient(ClientTableWireError):
    """One client twice: `slot` is the first of the two, `found` the client."""

    summary: ClassVar[str] = "transferred client table has one client twice"


@attrs.define(slots=False)
class TableInvalidReply(ClientTableWireError):
    """A cached reply that is no Reply frame of this client, or stands out of order."""

    summary: ClassVar[str] = "transferred client table holds an invalid reply"


@attrs.define(slots=False)
class TableInvalidEntry(ClientTableWireError):
    """A number out of bounds, or a client id of zeros."""

    summary: ClassVar[str] = "transferred client table has an invalid entry"


@attrs.frozen
class TableRow:
    """One client as it was when the table was read; `replies` oldest first."""

    client: bytes
    epoch: int
    user_id: int
    watermark: int
    watermark_checksum: int
    replies: tuple[CachedReply, ...]


@attrs.frozen
class TableView:
    """A client table at one instant, immutable: rows in slot order, and the op that was applied last then."""

    rows: tuple[TableRow, ...]
    frontier: int


def view_of(table: ClientTable, frontier: int) -> TableView:
    """Capture ``table`` while op ``frontier`` is the last applied one; it is encoded later, elsewhere."""
    return TableView(
        tuple([TableRow(row[1], row[2], row[3], row[4], row[5], tuple(row[6])) for row in table.rows()]), frontier
    )


def encoded_size(view: TableView) -> int:
    """Bytes that `encode` makes, exactly."""
    size = len(MAGIC) + 4 + TRAILER_SIZE + ENTRY_FIXED_SIZE * len(view.rows)
    for row in view.rows:
        for reply in row.replies:
            size += _REPLY_LENGTH_SIZE + HEADER_SIZE + len(reply.body)
    return size


def encode(view: TableView, cluster: bytes = ZERO_ID) -> bytes:
    """The body of ``view``; ``cluster`` goes into the reply headers. Raises `OurFault` if the size was not foreseen."""
    size = encoded_size(view)
    out = bytearray(size)
    position = 0
    for part in _parts(view, cluster):
        out[position : position + len(part)] = part
        position += len(part)
    if position + TRAILER_SIZE != size or len(out) != size:
        raise OurFault(f"client table of {position + TRAILER_SIZE} bytes, {size} were foreseen")
    out[position:] = artifact_checksum(memoryview(out)[:position]).to_bytes(TRAILER_SIZE, "little")
    return bytes(out)


def _parts(view: TableView, cluster: bytes) -> Iterator[bytes]:
    """The content in pieces, a row at a time."""
    yield MAGIC + len(view.rows).to_bytes(4, "little")
    for row in view.rows:
        yield b"".join(
            [
                row.client,
                row.epoch.to_bytes(8, "little"),
                row.user_id.to_bytes(4, "little"),
                row.watermark.to_bytes(8, "little"),
                row.watermark_checksum.to_bytes(16, "little"),
                len(row.replies).to_bytes(1, "little"),
            ]
        )
        for reply in row.replies:
            frame = _reply_frame(row.client, reply, cluster)
            yield len(frame).to_bytes(_REPLY_LENGTH_SIZE, "little") + frame


def _reply_frame(client: bytes, reply: CachedReply, cluster: bytes) -> bytes:
    header = ReplyHeader(
        cluster=cluster,
        size=HEADER_SIZE + len(reply.body),
        request_checksum=reply.digest,
        client=client,
        op=reply.op,
        commit=reply.op,
        timestamp=reply.timestamp,
        request=reply.request,
        operation=reply.operation,
    )
    return header.pack() + reply.body


def decode(body: Buffer, capacity: int) -> ClientTable:
    """The table in a peer's bytes, in slots 0..count; its capacity is the larger of ``capacity`` and the count.

    Raises:
        TableTruncated, TableBadMagic, TableChecksumMismatch, TableTooManyEntries, TableEmptyRing, TableRingTooLong,
        TableDuplicateClient, TableInvalidReply, TableInvalidEntry: what is wrong with it.
    """
    try:
        rows = _decode(Cursor(verified_content(body, "client table")))
    except errors.Truncated as error:
        raise TableTruncated(error.what, error.offset, error.expected, error.found) from error
    except SealMismatch as error:
        raise TableChecksumMismatch(error.what, error.offset, error.expected, error.found) from error
    return ClientTable.restore(rows, max(capacity, len(rows)))


def _decode(cursor: Cursor) -> list[Any]:
    magic = bytes(cursor.take(len(MAGIC)))
    if magic != MAGIC:
        raise TableBadMagic("client table magic", 0, MAGIC, magic)
    count = cursor.u32()
    if count > CLIENTS_MAX:
        raise TableTooManyEntries("client table count", 4, CLIENTS_MAX, count)
    rows: list[Any] = []
    slots: dict[bytes, int] = {}
    for slot in range(count):
        row = _row(cursor, slot)
        first = slots.setdefault(row[1], slot)
        if first != slot:
            raise TableDuplicateClient("client", cursor.position, None, row[1], first)
        rows.append(row)
    if cursor.remaining:
        raise TableTruncated("client table", cursor.position, "the end", f"{cursor.remaining} more bytes")
    return rows


def _row(cursor: Cursor, slot: int) -> list[Any]:
    start = cursor.position
    client = bytes(cursor.take(16))
    epoch, user_id, watermark, digest, ring = cursor.u64(), cursor.u32(), cursor.u64(), cursor.u128(), cursor.u8()
    if not any(client) or max(epoch, watermark) > MAX_OP or digest >= 1 << 64:
        raise TableInvalidEntry("client table entry", start, "a client and numbers within bounds", client, slot)
    if ring == 0:
        raise TableEmptyRing("ring length", start + ENTRY_FIXED_SIZE - 1, "1 or more", 0, slot)
    if ring > REPLIES_KEPT:
        raise TableRingTooLong("ring length", start + ENTRY_FIXED_SIZE - 1, REPLIES_KEPT, ring, slot)
    replies: list[list[Any]] = []
    for _ in range(ring):
        at = cursor.position
        reply = _reply(cursor.take(cursor.u32()), client, slot, at)
        if replies and reply[2] <= replies[-1][2]:
            raise TableInvalidReply("reply op", at, f"above {replies[-1][2]}", reply[2], slot)
        replies.append(reply)
    return [slot, client, epoch, user_id, watermark, digest, replies]


def _reply(frame: memoryview, client: bytes, slot: int, at: int) -> list[Any]:
    """First a frame, then a Reply, then one that this table could have cached."""
    try:
        header = ReplyHeader.unpack(frame)
        header.validate()
    except DecodeError as error:
        raise TableInvalidReply(error.what, at + error.offset, error.expected, error.found, slot) from error
    sound = (
        header.size == len(frame)
        and header.client == client
        and header.status == 0
        and header.op == header.commit
        and header.operation != _LOGOUT
        and max(header.op, header.timestamp, header.request) <= MAX_OP
        and header.request_checksum < 1 << 64
    )
    if not sound:
        raise TableInvalidReply("reply", at, "a committed reply of its client", header.operation, slot)
    body = bytes(frame[HEADER_SIZE:])
    return [header.request, header.request_checksum, header.op, header.timestamp, header.operation, body]
