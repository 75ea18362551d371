"""The end of a run: when it has converged, and what must then be equal, byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardsrv._core import xxh3
from shardsrv.errors import Damaged, UnsupportedVersion
from shardsrv.sim.violation import Violation
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.layout import partition_keys
from shardsrv.vsr.status import NORMAL

if TYPE_CHECKING:
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node
    from shardsrv.sim.world import World


def _groups(node: Node) -> dict[object, SimGroup]:
    assert node.metadata is not None
    return {METADATA: node.metadata} | {group.key: group for group in node.groups.values()}


def short_of_votes(world: World) -> set[object]:
    """Groups that wait for a member that refuses: of the others too few are sure of what they acknowledged, and who
    is not sure waits for everybody."""
    if not any(_refuses(world, node) for node in world.nodes):
        return set()
    sure: dict[object, int] = {}
    for node in world.nodes:
        for key, group in _groups(node).items() if node.up and node.metadata is not None else ():
            sure[key] = sure.get(key, 0) + (not group.replica.suspect)
    quorum = world.options.replicas - world.minority
    return {key for key, members in sure.items() if members < quorum}


def unsettled(world: World) -> str:
    """Why the run has not converged; empty when every member is up and serves the same groups at the same commit, with
    nothing in flight and nobody waiting."""
    short = short_of_votes(world)
    if METADATA in short:
        return ""
    for client in world.clients:
        if client.asking:
            return f"client {client.index} waits for {client.kind}"
    marks: dict[object, int] | None = None
    for node in world.nodes:
        if _refuses(world, node):
            # What it refuses by name is no longer asked of it; the others are fewer than all and enough.
            continue
        if not node.up or node.metadata is None:
            return f"{node.name} is down"
        if node.busy:
            return f"{node.name} has something to write"
        found = {}
        for key, group in _groups(node).items():
            if key in short:
                continue
            reason = _group_unsettled(group)
            if reason:
                return f"{node.name} {key} {reason}"
            found[key] = group.replica.commit_min
        if marks is not None and found != marks:
            return f"{node.name} differs from {world.nodes[0].name}"
        marks = found
    return ""


def _refuses(world: World, node: Node) -> bool:
    """Whether a member stays away by right: what rotted reads as another release's. All other damage is healed."""
    refusals = [error for error in (node.halted, *node.doubtful.values()) if error is not None]
    return world.spoiled(node) and bool(refusals) and all(isinstance(each, UnsupportedVersion) for each in refusals)


def _group_unsettled(group: SimGroup) -> str:
    replica = group.replica
    if replica.status != NORMAL or group.fault is not None:
        return f"has status {replica.status}, fault {group.fault!r}"
    if replica.in_flight or group.waiting or replica.head_op != replica.commit_min:
        return f"has {replica.in_flight} in flight, {len(group.waiting)} waiting"
    if group.checkpointing:
        return "makes a checkpoint"
    return "waits for a purge" if getattr(group, "purging", False) else ""


def damaged_logs(world: World) -> list[tuple[Node, GroupKey]]:
    """Groups of members whose disk was damaged that hold what nobody has read yet and does not verify: at the end
    everything is read once."""
    found = []
    for node in world.nodes:
        if not world.spoiled(node) or world.options.replicas == 1 or _refuses(world, node):
            continue
        for group in _groups(node).values():
            try:
                for _ in group.log.scan(1):
                    pass
            except Damaged:
                world.reached("damage found at the end")
                found.append((node, group.key))
    return found


def check_final(world: World) -> None:
    """States and logs of all members are equal, and hold what was acknowledged."""
    short = short_of_votes(world)
    if short:
        world.reached("waits for a member that refuses")
    if METADATA in short:
        return
    states: dict[object, tuple[str, int]] = {}
    logs: dict[tuple[object, int], int] = {}
    for node in world.nodes:
        if _refuses(world, node):
            world.reached("refused at the end")
            continue
        assert node.metadata is not None
        owned = {(item.identity.group, item.identity.created_revision) for item in node.metadata.plane.owned()}
        held = {(key.group, key.created_revision) for key in (group.key for group in node.groups.values())}
        if owned != held:
            raise Violation("partitions", f"{node.name} serves {sorted(held)}, metadata has {sorted(owned)}")
        _compare_directories(node, owned)
        world.oracles.purges.carried_out(node, short)
        for key, group in _groups(node).items():
            if key in short:
                continue
            _compare_state(node, key, group, states)
            _compare_log(node, key, group, logs)
            world.oracles.acknowledged.converged(group.key, group.replica.commit_min)


def _compare_directories(node: Node, owned: set[tuple[int, int]]) -> None:
    """Nothing of a deleted partition is left on the disk, whenever the member went down."""
    root = node.directory.partitions
    found = partition_keys(root, node.disk.listdir) if node.disk.exists(root) else []
    left = [key for key in found if (key.group, key.created_revision) not in owned]
    if left:
        raise Violation("partitions", f"{node.name} keeps the directories of {left}")


def _compare_state(node: Node, key: object, group: SimGroup, states: dict[object, tuple[str, int]]) -> None:
    if key == METADATA:
        table = group.replica.table
        assert table is not None
        payload = group.plane.encode_snapshot(group.applied_checksum, 0, table.snapshot())
    else:
        payload = group.plane.checkpoint(group.applied_checksum)
    digest = xxh3(payload)
    first = states.setdefault(key, (node.name, digest))
    if first[1] != digest:
        raise Violation("states", f"{key}: {node.name} and {first[0]} end in other states")


def _compare_log(node: Node, key: object, group: SimGroup, logs: dict[tuple[object, int], int]) -> None:
    """Stored bytes: the header as it lies on disk and the body behind it."""
    expected = group.log.first_op
    for prepare in group.log.scan(1):
        if prepare.op != expected:
            raise Violation("logs", f"{key}: {node.name} has op {prepare.op} where {expected} should be")
        expected += 1
        digest = xxh3(bytes(prepare.header) + bytes(prepare.body))
        if logs.setdefault((key, prepare.op), digest) != digest:
            raise Violation("logs", f"{key}: {node.name} holds other bytes at op {prepare.op}")
    if expected != group.replica.commit_min + 1:
        raise Violation("logs", f"{key}: {node.name} ends at op {expected - 1}, not {group.replica.commit_min}")
