"""What an applied entry means for a shard: its partitions, groups, sessions. The driver drains them after each apply.

Invariant: replayed from a log, or applied on another shard, the same entries give the same changes; after a snapshot is
restored there are none, and the driver compares `MetadataPlane.owned` with what exists.
"""

from __future__ import annotations

import attrs

from shardsrv.plane.metadata.options_catalog import TopicSettings
from shardsrv.plane.metadata.state import PartitionIdentity


@attrs.frozen(slots=True)
class CreatedPartition:
    """`slot` indexes its counters; `created_view` is the metadata view in which it was created."""

    identity: PartitionIdentity
    slot: int
    created_view: int


@attrs.frozen(slots=True)
class PartitionsCreated:
    """New partitions of one topic, in ascending order."""

    partitions: tuple[CreatedPartition, ...]
    settings: TopicSettings


@attrs.frozen(slots=True)
class PartitionsDeleted:
    """Partitions that a command on them, their topic or their stream removed. Their `slots` are free again."""

    identities: tuple[PartitionIdentity, ...]
    slots: tuple[int, ...]


@attrs.frozen(slots=True)
class TopicPurged:
    """The partitions of one topic are to be emptied; `generation` is the op of the purge."""

    identities: tuple[PartitionIdentity, ...]
    generation: int


@attrs.frozen(slots=True)
class TopicUpdated:
    """The options of a topic, and with them what its partitions obey, changed."""

    identities: tuple[PartitionIdentity, ...]
    settings: TopicSettings


@attrs.frozen(slots=True)
class GroupChanged:
    """The assignment of a consumer group changed: its owners of partitions look at the group in the state. Hand-overs
    that are pending there are to be fenced, and reported when they are drained."""

    stream: int
    topic: int
    group: int
    created_revision: int
    generation: int


@attrs.frozen(slots=True)
class GroupDeleted:
    """A consumer group no longer exists: its stored offsets can go. Group ids of a topic are not used again."""

    stream: int
    topic: int
    group: int
    created_revision: int


@attrs.frozen(slots=True)
class UserDeleted:
    """A user no longer exists. Its sessions must end: the next user may get the same id, and they would act for it."""

    user_id: int


Change = PartitionsCreated | PartitionsDeleted | TopicPurged | TopicUpdated | GroupChanged | GroupDeleted | UserDeleted
