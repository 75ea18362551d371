"""Checkpoints of the metadata group on shard 0: the order of the three phases, and what a failed one leaves (S0-40 to
S0-42)."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from shardsrv.plane.metadata import snapshot as snapshot_format
from shardsrv.plane.metadata.state import MetadataState
from shardsrv.shards.checkpointer import MetadataCheckpointer
from shardsrv.store.disk import OsDisk
from shardsrv.store.faults import WriteFailed
from shardsrv.store.layout import DataDirectory
from shardsrv.store.snapshot import read_snapshot
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.state import VsrState

OP = 9
SECONDS = 30
"""How long a round may take before a test gives up; no test waits for it."""


class FailingDisk(OsDisk):
    """A disk on which one kind of call fails."""

    fails = ""

    def rename(self, source: str, target: str) -> None:
        self._step("rename")
        super().rename(source, target)

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir")
        super().fsync_dir(path)

    def _step(self, name: str) -> None:
        if self.fails == name:
            raise OSError(errno.EIO, "planted")


class Host:
    """Shard 0 as a checkpointer sees it; ``done`` lists what it was asked for, in order, ``lines`` what was logged."""

    def __init__(self, root: Path) -> None:
        self.disk = FailingDisk()
        self.directory = DataDirectory(str(root))
        self.disk.mkdir(self.directory.metadata)
        self.done: list[str] = []
        self.lines: list[str] = []
        self.asked = trio.Event()
        self.drop_fails = False
        self.pump = SimpleNamespace(step=lambda act, *arguments: act(*arguments))
        self.log = SimpleNamespace(
            info=lambda event, **_: self.lines.append(event), error=lambda event, **_: self.lines.append(event)
        )
        self.group = SimpleNamespace(
            replica=SimpleNamespace(table=ClientTable(4), member=None, commit_min=OP, in_flight=0, record=self._record),
            plane=SimpleNamespace(encode_snapshot=self._encode),
            log=SimpleNamespace(drop_plan=self._drop_plan),
            applied_checksum=5,
            appended_bytes=0,
            carry_out=lambda effects: None,
            take_snapshots=lambda: True,
            leave_snapshots=lambda: None,
        )

    def _encode(self, checksum: int, created_at: int, table: list[Any]) -> bytes:
        state = MetadataState.initial("root", "hash")
        return snapshot_format.encode(
            state, op=OP, checksum=checksum, timestamp=1, created_at=created_at, client_table=table
        )

    def _record(self, *, checkpoint_op: int, checkpoint_checksum: int) -> list[Any]:
        found = read_snapshot(self.disk, self.directory.snapshot)
        assert found is not None and found.checksum == checkpoint_checksum, "the pair is that of the file on disk"
        self.done.append(f"pair {checkpoint_op}")
        self.asked.set()
        return []

    def _drop_plan(self, op: int) -> Any:
        self.done.append(f"drop {op}")
        return SimpleNamespace(run=self._drop)

    def _drop(self) -> None:
        if self.drop_fails:
            raise WriteFailed(self.directory.metadata_log, "unlink", 0)


def run(host: Host) -> None:
    """One round; its record becomes durable behind that of an earlier checkpoint."""
    checkpointer = MetadataCheckpointer(host, 0, log_bytes=1, interval=1000.0)  # type: ignore[arg-type]

    async def superblock() -> None:
        await host.asked.wait()
        for op in (0, OP - 1, OP):
            checkpointer.state_recorded(VsrState(bytes(16), 0, 1, checkpoint_op=op))
            await trio.testing.wait_all_tasks_blocked()
            assert ("drop 9" in host.done) == (op == OP), "the log goes when this pair is durable, and not before"

    async def main() -> None:
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(superblock)
                await checkpointer.round()
                if not host.asked.is_set():
                    nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_snapshot_then_its_pair_then_the_log(tmp_path: Path) -> None:
    host = Host(tmp_path)
    run(host)
    assert host.done == ["pair 9", "drop 9"] and host.lines == ["metadata checkpoint"]


@pytest.mark.parametrize("step", ["rename", "fsync_dir"])
def test_a_snapshot_that_fails_leaves_pair_and_log(tmp_path: Path, step: str) -> None:
    """S0-42. After a failed sync of the directory the new file may be live: who needs its op reads it (S2-38)."""
    host = Host(tmp_path)
    host.disk.fails = step
    run(host)
    assert host.done == [] and host.lines == ["metadata checkpoint failed"]
    found = read_snapshot(OsDisk(), host.directory.snapshot)
    assert (found is not None) == (step == "fsync_dir")


def test_a_log_that_cannot_be_dropped_is_told_and_stays(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.drop_fails = True
    run(host)
    assert host.done == ["pair 9", "drop 9"] and host.lines == ["old metadata log could not be removed"]
