"""Names under which a state transfer tells what happened. Tests and operators match the whole name; none is the
beginning of another, so that a degraded install is never taken for a full one."""

from __future__ import annotations

from typing import Final

SERVING: Final = "serving state transfer"
SERVED_AGAIN: Final = "answering from the offer already served"
REFUSED: Final = "cannot serve state transfer"
OFFER_EXPIRED: Final = "state transfer offer expired"
UNKNOWN_OFFER: Final = "chunk request of an unknown offer"
OUT_OF_BOUNDS: Final = "chunk request out of bounds"
READ_FAILED: Final = "offered artifact cannot be read"
CONVERTED: Final = "repair range evicted, converting to state transfer"
ARMED: Final = "requesting state transfer"
EVICTED_NOTED: Final = "repair range evicted during a transfer"
ORPHAN_DROPPED: Final = "orphaned transfer session dropped"
STALLED: Final = "transfer stalled"
DAMAGED: Final = "transferred artifacts do not hold"
ABANDONED: Final = "transfer abandoned, falling back to repair"
UNAVAILABLE: Final = "peer cannot serve a transfer, falling back to repair"
STAGING_FAILED: Final = "transfer ended by a fault of this node"
PAIR_RECORDED: Final = "transferred checkpoint recorded"
INSTALLED: Final = "state transfer installed"
INSTALLED_DEGRADED: Final = "transfer landed without a durable checkpoint pairing"
INSTALL_FAILED: Final = "transfer not installed, local state untouched"

ALL_NOTES: Final = (
    SERVING,
    SERVED_AGAIN,
    REFUSED,
    OFFER_EXPIRED,
    UNKNOWN_OFFER,
    OUT_OF_BOUNDS,
    READ_FAILED,
    CONVERTED,
    ARMED,
    EVICTED_NOTED,
    ORPHAN_DROPPED,
    STALLED,
    DAMAGED,
    ABANDONED,
    UNAVAILABLE,
    STAGING_FAILED,
    PAIR_RECORDED,
    INSTALLED,
    INSTALLED_DEGRADED,
    INSTALL_FAILED,
)
