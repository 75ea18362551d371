"""The network between members: delay, loss, repetition, reordering, damage, and links that are cut one way or both.

Invariants: a frame arrives whole or not at all, or damaged where the seal must find it; each directed link holds at
most ``LINK_FRAMES`` frames, and a frame past that pushes out one drawn at random; a cut link loses what is on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from shardsrv.sim.chance import exponential
from shardsrv.sim.clock import Schedule
from shardsrv.sim.options import NetworkOptions

LINK_FRAMES: Final = 64
LATE_MEAN: Final = 1_000_000
"""Microseconds by which a repeated frame may be late."""
SURVIVES: Final = 0.3
"""Share of frames on their way that a connection's end does not take: they wait in the queue of who sent them."""


class Link:
    """One direction between two members."""

    __slots__ = ("clogged_until", "cut", "in_flight", "lost", "number")

    def __init__(self) -> None:
        self.cut = False
        self.clogged_until = 0
        self.number = 0
        self.lost: set[int] = set()
        self.in_flight: list[int] = []


class Network:
    """``deliver(source, target, frame)`` is called for each frame that arrives."""

    def __init__(
        self,
        schedule: Schedule,
        random: Random,
        options: NetworkOptions,
        members: int,
        deliver: Callable[[int, int, bytes], None],
        count: Callable[[str], None],
    ) -> None:
        self._schedule = schedule
        self._random = random
        self.options = options
        self._members = members
        self._deliver = deliver
        self._count = count
        self._links = {
            (source, target): Link() for source in range(members) for target in range(members) if source != target
        }
        self.quiet = False
        """After the faults: frames are delayed and nothing else."""

    def send(self, source: int, target: int, frame: bytes) -> None:
        """Put a frame on its way."""
        link = self._links[source, target]
        options, random = self.options, self._random
        if link.cut:
            self._count("frames cut off")
            return
        draw = random.random()
        if not self.quiet:
            if draw < options.loss:
                self._count("frames lost")
                return
            if draw > 1 - options.repetition:
                self._count("frames repeated")
                # Some come again at once, some long after what they speak of is over.
                late = LATE_MEAN if random.random() < 0.5 else 0
                self._put(link, source, target, frame, exponential(random, late))
            elif options.damage and random.random() < options.damage:
                self._count("frames damaged")
                position = random.randrange(len(frame))
                frame = frame[:position] + bytes([frame[position] ^ 1 << random.randrange(8)]) + frame[position + 1 :]
        self._put(link, source, target, frame)

    def late(self, source: int, target: int, frame: bytes, late: int) -> None:
        """A copy of a frame that was sent arrives ``late`` microseconds later than others, unless its link is cut."""
        self._put(self._links[source, target], source, target, frame, late)

    def _put(self, link: Link, source: int, target: int, frame: bytes, late: int = 0) -> None:
        link.number += 1
        number = link.number
        link.in_flight.append(number)
        if len(link.in_flight) > LINK_FRAMES:
            victim = link.in_flight[self._random.randrange(len(link.in_flight))]
            link.lost.add(victim)
            self._count("frames pushed out")
        delay = late + self.options.delay_min + exponential(self._random, self.options.delay_mean)
        if link.clogged_until > self._schedule.now:
            delay += link.clogged_until - self._schedule.now
        self._schedule.after(delay, self._arrive, link, number, source, target, frame)

    def _arrive(self, link: Link, number: int, source: int, target: int, frame: bytes) -> None:
        link.in_flight.remove(number)
        if number in link.lost:
            link.lost.discard(number)
        elif link.cut:
            self._count("frames cut off")
        else:
            self._deliver(source, target, frame)

    def cut(self, source: int, target: int) -> None:
        """Cut one direction."""
        self._links[source, target].cut = True

    def clog(self, source: int, target: int, until: int) -> None:
        """Hold frames of one direction back until a time."""
        self._links[source, target].clogged_until = until

    def heal(self) -> None:
        """All links work again."""
        for link in self._links.values():
            link.cut = False
            link.clogged_until = 0

    def reset(self, member: int) -> None:
        """A member went down: most of what was on its way from and to it is gone with the connections."""
        for (source, target), link in self._links.items():
            if member in (source, target):
                link.lost.update(number for number in link.in_flight if self._random.random() >= SURVIVES)

    def connected(self, source: int, target: int) -> bool:
        """Whether a frame could pass."""
        return not self._links[source, target].cut
