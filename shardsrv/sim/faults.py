"""What goes wrong in a run: drawn from the seed, kept inside what the cluster promises to survive.

The atlas: a member may be killed at any time, also inside a call to its disk; may lose power, keeping any legal part of
what it had not synced; links are lossy, cut and clogged; clocks are off and jump; a write or a sync may fail once; bits
rot and writes land elsewhere where a healthy quorum holds the data. A blackout takes the power of several members at
once: then only what was synced is promised. A squeeze leaves what a quorum has acknowledged with one member that is
away. A member may lose its disk, or all of it but the metadata; it may lie in state transfers. Some crashes wait for a
moment (`moments`), or strike again while the member starts. Every red run inside the atlas is a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shardsrv.sim.chance import exponential
from shardsrv.sim.clock import MILLISECOND, SECOND
from shardsrv.sim.lies import KINDS
from shardsrv.sim.moments import LOG_SYNCED, MESSAGE_WRITTEN, MOMENTS, SEGMENT_DROPPED, Strike, draw_strike

if TYPE_CHECKING:
    from shardsrv.sim.node import Node
    from shardsrv.sim.world import World

IN_WRITE_MAX: Final = 12
"""Calls to the disk that an armed crash may wait for."""
PATIENCE: Final = 3 * SECOND
"""Mean time that a crash waits for its moment before it strikes without."""
AGAIN: Final = 0.15
"""Share of crashes that strike again while the member starts, in runs whose crashes wait for moments."""
CUT_CALLS: Final = 4
"""Calls behind the first file of a cut, at one of which a crash strikes."""
BEHIND: Final = 0.5
"""Share of rot that comes behind a sync, in runs whose crashes wait for moments."""
JUST_SYNCED: Final = 300
"""Longest time between the sync of a log and the rot of what it brought to the disk, microseconds."""
TAIL: Final = 400
"""Bytes at the end of a log that rot then, about an entry."""
LAG: Final = 100 * MILLISECOND
"""Mean time that the members that lag are cut off in a squeeze before the others wait for an entry."""
ACKNOWLEDGED: Final = 12 * MILLISECOND
"""Longest time between the write of an entry and the end of a squeeze: it may be acknowledged by then."""
CUT_STRUCK: Final = 0.5
CUT_POWER: Final = 10
"""Share of cuts at which power goes, and calls from their beginning at one of which it does."""
LIE: Final = 4 * SECOND
"""Mean time that a member lies."""
BACK: Final = 60 * MILLISECOND
VOTE_LATE: Final = 700 * MILLISECOND
"""Mean time until a member that was wiped behind its vote is back; and how much later its vote comes again, at
most."""
BRIEF: Final = 20 * MILLISECOND
AWAY: Final = 2 * SECOND
"""Times that members of a squeeze are down: those that lose power, and at least, those that are killed."""


class Faults:
    """Draws and carries out the faults of a run until `end`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.chance.stream("faults")
        self._over = False
        moments = world.chance.stream("moments")
        self._moments = moments.sample(MOMENTS, moments.choice((1, 2, 4)))
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
            ("squeeze", options.squeeze, self._squeeze),
            ("lie", options.lie, self._lie),
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
        if node is None or self._over:
            return False
        if node.syncing:
            # Who stops cleanly waits for the syncs that are out.
            self.world.schedule.after(MILLISECOND, self._stop)
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
        options, trap = self.world.options.faults, self.world.traps[node.index]
        if trap.waiting:
            return False
        if options.moment and self.random.random() < options.moment:
            trap.arm_at(draw_strike(self.random, self._moments), power, exponential(self.random, PATIENCE))
            return True
        if self.random.random() < options.crash_in_write:
            trap.arm(self.random.randrange(IN_WRITE_MAX), power)
            return True
        self.world.bring_down(node, power, self._down_time())
        if options.moment and self.random.random() < AGAIN:
            if self.random.random() < 0.5:
                trap.arm(self.random.randrange(IN_WRITE_MAX), power)
            else:
                # Whoever cuts a log as it starts must not be surprised between two of its files.
                trap.arm_at(Strike(SEGMENT_DROPPED, self.random.randrange(CUT_CALLS), 0), False, PATIENCE)
        return True

    def cutting(self, node: Node) -> None:
        """A member is about to cut its log: it may lose power at one of the calls that do so, or at one of the next."""
        options, trap = self.world.options.faults, self.world.traps[node.index]
        if self._over or not options.power or not options.moment or trap.waiting:
            return
        down = sum(not other.up for other in self.world.nodes)
        if down < self.world.minority and self.random.random() < CUT_STRUCK:
            self.world.reached("power goes at a cut")
            trap.arm(self.random.randint(1, CUT_POWER), True)

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
        """A bit of one member's data flips; only where the others can heal it. Or one in what a sync has just brought
        to the disk, and the member is killed before it hears of the sync."""
        if not self.world.options.faults.moment or self.random.random() >= BEHIND:
            return self.world.damage(self.random, False)
        node = self.world.spoilable(self.random)
        if node is None or not node.up or self.world.traps[node.index].waiting:
            return False
        strike = Strike(LOG_SYNCED, 0, self.random.randint(1, JUST_SYNCED))
        trap = self.world.traps[node.index]
        trap.arm_at(strike, False, exponential(self.random, PATIENCE), lambda path: self._rot_behind(node, path))
        return True

    def _rot_behind(self, node: Node, path: str) -> None:
        """A bit near the end of a log flips, unless the others are needed by now, and the member is killed or loses
        power."""
        if path and self.world.may_spoil(node) and node.disk.exists(path) and node.disk.size(path):
            size = node.disk.size(path)
            self.world.spoil(node, path, self.random.randrange(max(0, size - TAIL), size) * 8)
        self.world.bring_down(node, self.random.random() < 0.5, self._down_time())

    def _misdirected(self) -> bool:
        return self.world.damage(self.random, True)

    def _wipe(self) -> bool:
        """A member loses its disk: at any time, or when it has just voted. Then its vote comes again in a while, and
        who counts the votes hears of nobody else meanwhile."""
        if self.world.options.faults.moment and self.random.random() < 0.5:
            self.world.frames.on_vote = self._wipe_voter
            return False
        return self.world.wipe(self.random.choice(self.world.nodes), self._down_time(), self.random)

    def _wipe_voter(self, node: Node, candidate: int, frame: bytes) -> None:
        world, random = self.world, self.random
        if self._over or not world.wipe(node, exponential(random, BACK), random):
            return
        world.count("wipe")
        world.reached("wiped behind its vote")
        for index in range(world.options.replicas):
            if index not in (node.index, candidate):
                world.network.cut(index, candidate)
                world.network.cut(candidate, index)
        world.network.late(node.index, candidate, frame, random.randint(BACK, VOTE_LATE))
        world.schedule.after(2 * VOTE_LATE, self._heal)

    def _lie(self) -> bool:
        """A member lies in state transfers for a while."""
        world = self.world
        if world.options.replicas < 3:
            return False
        node, kind = self.random.choice(world.nodes), self.random.choice(KINDS)
        world.lies.tell(node, kind, world.schedule.now + exponential(self.random, LIE))
        return True

    def _squeeze(self) -> bool:
        """As many as are no quorum lag behind a cut; then, just when one of the others has written an entry, some of
        these lose power, the last of them are killed and stay away, and the cut heals. Of who is there then, only
        members that forgot may have held what was acknowledged."""
        world, random = self.world, self.random
        if not world.minority or len(self._up()) < world.options.replicas:
            return False
        members = list(range(world.options.replicas))
        random.shuffle(members)
        lagging, others = members[: world.minority], members[world.minority :]
        for source in lagging:
            for target in others:
                world.network.cut(source, target)
                world.network.cut(target, source)
        world.trace.line("w", "squeeze", lagging)
        losing = others[: random.randint(1, world.minority)]
        strike = Strike(MESSAGE_WRITTEN, 0, random.randint(1, ACKNOWLEDGED))
        world.schedule.after(exponential(random, LAG), self._squeezed, losing, others, strike)
        return True

    def _squeezed(self, losing: list[int], others: list[int], strike: Strike) -> None:
        """Wait for the entry."""
        if self._over:
            return
        trap = self.world.traps[losing[0]]
        trap.arm_at(strike, True, SECOND, lambda path: self._let_go(losing, others))
        # Also when the member ends otherwise before.
        self.world.schedule.after(2 * SECOND, self._heal)

    def _let_go(self, losing: list[int], others: list[int]) -> None:
        """The members that did not lag go down, and the cut heals."""
        for index in others:
            node = self.world.nodes[index]
            if node.up:
                power = index in losing
                pause = exponential(self.random, BRIEF) if power else AWAY + self._down_time()
                self.world.bring_down(node, power, pause)
        self._heal()
