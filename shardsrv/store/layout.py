"""Where everything lies below the data directory (docs/architecture.md, "Directory").

Invariants: names are made and parsed here and nowhere else; a segment's name is its first op in 20 digits, so that
names sort as ops do; a partition's directory carries its created_revision, because ids are reused and revisions are
not.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs

from shardsrv.store.group_key import GroupKey

SEGMENT_SUFFIX = ".seg"
INDEX_SUFFIX = ".idx"
SUPERBLOCK_SLOTS = ("superblock.a", "superblock.b")
CHECKPOINT_SLOTS = ("checkpoint.a", "checkpoint.b")
SNAPSHOT = "snapshot.bin"
FORGOTTEN = "forgotten"

_SEGMENT = re.compile(r"(\d{20})\.seg")
_GROUPS = re.compile(r"(\d{1,5})\.groups")
_BOOT = re.compile(r"(\d{1,5})\.boot")
_PARTITION = re.compile(r"(\d{1,10})-(\d{1,19})")


def segment_name(first_op: int) -> str:
    """File name of the segment that begins with ``first_op``."""
    return f"{first_op:020}{SEGMENT_SUFFIX}"


def index_name(first_op: int) -> str:
    """File name of the sparse index beside that segment."""
    return f"{first_op:020}{INDEX_SUFFIX}"


def segment_first_op(name: str) -> int | None:
    """The first op of a segment's file name; None for any other name."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def groups_table_shard(name: str) -> int | None:
    """The shard number of a group table's file name; None for any other name."""
    match = _GROUPS.fullmatch(name)
    return int(match[1]) if match else None


def boot_record_shard(name: str) -> int | None:
    """The shard number of a boot record's file name; None for any other name."""
    match = _BOOT.fullmatch(name)
    return int(match[1]) if match else None


def partition_of(name: str) -> tuple[int, int] | None:
    """(partition, created_revision) of a partition directory's name; None for any other name."""
    match = _PARTITION.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def partition_keys(root: str, names: Callable[[str], list[str]]) -> list[GroupKey]:
    """The partitions that have a directory below ``root`` (`DataDirectory.partitions`), in order; ``names`` lists a
    directory. What was set aside of one counts as none."""
    keys = []
    for stream in names(root):
        for topic in names(f"{root}/{stream}") if stream.isdigit() else ():
            for name in names(f"{root}/{stream}/{topic}") if topic.isdigit() else ():
                parsed = partition_of(name)
                if parsed is not None:
                    keys.append(GroupKey(int(stream), int(topic), *parsed))
    return sorted(keys)


@attrs.frozen
class DataDirectory:
    """Paths below ``root``."""

    root: str

    @property
    def description(self) -> str:
        return f"{self.root}/shardsrv.json"

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def ballast(self) -> str:
        return f"{self.root}/ballast"

    @property
    def current_config(self) -> str:
        return f"{self.root}/runtime/current_config.toml"

    @property
    def logs(self) -> str:
        return f"{self.root}/logs"

    @property
    def metadata(self) -> str:
        return f"{self.root}/metadata"

    @property
    def metadata_log(self) -> str:
        return f"{self.root}/metadata/log"

    @property
    def snapshot(self) -> str:
        return f"{self.root}/metadata/{SNAPSHOT}"

    @property
    def shards(self) -> str:
        return f"{self.root}/shards"

    @property
    def forgotten(self) -> str:
        """There while a node that was begun anew has not come back."""
        return f"{self.metadata}/{FORGOTTEN}"

    @property
    def partitions(self) -> str:
        return f"{self.root}/partitions"

    def group_table(self, shard: int) -> str:
        return f"{self.root}/shards/{shard}.groups"

    def boot_record(self, shard: int) -> str:
        return f"{self.root}/shards/{shard}.boot"

    def partition(self, stream: int, topic: int, partition: int, created_revision: int) -> str:
        return f"{self.root}/partitions/{stream}/{topic}/{partition}-{created_revision}"
