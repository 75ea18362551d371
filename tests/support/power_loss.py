"""Power lost, and processes killed, at every call of a scenario; every disk that may be left is started from and
judged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from shardsrv._core import Prepare
from shardsrv.sim.disk import SimDisk
from tests.support.durable import FIRST_BOOT, LATER_BOOT, Partition
from tests.support.logs import Chain

TOTAL: Counter[str] = Counter()
"""Moments at which power was lost in this run, and disks that were started from."""


@attrs.define(eq=False)
class PowerLoss:
    """Judges every disk that a power loss may leave, at every call of a scenario.

    ``judge`` recovers one such disk, raises when the outcome is not allowed, and names it.
    """

    disk: SimDisk
    judge: Callable[[SimDisk], str]
    limit: int = 64
    stride: int = 1
    points: int = 0
    disks: int = 0
    outcomes: Counter[str] = attrs.Factory(Counter)

    def __attrs_post_init__(self) -> None:
        self.disk.after_call = lambda _: self.point()

    def point(self) -> None:
        """Judge all outcomes of a power loss at this moment."""
        self.points += 1
        TOTAL["moments"] += 1
        if self.points % self.stride:
            return
        for after in self.disk.legal_outcomes(self.limit, random.Random(self.points)):
            self.disks += 1
            TOTAL["disks"] += 1
            self.outcomes[self.judge(after)] += 1

    def end(self) -> None:
        """No further calls are judged."""
        self.point()
        self.disk.after_call = None


def fail_nth(disk: SimDisk, number: int, error: OSError, part: float | None = None) -> Callable[[], bool]:
    """The ``number``-th call that changes or syncs anything fails; the returned function tells whether it came to
    that. With ``part`` a write ends short first, that share of it written, and what follows of it fails."""
    left = [number]

    def on_call(call: Any) -> int | None:
        if call.name in ("open_read", "preadv", "listdir"):
            return None
        left[0] -= 1
        if left[0] == 0:
            if part is not None and call.name == "pwritev" and call.length > 1:
                left[0] = 1
                disk.on_call = lambda rest: _then(disk, on_call, error)
                return max(1, int(call.length * part))
            raise error
        return None

    disk.on_call = on_call
    return lambda: left[0] <= 0 or disk.on_call is not on_call


def _then(disk: SimDisk, on_call: Any, error: OSError) -> int | None:
    """The rest of a short write fails, and nothing after it."""
    disk.on_call = lambda call: None
    raise error


@attrs.define
class Known:
    """What a scenario has written and what was acknowledged.

    entries: identities that an op may have (a cut makes room for another one); acked: highest op of which a sync was
    reported; flushed: highest op written; cut_from: ops from here on may be gone although they were synced once.
    """

    entries: dict[int, list[int]] = attrs.Factory(dict)
    acked: int = 0
    flushed: int = 0
    dropping: int = 0

    def add(self, *prepares: Prepare) -> tuple[Prepare, ...]:
        for prepare in prepares:
            self.entries.setdefault(prepare.op, []).append(prepare.checksum)
        return prepares

    def examine(self, partition: Partition, *, killed: bool = False) -> None:
        """What a start found is unbroken, known, and holds all that it has to."""
        log = partition.log
        ops = partition.ops()
        assert list(ops) == list(range(log.first_op, log.head_op + 1)), "an unbroken log"
        assert log.first_op <= partition.checkpoint_op + 1, "nothing is missing behind the checkpoint"
        assert log.head_op >= self.acked, f"op {self.acked} was synced and is gone"
        if killed:
            assert log.head_op >= self.flushed, f"op {self.flushed} was flushed and a kill took it"
        for op, checksum in ops.items():
            known = self.entries[op]
            assert checksum in known, "an entry that was never written"
            assert op > self.acked or checksum == known[-1], "an entry that was cut away came back"
        partition.append(*[_next(partition)])
        partition.sync()
        assert partition.log.synced_op == log.head_op


def _next(partition: Partition) -> Prepare:
    """An entry that goes on behind the head."""
    log = partition.log
    return Chain(log.head_checksum, log.head_op + 1, log.next_offset).other(fill=7)


@attrs.define(eq=False, slots=False)
class Scenario:
    """A partition under way, judged at each call."""

    limit: int
    segment_size: int = 1 << 20
    name: Callable[[Partition], str] = attrs.field(default=lambda partition: "")
    known: Known = attrs.Factory(Known)
    chain: Chain = attrs.Factory(Chain)
    disk: SimDisk = attrs.Factory(SimDisk)
    twice: bool = True

    def __attrs_post_init__(self) -> None:
        self.partition = Partition.open(self.disk, FIRST_BOOT, segment_size=self.segment_size)
        self.run = PowerLoss(self.disk, self.judge, self.limit)
        self.disk.after_call = lambda _: self.point()

    def judge(self, after: SimDisk) -> str:
        found = Partition.open(after, LATER_BOOT, segment_size=self.segment_size)
        label = self.name(found)
        self.known.examine(found)
        return label

    def point(self) -> None:
        """Power loss now; and a kill now."""
        self.run.point()
        killed = self.disk.copy()
        killed.kill()
        found = Partition.open(killed, FIRST_BOOT, segment_size=self.segment_size)
        assert found.recovery.cut_op is None or found.recovery.row in ("torn by a kill", "whole"), found.recovery
        # What the start took over is synced: losing power now changes nothing.
        head, ops = found.log.head_op, found.ops()
        if self.twice:
            for after in killed.legal_outcomes(2):
                again = Partition.open(after, LATER_BOOT, segment_size=self.segment_size)
                assert again.log.head_op == head and again.ops() == ops
                assert (again.state, again.checkpoint_op) == (found.state, found.checkpoint_op)
        self.known.examine(found, killed=True)

    def write(self, *prepares: Prepare) -> None:
        self.partition.append(*self.known.add(*prepares))
        self.known.flushed = prepares[-1].op
        self.point()

    def sync(self) -> None:
        self.partition.sync()
        self.known.acked = self.partition.log.synced_op
        self.point()

    def end(self) -> Counter[str]:
        self.point()
        self.disk.after_call = None
        return self.run.outcomes
