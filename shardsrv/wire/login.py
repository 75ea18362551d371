"""Login and logout: the register body in its two shapes, and the login reply.

Both shapes begin with `u32 protocol_version, u8+N sdk_name, u8+N sdk_version`; then `u8+N username, u8+N password` or
`u8+N token`; then `u32+N client_context` (empty = none). Which shape a body has is told by whether it decodes: a body
may be both, and a caller then tries the password first.
"""

from typing import Annotated, ClassVar, TypeVar

import attrs

from shardsrv.errors import DecodeError
from shardsrv.wire.codec import Text
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.message import Message, Reply, Request
from shardsrv.wire.primitives import U32, U64, Bytes32, Name, Text8

T = TypeVar("T", bound=Request)
Token = Annotated[str, Text(1, shortest=1)]


@attrs.frozen
class VersionPrefix(Message):
    """What every login begins with."""

    accepts_trailing: ClassVar[bool] = True

    protocol_version: U32
    sdk_name: Name
    sdk_version: Name


@attrs.frozen
class LoginWithPassword(Request):
    code = CommandCode.LOGIN_REGISTER

    protocol_version: U32
    sdk_name: Name
    sdk_version: Name
    username: Name
    password: Text8
    context: Bytes32 = b""


@attrs.frozen
class LoginWithToken(Request):
    code = CommandCode.LOGIN_REGISTER_WITH_PAT

    protocol_version: U32
    sdk_name: Name
    sdk_version: Name
    token: Token
    context: Bytes32 = b""


@attrs.frozen
class LoginAttempt:
    """A register body: its prefix and each of the shapes that it decodes as."""

    prefix: VersionPrefix
    password: LoginWithPassword | None
    token: LoginWithToken | None


def decode_login(body: Buffer) -> LoginAttempt:
    """Reads a register body; raises DecodeError only when the prefix does not decode (a malformed login)."""
    return LoginAttempt(VersionPrefix.decode(body), _shape(LoginWithPassword, body), _shape(LoginWithToken, body))


def _shape(kind: type[T], body: Buffer) -> T | None:
    try:
        return kind.decode(body)
    except DecodeError:
        # Not of this shape: an expected outcome, the caller evicts when neither fits.
        return None


@attrs.frozen
class LoginReply(Reply):
    """`session` is the commit position of the registration, never 0; versions as in `constants.pack_version`."""

    codes = (CommandCode.LOGIN_REGISTER, CommandCode.LOGIN_REGISTER_WITH_PAT)

    user_id: U32
    session: U64
    server_protocol_version: U32
    server_version: Name

    def check(self, offset: int) -> None:
        if self.session == 0:
            raise DecodeError("LoginReply.session", offset + 4, "not zero", 0)


@attrs.frozen
class Logout(Request):
    code = CommandCode.LOGOUT_USER
