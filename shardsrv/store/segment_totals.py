"""What a sealed segment holds, counted from its entries: for retention, which must take away exactly what it takes
away.

Only headers are looked at, one after the other; a segment of large batches is skipped through without reading their
bodies. The file is opened apart from the log's own handles, so that counting may run in a thread while the log goes on;
a segment that is dropped meanwhile counts as not there.
"""

from __future__ import annotations

import struct
from typing import Final

from shardsrv.errors import Damaged
from shardsrv.store.disk import READ, Disk, disk_fault, read_exact
from shardsrv.store.segment import SEGMENT_HEADER, SEND_MESSAGES

CHUNK: Final = 64 * 1024
"""Bytes of one read: many small entries, or one header of a large one."""
_SIZE: Final = struct.Struct("<I")
_SIZE_AT: Final = 48
_OPERATION_AT: Final = 208


def batch_bytes(disk: Disk, path: str, size: int) -> int | None:
    """Bytes of the batches (prepare headers left out) in a segment file of ``size`` bytes; None when the file is gone.

    Raises:
        Damaged: an entry's size cannot be.
        Unreadable: the file cannot be read.
    """
    try:
        handle = disk.open_read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_fault(error, path, READ) from error
    try:
        return _count(disk, handle, path, size)
    except OSError as error:
        raise disk_fault(error, path, READ) from error
    finally:
        disk.close(handle)


def _count(disk: Disk, handle: int, path: str, size: int) -> int:
    chunk = memoryview(bytearray(CHUNK))
    position, total = SEGMENT_HEADER, 0
    while position + SEGMENT_HEADER <= size:
        count = read_exact(disk, handle, chunk[: min(CHUNK, size - position)], position)
        at = 0
        while at + SEGMENT_HEADER <= count:
            (length,) = _SIZE.unpack_from(chunk, at + _SIZE_AT)
            if length < SEGMENT_HEADER or position + at + length > size:
                raise Damaged(path, position + at, None, f"an entry of at most {size - position - at} bytes", length)
            if chunk[at + _OPERATION_AT] == SEND_MESSAGES:
                total += length - SEGMENT_HEADER
            at += length
        position += at
        if at == 0:
            raise Damaged(path, position, None, "a whole header", f"{count} bytes")
    return total
