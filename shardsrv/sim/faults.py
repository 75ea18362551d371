"""What goes wrong in a run: drawn from the seed, kept inside what the cluster promises to survive.

The atlas: a member may be killed at any time, also inside a call to its disk; may lose power, keeping any legal part of
what it had not synced; links are lossy, cut and clogged; clocks are off and jump; a write or a sync may fail once; bits
rot and writes land elsewhere where a healthy quorum holds the data. A blackout takes the power of several members at
once: then only what was synced is promised. Every red run inside the atlas is a bug.
"""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TYPE_CHECKING, Any, Final

from shardsrv.sim.chance import exponential
from shardsrv.sim.clock import MILLISECOND
from shardsrv.sim.disk import Call
from shardsrv.sim.node import Crash

if TYPE_CHECKING:
    from shardsrv.sim.node import Node
    from shardsrv.sim.world import World

_CHANGES: Final = ("pwritev", "fdatasync", "fsync_dir", "rename", "unlink", "truncate", "syncfs", "open_write", "mkdir")
_SYNCS: Final = ("fdatasync", "fsync_dir", "syncfs")
IN_WRITE_MAX: Final = 12
"""Calls to the disk that an armed crash may wait for."""


class DiskTrap:
    """Sits in front of a member's disk (`SimDisk.on_call`): armed by the faults, strikes once."""

    __slots__ = ("_fuse", "_power", "_short", "fail_sync", "fail_write", "node", "random", "world")

    def __init__(self, world: World, node: Node, random: Random) -> None:
        self.world = world
        self.node = node
        self.random = random
        self._fuse = -1
        self._power = False
        self._short = False
        self.fail_write = False
        self.fail_sync = False

    def arm(self, calls: int, power: bool) -> None:
        """Crash at the ``calls``-th change from now."""
        self._fuse = calls
        self._power = power
        self._short = False

    def disarm(self) -> None:
        """Nothing more happens."""
        self._fuse = -1
        self.fail_write = self.fail_sync = False

    def __call__(self, call: Call) -> int | None:
        if self._fuse < 0 and not self.fail_write and not self.fail_sync:
            return None
        name = call.name
        if name not in _CHANGES:
            return None
        if self._fuse >= 0:
            if self._fuse == 0:
                if name == "pwritev" and not self._short and call.length > 1:
                    # The process dies inside the write: a part of it is there.
                    self._short = True
                    return self.random.randrange(1, call.length)
                self._fuse = -1
                self.world.count("crashes inside a disk call")
                self.world.reached(f"crash at {name}")
                raise Crash(self._power)
            self._fuse -= 1
        if self.fail_write and name == "pwritev":
            self.fail_write = False
            self.world.blame(self.node, "write error")
            self.world.reached("failed write")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.fail_sync and name in _SYNCS:
            self.fail_sync = False
            self.world.blame(self.node, "sync error")
            self.world.reached(f"failed {name}")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return None


class Faults:
    """Draws and carries out the faults of a run until `end`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.chance.stream("faults")
        self._over = False
        options = world.options.faults
        self._kinds: list[tuple[str, int, Any]] = [
            ("kill", options.kill, self._kill),
            ("clean stop", options.stop, self._stop),
            ("power", options.power, self._power),
            ("blackout", options.blackout, self._blackout),
            ("partition", options.partition, self._partition),
            ("clog", options.clog, self._clog),
            ("clock jump", options.clock_jump, self._clock_jump),
            ("write error", options.write_error, self._write_error),
            ("sync error", options.sync_error, self._sync_error),
            ("rot", options.rot, self._rot),
            ("misdirected", options.misdirected, self._misdirected),
            ("wipe", options.wipe, self._wipe),
        ]

    def begin(self) -> None:
        """Plan the first fault of each kind."""
        for name, interval, action in self._kinds:
            if interval:
                self.world.schedule.after(exponential(self.random, interval), self._strike, name, interval, action)

    def end(self) -> None:
        """No more faults; what is broken is repaired by the world."""
        self._over = True
        for node in self.world.nodes:
            self.world.traps[node.index].disarm()

    def _strike(self, name: str, interval: int, action: Any) -> None:
        if self._over:
            return
        if action():
            self.world.count(name)
            self.world.reached(name)
        self.world.schedule.after(exponential(self.random, interval), self._strike, name, interval, action)

    def _up(self) -> list[Node]:
        return [node for node in self.world.nodes if node.up]

    def _spare(self) -> bool:
        """Whether one more member may be down: a quorum stays up, or the run is about everybody going down."""
        down = sum(not node.up for node in self.world.nodes)
        return self.world.options.replicas == 1 or self.random.random() < 0.15 or down < self.world.minority

    def _pick(self) -> Node | None:
        up = self._up()
        return self.random.choice(up) if up and self._spare() else None

    def _down_time(self) -> int:
        return exponential(self.random, self.world.options.faults.down_time)

    def _kill(self) -> bool:
        return self._crash(False)

    def _stop(self) -> bool:
        """A clean stop; now and then power goes right behind it."""
        node = self._pick()
        if node is None:
            return False
        if not node.stop():
            return True
        self.world.bring_down(node, self.random.random() < 0.3, self._down_time())
        return True

    def _power(self) -> bool:
        return self._crash(True)

    def _crash(self, power: bool) -> bool:
        node = self._pick()
        if node is None:
            return False
        if self.random.random() < self.world.options.faults.crash_in_write:
            self.world.traps[node.index].arm(self.random.randrange(IN_WRITE_MAX), power)
            return True
        self.world.bring_down(node, power, self._down_time())
        return True

    def _blackout(self) -> bool:
        up = self._up()
        if not up:
            return False
        everybody = self.random.random() < 0.6
        victims = up if everybody else self.random.sample(up, self.random.randint(1, len(up)))
        pause = self._down_time()
        for node in victims:
            self.world.bring_down(node, True, pause + self._down_time() // 4)
        return True

    def _partition(self) -> bool:
        count = self.world.options.replicas
        if count < 2:
            return False
        members = list(range(count))
        self.random.shuffle(members)
        size = self.random.randint(1, count - 1)
        one_way = self.random.random() < 0.3
        for source in members[:size]:
            for target in members[size:]:
                self.world.network.cut(source, target)
                if not one_way:
                    self.world.network.cut(target, source)
        self.world.trace.line("w", "partition", members[:size], "one way" if one_way else "both ways")
        self.world.schedule.after(exponential(self.random, self.world.options.faults.partition_time), self._heal)
        return True

    def _heal(self) -> None:
        if not self._over:
            self.world.network.heal()
            self.world.trace.line("w", "heal")

    def _clog(self) -> bool:
        count = self.world.options.replicas
        if count < 2:
            return False
        source, target = self.random.sample(range(count), 2)
        until = self.world.schedule.now + exponential(self.random, self.world.options.faults.partition_time)
        self.world.network.clog(source, target, until)
        return True

    def _clock_jump(self) -> bool:
        node = self.random.choice(self.world.nodes)
        jump = self.random.choice((-3_600_000, -5_000, -100, 100, 2_000, 8_000)) * MILLISECOND
        node.clock.jump(jump)
        self.world.trace.line(node.name, "clock", jump)
        return True

    def _write_error(self) -> bool:
        node = self._pick()
        if node is None:
            return False
        self.world.traps[node.index].fail_write = True
        return True

    def _sync_error(self) -> bool:
        node = self._pick()
        if node is None:
            return False
        self.world.traps[node.index].fail_sync = True
        return True

    def _rot(self) -> bool:
        """A bit of one member's data flips; only where the others can heal it."""
        return self.world.damage(self.random, False)

    def _misdirected(self) -> bool:
        return self.world.damage(self.random, True)

    def _wipe(self) -> bool:
        return self.world.wipe(self.random)
