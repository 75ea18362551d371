"""Random commands against a model of plain dictionaries, a second copy fed by the log, and a third that is restored
from a snapshot again and again: same codes, same state, same bytes.

The model shares nothing with the plane: ids are found by counting, names by looking through lists.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.changes import PartitionsCreated, PartitionsDeleted, TopicPurged
from shardsrv.plane.metadata.plane import MetadataPlane
from shardsrv.wire.constants import Operation
from shardsrv.wire.message import Request
from shardsrv.wire.options import Option
from shardsrv.wire.streams import CreateStream, DeleteStream, PurgeStream, UpdateStream
from shardsrv.wire.topics import CreatePartitions, CreateTopic, DeletePartitions, DeleteTopic, PurgeTopic, UpdateTopic
from shardsrv.wire.typed_values import TypedValue, ValueKind
from tests.support.metadata import Driver, new_plane

STRANGER = 7
"""A user id that does not exist: it may do nothing."""

names = st.sampled_from(["a", "b", "c", "ä"])
streams = st.sampled_from(["a", "a", 0, 0, "b", 1, 2])
topics = st.sampled_from(["a", "b", 0, 1, 2, "ä"])
counts = st.integers(0, 3)
expiry = st.sampled_from(
    [
        (),
        (Option("message_expiry", TypedValue(ValueKind.STRING, b"2h")),),
        (Option("message_expiry", TypedValue(ValueKind.UINT64, (5).to_bytes(8, "little"))),),
        (Option("message_expiry", TypedValue(ValueKind.STRING, b"soon")),),
        (Option("colour", TypedValue(ValueKind.STRING, b"red")),),
    ]
)
EXPIRIES = {b"2h": 7_200_000_000, (5).to_bytes(8, "little"): 5}

commands = st.one_of(
    st.tuples(st.just(Operation.CREATE_STREAM), st.builds(CreateStream, names)),
    st.tuples(st.just(Operation.UPDATE_STREAM), st.builds(UpdateStream, streams, names)),
    st.tuples(st.just(Operation.DELETE_STREAM), st.builds(DeleteStream, streams)),
    st.tuples(st.just(Operation.PURGE_STREAM), st.builds(PurgeStream, streams)),
    st.tuples(st.just(Operation.CREATE_TOPIC), st.builds(CreateTopic, streams, counts, names, expiry)),
    st.tuples(st.just(Operation.CREATE_TOPIC), st.builds(CreateTopic, streams, counts, names)),
    st.tuples(st.just(Operation.CREATE_TOPIC), st.builds(CreateTopic, streams, st.just(2), names)),
    st.tuples(st.just(Operation.UPDATE_TOPIC), st.builds(UpdateTopic, streams, topics, names, expiry)),
    st.tuples(st.just(Operation.DELETE_TOPIC), st.builds(DeleteTopic, streams, topics)),
    st.tuples(st.just(Operation.PURGE_TOPIC), st.builds(PurgeTopic, streams, topics)),
    st.tuples(st.just(Operation.CREATE_PARTITIONS), st.builds(CreatePartitions, streams, topics, counts)),
    st.tuples(st.just(Operation.DELETE_PARTITIONS), st.builds(DeletePartitions, streams, topics, counts)),
)
steps = st.lists(st.tuples(commands, st.sampled_from([0, 0, 0, 0, STRANGER]), st.booleans()), min_size=10, max_size=40)


class Refused(Exception):
    """`status` is True when the command never becomes an entry."""

    def __init__(self, code: int, status: bool = False) -> None:
        super().__init__(code)
        self.code = code
        self.status = status


class Model:
    """Streams and topics as dictionaries; `live` are the partitions that owners hold, as the changes tell them."""

    def __init__(self) -> None:
        self.streams: dict[int, dict[str, Any]] = {}
        self.op = 0

    def find(self, among: dict[int, dict[str, Any]], identifier: int | str, code: int) -> dict[str, Any]:
        for number, record in among.items():
            if identifier in (number, record["name"]):
                return record
        raise Refused(code)

    def free(self, among: dict[int, dict[str, Any]]) -> int:
        return next(number for number in range(10_000) if number not in among)

    def taken(self, among: dict[int, dict[str, Any]], name: str, code: int, but: dict[str, Any] | None = None) -> None:
        if any(record["name"] == name and record is not but for record in among.values()):
            raise Refused(code)

    def options(self, request: Any) -> int | None:
        for option in request.options:
            if option.key != "message_expiry":
                raise Refused(4041, True)
            if option.value.raw not in EXPIRIES:
                raise Refused(4042, True)
            return EXPIRIES[option.value.raw]
        return None

    def run(self, request: Request, user: int) -> None:
        """Applies the request as the next entry, or raises Refused."""
        kind: Any = request
        chosen = self.options(kind) if isinstance(request, (CreateTopic, UpdateTopic)) else None
        if isinstance(request, (CreatePartitions, DeletePartitions)) and request.partitions_count == 0:
            raise Refused(2015, True)
        self.op += 1
        if isinstance(request, CreateStream):
            self.allow(user)
            self.taken(self.streams, request.name, 1012)
            self.streams[self.free(self.streams)] = {"name": request.name, "topics": {}}
            return
        stream = self.find(self.streams, kind.stream, 1009)
        if isinstance(request, (UpdateStream, DeleteStream, PurgeStream, CreateTopic)):
            self.allow(user)
            self.run_on_stream(request, stream, chosen)
            return
        topic = self.find(stream["topics"], kind.topic, 2010)
        self.allow(user)
        self.run_on_topic(request, stream, topic, chosen)

    def run_on_stream(self, request: Request, stream: dict[str, Any], chosen: int | None) -> None:
        if isinstance(request, UpdateStream):
            self.taken(self.streams, request.name, 1012, stream)
            stream["name"] = request.name
        elif isinstance(request, DeleteStream):
            self.streams = {number: found for number, found in self.streams.items() if found is not stream}
        elif isinstance(request, PurgeStream):
            for topic in stream["topics"].values():
                topic["purged"] = self.op
        elif isinstance(request, CreateTopic):
            self.taken(stream["topics"], request.name, 2013)
            stream["topics"][self.free(stream["topics"])] = {
                "name": request.name,
                "partitions": [self.op] * request.partitions_count,
                "expiry": 2**64 - 1 if chosen is None else chosen,
                "purged": 0,
            }

    def run_on_topic(self, request: Request, stream: dict[str, Any], topic: dict[str, Any], chosen: int | None) -> None:
        if isinstance(request, UpdateTopic):
            self.taken(stream["topics"], request.name, 2013, topic)
            topic["name"] = request.name
            topic["expiry"] = topic["expiry"] if chosen is None else chosen
        elif isinstance(request, DeleteTopic):
            stream["topics"] = {number: found for number, found in stream["topics"].items() if found is not topic}
        elif isinstance(request, PurgeTopic):
            topic["purged"] = self.op
        elif isinstance(request, CreatePartitions):
            topic["partitions"] = topic["partitions"] + [self.op] * request.partitions_count
        elif isinstance(request, DeletePartitions):
            if request.partitions_count > len(topic["partitions"]):
                raise Refused(2019)
            topic["partitions"] = topic["partitions"][: -request.partitions_count]

    def allow(self, user: int) -> None:
        if user != 0:
            raise Refused(41)


def pictured(driver: Driver) -> dict[int, dict[str, Any]]:
    """The plane's state in the model's terms."""
    return {
        stream.id: {
            "name": stream.name,
            "topics": {
                topic.id: {
                    "name": topic.name,
                    "partitions": [partition.created_revision for partition in topic.partitions],
                    "expiry": topic.settings.message_expiry,
                    "purged": topic.purge_generation,
                }
                for topic in stream.topics.values()
            },
        }
        for stream in driver.plane.state.streams.values()
    }


def payload(driver: Driver) -> bytes:
    return driver.plane.encode_snapshot(checksum=driver.plane.op, created_at=1, client_table=[])


def follow(changes: list[Any], live: dict[Any, tuple[int, int]]) -> None:
    """What an owner knows, (slot, purge generation) by identity, kept by changes alone."""
    for change in changes:
        if isinstance(change, PartitionsCreated):
            for created in change.partitions:
                assert created.identity not in live
                assert all(created.slot != slot for slot, _ in live.values())
                live[created.identity] = (created.slot, 0)
        elif isinstance(change, PartitionsDeleted):
            for identity, slot in zip(change.identities, change.slots, strict=True):
                assert live.pop(identity)[0] == slot
        elif isinstance(change, TopicPurged):
            for identity in change.identities:
                live[identity] = (live[identity][0], change.generation)


def owned(plane: MetadataPlane) -> dict[Any, tuple[int, int]]:
    """The same, as the plane itself says."""
    return {found.identity: (found.slot, found.purge_generation) for found in plane.owned()}


@settings(max_examples=150, deadline=None)
@given(steps)
def test_plane_and_copies_follow_the_model(run: list[Any]) -> None:
    driver, copy, restored, model = Driver(), new_plane(), new_plane(), Model()
    live: dict[Any, tuple[int, int]] = {}
    first: list[Any] = [((Operation.CREATE_STREAM, CreateStream(name)), 0, False) for name in ("a", "b")]
    for (operation, request), user, restart in first + run:
        logged = len(driver.log)
        try:
            model.run(request, user)
            expected, status = 0, False
        except Refused as refusal:
            expected, status = refusal.code, refusal.status
        code, reply = driver.run(operation, request, user)
        assert code == expected
        assert (len(driver.log) == logged) == status
        assert pictured(driver) == model.streams
        changes = driver.plane.take_changes()
        assert code == 0 or not changes
        follow(changes, live)
        assert owned(driver.plane) == live
        for prepare in driver.log[logged:]:
            body = copy.apply(prepare)
            assert restored.apply(prepare) == body
            assert copy.take_changes() == changes
            assert body[4:] == reply or code
        if restart:
            decoded = snapshot.decode(payload(driver))
            assert snapshot.reencode(decoded) == payload(driver)
            restored = new_plane()
            restored.restore(decoded)
            assert owned(restored) == live
    assert copy.state == driver.plane.state == restored.state
    for other in (copy, restored):
        assert other.encode_snapshot(checksum=other.op, created_at=1, client_table=[]) == payload(driver)
