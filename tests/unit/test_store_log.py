"""The prepare log: appending, rolling, syncing, cutting, dropping, and reading it back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardsrv._core import Prepare, slice_prepares
from shardsrv.errors import DiskFull, OurFault, SyncFailed
from shardsrv.store._disk import sync_files
from shardsrv.store.disk import OsDisk
from shardsrv.store.faults import LogFenced, WriteFailed
from shardsrv.store.index import SparseIndex
from shardsrv.store.log import PrepareLog, ResumePoint
from shardsrv.store.segment import Position, decode_header
from tests.support.batches import decode_batches
from tests.support.logs import (
    IDENTITY,
    Chain,
    abandon,
    entry_edges,
    fingerprint,
    open_log,
    segment_files,
    sync_log,
    write_log,
)


def ops(log: PrepareLog, from_op: int = 1) -> list[int]:
    return [prepare.op for prepare in log.scan(from_op)]


def fill(log: PrepareLog, chain: Chain, count: int, size: int = 8) -> list[Prepare]:
    made = []
    for _ in range(count):
        made.append(chain.other(size))
        log.append(made[-1])
        log.flush()
    return made


def test_a_new_log_is_empty_and_makes_no_file_until_something_is_written(tmp_path: Path) -> None:
    log, recovery = open_log(tmp_path / "log")
    assert (log.head_op, log.head_checksum, log.first_op, log.segment_count, log.bytes) == (0, 0, 1, 0, 0)
    assert (recovery.row, recovery.replayed) == ("whole", 0)
    assert segment_files(tmp_path / "log") == []
    assert log.read_prepare(1) is None
    assert log.read_into(log.locate_offset(0), bytearray(10)) == 0


def test_appended_entries_are_read_only_after_the_flush(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    first, second = chain.send(2), chain.other()
    log.append(first)
    log.append(second)
    assert (log.head_op, log.read_prepare(1), log.pending_bytes) == (0, None, first.size + second.size)
    log.flush()
    assert (log.head_op, log.head_checksum, log.next_offset, log.pending_bytes) == (2, second.checksum, 2, 0)
    assert log.read_prepare(1) == first
    assert log.read_prepare(2) == second
    assert bytes(log.read_prepare(1).body) == bytes(first.body)  # type: ignore[union-attr]
    assert log.read_prepare(3) is None
    assert ops(log) == [1, 2]
    data = segment_files(tmp_path)[0].read_bytes()
    assert data[256:] == bytes(first.header) + bytes(first.body) + bytes(second.header) + bytes(second.body)


def test_a_segment_header_says_whose_it_is_and_where_it_begins(tmp_path: Path) -> None:
    chain = Chain()
    log, _ = open_log(tmp_path, segment_size=1200)
    first = [chain.send(3), chain.send(2)]
    third = chain.other()
    for prepare in [*first, third]:
        log.append(prepare)
    log.flush()
    files = segment_files(tmp_path)
    assert [path.name for path in files] == [f"{1:020}.seg", f"{3:020}.seg"]
    identity, header = decode_header(files[1].read_bytes())
    assert identity == IDENTITY
    assert (header.first_op, header.parent, header.base_offset) == (3, first[1].checksum, 5)


def test_a_segment_ends_with_the_entry_that_reaches_its_size(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, segment_size=256 + 3 * 300)
    fill(log, Chain(), 7, 44)
    assert [len(entry_edges(path.read_bytes())) - 1 for path in segment_files(tmp_path)] == [3, 3, 1]
    again, _ = open_log(tmp_path, segment_size=256 + 3 * 300)
    assert (again.head_op, again.segment_count) == (7, 3)


def test_rolling_does_not_depend_on_how_entries_are_grouped_into_flushes(tmp_path: Path) -> None:
    chain = Chain()
    made = [chain.send(1 + number % 3, 40 * (number % 5)) for number in range(40)]
    for name, group in (("one", 1), ("many", 7), ("all", 40)):
        log, _ = open_log(tmp_path / name, segment_size=4000)
        for number, prepare in enumerate(made, 1):
            log.append(prepare)
            if number % group == 0:
                log.flush()
        log.flush()
        abandon(log)
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "many") == fingerprint(tmp_path / "all")
    assert len(segment_files(tmp_path / "one")) > 3


def test_a_purge_ends_its_segment_and_offsets_begin_again(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    for prepare in (chain.send(4), chain.purge(), chain.send(2)):
        log.append(prepare)
    log.flush()
    assert [path.name for path in segment_files(tmp_path)] == [f"{1:020}.seg", f"{3:020}.seg"]
    assert (log.next_offset, log.floor_op) == (2, 2)
    assert log.locate_offset(0) == log.locate_time(0) == Position(3, 256)
    assert log.drop_below(3) > 0
    assert (log.first_op, ops(log)) == (3, [3])
    last = chain.parent
    abandon(log)
    again, _ = open_log(tmp_path, resume=ResumePoint(3, last, 2, 2, 1))
    assert (again.floor_op, again.next_offset, again.head_op) == (2, 2, 3)


def test_a_purged_log_can_be_dropped_whole_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    log.append(chain.send(4))
    log.append(chain.purge())
    log.flush()
    sync_log(log)
    log.drop_below(3)
    assert (log.segment_count, log.first_op, log.head_op) == (0, 3, 2)
    assert log.read_into(log.locate_offset(0), bytearray(8)) == 0
    abandon(log)
    again, _ = open_log(tmp_path, resume=ResumePoint(2, chain.parent, 0, 2, 1))
    again.append(chain.send(1))
    again.flush()
    assert (again.head_op, again.first_op, again.floor_op, again.next_offset) == (3, 3, 2, 1)


def test_behind_a_purge_nothing_older_is_located(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    log.append(chain.send(4))
    log.append(chain.purge())
    log.flush()
    for place in (log.locate_offset(0), log.locate_offset(3), log.locate_time(0)):
        assert (log.read_into(place, bytearray(512)), log.next_segment(place)) == (0, None)
    assert ops(log) == [1, 2]


def test_a_purge_of_an_old_generation_hides_nothing(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    for prepare in (chain.purge(), chain.send(2), chain.purge(again=True), chain.send(2)):
        log.append(prepare)
    log.flush()
    assert (log.floor_op, log.next_offset, log.segment_count) == (1, 4, 3)
    assert poll(log, log.locate_offset(0), 0) == [0, 1, 2, 3]
    middle = log.read_prepare(2)
    assert middle is not None
    abandon(log)
    for resume in (None, ResumePoint(2, middle.checksum, 2, 1, 1), ResumePoint(4, chain.parent, 4, 1, 1)):
        again, _ = open_log(tmp_path, resume=resume)
        assert (again.floor_op, again.next_offset) == (1, 4)
        assert poll(again, again.locate_time(0), 0, True) == [0, 1, 2, 3]
        abandon(again)


def test_a_cut_takes_a_purge_back(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    for prepare in (chain.send(2), chain.purge(), chain.send(3), chain.purge(), chain.send(1)):
        log.append(prepare)
    log.flush()
    for op, floor, offset in ((5, 4, 0), (4, 2, 3), (3, 2, 0), (2, 0, 2)):
        log.truncate_from(op)
        assert (log.floor_op, log.next_offset) == (floor, offset)
    assert poll(log, log.locate_offset(0), 0) == [0, 1]


def test_an_entry_that_does_not_chain_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    log.append(chain.other())
    for wrong in (Chain(parent=chain.parent, next_op=3).other(), Chain(parent=99, next_op=2).other()):
        with pytest.raises(OurFault):
            log.append(wrong)
    log.append(chain.other())
    log.flush()
    assert ops(log) == [1, 2]


def test_an_entry_is_stored_with_the_view_that_it_was_born_in(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    prepare = Chain().other()
    log.append(prepare.with_view(prepare.born_view + 4))
    log.flush()
    assert log.read_prepare(1) == prepare


def test_more_buffers_than_one_call_takes_and_short_writes(tmp_path: Path) -> None:
    class Stingy(OsDisk):
        def __init__(self) -> None:
            super().__init__()
            self.pwritev = self.some  # type: ignore[assignment]

        def some(self, handle: int, buffers: list, position: int) -> int:
            assert len(buffers) <= 1024
            return os.pwrite(handle, b"".join(buffers)[:997], position)

    log, _ = PrepareLog.open(Stingy(), str(tmp_path), IDENTITY, segment_size=1 << 20)
    chain = Chain()
    made = [chain.other(number % 50) for number in range(1500)]
    for prepare in made:
        log.append(prepare)
    log.flush()
    assert list(log.scan(1)) == made


class Failing(OsDisk):
    """Fails a named call when told to; a failing write leaves half of its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.fail: dict[str, int] = {}
        self.pwritev = self._pwritev  # type: ignore[assignment]
        self.fdatasync = self._fdatasync  # type: ignore[assignment]
        self.fdatasync_all = self._fdatasync_all  # type: ignore[assignment]
        self.truncate = self._truncate  # type: ignore[assignment]

    def _check(self, name: str) -> None:
        if name in self.fail:
            raise OSError(self.fail[name], os.strerror(self.fail[name]))

    def _pwritev(self, handle: int, buffers: list, position: int) -> int:
        if "pwritev" in self.fail:
            data = b"".join(buffers)
            os.pwrite(handle, data[: len(data) // 2], position)
        self._check("pwritev")
        return os.pwritev(handle, buffers, position)

    def _fdatasync(self, handle: int) -> None:
        self._check("fdatasync")
        os.fdatasync(handle)

    def _fdatasync_all(self, handles: list[int]) -> tuple[int, int] | None:
        return (0, self.fail["fdatasync"]) if "fdatasync" in self.fail else sync_files(handles)

    def _truncate(self, handle: int, length: int) -> None:
        self._check("truncate")
        os.ftruncate(handle, length)


def failing_log(directory: Path, **arguments: int) -> tuple[Failing, PrepareLog]:
    disk = Failing()
    log, _ = PrepareLog.open(disk, str(directory), IDENTITY, segment_size=arguments.get("segment_size", 1 << 20))
    return disk, log


def test_a_failed_write_is_cut_back_and_can_be_tried_again(tmp_path: Path) -> None:
    disk, log = failing_log(tmp_path, segment_size=1500)
    chain = Chain()
    fill(log, chain, 2)
    before = fingerprint(tmp_path)
    made = [chain.send(1, 500) for _ in range(4)]
    disk.fail["pwritev"] = 28
    for prepare in made:
        log.append(prepare)
    with pytest.raises(DiskFull) as caught:
        log.flush()
    assert caught.value.needed > 0
    assert (fingerprint(tmp_path), log.head_op, log.pending_bytes, log.next_offset) == (before, 2, 0, 0)
    disk.fail.clear()
    for prepare in made:
        log.append(prepare)
    log.flush()
    assert (ops(log), log.next_offset) == ([1, 2, 3, 4, 5, 6], 4)


def test_a_failed_write_leaves_nothing_in_the_index(tmp_path: Path) -> None:
    disk, log = failing_log(tmp_path)
    chain = Chain()
    log.append(chain.send(1, 40_000))
    log.append(chain.send(1, 40_000))
    log.flush()
    lost = Chain(chain.parent, chain.next_op, chain.offset)
    disk.fail["pwritev"] = 5
    log.append(lost.send(1, 40_000))
    log.append(lost.send(1, 40_000))
    with pytest.raises(WriteFailed):
        log.flush()
    disk.fail.clear()
    for prepare in (chain.other(9000), chain.send(1, 50_000), chain.send(1, 10)):
        log.append(prepare)
    log.flush()
    for offset in range(4):
        assert poll(log, log.locate_offset(offset), offset) == list(range(offset, 4))
    log.close()
    written = next(tmp_path.glob("*.idx"))
    found = SparseIndex.decode(written.read_bytes(), 1)
    assert found.ops.tolist() == [1, 4, 5]


def test_a_write_that_cannot_be_taken_back_fences_the_log(tmp_path: Path) -> None:
    disk, log = failing_log(tmp_path)
    chain = Chain()
    fill(log, chain, 1)
    log.append(chain.other())
    disk.fail.update(pwritev=5, truncate=5)
    with pytest.raises(LogFenced):
        log.flush()
    disk.fail.clear()
    with pytest.raises(LogFenced):
        log.append(chain.other())
    abandon(log)
    # The torn rest is what a kill leaves, and is cut at the next start.
    again, recovery = open_log(tmp_path)
    assert (again.head_op, recovery.cut_op) == (1, 2)


def test_a_sync_covers_what_lay_in_the_files_when_it_was_planned(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, segment_size=1500)
    chain = Chain()
    fill(log, chain, 3, 500)
    plan = log.sync_plan()
    assert (plan.op, plan.bytes, len(plan.fds), plan.directory) == (3, log.bytes, 2, True)
    later = fill(log, chain, 1, 500)
    plan.run()
    log.mark_synced(plan)
    assert (log.synced_op, log.synced_checksum, log.unsynced_bytes) == (3, later[0].parent, later[0].size)
    sync_log(log)
    assert (log.synced_op, log.unsynced_bytes, log.dirty) == (4, 0, False)


def test_a_failed_sync_is_never_taken_for_clean(tmp_path: Path) -> None:
    disk, log = failing_log(tmp_path)
    chain = Chain()
    fill(log, chain, 1)
    plan = log.sync_plan()
    disk.fail["fdatasync"] = 5
    with pytest.raises(SyncFailed):
        plan.run()
    disk.fail.clear()
    assert (log.synced_op, log.fenced is not None) == (0, True)
    for call in (log.sync_plan, lambda: log.append(chain.other()), lambda: log.mark_synced(plan)):
        with pytest.raises(LogFenced):
            call()
    assert log.synced_op == 0


def test_a_plan_that_never_ran_fences_too(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    fill(log, Chain(), 1)
    with pytest.raises(LogFenced):
        log.mark_synced(log.sync_plan())


@pytest.mark.parametrize("op", range(1, 9))
@pytest.mark.parametrize("segment_size", [700, 1 << 20])
def test_truncating_a_suffix_leaves_a_prefix_that_goes_on(tmp_path: Path, op: int, segment_size: int) -> None:
    log, _ = open_log(tmp_path, segment_size=segment_size)
    chain = Chain()
    made = [chain.send(2) if number % 2 else chain.other() for number in range(8)]
    for prepare in made:
        log.append(prepare)
    log.flush()
    log.truncate_from(op)
    kept = made[: op - 1]
    offset = 2 * sum(prepare.operation == 160 for prepare in kept)
    parent = kept[-1].checksum if kept else 0
    assert (log.head_op, log.head_checksum, log.next_offset, log.synced_op) == (op - 1, parent, offset, op - 1)
    assert not log.dirty
    other = Chain(parent, op, offset)
    replaced = [other.send(1, 5) for _ in range(3)]
    for prepare in replaced:
        log.append(prepare)
    log.flush()
    assert list(log.scan(1)) == kept + replaced
    abandon(log)
    seen: list[Prepare] = []
    again, recovery = open_log(tmp_path, segment_size=segment_size, on_prepare=seen.append)
    assert (seen, recovery.row, again.next_offset) == (kept + replaced, "whole", offset + 3)


def test_a_cut_before_the_first_op_or_with_entries_buffered_is_refused(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, segment_size=700)
    chain = Chain()
    fill(log, chain, 6, 200)
    log.drop_below(4)
    with pytest.raises(OurFault):
        log.truncate_from(1)
    log.append(chain.other())
    with pytest.raises(OurFault):
        log.truncate_from(6)


def test_a_sync_that_was_out_during_a_cut_credits_nothing(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    made = fill(log, chain, 3)
    plan = log.sync_plan()
    log.truncate_from(2)
    again = Chain(made[0].checksum, 2)
    fill(log, again, 3, 4)
    plan.adopt()
    log.mark_synced(plan)
    assert (log.head_op, log.synced_op) == (4, 1)


def test_dropping_takes_whole_head_segments_below_the_op(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, segment_size=256 + 2 * 300)
    chain = Chain()
    fill(log, chain, 7, 44)
    assert [first for first, _, _ in log.segments()] == [1, 3, 5, 7]
    assert log.drop_below(4) == 856
    assert (log.first_op, ops(log), ops(log, 6)) == (3, [3, 4, 5, 6, 7], [6, 7])
    log.drop_below(100)
    assert log.first_op == 7, "the active segment stays"
    assert [path.name for path in segment_files(tmp_path)] == [f"{7:020}.seg"]
    assert not list(tmp_path.glob(f"{1:020}.idx"))
    stale = Position(1, 256)
    assert (log.read_into(stale, bytearray(9)), log.next_segment(stale)) == (0, Position(7, 256))


def test_head_segments_are_removed_oldest_first_with_a_sync_between(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    class Recording(OsDisk):
        def unlink(self, path: str) -> None:
            calls.append(("unlink", Path(path).name))
            super().unlink(path)

        def fsync_dir(self, path: str) -> None:
            calls.append(("sync", Path(path).name))
            super().fsync_dir(path)

    log, _ = PrepareLog.open(Recording(), str(tmp_path), IDENTITY, segment_size=1000)
    fill(log, Chain(), 5, 200)
    calls.clear()
    log.drop_below(5)
    names = [name for kind, name in calls if name.endswith(".seg") or kind == "sync"]
    assert names == [f"{1:020}.seg", tmp_path.name, f"{3:020}.seg", tmp_path.name]


def poll(log: PrepareLog, position: Position, wanted: int, by_time: bool = False) -> list[int]:
    """Every message offset from ``wanted`` on, read as a poll reads: walk from the position, segment by segment."""
    found = []
    at: Position | None = position
    needed = 0
    while at is not None:
        data = bytearray(max(1 << 16, needed))
        length = log.read_into(at, data)
        view = memoryview(data)[:length]
        part = slice_prepares(view, 0, length, wanted, 1 << 30, log.head_op, by_time)
        needed = part.needed
        for batch in decode_batches(b"".join(map(bytes, part.parts))):
            found += [message.offset for message in batch.messages]
        at = Position(at.segment, at.byte + part.position)
        if not log.available(at):
            at = log.next_segment(at)
    return found


@pytest.mark.parametrize("reopened", [False, True])
def test_every_offset_and_time_is_located_at_or_before_its_batch(tmp_path: Path, reopened: bool) -> None:
    log, _ = open_log(tmp_path, segment_size=300_000)
    chain = Chain()
    times = []
    for number in range(60):
        if number % 5 == 4:
            log.append(chain.other(900))
        base, prepare = chain.offset, chain.send(3, 4000)
        times.append((prepare.timestamp, base))
        log.append(prepare)
        log.flush()
    if reopened:
        log.close()
        log, _ = open_log(tmp_path, segment_size=300_000)
    assert log.segment_count > 2
    for offset in range(0, 180, 7):
        assert poll(log, log.locate_offset(offset), offset) == list(range(offset, 180))
    for timestamp, base in times[::4]:
        assert poll(log, log.locate_time(timestamp), timestamp, True) == list(range(base, 180))
    for op in range(1, log.head_op + 1, 5):
        assert log.read_prepare(op).op == op  # type: ignore[union-attr]


def test_the_last_time_of_a_sealed_segment(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, segment_size=1000)
    made = fill(log, Chain(), 5, 200)
    assert log.last_timestamp(1) == made[1].timestamp
    with pytest.raises(KeyError):
        log.last_timestamp(log.segments()[-1][0])


def test_an_index_made_by_a_walk_equals_the_file(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, segment_size=150_000)
    chain = Chain()
    for number in range(80):
        log.append(chain.send(1 + number % 3, 3000))
        log.flush()
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.idx")}
    assert len(written) >= 2
    abandon(log)
    for name, data in written.items():
        (tmp_path / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    head = ResumePoint(80, chain.parent, chain.offset)
    again, _ = open_log(tmp_path, segment_size=150_000, resume=head)
    for first_op, base, _ in again.segments():
        assert again.locate_offset(base) == Position(first_op, 256)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.idx")} == written
    abandon(again)


def test_a_clean_stop_lets_the_next_start_read_only_the_end(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    for _ in range(200):
        log.append(chain.send(1, 3000))
        log.flush()
    log.close()
    seen: list[Prepare] = []
    again, recovery = open_log(tmp_path, resume=ResumePoint(200, chain.parent, 200), on_prepare=seen.append)
    assert (again.head_op, again.next_offset, seen) == (200, 200, [])
    assert recovery.scanned_bytes < 140_000
    before = fingerprint(tmp_path)
    again.write_index()
    assert fingerprint(tmp_path) == before, "what the scan found anew equals what the index had"
    assert poll(again, again.locate_offset(17), 17) == list(range(17, 200))


def test_an_index_of_a_prefix_only_makes_the_walk_longer(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    for number in range(120):
        log.append(chain.send(1, 3000))
        log.flush()
        if number == 60:
            log.write_index()
    abandon(log)
    again, _ = open_log(tmp_path, resume=ResumePoint(120, chain.parent, 120))
    assert poll(again, again.locate_offset(100), 100) == list(range(100, 120))


def test_release_closes_an_idle_log_and_the_next_write_opens_it_again(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    chain = Chain()
    fill(log, chain, 1)
    log.release()
    before = len(os.listdir("/proc/self/fd"))
    sync_log(log)
    log.release()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    fill(log, chain, 1)
    assert ops(log) == [1, 2]


def test_sealed_segments_share_a_bounded_pool_of_descriptors(tmp_path: Path) -> None:
    from shardsrv.store.descriptors import DescriptorPool

    disk = OsDisk()
    pool = DescriptorPool(disk, 3)
    log, _ = PrepareLog.open(disk, str(tmp_path), IDENTITY, segment_size=600, pool=pool)
    fill(log, Chain(), 20, 400)
    sync_log(log)
    assert ops(log) == list(range(1, 21))
    assert len(pool) == 3


def test_preallocated_space_lies_beyond_the_end_of_the_file(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, segment_size=1 << 20, preallocate=True)
    made = fill(log, Chain(), 1)
    facts = segment_files(tmp_path)[0].stat()
    assert facts.st_size == 256 + made[0].size
    assert facts.st_blocks * 512 >= 1 << 20
    abandon(log)
    assert open_log(tmp_path)[0].head_op == 1


def test_write_log_helper_leaves_what_a_kill_leaves(tmp_path: Path) -> None:
    chain = Chain()
    write_log(tmp_path, [chain.send(1), chain.send(1)])
    assert [path.suffix for path in tmp_path.iterdir()] == [".seg"]
