"""What a member may vouch for after a restart, from what its disk says.

| members | directory | stop | kernel boot | synced up to the head | verdict |
|---|---|---|---|---|---|
| 1 | | | | | TRUSTED |
| more | lost | | | | SUSPECT |
| more | there | fenced | | | SUSPECT |
| more | there | clean | | | TRUSTED |
| more | there | other | same | | TRUSTED |
| more | there | other | another | yes | TRUSTED |
| more | there | other | another | no | SUSPECT |

A suspect may have acknowledged entries that its log no longer holds. It neither denies nor acknowledges, and its log
decides nothing, until, under a StartView that echoes its nonce, it holds everything up to that primary's head; or until
it led a view change that saw the logs of enough others.

A suspicion outlives a further restart: the store marks the group durably before it starts (as it marks a fenced one),
and takes the mark away only when `Replica.suspect` has become false.

``synced up to the head`` is about what may have been acknowledged: the boot record's head, not only what the log still
shows.
"""

from __future__ import annotations

from typing import Final

import attrs

TRUSTED: Final = "trusted"
SUSPECT: Final = "suspect"


@attrs.frozen
class DiskFacts:
    """What the store found when it opened the group.

    Args:
        clean: the group was stopped cleanly, everything synced.
        same_boot: the kernel is the one that the group last ran on: the page cache was not lost.
        fenced: a write or a sync of the group had failed, or it was a suspect already.
        lost: the group was created before and its directory is gone (`reconciled_through`).
        synced_op: entries up to here were synced when the group last ran.
        head_op: the highest entry that the group may have acknowledged when it last ran.
        fresh: the group was just created here, with or without its first record, and never ran on this node.
        born_view: the view that a new group begins in, the same on every member: whoever leads it then is the one that
            its creator was told. No member was ever in an earlier one.
        cut: bytes of the log were cut away when it was opened, or a part of it is damaged.
    """

    clean: bool = True
    same_boot: bool = True
    fenced: bool = False
    lost: bool = False
    synced_op: int = 0
    head_op: int = 0
    fresh: bool = False
    cut: bool = False
    born_view: int = 0


_Row = tuple[tuple[bool | None, ...], str]

TRUST_FACTS: Final = (
    "several members",
    "directory lost",
    "fenced or marked",
    "clean stop",
    "same kernel boot",
    "synced up to the head",
)
TRUST_TABLE: Final[tuple[_Row, ...]] = (
    # several members, lost, fenced, clean, same boot, all synced
    ((False, None, None, None, None, None), TRUSTED),
    ((True, True, None, None, None, None), SUSPECT),
    ((True, False, True, None, None, None), SUSPECT),
    ((True, False, False, True, None, None), TRUSTED),
    ((True, False, False, False, True, None), TRUSTED),
    ((True, False, False, False, False, True), TRUSTED),
    ((True, False, False, False, False, False), SUSPECT),
)


def judge(members: int, facts: DiskFacts) -> str:
    """TRUSTED or SUSPECT: the first row whose facts hold."""
    synced = facts.synced_op >= facts.head_op and not facts.cut
    values = (members > 1, facts.lost, facts.fenced, facts.clean, facts.same_boot, synced)
    for row, verdict in TRUST_TABLE:
        if all(want is None or want == have for want, have in zip(row, values, strict=True)):
            return verdict
    raise AssertionError(f"no row decides {facts}")
