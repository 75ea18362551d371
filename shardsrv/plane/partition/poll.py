"""Where a poll begins: the pure half of reading messages.

Nothing above the committed offset is returned, nothing below the first readable one; a start below that moves up to
it, so that a consumer that fell behind retention goes on with the oldest message that is left.

| strategy | begins at |
|---|---|
| 1 offset | value |
| 2 timestamp | the first message that was appended at or after value (microseconds) |
| 3 first | 0 |
| 4 last | max(0, committed - (count - 1)) |
| 5 next | stored offset + 1, or 0 when none is stored |
"""

from __future__ import annotations

from typing import Final

import attrs

from shardsrv.wire.constants import PollingKind

_OFFSET: Final = int(PollingKind.OFFSET)
_TIMESTAMP: Final = int(PollingKind.TIMESTAMP)
_FIRST: Final = int(PollingKind.FIRST)
_LAST: Final = int(PollingKind.LAST)
_NEXT: Final = int(PollingKind.NEXT)


@attrs.frozen
class PollPlan:
    """Read up to ``count`` messages from offset ``start``, or (``by_time``) from the first appended at or after
    ``start``."""

    by_time: bool
    start: int
    count: int


def plan_poll(
    kind: int, value: int, count: int, first_offset: int, next_offset: int, stored: int | None
) -> PollPlan | None:
    """The plan of a poll, or None when it returns nothing.

    Args:
        kind: strategy, 1..5; another one plans nothing (the decoder refuses it before).
        value: offset or timestamp in microseconds, u64.
        count: messages wanted, u32.
        first_offset, next_offset: readable are first_offset .. next_offset - 1, all committed.
        stored: the consumer's stored offset, None when there is none.
    """
    if count <= 0 or next_offset <= first_offset:
        return None
    if kind == _TIMESTAMP:
        return PollPlan(True, value, min(count, next_offset - first_offset))
    if kind == _OFFSET:
        start = value
    elif kind == _FIRST:
        start = 0
    elif kind == _LAST:
        start = max(0, next_offset - count)
    elif kind == _NEXT:
        start = 0 if stored is None else stored + 1
    else:
        return None
    start = max(start, first_offset)
    if start >= next_offset:
        return None
    return PollPlan(False, start, min(count, next_offset - start))
