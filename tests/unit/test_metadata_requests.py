"""Answers to metadata requests on the home shard: whose reply is followed by a secret (S2-135, S2-136)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardsrv.shards import records
from shardsrv.shards.metadata_requests import MetadataRequests, Waiting
from shardsrv.wire.constants import Operation
from shardsrv.wire.replies import SUCCESS, refusal, split_result
from shardsrv.wire.users import RawTokenReply

CREATE = int(Operation.CREATE_PERSONAL_ACCESS_TOKEN)
TEXT = "the text of a token"


class Answers:
    """Keeps what would leave."""

    def __init__(self) -> None:
        self.left: list[tuple[str, Any]] = []

    def reply(self, frame: Any, body: bytes, **_: Any) -> None:
        self.left.append(("reply", bytes(body)))


def answered(body: bytes, token: str = TEXT) -> list[tuple[str, Any]]:
    """What a client gets when shard 0 answered a request that waits with the text of a token."""
    answers = Answers()
    nothing: Any = None
    requests = MetadataRequests(
        answers=answers,  # type: ignore[arg-type]
        sessions=nothing,
        links=nothing,
        plane=nothing,
        passwords=nothing,
        tokens_max=1,
        start=nothing,
        step=nothing,
    )
    frame = SimpleNamespace(operation=CREATE)
    number = requests._wait(Waiting(frame, SimpleNamespace(client=bytes(16)), token=token))  # type: ignore[arg-type]
    head = records.MetadataReply(number, records.DONE, CREATE, 0, 7, 9).pack()
    requests.replied(memoryview(head), memoryview(body))
    assert requests.in_flight == 0
    return answers.left


def test_the_first_success_is_followed_by_the_secret() -> None:
    ((kind, body),) = answered(SUCCESS)
    code, payload = split_result(body)
    assert (kind, code, RawTokenReply.decode(payload)) == ("reply", 0, RawTokenReply(TEXT))


@pytest.mark.parametrize("code", [51, 52, 1011])
def test_a_committed_refusal_passes_untouched_and_the_secret_is_gone(code: int) -> None:
    """A token grafted onto a refusal would make it look like a success."""
    assert answered(refusal(code)) == [("reply", refusal(code))]


@pytest.mark.parametrize("body", [b"", bytes(3), bytes(5), bytes(12)])
def test_a_body_that_is_no_bare_success_is_not_read_as_one(body: bytes) -> None:
    """Short, or longer than the result section of a success: what is not there counts as no result, and nothing is
    added to it."""
    assert answered(body) == [("reply", body)]


def test_other_replies_are_followed_by_nothing() -> None:
    assert answered(SUCCESS, token="") == [("reply", SUCCESS)]
