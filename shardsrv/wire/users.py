"""Requests and replies about users, permissions and personal access tokens.

Expiries are microseconds: in requests a duration (0 or 2**64-1 = never), in replies an absolute time (0 = never). A
user status byte stays a number, because codes that this release does not know are not refused.
"""

from typing import Annotated

import attrs

from shardsrv.wire.codec import Optional, UntilEnd
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.message import Message, Nested, Reply, Request
from shardsrv.wire.options import ReplyOptions, RequestOptions
from shardsrv.wire.permissions import OptionalPermissions, OptionalPermissionsInReply
from shardsrv.wire.primitives import NAME_CODEC, U8, U8_CODEC, U32, U64, Ident, Name, Text8


@attrs.frozen
class GetUser(Request):
    code = CommandCode.GET_USER

    user: Ident


@attrs.frozen
class GetUsers(Request):
    code = CommandCode.GET_USERS


@attrs.frozen
class CreateUser(Request):
    code = CommandCode.CREATE_USER

    username: Name
    password: Text8
    status: U8
    permissions: OptionalPermissions = None
    options: RequestOptions = ()


@attrs.frozen
class DeleteUser(Request):
    code = CommandCode.DELETE_USER

    user: Ident


@attrs.frozen
class UpdateUser(Request):
    """Absent fields stay as they are."""

    code = CommandCode.UPDATE_USER

    user: Ident
    username: Annotated[str | None, Optional(NAME_CODEC)] = None
    status: Annotated[int | None, Optional(U8_CODEC)] = None
    options: RequestOptions = ()


@attrs.frozen
class UpdatePermissions(Request):
    code = CommandCode.UPDATE_PERMISSIONS

    user: Ident
    permissions: OptionalPermissions = None


@attrs.frozen
class ChangePassword(Request):
    code = CommandCode.CHANGE_PASSWORD

    user: Ident
    current_password: Text8
    new_password: Text8


@attrs.frozen
class GetPersonalAccessTokens(Request):
    code = CommandCode.GET_PERSONAL_ACCESS_TOKENS


@attrs.frozen
class CreatePersonalAccessToken(Request):
    code = CommandCode.CREATE_PERSONAL_ACCESS_TOKEN

    name: Name
    expiry: U64


@attrs.frozen
class DeletePersonalAccessToken(Request):
    code = CommandCode.DELETE_PERSONAL_ACCESS_TOKEN

    name: Name


@attrs.frozen
class UserRecord(Message):
    id: U32
    created_at: U64
    status: U8
    username: Name
    options: ReplyOptions = ()


@attrs.frozen
class UserDetailsReply(Reply):
    codes = (CommandCode.GET_USER, CommandCode.CREATE_USER)
    absent_when_empty = True

    user: UserRecord
    permissions: OptionalPermissionsInReply = None


@attrs.frozen
class UsersReply(Reply):
    codes = (CommandCode.GET_USERS,)

    users: Annotated[tuple[UserRecord, ...], UntilEnd(Nested(UserRecord))]


@attrs.frozen
class TokenRecord(Message):
    name: Name
    expiry_at: U64


@attrs.frozen
class TokensReply(Reply):
    codes = (CommandCode.GET_PERSONAL_ACCESS_TOKENS,)

    tokens: Annotated[tuple[TokenRecord, ...], UntilEnd(Nested(TokenRecord))]


@attrs.frozen
class RawTokenReply(Reply):
    """The only time that the token itself travels."""

    codes = (CommandCode.CREATE_PERSONAL_ACCESS_TOKEN,)

    token: Text8
