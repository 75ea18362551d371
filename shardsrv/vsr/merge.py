"""What the log of the next view is, from the votes of its members: a pure function.

Invariants:

* an entry that may have been acknowledged is never dropped: it takes the denials of a nack quorum of trusted votes, or
  the logs of all members;
* nothing at or below a commit point that any vote names is dropped;
* the entries that are decided chain, or the merge refuses and changes nothing;
* a vote of a suspect denies nothing, and counts towards no quorum unless every member has voted; a vote of an earlier
  incarnation does not count at all;
* the log of the latest log view is the canonical one. A trusted member holds all that its log view was started with,
  so what it lacks of older views was never acknowledged. A suspect may have lost the end of it: where only suspects
  have the latest log view, the logs of the next older one go on from where theirs end, as far as they chain; and so on
  down to the first log view that a trusted member has. What does not chain was not in the later log, which held
  everything acknowledged before it;
* a member that was taking over the log of a later view when it went down holds copies of that view's entries under its
  older log view. Where such a copy differs from the entry of the older log, that one is not in the log that the later
  view was started with and so was never acknowledged: the entry of the latest view counts, and what does not follow it
  branches off.

Each op above the commit point is decided by the first row of OP_TABLE whose facts hold:

| row | branches off | denied | header known | conflict | copy held | all voted | only suspects silent | verdict |
|---|---|---|---|---|---|---|---|---|
| branches off | yes | | | | | | | CUT |
| conflict | no | | | yes | | | | REFUSE |
| denied | no | yes | | no | | | | CUT |
| kept | no | no | yes | no | yes | | | KEEP |
| missing | no | no | | no | | no | | WAIT |
| lost within the window | no | no | | no | | yes | yes | CUT |
| damaged everywhere | no | no | | no | | yes | no | REFUSE |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from shardsrv.vsr.quorum import nack_quorum, view_change_quorum

KEEP: Final = "keep"
CUT: Final = "cut"
WAIT: Final = "wait"
REFUSE: Final = "refuse"

SUFFIX_MAX: Final = 128
"""Slots of a vote."""


@attrs.frozen
class Vote:
    """What one member says about its log.

    ``headers`` by op (headers have op, checksum, parent, commit, born_view), ``present`` and ``nacks`` the ops whose
    entries it holds, or never had. ``incarnation`` is its own, ``incarnations`` what it knows of the members (0:
    nothing).
    """

    replica: int
    log_view: int
    op: int
    commit: int
    headers: Mapping[int, Any]
    present: frozenset[int]
    nacks: frozenset[int]
    suspect: bool = False
    incarnation: int = 0
    incarnations: tuple[int, ...] = ()


@attrs.frozen
class Decided:
    """The log of the view: entries up to ``head``; everything at or below ``commit`` is committed.

    ``headers`` by op: each op above ``commit``, and that of ``commit`` where it is known. ``holders``: by op the mask
    of members that hold the entry. ``committed_by``: by member the commit point of its vote.
    """

    commit: int
    head: int
    headers: Mapping[int, Any]
    holders: Mapping[int, int]
    committed_by: Mapping[int, int]


@attrs.frozen
class Wait:
    """More votes may decide; ``reason`` says what is missing."""

    reason: str


@attrs.frozen
class Refused:
    """No further vote can decide: ``reason``, at ``op`` where it is about one."""

    reason: str
    op: int = 0


_Row = tuple[tuple[bool | None, ...], str, str]

OP_FACTS: Final = (
    "it branches off the log of a later view",
    "a nack quorum denies it",
    "its header is known",
    "two canonical votes differ",
    "a copy is held",
    "all members voted",
    "only suspects are silent",
)
OP_TABLE: Final[tuple[_Row, ...]] = (
    # branches off, denied, header known, conflict, copy held, all voted, only suspects silent
    ((True, None, None, None, None, None, None), CUT, "branches off"),
    ((False, None, None, True, None, None, None), REFUSE, "conflict"),
    ((False, True, None, False, None, None, None), CUT, "denied"),
    ((False, False, True, False, True, None, None), KEEP, "kept"),
    ((False, False, True, False, False, False, None), WAIT, "missing"),
    ((False, False, False, False, None, False, None), WAIT, "missing"),
    ((False, False, True, False, False, True, True), CUT, "lost within the window"),
    ((False, False, False, False, None, True, True), CUT, "lost within the window"),
    ((False, False, True, False, False, True, False), REFUSE, "damaged everywhere"),
    ((False, False, False, False, None, True, False), REFUSE, "damaged everywhere"),
)


def decide_op(*facts: bool) -> tuple[str, str]:
    """(verdict, row) of the first row that matches the seven facts."""
    for row, verdict, label in OP_TABLE:
        if all(want is None or want == have for want, have in zip(row, facts, strict=True)):
            return verdict, label
    raise AssertionError(f"no row decides {facts}")


def present_incarnations(votes: Sequence[Vote], members: int, known: Sequence[int]) -> list[int]:
    """The latest incarnation of each member that anybody has heard of; a later one is greater."""
    latest = [0] * members
    for incarnations in (known, *(vote.incarnations for vote in votes)):
        for replica, incarnation in enumerate(incarnations[:members]):
            latest[replica] = max(latest[replica], incarnation)
    return latest


def merge(votes: Sequence[Vote], members: int, known: Sequence[int] = ()) -> Decided | Wait | Refused:
    """The log of the view that ``votes`` (one a member, in any order) elect; ``known`` as in `present_incarnations`."""
    latest = present_incarnations(votes, members, known)
    present = [vote for vote in votes if vote.incarnation >= latest[vote.replica]]
    counted = sorted(present, key=lambda vote: vote.replica)
    quorum = view_change_quorum(members)
    trusted = [vote for vote in counted if not vote.suspect]
    everybody = len(counted) == members
    if len(trusted) < quorum and not everybody:
        return Wait("a quorum of votes")
    deciding = trusted if len(trusted) >= quorum else counted
    logs = _Logs(counted, deciding, _canonical(deciding), members)
    commit = 0
    for vote in counted:
        commit = max(commit, vote.commit, *(header.commit for header in vote.headers.values()))
    point, conflict = _commit_point(counted, commit)
    if conflict:
        return Refused("two committed entries", commit)
    headers: dict[int, Any] = {}
    holders: dict[int, int] = {}
    if point is not None:
        headers[commit], holders[commit] = point, _mask(counted, commit, point)
    head = max(commit, logs.head)
    for op in range(commit + 1, head + 1):
        header, mask, verdict, label = logs.decide(op, headers.get(op - 1))
        if verdict == CUT:
            head = op - 1
            break
        if verdict == WAIT:
            return Wait(f"op {op}: {label}")
        if verdict == REFUSE:
            return Refused(label, op)
        headers[op], holders[op] = header, mask
    return _checked(counted, commit, head, headers, holders)


@attrs.frozen
class _Logs:
    """The logs of a merge: those of all ``counted`` votes, of the ``deciding`` ones, and of the ``canonical`` ones, a
    list for each log view, the latest first."""

    counted: Sequence[Vote]
    deciding: Sequence[Vote]
    canonical: Sequence[Sequence[Vote]]
    members: int

    @property
    def head(self) -> int:
        """The highest op of a canonical log."""
        return max(vote.op for votes in self.canonical for vote in votes)

    def decide(self, op: int, below: Any) -> tuple[Any, int, str, str]:
        """(header, mask of holders, verdict, row) of ``op``, where ``below`` is the entry decided before it or
        None."""
        level = next(level for level, votes in enumerate(self.canonical) if any(vote.op >= op for vote in votes))
        votes = self.canonical[level]
        log_view = votes[0].log_view
        header, conflict = _canonical_header(votes, op)
        follows_later = level > 0 or (below is not None and below.born_view > log_view)
        branches_off = follows_later and header is not None and below is not None and header.parent != below.checksum
        silent = [vote for vote in self.deciding if not _denies(vote, op, header, log_view)]
        denied = len(self.deciding) - len(silent) >= nack_quorum(self.members)
        mask = _mask(self.counted, op, header)
        all_voted = len(self.counted) == self.members
        only_suspects = all(vote.suspect for vote in silent)
        known = header is not None
        return header, mask, *decide_op(branches_off, denied, known, conflict, bool(mask), all_voted, only_suspects)


def _canonical(deciding: Sequence[Vote]) -> list[list[Vote]]:
    """The votes whose logs make the canonical one, a list for each log view, the latest first: down to the first log
    view that a trusted member has."""
    by_view: dict[int, list[Vote]] = {}
    for vote in deciding:
        by_view.setdefault(vote.log_view, []).append(vote)
    canonical = []
    for log_view in sorted(by_view, reverse=True):
        canonical.append(by_view[log_view])
        if any(not vote.suspect for vote in by_view[log_view]):
            break
    return canonical


def _canonical_header(canonical: Sequence[Vote], op: int) -> tuple[Any, bool]:
    """(header of ``op`` in the canonical log or None, whether two canonical votes differ): votes of one log view, in
    which only copies of later views may differ. Of those the latest counts."""
    headers = [vote.headers[op] for vote in canonical if op in vote.headers]
    latest = max((header.born_view for header in headers), default=0)
    if latest > canonical[0].log_view:
        headers = [header for header in headers if header.born_view == latest]
    if not headers:
        return None, False
    return headers[0], any(header.checksum != headers[0].checksum for header in headers)


def _denies(vote: Vote, op: int, header: Any, log_view: int) -> bool:
    """Whether ``vote`` proves that its member never acknowledged the canonical entry at ``op``."""
    if vote.suspect:
        return False
    if op > vote.op or op in vote.nacks:
        return True
    if vote.log_view == log_view:
        return False
    other = vote.headers.get(op)
    return other is not None and (header is None or other.checksum != header.checksum)


def _mask(votes: Sequence[Vote], op: int, header: Any) -> int:
    """The members that hold the entry of ``header``."""
    mask = 0
    if header is not None:
        for vote in votes:
            if op in vote.present and vote.headers[op].checksum == header.checksum:
                mask |= 1 << vote.replica
    return mask


def _commit_point(votes: Sequence[Vote], commit: int) -> tuple[Any, bool]:
    """(header of the entry at the commit point, or None where no vote that committed it shows it; whether two
    differ)."""
    point = None
    for vote in votes:
        header = vote.headers.get(commit)
        if header is None or vote.commit < commit:
            continue
        if point is not None and point.checksum != header.checksum:
            return point, True
        point = header
    return point, False


def _checked(
    votes: Sequence[Vote], commit: int, head: int, headers: dict[int, Any], holders: dict[int, int]
) -> Decided | Refused:
    """The decision, once its entries chain (S1-19)."""
    if head - commit >= SUFFIX_MAX:
        return Refused("more entries are not committed than a view can carry", head)
    for op in range(commit + 1, head + 1):
        below = headers.get(op - 1)
        if below is not None and headers[op].parent != below.checksum:
            return Refused("the entries do not chain", op)
    return Decided(commit, head, headers, holders, {vote.replica: vote.commit for vote in votes})
