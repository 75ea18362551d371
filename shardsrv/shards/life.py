"""One life of a node: from the fork of its shards to the end of the last of them.

Phases: STARTING (every shard recovers), SERVING (all were ready, listeners listen), STOPPING (asked to, with a
deadline).
Invariants: listeners listen only after every shard is ready, and ``current_config.toml`` is written after that; one
shard's death is the node's; when `run` returns no shard is alive and nothing is left open. Outcomes are values:
`Stopped`, `Died`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from shardsrv.config import Config
from shardsrv.errors import OurFault
from shardsrv.shards.control import ControlChannel, ControlMessage, ExitCode
from shardsrv.shards.cpu import CpuPlan
from shardsrv.shards.listeners import bound_address, listen
from shardsrv.shards.signals import STOPPING, Signals
from shardsrv.shards.spawn import BootFacts, Child, Entry, ShardContext, spawn

PROGRESS_SECONDS = 5.0
"""How often a long start names the shards it waits for."""

CURRENT_CONFIG = "current_config.toml"


class Phase(enum.Enum):
    """What the node is doing."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


@attrs.frozen
class Stopped:
    """It stopped because it was asked to, or because `text` says why it must not be started again."""

    code: ExitCode
    text: str = ""


@attrs.frozen
class Died:
    """A shard died. `ready_since` is monotonic seconds, None if the node never was."""

    cause: str
    killed: bool
    ready_since: float | None


@attrs.frozen
class NodeFacts:
    """What does not change between the lives of a node."""

    node: int
    config: Config
    data: Path
    plan: CpuPlan
    boot: BootFacts
    entry: Entry
    make_shared: Callable[[], Any]
    prepare: Callable[[], Any]
    logger: Any
    say: Callable[[str], None]
    """Prints a line for the person who started the node."""
    tidy: Callable[[], None]
    """Removes what the logs may not keep, every ``system.logging.rotation_check_interval``."""


class Life:
    """Forks, watches and ends the shards of one generation."""

    def __init__(
        self, facts: NodeFacts, signals: Signals, listeners: dict[str, socket.socket], generation: int
    ) -> None:
        self._facts = facts
        self._signals = signals
        self._listeners = listeners
        self._generation = generation
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._phase = Phase.STARTING
        self._outcome: Stopped | Died | None = None
        self._stop = Stopped(ExitCode.CLEAN)
        self._started = time.monotonic()
        self._ready_since: float | None = None
        self._deadline = self._started + facts.config.system.sharding.start_deadline
        self._next_progress = self._started + PROGRESS_SECONDS
        self._next_tidy = self._started + facts.config.system.logging.rotation_check_interval
        self._current_config = facts.data / facts.config.system.runtime.path / CURRENT_CONFIG

    def run(self) -> Stopped | Died:
        """Live until the node has stopped or died.

        Raises:
            PortInUse: another program started to listen on an address meanwhile.
            OSError: no memory or processes for the shards.
        """
        shared = self._facts.make_shared()
        try:
            self._current_config.unlink(missing_ok=True)
            self._selector.register(self._signals.fileno(), selectors.EVENT_READ, self._signalled)
            self._spawn_all(shared)
            while self._outcome is None:
                for key, _ in self._selector.select(self._patience()):
                    key.data()
                self._check_deadlines()
            return self._outcome
        finally:
            for child in self._children:
                child.kill()
                child.close()
            self._close_listeners()
            self._selector.close()
            self._current_config.unlink(missing_ok=True)
            shared.close()

    # --- starting ---

    def _spawn_all(self, shared: Any) -> None:
        facts = self._facts
        facts.logger.info("server bootstrap dispatched; awaiting shard runtimes", shards=facts.plan.shard_count)
        prepared = facts.prepare()
        for shard, core in enumerate(facts.plan.pins):

            def context(control: ControlChannel, shard: int = shard, core: int | None = core) -> ShardContext:
                return ShardContext(
                    node=facts.node,
                    shard=shard,
                    shard_count=facts.plan.shard_count,
                    config=facts.config,
                    data=facts.data,
                    shared=shared,
                    listeners=self._listeners,
                    control=control,
                    generation=self._generation,
                    boot=facts.boot,
                    core=core,
                    prepared=prepared,
                )

            child = spawn(facts.entry, context, self._close_in_child)
            self._children.append(child)
            self._selector.register(child.control, selectors.EVENT_READ, lambda child=child: self._heard(child))
            self._selector.register(child.pidfd, selectors.EVENT_READ, lambda child=child: self._ended(child))

    def _close_in_child(self) -> None:
        """A shard keeps nothing of its siblings: a channel held by a sibling would hide the end of its owner."""
        self._selector.close()
        self._signals.close_in_child()
        for sibling in self._children:
            sibling.close()

    def _serve(self) -> None:
        addresses = {}
        for transport, listener in self._listeners.items():
            listen(f"{transport}.address", listener)
            addresses[transport] = bound_address(listener)
        self._phase, self._ready_since = Phase.SERVING, time.monotonic()
        for child in self._children:
            child.control.send("serve", addresses=addresses)
        self._publish(addresses)
        seconds = round(self._ready_since - self._started, 3)
        self._facts.logger.info("server client listeners started", **addresses, seconds=seconds)
        where = ", ".join(f"{transport} {address}" for transport, address in addresses.items()) or "no listener"
        self._facts.say(f"shardsrv node {self._facts.node} is ready: {where}; data in {self._facts.data}")

    def _publish(self, addresses: dict[str, str]) -> None:
        """Write the effective configuration; a full disk must not keep the node from serving."""
        try:
            self._facts.config.write_current(self._current_config, addresses)
        except OSError as error:
            self._facts.logger.warning(f"{CURRENT_CONFIG} cannot be written", error=str(error))

    # --- events ---

    def _heard(self, child: Child) -> None:
        try:
            messages = child.control.receive()
        except OurFault as error:
            self._died(child, str(error), killed=False)
            return
        for message in messages:
            self._obey(child, message)
        if child.control.ended:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.control)

    def _obey(self, child: Child, message: ControlMessage) -> None:
        if message.kind == "ready":
            child.ready = True
            self._facts.logger.info("server shard ready", of=child.shard, **message.fields.get("facts", {}))
            if self._phase is Phase.STARTING and all(other.ready for other in self._children):
                self._serve()
        elif message.kind == "stopped":
            child.clean = bool(message.fields.get("clean"))
        elif message.kind == "fatal":
            self._fatal(child, ExitCode(message.fields["code"]), message.fields["text"], message.fields["cause"])

    def _fatal(self, child: Child, code: ExitCode, text: str, cause: str) -> None:
        self._facts.logger.error("shard cannot go on", of=child.shard, code=int(code), error=text)
        if code is ExitCode.DEFECT:
            self._died(child, cause, killed=False)
        elif self._phase is not Phase.STOPPING:
            self._begin_stop(Stopped(code, text))
        elif self._stop.code is ExitCode.CLEAN:
            self._stop = Stopped(code, text)

    def _ended(self, child: Child) -> None:
        self._heard(child)
        if self._outcome is not None or not child.collect():
            return
        self._selector.unregister(child.pidfd)
        if self._phase is Phase.STOPPING:
            self._check_stopped()
        else:
            how, killed = child.ending()
            self._died(child, how, killed=killed)

    def _died(self, child: Child, cause: str, *, killed: bool) -> None:
        if self._phase is Phase.STOPPING:
            return
        self._facts.logger.error("shard died; the node goes down", of=child.shard, cause=cause)
        self._outcome = self._outcome or Died(cause, killed, self._ready_since)

    def _signalled(self) -> None:
        for number in self._signals.take():
            if number == signal.SIGCHLD:
                self._collect_orphans()
            elif number in STOPPING and self._phase is Phase.STOPPING:
                self._facts.logger.warning(f"second {number.name} ignored; server is already shutting down")
            elif number in STOPPING:
                self._facts.logger.info(f"{number.name} received; signalling server shutdown")
                self._begin_stop(Stopped(ExitCode.CLEAN))

    def _collect_orphans(self) -> None:
        """As process 1 of a container every orphan is ours to collect; otherwise only the shards are."""
        if os.getpid() != 1:
            return
        shards = {child.pid: child for child in self._children}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in shards:
                    shards[pid].status = status

    # --- stopping ---

    def _begin_stop(self, stop: Stopped) -> None:
        sharding = self._facts.config.system.sharding
        self._phase, self._stop = Phase.STOPPING, stop
        self._deadline = time.monotonic() + sharding.shutdown_join_timeout
        self._close_listeners()
        for child in self._children:
            child.control.send("stop", deadline_seconds=sharding.shutdown_drain_timeout)
        self._check_stopped()

    def _check_stopped(self) -> None:
        if any(not child.collect() for child in self._children):
            return
        for child in self._children:
            self._heard(child)
        dirty = [child.shard for child in self._children if child.status != 0 or not child.clean]
        if dirty and self._stop.code is ExitCode.CLEAN:
            text = f"shards {dirty} did not stop in good order; the next start recovers as after a crash"
            self._stop = Stopped(ExitCode.UNCLEAN_STOP, text)
        self._outcome = self._stop

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            listener.close()

    # --- deadlines ---

    def _patience(self) -> float:
        until = {
            Phase.STARTING: min(self._deadline, self._next_progress),
            Phase.SERVING: self._next_tidy,
            Phase.STOPPING: self._deadline,
        }
        return max(0.0, until[self._phase] - time.monotonic())

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._phase is Phase.SERVING and now >= self._next_tidy:
            self._next_tidy = now + self._facts.config.system.logging.rotation_check_interval
            self._facts.tidy()
        if self._phase is Phase.SERVING or self._outcome is not None:
            return
        if self._phase is Phase.STARTING and now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            waiting = [child.shard for child in self._children if not child.ready]
            self._facts.logger.info("waiting for shards", waiting=waiting, seconds=round(now - self._started, 1))
        if now < self._deadline:
            return
        late = [child.shard for child in self._children if child.status is None]
        if self._phase is Phase.STARTING:
            self._died(self._children[0], "a shard was not ready within the start deadline", killed=False)
            return
        self._facts.logger.error("killing shards that did not stop in time", shards=late)
        for child in self._children:
            child.kill()
        self._check_stopped()
