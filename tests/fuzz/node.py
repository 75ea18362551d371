"""Fuzzing of a living node through its socket: volleys of mutated frames over several connections.

    python -m tests.fuzz.node --frames 1000000 [--seed 1] [--shards 3]

A finding is: a process of the node that ends, an answer too many or too few or out of order, a connection that ends
although its framing holds, no answer for `PATIENCE` seconds, an error or a traceback in the log, memory beyond
`MEMORY_MAX` more than before. Exit code 1 when there is one.
"""

import argparse
import re
import select
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.fuzz.frames import Frames
from tests.fuzz.wire_line import Line, Unexpected
from tests.support.client import Client, Evicted, Refused
from tests.support.commands import create_group
from tests.support.frames import DELETE_STREAM, identifier
from tests.support.node import Node

LINES = 6
"""Connections at a time; the last one never logs in."""
LENGTH = 40
"""Frames of a volley, at most."""
PATIENCE = 60.0
TIDY = 4000
"""Frames after which all streams are deleted."""
MEMORY_MAX = 256 << 20
GET_STREAMS = 201
BAD_LINE = re.compile(r"Traceback|\[?(error|critical)\b", re.IGNORECASE)
ENVIRONMENT = {"IGGY_USERS_ARGON2_MEMORY": "64 KiB", "IGGY_USERS_ARGON2_ITERATIONS": "1"}


@dataclass
class Report:
    """What a run sent and found."""

    frames: int = 0
    volleys: int = 0
    lives: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    resident: tuple[int, int] = (0, 0)
    findings: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        first, last = (value >> 20 for value in self.resident)
        return [
            f"{self.frames:,} frames in {self.volleys:,} volleys, {self.seconds:.1f} s, "
            f"{self.frames / max(self.seconds, 1e-9):,.0f} a second, {self.lives} lives of the node",
            f"answers: {dict(self.answers.most_common(12))}",
            f"resident set of its processes: {first} MiB, at most {last} MiB",
            f"{len(self.findings)} findings",
            *(f"  {finding}" for finding in self.findings),
        ]


class Locked(Exception):
    """The root user cannot log in any more: a mutated command rightly changed it."""


class NodeFuzzer:
    """Volleys against one node that is started by the caller."""

    def __init__(self, node: Node, frames: Frames, report: Report) -> None:
        self.node = node
        self.frames = frames
        self.report = report
        self.pids = node.shard_pids()
        self.lines: list[Line] = []
        self._tidy_at = report.frames + TIDY
        with node.client() as client:
            furnish(client)

    def run(self, frames: int) -> None:
        """Go on until the report counts so many frames. Raises `Locked`; what else fails is a finding."""
        try:
            while self.report.frames < frames and not self.report.findings:
                self.round()
                self.watch()
        finally:
            for line in self.lines:
                line.close()
            self.lines = []

    def round(self) -> None:
        """One volley on every connection, all at the same time."""
        self.lines = [line for line in self.lines if not line.closed]
        while len(self.lines) < LINES:
            self.lines.append(self._connect(logged_in=any(not line.logged_in for line in self.lines)))
        for line in self.lines:
            volley = self.frames.volley(1 + self.frames.mutator.below(LENGTH), line.client.client, line.client.session)
            line.begin(volley)
            self.report.frames += len(volley.frames) + bool(volley.breaking)
            self.report.volleys += 1
        try:
            self._exchange()
        except Unexpected as error:
            self.report.findings.append(str(error))
        for line in self.lines:
            self.report.answers.update(
                f"{'eviction' if one.command == 13 else f'status {one.status}' if one.status else 'reply'}"
                for one in line.answers
            )
            if line.logged_in and not line.closed and line.session_is_gone():
                line.close()

    def _connect(self, logged_in: bool) -> Line:
        try:
            return Line(self.node, logged_in)
        except (Refused, Evicted) as error:
            raise Locked from error

    def _exchange(self) -> None:
        """Write and read until every volley is answered."""
        deadline = time.monotonic() + PATIENCE
        while busy := [line for line in self.lines if not line.done]:
            poll = select.poll()
            by_descriptor = {line.socket.fileno(): line for line in busy}
            for descriptor, line in by_descriptor.items():
                poll.register(descriptor, select.POLLIN | (select.POLLOUT if line.pending else 0))
            ready = poll.poll(1000)
            if not ready and time.monotonic() > deadline:
                raise Unexpected(f"no answer for {PATIENCE} s: " + "; ".join(line.unanswered() for line in busy))
            for descriptor, events in ready:
                line = by_descriptor[descriptor]
                if events & select.POLLOUT:
                    line.write()
                if events & ~select.POLLOUT:
                    line.read()
                deadline = time.monotonic() + PATIENCE

    def watch(self) -> None:
        """The node's processes, memory and log."""
        if self.node.process is None or self.node.process.poll() is not None or self.node.shard_pids() != self.pids:
            self.report.findings.append(f"a process of the node ended\n{self.node.log_tail(60)}")
            return
        resident = sum(psutil.Process(pid).memory_info().rss for pid in self.pids)
        first = self.report.resident[0] or resident
        self.report.resident = (first, max(self.report.resident[1], resident))
        if resident > first + MEMORY_MAX:
            self.report.findings.append(f"memory grew from {first >> 20} to {resident >> 20} MiB")
        if self.report.frames >= self._tidy_at:
            self._tidy_at = self.report.frames + TIDY
            self._tidy()

    def _tidy(self) -> None:
        """Delete every stream, make those of the samples again, and look at the log."""
        bad = [line for line in self.node.log_path.read_text(errors="replace").splitlines() if BAD_LINE.search(line)]
        if bad:
            self.report.findings.append("in the log: " + "\n".join(bad[:20]))
        try:
            with self.node.client() as client:
                for stream in stream_ids(client):
                    client.change(DELETE_STREAM, identifier(stream))
                furnish(client)
        except (Refused, Evicted) as error:
            raise Locked from error


def furnish(client: Client) -> None:
    """The stream, topics, group and messages that the recorded requests name."""
    client.create_stream("golden")
    for topic in ("events", "three"):
        client.create_topic("golden", topic, 3)
        create_group(client, "golden", topic, "workers")
        client.send("golden", topic, 0, [b"one", b"two", b"three"])


def stream_ids(client: Client) -> list[int]:
    """Ids of all streams: records of a fixed part that ends with the length of the name, the name, no options."""
    data = client.read(GET_STREAMS)
    found, at = [], 0
    while at < len(data):
        found.append(int.from_bytes(data[at : at + 4], "little"))
        at += STREAM_FIXED + data[at + STREAM_FIXED - 1] + NO_OPTIONS
    return found


STREAM_FIXED = 33
"""id u32, created_at u64, topics u32, bytes u64, messages u64, length of the name u8."""
NO_OPTIONS = 4


def fuzz(place: Path, frames: int, seed: int, shards: int) -> Report:
    """A whole run; a node whose root user was locked out by a mutated command is followed by another."""
    report = Report()
    source = Frames(seed)
    began = time.monotonic()
    while report.frames < frames and not report.findings:
        root = place / str(report.lives)
        with Node(root, arguments=["--shards", str(shards)], environment=ENVIRONMENT) as node:
            report.lives += 1
            report.resident = (0, report.resident[1])
            try:
                NodeFuzzer(node, source, report).run(frames)
            except Locked:
                continue
            finally:
                report.seconds = time.monotonic() - began
            if not report.findings and node.stop() != 0:
                report.findings.append(f"the node did not stop in order\n{node.log_tail()}")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None, help="parent of the data directory")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="shardsrv-fuzz-", dir=given.directory) as directory:
        report = fuzz(Path(directory), given.frames, given.seed, given.shards)
    print(f"seed {given.seed}, {given.shards} shards")
    print("\n".join(report.lines()))
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
