"""Which group a replica is a member of, and what an entry of its log must say.

Invariant: the next entry of a log names the op after the head, the head's identity as its parent, this group in this
life of it, and a later time.
"""

from __future__ import annotations

from typing import Any

import attrs

from shardsrv.errors import LogIncoherent
from shardsrv.wire.constants import MAX_OP


@attrs.frozen
class GroupIdentity:
    """Which group, and which member of it: ``cluster`` 16 bytes, ``replica`` below ``replica_count``."""

    cluster: bytes
    group: int
    created_revision: int
    replica: int = 0
    replica_count: int = 1


def check_continues(
    prepare: Any, identity: GroupIdentity, head_op: int, head_checksum: int, last_timestamp: int
) -> None:
    """Raise `LogIncoherent`, naming the field, unless ``prepare`` is the entry after the head."""
    for field, expected, found in (
        ("op", head_op + 1, prepare.op),
        ("parent", head_checksum, prepare.parent),
        ("group", identity.group, prepare.group),
        ("created_revision", identity.created_revision, prepare.created_revision),
        ("cluster", identity.cluster, prepare.cluster),
    ):
        if expected != found:
            raise LogIncoherent(group=identity.group, op=prepare.op, field=field, expected=expected, found=found)
    if prepare.timestamp <= last_timestamp or prepare.op > MAX_OP:
        raise LogIncoherent(
            group=identity.group,
            op=prepare.op,
            field="timestamp",
            expected=f"above {last_timestamp}",
            found=prepare.timestamp,
        )
