"""`inspect` and `verify`: what they say of a whole, a torn and a damaged data directory, and that they change
nothing."""

from __future__ import annotations

import fcntl
import io
import json
from pathlib import Path

import attrs
import msgpack
import pytest

from shardsrv.store.boot import BootEntry, BootRecord, kernel_boot_id
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.disk import OsDisk
from shardsrv.store.group_key import GroupKey
from shardsrv.store.groups import GroupTable
from shardsrv.store.inspect import inspect
from shardsrv.store.layout import DataDirectory
from shardsrv.store.log import GroupIdentity, PrepareLog
from shardsrv.store.snapshot import write_snapshot
from shardsrv.store.superblock import Superblock
from shardsrv.store.verify import verify
from shardsrv.vsr.state import VsrState
from shardsrv.wire.constants import METADATA_GROUP
from tests.support.entries import CLUSTER
from tests.support.logs import GROUP, IDENTITY, Chain, fingerprint, segment_files

KEY = GroupKey(0, 0, GROUP, IDENTITY.created_revision)
STATE = VsrState(CLUSTER, 0, 1, view=2, log_view=2)


@pytest.fixture
def layout(tmp_path: Path) -> DataDirectory:
    """Metadata with a snapshot and a short log, one partition of three segments, everything stopped cleanly."""
    disk, layout = OsDisk(), DataDirectory(str(tmp_path))
    for directory in (layout.metadata_log, layout.shards, layout.partition(*KEY)):
        disk.mkdir(directory)
    payload = msgpack.packb([1, 10, 0, 0, 20, [1, 2], None, [3]])
    checksum = write_snapshot(disk, layout.metadata, "snapshot.bin", payload)
    Superblock(disk, layout.metadata).write(attrs.evolve(STATE, checkpoint_checksum=checksum).encode())
    log, _ = PrepareLog.open(disk, layout.metadata_log, GroupIdentity(CLUSTER, METADATA_GROUP, 0), segment_size=1 << 20)
    log.close()

    chain = Chain()
    log, _ = PrepareLog.open(disk, layout.partition(*KEY), IDENTITY, segment_size=2000)
    made = []
    for _ in range(8):
        made.append(chain.send(2, 100))
        log.append(made[-1])
        log.flush()
    plan = log.sync_plan()
    plan.run()
    log.mark_synced(plan)
    table = GroupTable.open(disk, layout.group_table(1))
    table.write({KEY: STATE.encode()})
    table.close()
    fields = [1, 3, made[2].checksum, made[2].timestamp, 6, 0, 6, 900, 0, [], [], []]
    Checkpoint(disk, layout.partition(*KEY)).write(msgpack.packb(fields))
    entry = BootEntry(KEY, log.synced_op, log.synced_checksum, log.head_op)
    record = BootRecord.create(disk, layout.boot_record(1), kernel_boot_id(), 1, [entry])
    record.mark_clean()
    record.close()
    log.close()
    return layout


def run(tool, layout: DataDirectory) -> tuple[int, dict]:
    """Exit code and document; the bytes of the directory are the same before and after."""
    before = fingerprint(Path(layout.root))
    text, out = io.StringIO(), io.StringIO()
    code = tool(layout.root, False, text)
    assert (tool(layout.root, True, out), text.getvalue() != "") == (code, True)
    assert fingerprint(Path(layout.root)) == before
    return code, json.loads(out.getvalue())


def test_a_whole_directory_is_clean(layout: DataDirectory) -> None:
    code, found = run(verify, layout)
    assert (code, found["verdict"], found["findings"], found["lock_held"]) == (0, "clean", [], False)
    log = found["partitions"][0]["log"]
    assert (log["first_op"], log["last_op"], log["next_offset"], log["synced_op"]) == (1, 8, 16, 8)
    assert len(log["segments"]) > 2


def test_inspect_shows_every_part(layout: DataDirectory) -> None:
    code, found = run(inspect, layout)
    assert code == 0
    assert found["metadata"]["superblock"]["state"]["view"] == 2
    assert found["metadata"]["snapshot"]["sections"] == ["list of 2", "None", "list of 1"]
    assert found["partitions"][0]["key"] == list(KEY)
    assert found["partitions"][0]["checkpoint"]["fields"]["next_offset"] == 6
    assert found["boot"]["1"]["clean"] is True
    assert found["groups"]["1"]["records"] == 1
    out = io.StringIO()
    inspect(layout.root, False, out)
    assert f"partition  0/0/{GROUP} revision {IDENTITY.created_revision}" in out.getvalue()


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    assert inspect(str(tmp_path), False) == verify(str(tmp_path), True) == 3


def test_a_torn_tail_is_told_apart_from_damage(layout: DataDirectory) -> None:
    disk, directory = OsDisk(), Path(layout.partition(*KEY))
    BootRecord.create(disk, layout.boot_record(1), kernel_boot_id(), 2, [BootEntry(KEY, 5, 0, 8)]).close()
    last = segment_files(directory)[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    code, found = run(verify, layout)
    assert (code, found["findings"][0]["weight"], found["findings"][0]["path"]) == (1, "torn", str(last))
    first = segment_files(directory)[0]
    data = bytearray(first.read_bytes())
    data[700] ^= 1
    first.write_bytes(data)
    code, found = run(verify, layout)
    assert (code, found["verdict"], found["findings"][0]["path"]) == (2, "damaged", str(first))


@pytest.mark.parametrize("part", ["superblock", "snapshot", "checkpoint", "groups", "segment header", "index"])
def test_damage_of_any_part_is_found(layout: DataDirectory, part: str) -> None:
    directory = Path(layout.partition(*KEY))
    path, position = {
        "superblock": (Path(layout.metadata) / "superblock.a", 40),
        "snapshot": (Path(layout.snapshot), 3),
        "checkpoint": (directory / "checkpoint.a", 40),
        "groups": (Path(layout.group_table(1)), 4096 + 60),
        "segment header": (segment_files(directory)[1], 50),
        "index": (sorted(directory.glob("*.idx"))[0], 40),
    }[part]
    data = bytearray(path.read_bytes())
    data[position] ^= 8
    path.write_bytes(data)
    code, found = run(verify, layout)
    if part == "index":
        assert code == 0, "an index is never needed"
        return
    assert code == 2
    assert any(str(path.parent) in finding["path"] for finding in found["findings"])


def test_a_checkpoint_of_another_history_and_a_lost_record_are_damage(layout: DataDirectory) -> None:
    disk = OsDisk()
    Checkpoint(disk, layout.partition(*KEY)).write(msgpack.packb([1, 3, 77, 0, 6, 0, 6, 900, 0, [], [], []]))
    code, found = run(verify, layout)
    assert code == 2 and any("op 3" in finding["text"] for finding in found["findings"])
    GroupTable.open(disk, layout.group_table(1)).write({KEY: None})
    _, found = run(verify, layout)
    assert any("without a record" in finding["text"] for finding in found["findings"])


def test_a_superblock_ahead_of_its_snapshot_is_damage(layout: DataDirectory) -> None:
    Superblock(OsDisk(), layout.metadata).write(attrs.evolve(STATE, checkpoint_op=9).encode())
    code, found = run(verify, layout)
    assert code == 2
    assert "checkpoint_op=9" in found["findings"][0]["text"]


def test_a_held_lock_is_told(layout: DataDirectory) -> None:
    with open(layout.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(verify, layout)[1]["lock_held"] is True
    assert run(verify, layout)[1]["lock_held"] is False
