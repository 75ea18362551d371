"""The trailer under every body that travels as an artifact: 8 bytes XXH3-64 (seed 0) over everything before it.

Invariants: manifest trailer, client-table trailer and artifact checksum are this one function; a body is verified
before any field of it is read; the two ways to fail (too short for a trailer, mismatch) stay apart. A checksum that
holds proves that bytes arrived as they were sent, not that the sender made sense: decoders check every field after it.
"""

from __future__ import annotations

from typing import Final

import xxhash

from shardsrv.errors import SealMismatch, Truncated
from shardsrv.wire.cursor import Buffer

TRAILER_SIZE: Final = 8


def artifact_checksum(data: Buffer) -> int:
    """XXH3-64 of ``data``: what a manifest says about an artifact and what a trailer says about its body."""
    return xxhash.xxh3_64_intdigest(data)


def seal_body(content: Buffer) -> bytes:
    """``content`` and its trailer."""
    return bytes(content) + artifact_checksum(content).to_bytes(TRAILER_SIZE, "little")


def verified_content(body: Buffer, what: str) -> memoryview:
    """The body without its trailer.

    Args:
        what: names the body in errors.
    Raises:
        Truncated: fewer bytes than a trailer has.
        SealMismatch: the trailer does not match (``expected`` is the stored value, ``found`` the computed one).
    """
    view = memoryview(body).cast("B")
    end = len(view) - TRAILER_SIZE
    if end < 0:
        raise Truncated(f"{what} trailer", 0, TRAILER_SIZE, len(view))
    content = view[:end]
    stored, computed = int.from_bytes(view[end:], "little"), artifact_checksum(content)
    if stored != computed:
        raise SealMismatch(what, end, stored, computed)
    return content
