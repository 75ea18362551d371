"""Power loss while records are written: at every call, every disk that may be left (all, or samples) is recovered.

The outcomes are those of `shardsrv.store.outcomes`, as docs/recovery.md prints them; each of them must occur.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from shardsrv.sim.disk import SimDisk
from shardsrv.store.boot import BootEntry, BootRecord, merge_boot_files, read_boot_files
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.group_key import GroupKey
from shardsrv.store.groups import GroupTable, consolidate, merge_tables, nameless, read_tables
from shardsrv.store.outcomes import NEW, OLD, POWER_LOSS, allowed
from shardsrv.store.record import Empty, Present
from shardsrv.store.slots import SlotFiles
from shardsrv.store.snapshot import read_snapshot, write_snapshot
from shardsrv.store.superblock import Superblock
from tests.support.durable import KEY
from tests.support.power_loss import PowerLoss

pytestmark = pytest.mark.usefixtures("small_tables")


def check(change: str, found: Counter[str]) -> None:
    """Every outcome is one of the table, and each of the table occurred."""
    assert set(found) == set(allowed(change)), (change, found)


@pytest.fixture
def limit(samples: int) -> int:
    return samples or 48


# --- slots and snapshots ---------------------------------------------------------------------------------------------


@attrs.define
class Written:
    """Records written one after another: number ``done`` is acknowledged, number ``going`` is being written."""

    done: int = 0
    going: int = 0

    def name(self, found: int) -> str:
        assert self.done <= found <= self.going
        return NEW if found == self.going > 0 else OLD


def payload(number: int, length: int) -> bytes:
    return number.to_bytes(4, "little") * (length // 4)


@pytest.mark.parametrize(
    ("change", "store", "length"),
    [
        ("superblock write", Superblock, 92),
        ("partition checkpoint write", Checkpoint, 3000),
        ("partition checkpoint write", Checkpoint, 48),
    ],
)
def test_slots(change: str, store: Callable[[SimDisk, str], SlotFiles], length: int, limit: int) -> None:
    disk, written = SimDisk(), Written()
    disk.put("/d/other", b"")

    def judge(after: SimDisk) -> str:
        outcome = store(after, "/d").read()
        if isinstance(outcome, Empty):
            return written.name(0)
        assert isinstance(outcome, Present)
        number = int.from_bytes(outcome.payload[:4], "little")
        assert outcome.payload == payload(number, length) and outcome.sequence in (number, number + 1)
        store(after, "/d").write(b"goes on")
        return written.name(number)

    run = PowerLoss(disk, judge, limit)
    slots = store(disk, "/d")
    for number in range(1, 6):
        written.going = number
        slots.write(payload(number, length))
        written.done = number
        run.point()
    run.end()
    check(change, run.outcomes)


def test_snapshot(limit: int) -> None:
    disk, written = SimDisk(), Written()
    disk.put("/d/other", b"")

    def judge(after: SimDisk) -> str:
        found = read_snapshot(after, "/d/snapshot.bin")
        number = 0 if found is None else int.from_bytes(found.payload[:4], "little")
        assert found is None or found.payload == payload(number, 5000)
        return written.name(number)

    run = PowerLoss(disk, judge, limit)
    for number in range(1, 5):
        written.going = number
        write_snapshot(disk, "/d", "snapshot.bin", payload(number, 5000))
        written.done = number
        run.point()
    run.end()
    check("snapshot write", run.outcomes)


# --- group tables ----------------------------------------------------------------------------------------------------


def key_of(number: int) -> GroupKey:
    return GroupKey(1, 1, number, 10 + number)


def states(disk: SimDisk, deleted: GroupKey | None = None) -> dict[GroupKey, int]:
    """The number in the record of each group; nothing may be unreadable but half of a pair that was being freed."""
    tables = read_tables(disk, "/shards")
    assert not nameless(tables)
    found = {}
    for key, record in merge_tables(tables).items():
        if key == deleted:
            continue
        assert isinstance(record.outcome, Present), record
        found[key] = int.from_bytes(record.state[:4], "little")
    return found


@attrs.define
class TableRun:
    """Writes to one table: what was acknowledged of each group, and what is being written."""

    disk: SimDisk
    done: dict[GroupKey, int] = attrs.Factory(dict)
    going: dict[GroupKey, int] = attrs.Factory(dict)
    deleted: GroupKey | None = None

    def write(self, table: GroupTable, numbers: dict[GroupKey, int]) -> None:
        self.going = numbers
        table.write({key: payload(number, 90) for key, number in numbers.items()})
        self.done.update(numbers)

    def judge(self, after: SimDisk) -> str:
        found = states(after, self.deleted)
        for key, number in self.done.items():
            assert number <= found.get(key, -1) <= max(number, self.going.get(key, 0)), key
        for key in found:
            assert key in self.done or key in self.going
        return NEW if any(found.get(key) == number for key, number in self.going.items()) else OLD


def test_group_table_write(limit: int) -> None:
    disk = SimDisk()
    disk.put("/shards/other", b"")
    table = GroupTable.open(disk, "/shards/1.groups")
    keys = [key_of(number) for number in range(4)]
    world = TableRun(disk)
    world.write(table, dict.fromkeys(keys, 1))
    run = PowerLoss(disk, world.judge, limit)
    for number in range(2, 8):
        world.write(table, dict.fromkeys(keys[number % 3 :], number))
        run.point()
    run.end()
    check("group table write", run.outcomes)


def test_growth_of_the_group_table(limit: int) -> None:
    disk = SimDisk()
    disk.put("/shards/other", b"")
    table = GroupTable.open(disk, "/shards/1.groups")
    world = TableRun(disk)

    def judge(after: SimDisk) -> str:
        world.judge(after)
        reopened = GroupTable.open(after, "/shards/1.groups")
        reopened.write({key_of(90): payload(1, 90)})
        if world.deleted in reopened.records():
            reopened.write({world.deleted: None})
        new = next(iter(world.going), None)
        found = states(after)
        assert found[key_of(90)] == 1
        return f"{'a' if new in found else 'no'} record of the new group"

    run = PowerLoss(disk, judge, limit)
    for number in range(6):
        world.write(table, {key_of(number): 1})
        run.point()
    # A deleted group: its pair is free for another one, and until then its record may still be there.
    del world.done[key_of(0)]
    world.deleted = key_of(0)
    table.write({key_of(0): None})
    world.write(table, {key_of(7): 3})
    run.end()
    check("growth of the group table", run.outcomes)


def test_the_table_itself_is_made_whole_or_not_at_all(limit: int) -> None:
    disk = SimDisk()
    disk.put("/shards/other", b"")
    run = PowerLoss(disk, lambda after: str(len(GroupTable.open(after, "/shards/1.groups").records())), limit)
    GroupTable.open(disk, "/shards/1.groups")
    run.end()
    assert set(run.outcomes) == {"0"}


def test_tables_brought_to_another_number_of_shards(limit: int) -> None:
    disk = SimDisk()
    disk.put("/shards/other", b"")
    numbers = {key_of(number): number + 1 for number in range(6)}
    for shard in (1, 2, 3):
        table = GroupTable.open(disk, f"/shards/{shard}.groups")
        table.write({key: payload(number, 90) for key, number in numbers.items() if key.partition % 3 + 1 == shard})

    def owner(key: GroupKey) -> int:
        return 1 + key.partition % 2

    def judge(after: SimDisk) -> str:
        assert states(after) == numbers
        tables = read_tables(after, "/shards")
        places = {
            key: [shard for shard, held in tables.items() if key in {each.key for each in held}] for key in numbers
        }
        moved = [key for key in numbers if key.partition % 3 != key.partition % 2]
        consolidate(after, "/shards", owner, (1, 2))
        assert states(after) == numbers
        assert {key: owner(key) for key in numbers} == {
            each.key: shard for shard, held in read_tables(after, "/shards").items() for each in held
        }
        if all(len(places[key]) == 1 and places[key] != [owner(key)] for key in moved):
            return "as before"
        if all(len(places[key]) == 1 for key in moved):
            return "in the table of the new owner"
        return "in the table of the old and of the new owner"

    run = PowerLoss(disk, judge, limit)
    run.point()
    assert consolidate(disk, "/shards", owner, (1, 2))
    run.end()
    check("tables brought to another number of shards", run.outcomes)


# --- boot record -----------------------------------------------------------------------------------------------------


def test_boot_record(limit: int) -> None:
    disk = SimDisk()
    disk.put("/shards/other", b"")
    others = [BootEntry(key_of(number), 1, 1, 1) for number in range(5)]
    told: list[int] = []  # frontiers recorded of the group, in order
    at_least, at_most, fenced, clean = [0], [0], [False], [False]

    def judge(after: SimDisk) -> str:
        found, generation = merge_boot_files(read_boot_files(after, "/shards").values())
        facts = found.get(KEY)
        if clean[0]:
            assert facts is not None and facts.head.clean and facts.head.boot_id == bytes(16)
        if facts is None:
            assert not fenced[0] and not clean[0] and at_least[0] == 0
            return "no entry"
        assert generation in (1, 2) and len(found) in (5, 6)
        assert facts.entry.synced_op in told and at_least[0] <= facts.entry.synced_op <= at_most[0]
        assert facts.entry.synced_checksum == facts.entry.synced_op * 7
        assert facts.entry.fenced or not fenced[0]
        return "the present frontier" if facts.entry.synced_op == told[-1] else "an earlier frontier"

    run = PowerLoss(disk, judge, limit)
    boot = BootRecord.create(disk, "/shards/1.boot", bytes(16), 1, others)
    for op in (10, 20, 30, 40):
        at_most[0] = op
        told.append(op)
        boot.update(KEY, op, op * 7, op)
    told.append(25)
    boot.lower(KEY, 25, 25 * 7)
    at_least[0] = at_most[0] = 25
    run.point()
    told.append(26)
    at_most[0] = 26
    boot.update(KEY, 26, 26 * 7, 26)
    boot.fence(KEY)
    fenced[0], at_least[0] = True, 26
    run.point()
    boot.mark_clean()
    clean[0] = True
    run.point()
    clean[0] = False
    BootRecord.create(disk, "/shards/1.boot", b"x" * 16, 2, [*others, BootEntry(KEY, 26, 26 * 7, 26, True)])
    run.end()
    check("boot record update", run.outcomes)


def test_marking_a_stop_clean_never_runs_ahead_of_its_entries(limit: int) -> None:
    """A clean mark with an older frontier would call entries that a clean stop synced foreign bytes."""
    disk = SimDisk()
    disk.put("/shards/other", b"")
    boot = BootRecord.create(disk, "/shards/1.boot", bytes(16), 1, [BootEntry(KEY, 3, 3, 3)])

    def judge(after: SimDisk) -> str:
        found, _ = merge_boot_files(read_boot_files(after, "/shards").values())
        facts = found[KEY]
        assert not facts.head.clean or facts.entry.synced_op == 9
        return f"{facts.head.clean} {facts.entry.synced_op}"

    run = PowerLoss(disk, judge, limit)
    boot.update(KEY, 9, 9, 9)
    boot.mark_clean()
    run.end()
    assert {"False 3", "False 9", "True 9"} <= set(run.outcomes)


# --- the document ----------------------------------------------------------------------------------------------------


def rows() -> Iterator[str]:
    return (row.change for row in POWER_LOSS)


def test_every_row_of_the_outcome_table_has_a_test() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_power_loss*.py"))
    for change in rows():
        assert f'"{change}"' in text, change
    assert len(set(rows())) == len(POWER_LOSS)


def test_samples_are_the_same_for_the_same_seed() -> None:
    def outcomes() -> list[tuple[object, ...]]:
        disk = SimDisk()
        disk.put("/d/f", bytes(40000))
        disk.pwritev(disk.open_write("/d/f"), [b"x" * 40000], 0)
        return [after.fingerprint() for after in disk.legal_outcomes(50, random.Random(3))]

    assert outcomes() == outcomes()
