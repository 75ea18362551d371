"""A transfer in its place in a real replica: what a transferring member does not do, and what an install leaves."""

from __future__ import annotations

from typing import Any

import pytest

from shardsrv._core import Prepare, xxh3
from shardsrv.plane.metadata import snapshot as snapshot_format
from shardsrv.plane.metadata.options_catalog import TopicDefaults
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.effects import Append, Committed, PersistState, Send, TruncateFrom
from shardsrv.vsr.events import APPENDED, SYNCED, Message, Persisted, PersistFailed, StatePersisted, Tick, Truncated
from shardsrv.vsr.frames import body_fields
from shardsrv.vsr.nonce import Nonces
from shardsrv.vsr.policy import metadata_policy, partition_policy
from shardsrv.vsr.replica import GroupIdentity, Replica
from shardsrv.vsr.sending import view_durable
from shardsrv.vsr.status import NORMAL, VIEW_CHANGE
from shardsrv.vsr.transfer import TransferLimits
from shardsrv.vsr.transfer_adapter import GroupTransfer
from shardsrv.vsr.transfer_effects import InstallSnapshot, OpenStaging, RebaseLog, Restored
from shardsrv.vsr.transfer_events import Installed, LogRebased, StagedChecked, StagingOpened
from shardsrv.vsr.transfer_install import Checked
from shardsrv.vsr.trust import DiskFacts
from shardsrv.wire.constants import METADATA_GROUP, Operation
from shardsrv.wire.manifest import Artifact, encode_manifest
from shardsrv.wire.replica_headers import (
    CommitHeader,
    PrepareOkHeader,
    RequestPreparesHeader,
    RequestStateTransferHeader,
    StartViewHeader,
    StateTransferTargetHeader,
)
from tests.support.transfers import CLUSTER, client_id, table_of

NOW = 1_700_000_000_000_000
FIELDS = {"cluster": CLUSTER, "group": METADATA_GROUP}


def entries(count: int, start: int = 1, parent: int = 0, salt: int = 0) -> list[Prepare]:
    """Registers of clients, one an op."""
    made = []
    for op in range(start, start + count):
        prepare = Prepare.build(
            cluster=CLUSTER,
            view=0,
            replica=0,
            client=client_id(op + salt),
            parent=parent,
            request_checksum=0,
            op=op,
            commit=0,
            timestamp=NOW + op,
            request=0,
            operation=int(Operation.REGISTER),
            group=METADATA_GROUP,
            user_id=1,
            created_revision=0,
            durability=1,
            body=b"",
            checksum_body=xxh3(b""),
        )
        made.append(prepare)
        parent = prepare.checksum
    return made


class Backup:
    """Member 1 of 3 in view 0, which member 0 leads. Writes finish at once."""

    def __init__(self, disk: DiskFacts | None = None) -> None:
        self.transfer = GroupTransfer(TransferLimits(frame_max=1024, retry_ticks=10), Nonces(5).draw)
        self.replica = Replica.recover(
            GroupIdentity(CLUSTER, METADATA_GROUP, 0, 1, 3),
            metadata_policy(clients_max=16),
            MetadataPlane(MetadataState.initial("root", "hash"), TopicDefaults()),
            None,
            disk=disk,
            nonces=Nonces(7),
            transfer=self.transfer,
        )
        self.seen: list[Any] = []
        self.hold_state = False
        self.hold_writes = False
        self.heartbeats = 0
        self.follow(self.replica.start(1))

    def follow(self, effects: list[Any]) -> None:
        for effect in effects:
            self.seen.append(effect)
            if type(effect) is Append and not self.hold_writes:
                self.step(Persisted(effect.token, APPENDED))
                self.step(Persisted(effect.token, SYNCED))
            elif type(effect) is PersistState and not self.hold_state:
                self.step(StatePersisted(effect.token, effect.state))

    def step(self, event: Any) -> list[Any]:
        effects = self.replica.step(event)
        self.follow(effects)
        return effects

    def prepare(self, prepare: Prepare) -> None:
        self.step(Message(0, prepare, prepare.body, NOW))

    def heartbeat(self, commit: int, view: int = 0) -> None:
        self.heartbeats += 1
        header = CommitHeader(**FIELDS, view=view, replica=0, commit=commit, timestamp_monotonic=self.heartbeats)
        self.step(Message(0, header, b"", NOW))

    def start_view(self, head: Prepare, commit: int, view: int = 3, echo: int = 0) -> None:
        body = bytes(head.header)
        more = {"incarnation": echo, **body_fields(body)}
        header = StartViewHeader(**FIELDS, view=view, replica=0, op=head.op, commit=commit, **more)
        self.step(Message(0, header, body, NOW))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.step(Tick(NOW))

    def sent(self, kind: type) -> list[Any]:
        return [effect.header for effect in self.seen if type(effect) is Send and type(effect.header) is kind]

    def asked(self, kind: type) -> list[Any]:
        return [effect for effect in self.seen if type(effect) is kind]

    # --- a transfer, stage by stage

    def begin(self) -> None:
        out: list[Any] = []
        self.transfer.begin(self.replica, 0, out)
        self.follow(out)

    def describe(self, op: int, commit_op: int) -> None:
        nonce = self.sent(RequestStateTransferHeader)[-1].nonce
        body = encode_manifest([Artifact(0, op, 0, 0), Artifact(1, commit_op, 0, 0)])
        header = StateTransferTargetHeader(
            **FIELDS,
            replica=0,
            nonce=nonce,
            available=1,
            commit_op=commit_op,
            commit_max=commit_op,
            **body_fields(body),
        )
        self.step(Message(0, header, body, NOW))

    def stage(self) -> None:
        self.step(StagingOpened(self.asked(OpenStaging)[-1].token, (0, 0)))

    def checked(self, entry: Prepare, clients: dict[int, int], frontier: int) -> None:
        payload = snapshot_format.encode(
            MetadataState.initial("root", "hash"),
            op=entry.op,
            checksum=entry.checksum,
            timestamp=entry.timestamp,
            created_at=0,
            client_table=[],
        )
        base = table_of({number: op for number, op in clients.items() if op <= entry.op})
        content = Checked(
            entry.op,
            entry.checksum,
            entry.timestamp,
            snapshot_format.decode(payload),
            base,
            table_of(clients),
            frontier,
        )
        token = self.transfer.transfer.receiver._session.token
        self.step(StagedChecked(token, content))

    def installed(self) -> None:
        self.step(Installed(self.asked(InstallSnapshot)[-1].token, 99))

    def rebased(self, first_op: int) -> None:
        self.step(LogRebased(self.asked(RebaseLog)[-1].token, first_op))


def fetching(backup: Backup, op: int = 9) -> Prepare:
    """Bring a transfer to the point where everything is to be checked; returns the entry at its op."""
    entry = entries(op)[-1]
    backup.begin()
    backup.describe(op, op + 3)
    backup.stage()
    return entry


STAGES = {
    "awaiting": lambda backup: backup.begin(),
    "fetching": lambda backup: fetching(backup),
    "installing": lambda backup: backup.checked(fetching(backup), {1: 1}, 12),
}


def member(held: int = 4, commit: int = 2) -> Backup:
    backup = Backup()
    for prepare in entries(held):
        backup.prepare(prepare)
    backup.heartbeat(commit)
    assert (backup.replica.head_op, backup.replica.commit_min) == (held, commit)
    return backup


@pytest.mark.parametrize("stage", STAGES)
def test_while_a_transfer_is_under_way_nothing_is_acknowledged_and_nothing_walked(stage: str) -> None:
    """Planted: guards at the callers miss one trigger or one stage."""
    backup = member()
    STAGES[stage](backup)
    assert backup.transfer.active
    acked, walked = len(backup.sent(PrepareOkHeader)), len(backup.asked(Committed))
    backup.heartbeat(4)
    backup.prepare(entries(5)[4])
    backup.prepare(entries(4)[3])
    backup.tick(3)
    assert (len(backup.sent(PrepareOkHeader)), len(backup.asked(Committed))) == (acked, walked)
    assert backup.replica.commit_min == 2 and backup.replica.head_op == 4


@pytest.mark.parametrize("stage", STAGES)
def test_an_entry_that_gets_written_during_a_transfer_is_acknowledged_behind_it_at_the_earliest(stage: str) -> None:
    """S2-34: it came before the transfer began, and no frame brings the acknowledgement about."""
    backup = member()
    backup.hold_writes = True
    backup.prepare(entries(5)[4])
    acked = len(backup.sent(PrepareOkHeader))
    STAGES[stage](backup)
    backup.hold_writes = False
    token = backup.asked(Append)[-1].token
    for level in (APPENDED, SYNCED):
        backup.step(Persisted(token, level))
    backup.tick(3)
    assert backup.replica.member.log.synced_op == 5 and len(backup.sent(PrepareOkHeader)) == acked
    if stage != "installing":
        backup.transfer.view_changed(backup.replica, [])
        backup.tick()
        assert [header.op for header in backup.sent(PrepareOkHeader)[acked:]] == [5]


@pytest.mark.parametrize("stage", ["awaiting", "fetching"])
def test_adopting_a_later_view_drops_the_transfer_and_acknowledges(stage: str) -> None:
    backup = member()
    STAGES[stage](backup)
    backup.start_view(entries(4)[3], 4)
    assert not backup.transfer.active and backup.replica.view == 3
    assert backup.replica.commit_min == 4


def test_a_view_is_not_adopted_in_the_middle_of_an_install() -> None:
    backup = member()
    STAGES["installing"](backup)
    acked = len(backup.sent(PrepareOkHeader))
    backup.start_view(entries(4)[3], 4)
    assert backup.transfer.installing and len(backup.sent(PrepareOkHeader)) == acked
    assert backup.replica.commit_min == 2 and backup.replica.view == 0


def test_an_install_takes_over_state_table_log_and_commit_point() -> None:
    backup = member()
    entry = fetching(backup)
    backup.checked(entry, {1: 1, 2: 2, 40: 11}, 12)
    backup.hold_state = True
    backup.installed()
    assert backup.replica.commit_min == 2 and not backup.asked(RebaseLog), "the pair comes before the log"
    (record,) = [effect for effect in backup.asked(PersistState) if effect.state.checkpoint_op == 9]
    assert record.state.checkpoint_checksum == 99
    backup.hold_state = False
    backup.step(StatePersisted(record.token, record.state))
    backup.tick()
    backup.rebased(10)
    replica = backup.replica
    assert (replica.commit_min, replica.head_op, replica.head_checksum) == (9, 9, entry.checksum)
    assert replica.commit_max == 12 and replica.plane.op == 9 and not backup.transfer.active
    assert [(effect.op, effect.checksum) for effect in backup.asked(Restored)] == [(9, entry.checksum)]
    assert replica.table.get(client_id(40)) is None and replica.gate.table.get(client_id(40)) is not None
    assert backup.sent(RequestPreparesHeader)[-1].from_op == 10, "the tail is repaired from the same peer"
    assert backup.transfer.snapshots.holder == 0


def test_the_walk_goes_on_behind_an_install() -> None:
    backup = member()
    entry = fetching(backup)
    backup.checked(entry, {1: 1}, 9)
    backup.installed()
    backup.tick()
    backup.rebased(10)
    following = entries(3, 10, entry.checksum)
    for prepare in following:
        backup.prepare(prepare)
    backup.heartbeat(12)
    assert backup.replica.commit_min == 12 and backup.replica.plane.op == 12


def test_a_pair_that_does_not_become_durable_does_not_stop_an_install() -> None:
    backup = member()
    entry = fetching(backup)
    backup.checked(entry, {1: 1}, 12)
    backup.hold_state = True
    backup.installed()
    for _ in range(12):
        backup.tick()
        for record in backup.asked(PersistState)[-1:]:
            backup.step(PersistFailed(record.token, "no"))
    assert backup.asked(RebaseLog)
    backup.rebased(10)
    assert backup.replica.commit_min == 9
    backup.hold_state = False
    backup.tick()
    assert backup.replica.durable_state.checkpoint_op == 9, "the next record has the pair"


def test_entries_of_another_history_are_cut_before_the_install() -> None:
    backup = member(held=6)
    entry = entries(9, salt=100)[4]  # op 5, another identity than the one that is held
    backup.begin()
    backup.describe(5, 12)
    backup.stage()
    backup.checked(entry, {1: 1}, 12)
    (cut,) = backup.asked(TruncateFrom)
    assert cut.op == 5 and not backup.asked(InstallSnapshot)
    backup.tick()
    assert not backup.asked(InstallSnapshot), "the cut is a barrier"
    backup.step(Truncated(cut.token))
    backup.tick()
    assert backup.asked(InstallSnapshot)


def test_a_log_that_holds_the_entry_is_walked_instead() -> None:
    backup = member(held=6)
    entry = entries(6)[4]
    backup.begin()
    backup.describe(5, 12)
    backup.stage()
    backup.checked(entry, {1: 1, 2: 2}, 12)
    assert not backup.asked(InstallSnapshot) and not backup.transfer.active
    assert backup.replica.head_op == 6 and backup.replica.commit_max == 12
    assert backup.replica.commit_min >= 5


def test_a_log_that_breaks_fences_the_group() -> None:
    backup = member()
    entry = fetching(backup)
    backup.checked(entry, {1: 1}, 12)
    backup.installed()
    backup.tick()
    backup.step(LogRebased(backup.asked(RebaseLog)[-1].token, 0, OSError("gone")))
    assert backup.replica.fence_reason and backup.replica.commit_min == 2


def test_the_request_for_a_transfer_needs_no_superblock() -> None:
    """It vouches for nothing; gating it would close the one way that heals this member."""
    backup = member()
    backup.hold_state = True
    acked = len(backup.sent(PrepareOkHeader))
    backup.start_view(entries(4)[3], 4)
    assert backup.replica.view == 3 and not view_durable(backup.replica)
    backup.begin()
    assert len(backup.sent(RequestStateTransferHeader)) == 1 and len(backup.sent(PrepareOkHeader)) == acked


@pytest.mark.parametrize("stage", ["awaiting", "fetching"])
def test_a_start_view_that_is_not_adopted_leaves_a_transfer_alone(stage: str) -> None:
    """S2-43: its sender need not lead anything; another session would drop the descriptor that is on its way."""
    backup = member()
    STAGES[stage](backup)
    asked = len(backup.sent(RequestStateTransferHeader))
    nonce = backup.transfer.transfer.receiver._session.nonce
    for sender, view, reason in ((2, 3, "sender does not lead the view"), (0, 0, "behind our commits")):
        header = StartViewHeader(**FIELDS, view=view, replica=sender, op=1, commit=0)
        backup.step(Message(sender, header, b"", NOW))
        assert backup.replica.dropped[reason] == 1
    assert backup.transfer.active and backup.transfer.transfer.receiver._session.nonce == nonce
    assert len(backup.sent(RequestStateTransferHeader)) == asked


def test_a_member_that_lost_its_log_asks_whoever_answers_this_boot_and_once() -> None:
    """S2-44: a StartView begins a transfer only when it is adopted, answers this life, and none is under way."""
    backup = Backup(DiskFacts(lost=True))
    head = entries(4)[3]
    backup.start_view(head, 4)
    assert backup.replica.view == 3 and not backup.transfer.active, "adopted, and it may be the answer to another life"
    for _ in range(2):
        backup.start_view(head, 4, echo=backup.replica.member.nonce)
        assert len(backup.sent(RequestStateTransferHeader)) == 1 and backup.transfer.active
    backup.heartbeat(4, view=3)
    assert backup.replica.commit_min == 0, "walk and repair wait for the install"


def test_a_caught_up_primary_offers_and_nobody_else() -> None:
    backup = member()
    out: list[Any] = []
    header = RequestStateTransferHeader(**FIELDS, replica=2, nonce=9)
    backup.transfer.message(backup.replica, Message(2, header, b"", NOW), out)
    (frame,) = [effect for effect in out if type(effect) is Send]
    assert frame.header.available == 0 and frame.header.unavailable_transient == 1


def test_a_primary_that_needs_the_acknowledgement_of_who_asks_offers_what_it_has_applied() -> None:
    """A view begins with an entry that only its leader holds: one other member is behind its log, the third has lost
    its own. Without an offer nobody could ever acknowledge it."""
    leader = member()
    replica = leader.replica
    replica.leads, replica.status = True, NORMAL
    replica.barrier, replica.commit_max = replica.commit_min + 1, replica.commit_min
    host = leader.transfer._host
    host.replica = replica
    assert not replica.caught_up and host.caught_up_primary
    replica.commit_max = replica.commit_min + 1
    assert not host.caught_up_primary, "what is known to be committed is applied first"
    replica.commit_max, replica.status = replica.commit_min, VIEW_CHANGE
    assert not host.caught_up_primary


def test_a_table_is_captured_with_the_commit_point() -> None:
    backup = member()
    host = backup.transfer._host
    host.replica = backup.replica
    view = host.capture_for_transfer()
    assert view.frontier == 2 and len(view.rows) == len(backup.replica.table) == 2
    assert host.clients_max == 16 and host.purge_generation == 0
    backup.follow(backup.replica.record(checkpoint_op=2))
    assert isinstance(backup.replica.table, ClientTable)
    assert host.offer_generation == 2, "a checkpoint makes another generation"


def test_what_a_partition_offers_ages_with_the_front_of_its_log() -> None:
    """An offer whose tail was dropped meanwhile would send its receiver back here again and again."""
    replica = Replica.recover(
        GroupIdentity(CLUSTER, 1 << 32 | 2 << 20 | 3, 7, 1, 3), partition_policy(), PartitionPlane(1, 2, 3), None
    )
    transfer = GroupTransfer(TransferLimits(), Nonces(5).draw)
    transfer._host.replica = replica
    before = transfer._host.offer_generation
    replica.log_dropped(50)
    assert before != transfer._host.offer_generation
    assert GroupTransfer(TransferLimits(), Nonces(5).draw, checkpoints=False)._host.offer_generation is None


def test_an_answer_names_no_view_that_the_superblock_does_not_hold() -> None:
    backup = member()
    backup.hold_state = True
    backup.tick(2_000)
    assert backup.replica.view > 0
    backup.step(Message(2, RequestStateTransferHeader(**FIELDS, view=0, replica=2, nonce=77), b"", NOW))
    assert [header.view for header in backup.sent(StateTransferTargetHeader)] == [0]
