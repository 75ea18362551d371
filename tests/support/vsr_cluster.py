"""A few real replicas on a network and disks that a test steers: everything is deterministic and moves by `tick`.

Frames travel as bytes (`encode_frame`, `decode_frame`), one tick each unless a test drops, delays or doubles them.
Writes finish with the tick after they were asked for, syncs one tick later. The checks that run all the time: one op
has one content wherever it is committed; commits come in order; a frame that speaks for a view leaves only when the
sender's disk holds that view, an acknowledgement or a vote only what its log holds; the head describes one entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from shardsrv._core import Prepare, xxh3
from shardsrv.vsr.effects import (
    Append,
    Committed,
    Fatal,
    PersistState,
    ReadPrepare,
    Refused,
    Repeat,
    Send,
    SyncLog,
    TruncateFrom,
)
from shardsrv.vsr.events import (
    APPENDED,
    SYNCED,
    Message,
    Persisted,
    PersistFailed,
    PrepareRead,
    Request,
    StatePersisted,
    Tick,
    Truncated,
)
from shardsrv.vsr.frames import decode_frame, encode_frame
from shardsrv.vsr.nonce import Nonces
from shardsrv.vsr.plane import Plane
from shardsrv.vsr.policy import GroupPolicy, metadata_policy, partition_policy
from shardsrv.vsr.replica import GroupIdentity, Replica
from shardsrv.vsr.status import NORMAL
from shardsrv.vsr.timeouts import Timeouts
from shardsrv.vsr.trust import DiskFacts
from shardsrv.wire.constants import Command

CLUSTER = b"cluster of tests"
GROUP = 1 << 32 | 2 << 20 | 3
SEND = 192  # a purge: a partition operation with a small body
QUICK = Timeouts(
    prepare=5, commit=10, heartbeat=50, view_change=10, view_change_status=60, probe=10, probe_attempts=3, repair=10
)
START = 1_700_000_000_000_000
TICK = 10_000


class LedgerPlane(Plane):
    """Keeps the bodies of its entries: ``applied`` the committed ones, ``head`` those that were prepared above."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []
        self.head: list[bytes] = []

    def prepare(self, request: Request, op: int, timestamp: int) -> tuple[Any, int]:
        body = bytes(request.body)
        assert op == len(self.applied) + len(self.head) + 1
        self.head.append(body)
        return body, xxh3(body)

    def advance(self, prepare: Any) -> None:
        assert prepare.op == len(self.applied) + len(self.head) + 1, "head state follows the log"
        self.head.append(bytes(prepare.body))

    def apply(self, prepare: Any) -> bytes:
        assert self.head.pop(0) == bytes(prepare.body), "what is applied is what head state was made of"
        self.applied.append(bytes(prepare.body))
        return bytes(4) + len(self.applied).to_bytes(8, "little")

    def rewind(self, op: int) -> None:
        assert op == len(self.applied)
        self.head.clear()


class Disk:
    """What a node has written. A kill keeps all of it; a loss of power what was synced (``keep`` entries more)."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.synced = 0
        self.state: Any = None
        self.highest = 0
        """The highest op that was ever appended in this life: what may have been acknowledged."""
        self.first = 1
        self.marked = False
        """The mark of a suspect: it outlives further restarts until the member is trusted again."""


class Node:
    """One member: its replica, its disk, and what the disk has still to do."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        self.cluster = cluster
        self.index = index
        self.disk = Disk()
        self.up = False
        self.boots = 0
        self.broken_superblock = False
        self.skew = 0
        self.commits: list[int] = []
        self.answers: list[tuple[str, Any, Any]] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    def boot(self, facts: DiskFacts | None = None) -> None:
        cluster = self.cluster
        self.boots += 1
        if self.disk.marked:
            facts = attrs.evolve(facts or DiskFacts(), fenced=True)
        self.plane = LedgerPlane()
        self.pending: list[tuple[int, Any]] = []  # (tick at which it is done, event)
        self.buffered: list[Any] = []
        self.written_token = 0
        self.commits = []
        self.replica = Replica.recover(
            GroupIdentity(CLUSTER, cluster.group, cluster.revision, self.index, cluster.members),
            cluster.policy,
            self.plane,
            self.disk.state,
            disk=facts,
            nonces=Nonces(1000 * self.boots + self.index),
        )
        for prepare in self.disk.log:
            self.follow(self.replica.replay(prepare))
        self.disk.synced = len(self.disk.log)
        self.disk.highest = len(self.disk.log)
        self.up = True
        self.disk.marked = self.replica.suspect
        self.follow(self.replica.start(incarnation=self.boots))

    def kill(self) -> None:
        """End at once; the kernel lives on."""
        self.up = False
        for prepare in self.buffered:
            self.write(prepare)
        self.buffered = []

    def lose_power(self, keep: int = 0) -> DiskFacts:
        """The machine stops; returns what the store would say about it at the next start."""
        self.up = False
        head, synced = self.disk.highest, self.disk.synced
        self.disk.log = self.disk.log[: synced + keep]
        return DiskFacts(clean=False, same_boot=False, synced_op=synced, head_op=head)

    # --- effects ------------------------------------------------------------------------------------------------------

    def step(self, event: Any) -> list[Any]:
        effects = self.replica.step(event)
        self.follow(effects)
        return effects

    def follow(self, effects: list[Any]) -> None:
        now = self.cluster.now
        for effect in effects:
            kind = type(effect)
            if kind is Append:
                self.buffered.append(effect.prepare)
                self.pending.append((now + 1, (effect.prepare, Persisted(effect.token, APPENDED))))
                if effect.sync:
                    self.pending.append((now + 2, (None, Persisted(effect.token, SYNCED))))
            elif kind is SyncLog:
                self.pending.append((now + 2, (None, Persisted(effect.token, SYNCED))))
            elif kind is PersistState:
                done = PersistFailed(effect.token, "no") if self.broken_superblock else None
                event = done or StatePersisted(effect.token, effect.state)
                self.pending.append((now + self.cluster.superblock_ticks, (None, event)))
            elif kind is TruncateFrom:
                self.flush()
                del self.disk.log[effect.op - self.disk.first :]
                self.disk.synced = len(self.disk.log)
                self.pending.append((now + 1, (None, Truncated(effect.token))))
            elif kind is ReadPrepare:
                self.pending.append((now + 1, (None, PrepareRead(effect.token, self.read(effect)))))
            elif kind is Send:
                self.cluster.send(self, effect)
            elif kind is Committed:
                self.cluster.committed(self, effect)
            elif kind is Refused:
                self.answers.append(("refused", effect.origin, effect.status))
            elif kind is Repeat:
                self.answers.append(("repeat", effect.origin, effect.op))
            elif kind is Fatal:
                self.up = False
            else:
                raise AssertionError(f"unknown effect {effect}")

    def read(self, effect: ReadPrepare) -> Any:
        index = effect.op - self.disk.first
        return self.disk.log[index] if 0 <= index < len(self.disk.log) else None

    def write(self, prepare: Any) -> None:
        log = self.disk.log
        expected = log[-1].checksum if log else 0
        assert prepare.parent == expected and prepare.op == len(log) + self.disk.first, "a log holds contiguous entries"
        assert prepare.view == prepare.born_view, "stored bytes keep the view they were born in"
        log.append(prepare)
        self.disk.highest = max(self.disk.highest, prepare.op)

    def flush(self) -> None:
        for prepare in self.buffered:
            self.write(prepare)
        self.buffered = []

    def finish_writes(self) -> None:
        now = self.cluster.now
        due = [item for item in self.pending if item[0] <= now]
        self.pending = [item for item in self.pending if item[0] > now]
        for _, (_prepare, event) in due:
            if not self.up:
                return
            if type(event) is Persisted:
                self.flush()
                if event.level == SYNCED:
                    self.disk.synced = len(self.disk.log)
            elif type(event) is StatePersisted:
                self.disk.state = event.state
            self.step(event)

    @property
    def head(self) -> int:
        return self.replica.head_op


class Cluster:
    """``members`` nodes, all started."""

    def __init__(
        self,
        members: int = 3,
        *,
        timeouts: Timeouts = QUICK,
        metadata: bool = False,
        depth: int = 8,
        repair_chunk: int = 128,
    ) -> None:
        self.members = members
        make = metadata_policy if metadata else partition_policy
        self.policy: GroupPolicy = make(depth, timeouts=timeouts, repair_chunk=repair_chunk)
        self.group = 1 << 63 if metadata else GROUP
        self.revision = 0 if metadata else 7
        self.now = 0
        self.superblock_ticks = 1
        self.wire: list[tuple[int, int, int, bytes]] = []  # (due, source, target, frame)
        self.filter: Callable[[int, int, bytes], int | None] = lambda source, target, frame: 1
        """Ticks that a frame takes; None loses it."""
        self.cut: frozenset[int] = frozenset()
        self.content: dict[int, int] = {}  # op -> identity, once committed anywhere
        self.acknowledged: dict[int, int] = {}  # op -> identity, once its request was answered
        self.durability: dict[int, int] = {}  # op -> what its answer promised
        self.origins: dict[Any, int] = {}
        self.sent: list[tuple[int, int, int]] = []  # (tick, source, command)
        self.nodes = [Node(self, index) for index in range(members)]
        for node in self.nodes:
            node.boot()
        self.run(5)

    # --- network ------------------------------------------------------------------------------------------------------

    def send(self, node: Node, effect: Send) -> None:
        frame = encode_frame(effect.header, effect.body)
        command = frame[60]
        self.sent.append((self.now, node.index, command))
        self.check_sent(node, effect, command)
        ticks = self.filter(node.index, effect.replica, frame)
        if ticks is not None:
            self.wire.append((self.now + ticks, node.index, effect.replica, frame))

    def check_sent(self, node: Node, effect: Send, command: int) -> None:
        state = node.disk.state
        header = effect.header
        gated = (
            Command.PREPARE,
            Command.PREPARE_OK,
            Command.COMMIT,
            Command.START_VIEW_CHANGE,
            Command.DO_VIEW_CHANGE,
            Command.START_VIEW,
        )
        if command in gated:
            view = int.from_bytes(header[52:56], "little") if isinstance(header, bytes) else header.view
            assert state is not None and state.view >= view, f"{Command(command).name} left before the view was durable"
            if command in (Command.START_VIEW, Command.PREPARE_OK, Command.PREPARE, Command.COMMIT):
                assert state.log_view == view, f"{Command(command).name} left before the log view was durable"
        if command == Command.PREPARE_OK and header.acked_as < 2:
            entry = node.disk.log[header.op - node.disk.first]
            assert entry.checksum == header.prepare_checksum, "acknowledged what the log does not hold"
            if header.acked_as == 1 or entry.durability:
                assert node.disk.synced >= header.op - node.disk.first + 1, "acknowledged as synced, and is not"
        if command in (Command.DO_VIEW_CHANGE, Command.START_VIEW):
            assert node.disk.synced >= header.op - node.disk.first + 1, "described a log that is not synced"

    def deliver(self) -> None:
        due = [item for item in self.wire if item[0] <= self.now]
        self.wire = [item for item in self.wire if item[0] > self.now]
        for _, source, target, frame in due:
            node = self.nodes[target]
            if node.up and source not in self.cut and target not in self.cut:
                header, body = decode_frame(frame)
                node.step(Message(source, header, body, self.clock(target)))

    def clock(self, index: int) -> int:
        return START + self.now * TICK + self.nodes[index].skew

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.now += 1
        for node in self.nodes:
            if node.up:
                node.finish_writes()
        self.deliver()
        for node in self.nodes:
            if node.up:
                node.step(Tick(self.clock(node.index)))
        for node in self.nodes:
            if node.up:
                node.disk.marked = node.disk.marked and node.replica.suspect
                self.check_head(node)

    def check_head(self, node: Node) -> None:
        """(head op, head identity) is one entry of the own log (S1-07)."""
        log = [*node.disk.log, *node.buffered]
        replica = node.replica
        if log:
            assert log[-1].op == replica.head_op and log[-1].checksum == replica.head_checksum
        assert replica.commit_min <= replica.commit_max

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    def run_until(self, condition: Callable[[], bool], limit: int = 2000) -> None:
        for _ in range(limit):
            if condition():
                return
            self.tick()
        raise AssertionError(f"did not come about within {limit} ticks: {self.describe()}")

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(
        self,
        body: bytes,
        *,
        at: int | None = None,
        durability: int = 0,
        client: int = 1,
        number: int = 1,
        session: int = 1,
        operation: int = SEND,
    ) -> Any:
        """Ask member ``at`` (the primary); returns the origin, found again in `committed` and `answers`."""
        node = self.primary() if at is None else self.nodes[at]
        origin = (node.index, body)
        self.origins[origin] = 0
        now = self.clock(node.index)
        node.step(
            Request(client.to_bytes(16, "little"), session, number, operation, 0, 0, durability, body, origin, now)
        )
        return origin

    def committed(self, node: Node, effect: Committed) -> None:
        prepare: Prepare = effect.prepare
        op = prepare.op
        expected = node.commits[-1] + 1 if node.commits else op
        assert op == expected, "commits come in op order"
        node.commits.append(op)
        known = self.content.setdefault(op, prepare.checksum)
        assert known == prepare.checksum, f"op {op} has two contents"
        if effect.origin is not None:
            self.acknowledged[op] = prepare.checksum
            self.durability[op] = prepare.durability
            self.origins[effect.origin] = op

    def commit(self, *bodies: bytes, durability: int = 0, everywhere: bool = True) -> None:
        """Ask for entries one after the other and wait until they are committed (``everywhere``: on all that are
        up)."""
        for body in bodies:
            origin = self.request(body, durability=durability)
            self.run_until(lambda origin=origin: self.origins[origin] > 0)
        if everywhere:
            self.settle()

    # --- questions ----------------------------------------------------------------------------------------------------

    def primary(self) -> Node:
        """The one that leads the latest view."""
        leading = [node for node in self.nodes if node.up and node.replica.leads and node.replica.status == NORMAL]
        assert leading, f"nobody leads: {self.describe()}"
        return max(leading, key=lambda node: node.replica.view)

    def has_primary(self) -> bool:
        return any(
            node.up and node.replica.leads and node.replica.status == NORMAL and node.index not in self.cut
            for node in self.nodes
        )

    def settled(self) -> bool:
        """All that are up and connected follow one view, hold one log and have applied all of it."""
        nodes = [node for node in self.nodes if node.up and node.index not in self.cut]
        views = {(node.replica.view, node.replica.log_view, node.replica.head_checksum) for node in nodes}
        return (
            len(views) == 1
            and sum(node.replica.leads for node in nodes) == 1
            and all(node.replica.status == NORMAL and node.replica.commit_min == node.replica.head_op for node in nodes)
        )

    def settle(self, limit: int = 2000) -> None:
        self.run_until(self.settled, limit)
        for op, identity in self.acknowledged.items():
            for node in self.nodes:
                if node.up and node.index not in self.cut and op >= node.disk.first:
                    assert node.disk.log[op - node.disk.first].checksum == identity, f"acknowledged op {op} is gone"
        bodies = [node.plane.applied for node in self.nodes if node.up and node.index not in self.cut]
        assert all(each == bodies[0] for each in bodies)

    def describe(self) -> str:
        return "; ".join(
            f"{node.index}: {'up' if node.up else 'down'} view {node.replica.view}/{node.replica.log_view} status"
            f" {node.replica.status} leads {node.replica.leads} head {node.replica.head_op} commit"
            f" {node.replica.commit_min}/{node.replica.commit_max} verified {node.replica.member.log.verified_op}"
            f" {node.replica.dropped} {node.replica.member.election.outcome}"
            for node in self.nodes
        )


