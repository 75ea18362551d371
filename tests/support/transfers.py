"""Two members that transfer state, for tests: real machines of both sides, a host and a driver in memory for each, and
a link that loses, doubles and reorders frames as a seeded generator says.

The driver keeps artifacts as bytes. A snapshot is ``op u64, purge u64, payload``; a table is a client table in its wire
form. Whatever is installed is written down in order, so that a test can look at what happened and when.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import attrs

from shardsrv.errors import DecodeError
from shardsrv.vsr import client_table_wire
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.effects import Send
from shardsrv.vsr.frames import decode_frame, encode_frame
from shardsrv.vsr.nonce import Nonces
from shardsrv.vsr.policy import METADATA, metadata_policy, partition_policy
from shardsrv.vsr.transfer import Transfer, TransferLimits
from shardsrv.vsr.transfer_effects import (
    CheckStaged,
    CloseStaging,
    InstallSnapshot,
    LoadOffer,
    Note,
    OpenStaging,
    ReadChunk,
    RebaseLog,
    ReleaseOffer,
    Restored,
    StageChunk,
)
from shardsrv.vsr.transfer_events import (
    ChunkRead,
    ChunkStaged,
    Installed,
    LogRebased,
    OfferLoaded,
    StagedChecked,
    StagingOpened,
)
from shardsrv.vsr.transfer_faults import ArtifactDamaged, NoSnapshot, SnapshotUnreadable
from shardsrv.vsr.transfer_install import Checked, SnapshotWriter
from shardsrv.vsr.transfer_offer import Offer
from shardsrv.wire.constants import METADATA_GROUP
from shardsrv.wire.manifest import Artifact, ArtifactKind
from shardsrv.wire.sealed_body import artifact_checksum

CLUSTER = b"cluster of tests"
PARTITION_GROUP = 1 << 32 | 2 << 20 | 3
REGISTER = 1


@attrs.frozen
class Identity:
    """What a host is asked of its group."""

    replica: int
    replica_count: int = 3
    cluster: bytes = CLUSTER
    group: int = METADATA_GROUP
    created_revision: int = 0


def client_id(number: int) -> bytes:
    return number.to_bytes(16, "little")


def table_of(clients: dict[int, int]) -> ClientTable:
    """A table with clients registered at ops."""
    table = ClientTable(16)
    for number, op in clients.items():
        table.commit_register(client_id(number), 1, op, op * 1000, b"")
    return table


def snapshot_bytes(op: int, purge: int = 0, filler: int = 1000, seed: int = 1) -> bytes:
    """A snapshot payload of the test driver."""
    return op.to_bytes(8, "little") + purge.to_bytes(8, "little") + random.Random(seed + op).randbytes(filler)


class FakeHost:
    """A replica as a transfer sees it, and what a transfer did to it."""

    def __init__(self, identity: Identity, plane: int = METADATA) -> None:
        self.identity = identity
        self.policy = metadata_policy() if plane == METADATA else partition_policy()
        self.view = 3
        self.commit_min = 0
        self.commit_max = 0
        self.snapshots = SnapshotWriter()
        self.caught_up_primary = True
        self.offer_generation: int | None = 0
        self.purge_generation = 0
        self.clients_max = 16
        self.table = ClientTable(16)
        self.table_frontier = 0
        self.held: dict[int, int] = {}
        self.state: bytes | None = None
        self.done: list[str] = []
        self.ended: list[int] = []
        self.pair: tuple[int, int] | None = None
        self.broken: Exception | None = None
        self.transfer: Any = None

    def capture_for_transfer(self) -> Any:
        return client_table_wire.view_of(self.table, self.commit_min)

    def record_transferred(self, op: int, checksum: int, out: list[Any]) -> None:
        self.done.append(f"pair {op}")
        self.pair = (op, checksum)

    def may_install(self, op: int, checksum: int, out: list[Any]) -> bool:
        if self.held.get(op, checksum) == checksum:
            return True
        self.done.append(f"cut {op}")
        del self.held[op]
        return False

    def holds(self, op: int, checksum: int) -> bool:
        return self.held.get(op) == checksum

    def take_transferred(self, content: Checked, plan: Any, commit_op: int, first_op: int, out: list[Any]) -> None:
        assert self.transfer.transferring, "memory changes before the stage goes back to Idle"
        self.done.append("memory")
        if plan.restores:
            assert content.op > self.commit_min, "a restore never goes back"
            self.state = content.state
            self.commit_min = content.op
            self.table = content.base_table or self.table
        if plan.takes_table and content.table is not None:
            self.table, self.table_frontier = content.table, content.table_frontier
        self.commit_max = max(self.commit_max, commit_op)

    def transfer_ended(self, peer: int, out: list[Any]) -> None:
        assert not self.transfer.transferring
        self.ended.append(peer)

    def transfer_broke(self, fault: Exception, out: list[Any]) -> None:
        self.broken = fault


class Member:
    """One member: machine, host and driver. ``effects`` are kept in ``log``; driver work is done at once."""

    def __init__(self, replica: int, *, plane: int = METADATA, limits: TransferLimits | None = None) -> None:
        group = METADATA_GROUP if plane == METADATA else PARTITION_GROUP
        self.host = FakeHost(Identity(replica, group=group), plane)
        self.limits = limits or TransferLimits(frame_max=256 + 64, retry_ticks=10)
        self.transfer = Transfer(self.host, self.limits, Nonces(replica + 1).draw)
        self.host.transfer = self.transfer
        self.log: list[Any] = []
        self.outbox: list[tuple[int, bytes]] = []
        self.hold: set[type] = set()
        self.held_back: deque[Any] = deque()
        # serving
        self.snapshot: bytes | None = None
        self.unreadable = False
        self.extra: list[tuple[Artifact, bytes]] = []
        self.loads = 0
        self.released: list[Offer] = []
        self.read_fault: Exception | None = None
        # receiving
        self.artifacts: tuple[Artifact, ...] = ()
        self.staging: list[bytearray] = []
        self.kept: dict[Artifact, bytes] = {}
        self.file: bytes | None = None
        self.log_floor = 0
        self.pair_fails = False
        self.faults: dict[type, Exception] = {}

    # --- driving

    def run(self, effects: list[Any]) -> None:
        """Carry effects out; answers go back at once, unless their kind is held back."""
        queue = deque(effects)
        queue.extend(self.follow_pair())
        while queue:
            effect = queue.popleft()
            self.log.append(effect)
            if type(effect) is Send:
                self.outbox.append((effect.replica, encode_frame(effect.header, effect.body)))
            elif type(effect) in self.hold:
                self.held_back.append(effect)
            else:
                answer = self.answer(effect)
                if answer is not None:
                    queue.extend(self.step(answer))
            queue.extend(self.follow_pair())

    def release(self) -> None:
        """Answer what was held back."""
        self.hold.clear()
        while self.held_back:
            answer = self.answer(self.held_back.popleft())
            if answer is not None:
                self.run(self.step(answer))

    def step(self, event: Any) -> list[Any]:
        out: list[Any] = []
        self.transfer.event(event, out)
        return out

    def follow_pair(self) -> list[Any]:
        """The superblock write of an install, done or failed."""
        out: list[Any] = []
        if self.transfer.receiver.awaited_pair and "pair" not in self.hold:
            if self.pair_fails:
                self.transfer.pair_failed(out)
            else:
                assert self.host.pair is not None
                self.transfer.pair_recorded(self.host.pair[0], out)
        return out

    def receive(self, frame: bytes) -> None:
        header, body = decode_frame(frame)
        out: list[Any] = []
        assert self.transfer.message(header, body, out)
        self.run(out)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            out: list[Any] = []
            self.transfer.tick(out)
            self.run(out)

    def arm(self, peer: int = 0) -> bool:
        out: list[Any] = []
        armed = self.transfer.receiver.arm(peer, out)
        self.run(out)
        return armed

    # --- the driver

    def answer(self, effect: Any) -> Any:
        fault = self.faults.get(type(effect))
        if isinstance(effect, LoadOffer):
            return self._load(effect)
        if isinstance(effect, ReadChunk):
            data = effect.offer.artifacts[effect.index][1]
            assert effect.length > 0
            return ChunkRead(effect.token, data[effect.offset : effect.offset + effect.length], self.read_fault)
        if isinstance(effect, OpenStaging):
            self.artifacts = effect.artifacts
            self.staging = [bytearray(artifact.length) for artifact in effect.artifacts]
            held = []
            for number, artifact in enumerate(effect.artifacts):
                if artifact in self.kept:
                    self.staging[number][:] = self.kept[artifact]
                held.append(artifact.length if artifact in self.kept else 0)
            return StagingOpened(effect.token, tuple(held), fault)
        if isinstance(effect, StageChunk):
            self.staging[effect.index][effect.offset : effect.offset + len(effect.data)] = effect.data
            return ChunkStaged(effect.token, fault)
        if isinstance(effect, CheckStaged):
            return self._check(effect)
        if isinstance(effect, InstallSnapshot):
            if fault is None:
                self.host.done.append(f"file {effect.content.op}")
                self.file = effect.content.source
            return Installed(effect.token, artifact_checksum(effect.content.source), fault)
        if isinstance(effect, RebaseLog):
            if fault is None:
                self.host.done.append(f"log {effect.content.op}")
                self.log_floor = effect.content.op
            return LogRebased(effect.token, effect.content.op + 1, fault)
        if isinstance(effect, ReleaseOffer):
            assert effect.offer not in self.released, "an offer is released once"
            self.released.append(effect.offer)
        elif isinstance(effect, CloseStaging):
            if not effect.keep:
                self.kept.clear()
        else:
            assert isinstance(effect, Note | Restored)
        return None

    def _load(self, effect: LoadOffer) -> OfferLoaded:
        self.loads += 1
        if self.snapshot is None:
            return OfferLoaded(effect.token, None, NoSnapshot())
        if self.unreadable:
            return OfferLoaded(effect.token, None, SnapshotUnreadable(cause=DecodeError("snapshot")))
        op = int.from_bytes(self.snapshot[:8], "little")
        parts = [(ArtifactKind.METADATA_SNAPSHOT, op, self.snapshot)]
        if self.host.policy.plane == METADATA:
            table = client_table_wire.encode(effect.captured)
            parts.append((ArtifactKind.CLIENT_TABLE, effect.captured.frontier, table))
        else:
            parts = [(ArtifactKind.PARTITION_CHECKPOINT, op, self.snapshot)]
        pairs = [
            (Artifact(int(kind), frontier, len(data), artifact_checksum(data)), data) for kind, frontier, data in parts
        ]
        return OfferLoaded(effect.token, Offer(op, effect.commit_op, (*pairs, *self.extra)))

    def _check(self, effect: CheckStaged) -> StagedChecked:
        state: bytes = b""
        table, frontier = None, 0
        for number, artifact in enumerate(effect.artifacts):
            data = bytes(self.staging[number])
            found = artifact_checksum(data)
            if found != artifact.checksum:
                fault = ArtifactDamaged(number, artifact.kind, artifact.checksum, found)
                return StagedChecked(effect.token, None, fault)
            if artifact.kind == ArtifactKind.CLIENT_TABLE:
                try:
                    table, frontier = client_table_wire.decode(data, effect.clients_max), artifact.frontier
                except DecodeError as error:
                    return StagedChecked(effect.token, None, error)
            elif artifact.kind in (ArtifactKind.METADATA_SNAPSHOT, ArtifactKind.PARTITION_CHECKPOINT):
                state = data
        if len(state) < 16:
            return StagedChecked(effect.token, None, DecodeError("snapshot"))
        op, purge = int.from_bytes(state[:8], "little"), int.from_bytes(state[8:16], "little")
        base = ClientTable(16) if table is not None else None
        return StagedChecked(effect.token, Checked(op, op * 7 + 1, op, state, base, table, frontier, purge, state))

    # --- what tests ask

    def sent(self, kind: type) -> list[Any]:
        """Headers of a class that left, in order."""
        return [effect.header for effect in self.log if type(effect) is Send and type(effect.header) is kind]

    def notes(self) -> list[str]:
        return [effect.name for effect in self.log if type(effect) is Note]

    def asked(self, kind: type) -> list[Any]:
        """Effects of a class, in order."""
        return [effect for effect in self.log if type(effect) is kind]


def serving(op: int = 40, *, commit: int = 50, clients: dict[int, int] | None = None, **options: Any) -> Member:
    """A caught-up primary with a snapshot at ``op``, commit point ``commit``."""
    member = Member(0, **options)
    member.snapshot = snapshot_bytes(op)
    member.host.commit_min = member.host.commit_max = commit
    member.host.offer_generation = op
    member.host.table = table_of(clients or {7: 10, 9: 20})
    return member


class Link:
    """Carries frames between two members; each may be lost, doubled or overtaken."""

    def __init__(self, members: tuple[Member, ...], seed: int = 0, loss: float = 0, double: float = 0, late: float = 0):
        self.members = {member.host.identity.replica: member for member in members}
        self.chance = random.Random(seed)
        self.loss, self.double, self.late = loss, double, late
        self.way: list[tuple[int, bytes]] = []
        self.lost = self.doubled = self.overtaken = self.carried = 0
        self.cut: set[int] = set()
        self.drop: Any = None

    def collect(self) -> None:
        for number, member in self.members.items():
            for to, frame in member.outbox:
                cut = number in self.cut or to in self.cut or (self.drop is not None and self.drop(frame))
                if cut or self.chance.random() < self.loss:
                    self.lost += 1
                else:
                    self.way.append((to, frame))
                    if self.chance.random() < self.double:
                        self.doubled += 1
                        self.way.append((to, frame))
            member.outbox.clear()

    def deliver(self, limit: int = 100_000) -> None:
        """Until nothing is on the way."""
        self.collect()
        while self.way:
            self.carried += 1
            assert self.carried < limit, "the exchange does not end"
            at = 0
            if len(self.way) > 1 and self.chance.random() < self.late:
                at = self.chance.randrange(1, len(self.way))
                self.overtaken += 1
            to, frame = self.way.pop(at)
            if to in self.members and to not in self.cut:
                self.members[to].receive(frame)
            self.collect()

    def run(self, ticks: int) -> None:
        """Deliver, then let time pass, ``ticks`` times."""
        for _ in range(ticks):
            self.deliver()
            for member in self.members.values():
                member.tick()
        self.deliver()
