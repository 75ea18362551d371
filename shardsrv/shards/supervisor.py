"""The supervisor: takes the data directory, makes what the shards share, and keeps the node alive.

A synchronous loop without threads. Invariants: everything that can refuse is checked before the first fork; the node
starts again whole, with new shared memory and the next generation, after a death (`restarts` says when, and when no
more); the exit codes are those of `control.ExitCode`, and an error is one sentence on standard error.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from shardsrv import logs
from shardsrv.advice import advice
from shardsrv.config import Config, Notice, check_root_credentials
from shardsrv.errors import ConfigurationError, ShardsrvError, TooFewDescriptors
from shardsrv.shards import cpu
from shardsrv.shards.control import ExitCode, exit_code
from shardsrv.shards.directory import ClaimedDirectory
from shardsrv.shards.life import Died, Life, NodeFacts, Stopped
from shardsrv.shards.listeners import bind_all, bound_address
from shardsrv.shards.restarts import RestartPolicy
from shardsrv.shards.signals import STOPPING, Signals
from shardsrv.shards.spawn import Entry, boot_facts, name_process

ENTRY = "shardsrv.shards.shard:run"
PORT_PATIENCE_SECONDS = 1.0
"""How long the sockets of a node that was killed may take to close after its lock is free."""

DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)

SharedFactory = Callable[[int, Config], Any]
"""(number of shards, configuration) -> `bus.shared.Shared`, made anew for every life."""


@attrs.frozen
class Options:
    """What the command line adds to the configuration."""

    node: int = 0
    shards: int | None = None
    fresh: bool = False
    notices: tuple[Notice, ...] = ()
    environment: Mapping[str, str] = attrs.field(factory=lambda: os.environ)
    entry: Entry | None = None
    """What a shard runs; `ENTRY` unless a test says otherwise."""
    make_shared: SharedFactory | None = None
    prepare: Callable[[Path, int], Any] | None = None
    """(data directory, number of shards) -> what every shard gets as `ShardContext.prepared`, before each fork."""


def run(config: Config, options: Options) -> int:
    """Run the node in the foreground until it has stopped; returns the exit code of the process."""
    try:
        stopped = _run(config, options)
    except ShardsrvError as error:
        complain(advice(error))
        return int(exit_code(error))
    except OSError as error:
        complain(f"the node cannot run: {error}")
        return int(ExitCode.DISK if error.errno in DISK_ERRNOS else ExitCode.OPERATOR)
    if stopped.text:
        complain(stopped.text)
    return int(stopped.code)


def complain(text: str) -> None:
    """One line for the person who started the program."""
    with contextlib.suppress(OSError, ValueError):
        print(f"shardsrv: {text}", file=sys.stderr, flush=True)


def check_node(config: Config, node: int) -> None:
    """Raises `ConfigurationError` unless the configuration has a node of this number."""
    if node != 0 and not config.cluster.enabled:
        raise ConfigurationError("--node", node, "a single node is node 0 (cluster.enabled is false)")
    if config.cluster.enabled and node >= len(config.cluster.roster):
        reason = f"no table of cluster.nodes has this replica_id; there are {len(config.cluster.roster)}"
        raise ConfigurationError("--node", node, reason)


def _run(config: Config, options: Options) -> Stopped:
    check_node(config, options.node)
    check_root_credentials(options.environment)
    plan = cpu.plan(
        config.system.sharding.cpu_allocation,
        cpu.this_machine(),
        shards=options.shards,
        pin=config.system.sharding.pin_cores,
    )
    raise_descriptor_limit(config.limits.connections_max + config.limits.descriptors_reserved)
    directory = ClaimedDirectory.open(
        Path(config.system.path),
        cluster=config.cluster.name,
        node=options.node,
        fresh=options.fresh,
        runtime=config.system.runtime.path,
    )
    try:
        return _run_in(directory, config, options, plan)
    finally:
        directory.close()


def _run_in(directory: ClaimedDirectory, config: Config, options: Options, plan: cpu.CpuPlan) -> Stopped:
    try:
        log_file = logs.configure(config, directory.path, options.environment)
    except OSError as error:
        raise ConfigurationError("system.logging.path", config.system.logging.path, str(error)) from error
    logger = logs.get_logger(options.node, "supervisor")
    logs.report(logger, options.notices)
    logger.info(f"Initializing system, data will be stored at: {directory.path}", pid=os.getpid())
    if log_file is not None:
        logger.info(f"Logging initialized, logs will be stored at: {log_file.path.parent}")
    if options.fresh:
        logger.warning("--fresh: the data directory was emptied")
    if config.cluster.enabled and not config.cluster.auth.enabled:
        logger.warning("cluster.auth.enabled is false: whoever reaches the replica port may join the cluster")
    if plan.reason:
        logger.info("shards are not bound to cores", reason=plan.reason)
    patience = PORT_PATIENCE_SECONDS if directory.after_crash else 0.0
    listeners = bind_all(config, {}, patience=patience, node=options.node)
    boot = boot_facts()
    facts = NodeFacts(
        node=options.node,
        config=config,
        data=directory.path,
        plan=plan,
        boot=boot,
        entry=options.entry or load_entry(),
        make_shared=lambda: (options.make_shared or make_shared)(plan.shard_count, config),
        prepare=lambda: prepared(directory.path, config, options, plan.shard_count, boot.affinity),
        logger=logger,
        say=logs.say,
        tidy=lambda: tidy(log_file, logger),
    )
    name_process(f"shardsrv-{options.node}")
    gc.collect()
    gc.freeze()
    signals = Signals()
    try:
        stopped = _live(facts, signals, listeners)
    finally:
        signals.close()
    logger.info("server shutdown complete", code=int(stopped.code))
    return stopped


def _live(facts: NodeFacts, signals: Signals, listeners: dict[str, socket.socket]) -> Stopped:
    """Life after life until one ends by being asked to.

    Raises:
        CrashLoop: it died too often.
    """
    policy = RestartPolicy()
    addresses = {transport: bound_address(listener) for transport, listener in listeners.items()}
    generation = 1
    while True:
        outcome = Life(facts, signals, listeners, generation).run()
        if isinstance(outcome, Stopped):
            return outcome
        delay = _after_death(policy, outcome)
        generation += 1
        facts.logger.warning("starting the node again", generation=generation, delay_seconds=delay)
        if _stop_asked_within(signals, delay):
            return Stopped(ExitCode.UNCLEAN_STOP, "stopped between a crash and the restart; the next start recovers")
        listeners = bind_all(facts.config, addresses, patience=PORT_PATIENCE_SECONDS, node=facts.node)


def _after_death(policy: RestartPolicy, died: Died) -> float:
    return policy.died(time.monotonic(), died.cause, ready_since=died.ready_since, killed=died.killed)


def _stop_asked_within(signals: Signals, seconds: float) -> bool:
    """Wait out a back-off; True as soon as a signal asks to stop."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(signals.fileno(), selectors.EVENT_READ)
        while True:
            selector.select(max(0.0, until - time.monotonic()))
            if any(number in STOPPING for number in signals.take()):
                return True
            if time.monotonic() >= until:
                return False


def tidy(log_file: logs.LogFile | None, logger: Any) -> None:
    """Remove archives that the logs may not keep; what cannot be removed now is looked at again the next time."""
    if log_file is not None:
        try:
            log_file.prune()
        except OSError as error:
            logger.warning("archives of the log cannot be removed", error=str(error))


def load_entry() -> Entry:
    """What a shard runs, imported here with all that it needs, once, so that the forks share it."""
    module, _, name = ENTRY.partition(":")
    entry: Entry = getattr(importlib.import_module(module), name)
    for kind in ("metadata_shard", "partition_shard"):
        importlib.import_module(f"shardsrv.shards.{kind}")
    return entry


def prepare(data: Path, shard_count: int) -> Any:
    """Bring the data directory to this number of shards and read what they need of the life before."""
    from shardsrv.shards import preparation

    return preparation.prepare(data, shard_count)


def prepared(data: Path, config: Config, options: Options, shard_count: int, affinity: frozenset[int]) -> Any:
    """What every shard gets of the life before; in a cluster also how it began."""
    from shardsrv.shards import preparation

    found = (options.prepare or prepare)(data, shard_count)
    if not config.cluster.enabled:
        return found
    return preparation.with_genesis(found, data, config, options.environment, affinity)


def make_shared(shard_count: int, config: Config) -> Any:
    """The shared memory of one life."""
    from shardsrv.bus.shared import Shared

    return Shared.create(
        shard_count,
        lane_bytes=config.limits.lane_bytes,
        arena_bytes=config.limits.arena_bytes,
        counter_slots=config.limits.counter_slots,
    )


def raise_descriptor_limit(needed: int) -> None:
    """Raise the soft limit of open files to what is allowed.

    Raises:
        TooFewDescriptors: that is less than `needed`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if hard != unlimited and hard < needed:
        raise TooFewDescriptors(needed=needed, limit=hard)
    wanted = max(needed, 1 << 20) if hard == unlimited else hard
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
