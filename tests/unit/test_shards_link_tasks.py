"""Dialling and meeting over real sockets: a link stands, is made again when it is lost, and refusals are said once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from shardsrv.bus.handshake import Births, LinkIdentity
from shardsrv.roster import RosterNode
from shardsrv.shards import link_tasks
from shardsrv.shards.link_tasks import Dialer, LinkAcceptor

DIALER = LinkIdentity(bytes(16), 0, 2, 3, roster=7, genesis=9, secrets=("a secret of thirty-two bytes or so",))
ACCEPTOR = attrs.evolve(DIALER, replica=1)
SHARD = 2
GRACE = 5.0


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.spoke = trio.Event()

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))
        self.spoke.set()


class Meeting:
    """One dialer and one acceptor; ``links`` are the sockets of links: (side, peer, shard, descriptor)."""

    def __init__(self, nursery: trio.Nursery, acceptor: LinkIdentity = ACCEPTOR, grace: float = GRACE) -> None:
        self.nursery = nursery
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.logs = Log(), Log()
        self.links: list[tuple[str, int, int, int]] = []
        self.changed = trio.Event()
        port = self.listener.getsockname()[1]
        self.node = RosterNode("node-1", "127.0.0.1", 1, {"tcp": 1, "tcp_replica": port})
        self.dialer = Dialer(
            DIALER,
            SHARD,
            self.node,
            Births({}),
            grace=grace,
            pause_max=0.05,
            adopt=self.adopt,
            log=self.logs[0],  # type: ignore[arg-type]
        )
        self.acceptor = LinkAcceptor(
            acceptor,
            Births({}),
            grace=grace,
            give=self.give,
            start=nursery.start_soon,
            log=self.logs[1],  # type: ignore[arg-type]
        )

    def adopt(self, peer: int, descriptor: int) -> None:
        self._note("dialer", peer, SHARD, descriptor)

    async def give(self, peer: int, shard: int, descriptor: int) -> None:
        self._note("acceptor", peer, shard, os.dup(descriptor))

    def _note(self, *link: Any) -> None:
        self.links.append(link)
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, count: int) -> None:
        while len(self.links) < count:
            await self.changed.wait()

    def close(self) -> None:
        for link in self.links:
            os.close(link[3])
        self.listener.close()
        self.nursery.cancel_scope.cancel()


def run(story: Callable[[Meeting], Any], **how: Any) -> Meeting:
    async def main() -> Meeting:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                meeting = Meeting(nursery, **how)
                try:
                    await story(meeting)
                finally:
                    meeting.close()
        return meeting

    return trio.run(main)


async def attempts(meeting: Meeting, count: int) -> None:
    """Wait until the dialer has tried so often."""
    while meeting.dialer.attempts < count:
        await trio.testing.wait_all_tasks_blocked(0.001)


def test_a_link_stands_and_carries_what_follows_the_handshake() -> None:
    async def story(meeting: Meeting) -> None:
        meeting.nursery.start_soon(meeting.acceptor.run, meeting.listener)
        meeting.nursery.start_soon(meeting.dialer.run)
        await meeting.until(2)
        ends = {side: (peer, shard, fd) for side, peer, shard, fd in meeting.links}
        assert ends["dialer"][:2] == (1, SHARD) and ends["acceptor"][:2] == (0, SHARD)
        os.write(ends["dialer"][2], b"first frame")
        await trio.lowlevel.wait_readable(ends["acceptor"][2])
        assert os.read(ends["acceptor"][2], 100) == b"first frame"

    meeting = run(story)
    assert meeting.logs[0].lines == meeting.logs[1].lines == []


def test_a_lost_link_is_made_again() -> None:
    async def story(meeting: Meeting) -> None:
        meeting.nursery.start_soon(meeting.acceptor.run, meeting.listener)
        meeting.nursery.start_soon(meeting.dialer.run)
        await meeting.until(2)
        meeting.dialer.lost()
        await meeting.until(4)

    run(story)


def test_a_node_that_is_not_there_is_named_once_and_tried_again() -> None:
    async def story(meeting: Meeting) -> None:
        meeting.listener.close()
        meeting.nursery.start_soon(meeting.dialer.run)
        await attempts(meeting, 4)
        meeting.listener = socket.create_server(("127.0.0.1", meeting.node.tcp_replica))
        meeting.listener.setblocking(False)
        meeting.nursery.start_soon(meeting.acceptor.run, meeting.listener)
        await meeting.until(2)

    ((event, fields),) = run(story).logs[0].lines
    assert event == "a node cannot be reached" and fields["peer"] == "node-1"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shards": 4}, "another number of shards"),
        ({"roster": 8}, "cluster.nodes differs"),
        ({"secrets": ("another secret of thirty-two bytes",)}, "another cluster.auth.shared_secret"),
    ],
)
def test_a_refusal_is_said_once_by_name_on_both_sides(change: dict[str, Any], reason: str) -> None:
    async def story(meeting: Meeting) -> None:
        meeting.nursery.start_soon(meeting.acceptor.run, meeting.listener)
        meeting.nursery.start_soon(meeting.dialer.run)
        for log in meeting.logs:
            await log.spoke.wait()
        await attempts(meeting, 4)

    meeting = run(story, acceptor=attrs.evolve(ACCEPTOR, **change))
    for log in meeting.logs:
        ((_, fields),) = log.lines
        assert reason in fields["reason"]
    assert meeting.links == []


def test_who_says_nothing_is_let_go_in_time() -> None:
    async def story(meeting: Meeting) -> None:
        meeting.nursery.start_soon(meeting.acceptor.run, meeting.listener)
        stream = await trio.open_tcp_stream("127.0.0.1", meeting.node.tcp_replica)
        assert await stream.receive_some(1) == b""
        await stream.aclose()

    run(story, grace=0.1)


def test_a_crowd_of_strangers_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_tasks, "MEETINGS_MAX", 2)

    async def story(meeting: Meeting) -> None:
        meeting.nursery.start_soon(meeting.acceptor.run, meeting.listener)
        streams = [await trio.open_tcp_stream("127.0.0.1", meeting.node.tcp_replica) for _ in range(4)]
        for stream in streams[2:]:
            assert await stream.receive_some(1) == b""
        assert meeting.acceptor.turned_away == 2
        for stream in streams:
            await stream.aclose()
        meeting.nursery.start_soon(meeting.dialer.run)
        await meeting.until(2)

    run(story)
