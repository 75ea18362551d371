"""One shard's process: the fork, what the child sets up before its entry runs, and what it reports when the entry ends.

Invariants: nothing asynchronous and no thread exists before the fork; a child dies with its supervisor (PDEATHSIG),
ignores the signals of the terminal, and obeys its control channel alone; it never returns into the supervisor's code.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import attrs

from shardsrv.config import Config
from shardsrv.logs import get_logger
from shardsrv.shards.control import ControlChannel, ExitCode, exit_code, leaf
from shardsrv.shards.listeners import bound_address

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15

QUIET = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the supervisor alone answers."""


@attrs.frozen
class BootFacts:
    """Facts of this start of the node that every shard shares."""

    started_at: int
    """Start of the supervisor, microseconds since 1970."""
    supervisor_pid: int
    kernel_boot_id: bytes
    """16 bytes that change when the machine starts: same value, and the page cache has survived."""
    affinity: frozenset[int]
    """Cores of the whole node: threads beside the pump set this mask, so that they leave the pump's core."""


@attrs.frozen
class ShardContext:
    """All that a shard is given. `shared` is a `bus.shared.Shared`; `listeners` are bound, by transport name."""

    node: int
    shard: int
    shard_count: int
    config: Config
    data: Path
    shared: Any
    listeners: dict[str, socket.socket]
    control: ControlChannel
    generation: int
    """1 for the first start under this supervisor, then one more for each restart."""
    boot: BootFacts
    core: int | None = None
    """The core that this shard is bound to."""
    prepared: Any = None
    """What the supervisor read of the data directory before the fork (`preparation.Prepared`)."""

    @property
    def nodes(self) -> int:
        """How many nodes the cluster has; 1 for a node alone."""
        return len(self.config.cluster.nodes) if self.config.cluster.enabled else 1

    @property
    def cluster(self) -> bytes:
        """The 16 bytes that stand for the cluster on the wire and on disk."""
        return cluster_id(self.config.cluster.name)

    @property
    def addresses(self) -> dict[str, str]:
        """Where the node listens, by transport name; a port that the system chose is known here already."""
        return {transport: bound_address(listener) for transport, listener in self.listeners.items()}


def cluster_id(name: str) -> bytes:
    """BLAKE2b of 16 bytes over the name of a cluster (docs/architecture.md 2)."""
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


Entry = Callable[[ShardContext], int]
"""What a shard runs; returns the exit code of its process."""


@attrs.define(eq=False)
class Child:
    """The supervisor's view of one shard."""

    shard: int
    pid: int
    pidfd: int
    control: ControlChannel
    ready: bool = False
    clean: bool = False
    status: int | None = None
    """What wait returned, None while it runs."""

    def collect(self) -> bool:
        """Whether it has ended; takes its status if so, without waiting."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def kill(self) -> None:
        """End it now and wait for that."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitpid(self.pid, 0)[1]

    def close(self) -> None:
        """Give back its descriptors."""
        self.control.close()
        os.close(self.pidfd)

    def ending(self) -> tuple[str, bool]:
        """(how it ended, in words; whether a kill signal did it)."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        if code < 0:
            number = signal.Signals(-code)
            return f"shard ended by {number.name}", number is signal.SIGKILL
        return f"shard ended with code {code}" if code else "shard ended without being asked", False


def boot_facts() -> BootFacts:
    """The facts of this process and machine."""
    text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    affinity = frozenset(os.sched_getaffinity(0))
    return BootFacts(time.time_ns() // 1000, os.getpid(), bytes.fromhex(text.replace("-", "")), affinity)


def spawn(
    entry: Entry,
    make_context: Callable[[ControlChannel], ShardContext],
    close_in_child: Callable[[], None],
) -> Child:
    """Fork one shard. Call `gc.freeze` before the first, so that the children share the pages of what is imported.

    Args:
        entry: what the shard runs.
        make_context: the context, given the shard's side of its control channel.
        close_in_child: gives back what only the supervisor uses.
    """
    ours, theirs = ControlChannel.pair()
    context = make_context(theirs)
    _flush()
    # A signal that arrives before the child ignores it must not reach the supervisor's wake-up pipe a second time.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, QUIET)
    pid = os.fork()
    if pid == 0:
        _become_shard(entry, context, (ours.close, close_in_child), blocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()
    return Child(context.shard, pid, os.pidfd_open(pid), ours)


def _become_shard(
    entry: Entry, context: ShardContext, closers: Sequence[Callable[[], None]], mask: set[int | signal.Signals]
) -> NoReturn:
    code = int(ExitCode.DEFECT)
    try:
        try:
            _settle(context, closers, mask)
            code = int(entry(context))
        except BaseException as error:
            code = _report(context, error)
        _flush()
    finally:
        # Whatever went wrong above: what the supervisor has on its stack must not run in two processes.
        os._exit(code)


def _settle(context: ShardContext, closers: Sequence[Callable[[], None]], mask: set[int | signal.Signals]) -> None:
    """Turn the fork of a supervisor into a shard."""
    follow_parent(context.boot.supervisor_pid)
    signal.set_wakeup_fd(-1)
    for number in QUIET:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for close in closers:
        close()
    name_process(f"shardsrv-{context.node}-{context.shard}")
    if context.core is not None:
        os.sched_setaffinity(0, {context.core})
    faulthandler.enable()
    gc.freeze()


def _report(context: ShardContext, error: BaseException) -> int:
    """Tell the supervisor, and the log where nobody foresaw it."""
    cause = leaf(error)
    if exit_code(cause) == ExitCode.DEFECT:
        get_logger(context.node, context.shard).error("shard failed", exc_info=error)
    return int(context.control.fatal(cause))


def follow_parent(parent: int) -> None:
    """Be killed when the supervisor dies, however it dies."""
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(int(ExitCode.DEFECT))


def name_process(name: str) -> None:
    """Show `name` (its first 15 bytes) in the list of processes."""
    _prctl(PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl option {option}")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
