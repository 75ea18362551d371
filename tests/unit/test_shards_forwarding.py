"""Writes passed on to the node that leads: what comes back, what is lost, what never goes further."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from shardsrv.errors import DiskFull
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.shards import records
from shardsrv.shards.disk_space import DiskSpace
from shardsrv.shards.forwarding import ANSWER_TICKS, Forwarding, PeerOrigin, request_of
from shardsrv.shards.group import Admission
from shardsrv.shards.partition_group import PartitionGroup
from shardsrv.shards.primary_wait import REQUESTS_MAX, WAIT_TICKS
from shardsrv.store import segment
from shardsrv.store.disk import OsDisk
from shardsrv.store.log import PrepareLog
from shardsrv.vsr.events import Request
from shardsrv.vsr.identity import GroupIdentity
from shardsrv.vsr.policy import partition_policy
from shardsrv.vsr.replica import Replica as VsrReplica
from shardsrv.vsr.status import NORMAL, VIEW_CHANGE
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.forward_headers import ForwardRequestHeader

CLUSTER = bytes(range(16))
CLIENT = bytes([7]) * 16
IDENTITY = GroupIdentity(CLUSTER, 1 << 32, 5, 0, 3)


class Origin:
    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def committed(self, op: int, timestamp: int, operation: int, reply: bytes) -> None:
        self.heard.append(("committed", op, timestamp, operation, reply))

    def refused(self, outcome: int, status: int) -> None:
        self.heard.append(("refused", outcome, status))


class Side:
    """The forwarding of one node; frames for the other wait in ``out``."""

    def __init__(self, replica: int) -> None:
        self.cluster = CLUSTER
        self.up = True
        self.out: list[tuple[int, bytes]] = []
        self.taken: list[tuple[ForwardRequestHeader, bytes, Any]] = []
        self.forwarding = Forwarding(self, self, replica)  # type: ignore[arg-type]

    def is_up(self, peer: int) -> bool:
        return self.up

    def send(self, peer: int, parts: tuple[Any, ...]) -> bool:
        if self.up:
            self.out.append((peer, b"".join(bytes(part) for part in parts)))
        return self.up

    def forwarded(self, header: ForwardRequestHeader, body: Any, origin: Any) -> None:
        self.taken.append((header, bytes(body), origin))


@pytest.fixture
def sides() -> tuple[Side, Side]:
    return Side(0), Side(1)


def request(origin: Any) -> Request:
    return Request(CLIENT, 3, 4, 160, 5, 6, 1, b"the batch", origin, 99)


def passed(one: Side, other: Side) -> Origin:
    """A request of node 0 that has arrived at node 1."""
    origin = Origin()
    one.forwarding.pass_request(1, IDENTITY, request(origin), records.REFUSED_STATUS)
    other.forwarding.receive(0, one.out.pop()[1])
    return origin


def test_a_request_arrives_as_it_was_and_its_answer_comes_back(sides: tuple[Side, Side]) -> None:
    one, other = sides
    origin = passed(one, other)
    header, body, theirs = other.taken.pop()
    arrived = request_of(header, body, theirs, 100)
    for name in ("client", "session", "request", "operation", "user_id", "digest", "durability", "body"):
        assert getattr(arrived, name) == getattr(request(origin), name), name
    assert (header.group, header.created_revision) == (IDENTITY.group, 5)
    assert one.forwarding.in_flight == 1
    theirs.committed(12, 13, 160, b"reply")
    one.forwarding.receive(1, other.out.pop()[1])
    assert origin.heard == [("committed", 12, 13, 160, b"reply")] and one.forwarding.in_flight == 0


def test_a_refusal_comes_back_on_its_channel(sides: tuple[Side, Side]) -> None:
    one, other = sides
    origin = passed(one, other)
    other.taken.pop()[2].refused(records.EVICTED, 7)
    one.forwarding.receive(1, other.out.pop()[1])
    assert origin.heard == [("refused", records.EVICTED, 7)]


def test_without_a_link_nothing_was_accepted(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    one.up = False
    origin = Origin()
    one.forwarding.pass_request(1, IDENTITY, request(origin), records.REFUSED_RESULT)
    assert origin.heard == [("refused", records.REFUSED_RESULT, ErrorCode.TRANSIENT_NOT_ACCEPTED)]


def test_what_a_lost_link_would_have_answered_is_unknown(sides: tuple[Side, Side]) -> None:
    one, other = sides
    origin = passed(one, other)
    other.taken.pop()[2].committed(12, 13, 160, b"reply")
    one.forwarding.lost(2)
    assert origin.heard == []
    one.forwarding.lost(1)
    one.forwarding.receive(1, other.out.pop()[1])
    assert origin.heard == [("refused", records.REFUSED_STATUS, ErrorCode.TRANSIENT_NOT_COMMITTED)]


def test_an_answer_that_does_not_come_is_unknown_in_time(sides: tuple[Side, Side]) -> None:
    one, other = sides
    origin = passed(one, other)
    for _ in range(ANSWER_TICKS - 1):
        one.forwarding.tick()
    assert origin.heard == []
    one.forwarding.tick()
    assert origin.heard == [("refused", records.REFUSED_STATUS, ErrorCode.TRANSIENT_NOT_COMMITTED)]


def test_only_who_was_asked_may_answer(sides: tuple[Side, Side]) -> None:
    one, other = sides
    origin = passed(one, other)
    other.taken.pop()[2].committed(12, 13, 160, b"reply")
    one.forwarding.receive(2, other.out.pop()[1])
    assert origin.heard == []


@pytest.mark.parametrize("place", [5, 130, 150, 260])
def test_a_frame_that_does_not_verify_is_counted_and_dropped(sides: tuple[Side, Side], place: int) -> None:
    one, other = sides
    one.forwarding.pass_request(1, IDENTITY, request(Origin()), records.REFUSED_STATUS)
    frame = bytearray(one.out.pop()[1])
    frame[place] ^= 1
    other.forwarding.receive(0, bytes(frame))
    assert other.taken == [] and other.forwarding.refused == 1


@attrs.define(eq=False)
class Replica:
    view: int = 1
    status: int = NORMAL
    leads: bool = False
    identity: GroupIdentity = IDENTITY


class Line:
    """Requests for groups that this node may not lead; notes what becomes of each."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.ends: list[tuple[Any, str]] = []

    def take(self, replica: Replica, name: str, origin: Any = None) -> bool:
        """Whether the request waits or was passed on."""
        origin = Origin() if origin is None else origin
        origin.refused = lambda channel, status: self.ends.append((status, name))
        return self.side.forwarding.takes(
            replica,
            origin,
            records.REFUSED_STATUS,
            lambda: self.ends.append(("again", name)),
            lambda peer: self.ends.append((peer, name)),
        )


REFUSED = ErrorCode.TRANSIENT_NOT_ACCEPTED


def test_a_request_goes_to_who_leads(sides: tuple[Side, Side]) -> None:
    line = Line(sides[0])
    assert [line.take(Replica(view), "") for view in (1, 2, 4)] == [True] * 3
    assert line.ends == [(1, ""), (2, ""), (1, "")]
    assert not line.take(Replica(0, leads=True), "its own")


@pytest.mark.parametrize("fact", ["view change", "own view", "no link"])
def test_what_comes_without_a_primary_waits_for_one_in_order(sides: tuple[Side, Side], fact: str) -> None:
    one, _ = sides
    line = Line(one)
    replica = Replica(3 if fact == "own view" else 1, VIEW_CHANGE if fact == "view change" else NORMAL)
    one.up = fact != "no link"
    assert line.take(replica, "first") and line.take(replica, "second")
    assert one.forwarding.in_flight == 2
    one.forwarding.tick()
    assert line.ends == []
    replica.view, replica.status, one.up = 1, NORMAL, True
    assert line.take(replica, "third"), "none goes past one that waits"
    one.forwarding.tick()
    assert line.ends == [("again", "first"), ("again", "second"), ("again", "third")]
    assert one.forwarding.in_flight == 0 and line.take(replica, "fourth") and line.ends[-1] == (1, "fourth")


def test_a_group_without_primary_does_not_stop_another(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    line, becoming = Line(one), Replica(status=VIEW_CHANGE)
    line.take(Replica(status=VIEW_CHANGE), "stuck")
    line.take(becoming, "served")
    becoming.leads = True
    one.forwarding.tick()
    assert line.ends == [("again", "served")]
    line.take(Replica(), "passed on")
    assert line.ends[-1] == (1, "passed on")


def test_nobody_waits_longer_than_the_bound(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    replica, line = Replica(status=VIEW_CHANGE), Line(one)
    line.take(replica, "early")
    one.forwarding.tick()
    line.take(replica, "late")
    for _ in range(WAIT_TICKS - 2):
        one.forwarding.tick()
    assert line.ends == []
    one.forwarding.tick()
    assert line.ends == [(REFUSED, "early")]
    one.forwarding.tick()
    assert line.ends == [(REFUSED, "early"), (REFUSED, "late")] and one.forwarding.in_flight == 0


def test_no_more_wait_than_there_is_room_for(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    replica, line = Replica(status=VIEW_CHANGE), Line(one)
    for _ in range(REQUESTS_MAX):
        line.take(replica, "held")
    assert line.ends == []
    line.take(replica, "one too many")
    assert line.ends == [(REFUSED, "one too many")] and one.forwarding.in_flight == REQUESTS_MAX


class Passed(PeerOrigin):
    """What another node passed on."""

    def __init__(self) -> None:
        pass


def test_what_was_passed_on_waits_for_this_node_to_lead_and_for_no_other(sides: tuple[Side, Side]) -> None:
    line = Line(sides[1])
    assert line.take(Replica(status=VIEW_CHANGE), "in doubt", Passed())
    assert not line.take(Replica(view=2), "for another", Passed())
    assert line.ends == []


@pytest.mark.parametrize("leads", [True, False])
def test_a_full_disk_refuses_what_this_node_leads_and_nothing_else(leads: bool, tmp_path: Path) -> None:
    passed: list[Any] = []
    host: Any = SimpleNamespace(
        admission=Admission(),
        written=[],
        disk_space=DiskSpace(str(tmp_path), 1, lambda path: 0),
        syncer=None,
        shares_counters=False,
        checkpoint_bytes=1 << 20,
        pass_on=lambda group, request: passed.append(request) or True,
    )
    stored = segment.GroupIdentity(CLUSTER, IDENTITY.group, IDENTITY.created_revision)
    log, _ = PrepareLog.open(OsDisk(), str(tmp_path), stored, segment_size=1 << 20)
    plane = PartitionPlane(1, 0, 0)
    member = VsrReplica.recover(IDENTITY, partition_policy(), plane, None)
    member.leads = leads
    none: Any = None
    group = PartitionGroup(
        host, PartitionIdentity(1, 0, 0, 5), member, plane, log, counter_slot=0, settings=none, checkpoint=none
    )
    origin = Origin()
    sent = request(origin)
    group.submit(sent)
    assert (origin.heard, passed) == (
        ([("refused", records.REFUSED_STATUS, DiskFull.code)], []) if leads else ([], [sent])
    )


def test_a_request_that_expects_nothing_is_not_waited_for(sides: tuple[Side, Side]) -> None:
    one, other = sides
    one.forwarding.pass_on(1, b"", Origin(), records.REFUSED_STATUS, client=CLIENT, group=1 << 63, expects=0)
    other.forwarding.receive(0, one.out.pop()[1])
    origin = other.taken.pop()[2]
    assert isinstance(origin, PeerOrigin) and one.forwarding.in_flight == 0
    origin.committed(1, 2, 3, b"")
    assert other.out == []
