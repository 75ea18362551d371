"""Which segments at the head of a partition's log may go, and what that takes from the partition. A pure decision.

The driver describes its segments (`SegmentTotals`, oldest first); the plan says how many go and what the
TruncatePartition entry must say. That entry commits first, then a checkpoint is made durable, then files are unlinked.

Invariants: only sealed segments go, from the head, without a gap; the newest segment stays; offsets are never
renumbered; what is removed is counted from the same totals that were counted when the batches were appended, so sizes
stay those of what is readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from shardsrv.wire.constants import UNLIMITED

NEVER: Final = UNLIMITED
"""Expiry, or size, that removes nothing."""


@attrs.frozen
class SegmentTotals:
    """One segment as the driver knows it.

    ``messages`` and ``bytes`` (of batches) count SendMessages above the purge op only, so a segment of before a purge
    counts nothing. ``next_offset`` is the offset after its last message (its base offset when it has none);
    ``newest_timestamp`` the append time in microseconds of its last entry.
    """

    first_op: int
    last_op: int
    next_offset: int
    messages: int
    bytes: int
    newest_timestamp: int
    sealed: bool


@attrs.frozen
class RetentionPlan:
    """Drop the first ``segments``; the entry to commit says ``first_offset`` and ``removed_bytes``."""

    segments: int
    first_offset: int
    removed_bytes: int


def plan_expiry(segments: Sequence[SegmentTotals], first_offset: int, now: int, expiry: int) -> RetentionPlan | None:
    """Segments whose newest entry is older than ``expiry`` microseconds at ``now``; None when there are none."""
    if expiry == NEVER:
        return None
    count = 0
    for segment in _removable(segments):
        if segment.newest_timestamp + expiry > now:
            break
        count += 1
    return _plan(segments, count, first_offset)


def plan_size(segments: Sequence[SegmentTotals], first_offset: int, limit: int) -> RetentionPlan | None:
    """Oldest segments, until what stays is at most ``limit`` bytes of batches; None when it is already."""
    if limit == NEVER:
        return None
    excess = sum(segment.bytes for segment in segments) - limit
    count = 0
    for segment in _removable(segments):
        if excess <= 0:
            break
        excess -= segment.bytes
        count += 1
    return _plan(segments, count, first_offset)


def plan_explicit(segments: Sequence[SegmentTotals], first_offset: int, wanted: int) -> RetentionPlan | None:
    """Up to ``wanted`` oldest sealed segments; None when none is sealed."""
    return _plan(segments, min(wanted, len(_removable(segments))), first_offset)


def plan_empty(segments: Sequence[SegmentTotals], first_offset: int, checkpoint_op: int) -> RetentionPlan | None:
    """Oldest segments without a readable message whose other entries are in the checkpoint of ``checkpoint_op``."""
    count = 0
    for segment in _removable(segments):
        if segment.messages or segment.last_op > checkpoint_op:
            break
        count += 1
    return _plan(segments, count, first_offset)


def _removable(segments: Sequence[SegmentTotals]) -> Sequence[SegmentTotals]:
    """The sealed segments at the head, never the newest one."""
    count = 0
    for segment in segments[:-1]:
        if not segment.sealed:
            break
        count += 1
    return segments[:count]


def _plan(segments: Sequence[SegmentTotals], count: int, first_offset: int) -> RetentionPlan | None:
    if count == 0:
        return None
    going = segments[:count]
    kept = first_offset
    for segment in going:
        if segment.messages:
            kept = max(kept, segment.next_offset)
    return RetentionPlan(count, kept, sum(segment.bytes for segment in going))
