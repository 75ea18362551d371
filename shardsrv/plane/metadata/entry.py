"""What every command is applied with: where it stands in the log, who asked for it, and where its consequences go."""

from __future__ import annotations

import attrs

from shardsrv.plane.metadata.changes import Change
from shardsrv.plane.metadata.state import MetadataState


@attrs.frozen(slots=True)
class Entry:
    """A committed entry. `timestamp` in microseconds; `client` (16 bytes) and `session` are those that asked."""

    op: int
    timestamp: int
    user_id: int
    client: bytes
    session: int
    state: MetadataState
    changes: list[Change]
