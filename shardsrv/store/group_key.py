"""The name of a group in the tables of a shard: ids and the revision that tells the lives of a reused id apart.

Layout, little-endian, 24 bytes: stream u32, topic u32, partition u32, a u32 of the user of the layout, created_revision
u64. The metadata group is all zero: no partition has revision 0. Pure.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from shardsrv._core import xxh3
from shardsrv.wire.constants import METADATA_GROUP
from shardsrv.wire.groups import pack_group

LAYOUT: Final = struct.Struct("<IIIIQ")
SIZE: Final = 24
assert LAYOUT.size == SIZE


class GroupKey(NamedTuple):
    """(stream, topic, partition, created_revision)."""

    stream: int
    topic: int
    partition: int
    created_revision: int

    @property
    def group(self) -> int:
        """The group id on the wire."""
        return METADATA_GROUP if self == METADATA else pack_group(self.stream, self.topic, self.partition)

    def pack(self, word: int = 0) -> bytes:
        """The 24 bytes, with ``word`` as the fourth field."""
        return LAYOUT.pack(self.stream, self.topic, self.partition, word, self.created_revision)


METADATA: Final = GroupKey(0, 0, 0, 0)


def unpack_key(data: bytes | memoryview) -> tuple[GroupKey, int]:
    """(key, fourth field) of at least 24 bytes."""
    stream, topic, partition, word, revision = LAYOUT.unpack_from(data)
    return GroupKey(stream, topic, partition, revision), word


def owner_shard(group: int, shard_count: int) -> int:
    """The shard that a group lives on when there are ``shard_count`` shards (2 or more); the metadata group lives on
    0."""
    if group == METADATA_GROUP:
        return 0
    return 1 + xxh3(group.to_bytes(8, "little")) % (shard_count - 1)
