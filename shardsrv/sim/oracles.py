"""What must hold in every run, as objects beside the world: they are told what happens and draw no randomness.

`History` keeps what the first member that committed an op has committed; the oracles compare everything else with it.
A `Violation` ends the run. Invariant: an oracle reads members and never changes them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import attrs

from shardsrv._core import Prepare, xxh3
from shardsrv.sim.history import NOT_KNOWN, Entry, GroupHistory, History
from shardsrv.sim.oracles_clock import Clocks
from shardsrv.sim.oracles_disk import Disks
from shardsrv.sim.oracles_log import Logs
from shardsrv.sim.oracles_purge import Purges
from shardsrv.sim.oracles_transfer import Transfers
from shardsrv.sim.violation import Violation
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.snapshot import TRAILER
from shardsrv.vsr.effects import Append, Committed, PersistState, Refused, Repeat
from shardsrv.vsr.policy import PERSISTED
from shardsrv.wire.constants import AUTO_COMMIT_CLIENT, ZERO_ID, Command, Operation

if TYPE_CHECKING:
    from shardsrv.sim.groups import SimGroup
    from shardsrv.sim.node import Node

_SEND: Final = int(Operation.SEND_MESSAGES)
_PURGE: Final = int(Operation.PURGE_PARTITION)
_SESSIONS: Final = (int(Operation.REGISTER), int(Operation.LOGOUT))
_QUIET: Final = (Append, Committed, PersistState, Refused, Repeat)
_VIEW_FREE: Final = (
    int(Command.REQUEST_START_VIEW),
    int(Command.REQUEST_PREPARES),
    int(Command.REQUEST_STATE_TRANSFER),
    int(Command.REQUEST_STATE_CHUNK),
)
"""Frames that vouch for no view: requests for help."""
STATE_EVERY: Final = 64
"""Ops of a partition between two comparisons of whole states."""
METADATA_STATE_EVERY: Final = 16


class Agreement:
    """One (identity, op) has one content and one reply, on every member and in every life."""

    def __init__(self, history: History) -> None:
        self._history = history

    def committed(self, node: Node, key: GroupKey, prepare: Prepare, reply: bytes) -> tuple[Entry, bool]:
        """The entry of the history, and whether it is new there."""
        group = self._history.group(key)
        if group.deleted:
            # Committed metadata has no such partition any more: what is left of it is of no consequence.
            return Entry(prepare.op, prepare.checksum, reply, 0, (), 0, 0, 0, 0), False
        known = group.at(prepare.op)
        if known is None:
            if prepare.op > group.head + 1 and group.losses:
                # What was allowed to be lost was not, on this member; it goes on from there.
                group.resume(prepare)
            if prepare.op != group.head + 1:
                text = f"{node.name} commits op {prepare.op} of {key}, known up to {group.head}"
                raise Violation("agreement", text)
            return group.add(prepare, reply), True
        if known.unknown:
            known.learn(prepare, reply)
            return known, False
        if known.checksum != prepare.checksum:
            found = f"{prepare.checksum:016x}, it was {known.checksum:016x}"
            raise Violation("agreement", f"{node.name} commits op {prepare.op} of {key} as {found}")
        if known.reply != reply:
            raise Violation("replies", f"{node.name} answers op {prepare.op} of {key} with other bytes")
        return known, False


class Content:
    """Offsets have no gap; a request becomes an entry at most once while its group remembers it; times rise."""

    def __init__(self, history: History, dedup_ops: int) -> None:
        self._history = history
        self._dedup_ops = dedup_ops

    def committed(self, key: GroupKey, prepare: Prepare, entry: Entry) -> None:
        """A new entry of the history."""
        group = self._history.group(key)
        if prepare.timestamp <= group.timestamp:
            raise Violation("times", f"op {prepare.op} of {key} at {prepare.timestamp}, before {group.timestamp}")
        group.timestamp = prepare.timestamp
        if key == METADATA:
            self._once(group, key, prepare, entry, 1 << 62)
            return
        if prepare.operation == _SEND:
            (base,) = struct.unpack_from("<Q", prepare.body, 8)
            (count,) = struct.unpack_from("<I", prepare.body, 48)
            if base != group.next_offset and group.next_offset != NOT_KNOWN:
                raise Violation("offsets", f"op {prepare.op} of {key} begins at {base}, expected {group.next_offset}")
            group.messages(base, count, prepare.body)
            group.next_offset = base + count
            self._once(group, key, prepare, entry, self._dedup_ops)
        elif prepare.operation == _PURGE:
            group.purge(struct.unpack("<Q", prepare.body)[0])

    def _once(self, group: GroupHistory, key: GroupKey, prepare: Prepare, entry: Entry, window: int) -> None:
        if prepare.client in (ZERO_ID, AUTO_COMMIT_CLIENT) or prepare.operation in _SESSIONS:
            return
        request = entry.request if key != METADATA else entry.request[:3]
        before = group.requests.get(request)
        if before is not None and prepare.op - before < window:
            raise Violation("at most once", f"op {prepare.op} of {key} repeats op {before}")
        group.requests[request] = prepare.op


class Marks:
    """Views and commits of a member never fall; a frame speaks for no view that its sender's disk does not hold."""

    def __init__(self) -> None:
        self._views: dict[tuple[int, GroupKey], tuple[int, int]] = {}
        self._durable: dict[tuple[int, GroupKey], tuple[int, int]] = {}
        self._lives: dict[tuple[int, GroupKey], tuple[int, int]] = {}

    def committed(self, node: Node, key: GroupKey, op: int) -> None:
        """Commits of one life come one by one, in order."""
        place = (node.index, key)
        life, before = self._lives.get(place, (0, 0))
        if life == node.life and op != before + 1:
            raise Violation("commit order", f"{node.name} commits op {op} of {key} behind op {before}")
        self._lives[place] = (node.life, op)

    def opened(self, node: Node, key: GroupKey, op: int) -> None:
        """A log is about to be replayed behind op ``op``."""
        self._lives[node.index, key] = (node.life, op)

    def installed(self, node: Node, key: GroupKey, op: int) -> None:
        """A transferred state took the place of the entries up to ``op``; none goes back (S2-103)."""
        life, before = self._lives.get((node.index, key), (0, 0))
        if life == node.life and op < before:
            raise Violation("commit order", f"{node.name} goes back from op {before} of {key} to op {op}")
        self._lives[node.index, key] = (node.life, op)

    def stepped(self, node: Node, group: SimGroup) -> None:
        """Look at a replica after a step."""
        place = (node.index, group.key)
        view = group.replica.view
        life, before = self._views.get(place, (0, 0))
        if life == node.life and view < before:
            raise Violation("views", f"{node.name} {group.key}: view {view} after {before}")
        if view != before or life != node.life:
            self._views[place] = (node.life, view)
            if life == node.life:
                node.world.view_changes += 1
                node.world.trace.line(node.name, "view", group.key, view)

    def state_persisted(self, node: Node, key: GroupKey, state: Any) -> None:
        """A superblock record is durable."""
        place = (node.index, key)
        mark = (state.view, state.log_view)
        if node.oracles.history.group(key).deleted:
            return
        before = self._durable.get(place, (0, 0))
        # A member whose log is gone gives up the log view that the log had earned, never the view.
        if mark[0] < before[0] or (mark < before and mark[1]):
            raise Violation("durable views", f"{node.name} {key}: {mark} after {before}")
        self._durable[place] = mark

    def started(self, node: Node, group: SimGroup) -> None:
        """A new life begins at no lower view than the disk held."""
        place = (node.index, group.key)
        durable = self._durable.get(place)
        state = group.replica.durable_state
        if node.oracles.history.group(group.key).deleted:
            self._durable.pop(place, None)
        elif durable is not None and (state is None or (state.view, state.log_view) < durable):
            raise Violation("durable views", f"{node.name} {group.key} starts without the record {durable}")

    def wiped(self, node: Node, metadata: bool) -> None:
        """A member lost its partitions, and its ``metadata`` too or not: what it promised is gone, and it must come
        back as somebody new, or not vote."""
        for marks in (self._views, self._durable):
            for place in [place for place in marks if place[0] == node.index and (metadata or place[1] != METADATA)]:
                del marks[place]  # type: ignore[attr-defined]

    def sent(self, node: Node, group: SimGroup, command: int, view: int) -> None:
        """A frame leaves."""
        if command not in _VIEW_FREE and view > group.durable_view:
            raise Violation(
                "durable before sent",
                f"{node.name} {group.key} sends command {command} of view {view}, its disk holds {group.durable_view}",
            )


class States:
    """States of members are equal at equal ops, byte by byte."""

    def __init__(self) -> None:
        self._known: dict[tuple[GroupKey, int], int] = {}

    def committed(self, node: Node, group: SimGroup, op: int, checksum: int) -> None:
        """Compare now and then."""
        plane = group.plane
        if node.oracles.history.group(group.key).deleted:
            return
        if group.key == METADATA:
            if op % METADATA_STATE_EVERY or plane.op != op:
                return
            table = group.replica.table
            assert table is not None
            payload = plane.encode_snapshot(checksum, 0, table.snapshot())
        elif op % STATE_EVERY or plane.applied_op != op:
            return
        else:
            payload = plane.checkpoint(checksum)
        self.compare(node, group.key, op, payload)

    def compare(self, node: Node, key: GroupKey, op: int, payload: bytes) -> None:
        """One state against the first that was seen at this op."""
        digest = xxh3(payload)
        if self._known.setdefault((key, op), digest) != digest:
            raise Violation("states", f"{node.name} has another state of {key} at op {op}")

    def forget(self, key: GroupKey, above: int) -> None:
        """Ops above ``above`` may be other ones from now on."""
        for place in [place for place in self._known if place[0] == key and place[1] > above]:
            del self._known[place]


@attrs.define(slots=True)
class Asked:
    """A request of a client as the oracles remember it: the floor is what was acknowledged when it was first asked."""

    key: GroupKey
    request: tuple[Any, ...]
    floor: int
    losses: int


class Acknowledged:
    """What a client was told is true, stays true under its durability, and respects the order of time."""

    def __init__(self, history: History) -> None:
        self._history = history

    def asked(self, key: GroupKey, request: tuple[Any, ...]) -> Asked:
        """A client asks for the first time."""
        group = self._history.group(key)
        return Asked(key, request, group.acknowledged, group.losses)

    def answered(self, asked: Asked, op: int, reply: bytes) -> None:
        """A client was told that its request is op ``op``."""
        group = self._history.group(asked.key)
        entry = group.at(op)
        if group.deleted:
            return
        if entry is None:
            if group.losses != asked.losses:
                return
            raise Violation("acknowledged", f"op {op} of {asked.key} is acknowledged, nobody committed it")
        if group.losses != asked.losses and entry.request[:4] != asked.request[:4]:
            return
        if entry.request[:4] != asked.request[:4]:
            raise Violation("acknowledged", f"op {op} of {asked.key} is the answer to another request")
        if bytes(entry.reply) != bytes(reply):
            raise Violation("replies", f"op {op} of {asked.key} is answered with other bytes than before")
        if op <= asked.floor and group.losses == asked.losses:
            raise Violation(
                "linearizable", f"op {op} of {asked.key} was asked after op {asked.floor} had been acknowledged"
            )
        if op > group.acknowledged:
            group.acknowledged = op

    def started_alone(self, group: SimGroup, recorded: int | None) -> None:
        """A single member is up again: all that it acknowledged must be in its log; ``recorded`` when its data was
        damaged: the frontier that its disk names. Damage behind that, then a loss of power, looks like a torn write."""
        known, commit = self._history.group(group.key), group.replica.commit_min
        if commit < known.acknowledged:
            if recorded is None or commit < recorded:
                raise Violation(
                    "durability", f"{group.key}: op {known.acknowledged} was acknowledged, the log ends at {commit}"
                )
            known.lose(lambda entry: entry.op <= commit)
        known.shorten(commit)

    def converged(self, key: GroupKey, commit: int) -> None:
        """At the end: every member holds what was acknowledged (that it is the same, `Agreement` has seen)."""
        known = self._history.group(key)
        if commit < known.acknowledged:
            raise Violation("durability", f"{key}: op {known.acknowledged} was acknowledged, all are at {commit}")


class Oracles:
    """All of them; the world and the members talk to this one."""

    def __init__(self, dedup_ops: int, replicas: int) -> None:
        self.history = History()
        self.agreement = Agreement(self.history)
        self.content = Content(self.history, dedup_ops)
        self.marks = Marks()
        self.states = States()
        self.acknowledged = Acknowledged(self.history)
        self.disks = Disks()
        self.purges = Purges()
        self.clocks = Clocks()
        self.logs = Logs()
        self.transfers = Transfers()
        self._alone = replicas == 1
        self._frontiers: dict[GroupKey, int] = {}
        """Of groups of a single member that it does not serve."""
        self.committed_ops = 0

    # --- told by members -------------------------------------------------------------------------------------------

    def effects(self, node: Node, group: SimGroup, effects: list[Any]) -> None:
        """Effects that are about to be carried out."""
        self.marks.stepped(node, group)
        self.logs.stepped(node, group, effects)
        self.transfers.stepped(node, group, effects)
        for effect in effects:
            if type(effect) is Append:
                self.clocks.appending(node, group, effect.prepare)
                self.purges.appending(node, group, effect.prepare)
            elif type(effect) is PersistState:
                self.disks.recording(node, group, effect.state)

    def sent(self, node: Node, group: SimGroup, command: int, view: int, target: int, header: Any) -> None:
        """A frame leaves a member for ``target``."""
        self.marks.sent(node, group, command, view)
        self.disks.sent(node, group, header)
        self.logs.sent(node, group, header)
        self.transfers.sent(node, group, target, header)
        if command == Command.REPAIR_PREPARE:
            op = int.from_bytes(header[176:184], "little") if isinstance(header, bytes) else header.prepare.op
            self.clocks.repaired(group.key, op)

    def state_persisted(self, node: Node, group: SimGroup, state: Any) -> None:
        """A superblock record is durable."""
        self.marks.state_persisted(node, group.key, state)
        self.logs.recorded(node, group.key)

    def recovering(self, node: Node, key: GroupKey, op: int, plane: Any) -> None:
        """A member begins to replay a log above its snapshot or checkpoint of ``op``."""
        group = self.history.group(key)
        self.marks.opened(node, key, op)
        if op > group.head and not group.deleted:
            if not group.losses:
                raise Violation("checkpoint", f"{node.name} {key} starts at op {op}, committed is {group.head}")
            group.skip(op, plane)

    def replayed(self, node: Node, key: GroupKey, prepare: Prepare, reply: bytes) -> None:
        """An entry was committed while the log was replayed at a start."""
        self.marks.committed(node, key, prepare.op)
        entry, new = self.agreement.committed(node, key, prepare, reply)
        if new:
            self.content.committed(key, prepare, entry)

    def committed(self, node: Node, group: SimGroup, prepare: Prepare, reply: bytes) -> None:
        """A member committed an entry."""
        key = group.key
        self.marks.committed(node, key, prepare.op)
        entry, new = self.agreement.committed(node, key, prepare, reply)
        if new:
            self.committed_ops += 1
            self.clocks.committed(node, key, prepare)
            self.content.committed(key, prepare, entry)
        self.states.committed(node, group, prepare.op, prepare.checksum)

    def installed(self, node: Node, group: SimGroup, op: int) -> None:
        """A transfer put the state of entry ``op`` in place."""
        self.marks.installed(node, group.key, op)
        known = self.history.group(group.key)
        if op > known.head and not known.deleted:
            if not known.losses:
                raise Violation("transfer", f"{node.name} {group.key} installs op {op}, committed is {known.head}")
            # What was allowed to be lost has survived in the checkpoint of a member.
            known.skip(op, group.plane)
        self.purges.hidden(node, group)
        if group.key != METADATA:
            self.states.committed(node, group, op, group.applied_checksum)
        elif not node.world.spoiled(node):
            self.states.compare(node, METADATA, op, node.disk.read(node.directory.snapshot)[:-TRAILER])

    def snapshot(self, node: Node, op: int, payload: bytes) -> None:
        """A member encoded its metadata."""
        self.transfers.snapshot(node, payload)
        self.states.compare(node, METADATA, op, payload)

    def started(self, node: Node) -> None:
        """A member's state is read back from its disk."""
        groups = [node.metadata, *node.groups.values()]
        for group in groups:
            if group is not None:
                self.group_started(node, group)

    def group_started(self, node: Node, group: SimGroup) -> None:
        """A group was opened."""
        self.marks.started(node, group)
        self.disks.opened(node, group)
        if not self._alone:
            self.logs.opened(node, group)
            self.logs.reopened(node, group)
        self.purges.hidden(node, group)
        if self._alone:
            facts = node.boot_facts.get(group.key)
            recorded = max(0 if facts is None else facts.entry.synced_op, self._frontiers.pop(group.key, 0))
            self.acknowledged.started_alone(group, recorded if node.world.spoiled_alone else None)
            self.states.forget(group.key, group.replica.commit_min)

    def doubted(self, node: Node, key: GroupKey) -> None:
        """A single member does not serve a group: what its disk says of it stays known while that file holds."""
        facts = node.boot_facts.get(key)
        if self._alone and facts is not None and "boot" not in node.world.spoiled_kinds:
            self._frontiers[key] = max(self._frontiers.get(key, 0), facts.entry.synced_op)

    def stopped(self, node: Node) -> None:
        """A member went down."""

    def deleted(self, node: Node, group: SimGroup) -> None:
        """A partition was deleted on a member."""
        self.history.group(group.key).deleted = True

    # --- told by the world -----------------------------------------------------------------------------------------

    def lossy(self, key: GroupKey, synced_op: int) -> None:
        """More members lost power at once than `replicated` entries are promised to survive: what nobody had to sync
        may be gone. A quorum had synced up to ``synced_op``."""
        group = self.history.group(key)
        group.lose(lambda entry: entry.durability == PERSISTED or entry.op <= synced_op)
        self.states.forget(key, group.head)
