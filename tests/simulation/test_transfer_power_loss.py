"""Power loss during both installs of a state transfer: at every call, every disk that may be left (all, or samples)
starts as the state before or as the state that was sent, whole, and never as something between."""

from __future__ import annotations

import attrs
import pytest

from shardsrv.sim.disk import SimDisk
from shardsrv.vsr.transfer_effects import CloseStaging, InstallSnapshot, RebaseLog
from tests.support.power_loss import PowerLoss
from tests.support.transfer_disks import (
    MetadataSide,
    PartitionSide,
    do,
    fetch,
    reopen_metadata,
    reopen_partition,
)

pytestmark = pytest.mark.usefixtures("small_tables")
OLD, NEW = "old", "new"


@pytest.fixture
def limit(samples: int) -> int:
    return samples or 24


@attrs.define
class Progress:
    """What a start may find: both before the end of the install, only the new state after it."""

    done: bool = False
    acknowledged: bool = False


@pytest.mark.parametrize("own", [0, 4, 7])
def test_metadata_install(own: int, limit: int) -> None:
    server, receiver = MetadataSide.make(9), MetadataSide.make(own)
    server.write_snapshot(8)
    content = fetch(server.driver, receiver.driver, server.offer()).content
    following = server.store.log.read_prepare(9)
    held, progress = receiver.store.ops(), Progress()

    def judge(after: SimDisk) -> str:
        op, log, anew = reopen_metadata(after)
        if op == 0:
            assert not progress.done and not anew
            assert {prepare.op: prepare.checksum for prepare in log.scan(1)} == held
            return OLD
        assert op == 8 and log.head_op == 8 and log.head_checksum == content.checksum
        log.append(following)
        log.flush()
        again = reopen_metadata(after)
        assert again[0] == 8 and again[1].head_op == 9
        return NEW

    run = PowerLoss(receiver.disk, judge, limit)
    assert do(receiver.driver, InstallSnapshot(1, content)).fault is None
    state = attrs.evolve(receiver.store.state, checkpoint_op=8, checkpoint_checksum=_hash(content))
    receiver.store.superblock.write(state.encode())
    assert do(receiver.driver, RebaseLog(2, content)).fault is None
    progress.done = True
    do(receiver.driver, CloseStaging(False))
    run.end()
    assert set(run.outcomes) == {OLD, NEW} and run.points > 10


def _hash(content: object) -> int:
    from shardsrv._core import xxh3

    return xxh3(content.source)


@pytest.mark.parametrize(("own", "dropped"), [(0, 0), (5, 0), (5, 8), (9, 8)])
def test_partition_install(own: int, dropped: int, limit: int) -> None:
    server, receiver = PartitionSide.make(12), PartitionSide.make(own)
    if dropped:
        server.store.save()
        server.store.log.drop_below(dropped)
    expected = server.store.ops()
    content = fetch(server.driver, receiver.driver, server.offer()).content
    held, progress = receiver.store.ops(), Progress()
    following = server.chain.send()

    def judge(after: SimDisk) -> str:
        found, swapped = reopen_partition(after)
        if found.checkpoint_op == 0:
            assert not progress.done and not swapped
            assert found.ops() == held
            return OLD
        assert found.checkpoint_op == 12
        ops = found.ops()
        later = ops.pop(13, None)
        assert ops == expected
        assert later == following.checksum or not progress.acknowledged, "no start goes back behind what came later"
        assert not reopen_partition(after)[1], "a swap is finished once"
        return NEW

    run = PowerLoss(receiver.disk, judge, limit)
    assert do(receiver.driver, InstallSnapshot(1, content)).fault is None
    assert do(receiver.driver, RebaseLog(2, content)).fault is None
    progress.done = True
    do(receiver.driver, CloseStaging(False))
    receiver.store.append(following)
    receiver.store.sync()
    progress.acknowledged = True
    run.end()
    assert set(run.outcomes) == {OLD, NEW} and run.points > 15


def test_power_loss_while_staging_leaves_the_old_state(limit: int) -> None:
    server, receiver = PartitionSide.make(12), PartitionSide.make(5)
    held = receiver.store.ops()

    def judge(after: SimDisk) -> str:
        found, swapped = reopen_partition(after)
        assert not swapped and found.ops() == held and found.checkpoint_op == 0
        return OLD

    run = PowerLoss(receiver.disk, judge, min(limit, 32), stride=3)
    assert fetch(server.driver, receiver.driver, server.offer()).fault is None
    run.end()
    assert run.outcomes[OLD] > 10
