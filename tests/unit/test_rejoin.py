"""A data directory that is begun anew: what is kept of it, what it says, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardsrv.bus.handshake import ANEW
from shardsrv.config import Config, load
from shardsrv.errors import ConfigurationError, DataDirectoryForeign, DataDirectoryLocked, DiskFault, Unreadable
from shardsrv.shards.directory import ClaimedDirectory
from shardsrv.shards.genesis import genesis_of
from shardsrv.shards.passwords import Passwords
from shardsrv.shards.rejoin import begin_anew, came_back, forgotten_birth
from shardsrv.store.disk import OsDisk
from shardsrv.store.layout import DataDirectory

DISK = OsDisk()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def birth_of(data: Path) -> int | None:
    return forgotten_birth(DISK, DataDirectory(str(data)))


def contents(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def test_a_missing_directory_is_made_and_says_that_it_forgot(data: Path) -> None:
    assert begin_anew(data, "c", 2) is None
    birth = birth_of(data)
    assert birth is not None and birth & ANEW and birth < 1 << 64
    ClaimedDirectory.open(data, cluster="c", node=2).close()
    assert birth_of(data) == birth, "a start leaves it as it is"


def test_what_a_directory_held_is_kept_under_a_name_of_its_own_each_time(data: Path) -> None:
    ClaimedDirectory.open(data, cluster="c", node=2).close()
    (data / "metadata" / "snapshot.bin").write_bytes(b"a state")
    (data / "partitions" / "1").mkdir()
    (data / "logs").mkdir()
    (data / "logs" / "shardsrv.log").write_bytes(b"lines")
    (data / "ballast").write_bytes(bytes(100))
    kept = begin_anew(data, "c", 2)
    assert kept == str(data / "before-recover-1")
    assert (Path(kept) / "metadata" / "snapshot.bin").read_bytes() == b"a state"
    assert (Path(kept) / "partitions" / "1").is_dir()
    assert not (data / "partitions").exists() and not (data / "metadata" / "snapshot.bin").exists()
    assert (data / "logs" / "shardsrv.log").exists() and (data / "ballast").exists()
    first = birth_of(data)
    assert begin_anew(data, "c", 2) == str(data / "before-recover-2")
    assert (Path(kept) / "metadata" / "snapshot.bin").read_bytes() == b"a state"
    second = birth_of(data)
    assert first is not None and second is not None and second > first, "the latest is the one that counts"


def test_a_directory_of_another_node_or_in_use_is_left_alone(data: Path) -> None:
    claimed = ClaimedDirectory.open(data, cluster="c", node=2)
    (data / "metadata" / "snapshot.bin").write_bytes(b"a state")
    with pytest.raises(DataDirectoryLocked):
        begin_anew(data, "c", 2)
    claimed.close()
    before = contents(data)
    for cluster, node in (("c", 1), ("another", 2)):
        with pytest.raises(DataDirectoryForeign):
            begin_anew(data, cluster, node)
    assert contents(data) == before


def test_a_directory_that_cannot_be_changed_is_said_to_be_so(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ClaimedDirectory.open(data, cluster="c", node=2).close()
    (data / "metadata" / "snapshot.bin").write_bytes(b"a state")

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(1, "Operation not permitted", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ConfigurationError, match="cannot be begun anew"):
        begin_anew(data, "c", 2)
    assert birth_of(data) is None
    ClaimedDirectory.open(data, cluster="c", node=2).close()  # the lock is free again


def test_a_mark_that_is_no_number_is_not_guessed_at(data: Path) -> None:
    begin_anew(data, "c", 2)
    (data / "metadata" / "forgotten").write_text("soon")
    with pytest.raises(Unreadable):
        birth_of(data)


def test_who_came_back_is_marked_no_more(data: Path) -> None:
    begin_anew(data, "c", 2)
    came_back(DISK, DataDirectory(str(data)))
    assert birth_of(data) is None
    with pytest.raises(DiskFault):
        came_back(DISK, DataDirectory(str(data)))


def test_the_number_is_that_of_the_beginning_of_the_node(data: Path) -> None:
    config: Config = load(environment={"IGGY_USERS_ARGON2_MEMORY": "8 KiB", "IGGY_USERS_ARGON2_ITERATIONS": "1"})[0]
    passwords = Passwords.of(frozenset({0}), config.users)
    root = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "a password"}
    begin_anew(data, "c", 2)
    assert genesis_of(DISK, str(data), config, root, passwords).birth == birth_of(data)
    came_back(DISK, DataDirectory(str(data)))
    other = genesis_of(DISK, str(data), config, root, passwords)
    assert 0 < other.birth < ANEW
