"""The manifest of a state transfer: what is on offer, artifact by artifact.

Layout, little-endian: "ISM1", count u32, entry length u8 (25), entries, XXH3-64 u64 of everything before it.

    Off Len Field of an entry
      0   1 kind u8, see `ArtifactKind`
      1   8 frontier u64: what it counts depends on the kind
      9   8 length u64, bytes
     17   8 checksum u64: XXH3-64 of the artifact

Invariants: the trailer is verified before any field is read; an entry is decoded from exactly the declared entry
length, so that a longer one of a later release is accepted and none reads into the next; nothing is allocated for a
count that the bytes do not hold; what is behind the last entry is refused. Kinds are not judged here: the receiver
refuses what it does not know.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar, Final

import attrs

from shardsrv import errors
from shardsrv.errors import DecodeError, EncodeError, SealMismatch
from shardsrv.wire.constants import MAX_OP
from shardsrv.wire.cursor import Buffer, Cursor
from shardsrv.wire.sealed_body import seal_body, verified_content

MANIFEST_MAGIC: Final = b"ISM1"
MANIFEST_ENTRY_SIZE: Final = 25
MAX_MANIFEST_ENTRIES: Final = 65_536


class ArtifactKind(enum.IntEnum):
    """What an artifact is; the frontier is named behind it."""

    METADATA_SNAPSHOT = 0  # the op of the snapshot
    CLIENT_TABLE = 1  # the op at which the table was read
    SEGMENT = 2  # the first op of the segment
    CONSUMER_OFFSETS = 3  # not made here: a partition's offsets travel in its checkpoint
    PARTITION_CHECKPOINT = 4  # the op of the checkpoint


@attrs.frozen
class Artifact:
    """One thing to transfer: `length` bytes whose XXH3-64 is `checksum`; what `frontier` counts depends on the kind."""

    kind: int
    frontier: int
    length: int
    checksum: int


@attrs.define(slots=False)
class ManifestError(DecodeError):
    """A manifest that is not one; base of its defects."""

    summary: ClassVar[str] = "state manifest does not decode"


@attrs.define(slots=False)
class ManifestTruncated(ManifestError):
    """It ends within a field, or goes on behind the last entry."""

    summary: ClassVar[str] = "state manifest has another length than it says"


@attrs.define(slots=False)
class ManifestBadMagic(ManifestError):
    """Another format, or another version of this one."""

    summary: ClassVar[str] = "state manifest has another magic"


@attrs.define(slots=False)
class ManifestChecksumMismatch(ManifestError):
    """The trailer does not match: `expected` is the stored value, `found` the computed one."""

    summary: ClassVar[str] = "state manifest does not match its checksum"


@attrs.define(slots=False)
class ManifestTooManyEntries(ManifestError):
    """More entries than any manifest may have."""

    summary: ClassVar[str] = "state manifest has too many entries"


@attrs.define(slots=False)
class ManifestEntryTooShort(ManifestError):
    """An entry length below the fields of this release."""

    summary: ClassVar[str] = "state manifest has entries that are too short"


@attrs.define(slots=False)
class ManifestNumberTooLarge(ManifestError):
    """A frontier or a length beyond 2**62 - 1."""

    summary: ClassVar[str] = "state manifest has a number out of bounds"


def encode_manifest(artifacts: Sequence[Artifact]) -> bytes:
    """The manifest of a transfer; raises EncodeError."""
    if len(artifacts) > MAX_MANIFEST_ENTRIES:
        raise EncodeError(what="manifest", value=len(artifacts))
    out = bytearray(MANIFEST_MAGIC)
    out += len(artifacts).to_bytes(4, "little")
    out.append(MANIFEST_ENTRY_SIZE)
    for artifact in artifacts:
        if max(artifact.frontier, artifact.length) > MAX_OP:
            raise EncodeError(what="manifest entry", value=artifact)
        out.append(artifact.kind)
        for value in (artifact.frontier, artifact.length, artifact.checksum):
            out += value.to_bytes(8, "little")
    return seal_body(out)


def decode_manifest(body: Buffer) -> tuple[Artifact, ...]:
    """The artifacts of a manifest; longer entries of a later release are accepted.

    Raises:
        ManifestTruncated, ManifestBadMagic, ManifestChecksumMismatch, ManifestTooManyEntries, ManifestEntryTooShort,
        ManifestNumberTooLarge: what is wrong with it.
    """
    try:
        return _decode(Cursor(verified_content(body, "manifest")))
    except errors.Truncated as error:
        raise ManifestTruncated(error.what, error.offset, error.expected, error.found) from error
    except SealMismatch as error:
        raise ManifestChecksumMismatch(error.what, error.offset, error.expected, error.found) from error


def _decode(cursor: Cursor) -> tuple[Artifact, ...]:
    magic = bytes(cursor.take(len(MANIFEST_MAGIC)))
    if magic != MANIFEST_MAGIC:
        raise ManifestBadMagic("manifest magic", 0, MANIFEST_MAGIC, magic)
    count, entry_length = cursor.u32(), cursor.u8()
    if count > MAX_MANIFEST_ENTRIES:
        raise ManifestTooManyEntries("manifest count", 4, f"at most {MAX_MANIFEST_ENTRIES}", count)
    if entry_length < MANIFEST_ENTRY_SIZE:
        raise ManifestEntryTooShort("manifest entry length", 8, f"at least {MANIFEST_ENTRY_SIZE}", entry_length)
    entries = Cursor(cursor.take(count * entry_length))
    if cursor.remaining:
        raise ManifestTruncated("manifest", cursor.position, "the end", f"{cursor.remaining} more bytes")
    return tuple([_artifact(Cursor(entries.take(entry_length)), index) for index in range(count)])


def _artifact(cursor: Cursor, index: int) -> Artifact:
    artifact = Artifact(cursor.u8(), cursor.u64(), cursor.u64(), cursor.u64())
    if max(artifact.frontier, artifact.length) > MAX_OP:
        found = max(artifact.frontier, artifact.length)
        raise ManifestNumberTooLarge(f"manifest entry {index}", 0, f"at most {MAX_OP}", found)
    return artifact
