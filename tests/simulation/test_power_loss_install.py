"""Power loss and kills while a transferred state takes the place of the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs
import pytest

from shardsrv.plane.partition import checkpoint as checkpoint_format
from shardsrv.sim.disk import SimDisk
from shardsrv.store.disk import write_all
from shardsrv.store.incoming import commit_swap, finish_swap, make_incoming
from shardsrv.store.layout import SNAPSHOT
from shardsrv.store.log import ResumePoint
from shardsrv.store.log_reload import reload_log, remove_segments
from shardsrv.store.outcomes import allowed
from shardsrv.store.snapshot import write_snapshot
from tests.support.durable import (
    DIRECTORY,
    FIRST_BOOT,
    KEY,
    LATER_BOOT,
    PARTITION,
    Metadata,
    Partition,
    snapshot,
)
from tests.support.logs import Chain
from tests.support.power_loss import PowerLoss

pytestmark = pytest.mark.usefixtures("small_tables")
SEGMENT = 1000
HEAD = 14


@pytest.fixture
def limit(samples: int) -> int:
    return samples or 12


def both_ends(disk: SimDisk, judge: Callable[[SimDisk, bytes], str], limit: int) -> PowerLoss:
    """Judges a power loss and a kill at every call; after the kill, a power loss once more."""
    run = PowerLoss(disk, lambda after: judge(after, LATER_BOOT), limit)

    def point() -> None:
        run.point()
        killed = disk.copy()
        killed.kill()
        found = judge(killed, FIRST_BOOT)
        for after in killed.legal_outcomes(2):
            assert judge(after, LATER_BOOT) == found, "what a restart believed is durable"

    disk.after_call = lambda _: point()
    return run


@pytest.mark.parametrize("retained", [1, 7])
@pytest.mark.parametrize("synced", [True, False])
def test_install_of_a_fetched_partition(retained: int, synced: bool, limit: int) -> None:
    """The fetched log goes on from op 4 otherwise than the own one did, and may begin later."""
    peer = Partition.open(SimDisk(), segment_size=SEGMENT)
    chain = Chain()
    common = [chain.send(1, 100) for _ in range(4)]
    peer.append(*common, *[chain.send(1, 120) for _ in range(HEAD - 4)])
    peer.sync()
    peer.save()
    theirs = peer.ops()
    firsts = [first for first, _, _ in peer.log.segments() if first >= retained]
    payload = checkpoint_format.encode(
        checkpoint_format.PartitionCheckpoint(HEAD, peer.log.head_checksum, 1, HEAD, 0, 0, 0, 0, {1: 9}, {}, [])
    )

    disk = SimDisk()
    own = Partition.open(disk, segment_size=SEGMENT)
    mine = Chain(common[-1].checksum, 5, 4)
    own.append(*common, mine.other(300), mine.other(300))
    if synced:
        own.sync()
    ours, installed, acked = own.ops(), [False], [0]

    def judge(after: SimDisk, boot_id: bytes) -> str:
        found = Partition.open(after, boot_id, segment_size=SEGMENT)
        ops = found.ops()
        if found.checkpoint_op == HEAD:
            assert found.log.head_op >= max(HEAD, acked[0])
            assert {op: ops[op] for op in ops if op <= HEAD} == {op: theirs[op] for op in theirs if op >= min(ops)}
            assert min(ops) <= max(firsts[0], HEAD)
            return "the fetched state"
        assert not installed[0] and found.checkpoint_op == 0
        assert ops.items() <= ours.items() and (ops == ours or not synced)
        return "the state before"

    run = both_ends(disk, judge, limit)
    incoming = make_incoming(disk, PARTITION)
    names = []
    for first in firsts:
        names.append(f"{first:020}.seg")
        data = peer.disk.read(f"{PARTITION}/{names[-1]}")
        handle = disk.open_write(f"{incoming}/{names[-1]}", create=True)
        write_all(disk, handle, [data], 0, len(data))
        disk.close(handle)
    commit_swap(disk, PARTITION, names, payload)
    resume = ResumePoint(HEAD, peer.log.head_checksum, HEAD)
    reload_log(own.log, resume, lambda: _swap(disk, own))
    installed[0] = True
    own.boot.update(KEY, own.log.synced_op, own.log.synced_checksum, own.log.head_op)
    own.append(Chain(own.log.head_checksum, HEAD + 1, HEAD).send(1, 50))
    own.sync()
    acked[0] = HEAD + 1
    run.end()
    assert set(run.outcomes) == set(allowed("install of a fetched partition")), run.outcomes


def _swap(disk: SimDisk, own: Partition) -> None:
    assert finish_swap(disk, PARTITION, own.checkpoint.write)


@pytest.mark.parametrize("op", [20, 9])
def test_install_of_a_fetched_snapshot(op: int, limit: int) -> None:
    """Snapshot, pair, then the log is begun anew behind it. The own log holds 6 entries above its checkpoint."""
    disk = SimDisk()
    metadata = Metadata.open(disk, segment_size=600)
    chain = Chain()
    metadata.append(*[chain.other(60) for _ in range(3)])
    metadata.save()
    metadata.append(*[chain.other(60) for _ in range(3)])
    ours, checksum, installed, acked = metadata.ops(), 0x1234_5678, [False], [0]

    def judge(after: SimDisk, boot_id: bytes) -> str:
        found = Metadata.open(after, boot_id, segment_size=600)
        ops = found.ops()
        if found.snapshot_op == op:
            assert all(each > op for each in ops) or found.state.checkpoint_op == op or ops.items() <= ours.items()
            assert max(found.log.head_op, op) >= acked[0]
            return "the fetched snapshot" + (" and its pair" if found.state.checkpoint_op == op else ", the pair lags")
        assert not installed[0] and found.snapshot_op == 3 and ops == ours
        return "the state before"

    run = both_ends(disk, judge, limit)
    written = write_snapshot(disk, DIRECTORY.metadata, SNAPSHOT, snapshot(op, checksum))
    state = attrs.evolve(metadata.state, checkpoint_op=op, checkpoint_checksum=written)
    metadata.superblock.write(state.encode())
    reload_log(metadata.log, ResumePoint(op, checksum), lambda: remove_segments(disk, DIRECTORY.metadata_log))
    installed[0] = True
    metadata.append(Chain(checksum, op + 1).other(60))
    acked[0] = op + 1
    run.end()
    outcomes: Counter[str] = run.outcomes
    assert set(outcomes) == set(allowed("install of a fetched snapshot")), outcomes
