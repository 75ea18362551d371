"""Heartbeats: members of consumer groups that fell silent lose their session, so that their partitions go to others
(wire-protocol.md 5).

A connection without a membership is left alone, however silent. A frame only sets `Session.active`; the clock is read
here, once a round for all.
"""

from collections.abc import Callable
from typing import Protocol

import trio

from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.shards.session import Session
from shardsrv.shards.sessions import Sessions

SILENCE = 1.2
"""Intervals of silence after which a member is evicted."""

ROUNDS = 4
"""Looks in one interval: a member is evicted at most a quarter of an interval late."""


class HeartbeatHost(Protocol):
    """What heartbeats need of the shard."""

    plane: MetadataPlane
    sessions: Sessions


class Heartbeats:
    """The task that looks for silent members on one shard."""

    def __init__(
        self, host: HeartbeatHost, interval: float, *, evict: Callable[[Session], None], step: Callable[..., None]
    ) -> None:
        self._host = host
        self._interval = interval
        self._evict = evict
        self._step = step

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(self._interval / ROUNDS)
            self._step(self.look, trio.current_time())

    def look(self, now: float) -> None:
        """Evict who is a member and was silent for too long at ``now``."""
        memberships = self._host.plane.state.memberships
        for session in self._host.sessions.all():
            if session.active:
                session.active = False
                session.seen = now
            elif session.bound and session.client in memberships and now - session.seen > SILENCE * self._interval:
                self._evict(session)
