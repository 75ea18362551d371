"""The reply class of every command code, and the result section that stands before some payloads.

Result section: `u32 count`, count x {`u32 index`, `u32 code`}; count 0 is success and the payload follows, otherwise
the first code is the refusal and nothing follows. Which operations have one: `constants.is_result_framed`.
"""

from __future__ import annotations

from typing import Final

from shardsrv.errors import DecodeError
from shardsrv.wire import consumer_groups, login, messages, offsets, streams, system, topics, users
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.cursor import Buffer, Cursor
from shardsrv.wire.message import Reply
from shardsrv.wire.system import Empty

_WITH_PAYLOAD: Final[dict[int, type[Reply]]] = {
    int(code): kind
    for module in (system, users, streams, topics, messages, offsets, consumer_groups, login)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Reply) and kind not in (Reply, Empty)
    for code in kind.codes
}

REPLIES: Final[dict[int, type[Reply]]] = {int(code): _WITH_PAYLOAD.get(code, Empty) for code in CommandCode}

SUCCESS: Final = bytes(4)
"""The result section of a success."""


def refusal(code: int) -> bytes:
    """The 12-byte body of a refusal decided by the state machine: one result, index 0, `code`."""
    return b"\x01\x00\x00\x00\x00\x00\x00\x00" + code.to_bytes(4, "little")


def split_result(body: Buffer) -> tuple[int, memoryview]:
    """(code, payload) of a result-framed body; code 0 is success. Raises DecodeError for a malformed section."""
    cursor = Cursor(body)
    count = cursor.u32()
    if count * 8 > cursor.remaining:
        raise DecodeError("result section", 0, f"at most {cursor.remaining // 8} results", count)
    code = 0
    for index in range(count):
        cursor.u32()
        found = cursor.u32()
        code = found if index == 0 else code
    if count and (code == 0 or cursor.remaining):
        raise DecodeError("result section", 0, "a code and no payload", code)
    return code, cursor.rest()


def decode_reply(code: int, payload: Buffer) -> Reply | None:
    """The reply to command `code` from its payload (behind the result section); None when empty means absent.

    Raises DecodeError.
    """
    kind = REPLIES.get(code)
    if kind is None:
        raise DecodeError("command code", 196, "a known code", code)
    if kind.absent_when_empty and len(payload) == 0:
        return None
    return kind.decode(payload)
