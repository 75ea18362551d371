"""Everything that the processes of a node share, made by the supervisor before the fork.

Owns the regions, eventfds and socket pairs of a node. Invariants: all of it exists before the first fork; nothing here
is remade while a shard lives (a node restarts whole, with new shared memory); who may write what is said in `_memory`.

Layout of the lane region of one receiver:
    0    64            wake word
    64   (128 + lane_bytes) for each sender, in order of shard number; the receiver's own place stays untouched
"""

from __future__ import annotations

import os
import socket

from shardsrv.bus._memory import LANE_HEADER_SIZE, SLOT_SIZE, WAKE_SIZE, Arena, Counters, Lane, Region, Wake
from shardsrv.errors import OurFault


class Shared:
    """The shared memory and descriptors of a node. Each process holds its own copy of this object after the fork."""

    shard_count: int
    counters: Counters

    def __init__(self, shard_count: int, *, lane_bytes: int, arena_bytes: int, counter_slots: int) -> None:
        if shard_count < 1:
            raise OurFault(f"shard_count {shard_count}")
        self.shard_count = shard_count
        self._lane_bytes = lane_bytes
        lane_size = LANE_HEADER_SIZE + lane_bytes
        self._lane_regions = [
            Region(f"shardsrv-lanes-{shard}", WAKE_SIZE + shard_count * lane_size) for shard in range(shard_count)
        ]
        self._arena_regions = [Region(f"shardsrv-arena-{shard}", arena_bytes) for shard in range(shard_count)]
        self._counter_region = Region("shardsrv-counters", max(counter_slots, 1) * SLOT_SIZE)
        self.counters = Counters(self._counter_region, 0, counter_slots)
        self._event_fds = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(shard_count)]
        self._wakes = [Wake(region, 0, fd) for region, fd in zip(self._lane_regions, self._event_fds, strict=True)]
        self._handover = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(shard_count)]
        for pair in self._handover:
            for end in pair:
                end.setblocking(False)
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._arenas: dict[int, Arena] = {}

    @classmethod
    def create(cls, shard_count: int, *, lane_bytes: int, arena_bytes: int, counter_slots: int) -> Shared:
        """Make everything; call it before the fork.

        Args:
            shard_count: processes that take part.
            lane_bytes: size of one ring, a power of two from 256.
            arena_bytes: virtual size of each shard's arena; pages cost memory when touched.
            counter_slots: partitions of the node that have counters.
        Raises:
            OSError: no memory or no descriptors. OurFault: a size that cannot be.
        """
        return cls(shard_count, lane_bytes=lane_bytes, arena_bytes=arena_bytes, counter_slots=counter_slots)

    def _check(self, shard: int) -> None:
        if not 0 <= shard < self.shard_count:
            raise OurFault(f"shard {shard} of {self.shard_count}")

    def lane(self, sender: int, receiver: int) -> Lane:
        """The lane from ``sender`` to ``receiver``; a process pushes on its own and drains those to itself."""
        self._check(sender)
        self._check(receiver)
        if sender == receiver:
            raise OurFault(f"shard {sender} has no lane to itself")
        lane = self._lanes.get((sender, receiver))
        if lane is None:
            offset = WAKE_SIZE + sender * (LANE_HEADER_SIZE + self._lane_bytes)
            lane = self._lanes[sender, receiver] = Lane(self._lane_regions[receiver], offset, self._lane_bytes)
        return lane

    def lanes_to(self, receiver: int) -> list[Lane]:
        """The lanes that ``receiver`` drains, in order of sender."""
        return [self.lane(sender, receiver) for sender in range(self.shard_count) if sender != receiver]

    def wake(self, receiver: int) -> Wake:
        """The sleeping word and eventfd of ``receiver``."""
        self._check(receiver)
        return self._wakes[receiver]

    def arena(self, shard: int, *, owner: bool = False) -> Arena:
        """The arena of ``shard``: to look into by descriptor, or (``owner``, in its process) to allocate from."""
        self._check(shard)
        arena = self._arenas.get(shard)
        if arena is None or (owner and not arena.owner):
            arena = self._arenas[shard] = Arena(self._arena_regions[shard], owner=owner)
        return arena

    def handover(self, shard: int) -> tuple[socket.socket, socket.socket]:
        """(shard 0's end, shard's end) of a non-blocking AF_UNIX SEQPACKET pair for sockets and memfds (SCM_RIGHTS)."""
        self._check(shard)
        return self._handover[shard]

    def close(self) -> None:
        """Close this process's descriptors. Idempotent. Mappings go with the last object that points into them."""
        for fd in self._event_fds:
            os.close(fd)
        self._event_fds.clear()
        for pair in self._handover:
            for end in pair:
                end.close()
        for region in (*self._lane_regions, *self._arena_regions, self._counter_region):
            region.close()
