"""Deletion of a partition beside a checkpoint of it: the checkpoint writes into the directory that is to go."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.shards.storage import PartitionStorage, key_of
from shardsrv.store.disk import OsDisk
from shardsrv.store.layout import DataDirectory

IDENTITY = PartitionIdentity(1, 2, 0, 7)


def storage_in(root: Path) -> tuple[Any, Path]:
    """A storage without anything around it, and the directory of its partition."""
    directory = DataDirectory(str(root))
    storage: Any = PartitionStorage(SimpleNamespace(disk=OsDisk(), directory=directory))
    storage._boot = SimpleNamespace(remove=lambda key: None)
    partition = Path(directory.partition(*key_of(IDENTITY)))
    partition.mkdir(parents=True)
    return storage, partition


def test_files_go_when_the_checkpoint_that_is_on_its_way_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        storage, partition = storage_in(tmp_path)
        group: Any = SimpleNamespace(identity=IDENTITY)
        storage._checkpointing = [group, SimpleNamespace(identity=PartitionIdentity(1, 2, 1, 7))]
        storage._checkpoint_ended = lambda one: (storage._checkpointing.remove(one), storage._checkpoint_done.set())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.delete, [key_of(IDENTITY)])
            await trio.testing.wait_all_tasks_blocked(cushion=0.2)  # a removal would be over by then
            assert partition.exists()
            (partition / "checkpoint.a.tmp").touch()
            storage._checkpoint_ended(group)
        assert not partition.exists()

    trio.run(main)


def test_a_checkpoint_of_a_closed_group_waits_for_no_sync(tmp_path: Path) -> None:
    async def main() -> None:
        storage, _ = storage_in(tmp_path)
        plane = SimpleNamespace(applied_op=9, purge_op=0, first_offset=0, checkpoint=lambda checksum: b"never written")
        log = SimpleNamespace(synced_op=8, segments=list)
        group: Any = SimpleNamespace(plane=plane, log=log, applied_checksum=1, fault=None, closed=True)
        group.take_snapshots, group.leave_snapshots = lambda: True, lambda: None
        with trio.fail_after(5):
            await storage.checkpoint(group)

    trio.run(main)
