"""The metadata exchanges of the recordings, replayed in order through a plane: same status, result and reply bytes.

Volatile, and set equal before the comparison: created_at, the expiry and order of tokens. The recorded server knows the
catalogue before the released one: options of durability are looked at apart. Deliberate differences are listed with
their reason.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import attrs
import pytest

from shardsrv.errors import RequestRefused
from shardsrv.plane.metadata.queries import QUERIES
from shardsrv.plane.metadata.state import ROOT_ID, Partition
from shardsrv.wire.codes import CommandCode
from shardsrv.wire.constants import Operation
from shardsrv.wire.consumer_groups import JoinConsumerGroup, LeaveConsumerGroup
from shardsrv.wire.options import Option
from shardsrv.wire.replies import decode_reply, split_result
from shardsrv.wire.streams import CreateStream, StreamDetailsReply, StreamRecord, StreamsReply
from shardsrv.wire.system import OptionsReply
from shardsrv.wire.topics import TopicDetailsReply, TopicHeader, TopicsReply
from shardsrv.wire.users import TokenRecord, TokensReply, UserDetailsReply, UsersReply
from tests.support.metadata import Driver

Exchange = dict[str, Any]

RECORDING = Path(__file__).parent.parent / "golden" / "tcp.jsonl.xz"
MOVED_KEYS = ("enforce_fsync", "durability", "consumer_offset_durability")

OTHER = {
    58: "the released catalogue has durability",
    59: "the released catalogue has durability",
    60: "the released catalogue has durability: the value is refused, not the key",
    61: "the released catalogue has consumer_offset_durability",
    62: "the released catalogue has consumer_offset_durability: the value is refused, not the key",
    259: "root cannot be made inactive",
}
"""seq -> why the answer is another one; those that would make a topic are left out, to keep the ids of later ones."""
OTHER_CODES = {60: 4042, 62: 4042, 259: 45}
REPLAYED = {"c3-0": 6, "cli-014a": 33, "cli-edge2": 169, "pya": 85}
"""Recordings by the number of exchanges that are replayed. Left out: those whose parents are kept elsewhere only
(`cluster`, `c3-1`, `c3-2`, `py`), the one in which a server without the durability keys refuses everything (`cli-014`),
and the one that is about repeated requests, which the client table answers (`raw2`)."""


def exchanges() -> list[Exchange]:
    with lzma.open(RECORDING, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    operations = {operation.name.lower() for operation in Operation if 128 <= operation <= 149}
    operations -= {"delete_segments"}
    reads = {code.name.lower() for code in QUERIES}
    return [row for row in rows if row["operation"] in operations | reads and row["outcome"] == "reply"]


ROWS = exchanges()


def without_moved(options: tuple[Option, ...]) -> tuple[Option, ...]:
    return tuple(option for option in options if option.key not in MOVED_KEYS)


def settled_header(topic: TopicHeader) -> TopicHeader:
    return attrs.evolve(
        topic, created_at=0, options=without_moved(topic.options), derived_options=without_moved(topic.derived_options)
    )


def settled(reply: Any) -> Any:
    """The reply with what is volatile, or from another catalogue, taken out."""
    if isinstance(reply, TopicDetailsReply):
        partitions = tuple(attrs.evolve(partition, created_at=0) for partition in reply.partitions)
        return TopicDetailsReply(settled_header(reply.topic), partitions)
    if isinstance(reply, TopicsReply):
        return TopicsReply(tuple(uncounted(settled_header(topic)) for topic in reply.topics))
    if isinstance(reply, StreamDetailsReply):
        topics = tuple(uncounted(settled_header(topic)) for topic in reply.topics)
        return StreamDetailsReply(settled(reply.stream), topics)
    if isinstance(reply, StreamsReply):
        return StreamsReply(tuple(settled(stream) for stream in reply.streams))
    if isinstance(reply, StreamRecord):
        return uncounted(attrs.evolve(reply, created_at=0))
    if isinstance(reply, UserDetailsReply):
        return attrs.evolve(reply, user=attrs.evolve(reply.user, created_at=0))
    if isinstance(reply, TokensReply):
        return TokensReply(tuple(TokenRecord(name, 0) for name in sorted(token.name for token in reply.tokens)))
    if isinstance(reply, UsersReply):
        return UsersReply(tuple(attrs.evolve(user, created_at=0) for user in reply.users))
    return reply


def uncounted(record: Any) -> Any:
    """Without sums: lists of topics and streams are recorded without the partitions that they come from."""
    return attrs.evolve(record, size_bytes=0, messages_count=0)


def counters_of(reply: Any) -> Any:
    """What the owners of the partitions of a recorded topic published: the sums are ours to make."""
    recorded = (
        {partition.id: partition for partition in reply.partitions} if isinstance(reply, TopicDetailsReply) else {}
    )

    def counters(partition: Partition) -> tuple[int, int, int, int]:
        found = recorded.get(partition.id)
        if found is None:
            return 0, 0, 0, 1
        return found.messages_count, found.size_bytes, found.current_offset, found.segments_count

    return counters


def session_of(row: Exchange) -> tuple[bytes, int]:
    """Client id and session as sent."""
    return row["request_fields"]["client"].to_bytes(16, "little"), row["request_fields"]["session"]


def user_of(row: Exchange, driver: Driver) -> int:
    if not row.get("note", "").startswith("plain user"):
        return ROOT_ID
    plain = driver.plane.state.find_user("alice2")
    return 99 if plain is None else plain.id


def prepare_line(seq: int, driver: Driver) -> None:
    """What happened before a line and is not recorded again: another client of the recording had done the same."""
    group = ("golden", "events", "workers")
    if seq == 455:
        driver.run(Operation.JOIN_CONSUMER_GROUP, JoinConsumerGroup(*group), ROOT_ID, *session_of(row_of(456)))
    elif seq == 458:
        driver.run(Operation.LEAVE_CONSUMER_GROUP, LeaveConsumerGroup(*group), ROOT_ID, *session_of(row_of(448)))


def row_of(seq: int) -> Exchange:
    return next(row for row in ROWS if row["seq"] == seq)


def prepare_history(source: str, driver: Driver) -> None:
    """What the recording had made by exchanges that are kept elsewhere."""
    if source == "cli-014a":
        driver.run(Operation.CREATE_STREAM, CreateStream("golden"))


def check_durability(reply: TopicDetailsReply) -> None:
    explicit = {option.key for option in reply.topic.options}
    derived = {option.key for option in reply.topic.derived_options}
    for key in ("durability", "consumer_offset_durability"):
        assert (key in explicit) != (key in derived), key
    assert "enforce_fsync" not in derived


def described(reply: OptionsReply) -> list[tuple[str, int, bytes]]:
    """Keys, kinds and defaults in order; descriptions are each server's own."""
    return [(option.key, option.kind, option.default) for option in reply.options if option.key not in MOVED_KEYS]


def compare(row: Exchange, payload: bytes, expected: bytes) -> None:
    code = row["code"]
    ours, theirs = decode_reply(code, payload), decode_reply(code, expected)
    if isinstance(ours, TopicDetailsReply):
        check_durability(ours)
    if isinstance(ours, OptionsReply) and ours.options:
        assert isinstance(theirs, OptionsReply)
        assert described(ours) == described(theirs)
        return
    assert settled(ours) == settled(theirs)
    if ours is not None:
        assert settled(ours).encode() == settled(theirs).encode()


def read(row: Exchange, driver: Driver) -> None:
    expected = bytes.fromhex(row["reply_body"])
    recorded = decode_reply(row["code"], expected) if row["status"] == 0 else None
    user = user_of(row, driver)
    try:
        body = driver.plane.query(
            row["code"], bytes.fromhex(row["request_body"]), user, counters_of(recorded), session_of(row)[0]
        )
    except RequestRefused as refusal:
        assert refusal.code == row["status"]
        return
    assert row["status"] == 0
    compare(row, body, expected)


def write(row: Exchange, driver: Driver) -> None:
    expected_code = OTHER_CODES.get(row["seq"], row["status"] or row["result"])
    try:
        body = driver.submit(
            row["operation_byte"], bytes.fromhex(row["request_body"]), user_of(row, driver), *session_of(row)
        )
    except RequestRefused as refusal:
        assert refusal.code == expected_code
        if row["seq"] not in OTHER_CODES:
            assert row["status"] == refusal.code, "refused before the log, but recorded as a result"
        return
    code, payload = split_result(body)
    assert code == expected_code
    if row["seq"] in OTHER_CODES:
        return
    assert row["status"] == 0
    recorded_code, recorded_payload = split_result(bytes.fromhex(row["reply_body"]))
    assert recorded_code == code
    if code == 0 and row["code"] == CommandCode.CREATE_PERSONAL_ACCESS_TOKEN:
        assert (bytes(payload), len(recorded_payload)) == (b"", 69), "the token itself is put behind by the node"
    elif code == 0:
        compare(row, bytes(payload), bytes(recorded_payload))


@pytest.mark.parametrize("source", sorted(REPLAYED))
def test_recording(source: str) -> None:
    driver = Driver()
    prepare_history(source, driver)
    replayed = 0
    for row in ROWS:
        if row["source"] != source or (row["seq"] in OTHER and row["seq"] not in OTHER_CODES):
            continue
        prepare_line(row["seq"], driver)
        try:
            if row["code"] in QUERIES:
                read(row, driver)
            else:
                write(row, driver)
        except AssertionError as error:
            raise AssertionError(f"line {row['seq']} ({row['note']}): {error}") from error
        replayed += 1
    assert replayed == REPLAYED[source]
