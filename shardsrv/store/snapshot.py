"""The snapshot file of the metadata plane: `snapshot.bin` = MessagePack payload, then a trailer.

    Off  Len Field
      0    n payload
      n    4 magic u32 = 0x49534E50
    n+4   16 u128: XXH3-64 of the payload, widened

Invariants: written whole and atomically, read only when its hash holds; the hash of the payload is the checkpoint
checksum of the superblock. Whether the payload is understood is the plane's business; here only its first fields,
[format version, created_at, op, ...], are looked at by tools.
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from shardsrv._core import xxh3
from shardsrv.errors import Damaged
from shardsrv.store.disk import Disk, read_all, replace_file

MAGIC: Final = 0x49534E50
TRAILER: Final = 20
MAX_SNAPSHOT: Final = 4 * 1024**3
"""Bytes: a bound on what is allocated at start."""
_TRAILER: Final = struct.Struct("<IQQ")
assert _TRAILER.size == TRAILER


@attrs.frozen
class SnapshotFile:
    """A payload whose trailer held, and its hash (the checkpoint checksum)."""

    payload: bytes
    checksum: int


def encode_trailer(payload: bytes) -> tuple[bytes, int]:
    """The 20 bytes behind a payload, and the payload's hash."""
    checksum = xxh3(payload)
    return _TRAILER.pack(MAGIC, checksum, 0), checksum


def decode_snapshot(data: bytes, path: str = "") -> SnapshotFile:
    """Check the trailer. Raises `Damaged` with the offset and the numbers on both sides."""
    end = len(data) - TRAILER
    if end < 0:
        raise Damaged(path, 0, None, f"at least {TRAILER} bytes", len(data))
    magic, stored, upper = _TRAILER.unpack_from(data, end)
    if magic != MAGIC:
        raise Damaged(path, end, None, MAGIC, magic)
    payload = bytes(memoryview(data)[:end])
    computed = xxh3(payload)
    if stored != computed or upper != 0:
        raise Damaged(path, end + 4, None, stored | upper << 64, computed)
    return SnapshotFile(payload, computed)


def write_snapshot(disk: Disk, directory: str, name: str, payload: bytes) -> int:
    """Replace the snapshot atomically; returns the hash of the payload, to be recorded as the pairing.

    Raises:
        DiskFault: a step failed. After a failed directory sync the new file may be live although this raised (S2-38):
            whoever needs to know which generation lies there reads the file.
    """
    trailer, checksum = encode_trailer(payload)
    replace_file(disk, directory, name, [payload, trailer])
    return checksum


def read_snapshot(disk: Disk, path: str) -> SnapshotFile | None:
    """The verified snapshot; None when there is no file.

    Raises:
        Damaged: trailer or hash do not hold.
        Unreadable: it cannot be read.
    """
    try:
        data = read_all(disk, path, MAX_SNAPSHOT)
    except FileNotFoundError:
        return None
    return decode_snapshot(data, path)
