"""Everything that the processes of a node share, made by the supervisor before the fork."""

import socket

from shardsrv.bus._memory import Arena, Counters, Lane, Region, Wake

class Shared:
    shard_count: int
    @classmethod
    def create(cls, shard_count: int, *, lane_bytes: int, arena_bytes: int, counter_slots: int) -> Shared: ...
    def lane(self, sender: int, receiver: int) -> Lane:
        """The lane from ``sender`` to ``receiver``; a process only pushes on its own and only drains those to itself."""
    def wake(self, receiver: int) -> Wake: ...
    def arena(self, shard: int, *, owner: bool = False) -> Arena: ...
    def handover(self, shard: int) -> tuple[socket.socket, socket.socket]:
        """(shard 0's end, shard's end) of an AF_UNIX SOCK_SEQPACKET pair for sockets and memfds (SCM_RIGHTS)."""
    counters: Counters
    def close(self) -> None: ...
