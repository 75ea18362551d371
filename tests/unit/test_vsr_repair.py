"""Repair: both ends, holes, order, stale frames, ranges that are gone; the head through all of it (S1-24..S1-29)."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from shardsrv._core import Prepare
from shardsrv.vsr.effects import ReadPrepare, Send
from shardsrv.vsr.events import Message
from shardsrv.vsr.frames import RepairPrepare, decode_frame
from shardsrv.vsr.head import ANNOUNCED, HELD
from shardsrv.vsr.status import RECOVERING
from shardsrv.vsr.transfer_port import TransferPort
from shardsrv.wire.constants import Command
from shardsrv.wire.replica_headers import (
    RangeEvictedHeader,
    RepairDoneHeader,
    RequestPreparesHeader,
    StartViewHeader,
)
from tests.support.vsr_cluster import CLUSTER, GROUP, Cluster, Node


def entries(count: int) -> tuple[Cluster, list[Prepare]]:
    """A cluster and the ``count`` entries that its members 0 and 1 hold and member 2 does not."""
    cluster = Cluster(3)
    cluster.cut = frozenset([2])
    cluster.commit(*(bytes([number]) * 8 for number in range(count)), everywhere=False)
    cluster.filter = lambda source, target, frame: None
    cluster.wire = []
    cluster.cut = frozenset()
    return cluster, list(cluster.nodes[0].disk.log)


def live(node: Node, prepare: Prepare) -> list[Any]:
    return node.step(Message(0, prepare, prepare.body, node.cluster.clock(node.index)))


def head_of(node: Node) -> tuple[int, int]:
    return node.replica.head_op, node.replica.head_checksum


def test_an_entry_above_a_hole_waits_aside_and_the_head_takes_the_last_of_the_run() -> None:
    """S1-26: 1, 3, then 2 gives head 3 with the identity of 3."""
    cluster, log = entries(3)
    node = cluster.nodes[2]
    live(node, log[0])
    live(node, log[2])
    assert head_of(node) == (1, log[0].checksum), "the hole at op 2 stalls the head"
    assert node.replica.member.repair is not None, "a repair session is armed"
    live(node, log[1])
    assert head_of(node) == (3, log[2].checksum)
    assert node.replica.dropped == {}


def test_an_announced_head_is_unheld_until_the_log_has_it() -> None:
    """S1-25: a view announced op 3; until it is held nothing is built on it, and a backfill below does not move it."""
    cluster, log = entries(3)
    node = cluster.nodes[2]
    body = b"".join(bytes(entry.header) for entry in reversed(log))
    from shardsrv.vsr.frames import body_fields

    started = StartViewHeader(
        cluster=CLUSTER, replica=0, view=3, group=GROUP, created_revision=7, op=3, commit=1, **body_fields(body)
    )
    node.step(Message(0, started, body, 0))
    assert node.replica.head.kind == ANNOUNCED and node.replica.head.op == 3 and not node.replica.head.builds
    assert node.replica.log_view == 0, "the log is not the view's yet"
    for entry in log[:2]:
        repaired = RepairPrepare(entry.with_view(3))
        node.step(Message(0, repaired, b"", 0))
        assert node.replica.head.kind == ANNOUNCED and node.replica.head.op == 3
    node.step(Message(0, RepairPrepare(log[2].with_view(3)), b"", 0))
    assert node.replica.head.kind == HELD and head_of(node) == (3, log[2].checksum)
    cluster.run(6)
    assert node.replica.log_view == 3, "held and synced: the record names the view"
    assert node.disk.log[2].view == 0, "stored bytes keep the view they were born in"


def test_a_member_that_was_away_repairs_and_its_parent_never_goes_back() -> None:
    """S1-27, S1-28, S1-29: entries arrive by repair while live traffic goes on; the head pair is one entry after each
    tick (the support module looks), and repair below the head of the group did happen."""
    cluster = Cluster(3, repair_chunk=4)
    cluster.commit(b"a")
    cluster.nodes[1].kill()
    cluster.commit(*(bytes([n]) * 8 for n in range(20)), everywhere=False)
    before = cluster.now
    cluster.nodes[1].boot()
    for number in range(10):
        cluster.request(bytes([100 + number]) * 8)
        cluster.run(2)
    cluster.settle()
    assert not cluster.nodes[1].replica.leads
    repairs = [tick for tick, _, kind in cluster.sent if kind == Command.REPAIR_PREPARE and tick > before]
    assert len(repairs) >= 20, "it was repaired"
    node = cluster.nodes[1]
    assert node.disk.log[-1].checksum == node.replica.head_checksum == cluster.nodes[0].replica.head_checksum


def test_loss_doubling_and_disorder_in_a_repair_stream() -> None:
    dice = random.Random(3)
    cluster = Cluster(3, repair_chunk=16)
    cluster.commit(b"a")
    cluster.nodes[1].kill()
    cluster.commit(*(n.to_bytes(8, "little") for n in range(60)), everywhere=False)

    def bad(source: int, target: int, frame: bytes) -> int | None:
        if frame[60] == Command.REPAIR_PREPARE:
            if dice.random() < 0.3:
                cluster.wire.append((cluster.now + dice.randint(1, 30), source, target, frame))
            return None if dice.random() < 0.3 else dice.randint(1, 9)
        return 1

    cluster.filter = bad
    cluster.nodes[1].boot()
    cluster.settle()
    assert cluster.nodes[1].replica.commit_min == 61


def test_older_entries_are_read_from_the_log_and_the_answer_is_a_chunk() -> None:
    cluster = Cluster(3, repair_chunk=5)
    cluster.commit(*(bytes([n]) * 8 for n in range(9)))
    server = cluster.nodes[0]
    ask = RequestPreparesHeader(
        cluster=CLUSTER, replica=1, view=0, group=GROUP, created_revision=7, nonce=77, from_op=2, to_op=9
    )
    effects = server.step(Message(1, ask, b"", 0))
    assert [effect.op for effect in effects if type(effect) is ReadPrepare] == [2, 3, 4, 5, 6]
    start = len(cluster.wire)
    cluster.now += 1
    server.finish_writes()
    frames = [decode_frame(frame)[0] for _, source, target, frame in cluster.wire[start:] if target == 1]
    assert [each.prepare.op for each in frames[:5]] == [2, 3, 4, 5, 6]
    done = frames[5]
    assert isinstance(done, RepairDoneHeader) and (done.op, done.nonce) == (6, 77)


@pytest.mark.parametrize(
    ("status", "view", "committed_only", "limit"),
    [
        ("follows", 0, False, 4),  # all of it is the view's
        ("follows", 0, True, 3),
        ("follows", 5, True, 0),  # an answer would name a view that the disk does not hold
        ("follows", 5, False, 0),
        ("elects", 1, False, 4),  # the asker knows the identities
        ("elects", 1, True, 3),  # entry 4 may be nobody else's
        ("elects", 0, True, 0),
        ("begins", 1, False, 0),  # an answer would name a view that the disk does not hold
        ("begins", 1, True, 0),
        ("recovers", 0, True, 0),
        ("unsure", 0, False, 3),
    ],
)
def test_how_far_a_member_serves(status: str, view: int, committed_only: bool, limit: int) -> None:
    from shardsrv.vsr import serving, view_change

    cluster = Cluster(3)
    cluster.commit(*(bytes([n]) * 8 for n in range(3)))
    cluster.filter = lambda source, target, frame: None if frame[60] == Command.PREPARE_OK else 1
    cluster.request(b"not committed")
    cluster.run(2)
    replica = cluster.nodes[1].replica
    assert (replica.head_op, replica.commit_min) == (4, 3)
    if status in ("elects", "begins"):
        view_change.begin(replica, 1, "test", [])
        if status == "elects":
            replica.durable_state = attrs.evolve(replica.durable_state, view=1)
    elif status == "recovers":
        replica.status = RECOVERING
    elif status == "unsure":
        replica.member.log.verified_op = 3
    assert serving.ceiling(replica, view, committed_only) == limit


class Hook(TransferPort):
    """Notes who was asked for a transfer."""

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin(self, replica: Any, peer: int, out: list[Any], first_op: int = 0) -> None:
        self.begun.append(peer)


def test_a_range_that_is_gone_hands_over_to_a_transfer() -> None:
    cluster, log = entries(4)
    node = cluster.nodes[2]
    node.replica.member.transfer = hook = Hook()
    live(node, log[3])
    session = node.replica.member.repair
    gone = RangeEvictedHeader(
        cluster=CLUSTER, replica=0, view=0, group=GROUP, created_revision=7, nonce=session.nonce, op=4
    )
    node.step(Message(1, gone, b"", 0))
    assert hook.begun == [] and node.replica.dropped, "the sender is not the member of the link"
    node.step(Message(0, gone, b"", 0))
    assert hook.begun == [0]


def test_a_range_that_came_from_elsewhere_meanwhile_begins_no_transfer() -> None:
    cluster, log = entries(6)
    node = cluster.nodes[2]
    node.replica.member.transfer = hook = Hook()
    live(node, log[5])
    session = node.replica.member.repair
    for prepare in log[:3]:
        live(node, prepare)
    assert node.replica.member.repair is session and head_of(node)[0] == 3
    gone = RangeEvictedHeader(
        cluster=CLUSTER, replica=0, view=0, group=GROUP, created_revision=7, nonce=session.nonce, op=4
    )
    node.step(Message(0, gone, b"", 0))
    assert hook.begun == [], "the peer's log begins with what is missing"
    assert node.replica.member.repair is not session, "the rest is asked for at once"


def test_what_the_log_no_longer_holds_is_said() -> None:
    cluster = Cluster(3)
    cluster.commit(*(bytes([n]) * 8 for n in range(6)))
    server = cluster.nodes[0]
    server.replica.log_dropped(4)
    ask = RequestPreparesHeader(
        cluster=CLUSTER, replica=1, view=0, group=GROUP, created_revision=7, nonce=77, from_op=2, to_op=5
    )
    effects = server.step(Message(1, ask, b"", 0))
    (evicted,) = [effect.header for effect in effects if type(effect) is Send]
    assert isinstance(evicted, RangeEvictedHeader) and (evicted.op, evicted.nonce) == (4, 77)
    assert [effect.op for effect in effects if type(effect) is ReadPrepare] == [4, 5]


@pytest.mark.parametrize("change", ["peer", "view", "window", "no session"])
def test_an_entry_that_was_not_asked_for_is_dropped_and_is_no_sign_of_life(change: str) -> None:
    cluster, log = entries(4)
    node = cluster.nodes[2]
    if change != "no session":
        live(node, log[3])
        session = node.replica.member.repair
        assert (session.first, session.last, session.peer) == (1, 3, 0)
        session.idle = 7
    prepare = log[3] if change == "window" else log[0]
    if change == "view":
        prepare = prepare.with_view(1)
    node.step(Message(1 if change == "peer" else 0, RepairPrepare(prepare), b"", 0))
    assert node.replica.dropped == {"not asked for": 1} and node.head == 0
    if change != "no session":
        assert node.replica.member.repair.idle == 7


def test_a_silent_peer_is_asked_again_after_the_interval() -> None:
    cluster, log = entries(4)
    node = cluster.nodes[2]
    live(node, log[3])
    first = node.replica.member.repair.nonce
    cluster.run(12)
    assert node.replica.member.repair.nonce != first and node.replica.member.repair.attempts == 1


def test_an_entry_that_the_primary_cannot_read_comes_from_another_member() -> None:
    cluster = Cluster(3)
    cluster.commit(b"a")
    cluster.nodes[2].kill()
    cluster.commit(*(bytes([n]) * 8 for n in range(6)), everywhere=False)
    cluster.settle()
    read = cluster.nodes[0].read
    cluster.nodes[0].read = lambda effect: None if effect.op == 4 else read(effect)  # type: ignore[method-assign]
    cluster.nodes[2].boot()
    cluster.settle()
    asked = [source for _, source, kind in cluster.sent if kind == Command.REPAIR_PREPARE]
    assert 1 in asked and cluster.nodes[2].replica.commit_min == 7


def test_the_side_buffer_is_bounded_and_keeps_the_lowest() -> None:
    from types import SimpleNamespace

    from shardsrv.vsr.policy import SIDE_BYTES, SIDE_ENTRIES
    from shardsrv.vsr.side_buffer import SideBuffer

    side = SideBuffer()
    assert not side.put(SimpleNamespace(op=SIDE_ENTRIES + 1, size=300), 0)
    for op in range(SIDE_ENTRIES, 1, -1):
        assert side.put(SimpleNamespace(op=op, size=300), 0)
    assert len(side) == SIDE_ENTRIES - 1 and side.lowest() == 2
    assert side.put(SimpleNamespace(op=3, size=SIDE_BYTES - 400), 0)
    assert len(side) == 2 and side.lowest() == 2, "the highest made room"
    assert not side.put(SimpleNamespace(op=9, size=400), 0)
    side.forget_below(3)
    assert side.pop(3).op == 3 and side.pop(3) is None and len(side) == 0
