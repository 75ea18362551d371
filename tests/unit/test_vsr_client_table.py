"""The client table: registration, replies that may be asked for again, eviction, its snapshot; and the preflight of
requests."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from shardsrv.errors import (
    ClientTableDuplicate,
    ClientTableInvalidReply,
    ClientTableMalformed,
    ClientTableRing,
    ClientTableTooLarge,
)
from shardsrv.vsr import preflight
from shardsrv.vsr.client_table import REPLIES_KEPT, ClientTable
from shardsrv.vsr.preflight import REQUEST_TABLE, Facts, decide, preflight_logout, preflight_register, preflight_request

CREATE_STREAM = 128
CREATE_TOKEN = 146


def client(number: int) -> bytes:
    return number.to_bytes(16, "little")


def filled(clients: int = 3, capacity: int = 8) -> ClientTable:
    """Client n registered as op n, user 10 + n, and has asked requests 1 and 2 (ops 100 * n + request)."""
    table = ClientTable(capacity)
    for number in range(1, clients + 1):
        table.commit_register(client(number), 10 + number, number, number, b"")
    for number in range(1, clients + 1):
        for request in (1, 2):
            op = 100 * number + request
            assert table.commit_request(
                client(number), number, request, 7 * request, CREATE_STREAM, op, op, b"reply %d" % op
            )
    return table


def test_the_epoch_is_the_op_of_the_register_and_a_new_login_keeps_watermark_and_replies() -> None:
    table = filled()
    assert table.commit_register(client(1), 99, 500, 500, b"") is None
    entry = table.get(client(1))
    assert entry is not None
    assert (entry.epoch, entry.user_id, entry.watermark) == (500, 99, 2)
    reply = entry.reply_to(2)
    assert reply is not None and reply.body == b"reply 102"
    assert sum(kept.operation == 1 for kept in entry.replies) == 1
    assert table.owns(client(1), 500) and not table.owns(client(1), 1)


def test_five_replies_are_kept_and_the_oldest_goes() -> None:
    table = filled(1)
    for request in range(3, 9):
        table.commit_request(client(1), 1, request, 0, CREATE_STREAM, 200 + request, 0, b"")
    entry = table.get(client(1))
    assert entry is not None and [reply.request for reply in entry.replies] == [4, 5, 6, 7, 8]
    assert entry.reply_to(3) is None and len(entry.replies) == REPLIES_KEPT


@pytest.mark.parametrize(
    ("who", "session", "number", "op"),
    [(9, 1, 3, 900), (1, 2, 3, 900), (1, 1, 1, 900), (1, 1, 3, 102)],
    ids=["unknown client", "another session", "below the watermark", "not above the newest op"],
)
def test_a_commit_that_no_longer_concerns_the_table_is_skipped(who: int, session: int, number: int, op: int) -> None:
    table = filled()
    before = table.snapshot()
    assert not table.commit_request(client(who), session, number, 0, CREATE_STREAM, op, 0, b"")
    assert table.snapshot() == before


def test_a_full_table_evicts_the_client_with_the_oldest_newest_reply_and_uses_its_slot() -> None:
    table = ClientTable(3)
    for number in (1, 2, 3):
        table.commit_register(client(number), 1, number, 0, b"")
    table.commit_request(client(1), 1, 1, 0, CREATE_STREAM, 10, 0, b"")
    assert table.commit_register(client(4), 1, 11, 0, b"") == client(2)
    assert [row[1] for row in table.snapshot()] == [client(1), client(4), client(3)]
    assert table.get(client(2)) is None


def test_logout_frees_the_lowest_slot_for_the_next_client() -> None:
    table = filled()
    assert table.remove(client(2)) and not table.remove(client(2))
    table.commit_register(client(7), 1, 600, 0, b"")
    assert [(row[0], row[1]) for row in table.snapshot()] == [(0, client(1)), (1, client(7)), (2, client(3))]


# --- snapshot ---------------------------------------------------------------------------------------------------------


def test_a_restored_table_is_the_same_and_evicts_the_same_clients() -> None:
    table = filled(4, capacity=4)
    table.remove(client(2))
    restored = ClientTable.restore(table.snapshot(), 4)
    assert restored.snapshot() == table.snapshot()
    for number in range(20, 26):
        victims = [each.commit_register(client(number), 1, 1000 + number, 0, b"") for each in (table, restored)]
        assert victims[0] == victims[1]
    assert restored.snapshot() == table.snapshot()


def test_a_smaller_capacity_grows_to_what_is_there() -> None:
    assert ClientTable.restore(filled(5).snapshot(), 2).capacity == 5
    assert ClientTable.restore(filled(5).snapshot(), 9).capacity == 9


def damage(change: Callable[[list[Any]], Any]) -> Any:
    rows = copy.deepcopy(filled().snapshot())
    replaced = change(rows)
    return rows if replaced is None else replaced


DEFECTS: dict[str, tuple[Any, type[ClientTableMalformed]]] = {
    "not a list": (damage(lambda rows: {"rows": rows}), ClientTableMalformed),
    "a row that is short": (damage(lambda rows: rows[1].pop()), ClientTableMalformed),
    "more rows than any table": (damage(lambda rows: [rows[0]] * 65_537), ClientTableTooLarge),
    "a slot beyond any table": (damage(lambda rows: rows[2].__setitem__(0, 65_536)), ClientTableTooLarge),
    "no reply": (damage(lambda rows: rows[1].__setitem__(6, [])), ClientTableRing),
    "six replies": (damage(lambda rows: rows[1].__setitem__(6, rows[1][6] * 2)), ClientTableRing),
    "one client twice": (damage(lambda rows: rows[2].__setitem__(1, rows[0][1])), ClientTableDuplicate),
    "one slot twice": (damage(lambda rows: rows[2].__setitem__(0, 1)), ClientTableDuplicate),
    "a client of zeros": (damage(lambda rows: rows[0].__setitem__(1, bytes(16))), ClientTableMalformed),
    "an epoch beyond 2**62": (damage(lambda rows: rows[0].__setitem__(2, 2**62)), ClientTableMalformed),
    "a negative watermark": (damage(lambda rows: rows[0].__setitem__(4, -1)), ClientTableMalformed),
    "a truth value for a number": (damage(lambda rows: rows[0].__setitem__(4, True)), ClientTableMalformed),
    "a reply of no operation": (damage(lambda rows: rows[0][6][1].__setitem__(4, 0)), ClientTableInvalidReply),
    "a reply of an unknown operation": (
        damage(lambda rows: rows[0][6][1].__setitem__(4, 250)),
        ClientTableInvalidReply,
    ),
    "a reply body that is text": (damage(lambda rows: rows[0][6][1].__setitem__(5, "x")), ClientTableInvalidReply),
    "replies out of order": (damage(lambda rows: rows[0][6].reverse()), ClientTableInvalidReply),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_damaged_snapshot_is_refused_by_name(defect: str) -> None:
    rows, error = DEFECTS[defect]
    with pytest.raises(error) as raised:
        ClientTable.restore(rows, 8)
    assert type(raised.value) is error


def test_a_row_with_five_replies_is_accepted() -> None:
    table = filled(1)
    for request in range(3, 9):
        table.commit_request(client(1), 1, request, 0, CREATE_STREAM, 200 + request, 0, b"")
    assert ClientTable.restore(table.snapshot(), 8).snapshot() == table.snapshot()


# --- preflight --------------------------------------------------------------------------------------------------------


def test_exactly_one_row_decides_every_combination_of_facts() -> None:
    for values in itertools.product((False, True), repeat=8):
        matching = [
            decision
            for row, decision in REQUEST_TABLE
            if all(want is None or want == have for want, have in zip(row, values, strict=True))
        ]
        assert len(matching) == 1, values
        assert decide(Facts(*values)) is matching[0]


# client 1 has session 1, requests 1 and 2 with digests 7 and 14
REQUESTS = {
    "in flight": ((1, 1, 3, 0, True), preflight.REFUSE, 57),
    "unknown client": ((9, 1, 1, 0, False), preflight.EVICT, 1),
    "older session": ((2, 1, 9, 0, False), preflight.EVICT, 7),
    "session from the future": ((1, 2, 9, 0, False), preflight.SILENCE, 0),
    "next number": ((1, 1, 3, 0, False), preflight.EXECUTE, 0),
    "a gap in the numbers": ((1, 1, 30, 5, False), preflight.EXECUTE, 0),
    "the newest again": ((1, 1, 2, 14, False), preflight.REPEAT, 0),
    "the newest again, digest not stamped": ((1, 1, 2, 0, False), preflight.REPEAT, 0),
    "an older one again": ((1, 1, 1, 7, False), preflight.REPEAT, 0),
    "the newest number with another digest": ((1, 1, 2, 15, False), preflight.SILENCE, 0),
    "an older number with another digest": ((1, 1, 1, 14, False), preflight.SILENCE, 0),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_preflight(case: str) -> None:
    (who, session, request, digest, busy), action, code = REQUESTS[case]
    decision = preflight_request(filled(), client(who), session, request, digest, busy)
    assert (decision.action, int(decision.code)) == (action, code)


def test_a_number_whose_reply_is_gone_was_already_applied() -> None:
    table = filled(1)
    for request in range(3, 9):
        table.commit_request(client(1), 1, request, 0, CREATE_STREAM, 200 + request, 0, b"")
    assert int(preflight_request(table, client(1), 1, 1, 7, False).code) == 59


@pytest.mark.parametrize(("body", "code"), [(bytes(4) + b"\x03abc", 51), (b"\x01\0\0\0\0\0\0\0\x33\0\0\0", 0)])
def test_a_token_is_not_told_twice_but_its_refusal_is(body: bytes, code: int) -> None:
    table = filled(1)
    table.commit_request(client(1), 1, 3, 0, CREATE_TOKEN, 300, 0, body)
    decision = preflight_request(table, client(1), 1, 3, 0, False)
    assert int(decision.code) == code and decision.action == (preflight.REFUSE if code else preflight.REPEAT)


def test_register_is_refused_in_flight_and_for_the_client_id_of_another_user() -> None:
    table = filled()
    assert preflight_register(table, client(1), 11, False).action == preflight.EXECUTE
    assert preflight_register(table, client(9), 50, False).action == preflight.EXECUTE
    assert int(preflight_register(table, client(1), 11, True).code) == 57
    decision = preflight_register(table, client(1), 12, False)
    assert (decision.action, int(decision.code)) == (preflight.EVICT, 12)


def test_logout_belongs_to_the_present_session() -> None:
    table = filled()
    assert preflight_logout(table, client(2), 2).action == preflight.EXECUTE
    assert int(preflight_logout(table, client(2), 1).code) == 7
    assert preflight_logout(table, client(2), 3).action == preflight.SILENCE
    assert int(preflight_logout(table, client(9), 1).code) == 1
