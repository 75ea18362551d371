"""Consensus group ids: u64 stream << 32 | topic << 20 | partition, or the metadata group 1 << 63.

Invariants: a packed partition id is below 2**52 (widths 20, 12, 20 bits); admission limits are tighter than the widths
for partitions. Ids are reused after a delete: the created_revision beside a group id tells the lives apart.
"""

from __future__ import annotations

from typing import Final

from shardsrv.errors import DecodeError, EncodeError
from shardsrv.wire.constants import METADATA_GROUP

MAX_STREAMS: Final = 1 << 20
MAX_TOPICS: Final = 1 << 12
MAX_PARTITIONS: Final = 1_000_000


def pack_group(stream: int, topic: int, partition: int) -> int:
    """The group id of a partition; raises EncodeError for an id outside its limit."""
    if not (0 <= stream < MAX_STREAMS and 0 <= topic < MAX_TOPICS and 0 <= partition < MAX_PARTITIONS):
        raise EncodeError(what="group id", value=(stream, topic, partition))
    return stream << 32 | topic << 20 | partition


def unpack_group(group: int) -> tuple[int, int, int]:
    """(stream, topic, partition) of a group id; raises DecodeError for the metadata group or anything out of limits."""
    stream, topic, partition = group >> 32, group >> 20 & 0xFFF, group & 0xFFFFF
    if not (0 <= stream < MAX_STREAMS and partition < MAX_PARTITIONS):
        raise DecodeError("group id", 0, "a partition group", group)
    return stream, topic, partition


def is_group(group: int) -> bool:
    """True for the metadata group and for every partition group within the limits."""
    return group == METADATA_GROUP or (0 <= group >> 32 < MAX_STREAMS and group & 0xFFFFF < MAX_PARTITIONS)
