"""Polls that another shard's connection asked for."""

from types import SimpleNamespace
from typing import Any

from shardsrv.shards import records
from shardsrv.shards.polls import Polls
from shardsrv.wire.constants import ConsumerKind
from shardsrv.wire.error_codes import ErrorCode


class FullLinks:
    """Lanes of a shard whose arena has no room: a body is refused as `Links.send` does, a head alone goes."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []

    def send(self, receiver: int, kind: int, head: bytes, body: bytes = b"") -> None:
        if body:
            raise MemoryError
        self.sent.append((receiver, kind, head))


def test_an_answer_that_finds_no_room_in_the_arena_is_refused_and_ends_nothing() -> None:
    links: Any = FullLinks()
    unused: Any = None
    polls = Polls(
        1, answers=unused, targets=unused, links=links, group_of=unused, park=unused, broken=unused, groups=unused,
        cipher=None, start=unused, step=unused,
    )  # fmt: skip
    group: Any = SimpleNamespace(
        plane=SimpleNamespace(stored_offset=lambda kind, key: None),
        poll=lambda *arguments: ([b"head", b"messages"], 12, 1, 0),
    )
    record = records.PollRequest(7, 1, 1, 1, 0, 1, 1, 0, 1, 0, ConsumerKind.CONSUMER, 1, 1, 0)
    polls.requested(group, 2, record)
    assert links.sent == [(2, records.POLL_REPLY, records.PollReply(7, ErrorCode.TRANSIENT_NOT_ACCEPTED).pack())]
