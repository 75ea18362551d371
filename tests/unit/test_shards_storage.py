"""Deletion of a partition: beside a checkpoint, which writes into the directory that is to go, and cut short."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.shards import storage as storage_module
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


def test_a_removal_that_ended_half_way_leaves_no_log_and_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: str) -> None:
        next(Path(path).glob("*.seg")).unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def main() -> None:
        storage, partition = storage_in(tmp_path)
        for name in ("1.seg", "2.seg"):
            (partition / name).touch()
        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(storage_module, "_remove_tree", half)
            await storage.delete([key_of(IDENTITY)])
        assert not partition.exists(), "a start would take the half of it for a log"
        assert [len(list(each.iterdir())) for each in partition.parent.iterdir()] == [1]
        await storage.delete([key_of(IDENTITY)])
        assert not list(partition.parent.iterdir())

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
