"""The simulated disk: what each sync makes durable, what a power loss may leave, and that a missing sync is noticed."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from shardsrv.errors import DiskFault
from shardsrv.sim.disk import BLOCK, Call, SimDisk
from shardsrv.sim.disk_faults import DiskFaults
from shardsrv.store.disk import OsDisk, read_all, replace_file, write_all

A, B, C = b"a" * 512, b"b" * 512, b"c" * 512


def make(path: str = "/d/f", data: bytes = b"") -> SimDisk:
    disk = SimDisk()
    disk.put(path, data)
    return disk


def contents(disk: SimDisk, path: str = "/d/f", limit: int = 4096) -> set[bytes | None]:
    """What a power loss may leave of a file; None: nothing of that name."""
    return {after.read(path) if after.exists(path) else None for after in disk.legal_outcomes(limit)}


def write(disk: SimDisk, data: bytes, position: int = 0, path: str = "/d/f") -> int:
    handle = disk.open_write(path, create=True)
    write_all(disk, handle, [data], position, len(data))
    return handle


# --- data ------------------------------------------------------------------------------------------------------------


def test_what_was_synced_is_the_only_outcome() -> None:
    disk = make()
    disk.fdatasync(write(disk, A + B))
    assert contents(disk) == {A + B}
    assert disk.choice_points() == []


def test_each_sector_of_an_unsynced_write_is_kept_or_lost_for_itself_and_so_is_the_length() -> None:
    disk = make()
    write(disk, A + B)
    assert contents(disk) == {b""} | {one + two for one in (bytes(512), A) for two in (bytes(512), B)}


def test_a_sector_holds_only_what_once_stood_in_memory() -> None:
    disk = make(data=bytes(512))
    write(disk, b"1", 0)
    write(disk, b"2", 1)
    assert contents(disk) == {bytes(512), b"1".ljust(512, b"\0"), b"12".ljust(512, b"\0")}


def test_writes_are_reordered_across_sectors() -> None:
    disk = make(data=A + A)
    write(disk, B, 0)
    write(disk, C, 512)
    assert contents(disk) == {A + A, B + A, A + C, B + C}


def test_torn_at_4_kib_when_the_disk_writes_that_as_one() -> None:
    disk = SimDisk(sector=BLOCK)
    disk.put("/d/f", bytes(2 * BLOCK))
    write(disk, b"x" * 2 * BLOCK)
    halves = (bytes(BLOCK), b"x" * BLOCK)
    assert contents(disk) == {one + two for one in halves for two in halves}


def test_a_truncation_is_kept_or_lost_and_what_it_cut_does_not_come_back() -> None:
    disk = make(data=A + B)
    handle = disk.open_write("/d/f")
    disk.truncate(handle, 100)
    zeroed = A[:100].ljust(512, b"\0")
    while_cut = {A + B, A[:100], zeroed + B, A + bytes(512), zeroed + bytes(512)}
    assert contents(disk) == while_cut, "a page that was zeroed in memory may be written before the new length"
    disk.truncate(handle, 2000)
    assert contents(disk) == while_cut | {zeroed.ljust(2000, b"\0")}
    disk.fdatasync(handle)
    assert contents(disk) == {zeroed.ljust(2000, b"\0")}


def test_reads_and_writes_beyond_the_end() -> None:
    disk = make(data=b"abc")
    handle = write(disk, b"z", 5)
    assert disk.read("/d/f") == b"abc\0\0z" and disk.size("/d/f") == 6
    first, second = bytearray(2), bytearray(10)
    assert disk.preadv(handle, [first, second], 1) == 5
    assert first == b"bc" and second[:3] == b"\0\0z"
    assert disk.preadv(handle, [first], 6) == 0


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_new_name_is_lost_or_kept_until_its_directory_is_synced() -> None:
    disk = make("/d/other", b"")
    disk.fdatasync(write(disk, A))
    assert contents(disk) == {None, A}
    disk.fsync_dir("/d")
    assert contents(disk) == {A}


def test_a_rename_is_kept_or_lost_as_one() -> None:
    disk = make(data=A)
    disk.put("/d/t", B)
    disk.rename("/d/t", "/d/f")
    assert {(after.read("/d/f"), after.exists("/d/t")) for after in disk.legal_outcomes()} == {(A, True), (B, False)}
    disk.fsync_dir("/d")
    assert contents(disk) == {B} and not disk.exists("/d/t")


def test_a_rename_before_the_data_is_synced_may_leave_an_empty_file() -> None:
    disk = make(data=A)
    write(disk, B, path="/d/t")
    disk.rename("/d/t", "/d/f")
    assert b"" in contents(disk) and bytes(512) in contents(disk) and A in contents(disk)


def test_removals_are_kept_or_lost_one_by_one() -> None:
    disk = make("/d/1", b"")
    disk.put("/d/2", b"")
    disk.unlink("/d/1")
    disk.unlink("/d/2")
    assert {tuple(after.listdir("/d")) for after in disk.legal_outcomes()} == {("1", "2"), ("1",), ("2",), ()}
    disk.fsync_dir("/d")
    assert [after.listdir("/d") for after in disk.legal_outcomes()] == [[]]


def test_a_directory_that_was_not_synced_takes_what_is_in_it_along() -> None:
    disk = make("/d/other", b"")
    disk.mkdir("/d/new/deep")
    disk.fdatasync(write(disk, A, path="/d/new/deep/f"))
    disk.fsync_dir("/d/new/deep")
    assert None in contents(disk, "/d/new/deep/f")
    disk.fsync_dir("/d/new")
    disk.fsync_dir("/d")
    assert contents(disk, "/d/new/deep/f") == {A}


def test_syncfs_covers_everything() -> None:
    disk = SimDisk()
    disk.mkdir("/x/y")
    handle = write(disk, A, path="/x/y/f")
    write(disk, B, path="/x/g")
    disk.syncfs(handle)
    assert disk.choice_points() == [] and [after.paths() for after in disk.legal_outcomes()] == [["/x/g", "/x/y/f"]]


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_kill_keeps_the_page_cache_and_a_crash_does_not() -> None:
    disk = make(data=A)
    handle = write(disk, B)
    disk.kill()
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.fdatasync(handle)
    assert disk.read("/d/f") == B
    disk.crash([0] * len(disk.choice_points()))
    assert disk.read("/d/f") == A


def test_a_crash_is_one_of_the_outcomes_and_the_same_for_the_same_seed() -> None:
    def state(seed: int) -> tuple[bytes, ...]:
        disk = make(data=A * 8)
        for turn in range(5):
            write(disk, bytes([turn]) * 900, turn * 700)
        disk.crash(random.Random(seed))
        return (disk.read("/d/f"),)

    assert [state(seed) for seed in range(30)] == [state(seed) for seed in range(30)]
    assert len({state(seed) for seed in range(60)}) > 20


def test_an_outcome_shares_nothing_with_the_disk_it_came_from() -> None:
    disk = make(data=A)
    write(disk, B)
    first, second = disk.legal_outcomes()
    write(first, C)
    assert disk.read("/d/f") == B and {first.read("/d/f"), second.read("/d/f")} == {C, B}
    twin = disk.copy()
    write(twin, C)
    assert contents(disk) == {A, B} and contents(twin) == {A, B, C}


def test_many_combinations_are_sampled_within_the_limit() -> None:
    disk = make(data=bytes(512 * 40))
    write(disk, b"x" * 512 * 40)
    outcomes = [after.read("/d/f") for after in disk.legal_outcomes(1024)]
    assert 500 < len(outcomes) <= 1024 and bytes(512 * 40) in outcomes and b"x" * 512 * 40 in outcomes
    assert len(set(outcomes)) == len(outcomes)


# --- faults ----------------------------------------------------------------------------------------------------------


def failing(name: str, number: int = errno.EIO) -> Callable[[Call], int | None]:
    def on_call(call: Call) -> int | None:
        if call.name == name:
            raise OSError(number, "injected")
        return None

    return on_call


def test_a_failed_sync_loses_its_pages_and_the_next_one_succeeds_without_them() -> None:
    disk = make(data=A)
    handle = write(disk, B)
    disk.on_call = failing("fdatasync")
    with pytest.raises(OSError, match="injected"):
        disk.fdatasync(handle)
    disk.on_call = None
    disk.fdatasync(handle)
    assert disk.read("/d/f") == B, "the page cache still shows it"
    assert contents(disk) == {A}, "and the disk does not have it"
    write(disk, B)
    disk.fdatasync(handle)
    assert contents(disk) == {B}, "written again and synced it is there"


def test_failed_and_short_writes() -> None:
    disk = make(data=A)
    handle = disk.open_write("/d/f")
    disk.on_call = failing("pwritev", errno.ENOSPC)
    with pytest.raises(OSError, match="injected"):
        disk.pwritev(handle, [B], 0)
    assert disk.read("/d/f") == A
    disk.on_call = lambda call: 5 if call.name == "pwritev" and call.length > 100 else None
    assert disk.pwritev(handle, [B], 0) == 5
    disk.on_call = lambda call: min(call.length, 100) if call.name == "pwritev" else None
    write_all(disk, handle, [C], 0, 512)
    assert disk.read("/d/f") == C


def test_a_full_disk() -> None:
    disk = SimDisk(capacity=1000)
    disk.mkdir("/d")
    handle = write(disk, bytes(600))
    assert disk.free_bytes("/d") == 400
    with pytest.raises(OSError, match="No space"):
        disk.pwritev(handle, [bytes(401)], 600)
    disk.fallocate(handle, 0, 1000)
    assert disk.free_bytes("/d") == 0 and disk.size("/d/f") == 600
    disk.pwritev(handle, [bytes(400)], 600)
    disk.unlink("/d/f")
    assert disk.free_bytes("/d") == 1000


def test_rot_at_rest_and_a_block_in_the_wrong_place() -> None:
    disk = make(data=bytes(3 * BLOCK))
    disk.flip("/d/f", 13)
    assert disk.read("/d/f")[1] == 32 and contents(disk) == {disk.read("/d/f")}
    disk.damage("/d/f", 2 * BLOCK, b"z" * BLOCK)
    disk.misdirect("/d/f", 2, "/d/f", 0)
    assert disk.read("/d/f") == b"z" * BLOCK + bytes(2 * BLOCK)
    write(disk, A)
    disk.flip("/d/f", 0)
    assert disk.read("/d/f")[:512] == A, "the page in memory hides it"
    assert {data[:1] for data in contents(disk) if data is not None} == {b"{", b"a"}


def test_faults_drawn_from_a_seed_occur_and_are_counted() -> None:
    def run(seed: int) -> tuple[dict[str, int], list[bool]]:
        disk = make()
        faults = disk.on_call = DiskFaults(
            random.Random(seed), write_error=0.2, write_full=0.1, short_write=0.3, sync_error=0.2, read_error=0.2
        )
        went_well = []
        for turn in range(200):
            try:
                replace_file(disk, "/d", "f", [bytes([turn]) * 50])
                went_well.append(read_all(disk, "/d/f", 100) == bytes([turn]) * 50)
            except DiskFault:
                went_well.append(False)
        return faults.counts, went_well

    counts, went_well = run(1)
    assert set(counts) == {"write_error", "write_full", "short_write", "sync_error", "read_error"}
    assert any(went_well) and not all(went_well)
    assert run(1) == (counts, went_well)


def test_a_slow_sync_lets_time_pass_before_it_takes_effect() -> None:
    disk = make(data=A)
    handle = write(disk, B)
    meanwhile = []
    disk.on_slow_sync = lambda path: meanwhile.append((path, contents(disk)))
    disk.fdatasync(handle)
    assert meanwhile == [("/d/f", {A, B})]


# --- a missing sync is noticed ---------------------------------------------------------------------------------------


class Without(SimDisk):
    """A disk whose named call does nothing: a driver that forgot it."""

    forgotten = ""

    def fdatasync(self, handle: int) -> None:
        if self.forgotten != "fdatasync":
            super().fdatasync(handle)

    def fsync_dir(self, path: str) -> None:
        if self.forgotten != "fsync_dir":
            super().fsync_dir(path)


def replaced(forgotten: str) -> set[bytes | None]:
    disk = Without()
    disk.put("/d/f", A)
    disk.forgotten = forgotten
    replace_file(disk, "/d", "f", [B])
    return contents(disk)


def test_a_replaced_file_is_the_new_one_and_a_planted_lack_of_either_sync_shows() -> None:
    assert replaced("") == {B}
    assert replaced("fsync_dir") == {A, B}
    assert b"" in replaced("fdatasync")


def test_at_every_call_of_a_replacement_the_old_or_the_new_file_is_there() -> None:
    disk = make(data=A)
    seen: list[set[bytes | None]] = []
    disk.after_call = lambda call: seen.append(contents(disk))
    replace_file(disk, "/d", "f", [B * 3])
    assert len(seen) == 6 and all(each <= {A, B * 3} for each in seen) and seen[0] == {A} and seen[-1] == {B * 3}


# --- it behaves as the operating system's disk -----------------------------------------------------------------------


def script(disk: SimDisk | OsDisk, base: str) -> list[object]:
    """Calls and what they answer; errors by type and number."""
    said: list[object] = []

    def call(action: Callable[[], object]) -> None:
        try:
            said.append(action())
        except OSError as error:
            said.append((type(error).__name__, error.errno))

    def content(path: str) -> bytes:
        return read_all(disk, path, 1000)

    call(lambda: disk.open_read(f"{base}/none"))
    call(lambda: disk.listdir(f"{base}/none"))
    call(lambda: disk.mkdir(f"{base}/x/y"))
    call(lambda: disk.mkdir(f"{base}/x/y"))
    call(lambda: disk.open_write(f"{base}/x/f"))
    handle = disk.open_write(f"{base}/x/f", exclusive=True)
    call(lambda: disk.open_write(f"{base}/x/f", exclusive=True))
    call(lambda: disk.pwritev(handle, [b"abc", memoryview(b"def")], 2))
    call(lambda: content(f"{base}/x/f"))
    call(lambda: disk.truncate(handle, 4))
    call(lambda: disk.truncate(handle, 6))
    call(lambda: disk.fallocate(handle, 0, 4096))
    call(lambda: disk.fdatasync(handle))
    call(lambda: disk.syncfs(handle))
    call(lambda: (content(f"{base}/x/f"), disk.size(f"{base}/x/f"), disk.listdir(f"{base}/x")))
    call(lambda: disk.rename(f"{base}/x/f", f"{base}/x/g"))
    call(lambda: disk.rename(f"{base}/x/f", f"{base}/x/g"))
    call(lambda: disk.fsync_dir(f"{base}/x"))
    call(lambda: disk.fsync_dir(f"{base}/x/g"))
    call(lambda: disk.mkdir(f"{base}/x/g"))
    call(lambda: disk.unlink(f"{base}/x/none"))
    call(lambda: disk.unlink(f"{base}/x/y"))
    call(lambda: disk.unlink(f"{base}/x/g"))
    call(lambda: disk.pwritev(handle, [b"still open"], 0))
    call(lambda: (disk.exists(f"{base}/x/g"), disk.exists(f"{base}/x"), disk.listdir(f"{base}/x")))
    call(lambda: disk.close(handle))
    call(lambda: disk.close(handle))
    return said


def test_calls_answer_as_those_of_the_operating_system(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert script(SimDisk(), "") == script(OsDisk(), str(tmp_path))
