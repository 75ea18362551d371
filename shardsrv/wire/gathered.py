"""Heartbeats and acknowledgements of many groups in one frame between two nodes.

Its header has command 1 (Ping, which the reference never sends), no group, and a body of entries, little-endian:

    Off Len Field                          Off Len Field
      0   1 kind 1: a heartbeat (Commit)     0   1 kind 2: an acknowledgement (PrepareOk)
      1   3 zero                             1   1 operation
                                             2   1 acked_as
                                             3   1 zero
      4   4 view u32                         4   4 view u32
      8   8 group u64                        8   8 group u64
     16   8 created_revision u64            16   8 created_revision u64
     24  16 commit_checksum u128            24  16 parent u128
     40   8 timestamp_monotonic u64         40  16 prepare_checksum u128
     48   8 commit u64                      56   8 op u64
     56   8 checkpoint_op u64               64   8 commit u64
                                            72   8 timestamp u64
                                            80   8 request u64

Cluster and replica of each are those of the frame. Invariant: what comes out of `read` is what a frame of its own would
have given, checked by the same rules; a body in which anything does not hold gives nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, ClassVar, Final

import attrs

from shardsrv.errors import DecodeError, Truncated
from shardsrv.wire.constants import MAX_OP, Command
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.layout import Layout, reserved
from shardsrv.wire.replica_headers import CommitHeader, ControlHeader, PrepareOkHeader, control_layout

HEARTBEAT: Final = 1
ACKNOWLEDGEMENT: Final = 2
ENTRIES_MAX: Final = 512
"""Entries of one frame, at most 44 KiB."""
_HEARTBEAT: Final = Struct("<B3xIQQ16sQQQ")
_ACKNOWLEDGEMENT: Final = Struct("<BBBxIQQ16s16sQQQQ")

Gathered = CommitHeader | PrepareOkHeader


@attrs.frozen(kw_only=True)
class GatheredHeader(ControlHeader):
    """The header; its body is read by `read`."""

    layout: ClassVar[Layout] = control_layout(Command.PING, reserved(128, 256), fixed_size=False)


def encode(headers: Iterable[Gathered]) -> bytes:
    """The body of a frame that says what ``headers`` say, up to `ENTRIES_MAX` of one sender, none with a body."""
    return b"".join([_acknowledgement(each) if type(each) is PrepareOkHeader else _heartbeat(each) for each in headers])


def _heartbeat(header: Any) -> bytes:
    return _HEARTBEAT.pack(
        HEARTBEAT,
        header.view,
        header.group,
        header.created_revision,
        header.commit_checksum.to_bytes(16, "little"),
        header.timestamp_monotonic,
        header.commit,
        header.checkpoint_op,
    )


def _acknowledgement(header: PrepareOkHeader) -> bytes:
    return _ACKNOWLEDGEMENT.pack(
        ACKNOWLEDGEMENT,
        header.operation,
        header.acked_as,
        header.view,
        header.group,
        header.created_revision,
        header.parent.to_bytes(16, "little"),
        header.prepare_checksum.to_bytes(16, "little"),
        header.op,
        header.commit,
        header.timestamp,
        header.request,
    )


def read(header: GatheredHeader, body: Buffer) -> list[Gathered]:
    """What a frame says, entry by entry. Raises `DecodeError` (`Truncated`) for the whole of it."""
    found = list(_entries(header, memoryview(body)))
    if not 1 <= len(found) <= ENTRIES_MAX:
        raise DecodeError("entries", 0, f"1..{ENTRIES_MAX}", len(found))
    return found


def _entries(header: GatheredHeader, body: memoryview) -> Iterator[Gathered]:
    position = 0
    while position < len(body):
        kind = body[position]
        form = _FORMS.get(kind)
        if form is None:
            raise DecodeError("kind of an entry", position, f"{HEARTBEAT} or {ACKNOWLEDGEMENT}", kind)
        layout, make = form
        if len(body) - position < layout.size:
            raise Truncated("entry", position, layout.size, len(body) - position)
        entry = make(header, layout.unpack_from(body, position), bytes(body[position + 1 : position + 4]), position)
        entry.validate()
        yield entry
        position += layout.size


def _bounded(position: int, **numbers: int) -> dict[str, int]:
    for name, value in numbers.items():
        if value > MAX_OP:
            raise DecodeError(name, position, f"at most {MAX_OP}", value)
    return numbers


def _read_heartbeat(header: GatheredHeader, values: tuple[Any, ...], spare: bytes, position: int) -> CommitHeader:
    _, view, group, revision, checksum, beat, commit, checkpoint = values
    if any(spare):
        raise DecodeError("reserved bytes", position + 1, "zero", spare)
    return CommitHeader(
        cluster=header.cluster,
        replica=header.replica,
        view=view,
        group=group,
        commit_checksum=int.from_bytes(checksum, "little"),
        **_bounded(
            position, created_revision=revision, timestamp_monotonic=beat, commit=commit, checkpoint_op=checkpoint
        ),
    )


def _read_acknowledgement(
    header: GatheredHeader, values: tuple[Any, ...], spare: bytes, position: int
) -> PrepareOkHeader:
    _, operation, acked_as, view, group, revision, parent, checksum, op, commit, timestamp, request = values
    if spare[2]:
        raise DecodeError("reserved bytes", position + 3, "zero", spare[2:])
    return PrepareOkHeader(
        cluster=header.cluster,
        replica=header.replica,
        view=view,
        group=group,
        operation=operation,
        acked_as=acked_as,
        parent=int.from_bytes(parent, "little"),
        prepare_checksum=int.from_bytes(checksum, "little"),
        **_bounded(position, created_revision=revision, op=op, commit=commit, timestamp=timestamp, request=request),
    )


_FORMS: Final[dict[int, tuple[Struct, Any]]] = {
    HEARTBEAT: (_HEARTBEAT, _read_heartbeat),
    ACKNOWLEDGEMENT: (_ACKNOWLEDGEMENT, _read_acknowledgement),
}
