"""Frames between simulated members: effects become bytes, bytes become events, exactly as on a server's links.

A frame that does not verify, contradicts its link, or is about a group that is not here is dropped and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardsrv.errors import DiskFault, PeerFault
from shardsrv.vsr.events import Message
from shardsrv.vsr.frames import decode_frame, encode_frame

if TYPE_CHECKING:
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node
    from shardsrv.sim.world import World


class Frames:
    """Sends and receives for all members."""

    def __init__(self, world: World) -> None:
        self.world = world

    def send(self, node: Node, group: SimGroup, effect: Any) -> None:
        """Carry out a `Send`."""
        frame = encode_frame(effect.header, effect.body)
        command, view = frame[60], int.from_bytes(frame[52:56], "little")
        self.world.oracles.sent(node, group, command, view, effect.header)
        self.world.frame_counts[command] = self.world.frame_counts.get(command, 0) + 1
        self.world.network.send(node.index, effect.replica, frame)

    def receive(self, node: Node, source: int, frame: bytes) -> None:
        """A frame arrived at a member."""
        try:
            header, body = decode_frame(frame)
        except (PeerFault, DiskFault):
            self.world.count("frames refused")
            return
        prepare = getattr(header, "prepare", header)
        group = node.group_at(prepare.group)
        if group is None or group.closed or group.key.created_revision != prepare.created_revision:
            self.world.count("frames without a group")
            return
        group.deliver(Message(source, header, body, node.clock.wall()))
