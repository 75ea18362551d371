"""The stages of a receiver and the edges between them, as data.

| from | to | why |
|---|---|---|
| Idle | AwaitingTarget | armed, or waiting for a view to be adopted |
| AwaitingTarget | Fetching | a descriptor was accepted |
| AwaitingTarget | Idle | unavailable, given up, or an election took over |
| Fetching | Installing | everything is here and checked |
| Fetching | AwaitingTarget | damage: fetched anew under another nonce |
| Fetching | Idle | given up, unavailable, or an election took over |
| Installing | Idle | installed, or refused |

Invariants: every other pair is no edge; a step that would need one is not taken, whoever caused it.
"""

from __future__ import annotations

from typing import Final

IDLE: Final = 0
AWAITING_TARGET: Final = 1
FETCHING: Final = 2
INSTALLING: Final = 3

STAGES: Final = (IDLE, AWAITING_TARGET, FETCHING, INSTALLING)
STAGE_NAMES: Final = ("Idle", "AwaitingTarget", "Fetching", "Installing")

EDGES: Final = (
    (IDLE, AWAITING_TARGET),
    (AWAITING_TARGET, FETCHING),
    (AWAITING_TARGET, IDLE),
    (FETCHING, INSTALLING),
    (FETCHING, AWAITING_TARGET),
    (FETCHING, IDLE),
    (INSTALLING, IDLE),
)


def is_edge(before: int, after: int) -> bool:
    """Whether a receiver may go from one stage to the other."""
    return (before, after) in EDGES
