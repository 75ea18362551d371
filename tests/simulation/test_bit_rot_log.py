"""Rot in a log: every bit of its smallest files, every length, blocks zeroed, stale and swapped; at a start and while
polls, repair and scans read it. Nothing but the stored messages is ever served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shardsrv._core import Prepare
from shardsrv.errors import Damaged, ShardsrvError, UnsupportedVersion
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.sim.disk import BLOCK, SimDisk
from shardsrv.store.faults import LogDamaged, LogForeign
from shardsrv.store.index import SparseIndex
from shardsrv.store.log import GroupIdentity, LogFacts, PrepareLog
from shardsrv.store.log_files import index_path, segment_path
from shardsrv.store.recovery import Action
from shardsrv.store.segment import SEGMENT_HEADER
from shardsrv.vsr import identity as members
from shardsrv.vsr.policy import partition_policy
from shardsrv.vsr.replica import Replica
from shardsrv.wire.constants import METADATA_GROUP
from tests.support.entries import CLUSTER
from tests.support.logs import IDENTITY, Chain
from tests.support.logs import sync_log as sync

DIRECTORY = "/p"
TESTED = (
    "log entry at or below the synced frontier",
    "log entry above the synced frontier",
    "segment header",
    "index of a segment",
)
KILLED, POWER, STOPPED = (True, False), (False, False), (True, True)
ENDS = pytest.mark.parametrize("end", [KILLED, POWER, STOPPED], ids=["killed", "power loss", "stopped"])
OFFSET, TIMESTAMP, FIRST, LAST = 1, 2, 3, 4


@pytest.fixture
def step(long: bool) -> int:
    return 1 if long else 11


def written(*prepares: Prepare, segment_size: int = 1 << 20, identity: GroupIdentity = IDENTITY) -> SimDisk:
    """A disk with a synced log of these entries, one flush each."""
    disk = SimDisk()
    log, _ = PrepareLog.open(disk, DIRECTORY, identity, segment_size=segment_size)
    for prepare in prepares:
        log.append(prepare)
        log.flush()
    if log.dirty:
        sync(log)
    log.close()
    disk.syncfs(disk.open_read(disk.paths()[0]))
    disk.kill()
    return disk


def opened(
    disk: SimDisk,
    synced_op: int,
    end: tuple[bool, bool] = KILLED,
    segment_size: int = 1 << 20,
    identity: GroupIdentity = IDENTITY,
) -> tuple[PrepareLog, Any]:
    facts = LogFacts(synced_op, *end)
    return PrepareLog.open(disk, DIRECTORY, identity, segment_size=segment_size, facts=facts)


def spoiled(disk: SimDisk, path: str, step: int, start: int = 0) -> Iterator[str]:
    """The disk with ``path`` damaged in each way in turn, whole again afterwards: what was done."""
    data = disk.read(path)
    for bit in range(start * 8, len(data) * 8, step):
        disk.flip(path, bit)
        yield f"bit {bit}"
        disk.flip(path, bit)
    for length in range(start, len(data)):
        disk.put(path, data[:length])
        yield f"length {length}"
    count = -(-len(data) // BLOCK)
    parts = [data[at * BLOCK : (at + 1) * BLOCK] for at in range(count)]
    for one in range(count):
        disk.put(path, b"".join(bytes(len(part)) if at == one else part for at, part in enumerate(parts)))
        yield f"block {one} zero"
        for other in range(count):
            if other != one and parts[one] != parts[other]:
                stale = b"".join(parts[other] if at == one else part for at, part in enumerate(parts))
                disk.put(path, stale)
                yield f"block {one} holds block {other}"
        for other in range(one + 1, count):
            swapped = list(parts)
            swapped[one], swapped[other] = parts[other], parts[one]
            disk.put(path, b"".join(swapped))
            yield f"blocks {one} and {other} swapped"
    disk.put(path, data)


# --- at a start ------------------------------------------------------------------------------------------------------


@ENDS
@pytest.mark.parametrize("case", ["batch", "metadata", "two batches"])
def test_a_synced_entry_or_header(case: str, end: tuple[bool, bool], step: int) -> None:
    """Every change of a synced file is refused by type and leaves the file as it is."""
    chain = Chain()
    identity = GroupIdentity(CLUSTER, METADATA_GROUP, 0) if case == "metadata" else IDENTITY
    entries = [chain.other(24)] if case == "metadata" else [chain.send() for _ in range(1 + (case == "two batches"))]
    disk = written(*entries, identity=identity)
    path = segment_path(DIRECTORY, 1)
    seen: Counter[str] = Counter()
    for what in spoiled(disk, path, step):
        before = disk.read(path)
        with pytest.raises((LogDamaged, LogForeign, UnsupportedVersion)) as caught:
            opened(disk.copy(), len(entries), end, identity=identity)
        seen[type(caught.value).__name__] += 1
        assert disk.read(path) == before, what
        if isinstance(caught.value, LogDamaged):
            assert caught.value.action == "refuse" and caught.value.path == path
    assert seen["LogDamaged"] > 100
    log, recovery = opened(disk, len(entries), end, identity=identity)
    assert (log.head_op, recovery.action) == (len(entries), Action.ACCEPT)


def test_with_peers_a_damaged_synced_entry_is_to_be_repaired(step: int) -> None:
    chain = Chain()
    disk = written(chain.send(), chain.send())
    for _ in spoiled(disk, segment_path(DIRECTORY, 1), step * 7):
        with pytest.raises(LogDamaged) as caught:
            PrepareLog.open(
                disk.copy(), DIRECTORY, IDENTITY, segment_size=1 << 20, facts=LogFacts(2, *KILLED, members=3)
            )
        assert caught.value.action == "repair"


@ENDS
def test_an_entry_above_the_frontier(end: tuple[bool, bool], step: int) -> None:
    """Cut after a power loss, and after a kill when it is short; else refused. What is left is what was written."""
    chain = Chain()
    entries = [chain.send() for _ in range(3)]
    disk = written(*entries)
    path = segment_path(DIRECTORY, 1)
    start = SEGMENT_HEADER + entries[0].size
    seen: Counter[str] = Counter()
    for what in spoiled(disk, path, step, start):
        if what.startswith("block"):
            continue  # it holds synced bytes as well
        try:
            log, recovery = opened(disk.copy(), 1, end)
        except LogDamaged as refusal:
            assert end != POWER and refusal.action == "refuse", what
            seen["refused"] += 1
            continue
        found = [prepare.checksum for prepare in log.scan(1)]
        edge = what == f"length {start}" or what == f"length {start + entries[1].size}"
        assert found == [entry.checksum for entry in entries[: len(found)]], what
        assert edge or (recovery.action is Action.CUT and recovery.cut_op == len(found) + 1), what
        assert 1 <= len(found) < 3
        seen["cut"] += 1
        if end == KILLED:
            assert what.startswith("length"), what
    assert seen["cut"] > 100 if end != STOPPED else seen["cut"] == 2
    assert seen["refused"] > 100 or end == POWER


@ENDS
def test_blocks_of_a_larger_log(end: tuple[bool, bool], long: bool) -> None:
    """Several segments of several blocks, all synced: a block that is zero, stale or elsewhere is refused."""
    chain = Chain()
    disk = written(*[chain.send(1, 900) for _ in range(16)], segment_size=9000)
    segments = [path for path in disk.paths() if path.endswith(".seg")]
    assert len(segments) == 3 and all(disk.size(path) > 2 * BLOCK for path in segments[:2])
    for path in segments:
        for what in spoiled(disk, path, 4001 if long else 20011):
            if what.startswith("length") and not long and int(what.split()[1]) % 97:
                continue
            with pytest.raises((LogDamaged, LogForeign)):
                opened(disk.copy(), 16, end, segment_size=9000)
    disk.misdirect(segments[0], 1, segments[1], 1)
    with pytest.raises(LogDamaged):
        opened(disk.copy(), 16, end, segment_size=9000)


def test_a_stale_last_block_is_a_log_that_ends_early() -> None:
    """A device that dropped acknowledged writes: the file is shorter or older than the frontier that was synced."""
    chain = Chain()
    entries = [chain.send(1, 900) for _ in range(8)]
    whole = written(*entries)
    path = segment_path(DIRECTORY, 1)
    for kept in range(1, 8):
        earlier = written(*entries[:kept]).read(path)
        stale = whole.copy()
        stale.put(path, earlier)
        with pytest.raises(LogDamaged) as caught:
            opened(stale, 8, POWER)
        assert caught.value.op == kept + 1
        padded = whole.copy()
        padded.put(path, earlier.ljust(whole.size(path), b"\0"))
        with pytest.raises(LogDamaged):
            opened(padded, 8, KILLED)


# --- while it is read ------------------------------------------------------------------------------------------------


class Reader(PartitionGroup):
    """The read path of a partition and nothing else."""

    def __init__(self, log: PrepareLog, entries: list[Prepare]) -> None:
        self.log = log
        count = log.next_offset
        size = sum(len(entry.body) for entry in entries)
        self.plane = PartitionPlane(1, 1, 5)
        self.plane.next_offset, self.plane.bytes = count, size
        identity = members.GroupIdentity(CLUSTER, 5, 1)
        self.replica = Replica.recover(identity, partition_policy(), self.plane, None, op=log.head_op)
        self.identity: Any = SimpleNamespace(partition=5)
        self.host: Any = SimpleNamespace(
            arena=SimpleNamespace(allocate=self._allocate), poll_bytes_max=1 << 20, validate_checksum=True
        )
        self.reads = 0
        self.resume_points = {}

    def _allocate(self, length: int) -> bytearray:
        self.reads += 1
        assert self.reads < 100, "a poll goes round for ever"
        return bytearray(length)

    def answers(self) -> list[bytes | None]:
        """What each of several polls answers; None where it is refused."""
        count = self.plane.next_offset
        timestamp = 1_000_000 + self.log.head_op
        polls = [(OFFSET, 0, 100), (OFFSET, count - 1, 1), (OFFSET, 1, 1), (TIMESTAMP, timestamp, 5), (FIRST, 0, 1)]
        return [self._answer(*poll) for poll in [*polls, (LAST, 0, 2)]]

    def _answer(self, strategy: int, value: int, count: int) -> bytes | None:
        self.resume_points.clear()
        self.reads = 0
        try:
            parts, _, messages, _ = self.poll(strategy, value, count, None)
        except Damaged:
            return None
        assert messages
        return b"".join(bytes(part) for part in parts)


def reading(disk: SimDisk, entries: list[Prepare], segment_size: int = 1 << 20) -> Reader:
    log, _ = opened(disk, len(entries), STOPPED, segment_size=segment_size)
    return Reader(log, entries)


def test_polls_over_rot(step: int) -> None:
    """The log is open when its bytes change: a poll answers the stored messages or is refused."""
    chain = Chain()
    entries = [chain.send(1, 8), chain.send(2, 8), chain.send(1, 8)]
    disk = written(*entries)
    reader = reading(disk, entries)
    wanted = reader.answers()
    assert None not in wanted
    path = segment_path(DIRECTORY, 1)
    refused: Counter[int] = Counter()

    def look(what: str) -> None:
        for number, (got, want) in enumerate(zip(reader.answers(), wanted, strict=True)):
            assert got is None or got == want, (what, number)
            refused[number] += got is None

    size = disk.size(path)
    for bit in range(0, size * 8, step):
        disk.flip(path, bit)
        look(f"bit {bit}")
        disk.flip(path, bit)
    assert reader.answers() == wanted
    # The file itself is cut, and not another one put in its place: the log holds it open.
    handle = disk.open_write(path)
    for length in range(size - 1, SEGMENT_HEADER - 1, -1):
        disk.truncate(handle, length)
        look(f"length {length}")
    assert all(refused[number] > 20 for number in range(len(wanted))), refused


def test_polls_over_blocks_that_are_zero_stale_or_swapped() -> None:
    chain = Chain()
    entries = [chain.send(3, 700) for _ in range(7)]
    disk = written(*entries)
    path = segment_path(DIRECTORY, 1)
    wanted = reading(disk, entries).answers()
    refused = 0
    for what in spoiled(disk, path, 1 << 30):
        if not what.startswith("block"):
            continue
        # Only what lies above the resume point is verified at a start: here nothing is, and polls meet the damage.
        log, _ = opened(written(*entries), 7, STOPPED)
        log._disk.put(path, disk.read(path))
        log._pool.close()
        for got, want in zip(Reader(log, entries).answers(), wanted, strict=True):
            assert got is None or got == want, what
            refused += got is None
    assert refused > 50


def test_repair_and_scan_over_rot(step: int) -> None:
    """Entries that peers would be sent, and those that a replay takes, are verified whole."""
    chain = Chain()
    entries = [chain.send(1, 8), chain.other(8), chain.send(1, 8)]
    disk = written(*entries)
    log, _ = opened(disk, 3, STOPPED)
    identities = [entry.checksum for entry in entries]
    refused = 0
    for what in spoiled(disk, segment_path(DIRECTORY, 1), step):
        if not what.startswith("bit"):
            continue
        for op in (1, 2, 3):
            try:
                found = log.read_prepare(op)
            except Damaged:
                refused += 1
            else:
                assert found is not None and found.checksum == identities[op - 1], what
                assert (bytes(found.header), bytes(found.body)) == (
                    bytes(entries[op - 1].header),
                    bytes(entries[op - 1].body),
                ), what
        try:
            assert [prepare.checksum for prepare in log.scan(1)] == identities
        except Damaged:
            refused += 1
    assert refused > 100


# --- the index -------------------------------------------------------------------------------------------------------


def places(log: PrepareLog) -> list[Any]:
    """Where walks begin, for offsets, times and ops."""
    return [
        *(log.locate_offset(offset) for offset in range(0, log.next_offset, 7)),
        *(log.locate_time(1_000_000 + op) for op in range(1, log.head_op, 3)),
        *(log.locate_op(op) for op in range(1, log.head_op, 3)),
    ]


def test_an_index_that_does_not_hold_is_made_again(step: int) -> None:
    chain = Chain()
    entries = [chain.send(4, 12000) for _ in range(9)]
    disk = written(*entries, segment_size=200_000)
    wanted = places(opened(disk.copy(), 9, STOPPED, segment_size=200_000)[0])
    path = index_path(DIRECTORY, 1)
    data = disk.read(path)
    assert len(SparseIndex.decode(data, 1)) > 1
    healed = 0
    for what in spoiled(disk, path, step):
        after = disk.copy()
        try:
            log, recovery = opened(after, 9, STOPPED, segment_size=200_000)
        except ShardsrvError as error:
            raise AssertionError(f"{what}: an index is never needed") from error
        assert recovery.action is Action.ACCEPT and log.head_op == 9
        assert places(log) == wanted, what
        healed += after.read(path) == data
    assert healed > 100


def test_the_index_of_the_segment_where_a_start_resumes(step: int) -> None:
    """A damaged index makes a start look at more and find the same."""
    from shardsrv.store.log import ResumePoint

    chain = Chain()
    entries = [chain.send(4, 12000) for _ in range(6)]
    disk = written(*entries)
    resume = ResumePoint(5, entries[4].checksum, 20)
    facts = LogFacts(6, *STOPPED)

    def start(after: SimDisk) -> tuple[int, int, int, int]:
        log, recovery = PrepareLog.open(after, DIRECTORY, IDENTITY, segment_size=1 << 20, resume=resume, facts=facts)
        return log.head_op, log.head_checksum, log.next_offset, recovery.replayed

    wanted = start(disk.copy())
    assert wanted == (6, entries[5].checksum, 24, 1)
    for what in spoiled(disk, index_path(DIRECTORY, 1), step):
        assert start(disk.copy()) == wanted, what


def test_headers_of_later_segments(step: int) -> None:
    chain = Chain()
    disk = written(*[chain.send(1, 100) for _ in range(4)], segment_size=400)
    path = [each for each in disk.paths() if each.endswith(".seg")][1]
    wrong: list[str] = []
    refusals: tuple[type[Exception], ...] = (LogDamaged, LogForeign, UnsupportedVersion)

    def refused(act: Callable[[], Any]) -> bool:
        try:
            act()
        except refusals:
            return True
        return False

    for bit in range(0, SEGMENT_HEADER * 8, step):
        disk.flip(path, bit)
        if not refused(lambda: opened(disk.copy(), 4, KILLED, segment_size=400)):
            wrong.append(f"bit {bit}")
        disk.flip(path, bit)
    assert wrong == []
