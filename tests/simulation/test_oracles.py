"""Oracles of the simulator on members made for the purpose: silent about what is right, by name about what is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.sim.disk import SimDisk
from shardsrv.sim.history import NOT_KNOWN, GroupHistory
from shardsrv.sim.oracles import Oracles
from shardsrv.sim.oracles_disk import Disks
from shardsrv.sim.oracles_purge import Purges
from shardsrv.sim.violation import Violation
from shardsrv.store.group_key import GroupKey
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_files import segment_path
from shardsrv.vsr.state import VsrState
from shardsrv.wire.constants import ZERO_ID, AckedAs, Operation
from shardsrv.wire.replica_headers import CommitHeader, DoViewChangeHeader, PrepareOkHeader, StartViewHeader
from tests.support.logs import CLUSTER, IDENTITY, Chain

KEY = GroupKey(1, 2, 3, 40)
LOG = "/log"
FIELDS: dict[str, Any] = {"cluster": CLUSTER, "group": KEY.group, "view": 4}


class Member:
    """A member with one log of one partition on a simulated disk, nine entries in small segments, all synced."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.chain = Chain()
        self.log, _ = PrepareLog.open(self.disk, LOG, IDENTITY, segment_size=2000)
        self.append(9)
        self.sync()
        self.disk.fsync_dir("/")
        replica = SimpleNamespace(view=4, leads=True, member=SimpleNamespace(target_op=9), durable_state=None)
        plane = SimpleNamespace(purge_generation=0)
        self.group: Any = SimpleNamespace(key=KEY, log=self.log, replica=replica, plane=plane, closed=False)
        topic = SimpleNamespace(created_revision=30, purge_generation=0)
        state = SimpleNamespace(streams={1: SimpleNamespace(topics={2: topic})})
        self.topic = topic
        world = SimpleNamespace(spoiled=lambda node: False)
        self.node: Any = SimpleNamespace(
            name="n0",
            disk=self.disk,
            world=world,
            metadata=SimpleNamespace(plane=SimpleNamespace(state=state)),
            groups={1: self.group},
        )

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.append(self.chain.send(1, 64))
        self.log.flush()

    def sync(self) -> None:
        plan = self.log.sync_plan()
        plan.run()
        self.log.mark_synced(plan)


@pytest.fixture
def member() -> Member:
    return Member()


# --- logs -------------------------------------------------------------------------------------------------------------


def test_a_whole_log_is_unbroken(member: Member) -> None:
    assert member.log.segment_count > 2
    Disks().opened(member.node, member.group)


def test_a_hole_between_segments_is_found(member: Member) -> None:
    del member.log._segments[1]
    with pytest.raises(Violation, match=r"unbroken logs: .* where op 4 should be"):
        Disks().opened(member.node, member.group)


@pytest.mark.parametrize("position", [260, 500])
def test_bytes_that_do_not_hold_are_found(member: Member, position: int) -> None:
    member.disk.flip(segment_path(LOG, member.log.segments()[1][0]), position * 8)
    with pytest.raises(Violation, match=r"unbroken logs: .* is not whole"):
        Disks().opened(member.node, member.group)


def test_a_member_whose_bytes_were_changed_is_not_asked(member: Member) -> None:
    del member.log._segments[1]
    member.node.world.spoiled = lambda node: True
    Disks().opened(member.node, member.group)
    Disks().told_synced(member.node, member.group)


def test_what_is_synced_is_durable(member: Member) -> None:
    Disks().told_synced(member.node, member.group)
    member.append(3)
    Disks().told_synced(member.node, member.group)


def test_what_is_not_synced_is_not_taken_for_it(member: Member) -> None:
    member.append()
    member.sync()
    count = member.log.segment_count
    member.append()
    assert member.log.segment_count == count
    member.log.synced_op = member.log.head_op
    with pytest.raises(Violation, match=r"synced is durable: .* is not up to byte"):
        Disks().told_synced(member.node, member.group)


def test_a_segment_without_a_durable_name_is_not_synced(member: Member) -> None:
    count = member.log.segment_count
    member.append(3)
    assert member.log.segment_count == count + 1
    handle = member.disk.open_write(segment_path(LOG, member.log.segments()[-1][0]))
    member.disk.fdatasync(handle)
    member.log.synced_op = member.log.head_op
    with pytest.raises(Violation, match=r"synced is durable: .* has no name"):
        Disks().told_synced(member.node, member.group)


# --- what is said of a log --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DoViewChangeHeader, StartViewHeader])
def test_a_frame_describes_what_is_synced(member: Member, kind: type) -> None:
    Disks().sent(member.node, member.group, kind(**FIELDS, op=9))
    member.append()
    with pytest.raises(Violation, match="synced before sent"):
        Disks().sent(member.node, member.group, kind(**FIELDS, op=10))
    Disks().sent(member.node, member.group, CommitHeader(**FIELDS, commit=10))


def test_a_disk_is_new_once(member: Member) -> None:
    disks = Disks()
    member.node.index = 0
    disks.begins(member.node)
    with pytest.raises(Violation, match="first start"):
        disks.begins(member.node)
    disks.wiped(member.node)
    disks.begins(member.node)


@pytest.mark.parametrize("level", [AckedAs.APPENDED, AckedAs.SYNCED])
def test_an_acknowledgement_says_what_is_held(member: Member, level: AckedAs) -> None:
    def sent(op: int) -> None:
        Disks().sent(member.node, member.group, PrepareOkHeader(**FIELDS, op=op, acked_as=int(level)))

    sent(9)
    member.append()
    if level == AckedAs.APPENDED:
        sent(10)
    with pytest.raises(Violation, match=f"held before acknowledged: .* has {9 + (level == AckedAs.APPENDED)}"):
        sent(10 + (level == AckedAs.APPENDED))
    Disks().sent(member.node, member.group, PrepareOkHeader(**FIELDS, op=99, acked_as=int(AckedAs.CLOCK_REFUSED)))


def test_a_log_view_is_recorded_when_its_log_is_synced(member: Member) -> None:
    state = VsrState(CLUSTER, 0, 3, view=4, log_view=4)
    Disks().recording(member.node, member.group, state)
    member.group.replica.member.target_op = 10
    with pytest.raises(Violation, match="synced before recorded"):
        Disks().recording(member.node, member.group, state)
    member.group.replica.durable_state = state
    Disks().recording(member.node, member.group, state)


# --- purges -----------------------------------------------------------------------------------------------------------


def entry(operation: int = int(Operation.SEND_MESSAGES), client: bytes = b"c" * 16) -> Any:
    return SimpleNamespace(op=10, operation=operation, client=client)


def test_nothing_goes_before_a_purge_that_metadata_has_committed(member: Member) -> None:
    Purges().appending(member.node, member.group, entry())
    member.topic.purge_generation = 50
    with pytest.raises(Violation, match="comes before the purge of metadata op 50"):
        Purges().appending(member.node, member.group, entry())
    Purges().appending(member.node, member.group, entry(int(Operation.PURGE_PARTITION), ZERO_ID))
    member.group.plane.purge_generation = 50
    Purges().appending(member.node, member.group, entry())


def test_a_follower_takes_what_its_primary_sends(member: Member) -> None:
    member.topic.purge_generation = 50
    member.group.replica.leads = False
    Purges().appending(member.node, member.group, entry())


@pytest.mark.parametrize(("created", "purge"), [(30, 39), (41, 50)])
def test_a_purge_of_another_life_is_none(member: Member, created: int, purge: int) -> None:
    member.topic.created_revision, member.topic.purge_generation = created, purge
    Purges().appending(member.node, member.group, entry())
    Purges().carried_out(member.node)


def test_a_purge_is_carried_out_by_the_end(member: Member) -> None:
    Purges().carried_out(member.node)
    member.topic.purge_generation = 50
    with pytest.raises(Violation, match="never had the purge of metadata op 50"):
        Purges().carried_out(member.node)


def test_what_was_purged_is_not_served_from_the_log(member: Member) -> None:
    member.group.plane.purge_op = 0
    Purges().hidden(member.node, member.group)
    member.append()
    member.log.append(member.chain.purge())
    member.log.flush()
    member.group.plane.purge_op = 11
    Purges().hidden(member.node, member.group)
    member.log.floor_op = 0
    with pytest.raises(Violation, match="may serve ops above 0, purged is up to 11"):
        Purges().hidden(member.node, member.group)


# --- what was allowed to be lost --------------------------------------------------------------------------------------


def test_a_state_may_be_installed_that_was_allowed_to_be_lost(member: Member) -> None:
    plane = PartitionPlane(1, 2, 3)
    plane.next_offset = 7
    member.group.plane, member.group.applied_checksum = plane, 0
    member.node.index, member.node.life = 0, 1
    oracles = member.node.oracles = Oracles(64, 3)
    with pytest.raises(Violation, match="installs op 5, committed is 0"):
        oracles.installed(member.node, member.group, 5)
    oracles.lossy(KEY, 0)
    oracles.installed(member.node, member.group, 5)
    assert (oracles.history.group(KEY).head, oracles.history.group(KEY).next_offset) == (5, 7)


def test_what_follows_forgotten_entries_may_begin_anywhere() -> None:
    history = GroupHistory()
    for prepare in chain_of(4):
        history.add(prepare, b"")
        history.next_offset += 1
    history.lose(lambda entry: entry.op <= 2)
    assert (history.head, history.next_offset) == (2, 2)
    history.resume(SimpleNamespace(op=5, operation=int(Operation.STORE_CONSUMER_OFFSET)))
    assert (history.head, history.next_offset) == (4, NOT_KNOWN)
    history.shorten(3)
    assert (history.head, history.next_offset) == (3, NOT_KNOWN), "where the forgotten entry 4 begins is not known"
    history.shorten(2)
    assert (history.head, history.next_offset) == (2, 2), "where the first forgotten entry begins is"


def chain_of(count: int) -> list[Any]:
    chain = Chain()
    return [chain.send() for _ in range(count)]
