"""State transfers of the groups of one shard: what their drivers ask of the disk is done in threads, beside the pump.

Invariants: the jobs of one group run one after the other, in the order in which they were asked for; their events reach
the group between two turns; what a group that is gone has asked for is done and told to nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import structlog
import trio

from shardsrv.shards.group import Group
from shardsrv.shards.pump import Pump
from shardsrv.vsr.transfer_effects import Note, RebaseLog


class TransfersHost(Protocol):
    """What transfers need of their shard."""

    pump: Pump
    log: structlog.stdlib.BoundLogger

    def start(self, task: Callable[..., Any], *arguments: Any) -> None:
        """Run a task beside the pump."""


class Transfers:
    """See the module."""

    def __init__(self, host: TransfersHost) -> None:
        self._host = host
        self._jobs: dict[Group, deque[tuple[Callable[[], Any], bool]]] = {}

    def carry_out(self, group: Group, effect: Any) -> None:
        """Begin what an effect of the group's transfer asks for."""
        if type(effect) is Note:
            self._note(group, effect)
            return
        job = group.transfer.start(effect)
        if job is None:
            return
        # A log that was replaced is told in the step that replaced it: nothing may come between.
        waiting = self._jobs.get(group)
        if waiting is None:
            self._jobs[group] = deque([(job, type(effect) is RebaseLog)])
            self._host.start(self._work, group)
        else:
            waiting.append((job, type(effect) is RebaseLog))

    async def _work(self, group: Group) -> None:
        """One job after another until there is none."""
        waiting = self._jobs[group]
        while waiting:
            job, here = waiting.popleft()
            event = job() if here else await trio.to_thread.run_sync(job)
            if group.fault is None:
                self._host.pump.step(group.deliver, event)
        del self._jobs[group]

    def _note(self, group: Group, note: Note) -> None:
        say = getattr(self._host.log, note.level)
        say(f"state transfer: {note.name}", group=group.replica.identity.group, **note.facts)
