"""The request class of every command code. Codes without a body of their own (the legacy logins) have none."""

from __future__ import annotations

from typing import Final

from shardsrv.errors import DecodeError
from shardsrv.wire import consumer_groups, login, messages, offsets, streams, system, topics, users
from shardsrv.wire.codes import CODE_OF_OPERATION, CommandCode
from shardsrv.wire.constants import Operation
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.message import Request

REQUESTS: Final[dict[int, type[Request]]] = {
    int(kind.code): kind
    for module in (system, users, streams, topics, messages, offsets, consumer_groups, login)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Request) and kind is not Request
}

WITHOUT_REQUEST: Final = (CommandCode.LOGIN_USER, CommandCode.LOGIN_WITH_PERSONAL_ACCESS_TOKEN)
"""Codes that are answered by an eviction, whatever their body."""


def command_of(operation: int, code: int) -> int:
    """The command code of a request header: `code` with operation 2, else the one that the operation stands for.

    Raises DecodeError for an operation that stands for none; a register (two shapes) counts as code 40.
    """
    if operation == Operation.NON_REPLICATED:
        return code
    if operation == Operation.REGISTER:
        return CommandCode.LOGIN_REGISTER
    found = CODE_OF_OPERATION.get(operation)
    if found is None:
        raise DecodeError("operation", 176, "an operation of clients", operation)
    return found


def decode_request(code: int, body: Buffer) -> Request:
    """The request of command `code`; raises DecodeError, also for a code that has no request."""
    kind = REQUESTS.get(code)
    if kind is None:
        raise DecodeError("command code", 196, "a known code", code)
    return kind.decode(body)
