"""The commands on users and their passwords and permissions.

Invariants: as in `streams`; root is never deleted, never loses its permissions and is never made inactive; the log and
the state hold password hashes only. Tokens and permissions go with their user.
"""

from __future__ import annotations

from typing import Final

from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata import lookup, permissions, records
from shardsrv.plane.metadata.changes import UserDeleted
from shardsrv.plane.metadata.commands import ChangePasswordResolved, CreateUserResolved
from shardsrv.plane.metadata.entry import Entry
from shardsrv.plane.metadata.permissions import Right
from shardsrv.plane.metadata.state import ROOT_ID, User
from shardsrv.wire.constants import UserStatus
from shardsrv.wire.error_codes import ErrorCode
from shardsrv.wire.users import DeleteUser, UpdatePermissions, UpdateUser

MIN_USERNAME: Final = 3
MAX_USERNAME: Final = 50
"""Bytes of a username."""


def _check_username(name: str) -> None:
    if not MIN_USERNAME <= len(name.encode("utf-8")) <= MAX_USERNAME:
        raise RequestRefused(ErrorCode.INVALID_USERNAME, username=name)


def create_user(entry: Entry, command: CreateUserResolved) -> bytes:
    """Makes a user under the lowest free id. Result codes: 41, 43 username, 46 name taken, 55 full."""
    state = entry.state
    permissions.require(state, entry.user_id, Right.WRITE_USERS)
    _check_username(command.username)
    if command.username in state.user_ids:
        raise RequestRefused(ErrorCode.USER_ALREADY_EXISTS, username=command.username)
    if state.user_numbers.exhausted:
        raise RequestRefused(ErrorCode.USERS_LIMIT_REACHED, users=len(state.users))
    user = User(
        state.user_numbers.take(),
        command.username,
        entry.timestamp,
        command.status,
        command.password_hash,
        command.permissions,
    )
    state.users[user.id] = user
    state.user_ids[user.username] = user.id
    return records.user_details(user).encode()


def update_user(entry: Entry, command: UpdateUser) -> bytes:
    """Sets the name, the status, both or neither; an unknown status is passed over. Codes: 20, 41, 43, 45 root, 46."""
    state = entry.state
    user = lookup.find_user(state, command.user)
    permissions.require(state, entry.user_id, Right.WRITE_USERS)
    name = user.username if command.username is None else command.username
    if name != user.username:
        _check_username(name)
        if name in state.user_ids:
            raise RequestRefused(ErrorCode.USER_ALREADY_EXISTS, username=name)
    if user.id == ROOT_ID and command.status == UserStatus.INACTIVE:
        raise RequestRefused(ErrorCode.INVALID_USER_STATUS, user=ROOT_ID)
    del state.user_ids[user.username]
    user.username = name
    state.user_ids[name] = user.id
    if command.status in tuple(UserStatus):
        user.status = UserStatus(command.status)
    return b""


def delete_user(entry: Entry, command: DeleteUser) -> bytes:
    """Removes a user with its tokens and permissions. Result codes: 20, 41, 48 root."""
    state = entry.state
    user = lookup.find_user(state, command.user)
    permissions.require(state, entry.user_id, Right.WRITE_USERS)
    if user.id == ROOT_ID:
        raise RequestRefused(ErrorCode.CANNOT_DELETE_USER, user=ROOT_ID)
    for token in user.tokens.values():
        del state.token_owners[token.digest]
    del state.users[user.id]
    del state.user_ids[user.username]
    state.user_numbers.release(user.id)
    entry.changes.append(UserDeleted(user.id))
    return b""


def update_permissions(entry: Entry, command: UpdatePermissions) -> bytes:
    """Replaces, or takes away, the permissions. Result codes: 20, 41, 49 root."""
    user = lookup.find_user(entry.state, command.user)
    permissions.require(entry.state, entry.user_id, Right.WRITE_USERS)
    if user.id == ROOT_ID:
        raise RequestRefused(ErrorCode.CANNOT_CHANGE_PERMISSIONS, user=ROOT_ID)
    user.permissions = command.permissions
    return b""


def change_password(entry: Entry, command: ChangePasswordResolved) -> bytes:
    """Replaces the hash when the current password was right; one's own needs no right. Result codes: 20, 41, 42."""
    user = lookup.find_user(entry.state, command.user)
    if user.id != entry.user_id:
        permissions.require(entry.state, entry.user_id, Right.WRITE_USERS)
    if command.verified_hash != user.password_hash:
        raise RequestRefused(ErrorCode.INVALID_CREDENTIALS, user=user.id)
    user.password_hash = command.new_hash
    return b""
