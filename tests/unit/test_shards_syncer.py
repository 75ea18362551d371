"""A round of syncs over several logs: one call for all files, and what a failure means for whom."""

from typing import Any

import pytest

from shardsrv.errors import SyncFailed
from shardsrv.shards import syncer


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


def failing(monkeypatch: pytest.MonkeyPatch, bad: int) -> list[list[int]]:
    """Let the file ``bad`` fail with errno 5; returns the calls that were made."""
    calls: list[list[int]] = []

    def sync_files(handles: list[int]) -> tuple[int, int] | None:
        calls.append(list(handles))
        return (handles.index(bad), 5) if bad in handles else None

    monkeypatch.setattr(syncer, "sync_files", sync_files)
    return calls


def run(*plans: Any) -> None:
    syncer.run_together(list(plans))


def test_one_call_syncs_the_files_of_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = failing(monkeypatch, bad=-1)
    first, second = Plan([3, 4]), Plan([5])
    run(first, second)
    assert calls == [[3, 4, 5]]
    assert first.named and second.named


def test_a_file_that_fails_ends_the_round_and_nobody_is_taken_for_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, bad=5)
    first, second = Plan([3, 4]), Plan([5, 6])
    with pytest.raises(SyncFailed):
        run(first, second)
    assert second.refused == [(0, 5)]
    assert not first.named and not second.named


def test_a_partition_deleted_meanwhile_holds_up_nobody_and_is_not_taken_for_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = failing(monkeypatch, bad=3)
    gone, other = Plan([3, 4], closed=True), Plan([5])
    run(gone, other)
    assert calls == [[3, 4, 5], [5]]
    assert gone.refused == [(0, 5)] and not gone.named
    assert other.named


def test_files_are_synced_and_a_bad_descriptor_is_named(tmp_path: Any) -> None:
    with open(tmp_path / "a", "wb") as file:
        assert syncer.sync_files([file.fileno(), file.fileno()]) is None
        assert syncer.sync_files([file.fileno(), 1 << 20]) == (1, 9)
