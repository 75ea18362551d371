"""What sits in front of a member's disk and makes its calls fail, or ends the member inside one of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from shardsrv.sim.disk import BLOCK, Call
from shardsrv.sim.moments import Strike
from shardsrv.sim.node_base import Crash

if TYPE_CHECKING:
    from shardsrv.sim.node import Node
    from shardsrv.sim.world import World

_CHANGES: Final = ("pwritev", "fdatasync", "fsync_dir", "rename", "unlink", "truncate", "syncfs", "open_write", "mkdir")
_SYNCS: Final = ("fdatasync", "fsync_dir", "syncfs")


class DiskTrap:
    """`SimDisk.on_call` of a member: armed by the faults, strikes once."""

    __slots__ = (
        "_action",
        "_fuse",
        "_path",
        "_power",
        "_short",
        "_strike",
        "_ticket",
        "fail_sync",
        "fail_write",
        "node",
        "random",
        "world",
    )

    def __init__(self, world: World, node: Node, random: Random) -> None:
        self.world = world
        self.node = node
        self.random = random
        self._fuse = -1
        self._power = False
        self._short = False
        self._strike: Strike | None = None
        self._action: Callable[[str], None] | None = None
        self._path = ""
        self._ticket = 0
        self.fail_write = False
        self.fail_sync = False

    @property
    def waiting(self) -> bool:
        """Whether a crash waits for its moment."""
        return self._strike is not None

    def arm(self, calls: int, power: bool) -> None:
        """Crash at the ``calls``-th change from now."""
        self._fuse = calls
        self._power = power
        self._short = False
        self._strike = None
        self._action = None
        self._path = ""
        self._ticket += 1

    def arm_at(self, strike: Strike, power: bool, patience: int, action: Callable[[str], None] | None = None) -> None:
        """Crash at a moment, or in ``patience`` microseconds when it does not come. ``action`` takes the place of a
        crash that waits a time; it is given the path of the moment, or an empty text."""
        self.arm(-1, power)
        self._strike = strike
        self._action = action
        self.world.schedule.after(patience, self._end, self._ticket)

    def disarm(self) -> None:
        """Nothing more happens."""
        self.arm(-1, False)
        self.fail_write = self.fail_sync = False

    def __call__(self, call: Call) -> int | None:
        if self._strike is not None and self._strike.moment.meets(call):
            self._met(self._strike, call.path)
        if self._fuse < 0 and not self.fail_write and not self.fail_sync:
            return None
        name = call.name
        if name not in _CHANGES:
            return None
        if self._fuse >= 0:
            if self._fuse == 0:
                if name == "pwritev" and not self._short and (part := self._part(call)):
                    # The process dies inside the write: a part of it is there.
                    self._short = True
                    return part
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

    def _part(self, call: Call) -> int:
        """How much of a write is there when the process dies in it: any part of an append; of what is written over,
        whole pages, since a page that is being copied is not written back, and its copy is not given up."""
        if call.length < 2:
            return 0
        if call.position + call.length > self.node.disk.size(call.path):
            return self.random.randrange(1, call.length)
        pages = range(BLOCK - call.position % BLOCK, call.length, BLOCK)
        return self.random.choice(pages) if pages else 0

    def _met(self, strike: Strike, path: str) -> None:
        """The moment is here: the crash is due at a later call, or in a while."""
        self._strike = None
        self._path = path
        self.world.reached(f"crash behind: {strike.moment.label}")
        if strike.delay:
            self.world.schedule.after(strike.delay, self._end, self._ticket)
        else:
            self._fuse = strike.calls

    def _end(self, ticket: int) -> None:
        """A crash that waited is due, unless the member ended otherwise."""
        if ticket != self._ticket or self._fuse >= 0 or not self.node.up:
            return
        if self._action is not None:
            self._action(self._path)
        else:
            self.world.crashed(self.node, Crash(self._power))
