"""What differs between the groups that one `Replica` class serves: frozen values, chosen once per group.

Invariants: a group keeps its requests apart either through the client table (metadata) or through the plane's window
of executed requests (partitions), never both; the pipeline fits into the suffix that a view change can carry.
"""

from __future__ import annotations

from typing import Final

import attrs

from shardsrv.errors import ConfigurationError
from shardsrv.vsr.timeouts import DEFAULT_TIMEOUTS, Timeouts

METADATA: Final = 0
PARTITION: Final = 1

REPLICATED: Final = 0
"""Durability of an entry: acknowledged when a quorum has appended it."""
PERSISTED: Final = 1
"""Durability of an entry: acknowledged when a quorum has synced it."""

PIPELINE_MAX: Final = 127
"""A view change describes 128 entries, one of them the commit point."""
CLIENTS_MAX: Final = 65_536
"""Ceiling of a client table: what one decoded table may claim to hold."""


@attrs.frozen
class GroupPolicy:
    """The rules of one group.

    Args:
        plane: METADATA or PARTITION.
        pipeline_depth: ops in flight, 1..127; beyond it the driver parks requests.
        always_synced: every entry is acknowledged only when synced, whatever the request asks for.
        clients_max: capacity of the client table, 0 for a group without one.
        timeouts: how long a member of a group with several waits.
        repair_chunk: entries in one answer of repair, 1..1024; an answer ends earlier at `REPAIR_BYTES`.
    Raises:
        ConfigurationError: a value outside its bounds.
    """

    plane: int
    pipeline_depth: int
    always_synced: bool
    clients_max: int
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    repair_chunk: int = 128

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.pipeline_depth <= PIPELINE_MAX:
            raise ConfigurationError(
                "prepare_queue_depth", self.pipeline_depth, f"must be between 1 and {PIPELINE_MAX}"
            )
        if not 1 <= self.repair_chunk <= 1024:
            raise ConfigurationError("repair_chunk_max", self.repair_chunk, "must be between 1 and 1024")
        if self.plane == METADATA and not 2 <= self.clients_max <= CLIENTS_MAX:
            raise ConfigurationError("clients_table_max", self.clients_max, f"must be between 2 and {CLIENTS_MAX}")
        if self.plane == PARTITION and self.clients_max:
            raise ConfigurationError("clients_table_max", self.clients_max, "a partition has no client table")


REPAIR_BYTES: Final = 8 << 20
"""Bytes of one answer of repair; at least one entry goes."""
SIDE_BYTES: Final = 64 << 20
"""Bytes of entries above a hole that a member keeps until the hole is filled."""
SIDE_ENTRIES: Final = 512
"""How many of them, and how far above the head they may lie."""


def metadata_policy(
    pipeline_depth: int = 32, clients_max: int = 8192, timeouts: Timeouts | None = None, repair_chunk: int = 128
) -> GroupPolicy:
    """The metadata group: always synced, requests told apart by the client table."""
    return GroupPolicy(METADATA, pipeline_depth, True, clients_max, timeouts or DEFAULT_TIMEOUTS, repair_chunk)


def partition_policy(
    pipeline_depth: int = 32, timeouts: Timeouts | None = None, repair_chunk: int = 128
) -> GroupPolicy:
    """A partition: durability as each request asks, requests told apart by the plane's window."""
    return GroupPolicy(PARTITION, pipeline_depth, False, 0, timeouts or DEFAULT_TIMEOUTS, repair_chunk)
