"""Drivers of state transfer on a disk: what is offered, what is staged, what is refused, and what an install leaves."""

from __future__ import annotations

import errno

import pytest

from shardsrv.errors import Damaged, DecodeError, DiskFault
from shardsrv.plane.partition import checkpoint as checkpoint_format
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.sim.disk import SimDisk
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.faults import LogDamaged, LogFenced
from shardsrv.store.incoming import INCOMING, READY, commit_swap, finish_swap, retract_swap
from shardsrv.store.layout import SNAPSHOT
from shardsrv.store.log_reload import is_superseded, reload_log, remove_segments
from shardsrv.store.log_walk import ResumePoint
from shardsrv.store.recovery import Shape
from shardsrv.vsr import transfer_faults as faults
from shardsrv.vsr.transfer_effects import CloseStaging, InstallSnapshot, OpenStaging, ReadChunk, RebaseLog, ReleaseOffer
from shardsrv.wire.manifest import Artifact
from tests.support.durable import DIRECTORY, PARTITION
from tests.support.transfer_disks import (
    MetadataSide,
    PartitionSide,
    do,
    fail_nth,
    fetch,
    offer_of,
    reopen_metadata,
    reopen_partition,
)

SNAPSHOT_FILE = f"{DIRECTORY.metadata}/{SNAPSHOT}"


def flip(disk: SimDisk, path: str, position: int) -> None:
    data = bytearray(disk.read(path))
    data[position] ^= 1
    disk.put(path, bytes(data))


# --- metadata: serving ------------------------------------------------------------------------------------------------


def test_an_offer_is_payload_without_trailer_and_table() -> None:
    side = MetadataSide.make(9)
    payload = side.write_snapshot(6)
    offer = side.offer()
    assert (offer.generation, offer.commit_op) == (6, 9)
    assert [(artifact.kind, artifact.frontier) for artifact, _ in offer.artifacts] == [(0, 6), (1, 9)]
    assert bytes(offer.artifacts[0][1].read(0, 1 << 20)) == payload


def test_a_group_without_a_snapshot_of_its_own_has_none_to_offer() -> None:
    side = MetadataSide.make(3)
    with pytest.raises(faults.NoSnapshot):
        side.offer()
    side.disk.unlink(SNAPSHOT_FILE)
    with pytest.raises(faults.NoSnapshot):
        side.offer()


def test_a_damaged_snapshot_is_not_sent_on() -> None:
    """Planted: unverified bytes would get a valid trailer on the other node."""
    side = MetadataSide.make(9)
    payload = side.write_snapshot(6)
    at = payload.index(b"hash")  # decodes as well as before
    flip(side.disk, SNAPSHOT_FILE, at)
    with pytest.raises(faults.SnapshotUnreadable) as refusal:
        side.offer()
    assert isinstance(refusal.value.cause, Damaged)


def test_the_generation_is_read_from_the_file() -> None:
    side = MetadataSide.make(9)
    side.write_snapshot(5)
    side.write_snapshot(8)  # as a checkpoint whose directory sync failed leaves it
    assert side.offer().generation == 8


# --- metadata: receiving ----------------------------------------------------------------------------------------------


def receive(server_entries: int = 9, own: int = 4) -> tuple[MetadataSide, MetadataSide, object]:
    server, receiver = MetadataSide.make(server_entries), MetadataSide.make(own)
    server.write_snapshot(8)
    checked = fetch(server.driver, receiver.driver, server.offer())
    assert checked.fault is None, checked.fault
    return server, receiver, checked.content


def test_what_is_fetched_is_decoded_and_whole() -> None:
    server, _, content = receive()
    prepare = server.store.log.read_prepare(8)
    assert (content.op, content.checksum, content.table_frontier) == (8, prepare.checksum, 9)
    assert len(content.base_table) == 2 and len(content.table) == 3 and content.state.op == 8


def test_an_install_ends_in_the_state_that_was_sent() -> None:
    server, receiver, content = receive()
    installed = do(receiver.driver, InstallSnapshot(5, content))
    assert installed.fault is None
    assert receiver.disk.read(SNAPSHOT_FILE) == server.disk.read(SNAPSHOT_FILE), "one trailer, no more"
    rebased = do(receiver.driver, RebaseLog(6, content))
    log = receiver.store.log
    assert (rebased.first_op, log.head_op, log.head_checksum, log.synced_op) == (9, 8, content.checksum, 8)
    assert log.segment_count == 0
    following = server.store.log.read_prepare(9)
    receiver.store.append(following)
    op, again, anew = reopen_metadata(receiver.disk)
    assert (op, again.head_op, anew) == (8, 9, False)


@pytest.mark.parametrize("position", [0, 30, 90])
def test_a_damaged_artifact_is_refused(position: int) -> None:
    server, receiver = MetadataSide.make(9), MetadataSide.make(4)
    server.write_snapshot(8)
    offer = server.offer()
    data = bytearray(offer.artifacts[0][1]._data)
    data[position] ^= 1
    offer.artifacts[0][1]._data = bytes(data)
    checked = fetch(server.driver, receiver.driver, offer)
    assert isinstance(checked.fault, faults.ArtifactDamaged) and not checked.own


def test_a_state_that_does_not_decode_is_refused_before_anything_is_written() -> None:
    server, receiver = MetadataSide.make(9), MetadataSide.make(4)
    server.write_snapshot(8)
    offer = server.offer()
    from shardsrv.wire.sealed_body import artifact_checksum

    artifact, source = offer.artifacts[0]
    source._data = source._data[:-1]
    short = Artifact(artifact.kind, artifact.frontier, artifact.length - 1, artifact_checksum(source._data))
    before = receiver.disk.read(SNAPSHOT_FILE)
    checked = fetch(server.driver, receiver.driver, type(offer)(8, 9, ((short, source), offer.artifacts[1])))
    assert isinstance(checked.fault, DecodeError) and receiver.disk.read(SNAPSHOT_FILE) == before


def test_staging_goes_on_where_it_stopped() -> None:
    server, receiver = MetadataSide.make(9), MetadataSide.make(4)
    server.write_snapshot(8)
    offer = server.offer()
    artifacts = tuple(artifact for artifact, _ in offer.artifacts)
    do(receiver.driver, OpenStaging(1, artifacts))
    receiver.driver.staging.write(0, 10, bytes(offer.artifacts[0][1].read(10, 20)))
    receiver.driver.staging.write(0, 0, bytes(offer.artifacts[0][1].read(0, 10)))
    do(receiver.driver, CloseStaging(True))
    assert do(receiver.driver, OpenStaging(2, artifacts)).held == (30, 0)
    assert fetch(server.driver, receiver.driver, offer).fault is None
    do(receiver.driver, CloseStaging(True))
    fresh = type(receiver.driver)(receiver.disk, DIRECTORY.metadata, receiver.store.log, b"c" * 16)
    assert do(fresh, OpenStaging(3, artifacts)).held == tuple(artifact.length for artifact in artifacts)
    do(fresh, CloseStaging(False))
    assert receiver.disk.listdir(f"{DIRECTORY.metadata}/{INCOMING}") == []


def test_staged_bytes_of_another_artifact_are_not_taken() -> None:
    server, receiver = MetadataSide.make(9), MetadataSide.make(4)
    server.write_snapshot(8)
    assert fetch(server.driver, receiver.driver, server.offer()).fault is None
    server.write_snapshot(9)
    offer = server.offer()
    checked = fetch(server.driver, receiver.driver, offer)
    assert checked.fault is None and checked.content.op == 9


@pytest.mark.parametrize("number", range(1, 12))
def test_an_install_that_fails_has_changed_nothing_that_counts(number: int) -> None:
    _, receiver, content = receive()
    happened = fail_nth(receiver.disk, number, OSError(errno.EIO, "planted"))
    installed = do(receiver.driver, InstallSnapshot(5, content))
    failed = happened()
    receiver.disk.on_call = None
    assert failed == (installed.fault is not None)
    op, log, anew = reopen_metadata(receiver.disk)
    # After a failed sync of the directory the new file may be live, and it is whole (S2-38).
    assert (op, log.head_op, anew) in ((0, 4, False), (8, 8, True))
    if number < 5:
        assert op == 0


def test_a_log_that_cannot_be_replaced_is_fenced() -> None:
    _, receiver, content = receive()
    do(receiver.driver, InstallSnapshot(5, content))
    fail_nth(receiver.disk, 2, OSError(errno.EIO, "planted"))
    rebased = do(receiver.driver, RebaseLog(6, content))
    assert isinstance(rebased.fault, LogFenced) and receiver.store.log.fenced
    receiver.disk.on_call = None
    assert reopen_metadata(receiver.disk)[0] == 8


# --- a log below its snapshot -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "shape", "synced", "verdict"),
    [
        (5, Shape.NONE, 4, True),
        (5, Shape.SHORT, 3, True),
        (8, Shape.BAD_LAST, 7, True),
        (8, Shape.ZEROS, 0, True),
        (9, Shape.NONE, 4, False),
        (5, Shape.NONE, 5, False),
        (5, Shape.BAD_INSIDE, 4, False),
        (5, Shape.CHAIN, 4, False),
    ],
)
def test_which_logs_a_snapshot_supersedes(op: int, shape: Shape, synced: int, verdict: bool) -> None:
    from shardsrv.store.log_opening import LogFacts

    damage = LogDamaged("path", 0, op, None, None, shape.value)
    assert is_superseded(damage, ResumePoint(8, 1), LogFacts(synced_op=synced)) is verdict


def test_a_log_keeps_its_object_and_its_plans() -> None:
    _, receiver, content = receive()
    log = receiver.store.log
    log.append(receiver.chain.other(50))
    log.flush()
    plan = log.sync_plan()
    do(receiver.driver, InstallSnapshot(5, content))
    do(receiver.driver, RebaseLog(6, content))
    plan.run()
    log.mark_synced(plan)
    assert (log.head_op, log.synced_op, log.fenced) == (8, 8, None), "a sync of what is gone says nothing"


# --- partitions -------------------------------------------------------------------------------------------------------


def swap(server_entries: int = 12, own: int = 5, op: int | None = None) -> tuple[PartitionSide, PartitionSide, object]:
    server, receiver = PartitionSide.make(server_entries), PartitionSide.make(own)
    checked = fetch(server.driver, receiver.driver, server.offer(op))
    assert checked.fault is None, checked.fault
    return server, receiver, checked.content


def test_a_partition_is_offered_up_to_its_commit_point() -> None:
    side = PartitionSide.make(12)
    offer = side.offer(10)
    kinds = [artifact.kind for artifact, _ in offer.artifacts]
    assert kinds[0] == 4 and set(kinds[1:]) == {2} and len(kinds) > 3
    assert [artifact.frontier for artifact, _ in offer.artifacts[1:]] == [
        first for first, _, _ in side.store.log.segments()
    ]
    sizes = [size for _, _, size in side.store.log.segments()]
    assert [artifact.length for artifact, _ in offer.artifacts[1:-1]] == sizes[:-1]
    assert offer.artifacts[-1][0].length < sizes[-1], "nothing that is not committed travels"


def test_a_partition_without_an_entry_has_nothing_to_offer() -> None:
    """It was refused by whoever fetched it: a member that had lost an empty partition fetched six times first."""
    side = PartitionSide.make(0)
    with pytest.raises(faults.NoSnapshot):
        side.driver.load(0, PartitionPlane(1, 2, 3).checkpoint(0))


def test_what_retention_drops_stays_readable_for_an_offer() -> None:
    server, receiver = PartitionSide.make(12), PartitionSide.make(2)
    offer = server.offer()
    server.store.save()
    assert server.store.log.drop_below(8) > 0
    assert fetch(server.driver, receiver.driver, offer).fault is None
    do(server.driver, ReleaseOffer(offer))
    assert isinstance(do(server.driver, ReadChunk(1, offer, 1, 0, 10)).fault, DiskFault)


def test_a_group_that_ends_lets_go_of_every_file() -> None:
    server, receiver = PartitionSide.make(12), PartitionSide.make(2)
    before = len(server.disk._handles), len(receiver.disk._handles)
    offer = server.offer()
    server.offer()
    assert fetch(server.driver, receiver.driver, offer).fault is None
    server.driver.close()
    receiver.driver.close()
    assert (len(server.disk._handles), len(receiver.disk._handles)) == before


def test_a_partition_is_swapped() -> None:
    server, receiver, content = swap()
    assert do(receiver.driver, InstallSnapshot(5, content)).fault is None
    rebased = do(receiver.driver, RebaseLog(6, content))
    log = receiver.store.log
    assert rebased.fault is None and (rebased.first_op, log.head_op, log.synced_op) == (1, 12, 12)
    assert log.next_offset == server.store.log.next_offset
    assert receiver.store.ops() == server.store.ops()
    receiver.store.append(server.chain.send())
    receiver.store.sync()
    again, swapped = reopen_partition(receiver.disk)
    assert not swapped and again.log.head_op == 13 and again.checkpoint_op == 12


def test_a_swapped_log_serves_nothing_of_before_the_purge() -> None:
    server, receiver = PartitionSide.make(6), PartitionSide.make(2)
    for prepare in (server.chain.purge(), server.chain.send(3, 20), server.chain.send(1, 20)):
        server.store.append(prepare)
    server.store.sync()
    log = server.store.log
    captured = checkpoint_format.encode(
        checkpoint_format.PartitionCheckpoint(9, log.head_checksum, 7, 4, 0, 99, 1, 7, {}, {}, [])
    )
    checked = fetch(server.driver, receiver.driver, offer_of(server.driver, 9, captured))
    assert do(receiver.driver, InstallSnapshot(5, checked.content)).fault is None
    assert do(receiver.driver, RebaseLog(6, checked.content)).fault is None
    found = receiver.store.log
    assert found.first_op == 1, "the segments of before the purge were fetched too"
    assert (found.floor_op, found.next_offset) == (log.floor_op, log.next_offset) == (7, 4)
    assert found.locate_offset(0) == log.locate_offset(0)


def test_a_head_that_is_gone_is_no_hindrance() -> None:
    server, receiver = PartitionSide.make(12), PartitionSide.make(3)
    server.store.save()
    server.store.log.drop_below(8)
    first = server.store.log.first_op
    assert first > 4
    checked = fetch(server.driver, receiver.driver, server.offer())
    assert checked.fault is None
    do(receiver.driver, InstallSnapshot(5, checked.content))
    assert do(receiver.driver, RebaseLog(6, checked.content)).first_op == first
    again, _ = reopen_partition(receiver.disk)
    assert (again.log.first_op, again.log.head_op) == (first, 12)


def test_a_rotten_segment_is_not_offered() -> None:
    side = PartitionSide.make(12)
    first = side.store.log.segments()[0][0]
    flip(side.disk, f"{PARTITION}/{first:020}.seg", 700)
    with pytest.raises(faults.SnapshotUnreadable):
        side.offer()


def test_segments_that_do_not_fit_together_are_refused() -> None:
    server, receiver = PartitionSide.make(12), PartitionSide.make(2)
    offer = server.offer()
    without_one = type(offer)(offer.generation, offer.commit_op, (*offer.artifacts[:2], *offer.artifacts[3:]))
    checked = fetch(server.driver, receiver.driver, without_one)
    assert isinstance(checked.fault, faults.ContentMismatch)
    without_last = type(offer)(offer.generation, offer.commit_op, offer.artifacts[:-1])
    assert isinstance(fetch(server.driver, receiver.driver, without_last).fault, faults.ContentMismatch)


def test_a_segment_that_is_not_the_one_of_the_manifest_is_refused() -> None:
    """Whole, chained, and still not what was promised."""
    server, receiver = PartitionSide.make(12), PartitionSide.make(2)
    offer = server.offer()
    artifact, source = offer.artifacts[1]
    other = Artifact(artifact.kind, artifact.frontier, artifact.length, artifact.checksum ^ 1)
    checked = fetch(
        server.driver, receiver.driver, type(offer)(12, 12, (offer.artifacts[0], (other, source), *offer.artifacts[2:]))
    )
    assert isinstance(checked.fault, faults.ArtifactDamaged) and not checked.own


def test_what_another_transfer_left_in_the_staging_goes() -> None:
    server, receiver = PartitionSide.make(12), PartitionSide.make(2)
    offer = server.offer()
    assert fetch(server.driver, receiver.driver, offer).fault is None
    do(receiver.driver, CloseStaging(True))
    names = receiver.disk.listdir(f"{PARTITION}/{INCOMING}")
    kept = type(offer)(12, 12, (offer.artifacts[0], offer.artifacts[-1]))
    do(receiver.driver, OpenStaging(1, tuple(artifact for artifact, _ in kept.artifacts)))
    assert len(names) > 3 and len(receiver.disk.listdir(f"{PARTITION}/{INCOMING}")) == 2


def test_a_staged_file_is_as_long_as_its_artifact() -> None:
    """What is behind it would be renamed into the log with it."""
    server, receiver = PartitionSide.make(12), PartitionSide.make(2)
    longer, shorter = server.offer(12), server.offer(11)
    assert longer.artifacts[-1][0].length > shorter.artifacts[-1][0].length
    assert fetch(server.driver, receiver.driver, longer).fault is None
    do(receiver.driver, CloseStaging(True))
    assert fetch(server.driver, receiver.driver, shorter).fault is None
    assert (
        receiver.disk.size(receiver.driver.staging.path(len(shorter.artifacts) - 1)) == shorter.artifacts[-1][0].length
    )


def test_names_are_durable_in_both_directories_before_a_commitment_goes() -> None:
    _, receiver, content = swap()
    do(receiver.driver, InstallSnapshot(5, content))
    calls: list[tuple[str, str]] = []
    receiver.disk.after_call = lambda call: calls.append((call.name, call.path))
    finish_swap(receiver.disk, PARTITION, lambda payload: calls.append(("checkpoint", "")))
    incoming = f"{PARTITION}/{INCOMING}"
    gone = calls.index(("unlink", f"{incoming}/{READY}"))
    renamed = max(number for number, (name, _) in enumerate(calls) if name == "rename")
    for directory in (PARTITION, incoming):
        assert renamed < calls.index(("fsync_dir", directory), renamed) < calls.index(("checkpoint", "")) < gone
    assert calls[-1] == ("fsync_dir", incoming)


def test_a_segment_of_another_partition_is_refused() -> None:
    server, receiver = PartitionSide.make(12), PartitionSide.make(2)
    offer = server.offer()
    receiver.driver._log.identity = type(receiver.driver._log.identity)(b"another cluster!", 1, 2)
    assert fetch(server.driver, receiver.driver, offer).fault is not None


def test_a_swap_that_was_not_committed_is_no_swap() -> None:
    _, receiver, _ = swap()
    before = receiver.store.ops()
    again, swapped = reopen_partition(receiver.disk)
    assert not swapped and again.ops() == before


def test_a_commitment_that_fails_is_taken_back() -> None:
    for number in range(1, 12):
        _, receiver, content = swap()
        happened = fail_nth(receiver.disk, number, OSError(errno.EIO, "planted"))
        installed = do(receiver.driver, InstallSnapshot(5, content))
        failed = happened()
        receiver.disk.on_call = None
        assert failed == (installed.fault is not None)
        if failed:
            assert not receiver.disk.exists(f"{PARTITION}/{INCOMING}/{READY}"), number
            receiver.store.append(receiver.chain.send())
            receiver.store.sync()
            again, swapped = reopen_partition(receiver.disk)
            assert not swapped and again.log.head_op == 6, "the group went on from the state it had"


def test_a_commitment_that_cannot_be_taken_back_fences() -> None:
    _, receiver, content = swap()

    def fail_directory(call: object) -> None:
        if call.name == "fsync_dir" and receiver.disk.exists(f"{PARTITION}/{INCOMING}/{READY}"):
            raise OSError(errno.EIO, "planted")
        if call.name == "unlink":
            raise OSError(errno.EIO, "planted")

    receiver.disk.on_call = fail_directory
    installed = do(receiver.driver, InstallSnapshot(5, content))
    receiver.disk.on_call = None
    assert installed.fault is not None and receiver.store.log.fenced


def test_a_swap_may_be_finished_again() -> None:
    server, receiver, content = swap()
    do(receiver.driver, InstallSnapshot(5, content))
    for number in range(1, 40):
        disk = receiver.disk.copy()
        happened = fail_nth(disk, number, OSError(errno.EIO, "planted"))
        try:
            finish_swap(disk, PARTITION, Checkpoint(disk, PARTITION).write)
        except DiskFault:
            assert happened()
        disk.on_call = None
        again, _ = reopen_partition(disk)
        assert again.ops() == server.store.ops() and again.checkpoint_op == 12
        if not happened():
            return
    raise AssertionError("the swap never ended")


def test_a_damaged_commitment_is_refused_by_name() -> None:
    _, receiver, content = swap()
    do(receiver.driver, InstallSnapshot(5, content))
    ready = f"{PARTITION}/{INCOMING}/{READY}"
    flip(receiver.disk, ready, 10)
    with pytest.raises(Damaged) as refusal:
        reopen_partition(receiver.disk)
    assert refusal.value.path == ready


def test_names_in_a_commitment_are_names_of_segments() -> None:
    disk = SimDisk()
    disk.put(f"{PARTITION}/{INCOMING}/x", b"")
    commit_swap(disk, PARTITION, [], b"")
    assert finish_swap(disk.copy(), PARTITION, lambda payload: None)
    disk.put(f"{PARTITION}/{INCOMING}/evil", b"")
    commit_swap(disk, PARTITION, ["evil"], b"")
    with pytest.raises(Damaged):
        finish_swap(disk, PARTITION, lambda payload: None)
    retract_swap(disk, PARTITION)
    assert not finish_swap(disk, PARTITION, lambda payload: None)


def test_what_is_buffered_goes_with_the_log_that_is_replaced() -> None:
    _, receiver, content = receive()
    log = receiver.store.log
    log.append(receiver.chain.other())
    reload_log(log, ResumePoint(content.op, content.checksum), lambda: remove_segments(receiver.disk, log.directory))
    assert (log.head_op, log.pending_bytes) == (8, 0)
    log.flush()
    assert log.head_op == 8 and not log.dirty


def test_an_empty_partition_cannot_be_offered_twice_under_one_name() -> None:
    from shardsrv.errors import OurFault

    side = PartitionSide.make(1)
    with pytest.raises(OurFault):
        side.driver.staging.open((Artifact(2, 1, 1, 1), Artifact(2, 1, 2, 2)))


def test_offers_of_ours_do_not_fault() -> None:
    side = PartitionSide.make(4)
    offer = offer_of(side.driver, 4, side.captured(4))
    assert offer.total_length == sum(artifact.length for artifact, _ in offer.artifacts)
