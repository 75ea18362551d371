"""The header of a log entry, as prepare, as repair prepare and on disk.

A prepare is not sealed like a control frame. It has two hashes: an identity that survives a re-stamp of `view` (the
hash chain of a log is made of identities), and a stored seal over everything, so that a stored header can be checked
alone. Invariants: a prepare that validates has both; a repair prepare differs in byte 60 only and keeps the hashes.
"""

from __future__ import annotations

from typing import ClassVar, Self

import attrs
import xxhash

from shardsrv.errors import SealMismatch
from shardsrv.wire.constants import HEADER_SIZE, KNOWN_OPERATIONS, ZERO_ID, Command, Durability
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.groups import is_group
from shardsrv.wire.layout import U8, U32, U62, U64, U128, Header, Layout, frame_prefix, number, raw, require, reserved


@attrs.frozen(kw_only=True)
class PrepareHeader(Header):
    """One entry of a log, on the wire and on disk.

    `checksum` is the identity: XXH3-64 of the header with checksum, view and stored_seal zero. `stored_seal` is XXH3-64
    of the header with that field alone zero. `view` is the current view on the wire and equals `born_view` on disk.
    """

    layout: ClassVar[Layout] = Layout(
        Command.PREPARE,
        (
            *frame_prefix(),
            raw(128, 16, "client"),
            number(144, U128, "parent"),
            number(160, U128, "request_checksum"),
            number(176, U62, "op"),
            number(184, U62, "commit"),
            number(192, U62, "timestamp"),
            number(200, U62, "request"),
            number(208, U8, "operation"),
            reserved(209, 216),
            number(216, U64, "group"),
            number(224, U32, "user_id"),
            number(228, U62, "created_revision"),
            number(236, U64, "stored_seal"),
            number(244, U32, "born_view"),
            number(248, U8, "durability"),
            reserved(249, 256),
        ),
    )

    client: bytes = ZERO_ID
    parent: int = 0
    request_checksum: int = 0
    op: int = 0
    commit: int = 0
    timestamp: int = 0
    request: int = 0
    operation: int = 0
    group: int = 0
    user_id: int = 0
    created_revision: int = 0
    stored_seal: int = 0
    born_view: int = 0
    durability: int = 0

    @classmethod
    def blank(cls, op: int) -> Self:
        """What stands in a suffix for an entry that the sender does not hold: command and op, all else zero."""
        return cls(op=op, size=0)

    @property
    def is_blank(self) -> bool:
        return self == type(self)(op=self.op, size=0)

    def sealed(self) -> Self:
        """The same header with identity and stored seal computed."""
        unsealed = attrs.evolve(self, checksum=0, stored_seal=0)
        identified = attrs.evolve(unsealed, checksum=identity_of(unsealed.pack()))
        return attrs.evolve(identified, stored_seal=stored_seal_of(identified.pack()))

    def restamped(self, view: int) -> Self:
        """The header as sent in `view`: same identity, stored seal made again."""
        stamped = attrs.evolve(self, view=view, stored_seal=0)
        return attrs.evolve(stamped, stored_seal=stored_seal_of(stamped.pack()))

    def validate(self) -> None:
        """Field rules, then both checksums."""
        Header.validate(self)
        require(self.op > 0, "op", 176, "1 or more", self.op)
        require(self.operation != 0 and self.operation in KNOWN_OPERATIONS, "operation", 208, "known", self.operation)
        require(is_group(self.group), "group", 216, "a group id", self.group)
        require(self.born_view <= self.view, "born_view", 244, f"at most {self.view}", self.born_view)
        require(self.durability <= Durability.PERSISTED, "durability", 248, "0 or 1", self.durability)
        packed = self.pack()
        if self.checksum != identity_of(packed):
            raise SealMismatch("identity", 0, self.checksum, identity_of(packed))
        if self.stored_seal != stored_seal_of(packed):
            raise SealMismatch("stored seal", 236, self.stored_seal, stored_seal_of(packed))


def identity_of(header: Buffer) -> int:
    """The identity of 256 prepare bytes: hash with checksum, view and stored_seal zero and the command of a prepare."""
    raw_header = bytearray(memoryview(header)[:HEADER_SIZE])
    raw_header[0:16] = ZERO_ID
    raw_header[52:56] = bytes(4)
    raw_header[60] = Command.PREPARE
    raw_header[236:244] = bytes(8)
    return xxhash.xxh3_64_intdigest(raw_header)


def stored_seal_of(header: Buffer) -> int:
    """The stored seal of 256 prepare bytes: hash with stored_seal zero and the command of a prepare."""
    raw_header = bytearray(memoryview(header)[:HEADER_SIZE])
    raw_header[60] = Command.PREPARE
    raw_header[236:244] = bytes(8)
    return xxhash.xxh3_64_intdigest(raw_header)


@attrs.frozen(kw_only=True)
class RepairPrepareHeader(PrepareHeader):
    """A prepare sent for repair: byte 60 differs, checksums are those of the prepare."""

    layout: ClassVar[Layout] = Layout(Command.REPAIR_PREPARE, PrepareHeader.layout.fields)

    def as_prepare(self) -> PrepareHeader:
        """The stored form."""
        return PrepareHeader(**{name: getattr(self, name) for name in self.layout.names})
