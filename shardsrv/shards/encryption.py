"""Encryption at rest: payloads and user headers of messages are stored as AES-256-GCM.

Stored field = 12 random bytes of nonce, ciphertext, 16 bytes of tag; no additional data (storage.md 8). Payload and
user headers of a message are separate fields; ids, offsets and times are not encrypted, neither is metadata. Frames are
made anew with their checksums: on the home shard before the batch goes to its partition, and when a poll is answered.
The digest that tells retries stays that of the batch as it was sent. Large batches are worked on in a thread.
"""

import binascii
import os
import struct
from base64 import b64decode
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shardsrv._core import xxh3
from shardsrv.errors import ConfigurationError, RequestRefused
from shardsrv.wire.error_codes import ErrorCode

NONCE = 12
TAG = 16
BATCH_HEADER = 256
FRAME_HEADER = 48

INLINE_MAX = 64 * 1024
"""Bytes of a batch that are worked on in the pump; larger ones go to a thread."""

_LENGTHS = struct.Struct("<II")
_U64 = struct.Struct("<Q")
_LENGTHS_AT = 32
_LENGTH_AT = 32
_CHECKSUM_AT = 40
_COUNT_AT = 48


class Cipher:
    """The key of this node."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    @classmethod
    def of(cls, text: str) -> "Cipher":
        """From the base64 text of the configuration. Raises `ConfigurationError` without naming the value."""
        try:
            key = b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != 32:
            raise ConfigurationError("system.encryption.key", "******", "it must be the base64 text of 32 bytes")
        return cls(key)

    def encrypt(self, batch: Any) -> bytearray:
        """A batch, checked before, with every payload and every user header block encrypted."""
        return self._rebuild(batch, 0, len(batch), self._seal)

    def decrypt(self, parts: list[Any]) -> bytes:
        """The records of a poll in the clear. Raises `RequestRefused` (72) for a field that does not open with this
        key."""
        data = memoryview(b"".join(parts))
        out = bytearray()
        position = 0
        while position < len(data):
            (length,) = _U64.unpack_from(data, position + _LENGTH_AT)
            out += self._rebuild(data, position, length, self._open)
            position += length
        return bytes(out)

    def _rebuild(self, data: Any, start: int, length: int, change: Any) -> bytearray:
        view = memoryview(data)[start : start + length]
        out = bytearray(view[:BATCH_HEADER])
        sums = bytearray()
        position = BATCH_HEADER
        while position < length:
            headers, payload = _LENGTHS.unpack_from(view, position + _LENGTHS_AT)
            body = position + FRAME_HEADER
            changed = change(view[body : body + payload])
            changed_headers = change(view[body + payload : body + payload + headers]) if headers else b""
            frame = (
                bytes(view[position + 8 : position + _LENGTHS_AT])
                + _LENGTHS.pack(len(changed_headers), len(changed))
                + bytes(8)
            )
            frame += changed + changed_headers
            checksum = _U64.pack(xxh3(frame))
            sums += checksum
            out += checksum
            out += frame
            position = body + payload + headers
        _U64.pack_into(out, _LENGTH_AT, len(out))
        _U64.pack_into(
            out, _CHECKSUM_AT, xxh3(bytes(out[:_CHECKSUM_AT]) + bytes(out[_COUNT_AT : _COUNT_AT + 4]) + bytes(sums))
        )
        return out

    def _seal(self, plain: memoryview) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + self._aead.encrypt(nonce, bytes(plain), None)

    def _open(self, stored: memoryview) -> bytes:
        if len(stored) < NONCE + TAG:
            raise RequestRefused(ErrorCode.CANNOT_DECRYPT_DATA)
        try:
            return self._aead.decrypt(bytes(stored[:NONCE]), bytes(stored[NONCE:]), None)
        except InvalidTag as error:
            raise RequestRefused(ErrorCode.CANNOT_DECRYPT_DATA) from error
