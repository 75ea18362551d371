"""Whether the time of what is committed was near the clocks of a quorum (design 5.9).

A primary whose clock ran away must not take the log with it: of an entry that only its own frames brought to the
others, a quorum either had a clock near the stamp or saw it follow the entry before closely. What was repaired is
exempt: there stamps are not looked at, since refusing would lose the entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardsrv.sim.violation import Violation
from shardsrv.vsr.clock import LEAP
from shardsrv.vsr.quorum import replication_quorum
from shardsrv.vsr.timeouts import DEFAULT_TIMEOUTS

if TYPE_CHECKING:
    from shardsrv._core import Prepare
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node
    from shardsrv.store.group_key import GroupKey


class Clocks:
    """See the module."""

    def __init__(self) -> None:
        self._stamps: dict[GroupKey, tuple[int, int]] = {}
        """(op, stamp) of the newest entry that a primary made."""
        self._far: dict[tuple[GroupKey, int], int] = {}
        """Entries whose stamp no quorum was near when they were made: (group, op) -> identity."""

    def repaired(self, key: GroupKey, op: int) -> None:
        """A member sends an entry that another one asked for."""
        self._far.pop((key, op), None)

    def appending(self, node: Node, group: SimGroup, prepare: Prepare) -> None:
        """A member takes an entry into its log."""
        if not group.replica.leads or prepare.born_view != group.replica.view:
            return
        op, stamp = self._stamps.get(group.key, (0, 0))
        self._stamps[group.key] = (prepare.op, prepare.timestamp)
        # Who lacks entries takes one that may be as far ahead as all that it lacks together.
        heads = [each.replica.head_op for node in node.world.nodes if (each := node.group_at(group.key.group))]
        leap = LEAP * (prepare.op - min(heads) + group.replica.pipeline.depth)
        if op == prepare.op - 1 and prepare.timestamp > stamp + leap and not self._near(node, prepare):
            self._far[group.key, prepare.op] = prepare.checksum

    def committed(self, node: Node, key: GroupKey, prepare: Prepare) -> None:
        """The first member commits an entry. Raises `Violation`."""
        # A clock may have come near meanwhile.
        if self._far.get((key, prepare.op)) == prepare.checksum and not self._near(node, prepare):
            raise Violation("clocks", f"op {prepare.op} of {key} is stamped {prepare.timestamp}, far from all clocks")

    @staticmethod
    def _near(node: Node, prepare: Prepare) -> bool:
        """Whether the clocks of a quorum have ever been near the stamp."""
        latest = [member.clock.highest() + DEFAULT_TIMEOUTS.clock_slack for member in node.world.nodes]
        return sum(time >= prepare.timestamp for time in latest) >= replication_quorum(len(latest))
