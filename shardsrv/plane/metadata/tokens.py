"""Personal access tokens: made and deleted by their own user.

Invariants: the state and the log hold a digest, never the token; the expiry is counted from the timestamp of the entry,
so every copy agrees; names are unique for a user, digests for all.
"""

from __future__ import annotations

from typing import Final

from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata.commands import CreateTokenResolved
from shardsrv.plane.metadata.entry import Entry
from shardsrv.plane.metadata.state import MetadataState, Token, User
from shardsrv.wire.constants import UNLIMITED
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.users import DeletePersonalAccessToken

MAX_TOKENS: Final = 100
"""Tokens of one user."""


def check_count(state: MetadataState, user_id: int) -> None:
    """Raises RequestRefused (52) when a user can have no more tokens."""
    user = state.users.get(user_id)
    if user is not None and len(user.tokens) >= MAX_TOKENS:
        raise RequestRefused(ErrorCode.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED, tokens=len(user.tokens))


def create_token(entry: Entry, command: CreateTokenResolved) -> bytes:
    """Keeps a token of the acting user. Result codes: 40 no such user, 51 name or token taken, 52 too many, 56 expiry.

    The payload is empty: the node that was asked, and it alone, puts the token behind it.
    """
    user = _owner(entry)
    if command.name in user.tokens or command.digest in entry.state.token_owners:
        raise RequestRefused(ErrorCode.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS, name=command.name)
    check_count(entry.state, user.id)
    expiry_at = 0 if command.expiry in (0, UNLIMITED) else entry.timestamp + command.expiry
    if expiry_at > UNLIMITED:
        raise RequestRefused(ErrorCode.INVALID_PERSONAL_ACCESS_TOKEN_EXPIRY, expiry=command.expiry)
    user.tokens[command.name] = Token(command.name, command.digest, expiry_at)
    entry.state.token_owners[command.digest] = user.id
    return b""


def delete_token(entry: Entry, command: DeletePersonalAccessToken) -> bytes:
    """Removes a token of the acting user. Result codes: 40, 20 unknown."""
    user = _owner(entry)
    token = user.tokens.pop(command.name, None)
    if token is None:
        raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, token=command.name)
    del entry.state.token_owners[token.digest]
    return b""


def _owner(entry: Entry) -> User:
    user = entry.state.users.get(entry.user_id)
    if user is None:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED, user=entry.user_id)
    return user
