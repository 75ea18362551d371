"""The pump: the one loop that changes the state of a shard.

A turn takes records of lanes, frames of sockets, then writes every log that got entries with one call, then sends what
was answered. Only code that runs inside a turn, or inside `step` between two turns, touches planes and groups; none of
it awaits.

Sleeping has two levels. While requests keep coming the pump waits for at most `LINGER_US` inside its own epoll set,
which costs a system call; only a shard that stays quiet goes back to trio's run loop, which costs ten times that. Other
tasks of the shard (syncs, logins, timers) get their turn at least every `TURN_BUDGET_NS`.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

import trio

from shardsrv.bus._frame import Frame
from shardsrv.bus._net import Handler, Reactor
from shardsrv.shards.group import Group
from shardsrv.shards.links import Links

LINGER_US = 50
"""How long a turn may wait in the reactor for the next request: about the round trip of a client on the same
machine."""

LINGER_TURNS = 3
"""Empty turns in a row after which the pump goes back to trio."""

TURN_BUDGET_NS = 1_000_000
"""How long the pump keeps the thread before other tasks of the shard run: their latency is bounded by it."""


class OnRecord(Protocol):
    def __call__(self, sender: int, kind: int, head: memoryview, body: memoryview, /) -> None: ...


class ConnectionHandler:
    """The reactor's handler made of three functions: one call less for each frame than methods that pass it on."""

    __slots__ = ("on_close", "on_frame", "on_wake")

    def __init__(
        self,
        on_frame: Callable[[Frame], object],
        on_close: Callable[[int, int], object],
        on_wake: Callable[[int], object],
    ) -> None:
        self.on_frame = on_frame
        self.on_close = on_close
        self.on_wake = on_wake


class Pump:
    """Runs turns over one reactor and the lanes of one shard."""

    def __init__(
        self, reactor: Reactor, links: Links, written: list[Group], handler: Handler, on_record: OnRecord
    ) -> None:
        self._reactor = reactor
        self._links = links
        self.handler = handler
        """What the reactor calls; replaced once by the shard that has connections."""
        self._on_record = on_record
        self._written = written
        self.outlet: Any = None
        """Links to other nodes (`bus.replica_links.ReplicaLinks`); None for a node alone."""
        self.syncer: Any = None
        """The shard's `syncer.Syncer`; None where nothing is synced."""
        self.turns = 0
        self.asleep_since = 0.0
        """`trio.current_time` when the pump went to sleep; 0 while it is awake."""

    def step(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run ``action`` between two turns, with all that it causes: for tasks of the shard."""
        action(*arguments)
        self.settle_beside()

    def settle_beside(self) -> None:
        """`settle` between two turns. What it leaves to the pump (frames that came before the answer to the one in
        front of them, records that found no room in a lane) brings no event of its own: a pump that sleeps is woken."""
        self.settle()
        if self._links.has_waiting() or self._reactor.has_backlog():
            self._links.wake.notify()

    def settle(self) -> None:
        """Write the logs of this turn, then send answers and records."""
        outlet = self.outlet
        if outlet is not None:
            # Other nodes work on an entry while it is written here.
            outlet.flush()
        written = self._written
        while written:
            groups = written[:]
            written.clear()
            for group in groups:
                group.flush()
        self._reactor.flush()
        if outlet is not None:
            outlet.flush()
        self._links.publish()
        syncer = self.syncer
        if syncer is not None and syncer.due:
            syncer.begin()
            if written:
                self.settle()

    def turn(self, timeout_us: int) -> int:
        """One turn; waits up to ``timeout_us`` for something to do. Returns how much there was."""
        links = self._links
        outlet = self.outlet
        if outlet is not None and outlet.has_backlog():
            outlet.receive()
            timeout_us = 0
        if links.may_sleep():
            worked = self._reactor.poll(0 if self._reactor.has_backlog() else timeout_us, self.handler)
            links.wake.awake()
        else:
            worked = links.drain(self._on_record) + self._reactor.poll(0, self.handler)
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

    def _has_backlog(self) -> bool:
        """Whether there is something to do that no descriptor tells."""
        outlet = self.outlet
        return self._links.has_waiting() or self._reactor.has_backlog() or (outlet is not None and outlet.has_backlog())

    async def run(self) -> None:
        """The task: until cancelled."""
        wake = self._links.wake
        while True:
            if self._links.may_sleep() and not self._has_backlog():
                self.asleep_since = trio.current_time()
                await trio.lowlevel.wait_readable(self._reactor.epoll_fd)
                self.asleep_since = 0.0
            else:
                await trio.lowlevel.checkpoint()
            wake.awake()
            self.run_turns()
