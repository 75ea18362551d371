"""What a member's log and voice must be at every step: entries that chain, a head that is one value, no acknowledgement
of who may have forgotten, and no view that begins with the vote of a life that is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shardsrv.sim.violation import Violation
from shardsrv.store.group_key import GroupKey
from shardsrv.vsr.effects import Append, TruncateFrom
from shardsrv.vsr.quorum import view_change_quorum
from shardsrv.vsr.transfer_effects import Restored
from shardsrv.wire.constants import AckedAs
from shardsrv.wire.replica_headers import PrepareOkHeader

if TYPE_CHECKING:
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node


WINDOW: Final = 256
"""Entries of a log that are remembered."""


class Logs:
    """The log as a replica has it written, by member and group, in one life."""

    def __init__(self) -> None:
        self._heads: dict[tuple[int, GroupKey], tuple[int, int, int]] = {}
        self._decided: dict[tuple[int, GroupKey], Any] = {}
        self._held: set[tuple[int, GroupKey]] = set()
        self._acked: dict[tuple[int, GroupKey], tuple[int, int]] = {}
        self._entries: dict[tuple[int, GroupKey], dict[int, int]] = {}
        self._cut: dict[tuple[int, GroupKey], dict[int, int]] = {}

    def stepped(self, node: Node, group: SimGroup, effects: list[Any]) -> None:
        """Each entry that is appended names the one before it as its parent; (head op, head checksum) is one value,
        that of the entry appended last (S1-07, S1-13)."""
        place, replica = (node.index, group.key), group.replica
        life, op, checksum = self._heads.get(place, (node.life, 0, 0))
        # What waited aside is appended in the step that puts a transferred state in place, before that is told.
        known = life == node.life and op > 0 and not any(type(effect) is Restored for effect in effects)
        for effect in effects:
            kind = type(effect)
            if kind is Append:
                prepare = effect.prepare
                if known and (prepare.op, prepare.parent) != (op + 1, checksum):
                    what = f"{node.name} {group.key} appends op {prepare.op} on {prepare.parent:016x}"
                    raise Violation("chains", f"{what}, the head is op {op}, {checksum:016x}")
                op, checksum, known = prepare.op, prepare.checksum, True
                entries = self._entries.setdefault(place, {})
                entries[op] = checksum
                entries.pop(op - WINDOW, None)
                self._cut.get(place, {}).pop(op, None)
            elif kind is TruncateFrom:
                known = False
        if known and (replica.head_op, replica.head_checksum) != (op, checksum):
            if replica.head_op == op:
                raise Violation("chains", f"{node.name} {group.key} takes op {op} for another entry than it is")
            if any(type(effect) is Append for effect in effects):
                raise Violation("chains", f"{node.name} {group.key} has head op {replica.head_op}, appended is {op}")
            known = False
        self._heads[place] = (node.life, op if known else 0, checksum)
        self._elected(node, group, place)

    def _elected(self, node: Node, group: SimGroup, place: tuple[int, GroupKey]) -> None:
        """Votes of an earlier incarnation than somebody has named make no quorum."""
        member = group.replica.member
        if member is None:
            return
        election = member.election
        if election.decided is None or election.decided is self._decided.get(place):
            return
        self._decided[place] = election.decided
        votes = list(election.votes.values())
        named = [list(member.incarnations), *(vote.incarnations for vote in votes)]
        latest = {vote.replica: max(known[vote.replica] for known in named if known) for vote in votes}
        stale = [vote for vote in votes if vote.incarnation < latest[vote.replica]]
        if stale:
            node.world.reached("votes of an earlier incarnation")
        counted = 1 + len(votes) - len(stale)
        trusted = counted - group.replica.suspect - sum(vote.suspect for vote in votes if vote not in stale)
        if trusted < view_change_quorum(member.count) and counted < member.count:
            raise Violation("elections", f"{node.name} {group.key} decides with {trusted} votes of {member.count}")

    def recorded(self, node: Node, key: GroupKey) -> None:
        """A record of a group is durable: from now on it may vote and acknowledge."""
        self._held.add((node.index, key))

    def opened(self, node: Node, group: SimGroup) -> None:
        """A group that has had a record never comes back as a voter without one."""
        replica = group.replica
        if node.oracles.history.group(group.key).deleted:
            return
        if (node.index, group.key) in self._held and replica.durable_state is None and not replica.suspect:
            raise Violation("first start", f"{node.name} takes {group.key} for new, it had it before")
        facts = node.boot_facts.get(group.key)
        if facts is not None and facts.head.clean and not replica.suspect:
            self.trusted(node, group)

    def carried_out(self, node: Node, group: SimGroup, effects: list[Any]) -> None:
        """The effects of a step were carried out: what they cut is gone for good."""
        place = node.index, group.key
        for effect in effects:
            if type(effect) is TruncateFrom and group.fault is None:
                entries = self._entries.get(place, {})
                for op in [op for op in entries if op >= effect.op]:
                    if op > group.log.head_op:
                        self._cut.setdefault(place, {})[op] = entries.pop(op)

    def reopened(self, node: Node, group: SimGroup) -> None:
        """A log was opened: nothing of it was cut in an earlier life."""
        member, place = group.replica.member, (node.index, group.key)
        cut = self._cut.pop(place, {})
        if member is None or node.world.spoiled(node):
            return
        for op, checksum in cut.items():
            if op <= group.log.head_op and member.log.checksum(op) == checksum:
                raise Violation("unbroken logs", f"{node.name} {group.key} holds op {op} again, which was cut")

    def sent(self, node: Node, group: SimGroup, header: Any) -> None:
        """A suspect vouches for nothing (design 5.5)."""
        if type(header) is not PrepareOkHeader or header.acked_as == AckedAs.CLOCK_REFUSED:
            return
        if group.replica.suspect:
            raise Violation("suspects", f"{node.name} {group.key} acknowledges op {header.op}, it may have forgotten")
        place = node.index, group.key
        if header.op >= self._acked.get(place, (0, 0))[0]:
            self._acked[place] = header.op, header.prepare_checksum

    def trusted(self, node: Node, group: SimGroup) -> None:
        """A member is trusted, after a clean stop or again, only with everything that it acknowledged and that is
        committed (S0-54, design 5.5). After a kill or a loss of power within a millisecond of the rot of its last entry
        it may be otherwise (`docs/safety.md`)."""
        op, checksum = self._acked.get((node.index, group.key), (0, 0))
        known = node.oracles.history.group(group.key)
        entry = known.at(op) if op > group.replica.head_op and not known.deleted else None
        if entry is not None and entry.checksum == checksum:
            has = f"its log ends at op {group.replica.head_op}"
            raise Violation("trust", f"{node.name} {group.key} is trusted, it acknowledged op {op}, {has}")
