"""The merge of votes as a pure function, and the decision tables of the replica: total and disjoint."""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from shardsrv.vsr import merge as merging
from shardsrv.vsr import preflight, start_view, trust
from shardsrv.vsr.merge import Decided, Refused, Vote, Wait, merge
from shardsrv.vsr.quorum import replication_quorum

TABLES: dict[str, list[tuple[bool | None, ...]]] = {
    "merge of an op": [row for row, _, _ in merging.OP_TABLE],
    "StartView": [row for row, _ in start_view.START_VIEW_TABLE],
    "trust": [row for row, _ in trust.TRUST_TABLE],
    "role": [row for row, _ in preflight.ROLE_TABLE],
}


@pytest.mark.parametrize("name", TABLES)
def test_each_combination_of_facts_is_decided_by_exactly_one_row(name: str) -> None:
    rows = TABLES[name]
    for facts in product((False, True), repeat=len(rows[0])):
        matching = [
            row for row in rows if all(want is None or want == have for want, have in zip(row, facts, strict=True))
        ]
        assert len(matching) == 1, f"{facts} is decided by {len(matching)} rows"


def header(op: int, tag: int = 0, *, parent: int | None = None, commit: int = 0, view: int = 0) -> Any:
    return SimpleNamespace(
        op=op,
        checksum=op * 1000 + tag,
        parent=(op - 1) * 1000 if parent is None else parent,
        commit=commit,
        born_view=view,
    )


def vote(
    replica: int,
    op: int,
    *,
    log_view: int = 0,
    commit: int = 0,
    tags: dict[int, int] | None = None,
    born: dict[int, int] | None = None,
    missing: tuple[int, ...] = (),
    suspect: bool = False,
    **more: Any,
) -> Vote:
    """A log of ops up to ``op``; ``tags`` names the entries that differ from the others' (and what follows them),
    ``born`` their views where these are not 0."""
    tags, born = tags or {}, born or {}
    headers: dict[int, Any] = {}
    for at in range(max(commit, 1), op + 1):
        if at not in missing:
            parent = (at - 1) * 1000 + tags.get(at - 1, 0)
            headers[at] = header(at, tags.get(at, 0), parent=parent, view=born.get(at, 0))
    return Vote(replica, log_view, op, commit, headers, frozenset(headers), frozenset(), suspect, **more)


def test_the_head_is_that_of_the_longest_log_that_nobody_denies() -> None:
    decided = merge([vote(0, 5, commit=3), vote(1, 5, commit=3)], 3)
    assert isinstance(decided, Decided)
    assert (decided.commit, decided.head, decided.holders[5]) == (3, 5, 0b11)
    assert sorted(decided.headers) == [3, 4, 5]


def test_an_entry_that_may_have_been_acknowledged_is_kept() -> None:
    """Three members, one silent: it and the one that holds the entry may have been a quorum."""
    decided = merge([vote(0, 5, commit=3), vote(1, 4, commit=3)], 3)
    assert isinstance(decided, Decided) and decided.head == 5


def test_an_entry_that_a_nack_quorum_denies_is_dropped_with_all_above_it() -> None:
    decided = merge([vote(0, 6, commit=3), vote(1, 4, commit=3), vote(2, 4, commit=3)], 3)
    assert isinstance(decided, Decided) and decided.head == 4
    two = merge([vote(0, 5, commit=3), vote(1, 4, commit=3)], 2)
    assert isinstance(two, Decided) and two.head == 4, "of two members one denial is enough"


def test_a_later_log_view_wins_over_a_longer_log() -> None:
    older = vote(0, 6, commit=3, tags={4: 7, 5: 7, 6: 7}, log_view=1)
    decided = merge([older, vote(1, 4, commit=3, log_view=2), vote(2, 4, commit=3, log_view=2)], 3)
    assert isinstance(decided, Decided) and decided.head == 4
    assert decided.headers[4].checksum == 4000, "the entry of the later view"


def test_an_entry_of_an_older_view_that_differs_is_a_denial() -> None:
    one = vote(0, 4, commit=3, tags={4: 7}, log_view=1)
    two = vote(1, 3, commit=3, log_view=1)
    newest = vote(2, 4, commit=3, log_view=2)
    decided = merge([one, two, newest], 3)
    assert isinstance(decided, Decided) and decided.head == 3, "two of three never acknowledged it"


def test_nothing_that_any_vote_knows_to_be_committed_is_dropped() -> None:
    decided = merge([vote(0, 6, commit=6), vote(1, 4, commit=3), vote(2, 4, commit=3)], 3)
    assert isinstance(decided, Decided) and (decided.commit, decided.head) == (6, 6)
    short = vote(1, 4, commit=3)
    spoken = Vote(0, 0, 6, 3, {6: header(6, commit=5)}, frozenset({6}), frozenset())
    outcome = merge([spoken, short, vote(2, 4, commit=3)], 3)
    assert isinstance(outcome, Decided) and outcome.commit == 5, "an entry tells what was committed before it"


def test_two_entries_in_one_log_view_are_refused() -> None:
    outcome = merge([vote(0, 4, commit=3), vote(1, 4, commit=3, tags={4: 1})], 3)
    assert outcome == Refused("conflict", 4)


def test_the_copy_of_a_later_view_wins_over_the_entry_of_the_older_log() -> None:
    """Seed 492772399806: view 1 was started without op 4 of view 0; who took it over went down before its record said
    so, and those who have view 1 in their records have lost power. The group refused for ever."""
    older = [vote(replica, 5, commit=3, tags={4: 7, 5: 7}) for replica in (0, 3)]
    copied = vote(2, 4, commit=3, born={4: 1})
    lost = [vote(1, 4, commit=3, born={4: 1}, log_view=1, suspect=True), vote(4, 3, commit=3, log_view=1, suspect=True)]
    for votes in ([*older, copied], [*older, copied, *lost]):
        decided = merge(votes, 5)
        assert isinstance(decided, Decided) and decided.head == 4, "op 5 of view 0 branches off"
        assert decided.headers[4].checksum == 4000, "the entry of view 1"


def test_of_two_copies_the_one_of_the_latest_view_counts() -> None:
    votes = [
        vote(0, 4, commit=3, tags={4: 7}, born={4: 1}),
        vote(1, 5, commit=3, born={4: 2, 5: 2}),
        vote(2, 3, commit=3),
    ]
    decided = merge(votes, 3)
    assert isinstance(decided, Decided) and decided.headers[4].checksum == 4000
    differing = [vote(0, 4, commit=3, tags={4: 7}, born={4: 2}), vote(1, 4, commit=3, born={4: 2})]
    assert merge(differing, 3) == Refused("conflict", 4), "one view makes one entry of an op"


def test_entries_that_do_not_chain_are_refused() -> None:
    broken = vote(0, 5, commit=3)
    broken.headers[5].parent = 17  # type: ignore[index]
    assert merge([broken, vote(1, 3, commit=3)], 3) == Refused("the entries do not chain", 5)


def test_a_commit_point_that_differs_is_refused() -> None:
    outcome = merge([vote(0, 4, commit=4), vote(1, 4, commit=4, tags={4: 1})], 3)
    assert outcome == Refused("two committed entries", 4)


def test_a_quorum_is_waited_for() -> None:
    assert merge([vote(0, 4)], 3) == Wait("a quorum of votes")
    assert merge([vote(0, 4), vote(1, 4)], 4) == Wait("a quorum of votes")


def test_a_suspect_counts_towards_no_quorum_and_denies_nothing() -> None:
    assert merge([vote(0, 4, commit=3), vote(1, 3, commit=3, suspect=True)], 3) == Wait("a quorum of votes")
    kept = merge([vote(0, 5, commit=3), vote(1, 3, commit=3, suspect=True), vote(2, 3, commit=3, suspect=True)], 3)
    assert isinstance(kept, Decided) and kept.head == 5, "all voted, a copy is left, and nobody can deny it"


def test_the_copy_of_a_suspect_counts() -> None:
    rotten = vote(0, 5, commit=3, missing=(5,))
    announced = Vote(0, 0, 5, 3, {**rotten.headers, 5: header(5)}, rotten.present, frozenset())
    waiting = merge([announced, vote(1, 4, commit=3)], 3)
    assert waiting == Wait("op 5: missing")
    decided = merge([announced, vote(1, 4, commit=3), vote(2, 5, commit=3, suspect=True)], 3)
    assert isinstance(decided, Decided) and decided.head == 5 and decided.holders[5] == 0b100


def test_what_only_suspects_could_have_held_is_given_up_when_all_have_voted() -> None:
    lost = Vote(0, 0, 5, 3, {4: header(4)}, frozenset({4}), frozenset(), True)
    votes = [lost, vote(1, 4, commit=3, suspect=True), vote(2, 4, commit=3, suspect=True)]
    decided = merge(votes, 3)
    assert isinstance(decided, Decided) and decided.head == 4


def test_damage_everywhere_is_refused_by_op() -> None:
    rotten = Vote(0, 0, 5, 3, {3: header(3), 4: header(4)}, frozenset({3, 4}), frozenset())
    outcome = merge([rotten, vote(1, 5, commit=3, missing=(5,)), vote(2, 5, commit=3, missing=(5,))], 3)
    assert outcome == Refused("damaged everywhere", 5)


def test_a_vote_of_an_earlier_incarnation_does_not_count() -> None:
    old = vote(0, 5, commit=3, incarnation=7)
    knows = vote(1, 4, commit=3, incarnation=2, incarnations=(9, 2, 0))
    assert merge([old, knows], 3) == Wait("a quorum of votes")
    assert isinstance(merge([vote(0, 5, commit=3, incarnation=9), knows], 3), Decided)
    assert merge([old, vote(1, 4, commit=3)], 3, known=(8, 0, 0)) == Wait("a quorum of votes")


def test_more_than_a_view_can_carry_is_refused() -> None:
    outcome = merge([vote(0, 200, commit=3), vote(1, 3, commit=3)], 3)
    assert isinstance(outcome, Refused)


@pytest.mark.parametrize("members", [2, 3, 4, 5, 6, 7])
def test_whatever_a_quorum_holds_survives_every_choice_of_votes(members: int) -> None:
    """One view; each member's log is a prefix of it, or goes on with entries of an older view that were never
    acknowledged by a quorum. Any quorum of votes keeps what a quorum holds."""
    dice = random.Random(members)
    quorum = replication_quorum(members)
    for _ in range(300):
        commit = dice.randint(0, 3)
        heads = [dice.randint(commit, commit + 4) for _ in range(members)]
        acknowledged = sorted(heads, reverse=True)[quorum - 1]
        votes = [
            vote(replica, head, log_view=3, commit=dice.randint(0, min(commit, head)))
            for replica, head in enumerate(heads)
        ]
        stale = dice.randrange(members)
        if heads[stale] == commit and dice.random() < 0.5:
            wrong = commit + 1
            votes[stale] = vote(stale, wrong, log_view=1, commit=commit, tags={wrong: 5})
        heard = dice.sample(votes, dice.randint(quorum, members))
        outcome = merge(heard, members)
        if all(each.log_view == 1 for each in heard):
            continue
        assert isinstance(outcome, Decided), outcome
        assert outcome.head >= acknowledged and outcome.commit <= outcome.head
        for op in range(outcome.commit + 1, outcome.head + 1):
            assert outcome.headers[op].checksum == op * 1000
            assert outcome.holders[op]


def test_where_a_suspect_lost_the_end_of_the_latest_log_the_older_ones_go_on() -> None:
    cut = vote(0, 4, log_view=2, commit=3, suspect=True)
    other = vote(2, 5, log_view=1, commit=3, suspect=True)
    decided = merge([cut, vote(1, 5, log_view=1, commit=3), other], 3)
    assert isinstance(decided, Decided) and decided.head == 5, "op 5 was acknowledged before view 2, and is held"


def test_an_older_log_that_branches_off_a_cut_later_one_does_not_go_on() -> None:
    cut = vote(0, 4, log_view=2, commit=3, suspect=True)
    older = vote(1, 5, log_view=1, commit=3, tags={4: 7, 5: 7})
    decided = merge([cut, older, vote(2, 3, log_view=1, commit=3, suspect=True)], 3)
    assert isinstance(decided, Decided) and decided.head == 4 and decided.headers[4].checksum == 4000
    at_the_commit_point = vote(0, 3, log_view=2, commit=3, suspect=True)
    older = vote(1, 5, log_view=1, commit=2, tags={3: 7, 4: 7, 5: 7})
    decided = merge([at_the_commit_point, older, vote(2, 2, log_view=1, commit=2, suspect=True)], 3)
    assert isinstance(decided, Decided) and decided.head == 3


def test_a_log_older_than_that_of_a_trusted_member_does_not_go_on() -> None:
    cut = vote(0, 3, log_view=3, commit=3, suspect=True)
    oldest = vote(2, 6, log_view=1, commit=3, suspect=True)
    decided = merge([cut, vote(1, 4, log_view=2, commit=3), oldest], 3)
    assert isinstance(decided, Decided) and decided.head == 4, "what was acknowledged before view 2 is in its log"


class Past:
    """A group's past, told without the code under test: views that each start with the best log of a quorum, are
    adopted by some, and go on with entries that some of these append; then some members lose the ends of their logs.

    A log is the list of the tags of its entries: op n is ``log[n - 1]``.
    """

    def __init__(self, dice: random.Random, members: int) -> None:
        self.dice = dice
        self.members = members
        self.quorum = replication_quorum(members)
        self.logs: list[list[int]] = [[] for _ in range(members)]
        self.log_views = [0] * members
        self.acknowledged: list[int] = []
        self.commits = [0] * members
        for view in range(dice.randint(1, 4)):
            self.live(view)
        self.suspects = dice.sample(range(members), dice.randint(0, members))
        for replica in self.suspects:
            del self.logs[replica][dice.randint(0, len(self.logs[replica])) :]
            self.commits[replica] = min(self.commits[replica], len(self.logs[replica]))

    def live(self, view: int) -> None:
        dice = self.dice
        voters = dice.sample(range(self.members), self.quorum)
        best = max(voters, key=lambda replica: (self.log_views[replica], len(self.logs[replica])))
        start = list(self.logs[best])
        adopted = [replica for replica in range(self.members) if replica == best or dice.random() < 0.6]
        for replica in adopted:
            self.logs[replica], self.log_views[replica] = list(start), view
        grown = start + [view + 1] * dice.randint(0, 3)
        for replica in adopted:
            held = len(grown) if replica == best else dice.randint(len(start), len(grown))
            self.logs[replica] = grown[:held]
        held = sorted((len(self.logs[replica]) for replica in adopted), reverse=True)
        if len(held) >= self.quorum:
            self.acknowledged = grown[: held[self.quorum - 1]]
            for replica in adopted:
                self.commits[replica] = dice.randint(0, min(len(self.acknowledged), len(self.logs[replica])))

    def vote(self, replica: int) -> Vote:
        log = self.logs[replica]
        tags = dict(enumerate(log, 1))
        return vote(
            replica,
            len(log),
            log_view=self.log_views[replica],
            commit=self.commits[replica],
            tags=tags,
            suspect=replica in self.suspects,
        )

    @property
    def left(self) -> int:
        """How many of the acknowledged entries some member still holds."""
        longest = 0
        for log in self.logs:
            same = 0
            for mine, right in zip(log, self.acknowledged, strict=False):
                if mine != right:
                    break
                same += 1
            longest = max(longest, same)
        return longest


@pytest.mark.parametrize("members", [2, 3, 4, 5, 6, 7])
def test_what_was_acknowledged_and_is_held_anywhere_survives_a_merge_with_suspects(members: int) -> None:
    dice = random.Random(members)
    met = 0
    for _ in range(3000):
        past = Past(dice, members)
        trusted = members - len(past.suspects)
        heard = range(members) if trusted < past.quorum else dice.sample(range(members), dice.randint(1, members))
        outcome = merge([past.vote(replica) for replica in heard], members)
        if isinstance(outcome, Wait):
            assert len(heard) < members
            continue
        assert isinstance(outcome, Decided), outcome
        met += bool(past.suspects)
        assert outcome.head >= past.left
        for op in range(outcome.commit + 1, past.left + 1):
            assert outcome.headers[op].checksum == op * 1000 + past.acknowledged[op - 1]
    assert met > 500
