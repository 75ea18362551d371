"""A purge that metadata has committed comes before everything that is sent behind it, comes at all, and stays."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from shardsrv.sim.violation import Violation
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.wire.constants import ZERO_ID, Operation

if TYPE_CHECKING:
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node

_PURGE: Final = int(Operation.PURGE_PARTITION)


def _wanted(node: Node, key: GroupKey) -> int:
    """The generation of the last purge that a member's metadata has committed for a partition; 0 for none."""
    assert node.metadata is not None
    stream = node.metadata.plane.state.streams.get(key.stream)
    topic = None if stream is None else stream.topics.get(key.topic)
    if topic is None or topic.created_revision > key.created_revision:
        return 0
    return topic.purge_generation if key.created_revision < topic.purge_generation else 0


class Purges:
    """See the module."""

    def appending(self, node: Node, group: SimGroup, prepare: Any) -> None:
        """A member that leads makes no entry of a client while a purge that it has committed is not applied."""
        if group.key == METADATA or not group.replica.leads or node.metadata is None:
            return
        if prepare.operation == _PURGE or prepare.client == ZERO_ID:
            return
        wanted, applied = _wanted(node, group.key), group.plane.purge_generation
        if applied < wanted:
            text = f"{node.name} {group.key} op {prepare.op} comes before the purge of metadata op {wanted}"
            raise Violation("purges", f"{text}, applied is {applied}")

    def hidden(self, node: Node, group: SimGroup) -> None:
        """A log that was opened, or put in place by a transfer, serves nothing from before the purge that the state
        beside it holds."""
        if group.key == METADATA:
            return
        purged, floor = group.plane.purge_op, group.log.floor_op
        if floor < purged:
            raise Violation("purges", f"{node.name} {group.key} may serve ops above {floor}, purged is up to {purged}")

    def carried_out(self, node: Node, idle: Collection[object] = ()) -> None:
        """At the end every purge that metadata has committed is applied, but in the groups that are ``idle``."""
        for group in node.groups.values():
            wanted = _wanted(node, group.key)
            if group.key not in idle and group.plane.purge_generation < wanted:
                raise Violation("purges", f"{node.name} {group.key} never had the purge of metadata op {wanted}")
