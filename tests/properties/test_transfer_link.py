"""Two machines over a link that loses, doubles and reorders, with commits, logouts, restarts and checkpoints between:
whatever happens, what is installed is one coherent offer, and once the faults stop a transfer lands."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv.vsr.policy import METADATA, PARTITION
from shardsrv.vsr.transfer_limits import TransferLimits
from tests.support.transfers import Link, Member, client_id, serving, snapshot_bytes


class Life:
    """A server that goes on living, and receivers that come and go."""

    def __init__(self, seed: int, plane: int, window: int) -> None:
        self.chance = random.Random(seed)
        limits = TransferLimits(frame_max=256 + 100, retry_ticks=5, window_chunks=window)
        self.plane, self.limits = plane, limits
        self.server = serving(plane=plane, limits=limits)
        self.offered = {self.server.snapshot}
        self.receivers = [Member(1, plane=plane, limits=limits), Member(2, plane=plane, limits=limits)]
        self.link = Link((self.server, *self.receivers), seed, loss=0.15, double=0.15, late=0.3)
        self.restarts = 0

    def disturb(self) -> None:
        """Something happens on one side or the other."""
        host = self.server.host
        what = self.chance.randrange(8)
        if what == 0:
            host.commit_min = host.commit_max = host.commit_min + 1
            if self.plane == METADATA:
                host.table.commit_register(client_id(host.commit_min), 1, host.commit_min, 1, b"")
        elif what == 1 and self.plane == METADATA and len(host.table) > 1:
            host.table.remove(next(iter(host.table.rows()))[1])
        elif what == 2:
            host.offer_generation = host.commit_min
            self.server.snapshot = snapshot_bytes(host.commit_min)
            self.offered.add(self.server.snapshot)
        elif what == 3 and self.restarts < 3:
            self.restarts += 1
            fresh = serving(plane=self.plane, limits=self.limits)
            fresh.host, fresh.snapshot = host, self.server.snapshot
            fresh.transfer.server._host = host
            self.server = self.link.members[0] = fresh
        elif what == 4:
            receiver = self.chance.choice(self.receivers)
            receiver.run(self._abandon(receiver))
        self.check()

    def _abandon(self, receiver: Member) -> list[object]:
        out: list[object] = []
        receiver.transfer.abandon(out)
        return out

    def check(self) -> None:
        for receiver in self.receivers:
            host = receiver.host
            assert host.state is None or host.state in self.offered
            if host.state is not None:
                assert host.commit_min == int.from_bytes(host.state[:8], "little")
                assert receiver.log_floor == host.commit_min and receiver.file == host.state
            window = receiver.transfer.receiver._session and receiver.transfer.receiver._session.window
            assert not window or len(window.open_pieces()) <= self.limits.window_chunks
        assert self.server.transfer.server.offers <= 2

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for receiver in self.receivers:
                if not receiver.transfer.transferring:
                    receiver.arm()
            self.link.run(1)
            self.disturb()

    def settle(self) -> None:
        """No more faults: both receivers must come to the newest snapshot within a bound."""
        self.link.loss = self.link.double = self.link.late = 0
        for _ in range(400):
            if all(receiver.host.state == self.server.snapshot for receiver in self.receivers):
                return
            for receiver in self.receivers:
                if not receiver.transfer.transferring:
                    receiver.arm()
            self.link.run(1)
            self.check()
        raise AssertionError("the transfers do not come to an end")


@pytest.mark.parametrize("plane", [METADATA, PARTITION], ids=["metadata", "partition"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), window=st.integers(1, 6), rounds=st.integers(0, 40))
def test_transfers_over_a_bad_link(plane: int, seed: int, window: int, rounds: int) -> None:
    life = Life(seed, plane, window)
    life.run(rounds)
    life.settle()
    if life.plane == METADATA:
        for receiver in life.receivers:
            assert receiver.host.table_frontier >= receiver.host.commit_min
    for member in (life.server, *life.receivers):
        member.tick(200)
    assert life.server.transfer.server.idle, "no offer is left"


def test_the_link_really_is_bad() -> None:
    life = Life(5, METADATA, 4)
    life.run(60)
    life.settle()
    assert life.link.lost > 20 and life.link.doubled > 20 and life.link.overtaken > 20 and life.restarts > 0


def test_equal_seeds_give_equal_runs() -> None:
    def run() -> list[str]:
        life = Life(11, METADATA, 4)
        life.run(40)
        return [repr(type(effect)) for member in life.receivers for effect in member.log]

    assert run() == run()
