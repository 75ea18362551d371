"""What a node tells its replicas when it opens them, and how a cluster begins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from shardsrv.config import Config, load
from shardsrv.errors import ConfigurationError, Unreadable
from shardsrv.shards.genesis import Genesis, genesis_of, read_births, write_births
from shardsrv.shards.member_facts import disk_facts, new_incarnation, timeouts_of
from shardsrv.shards.passwords import Passwords
from shardsrv.shards.storage import PartitionStorage
from shardsrv.store.boot import BootEntry, BootFacts, BootHead
from shardsrv.store.disk import OsDisk
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.layout import DataDirectory
from shardsrv.store.log_opening import LogRecovery
from shardsrv.store.recovery import Action, Shape
from shardsrv.vsr.trust import SUSPECT, TRUSTED, judge

KEY = GroupKey(1, 2, 3, 4)
NOW, BEFORE = bytes([1]) * 16, bytes([2]) * 16
WHOLE = LogRecovery("whole", Action.ACCEPT, Shape.NONE, 0, 0)
ENVIRONMENT = {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "secret"}


def boot(key: GroupKey, *, clean: bool = False, boot_id: bytes = NOW, fenced: bool = False) -> BootFacts:
    return BootFacts(BootEntry(key, 10, 11, 12, fenced), BootHead(boot_id, clean, 1))


@pytest.mark.parametrize(
    ("key", "facts", "recovery", "verdict"),
    [
        (KEY, boot(KEY), WHOLE, TRUSTED),
        (KEY, boot(KEY, boot_id=BEFORE), WHOLE, SUSPECT),
        (KEY, boot(KEY, boot_id=BEFORE, clean=True), WHOLE, TRUSTED),
        (KEY, boot(KEY, fenced=True), WHOLE, SUSPECT),
        (KEY, boot(KEY), attrs.evolve(WHOLE, cut_op=9), SUSPECT),
        (KEY, boot(KEY, clean=True), attrs.evolve(WHOLE, cut_op=9), SUSPECT),
        (KEY, None, WHOLE, SUSPECT),
        (METADATA, boot(METADATA, boot_id=BEFORE), WHOLE, TRUSTED),
        (METADATA, boot(METADATA, boot_id=BEFORE), attrs.evolve(WHOLE, cut_op=9), SUSPECT),
        (METADATA, boot(METADATA, clean=True), attrs.evolve(WHOLE, cut_op=9), SUSPECT),
    ],
)
def test_trust_follows_from_boot_record_and_log(
    key: GroupKey, facts: BootFacts | None, recovery: LogRecovery, verdict: str
) -> None:
    assert judge(3, disk_facts(key, facts, NOW, recovery, first=False)) == verdict


def test_a_new_group_is_fresh_in_the_view_it_was_made_in() -> None:
    facts = disk_facts(KEY, None, NOW, WHOLE, first=True, born_view=5)
    assert facts.fresh and facts.born_view == 5 and judge(3, facts) == TRUSTED


def test_a_later_incarnation_is_greater() -> None:
    made = [new_incarnation() >> 64 for _ in range(3)]
    assert made == sorted(made) and made[0] > 1_700_000_000_000_000


def test_waits_become_whole_ticks_of_at_least_one() -> None:
    cluster, _ = load(environment={"IGGY_CLUSTER_PREPARE_RETRANSMIT_INTERVAL": "15 ms"})
    timeouts = timeouts_of(cluster.cluster)
    assert (timeouts.heartbeat, timeouts.commit, timeouts.prepare, timeouts.probe_attempts) == (500, 50, 1, 5)


# --- genesis ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def config() -> Config:
    return load(environment={"IGGY_USERS_ARGON2_MEMORY": "8 KiB", "IGGY_USERS_ARGON2_ITERATIONS": "1"})[0]


def begin(path: Path, config: Config, environment: dict[str, str]) -> Genesis:
    (path / "metadata").mkdir(parents=True, exist_ok=True)
    passwords = Passwords.of(frozenset({0}), config.users)
    return genesis_of(OsDisk(), str(path), config, environment, passwords)


def test_nodes_of_one_cluster_begin_with_the_same_bytes(tmp_path: Path, config: Config) -> None:
    one, two = (begin(tmp_path / name, config, ENVIRONMENT) for name in ("one", "two"))
    assert (one.digest, one.payload) == (two.digest, two.payload) and one.payload
    assert one.birth != two.birth, "each directory has a number of its own"
    other = begin(tmp_path / "three", config, ENVIRONMENT | {"IGGY_ROOT_PASSWORD": "another"})
    assert other.digest != one.digest


def test_what_a_node_began_with_is_known_at_later_starts(tmp_path: Path, config: Config) -> None:
    first = begin(tmp_path, config, ENVIRONMENT)
    (tmp_path / "metadata" / "snapshot.bin").write_bytes(first.payload or b"")
    assert begin(tmp_path, config, {}) == Genesis(first.digest, first.birth)
    (tmp_path / "metadata" / "genesis").write_text("no digest")
    with pytest.raises(Unreadable):
        begin(tmp_path, config, {})


def test_the_numbers_of_other_nodes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    assert read_births(OsDisk(), str(tmp_path)) == {}
    write_births(OsDisk(), str(tmp_path), {2: 255, 0: 1})
    assert read_births(OsDisk(), str(tmp_path)) == {0: 1, 2: 255}
    (tmp_path / "metadata" / "births").write_text("0 not-a-number\n")
    with pytest.raises(Unreadable):
        read_births(OsDisk(), str(tmp_path))


def test_a_new_cluster_needs_its_root_user_from_the_environment(tmp_path: Path, config: Config) -> None:
    with pytest.raises(ConfigurationError, match="IGGY_ROOT_USERNAME"):
        begin(tmp_path, config, {})


def storage_of(root: Path, shard: int, records: list[GroupKey]) -> PartitionStorage:
    """The storage of one shard of three over the directory ``root``."""
    context = SimpleNamespace(shard_count=3)
    host = SimpleNamespace(disk=OsDisk(), directory=DataDirectory(str(root)), shard=shard, context=context)
    storage = PartitionStorage(host)  # type: ignore[arg-type]
    storage._table = SimpleNamespace(records=lambda: dict.fromkeys(records))  # type: ignore[assignment]
    return storage


def test_a_partition_that_metadata_has_yet_to_commit_again_is_no_stray(tmp_path: Path) -> None:
    known, deleted, later = GroupKey(1, 1, 1, 5), GroupKey(1, 1, 2, 6), GroupKey(1, 1, 3, 9)
    (tmp_path / "partitions").mkdir()
    assert storage_of(tmp_path, 1, [known, deleted, later]).strays({known}, 8) == [deleted]


def test_a_directory_whose_record_was_never_written_is_a_stray_of_its_shard(tmp_path: Path) -> None:
    known, deleted, later = GroupKey(1, 1, 1, 5), GroupKey(1, 1, 2, 6), GroupKey(1, 2, 3, 9)
    layout = DataDirectory(str(tmp_path))
    for key in (known, deleted, later):
        Path(layout.partition(*key)).mkdir(parents=True)
    Path(layout.partition(1, 1, 9, 7) + ".damaged-1").mkdir()
    found = [key for shard in (1, 2) for key in storage_of(tmp_path, shard, [known]).strays({known}, 8)]
    assert found == [deleted], "one shard takes it, and only that"
