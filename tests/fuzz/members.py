"""Fuzzing of the members of a group: frames of a running cluster, their fields changed and their seals made again.

    python -m tests.fuzz.members --frames 1000000 [--seed 1]

A member that lies can make a group disagree, since members are trusted; what must not happen is that a frame ends the
process that receives it. A finding is therefore any exception of the product, when a frame is taken in or by what it
leaves behind. A cluster that was lied to is looked at for a while and then left; exit code 1 when there are findings.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import shardsrv
from shardsrv.errors import DecodeError, DiskFault
from shardsrv.vsr.events import Message
from shardsrv.vsr.frames import decode_frame
from tests.fuzz import seals
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import header_fields, suffix_fields
from tests.support.vsr_cluster import Cluster, Node

ROUNDS = 60
"""Ticks of one cluster."""
LIES = 6
"""Changed frames a tick."""
LOSS = 0.05
SUFFIXES = (11, 12)
SEALED_PLACES = (0, 16, 48, 60, 61)
"""Where seals, size, command and sender stand: what is changed there is refused before a group sees it."""
HEADER = 256
PRODUCT = str(Path(shardsrv.__file__).parent)


@dataclass
class Report:
    """``taken``: frames that passed the decoder and reached a replica."""

    frames: int = 0
    taken: int = 0
    clusters: int = 0
    seconds: float = 0.0
    findings: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.frames:,} frames, {self.taken:,} taken in by members of {self.clusters:,} clusters, "
            f"{self.seconds:.1f} s",
            f"{len(self.findings)} findings",
            *(f"  {what}\n{trace}" for what, trace in self.findings.items()),
        ]


class MemberFuzzer:
    """Clusters of three, one after the other."""

    def __init__(self, seed: int, report: Report) -> None:
        self.mutator = Mutator(seed)
        self.dice = self.mutator.dice
        self.report = report
        self.seen: list[tuple[int, int, bytes]] = []

    def run(self, frames: int) -> None:
        """Go on until the report counts so many frames."""
        began = time.monotonic()
        while self.report.frames < frames:
            self.report.clusters += 1
            self.seen = []
            try:
                self._cluster()
            except Exception as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                # The simulated disks and network watch over agreement, which a liar may break: that is no finding.
                if frame.filename.startswith(PRODUCT):
                    what = f"{type(error).__name__} at {frame.name} line {frame.lineno}: {error}"[:200]
                    self.report.findings.setdefault(what, traceback.format_exc(limit=-5))
                elif not isinstance(error, AssertionError):
                    raise
        self.report.seconds += time.monotonic() - began

    def _cluster(self) -> None:
        cluster = Cluster(3)
        cluster.filter = self._network
        for number in range(ROUNDS):
            cluster.tick()
            self._trouble(cluster, number)
            for _ in range(LIES):
                self._lie(cluster)

    def _network(self, source: int, target: int, frame: bytes) -> int | None:
        self.seen.append((source, target, frame))
        return None if self.dice.random() < LOSS else 1

    def _trouble(self, cluster: Cluster, number: int) -> None:
        """Requests, ends and starts of members."""
        chance = self.dice.random()
        leaders = [node for node in cluster.nodes if node.up and node.replica.leads and node.replica.accepts()]
        if chance < 0.4 and leaders:
            cluster.request(self.dice.randbytes(8), at=leaders[-1].index, number=number + 1, durability=number % 2)
        elif chance < 0.43:
            cluster.nodes[self.mutator.below(3)].kill()
        elif chance < 0.48:
            for node in cluster.nodes:
                if not node.up:
                    node.boot()

    def _lie(self, cluster: Cluster) -> None:
        """Deliver a changed copy of some frame that was sent."""
        if not self.seen:
            return
        source, target, frame = self.seen[self.mutator.below(len(self.seen))]
        node: Node = cluster.nodes[target]
        data = self._changed(frame)
        self.report.frames += 1
        try:
            header, body = decode_frame(bytes(data))
        except (DecodeError, DiskFault):
            return
        if node.up:
            self.report.taken += 1
            node.step(Message(source, header, body, cluster.clock(target)))

    def _changed(self, frame: bytes) -> bytearray:
        mutator = self.mutator
        if self.dice.random() < 0.1:
            data = mutator.mutate(frame, self.seen[mutator.below(len(self.seen))][2])
        else:
            places = [place for place in header_fields(frame) if place[0] not in SEALED_PLACES]
            data = mutator.mutate_fields(frame, places)
            if frame[60] in SUFFIXES and self.dice.random() < 0.5:
                body = mutator.mutate_fields(frame[HEADER:], suffix_fields(frame[HEADER:]))
                seals.seal_suffix(body)
                data[HEADER:] = body
        seals.seal_replica_frame(data)
        return data


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    report = Report()
    MemberFuzzer(given.seed, report).run(given.frames)
    print(f"seed {given.seed}")
    print("\n".join(report.lines()))
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
