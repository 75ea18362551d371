"""State transfer of one group, both sides: what a replica composes and feeds.

A replica makes one `Transfer` with itself as host and hands it: frames of commands 22..25, the events of
`transfer_events`, ticks, and these facts: a peer evicted the range that repair asked for, or leads a view that this
member adopted with nothing (`range_evicted`), a superblock record became durable or failed (`pair_recorded`,
`pair_failed`), an election takes over (`abandon`). Invariant: `transferring` is the one guard that the replica asks
before it acknowledges, prepares or walks commits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shardsrv.vsr.policy import METADATA
from shardsrv.vsr.transfer_effects import TRANSFER_EFFECTS
from shardsrv.vsr.transfer_events import (
    TRANSFER_EVENTS,
    ChunkRead,
    ChunkStaged,
    Installed,
    LogRebased,
    OfferLoaded,
    StagedChecked,
    StagingOpened,
)
from shardsrv.vsr.transfer_host import TransferHost
from shardsrv.vsr.transfer_limits import PARTITION_ARTIFACT_MAX, PARTITION_MANIFEST_MAX, TransferLimits
from shardsrv.vsr.transfer_receiver import TransferReceiver
from shardsrv.vsr.transfer_server import TransferServer
from shardsrv.wire.constants import Command
from shardsrv.wire.replica_headers import (
    RequestStateChunkHeader,
    RequestStateTransferHeader,
    StateChunkHeader,
    StateTransferTargetHeader,
)

TRANSFER_COMMANDS: Final = (
    Command.REQUEST_STATE_TRANSFER,
    Command.STATE_TRANSFER_TARGET,
    Command.REQUEST_STATE_CHUNK,
    Command.STATE_CHUNK,
)


def limits_of(plane: int, **changes: Any) -> TransferLimits:
    """The limits of a group of ``plane``, with ``changes``."""
    if plane == METADATA:
        return TransferLimits(**changes)
    sizes = {"artifact_max": PARTITION_ARTIFACT_MAX, "manifest_max": PARTITION_MANIFEST_MAX}
    return TransferLimits(**(sizes | changes))


class Transfer:
    """See the module. ``draw`` gives nonces (`nonce.Nonces.draw`)."""

    __slots__ = ("receiver", "server")

    def __init__(self, host: TransferHost, limits: TransferLimits, draw: Callable[[], int]) -> None:
        self.server = TransferServer(host, limits)
        self.receiver = TransferReceiver(host, limits, draw)

    @property
    def transferring(self) -> bool:
        """Whether this member is fetching or installing a state."""
        return self.receiver.transferring

    def message(self, header: Any, body: Any, out: list[Any]) -> bool:
        """A frame of a peer; False when it is none of a transfer."""
        kind = type(header)
        if kind is RequestStateTransferHeader:
            self.server.request(header, out)
        elif kind is RequestStateChunkHeader:
            self.server.chunk_request(header, out)
        elif kind is StateTransferTargetHeader:
            self.receiver.target(header, body, out)
        elif kind is StateChunkHeader:
            self.receiver.chunk(header, body, out)
        else:
            return False
        return True

    def event(self, event: Any, out: list[Any]) -> None:
        """An answer of the driver (`transfer_events`)."""
        _ANSWERS[type(event)](self, event, out)

    def tick(self, out: list[Any], count: int = 1) -> None:
        """``count`` times 10 ms passed; more than one only while neither side holds anything."""
        self.server.tick(out)
        self.receiver.tick(out, count)

    def range_evicted(self, peer: int, first_retained: int, out: list[Any]) -> bool:
        """See `TransferReceiver.range_evicted`."""
        return self.receiver.range_evicted(peer, first_retained, out)

    def pair_recorded(self, checkpoint_op: int, out: list[Any]) -> None:
        """See `TransferReceiver.pair_recorded`."""
        self.receiver.pair_recorded(checkpoint_op, out)

    def pair_failed(self, out: list[Any]) -> None:
        """See `TransferReceiver.pair_failed`."""
        self.receiver.pair_failed(out)

    def abandon(self, out: list[Any]) -> bool:
        """See `TransferReceiver.abandon`."""
        return self.receiver.abandon(out)


_ANSWERS: Final[dict[type, Callable[[Transfer, Any, list[Any]], None]]] = {
    OfferLoaded: lambda transfer, event, out: transfer.server.loaded(event, out),
    ChunkRead: lambda transfer, event, out: transfer.server.chunk_read(event, out),
    StagingOpened: lambda transfer, event, out: transfer.receiver.staging_opened(event, out),
    ChunkStaged: lambda transfer, event, out: transfer.receiver.chunk_staged(event, out),
    StagedChecked: lambda transfer, event, out: transfer.receiver.staged_checked(event, out),
    Installed: lambda transfer, event, out: transfer.receiver.installed(event, out),
    LogRebased: lambda transfer, event, out: transfer.receiver.log_rebased(event, out),
}

__all__ = [
    "TRANSFER_COMMANDS",
    "TRANSFER_EFFECTS",
    "TRANSFER_EVENTS",
    "Transfer",
    "TransferHost",
    "TransferLimits",
    "TransferReceiver",
    "TransferServer",
    "limits_of",
]
