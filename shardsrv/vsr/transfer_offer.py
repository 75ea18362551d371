"""What a member offers, and how much of it a requester was sent.

Invariants: an offer never changes and is shared by everyone who pulls from it; a manifest entry and where its bytes lie
are one pair; what was sent counts once, however often it was sent.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from shardsrv.wire.manifest import Artifact, encode_manifest

GAPS_MAX: Final = 64
"""Separate ranges remembered of one artifact. A receiver keeps a window, so it leaves few; whoever asks for bytes all
over the place is only taken to be unfinished."""


@attrs.frozen(eq=False)
class Offer:
    """``generation``: op of the snapshot or checkpoint, read from what is sent. ``commit_op``: the op applied last when
    the live part was read. ``artifacts``: pairs of a manifest entry and the driver's way to its bytes, in manifest
    order."""

    generation: int
    commit_op: int
    artifacts: tuple[tuple[Artifact, Any], ...]

    def manifest(self) -> bytes:
        """The body of the descriptor."""
        return encode_manifest([artifact for artifact, _ in self.artifacts])

    @property
    def total_length(self) -> int:
        """Bytes of all artifacts."""
        return sum(artifact.length for artifact, _ in self.artifacts)


class Sent:
    """Which bytes of an offer went out at least once."""

    __slots__ = ("_lengths", "_ranges")

    def __init__(self, offer: Offer) -> None:
        self._lengths = [artifact.length for artifact, _ in offer.artifacts]
        self._ranges: list[list[tuple[int, int]]] = [[] for _ in self._lengths]

    def add(self, index: int, start: int, end: int) -> None:
        """Bytes ``start``..``end`` of artifact ``index`` went out."""
        merged: list[tuple[int, int]] = []
        for low, high in self._ranges[index]:
            if high < start or low > end:
                merged.append((low, high))
            else:
                start, end = min(low, start), max(high, end)
        if len(merged) < GAPS_MAX:
            merged.append((start, end))
            merged.sort()
            self._ranges[index] = merged

    @property
    def complete(self) -> bool:
        """Whether every byte went out."""
        return all(
            not length or ranges == [(0, length)] for length, ranges in zip(self._lengths, self._ranges, strict=True)
        )


class Served:
    """One requester's use of an offer: its own nonce, idle clock and count of running reads beside the shared
    payload."""

    __slots__ = ("idle_ticks", "nonce", "offer", "reads", "requester", "sent")

    def __init__(self, requester: int, nonce: int, offer: Offer) -> None:
        self.requester = requester
        self.nonce = nonce
        self.offer = offer
        self.sent = Sent(offer)
        self.idle_ticks = 0
        self.reads = 0
