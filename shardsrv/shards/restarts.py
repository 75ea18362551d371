"""When a node that died is started again: back-off and the crash loop. Pure: the clock is an argument.

Rules: the first restart is at once, then the delay doubles up to a bound; 10 s of readiness forget it. Three deaths in
a row before readiness, or five of one cause within 60 s, are a crash loop. A kill signal is nobody's defect: it is no
cause, it is not counted before readiness either, and its delay stays small, so that a killed shard is back soon.
"""

from __future__ import annotations

from collections import deque

import attrs

from shardsrv.errors import CrashLoop

READINESS_FORGIVES_SECONDS = 10.0
FIRST_DELAY_SECONDS = 0.25
LONGEST_DELAY_SECONDS = 10.0
KILLED_DELAY_SECONDS = 0.5
DEATHS_BEFORE_READINESS = 3
DEATHS_OF_ONE_CAUSE = 5
CAUSE_WINDOW_SECONDS = 60.0


@attrs.define(eq=False)
class RestartPolicy:
    """What is remembered between the lives of one node."""

    _restarts: int = 0
    _unready_deaths: int = 0
    _causes: deque[tuple[float, str]] = attrs.field(factory=deque)

    def died(self, now: float, cause: str, *, ready_since: float | None, killed: bool) -> float:
        """Seconds to wait before the next start.

        Args:
            now: monotonic seconds.
            cause: what makes two deaths the same.
            ready_since: when the node that died had become ready, None if it never had.
            killed: whether a kill signal ended it.

        Raises:
            CrashLoop: it is not to be started again.
        """
        if ready_since is not None:
            self._unready_deaths = 0
            if now - ready_since >= READINESS_FORGIVES_SECONDS:
                self._restarts = 0
        if not killed:
            self._count(now, cause, ready=ready_since is not None)
        self._restarts += 1
        if self._restarts == 1:
            return 0.0
        longest = KILLED_DELAY_SECONDS if killed else LONGEST_DELAY_SECONDS
        return min(FIRST_DELAY_SECONDS * 2.0 ** min(self._restarts - 2, 16), longest)

    def _count(self, now: float, cause: str, *, ready: bool) -> None:
        if not ready:
            self._unready_deaths += 1
        self._causes.append((now, cause))
        while self._causes and now - self._causes[0][0] > CAUSE_WINDOW_SECONDS:
            self._causes.popleft()
        same = [when for when, other in self._causes if other == cause]
        if self._unready_deaths >= DEATHS_BEFORE_READINESS or len(same) >= DEATHS_OF_ONE_CAUSE:
            deaths = max(self._unready_deaths, len(same))
            raise CrashLoop(cause=cause, deaths=deaths, seconds=round(now - same[0], 1))
