"""Whether a metadata request becomes an entry: the decision table of at-most-once, as data.

The first row whose facts all hold decides. The table is total (its last row asks for nothing) and a test walks every
combination of facts. Facts are True, False or None (does not matter); the columns are those of `Facts`.

| row | in flight | known | epoch older | epoch newer | number seen | digest differs | reply kept | secret | decision |
|---|---|---|---|---|---|---|---|---|---|
| in flight | yes | | | | | | | | outcome unknown, 57 |
| no session | no | no | | | | | | | eviction 1 |
| session too low | no | yes | yes | | | | | | eviction 7 |
| session from the future | no | yes | no | yes | | | | | silence |
| new number | no | yes | no | no | no | | | | execute |
| other request, same number | no | yes | no | no | yes | yes | | | silence |
| secret already given | no | yes | no | no | yes | no | yes | yes | 51 |
| retry | no | yes | no | no | yes | no | yes | no | repeat the reply |
| applied, reply gone | no | yes | no | no | yes | no | no | | 59 |

Register and Logout have shorter tables of their own, below. Before all of them stands ROLE_TABLE, for both planes: who
does not lead, or does not yet know everything that may have been acknowledged, accepts nothing (58).

| row | fenced | in service | leads | caught up | |
|---|---|---|---|---|---|
| the group is fenced | yes | | | | 58 |
| not in service yet | no | no | | | 58 |
| not the primary | no | yes | no | | 58 |
| not caught up | no | yes | yes | no | 58 |
| serves | no | yes | yes | yes | goes on to the tables |
"""

from __future__ import annotations

from typing import Final

import attrs

from shardsrv.vsr.client_table import ClientTable
from shardsrv.wire.constants import EvictionReason, Operation
from shardsrv.wire.error_codes import ErrorCode

EXECUTE: Final = 0
REPEAT: Final = 1
REFUSE: Final = 2
EVICT: Final = 3
SILENCE: Final = 4

_CREATE_TOKEN: Final = int(Operation.CREATE_PERSONAL_ACCESS_TOKEN)
_ACCEPTED: Final = bytes(4)  # a result section without an entry


@attrs.frozen
class Decision:
    """What happens to a request: ``action`` and the code that belongs to it (status, eviction reason or 0)."""

    label: str
    action: int
    code: int = 0


@attrs.frozen
class Facts:
    """What is known about a request when it arrives."""

    in_flight: bool
    known: bool
    epoch_older: bool
    epoch_newer: bool
    number_seen: bool
    digest_differs: bool
    reply_kept: bool
    secret: bool


SERVES: Final = "serves"
ROLE_FACTS: Final = ("fenced", "in service", "leads", "caught up")
ROLE_TABLE: Final[tuple[tuple[tuple[bool | None, ...], str], ...]] = (
    ((True, None, None, None), "the group is fenced"),
    ((False, False, None, None), "not in service yet"),
    ((False, True, False, None), "not the primary"),
    ((False, True, True, False), "not caught up"),
    ((False, True, True, True), SERVES),
)


def role(*facts: bool) -> str:
    """The row of ROLE_TABLE for (fenced, in service, leads, caught up)."""
    for row, label in ROLE_TABLE:
        if all(want is None or want == have for want, have in zip(row, facts, strict=True)):
            return label
    raise AssertionError(f"no row decides {facts}")


_Row = tuple[tuple[bool | None, ...], Decision]

REQUEST_TABLE: Final[tuple[_Row, ...]] = (
    (
        (True, None, None, None, None, None, None, None),
        Decision("in flight", REFUSE, ErrorCode.TRANSIENT_NOT_COMMITTED),
    ),
    ((False, False, None, None, None, None, None, None), Decision("no session", EVICT, EvictionReason.NO_SESSION)),
    (
        (False, True, True, None, None, None, None, None),
        Decision("session too low", EVICT, EvictionReason.SESSION_TOO_LOW),
    ),
    ((False, True, False, True, None, None, None, None), Decision("session from the future", SILENCE)),
    ((False, True, False, False, False, None, None, None), Decision("new number", EXECUTE)),
    ((False, True, False, False, True, True, None, None), Decision("other request, same number", SILENCE)),
    (
        (False, True, False, False, True, False, True, True),
        Decision("secret already given", REFUSE, ErrorCode.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS),
    ),
    ((False, True, False, False, True, False, True, False), Decision("retry", REPEAT)),
    (
        (False, True, False, False, True, False, False, None),
        Decision("applied, reply gone", REFUSE, ErrorCode.REQUEST_ALREADY_APPLIED),
    ),
)


def decide(facts: Facts) -> Decision:
    """The decision of the first row that matches ``facts``."""
    values = attrs.astuple(facts)
    for row, decision in REQUEST_TABLE:
        if all(want is None or want == have for want, have in zip(row, values, strict=True)):
            return decision
    raise AssertionError(f"no row decides {facts}")


def preflight_request(
    table: ClientTable, client: bytes, session: int, request: int, digest: int, in_flight: bool
) -> Decision:
    """The decision for an ordinary request; ``digest`` 0 was not stamped by the client and compares equal to
    anything."""
    entry = table.get(client)
    if entry is None:
        return decide(Facts(in_flight, False, False, False, False, False, False, False))
    seen = request <= entry.watermark
    reply = entry.reply_to(request) if seen else None
    first = reply.digest if reply is not None else entry.watermark_checksum if request == entry.watermark else 0
    differs = digest != 0 and first != 0 and digest != first
    secret = reply is not None and reply.operation == _CREATE_TOKEN and reply.body[:4] == _ACCEPTED
    return decide(
        Facts(in_flight, True, session < entry.epoch, session > entry.epoch, seen, differs, reply is not None, secret)
    )


def preflight_register(table: ClientTable, client: bytes, user_id: int, in_flight: bool) -> Decision:
    """The decision for a Register: a client id belongs to the user that registered it, until it logs out."""
    if in_flight:
        return Decision("in flight", REFUSE, ErrorCode.TRANSIENT_NOT_COMMITTED)
    entry = table.get(client)
    if entry is not None and entry.user_id != user_id:
        return Decision("client id of another user", EVICT, EvictionReason.SESSION_ERROR)
    return Decision("register", EXECUTE)


def preflight_logout(table: ClientTable, client: bytes, session: int) -> Decision:
    """The decision for a Logout. Requests of the client in flight do not hinder it: they commit before it, and if one
    is a Register, the session no longer is the present one when the logout commits, which then changes nothing."""
    entry = table.get(client)
    if entry is None:
        return Decision("no session", EVICT, EvictionReason.NO_SESSION)
    if session < entry.epoch:
        return Decision("session too low", EVICT, EvictionReason.SESSION_TOO_LOW)
    if session > entry.epoch:
        return Decision("session from the future", SILENCE)
    return Decision("logout", EXECUTE)
