"""What every part of a member uses to speak: tokens, the fields of its frames, and the durable-before-sent rule.

Invariant: a frame that speaks for a view is made only while `view_durable` holds, and one that describes the log only
while `log_synced` does as well; so a `Send` may always leave at once.
"""

from __future__ import annotations

from typing import Any

from shardsrv.vsr.effects import Send, SyncLog
from shardsrv.vsr.quorum import primary_of


def next_token(replica: Any) -> int:
    """The token of the next effect."""
    replica.token += 1
    return replica.token


def view_durable(replica: Any) -> bool:
    """Whether the superblock holds the present view and log view."""
    state = replica.durable_state
    return state is not None and state.view == replica.view and state.log_view == replica.log_view


def log_synced(replica: Any, out: list[Any]) -> bool:
    """Whether the whole log is on stable storage; asks for the sync when it is not."""
    m = replica.member
    if m.cut_token or m.transfer.installing:
        return False
    if m.log.synced_op >= replica.head_op:
        return True
    if not m.sync_token:
        m.sync_token = next_token(replica)
        out.append(SyncLog(m.sync_token))
    return False


def fields(replica: Any, **more: Any) -> dict[str, Any]:
    """The fields that every control frame of this member has."""
    identity = replica.identity
    return {
        "cluster": identity.cluster,
        "view": replica.view,
        "replica": identity.replica,
        "group": identity.group,
        "created_revision": identity.created_revision,
        **more,
    }


def broadcast(replica: Any, header: Any, body: bytes, out: list[Any]) -> None:
    """Send to every other member."""
    for peer in replica.member.others:
        out.append(Send(peer, header, body))



def primary(replica: Any) -> int:
    """The member that leads the present view."""
    return primary_of(replica.view, replica.identity.replica_count)
