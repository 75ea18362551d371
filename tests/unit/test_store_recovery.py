"""Opening a damaged log: crash points, flipped bytes, broken chains; the decision tables walked whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardsrv._core import Prepare, xxh3
from shardsrv.errors import UnsupportedVersion
from shardsrv.store import recovery
from shardsrv.store.disk import OsDisk
from shardsrv.store.faults import (
    CheckpointAheadOfSnapshot,
    CheckpointChecksumMismatch,
    LogDamaged,
    LogForeign,
    PartitionLost,
)
from shardsrv.store.log import GroupIdentity, LogFacts, PrepareLog, ResumePoint
from shardsrv.store.record import Absent, Corrupt, Empty, Present, Unreadable, Valid, choose
from shardsrv.store.recovery import Action, DirectoryAction, Region, Shape, SlotChoice, SlotFact
from tests.support.logs import (
    IDENTITY,
    Chain,
    abandon,
    entry_edges,
    fast_directory,
    fingerprint,
    open_log,
    segment_files,
    write_log,
)

KILLED = {"same_boot": True, "clean": False}
POWER_LOSS = {"same_boot": False, "clean": False}
STOPPED = {"same_boot": True, "clean": True}


@pytest.fixture
def fast_path() -> Iterator[Path]:
    with fast_directory() as directory:
        yield directory


def refused(directory: Path, facts: LogFacts, **arguments: Any) -> LogDamaged:
    """Opening is refused and leaves every byte as it was."""
    before = fingerprint(directory)
    with pytest.raises(LogDamaged) as caught:
        open_log(directory, facts=facts, **arguments)
    assert fingerprint(directory) == before
    assert caught.value.path in str(caught.value)
    return caught.value


def held(log: PrepareLog) -> list[int]:
    return [prepare.op for prepare in log.scan(1)]


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [recovery.LOG_DAMAGE, recovery.SLOT_PAIR, recovery.PAIRING, recovery.PARTITION_DIRECTORY],
    ids=lambda t: t.name,
)
def test_exactly_one_row_answers_each_combination_and_each_row_answers_some(table: recovery.Table[Any]) -> None:
    used = set()
    for facts in table.combinations():
        answering = [row.label for row in table.rows if row.answers(facts)]
        assert len(answering) == 1, (facts, answering)
        used.add(answering[0])
    assert used == {row.label for row in table.rows}
    assert len({row.label for row in table.rows}) == len(table.rows)


def test_the_table_never_cuts_what_was_synced_and_never_cuts_a_broken_chain() -> None:
    for facts in recovery.LOG_DAMAGE.combinations():
        region, same_boot, clean, shape, alone = facts
        action = recovery.LOG_DAMAGE.decide(*facts).decision
        if region is Region.SYNCED or shape is Shape.CHAIN:
            assert action is (Action.REFUSE if alone else Action.REPAIR)
        if action is Action.CUT and same_boot and not clean:
            assert shape is Shape.SHORT
        if action is Action.ABSTAIN:
            assert not alone


def test_two_slots_are_chosen_as_the_table_says() -> None:
    """For every combination of slots with sequences 0 (absent) to 5, and a corrupt one."""
    slots: list[Any] = [Absent(), *(Valid(sequence, bytes([sequence])) for sequence in range(1, 6)), Corrupt("rot", 9)]
    choices = set()
    for a in slots:
        for b in slots:
            x, y = getattr(a, "sequence", 0), getattr(b, "sequence", 0)
            in_turn = (x, y) == (1, 0) or (x % 2 == 1 and abs(x - y) == 1)
            row = recovery.SLOT_PAIR.decide(_slot_fact(a, x > y), _slot_fact(b, y > x), in_turn)
            choices.add(row.label)
            outcome = choose(a, b)
            if row.decision is SlotChoice.EMPTY:
                assert outcome == Empty()
            elif row.decision is SlotChoice.UNREADABLE:
                assert isinstance(outcome, Unreadable) and outcome.reason
                assert outcome.version == (9 if isinstance(a, Corrupt) or isinstance(b, Corrupt) else None)
            else:
                chosen = max(x, y)
                assert outcome == Present(bytes([chosen]), chosen, 0 if row.decision is SlotChoice.SLOT_A else 1)
                assert chosen == (x if row.decision is SlotChoice.SLOT_A else y)
    assert choices == {row.label for row in recovery.SLOT_PAIR.rows}


def _slot_fact(slot: Any, newer: bool) -> SlotFact:
    if isinstance(slot, Absent):
        return SlotFact.ABSENT
    if isinstance(slot, Corrupt):
        return SlotFact.CORRUPT
    return SlotFact.NEWER if newer else SlotFact.OLDER


def test_the_superblock_is_checked_against_the_snapshot_before_it_is_believed() -> None:
    recovery.check_pairing(None, (9, 1), "snapshot")
    recovery.check_pairing(None, None, "snapshot")
    recovery.check_pairing((9, 1), (9, 1), "snapshot")
    recovery.check_pairing((8, 5), (9, 1), "snapshot")
    recovery.check_pairing((0, 0), None, "snapshot")
    with pytest.raises(CheckpointAheadOfSnapshot) as ahead:
        recovery.check_pairing((9, 1), (8, 1), "DIR/snapshot.bin")
    assert (ahead.value.path, ahead.value.checkpoint_op, ahead.value.snapshot_op) == ("DIR/snapshot.bin", 9, 8)
    with pytest.raises(CheckpointAheadOfSnapshot):
        recovery.check_pairing((9, 1), None, "snapshot")
    with pytest.raises(CheckpointChecksumMismatch) as mismatch:
        recovery.check_pairing((9, 1), (9, 2), "snapshot")
    assert (mismatch.value.op, mismatch.value.expected, mismatch.value.found) == (9, 1, 2)


def test_a_lost_partition_directory_is_not_a_new_partition() -> None:
    assert recovery.check_partition_directory(True, 5, 9, "p") is DirectoryAction.OPEN
    assert recovery.check_partition_directory(False, 10, 9, "p") is DirectoryAction.CREATE
    with pytest.raises(PartitionLost):
        recovery.check_partition_directory(False, 9, 9, "p")


# --- crash points ----------------------------------------------------------------------------------------------------


def build(directory: Path, count: int = 4, segment_size: int = 1 << 20) -> list[Prepare]:
    chain = Chain()
    made = [chain.send(2) if number % 2 else chain.other(20) for number in range(count)]
    write_log(directory, made, segment_size=segment_size)
    return made


@pytest.mark.parametrize("segment_size", [1 << 20, 1200])
def test_a_kill_at_every_byte_of_the_last_entry_leaves_the_entries_before_it(
    fast_path: Path, segment_size: int
) -> None:
    made = build(fast_path / "whole", segment_size=segment_size)
    last = segment_files(fast_path / "whole")[-1]
    data = last.read_bytes()
    edges = entry_edges(data)
    start = edges[-2] if len(edges) > 2 else 0
    for length in range(start, len(data)):
        directory = fast_path / "cut"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(fast_path / "whole", directory)
        (directory / last.name).write_bytes(data[:length])
        seen: list[Prepare] = []
        log, found = open_log(directory, facts=LogFacts(1, **KILLED), on_prepare=seen.append, segment_size=segment_size)
        whole = length == edges[-2]
        assert (seen, log.head_op) == (made[:-1], 3)
        assert found.action is (Action.ACCEPT if whole else Action.CUT)
        assert found.cut_op == (None if whole else 4)
        log.append(made[-1])
        log.flush()
        assert held(log) == [1, 2, 3, 4]
        abandon(log)
        assert (directory / last.name).read_bytes() == data


@pytest.mark.parametrize("kind", ["killed", "power loss", "stopped"])
def test_every_flipped_byte_is_found_and_judged_by_where_it_lies(fast_path: Path, kind: str) -> None:
    facts = {"killed": KILLED, "power loss": POWER_LOSS, "stopped": STOPPED}[kind]
    build(fast_path / "whole")
    name = segment_files(fast_path / "whole")[0].name
    data = (fast_path / "whole" / name).read_bytes()
    edges = entry_edges(data)
    for position in range(len(data)):
        directory = fast_path / "bad"
        directory.mkdir(exist_ok=True)
        bad = bytearray(data)
        bad[position] ^= 0x41
        (directory / name).write_bytes(bad)
        op = sum(edge <= position for edge in edges)
        if op == 0:
            op = 1
        if kind == "power loss" and op > 2:
            log, found = open_log(directory, facts=LogFacts(2, **facts))
            assert (log.head_op, found.cut_op, found.action) == (op - 1, op, Action.CUT), position
            abandon(log)
            continue
        try:
            fault = refused(directory, LogFacts(2, **facts))
        except (LogForeign, UnsupportedVersion):
            pytest.fail("a flipped byte fails a seal before any field is believed")
        assert (fault.op, fault.action) == (op, "refuse"), position


def test_a_flipped_byte_with_peers_asks_for_repair_or_abstains(tmp_path: Path) -> None:
    build(tmp_path)
    path = segment_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[entry_edges(data)[2] + 260] ^= 1
    path.write_bytes(data)
    assert refused(tmp_path, LogFacts(3, **POWER_LOSS, members=3)).action == "repair"
    assert refused(tmp_path, LogFacts(2, **KILLED, members=3)).action == "repair"
    assert refused(tmp_path, LogFacts(2, **POWER_LOSS, members=3)).action == "abstain"


def test_an_interior_chain_break_refuses_and_says_which_op_does_not_chain(tmp_path: Path) -> None:
    chain = Chain()
    one, two = chain.other(64, 1), chain.other(64, 2)
    wrong = Chain(parent=one.checksum, next_op=3)
    three, four = wrong.other(64, 3), wrong.other(64, 4)
    write_log(tmp_path, [one, two])
    path = segment_files(tmp_path)[0]
    with path.open("ab") as file:
        for prepare in (three, four):
            file.write(bytes(prepare.header) + bytes(prepare.body))
    for facts in (KILLED, POWER_LOSS, STOPPED):
        fault = refused(tmp_path, LogFacts(2, **facts))
        assert "the log is damaged inside" in str(fault)
        assert "op 3 does not chain" in str(fault)
        assert (fault.op, fault.offset, fault.shape) == (3, entry_edges(path.read_bytes())[2], Shape.CHAIN.value)


def test_a_chain_break_at_the_border_of_two_segments_is_found(tmp_path: Path) -> None:
    chain = Chain()
    write_log(tmp_path / "a", [chain.other(400) for _ in range(3)], segment_size=900)
    other = Chain()
    write_log(tmp_path / "b", [other.other(400, 7) for _ in range(3)], segment_size=900)
    name = segment_files(tmp_path / "b")[1].name
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    fault = refused(tmp_path / "a", LogFacts(0, **POWER_LOSS), segment_size=900)
    assert (fault.op, fault.shape) == (int(name[:20]), Shape.CHAIN.value)


def test_a_segment_that_says_it_follows_another_entry_is_found_although_its_entries_chain(tmp_path: Path) -> None:
    """S1-01: the header is what is left to compare with when the segments before it are gone."""
    chain = Chain()
    write_log(tmp_path, [chain.other(400) for _ in range(3)], segment_size=900)
    path = segment_files(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[56] ^= 1
    data[248:256] = xxh3(bytes(data[:248])).to_bytes(8, "little")
    path.write_bytes(data)
    fault = refused(tmp_path, LogFacts(0, **POWER_LOSS), segment_size=900)
    assert (fault.op, fault.shape) == (int(path.name[:20]), Shape.CHAIN.value)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_segment_is_found(tmp_path: Path, gone: int) -> None:
    chain = Chain()
    write_log(tmp_path, [chain.other(400) for _ in range(4)], segment_size=300)
    files = segment_files(tmp_path)
    assert len(files) == 4
    files[gone].unlink()
    fault = refused(tmp_path, LogFacts(4, **POWER_LOSS), segment_size=300)
    assert (fault.op, fault.action) == (gone + 1, "refuse")
    assert gone or "no checkpoint" in str(fault)
    assert refused(tmp_path, LogFacts(0, **KILLED), segment_size=300).op == gone + 1
    log, found = open_log(tmp_path, facts=LogFacts(gone, **POWER_LOSS), segment_size=300)
    assert (log.head_op, found.cut_op) == (gone, gone + 1)
    assert len(segment_files(tmp_path)) == gone


@pytest.mark.parametrize("cut", [1, 100, 400])
def test_a_short_entry_with_a_later_segment_behind_it_is_no_torn_tail(tmp_path: Path, cut: int) -> None:
    chain = Chain()
    write_log(tmp_path, [chain.other(400) for _ in range(4)], segment_size=1500)
    first, second = segment_files(tmp_path)
    first.write_bytes(first.read_bytes()[:-cut])
    fault = refused(tmp_path, LogFacts(1, **KILLED), segment_size=1500)
    assert (fault.op, fault.shape) == (2, Shape.BAD_INSIDE.value)
    assert "op 3 lies behind it" in fault.detail
    log, found = open_log(tmp_path, facts=LogFacts(1, **POWER_LOSS), segment_size=1500)
    assert (log.head_op, found.cut_op, second.exists()) == (1, 2, False)


def test_a_log_that_ends_before_the_synced_frontier_is_rot(tmp_path: Path) -> None:
    build(tmp_path)
    fault = refused(tmp_path, LogFacts(6, **KILLED))
    assert (fault.op, fault.synced_op, fault.row) == (5, 6, "rot, alone")
    path = segment_files(tmp_path)[0]
    path.unlink()
    assert refused(tmp_path, LogFacts(1, **POWER_LOSS)).op == 1


@pytest.mark.parametrize("zeros", [1, 200, 256, 5000])
def test_zeros_behind_the_last_entry(tmp_path: Path, zeros: int) -> None:
    build(tmp_path)
    path = segment_files(tmp_path)[0]
    data = path.read_bytes()
    path.write_bytes(data + bytes(zeros))
    assert refused(tmp_path, LogFacts(4, **KILLED)).shape == Shape.ZEROS.value
    for facts in (POWER_LOSS, STOPPED):
        path.write_bytes(data + bytes(zeros))
        log, found = open_log(tmp_path, facts=LogFacts(4, **facts))
        assert (log.head_op, found.shape, found.cut_bytes) == (4, Shape.ZEROS, zeros)
        abandon(log)
        assert path.read_bytes() == data


@pytest.mark.parametrize("content", [b"", b"SHRD", bytes(256), bytes(4096)])
def test_a_segment_that_was_made_and_never_filled(tmp_path: Path, content: bytes) -> None:
    made = build(tmp_path, segment_size=300)
    files = segment_files(tmp_path)
    whole = files[-1].read_bytes()
    files[-1].write_bytes(content)
    log, found = open_log(tmp_path, facts=LogFacts(1, **POWER_LOSS), segment_size=300)
    assert (log.head_op, found.cut_op, files[-1].exists()) == (3, 4, False)
    log.append(made[-1])
    log.flush()
    assert files[-1].read_bytes() == whole


def test_segments_of_another_log_or_release_are_named_and_refused(tmp_path: Path) -> None:
    build(tmp_path)
    before = fingerprint(tmp_path)
    for field, identity in (
        ("cluster", GroupIdentity(bytes(16), IDENTITY.group, IDENTITY.created_revision)),
        ("group", GroupIdentity(IDENTITY.cluster, 77, IDENTITY.created_revision)),
        ("created_revision", GroupIdentity(IDENTITY.cluster, IDENTITY.group, 77)),
    ):
        with pytest.raises(LogForeign) as caught:
            PrepareLog.open(OsDisk(), str(tmp_path), identity, segment_size=1 << 20)
        assert caught.value.field == field
    path = segment_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[248:256] = xxh3(bytes(data[:248])).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(UnsupportedVersion) as version:
        open_log(tmp_path)
    assert (version.value.found, version.value.highest) == (2, 1)
    path.rename(path.with_name(f"{9:020}.seg"))
    assert before != fingerprint(tmp_path)


# --- resume points ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segment_size", [300, 900, 1 << 20])
@pytest.mark.parametrize("stop", ["index", "no index"])
def test_only_what_lies_above_the_resume_point_is_told(tmp_path: Path, segment_size: int, stop: str) -> None:
    chain = Chain()
    made = [chain.send(1) for _ in range(9)]
    log, _ = open_log(tmp_path, segment_size=segment_size)
    for prepare in made:
        log.append(prepare)
    log.flush()
    log.close() if stop == "index" else abandon(log)
    for op in range(1, 10):
        seen: list[Prepare] = []
        resume = ResumePoint(op, made[op - 1].checksum, op)
        again, found = open_log(tmp_path, segment_size=segment_size, resume=resume, on_prepare=seen.append)
        assert (seen, found.replayed, again.head_op, again.next_offset) == (made[op:], 9 - op, 9, 9)
        assert held(again) == list(range(1, 10))
        abandon(again)


def test_a_checkpoint_of_another_history_is_refused(tmp_path: Path) -> None:
    made = build(tmp_path, segment_size=300)
    for op in range(1, 5):
        fault = refused(tmp_path, LogFacts(0, **POWER_LOSS), resume=ResumePoint(op, made[op - 1].checksum ^ 1))
        assert fault.shape == Shape.CHAIN.value


def test_the_synced_entry_must_be_the_one_the_boot_record_knows(tmp_path: Path) -> None:
    made = build(tmp_path)
    fault = refused(tmp_path, LogFacts(3, **KILLED, synced_checksum=made[2].checksum ^ 1))
    assert (fault.op, fault.shape) == (3, Shape.CHAIN.value)
    log, _ = open_log(tmp_path, facts=LogFacts(3, **KILLED, synced_checksum=made[2].checksum))
    assert (log.synced_op, log.synced_checksum) == (3, made[2].checksum)


def test_a_gap_behind_the_checkpoint_is_cut_only_where_nothing_was_synced(tmp_path: Path) -> None:
    """Names of files that were not synced are lost in any order; what was synced is not lost to power."""
    made = build(tmp_path, 4, segment_size=300)
    for path in segment_files(tmp_path)[:2]:
        path.unlink()
    resume = ResumePoint(1, made[0].checksum)
    fault = refused(tmp_path, LogFacts(2, **POWER_LOSS), resume=resume, segment_size=300)
    assert (fault.op, fault.shape) == (2, Shape.CHAIN.value)
    assert refused(tmp_path, LogFacts(0, **KILLED), resume=resume, segment_size=300).shape == Shape.BAD_INSIDE.value
    log, found = open_log(tmp_path, facts=LogFacts(0, **POWER_LOSS), resume=resume, segment_size=300)
    assert (log.head_op, log.head_checksum, found.cut_op) == (1, made[0].checksum, 2)
    assert segment_files(tmp_path) == []


def test_a_directory_that_is_gone_is_refused_alone_and_begun_anew_with_peers(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    resume = ResumePoint(4, 17)
    fault = refused(directory, LogFacts(6, **KILLED), resume=resume)
    assert (fault.op, fault.action) == (5, Action.REFUSE.value)
    facts = LogFacts(6, **KILLED, members=3)
    log, found = open_log(directory, facts=facts, resume=resume, with_peers=True)
    assert (found.action, found.cut_op, log.head_op, log.head_checksum) == (Action.REPAIR, 5, 4, 17)
    assert directory.is_dir()


# --- the tail --------------------------------------------------------------------------------------------------------


def test_after_a_kill_the_unsynced_tail_is_written_again_and_is_dirty(tmp_path: Path) -> None:
    made = build(tmp_path)
    before = fingerprint(tmp_path)
    log, found = open_log(tmp_path, facts=LogFacts(2, **KILLED))
    assert found.rewritten_bytes == sum(prepare.size for prepare in made[2:])
    assert (log.synced_op, log.dirty) == (2, True)
    plan = log.sync_plan()
    plan.run()
    log.mark_synced(plan)
    assert (log.synced_op, log.dirty) == (4, False)
    abandon(log)
    assert fingerprint(tmp_path) == before


def test_after_a_clean_stop_nothing_is_written(tmp_path: Path) -> None:
    build(tmp_path)
    before = fingerprint(tmp_path)
    log, found = open_log(tmp_path, facts=LogFacts(4, **STOPPED), validate=False)
    assert (found.rewritten_bytes, log.dirty, log.synced_op) == (0, False, 4)
    assert fingerprint(tmp_path) == before
