"""The pump: the one loop that changes the state of a shard.

A turn takes records of lanes, frames of sockets, then writes every log that got entries with one call, then sends what was answered. Only code
that runs inside a turn, or inside `step` between two turns, touches planes and groups; none of it awaits.

Sleeping has two levels. While requests keep coming the pump waits for at most `LINGER_US` inside its own epoll set, which costs a
system call; only a shard that stays quiet goes back to trio's run loop, which costs ten times that. Other tasks of the shard (syncs, logins, timers) get
their turn at least every `TURN_BUDGET_NS`.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

import trio

from shardsrv.bus._net import Handler, Reactor
from shardsrv.shards.group import Group
from shardsrv.shards.links import Links

LINGER_US = 50
"""How long a turn may wait in the reactor for the next request: about the round trip of a client on the same machine."""

LINGER_TURNS = 3
"""Empty turns in a row after which the pump goes back to trio."""

TURN_BUDGET_NS = 1_000_000
"""How long the pump keeps the thread before other tasks of the shard run: their latency is bounded by it."""


class OnRecord(Protocol):
    def __call__(self, sender: int, kind: int, head: memoryview, body: memoryview, /) -> None: ...


class Pump:
    """Runs turns over one reactor and the lanes of one shard."""

    def __init__(self, reactor: Reactor, links: Links, handler: Handler, on_record: OnRecord) -> None:
        self._reactor = reactor
        self._links = links
        self._handler = handler
        self._on_record = on_record
        self._written: list[Group] = []
        self.after_write: Callable[[Group], None] = lambda group: None
        """Called for each group whose entries were written in a turn."""
        self.turns = 0

    def appended(self, group: Group) -> None:
        """The group has entries to write at the end of this turn."""
        self._written.append(group)

    def step(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run ``action`` between two turns, with all that it causes: for tasks of the shard."""
        action(*arguments)
        self.settle()

    def settle(self) -> None:
        """Write the logs of this turn, then send answers and records."""
        while self._written:
            groups, self._written = self._written, []
            for group in groups:
                group.flush()
                self.after_write(group)
        self._reactor.flush()
        self._links.publish()

    def turn(self, timeout_us: int) -> int:
        """One turn; waits up to ``timeout_us`` for something to do. Returns how much there was."""
        links = self._links
        if links.may_sleep():
            worked = self._reactor.poll(0 if self._reactor.has_backlog() else timeout_us, self._handler)
            links.wake.awake()
        else:
            worked = links.drain(self._on_record) + self._reactor.poll(0, self._handler)
        self.settle()
        self.turns += 1
        return worked

    def run_turns(self) -> None:
        """Turns until the shard is quiet or the budget is used up."""
        end = perf_counter_ns() + TURN_BUDGET_NS
        quiet = 0
        while quiet < LINGER_TURNS:
            if self.turn(LINGER_US):
                quiet = 0
                if perf_counter_ns() > end:
                    return
            else:
                quiet += 1

    async def run(self) -> None:
        """The task: until cancelled."""
        wake = self._links.wake
        while True:
            if self._links.may_sleep() and not self._links.has_waiting() and not self._reactor.has_backlog():
                await trio.lowlevel.wait_readable(self._reactor.epoll_fd)
            else:
                await trio.lowlevel.checkpoint()
            wake.awake()
            self.run_turns()
