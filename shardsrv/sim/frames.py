"""Frames between simulated members: effects become bytes, bytes become events, exactly as on a server's links.

A frame that does not verify, contradicts its link, or is about a group that is not here is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from shardsrv.errors import DiskFault, PeerFault
from shardsrv.vsr.events import Message
from shardsrv.vsr.frames import decode_frame, encode_frame, split
from shardsrv.vsr.gathering import Gathering
from shardsrv.wire.replica_headers import DoViewChangeHeader, StartViewHeader

if TYPE_CHECKING:
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node
    from shardsrv.sim.world import World


LATE_RATE: Final = 0.2
"""Share of repeated frames from which on answers to an earlier life come again."""
ANSWERED: Final = 0.5


class Frames:
    """Sends and receives for all members."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on_vote: Callable[[Node, int, bytes], None] | None = None
        """Is told of the next vote that leaves: whose, for whom, and the frame."""
        self._answers: dict[tuple[int, int], tuple[int, bytes]] = {}
        """By member and group the last StartView for it."""
        self._random = world.chance.stream("answers")
        self._gathered: dict[int, tuple[int, Gathering]] = {}
        """By member its life, and what waits to leave in it."""

    def send(self, node: Node, group: SimGroup, effect: Any) -> None:
        """Carry out a `Send`: what several groups say to one member at the same time leaves in one frame."""
        life, gathering = self._gathered.get(node.index, (-1, None))
        if gathering is None or life != node.life:
            gathering = Gathering()
            self._gathered[node.index] = node.life, gathering
        first = gathering.empty
        if gathering.add(effect):
            header = effect.header
            self.world.oracles.sent(node, group, int(header.command), header.view, effect.replica, header)
            if first:
                node.later(1, self._flush, node, gathering)
            return
        for sent in self.world.lies.sends(node, group, effect):
            self._send_now(node, group, sent)

    def _flush(self, node: Node, gathering: Gathering) -> None:
        for effect in gathering.take():
            self._leave(node, effect.replica, encode_frame(effect.header, effect.body))

    def _send_now(self, node: Node, group: SimGroup, effect: Any) -> None:
        frame = encode_frame(effect.header, effect.body)
        command, view = frame[60], int.from_bytes(frame[52:56], "little")
        self.world.oracles.sent(node, group, command, view, effect.replica, effect.header)
        self._leave(node, effect.replica, frame)
        if type(effect.header) is DoViewChangeHeader and self.on_vote is not None:
            self.world.schedule.after(1, self.on_vote, node, effect.replica, frame)
            self.on_vote = None
        if type(effect.header) is StartViewHeader:
            self._answers[effect.replica, effect.header.group] = node.index, frame

    def _leave(self, node: Node, target: int, frame: bytes) -> None:
        command = frame[60]
        self.world.frame_counts[command] = self.world.frame_counts.get(command, 0) + 1
        self.world.network.send(node.index, target, frame)

    def answer_again(self, node: Node) -> None:
        """A member that starts meets now and then what was told to its life before."""
        if self.world.options.network.repetition < LATE_RATE or self._random.random() >= ANSWERED:
            return
        for (member, _), (source, frame) in self._answers.items():
            if member == node.index:
                self.world.network.late(source, member, frame, 0)

    def receive(self, node: Node, source: int, frame: bytes) -> None:
        """A frame arrived at a member."""
        try:
            whole, body = decode_frame(frame)
            headers = split(whole, body)
        except (PeerFault, DiskFault):
            self.world.count("frames refused")
            return
        for header in headers:
            self._deliver(node, source, header, body if header is whole else b"")

    def _deliver(self, node: Node, source: int, header: Any, body: Any) -> None:
        prepare = getattr(header, "prepare", header)
        group = node.group_at(prepare.group)
        if group is None or group.closed or group.key.created_revision != prepare.created_revision:
            self.world.count("frames without a group")
            return
        group.deliver(Message(source, header, body, node.clock.wall()))
