"""One attempt of a receiver to fetch a state from one peer, and the frames with which it asks.

Invariants: a session has one nonce and one peer for its life; what was accepted for it (descriptor, checked content) is
never replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shardsrv.vsr.effects import Send
from shardsrv.vsr.transfer_host import TransferHost
from shardsrv.vsr.transfer_install import Checked, InstallPlan, Target
from shardsrv.vsr.transfer_stage import AWAITING_TARGET
from shardsrv.vsr.transfer_window import Piece, PullWindow
from shardsrv.wire.replica_headers import RequestStateChunkHeader, RequestStateTransferHeader

ANY_PEER: Final = -1
"""The peer of a session that waits for a view to be adopted: nobody was asked yet."""


class Session:
    """``target`` is None until a descriptor was accepted (an accepted empty one is not None); ``window`` None until the
    staging is open; ``content`` None until everything is checked."""

    __slots__ = ("content", "idle_ticks", "nonce", "peer", "plan", "stage", "staging", "target", "token", "window")

    def __init__(self, peer: int, nonce: int) -> None:
        self.stage: int = AWAITING_TARGET
        self.peer = peer
        self.nonce = nonce
        self.target: Target | None = None
        self.window: PullWindow | None = None
        self.staging: dict[int, int] = {}  # token -> bytes of a chunk that is being written
        self.token = 0  # of the one other effect that is under way
        self.content: Checked | None = None
        self.plan: InstallPlan | None = None
        self.idle_ticks = 0


def _fields(host: TransferHost, session: Session) -> dict[str, Any]:
    identity = host.identity
    return {
        "cluster": identity.cluster,
        "view": host.view,
        "replica": identity.replica,
        "group": identity.group,
        "created_revision": identity.created_revision,
        "nonce": session.nonce,
    }


def ask_target(host: TransferHost, session: Session, out: list[Any]) -> None:
    """Ask the peer for its descriptor."""
    out.append(Send(session.peer, RequestStateTransferHeader(**_fields(host, session)), b""))


def ask_chunks(host: TransferHost, session: Session, pieces: Sequence[Piece], out: list[Any]) -> None:
    """Ask the peer for pieces of artifacts."""
    for index, offset, length in pieces:
        header = RequestStateChunkHeader(**_fields(host, session), artifact=index, offset=offset, length=length)
        out.append(Send(session.peer, header, b""))
