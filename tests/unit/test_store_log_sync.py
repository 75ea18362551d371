"""A round of syncs over several logs: one call for all files, and what a failure means for whom."""

from pathlib import Path
from typing import Any

import pytest

from shardsrv.errors import SyncFailed
from shardsrv.store._disk import sync_files
from shardsrv.store.disk import OsDisk
from shardsrv.store.log_sync import run_together


class Plan:
    """Stands in for `store.log_sync.SyncPlan`: files, and whether its log was closed meanwhile."""

    def __init__(self, fds: list[int], closed: bool = False) -> None:
        self.fds = fds
        self.closed = closed
        self.refused: list[tuple[int, int]] = []
        self.named = False

    def refuse(self, position: int, number: int) -> None:
        self.refused.append((position, number))
        if not self.closed:
            raise SyncFailed("x", number)

    def run_names(self) -> None:
        self.named = True


class BadFile(OsDisk):
    """Writes down the calls; the file ``bad`` fails with errno 5."""

    def __init__(self, bad: int = -1) -> None:
        super().__init__()
        self.bad = bad
        self.calls: list[list[int]] = []
        self.fdatasync_all = self._fdatasync_all  # type: ignore[assignment]

    def _fdatasync_all(self, handles: list[int]) -> tuple[int, int] | None:
        self.calls.append(handles)
        return (handles.index(self.bad), 5) if self.bad in handles else None


def run(disk: BadFile, *plans: Any) -> None:
    run_together(disk, list(plans))


def test_one_call_syncs_the_files_of_all_plans() -> None:
    disk = BadFile()
    first, second = Plan([3, 4]), Plan([5])
    run(disk, first, second)
    assert disk.calls == [[3, 4, 5]]
    assert first.named and second.named


def test_a_file_that_fails_ends_the_round_and_nobody_is_taken_for_synced() -> None:
    first, second = Plan([3, 4]), Plan([5, 6])
    with pytest.raises(SyncFailed):
        run(BadFile(5), first, second)
    assert second.refused == [(0, 5)]
    assert not first.named and not second.named


def test_a_partition_deleted_meanwhile_holds_up_nobody_and_is_not_taken_for_synced() -> None:
    disk = BadFile(3)
    gone, other = Plan([3, 4], closed=True), Plan([5])
    run(disk, gone, other)
    assert disk.calls == [[3, 4, 5], [5]]
    assert gone.refused == [(0, 5)] and not gone.named
    assert other.named


def test_files_are_synced_and_a_bad_descriptor_is_named(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        assert sync_files([file.fileno(), file.fileno()]) is None
        assert sync_files([file.fileno(), 1 << 20]) == (1, 9)
