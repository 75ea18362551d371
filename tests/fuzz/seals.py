"""Seals made again: a hostile sender computes them as well as an honest one, and behind them the fields are read.

Each function changes a mutated sample so that its checksums hold again, as far as its lengths still make sense. Written
from the formats (docs/architecture.md, "Durable formats"), not with the server's code.
"""

import struct

import xxhash

from tests.support.batches import BATCH_HEADER_SIZE, FRAME_HEADER_SIZE, seal_batch

HEADER = 256
PREPARE, REPAIR_PREPARE = 6, 19
HANDSHAKE = range(13, 17)
"""Hello, challenge and finish, and the eviction: none of them is sealed."""
SEND_MESSAGES = 160
_FRAME_LENGTHS = struct.Struct("<II")


def seal_size(data: bytearray) -> None:
    """The size field of a frame."""
    if len(data) >= HEADER:
        data[48:52] = len(data).to_bytes(4, "little")


def seal_control(data: bytearray) -> None:
    """Size, body hash and header hash of a control frame."""
    if len(data) < HEADER:
        return
    seal_size(data)
    body = xxhash.xxh3_64_intdigest(data[HEADER:]) if len(data) > HEADER else 0
    data[16:32] = body.to_bytes(16, "little")
    data[0:16] = xxhash.xxh3_64_intdigest(data[16:HEADER]).to_bytes(16, "little")


def seal_link_header(data: bytearray) -> None:
    """A header of a handshake, which has no seal, or of a session that is forwarded."""
    if len(data) >= HEADER and data[60] in HANDSHAKE:
        seal_size(data)
    else:
        seal_control(data)


def seal_prepare_header(header: bytearray) -> None:
    """Identity and stored seal of the 256 bytes of a log entry."""
    blank = bytearray(header)
    blank[0:16] = bytes(16)
    blank[52:56] = bytes(4)
    blank[60] = PREPARE
    blank[236:244] = bytes(8)
    header[0:16] = xxhash.xxh3_64_intdigest(blank).to_bytes(16, "little")
    blank[0:16] = header[0:16]
    blank[52:56] = header[52:56]
    header[236:244] = xxhash.xxh3_64_intdigest(blank).to_bytes(8, "little")


def seal_prepare(data: bytearray) -> None:
    """Size, body checksum and both hashes of a log entry with its body."""
    if len(data) < HEADER:
        return
    seal_size(data)
    body = data[HEADER:]
    if data[208] == SEND_MESSAGES and len(body) >= BATCH_HEADER_SIZE:
        seal_messages(body)
        data[HEADER:] = body
        checksum = int.from_bytes(body[40:48], "little")
    else:
        checksum = xxhash.xxh3_64_intdigest(body)
    data[16:32] = checksum.to_bytes(16, "little")
    header = data[:HEADER]
    seal_prepare_header(header)
    data[:HEADER] = header


def seal_replica_frame(data: bytearray) -> None:
    """Whichever of the two kinds of frame between members it is."""
    if len(data) >= HEADER and data[60] in (PREPARE, REPAIR_PREPARE):
        seal_prepare(data)
    else:
        seal_control(data)


def seal_suffix(data: bytearray) -> None:
    """Every prepare header of a log suffix."""
    for start in range(0, len(data) - HEADER + 1, HEADER):
        header = data[start : start + HEADER]
        if any(header[:16]):
            seal_prepare_header(header)
            data[start : start + HEADER] = header


def seal_messages(batch: bytearray) -> None:
    """Frame checksums and batch checksum of a batch, as far as its frames can be walked; its length field too."""
    if len(batch) < BATCH_HEADER_SIZE:
        return
    batch[32:40] = len(batch).to_bytes(8, "little")
    checksums = []
    position = BATCH_HEADER_SIZE
    while position + FRAME_HEADER_SIZE <= len(batch):
        lengths = _FRAME_LENGTHS.unpack_from(batch, position + 32)
        end = position + FRAME_HEADER_SIZE + sum(lengths)
        if end > len(batch):
            break
        checksums.append(xxhash.xxh3_64_intdigest(batch[position + 8 : end]))
        batch[position : position + 8] = checksums[-1].to_bytes(8, "little")
        position = end
    fields = struct.unpack_from("<QQQQQxxxxxxxxI", batch)
    batch[40:48] = seal_batch(fields, checksums).to_bytes(8, "little")


def seal_send(data: bytearray) -> None:
    """The batch behind the metadata of a send body."""
    if len(data) < 4:
        return
    start = 4 + int.from_bytes(data[:4], "little")
    batch = data[start:]
    seal_messages(batch)
    data[start:] = batch


def seal_trailer(data: bytearray) -> None:
    """The hash behind a manifest or a client table."""
    if len(data) >= 8:
        data[-8:] = xxhash.xxh3_64_intdigest(data[:-8]).to_bytes(8, "little")
