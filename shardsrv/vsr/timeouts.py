"""How long a member waits, in ticks of 10 ms. One value for all groups of a node; the simulator may shorten them.

Invariants, checked when the value is made: every wait is at least one tick; a backup waits for at least four heartbeats
and a view change for at least four retransmissions before it gives up.
"""

from __future__ import annotations

from typing import Final

import attrs

from shardsrv.errors import ConfigurationError

BACKOFF_SHIFT_MAX: Final = 4
"""A prepare that nobody acknowledges is sent again after 1, 2, 4, 8, then always 16 intervals."""


@attrs.frozen
class Timeouts:
    """All in ticks but ``probe_attempts`` and ``clock_slack`` (microseconds).

    Raises `ConfigurationError` for a value outside its bounds.
    """

    prepare: int = 25
    commit: int = 50
    heartbeat: int = 500
    view_change: int = 50
    view_change_status: int = 500
    probe: int = 100
    probe_attempts: int = 5
    repair: int = 100
    clock_slack: int = 10_000_000

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if value < 1:
                raise ConfigurationError(name, value, "must be at least one tick")
        if self.heartbeat < 4 * self.commit:
            raise ConfigurationError("heartbeat_timeout", self.heartbeat, "must be at least four commit broadcasts")
        if self.view_change_status < 4 * self.view_change:
            raise ConfigurationError(
                "view_change_status_timeout", self.view_change_status, "must be at least four retransmissions"
            )


DEFAULT_TIMEOUTS: Final = Timeouts()
