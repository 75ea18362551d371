"""Frames of other nodes on their way to the groups of one shard.

A frame is verified whole before a group hears of it, and its sender is the node of the link. Invariants: what does not
verify or has no group here is dropped and counted; frames for a partition that this node has not made yet are kept for
a moment, bounded in number, bytes and time, because its primary may have made it first; the bytes of a frame are copied
out of the buffers of the link, which must always have room for the next frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import attrs

from shardsrv.errors import DiskFault, PeerFault
from shardsrv.shards.group import Group
from shardsrv.vsr.events import Message
from shardsrv.vsr.frames import decode_frame, split

PARKED_FRAMES: Final = 1024
PARKED_BYTES: Final = 16 << 20
PARKED_TICKS: Final = 200
"""Frames that wait for their partition: how many, their bytes, and how long (2 s: metadata is a few ticks behind)."""

Key = tuple[int, int]
"""(group, created_revision)."""


@attrs.define(slots=True, eq=False)
class Waiting:
    """A frame that is kept: until which tick, its size, and itself."""

    until: int
    size: int
    message: Message


class ReplicaFrames:
    """See the module. ``group_at(group, revision)`` is the group of this shard, or None."""

    def __init__(self, group_at: Callable[[int, int], Group | None], *, frame_max: int, parks: bool) -> None:
        self._group_at = group_at
        self._frame_max = frame_max
        self._parks = parks
        self._waiting: dict[Key, list[Waiting]] = {}
        self._frames = 0
        self._bytes = 0
        self._ticks = 0
        self.refused = 0
        """Frames that did not verify."""
        self.homeless = 0
        """Frames whose group is not here, and that could not wait."""

    def receive(self, peer: int, data: bytes) -> None:
        """A frame of node ``peer``."""
        try:
            whole, body = decode_frame(data, self._frame_max)
            headers = split(whole, body)
        except (PeerFault, DiskFault):
            self.refused += 1
            return
        now = time.time_ns() // 1000
        size = len(data) // len(headers)
        for header in headers:
            named = getattr(header, "prepare", header)
            group = self._group_at(named.group, named.created_revision)
            message = Message(peer, header, body if header is whole else b"", now)
            if group is not None:
                group.deliver(message)
            else:
                self._park((named.group, named.created_revision), message, size)

    def made(self, group: int, revision: int) -> None:
        """A partition of this shard serves now: what waited for it arrives."""
        for waiting in self._take((group, revision)):
            found = self._group_at(group, revision)
            if found is not None:
                found.deliver(waiting.message)

    def tick(self) -> None:
        """10 ms passed."""
        self._ticks += 1
        for key in [key for key, waiting in self._waiting.items() if waiting[0].until <= self._ticks]:
            self.homeless += len(self._take(key))

    def _park(self, key: Key, message: Any, size: int) -> None:
        if not self._parks or self._frames >= PARKED_FRAMES or self._bytes + size > PARKED_BYTES:
            self.homeless += 1
            return
        self._frames += 1
        self._bytes += size
        self._waiting.setdefault(key, []).append(Waiting(self._ticks + PARKED_TICKS, size, message))

    def _take(self, key: Key) -> list[Waiting]:
        waiting = self._waiting.pop(key, [])
        self._frames -= len(waiting)
        self._bytes -= sum(item.size for item in waiting)
        return waiting
