"""The command codes of clients: code, name, the operation byte that carries each, and whether a session is needed.

A code travels (header bytes 196..200) only with operation 2; every other code is implied by its operation. Login codes
40 and 45 share operation 1 and are told apart by the shape of the body. Invariant: operation -> code is unique but for
operations 1 and 2.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from shardsrv.wire.constants import REPLY_OPERATIONS, Operation


class CommandCode(enum.IntEnum):
    PING = 1
    GET_STATS = 10
    GET_SNAPSHOT = 11
    GET_CLUSTER_METADATA = 12
    DESCRIBE_OPTIONS = 13
    ATTACH_CONSUMER_SESSION = 14
    GET_ME = 20
    GET_CLIENT = 21
    GET_CLIENTS = 22
    GET_USER = 31
    GET_USERS = 32
    CREATE_USER = 33
    DELETE_USER = 34
    UPDATE_USER = 35
    UPDATE_PERMISSIONS = 36
    CHANGE_PASSWORD = 37
    LOGIN_USER = 38
    LOGOUT_USER = 39
    LOGIN_REGISTER = 40
    GET_PERSONAL_ACCESS_TOKENS = 41
    CREATE_PERSONAL_ACCESS_TOKEN = 42
    DELETE_PERSONAL_ACCESS_TOKEN = 43
    LOGIN_WITH_PERSONAL_ACCESS_TOKEN = 44
    LOGIN_REGISTER_WITH_PAT = 45
    POLL_MESSAGES = 100
    SEND_MESSAGES = 101
    FLUSH_UNSAVED_BUFFER = 102
    GET_POLL_ROUTING = 103
    POLL_MESSAGES_ON_PRIMARY = 104
    GET_CONSUMER_OFFSET = 120
    STORE_CONSUMER_OFFSET = 121
    DELETE_CONSUMER_OFFSET = 122
    GET_CONSUMER_OFFSET_ROUTING = 123
    GET_STREAM = 200
    GET_STREAMS = 201
    CREATE_STREAM = 202
    DELETE_STREAM = 203
    UPDATE_STREAM = 204
    PURGE_STREAM = 205
    GET_TOPIC = 300
    GET_TOPICS = 301
    CREATE_TOPIC = 302
    DELETE_TOPIC = 303
    UPDATE_TOPIC = 304
    PURGE_TOPIC = 305
    CREATE_PARTITIONS = 402
    DELETE_PARTITIONS = 403
    DELETE_SEGMENTS = 503
    GET_CONSUMER_GROUP = 600
    GET_CONSUMER_GROUPS = 601
    CREATE_CONSUMER_GROUP = 602
    DELETE_CONSUMER_GROUP = 603
    JOIN_CONSUMER_GROUP = 604
    LEAVE_CONSUMER_GROUP = 605
    SYNC_CONSUMER_GROUP = 606


_REPLICATED: Final[dict[CommandCode, Operation]] = {
    CommandCode.LOGIN_REGISTER: Operation.REGISTER,
    CommandCode.LOGIN_REGISTER_WITH_PAT: Operation.REGISTER,
    CommandCode.LOGOUT_USER: Operation.LOGOUT,
} | {code: Operation[code.name] for code in CommandCode if code.name in Operation.__members__}

_WITHOUT_SESSION: Final = (
    CommandCode.PING,
    CommandCode.LOGIN_USER,
    CommandCode.LOGOUT_USER,
    CommandCode.LOGIN_REGISTER,
    CommandCode.LOGIN_WITH_PERSONAL_ACCESS_TOKEN,
    CommandCode.LOGIN_REGISTER_WITH_PAT,
)
"""Answered without a session: ping and the logins; the legacy logins by an eviction, a logout by success."""


@attrs.frozen
class CommandInfo:
    """One row: `name` in lower case as in the command table, `reply_operation` as the reply header carries it."""

    code: CommandCode
    name: str
    operation: Operation
    reply_operation: Operation
    needs_session: bool


def _info(code: CommandCode) -> CommandInfo:
    operation = _REPLICATED.get(code, Operation.NON_REPLICATED)
    reply = REPLY_OPERATIONS.get(operation, operation)
    return CommandInfo(code, code.name.lower(), operation, reply, code not in _WITHOUT_SESSION)


COMMANDS: Final[dict[int, CommandInfo]] = {int(code): _info(code) for code in CommandCode}
"""Every command by code."""

CODE_OF_OPERATION: Final[dict[int, CommandCode]] = {
    int(operation): code for code, operation in _REPLICATED.items() if operation != Operation.REGISTER
}
"""The command code that a replicated operation stands for (not for register, whose body decides)."""
