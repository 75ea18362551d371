"""Bodies of the partition entries that are not message batches. All integers little-endian.

161 StoreConsumerOffset: count u32, then count times 16 bytes

    Off Len Field
      0   1 kind u8      1 consumer, 2 group
      1   1 flags u8     bit 0: never lower a stored offset (offsets that polls commit by themselves)
      2   2 zero
      4   4 key u32
      8   8 offset u64

162 DeleteConsumerOffset: count u32, then count times 8 bytes {kind u8, zero 3 bytes, key u32}
192 PurgePartition: generation u64, the metadata op of the purge
193 TruncatePartition: first offset kept u64, bytes of batches removed u64

Invariants: a body has exactly the length that its count says; unknown kinds, unknown flags and non-zero padding do not
decode.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

from shardsrv.errors import DecodeError
from shardsrv.wire.constants import MAX_OP

CONSUMER: Final = 1
GROUP: Final = 2
KEEP_HIGHEST: Final = 1
"""Flag: the offset is stored only where it is above the one that is stored."""

Store = tuple[int, int, int, int]
"""(kind, flags, key, offset)"""
Key = tuple[int, int]
"""(kind, key)"""

_COUNT: Final = struct.Struct("<I")
_STORE: Final = struct.Struct("<BBHIQ")
_KEY: Final = struct.Struct("<BBHI")
_PURGE: Final = struct.Struct("<Q")
_TRUNCATE: Final = struct.Struct("<QQ")


def encode_stores(stores: Iterable[Store]) -> bytes:
    """Body of a StoreConsumerOffset."""
    parts = [_STORE.pack(kind, flags, 0, key, offset) for kind, flags, key, offset in stores]
    return _COUNT.pack(len(parts)) + b"".join(parts)


def encode_keys(keys: Iterable[Key]) -> bytes:
    """Body of a DeleteConsumerOffset."""
    parts = [_KEY.pack(kind, 0, 0, key) for kind, key in keys]
    return _COUNT.pack(len(parts)) + b"".join(parts)


def encode_purge(generation: int) -> bytes:
    """Body of a PurgePartition."""
    return _PURGE.pack(generation)


def encode_truncate(first_offset: int, removed_bytes: int) -> bytes:
    """Body of a TruncatePartition."""
    return _TRUNCATE.pack(first_offset, removed_bytes)


def decode_stores(body: Any) -> list[Store]:
    """Read a StoreConsumerOffset. Raises `DecodeError`."""
    count = _count(body, _STORE.size, "stored offsets")
    stores: list[Store] = []
    for index in range(count):
        position = 4 + index * _STORE.size
        kind, flags, zero, key, offset = _STORE.unpack_from(body, position)
        if kind not in (CONSUMER, GROUP) or flags & ~KEEP_HIGHEST or zero or offset > MAX_OP:
            raise DecodeError("stored offset", position, None, bytes(body[position : position + _STORE.size]))
        stores.append((kind, flags, key, offset))
    return stores


def decode_keys(body: Any) -> list[Key]:
    """Read a DeleteConsumerOffset. Raises `DecodeError`."""
    count = _count(body, _KEY.size, "deleted offsets")
    keys: list[Key] = []
    for index in range(count):
        position = 4 + index * _KEY.size
        kind, zero, more, key = _KEY.unpack_from(body, position)
        if kind not in (CONSUMER, GROUP) or zero or more:
            raise DecodeError("deleted offset", position, None, bytes(body[position : position + _KEY.size]))
        keys.append((kind, key))
    return keys


def first_key(body: Any) -> Key:
    """(kind, key) of the first entry of a store or delete with at least one; the body was made by this module."""
    kind = body[4]
    return kind, int.from_bytes(body[8:12], "little")


def decode_purge(body: Any) -> int:
    """The generation of a PurgePartition. Raises `DecodeError`."""
    _exactly(body, _PURGE.size, "purge")
    (generation,) = _PURGE.unpack(body)
    return _bounded(generation, "purge generation", 0)


def decode_truncate(body: Any) -> tuple[int, int]:
    """(first offset kept, bytes removed) of a TruncatePartition. Raises `DecodeError`."""
    _exactly(body, _TRUNCATE.size, "truncation")
    first_offset, removed = _TRUNCATE.unpack(body)
    return _bounded(first_offset, "first offset kept", 0), _bounded(removed, "bytes removed", 8)


def _count(body: Any, entry_size: int, what: str) -> int:
    length = len(body)
    if length < 4:
        raise DecodeError(what, 0, 4, length)
    (count,) = _COUNT.unpack_from(body)
    _exactly(body, 4 + count * entry_size, what)
    return count


def _exactly(body: Any, expected: int, what: str) -> None:
    if len(body) != expected:
        raise DecodeError(what, 0, expected, len(body))


def _bounded(value: int, what: str, offset: int) -> int:
    if value > MAX_OP:
        raise DecodeError(what, offset, f"at most {MAX_OP}", value)
    return value
