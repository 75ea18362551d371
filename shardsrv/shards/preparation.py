"""What the supervisor does to the data directory before it forks shards: one process, nothing async, every file quiet.

Group tables are brought to the present owners when the shard count changed; the boot records of the life before are
read once, because each shard makes its own anew while it recovers.
"""

from collections.abc import Mapping
from pathlib import Path

import attrs

from shardsrv.config import Config
from shardsrv.shards.genesis import Genesis, genesis_of, read_births
from shardsrv.shards.passwords import Passwords
from shardsrv.shards.rejoin import forgotten_birth
from shardsrv.store.boot import BootFacts, merge_boot_files, read_boot_files
from shardsrv.store.disk import Disk, OsDisk, sync_names
from shardsrv.store.group_key import GroupKey, owner_shard
from shardsrv.store.groups import GroupRecord, consolidate, merge_tables, nameless, read_tables
from shardsrv.store.layout import DataDirectory


@attrs.frozen
class Prepared:
    """Facts of the life before, shared by all shards through the fork."""

    boot: dict[GroupKey, BootFacts]
    generation: int
    """Of the boot records that the shards make now."""
    records: dict[GroupKey, GroupRecord]
    nameless: int
    """Pairs of the group tables that nobody can name: a group with data and without a record is then in doubt, not
    new."""
    genesis: Genesis | None = None
    """How the cluster began; None for a single node."""
    births: dict[int, int] = attrs.field(factory=dict)
    """The numbers of the other nodes' data directories, as far as they were met."""
    forgotten: bool = False
    """Whether the node was begun anew and has not come back yet (`shards.rejoin`)."""


def prepare(data: Path, shard_count: int, disk: Disk | None = None) -> Prepared:
    """Bring the tables to ``shard_count`` shards and read what was known before. Raises `DiskFault`,
    `UnsupportedVersion`."""
    disk = disk or OsDisk()
    directory = DataDirectory(str(data))
    for path in (directory.shards, directory.metadata, directory.partitions):
        disk.mkdir(path)
    sync_names(disk, directory.root, (directory.shards,))
    consolidate(disk, directory.shards, lambda key: owner_shard(key.group, shard_count), range(1, shard_count))
    tables = read_tables(disk, directory.shards)
    boot, generation = merge_boot_files(read_boot_files(disk, directory.shards).values())
    return Prepared(boot, generation + 1, merge_tables(tables), len(nameless(tables)))


def with_genesis(
    prepared: Prepared, data: Path, config: Config, environment: Mapping[str, str], affinity: frozenset[int]
) -> Prepared:
    """``prepared`` for a node of a cluster. Raises as `genesis_of`."""
    passwords = Passwords.of(affinity, config.users)
    disk = OsDisk()
    genesis = genesis_of(disk, str(data), config, environment, passwords)
    return attrs.evolve(
        prepared,
        genesis=genesis,
        births=read_births(disk, str(data)),
        forgotten=forgotten_birth(disk, DataDirectory(str(data))) is not None,
    )
