"""The check behind the fault tests finds what it is there to find."""

from collections.abc import Sequence

import pytest

from tests.faults.load import Ledger
from tests.support.client import Message


def stored(payloads: Sequence[bytes], first_offset: int = 0) -> list[Message]:
    return [
        Message(offset, bytes(16), payload, b"", 0, 0) for offset, payload in enumerate(payloads, start=first_offset)
    ]


@pytest.fixture
def ledger() -> Ledger:
    """Three messages confirmed at 0..2, a fourth whose acknowledgement never came."""
    ledger = Ledger()
    ledger.try_send(0, b"p", [b"a", b"b", b"c"])
    ledger.confirm(0, 0, [b"a", b"b", b"c"])
    ledger.try_send(0, b"p", [b"d"])
    return ledger


@pytest.mark.parametrize("kept", [[b"a", b"b", b"c"], [b"a", b"b", b"c", b"d"]])
def test_the_unacknowledged_message_may_be_there_or_not(ledger: Ledger, kept: list[bytes]) -> None:
    assert ledger.check(0, stored(kept)) == []


@pytest.mark.parametrize(
    ("kept", "finding"),
    [
        ([b"a", b"b"], "was confirmed at 2, found at []"),
        ([b"a", b"c", b"b"], "was confirmed at 1, found at [2]"),
        ([b"a", b"b", b"c", b"c"], "found at [2, 3]"),
        ([b"a", b"b", b"c", b"d", b"d"], "stands at [3, 4]"),
        ([b"a", b"b", b"c", b"x"], "nobody sent it"),
    ],
)
def test_loss_duplicates_and_strangers_are_found(ledger: Ledger, kept: list[bytes], finding: str) -> None:
    assert any(finding in line for line in ledger.check(0, stored(kept)))


def test_a_gap_is_found(ledger: Ledger) -> None:
    messages = [*stored([b"a", b"b"]), *stored([b"c"], first_offset=3)]
    assert any("offset 3 stands where 2 is due" in line for line in ledger.check(0, messages))


def test_disorder_is_found() -> None:
    ledger = Ledger()
    ledger.try_send(0, b"p", [b"a", b"b"])
    assert any("out of order" in line for line in ledger.check(0, stored([b"b", b"a"])))
