"""ZIP files with the two methods that the standard library does not write: Zstandard (93) and XZ (95).

Layout (PKWARE APPNOTE): for each file a local header and its data, then the central directory, then its end. The
Zstandard frames hold raw blocks (RFC 8878, 3.1.1.2):
valid for every reader, without compression, since no Zstandard library is among the dependencies.
"""

import lzma
import struct
import zlib
from collections.abc import Sequence

from shardsrv.wire.constants import SnapshotCompression

ZSTANDARD = 93
XZ = 95

_VERSION = 63
"""ZIP version 6.3, the first with both methods."""
_DOS_DATE = 0x21
"""1980-01-01: the archive carries no time of its own."""

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")

BLOCK = 128 * 1024
"""The largest block of a Zstandard frame."""


def raw_zstandard(data: bytes) -> bytes:
    """One frame: magic, descriptor (single segment, u32 content size), raw blocks of 3-byte headers {last, type,
    size}."""
    out = bytearray(struct.pack("<IBI", 0xFD2FB528, 0xA0, len(data)))
    blocks = range(0, len(data), BLOCK) or range(1)
    for start in blocks:
        piece = data[start : start + BLOCK]
        last = start + BLOCK >= len(data)
        out += (len(piece) << 3 | last).to_bytes(3, "little") + piece
    return bytes(out)


def pack_zip(files: Sequence[tuple[str, bytes]], compression: SnapshotCompression) -> bytes:
    """The archive of (name, data); ``compression`` ZSTD or XZ."""
    method = ZSTANDARD if compression == SnapshotCompression.ZSTD else XZ
    body, directory = bytearray(), bytearray()
    for name, data in files:
        packed = raw_zstandard(data) if method == ZSTANDARD else lzma.compress(data, lzma.FORMAT_XZ)
        title = name.encode()
        facts = (_VERSION, 0, method, 0, _DOS_DATE, zlib.crc32(data), len(packed), len(data), len(title), 0)
        directory += _CENTRAL.pack(0x02014B50, _VERSION, *facts, 0, 0, 0, 0, len(body)) + title
        body += _LOCAL.pack(0x04034B50, *facts) + title + packed
    end = _END.pack(0x06054B50, 0, 0, len(files), len(files), len(directory), len(body), 0)
    return bytes(body + directory) + end
