"""Whether the time of what is committed was near the clocks of a quorum (design 5.9).

A primary whose clock ran away must not take the log with it: in the view in which an entry was made, a quorum that
acknowledged it either had a clock near its stamp or saw it follow the entry before closely. What a later view took over
or a member repaired is exempt: there stamps are not looked at, since refusing would lose the entry.
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


def committed(node: Node, group: SimGroup, prepare: Prepare, before: int) -> None:
    """The first member commits an entry; ``before`` is the stamp of the entry before it, microseconds.

    Raises `Violation`: too few members ever had a clock near the stamp.
    """
    if prepare.view != group.replica.view or prepare.timestamp <= before + LEAP or not before:
        return
    members = node.world.nodes
    near = sum(member.clock.highest() + DEFAULT_TIMEOUTS.clock_slack >= prepare.timestamp for member in members)
    if near < replication_quorum(len(members)):
        text = f"op {prepare.op} of {group.key} is stamped {prepare.timestamp}, near the clocks of {near} members"
        raise Violation("clocks", text)
