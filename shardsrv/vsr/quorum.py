"""How many members decide.

One rule for every cluster size: a majority, for replication and for view change alike, so that any two quorums share a
member. A nack quorum is the smallest number of members of which one is in every replication quorum: that many denials
prove that an entry was never acknowledged.

| members | replication, view change | nack |
|---|---|---|
| 1 | 1 | 1 |
| 2 | 2 | 1 |
| 3 | 2 | 2 |
| 4 | 3 | 2 |
| 5 | 3 | 3 |
| 6 | 4 | 3 |
| 7 | 4 | 4 |
"""

from __future__ import annotations

from typing import Final

from shardsrv.errors import ConfigurationError

REPLICAS_MAX: Final = 32
"""A replica is one bit of a mask of acknowledgements and one byte of a header; clients are told of at most this
many."""


def _members(replica_count: int) -> int:
    if not 1 <= replica_count <= REPLICAS_MAX:
        raise ConfigurationError("replica_count", replica_count, f"must be between 1 and {REPLICAS_MAX}")
    return replica_count


def replication_quorum(replica_count: int) -> int:
    """Members that must hold an entry before it is committed. Raises `ConfigurationError` outside 1..32."""
    return _members(replica_count) // 2 + 1


def view_change_quorum(replica_count: int) -> int:
    """Members whose logs must be seen before a view starts. Raises `ConfigurationError` outside 1..32."""
    return replication_quorum(replica_count)


def nack_quorum(replica_count: int) -> int:
    """Members that must deny an entry before it may be dropped. Raises `ConfigurationError` outside 1..32."""
    return _members(replica_count) - replication_quorum(replica_count) + 1


def primary_of(view: int, replica_count: int) -> int:
    """The replica that leads ``view``."""
    return view % replica_count
