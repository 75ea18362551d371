"""What a member knows of the view change it is in."""

from __future__ import annotations

from shardsrv.vsr.merge import Decided, Refused, Vote, Wait


class Election:
    """State of one view change; emptied when another begins.

    ``calls`` is the mask of members that called for this view (own included); ``votes`` the first vote of each member,
    at the candidate; ``outcome`` the last result of the merge, over ``merged`` of them.
    """

    __slots__ = ("call_due", "calls", "elapsed", "merged", "outcome", "reason", "vote_due", "votes")

    def __init__(self) -> None:
        self.reset("", 0)

    def reset(self, reason: str, own_bit: int) -> None:
        """A view change begins because of ``reason``."""
        self.reason = reason
        self.calls = own_bit
        self.votes: dict[int, Vote] = {}
        self.merged = 0
        self.outcome: Decided | Wait | Refused | None = None
        self.call_due = True
        self.vote_due = True
        self.elapsed = 0

    @property
    def decided(self) -> Decided | None:
        """The log of the view, once the votes decided it."""
        return self.outcome if isinstance(self.outcome, Decided) else None
