"""What a member says of its log is so on its disk: in frames, in its record, and after a start.

Invariant: files are read past the calls of the member, so that looking at them changes nothing and strikes nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from shardsrv import _core
from shardsrv._core import Prepare, scan_log
from shardsrv.sim.disk_choices import durable_file
from shardsrv.sim.violation import Violation
from shardsrv.store.segment import SEGMENT_HEADER
from shardsrv.wire.constants import AckedAs
from shardsrv.wire.replica_headers import DoViewChangeHeader, PrepareOkHeader, StartViewHeader

if TYPE_CHECKING:
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node


_SIZE: Final = Struct("<I")
_SIZE_AT: Final = 48
_OP: Final = Struct("<Q")
_OP_AT: Final = 176


def _end_of(data: bytes, op: int) -> int:
    """Where the entry of ``op`` ends in a segment that holds it, or an earlier one last."""
    at = SEGMENT_HEADER
    while at < len(data) and _OP.unpack_from(data, at + _OP_AT)[0] <= op:
        at += _SIZE.unpack_from(data, at + _SIZE_AT)[0]
    return at


class Disks:
    """Rules 1 and 2 of `docs/consensus.md`, and that what is left of a log is one unbroken run (`docs/recovery.md`)."""

    def __init__(self) -> None:
        self._begun: set[int] = set()

    def begins(self, node: Node) -> None:
        """A start finds no superblock and writes the first: once for each disk."""
        if node.index in self._begun:
            raise Violation("first start", f"{node.name} takes the disk that it has written for a new one")
        self._begun.add(node.index)

    def wiped(self, node: Node) -> None:
        """A member gets another disk."""
        self._begun.discard(node.index)

    def sent(self, node: Node, group: SimGroup, header: Any) -> None:
        """A frame that describes the log leaves only when the log that it describes is synced; an acknowledgement only
        when the entry is held as it says."""
        if type(header) is PrepareOkHeader and header.acked_as != AckedAs.CLOCK_REFUSED:
            held = group.log.synced_op if header.acked_as == AckedAs.SYNCED else group.log.head_op
            if header.op > held:
                text = f"{node.name} {group.key} acknowledges op {header.op} at level {header.acked_as}, has {held}"
                raise Violation("held before acknowledged", text)
        if type(header) in (DoViewChangeHeader, StartViewHeader) and header.op > group.log.synced_op:
            name = type(header).__name__.removesuffix("Header")
            text = f"{node.name} {group.key} sends {name} of op {header.op}, synced is {group.log.synced_op}"
            raise Violation("synced before sent", text)

    def recording(self, node: Node, group: SimGroup, state: Any) -> None:
        """A record names the present view as log view only when everything that the view was started with is synced."""
        replica = group.replica
        member, durable = replica.member, replica.durable_state
        known = 0 if durable is None else durable.log_view
        if member is None or state.log_view == known or state.log_view != replica.view:
            return
        if member.target_op > group.log.synced_op:
            text = f"{node.name} {group.key} log view {state.log_view} of op {member.target_op}"
            raise Violation("synced before recorded", f"{text}, synced is {group.log.synced_op}")

    def told_synced(self, node: Node, group: SimGroup) -> None:
        """What counts as synced is durable under a durable name: entries, segment by segment from the last, back to
        one of which nothing is undecided."""
        if node.world.spoiled(node) or group.closed:
            return
        op = group.log.synced_op
        for segment in reversed(group.log._segments):
            if segment.first_op > op:
                continue
            file = durable_file(node.disk.root, segment.path)
            if file is None:
                raise Violation("synced is durable", f"{node.name} {group.key} op {op}, {segment.path} has no name")
            if file.settled:
                return
            seen = node.disk.read(segment.path)
            end = _end_of(seen[: segment.size], op)
            if file.durable[:end] != seen[:end]:
                text = f"{node.name} {group.key} takes op {op} for synced, {segment.path} is not up to byte {end}"
                raise Violation("synced is durable", text)

    def opened(self, node: Node, group: SimGroup) -> None:
        """The files of an opened log hold every entry from its first to its head."""
        if node.world.spoiled(node):
            return
        expected, parent = group.log.first_op, None
        for segment in group.log._segments:
            if segment.first_op != expected:
                where = f"{node.name} {group.key} has a segment of op {segment.first_op}"
                raise Violation("unbroken logs", f"{where} where op {expected} should be")
            data = node.disk.read(segment.path)[SEGMENT_HEADER : segment.size]
            last: list[Prepare] = []
            start = segment.header.parent if parent is None else parent
            scan = scan_log(data, 0, start, expected, lambda prepare, at, last=last: last.append(prepare), False)
            if scan.verdict != _core.VALID:
                raise Violation("unbroken logs", f"{node.name} {group.key} segment {segment.first_op} is not whole")
            if last:
                expected, parent = last[-1].op + 1, last[-1].checksum
        if expected != group.log.head_op + 1:
            raise Violation(
                "unbroken logs", f"{node.name} {group.key} ends at op {expected - 1}, not {group.log.head_op}"
            )
