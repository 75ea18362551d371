"""`Replica` event by event: durability, retries, fullness, failures, recovery, quorums of more members, the metadata
gate."""

from typing import Any

import pytest

from shardsrv._core import Prepare, xxh3
from shardsrv.errors import DataDirectoryForeign, GroupFenced, LogIncoherent
from shardsrv.vsr.effects import Append, Committed, Fatal, PersistState, Refused, Repeat
from shardsrv.vsr.events import APPENDED, SYNCED, Message, Persisted, PersistFailed, Request, StatePersisted, Tick
from shardsrv.vsr.plane import Plane
from shardsrv.vsr.policy import metadata_policy, partition_policy
from shardsrv.vsr.replica import GroupIdentity, Replica
from shardsrv.vsr.state import VsrState
from shardsrv.vsr.status import FENCED, NORMAL, RECOVERING
from shardsrv.wire.replica_headers import PrepareOkHeader
from tests.support.groups import CLUSTER, GROUP, PURGE, SEND, PartitionWorld, batch, client_id

REGISTER, LOGOUT, CREATE_STREAM = 1, 3, 128


def kinds(effects: list[Any]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


# --- durability -------------------------------------------------------------------------------------------------------


def test_a_replicated_send_is_acknowledged_when_it_is_written() -> None:
    world = PartitionWorld()
    (append,) = world.send(1, 1, b"a")
    assert type(append) is Append and not append.sync
    assert kinds(world.append()) == ["Committed"]


def test_a_persisted_send_is_acknowledged_only_when_it_is_synced() -> None:
    world = PartitionWorld()
    (append,) = world.send(1, 1, b"a", durability=1)
    assert append.sync
    assert world.append() == []
    assert kinds(world.sync()) == ["Committed"]


def test_a_replicated_op_behind_a_persisted_one_waits_for_it() -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a", durability=1)
    world.send(2, 1, b"b")
    assert world.append() == []
    assert [effect.prepare.op for effect in world.sync()] == [1, 2]


def test_one_event_covers_all_that_was_written_and_the_rest_goes_on_waiting() -> None:
    world = PartitionWorld()
    for number in range(1, 5):
        world.send(number, 1, b"m")
    assert [effect.prepare.op for effect in world.persist(APPENDED, 3)] == [1, 2, 3]
    assert [effect.prepare.op for effect in world.persist(SYNCED, 4)] == [4]


def test_a_late_report_of_older_writes_changes_nothing() -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a")
    token = world.log[-1][1]
    world.append()
    assert world.replica.step(Persisted(token, APPENDED)) == []
    assert world.replica.step(Persisted(token, SYNCED)) == []


# --- retries ----------------------------------------------------------------------------------------------------------


def test_a_retry_of_a_committed_send_gets_the_same_answer_and_no_new_entry() -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a")
    (committed,) = world.append()
    (repeat,) = world.send(1, 1, b"a")
    assert type(repeat) is Repeat
    assert (repeat.op, repeat.reply, repeat.timestamp) == (1, committed.reply, committed.prepare.timestamp)
    assert len(world.log) == 1


def test_retries_of_a_send_in_flight_are_answered_when_it_commits() -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a")
    assert world.send(1, 1, b"a") == [] and world.send(1, 1, b"a") == []
    effects = world.append()
    assert kinds(effects) == ["Committed", "Repeat", "Repeat"]
    assert effects[0].reply == effects[1].reply == effects[2].reply


@pytest.mark.parametrize(
    "other", [{"session": 6}, {"payload": b"b"}, {"number": 2}, {"client": 2}], ids=lambda other: next(iter(other))
)
def test_anything_that_differs_makes_another_request(other: dict[str, Any]) -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a")
    asked: dict[str, Any] = {"client": 1, "number": 1, "payload": b"a", "session": 5} | other
    effects = world.send(asked["client"], asked["number"], asked["payload"], session=asked["session"])
    assert kinds(effects) == ["Append"]


def test_a_retry_is_known_after_a_restart_and_after_a_restart_from_a_checkpoint() -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a")
    world.sync()
    for from_checkpoint in (False, True):
        world.save_checkpoint()
        world.crash(power=False, from_checkpoint=from_checkpoint)
        assert kinds(world.send(1, 1, b"a")) == ["Repeat"]


def test_a_retry_is_answered_although_the_pipeline_is_full() -> None:
    world = PartitionWorld(depth=2)
    world.send(1, 1, b"a")
    world.append()
    world.send(2, 1, b"b")
    world.send(3, 1, b"c")
    assert not world.replica.accepts()
    assert kinds(world.send(1, 1, b"a")) == ["Repeat"]
    (refused,) = world.send(4, 1, b"d")
    assert (type(refused), refused.status, refused.reason) == (Refused, 58, "the pipeline is full")


@pytest.mark.parametrize(
    "numbers", [{"number": 2**62}, {"session": 2**64 - 1}], ids=lambda numbers: next(iter(numbers))
)
def test_a_number_out_of_bounds_is_refused_before_anything_moves(numbers: dict[str, int]) -> None:
    world = PartitionWorld()
    asked = {"number": 1, "session": 5} | numbers
    (refused,) = world.send(1, asked["number"], b"a", session=asked["session"])
    assert (type(refused), refused.status) == (Refused, 3)
    assert world.plane.head_next_offset == 0 and len(world.plane.dedup) == 0
    assert kinds(world.send(1, 1, b"a")) == ["Append"]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_after_a_failed_write_what_was_in_flight_is_unknown_and_the_rest_is_not_accepted() -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a")
    world.send(2, 1, b"b")
    world.send(2, 1, b"b")
    assert [effect.status for effect in world.fail()] == [57, 57, 57]
    assert world.replica.status == FENCED and not world.replica.accepts()
    (refused,) = world.send(3, 1, b"c")
    assert (refused.status, refused.reason) == (58, "the group is fenced: no space")
    assert world.replica.step(Persisted(99, SYNCED)) == [] and world.replica.commit_min == 0
    assert world.replica.step(PersistFailed(99, "again")) == []


def test_the_failure_of_a_metadata_write_is_fatal() -> None:
    replica = metadata_replica()
    replica.step(metadata_request(REGISTER, 0))
    effects = replica.step(PersistFailed(99, "no space"))
    assert kinds(effects) == ["Refused", "Fatal"]
    fatal = effects[1]
    assert isinstance(fatal, Fatal) and isinstance(fatal.error, GroupFenced) and fatal.error.reason == "no space"


# --- start and superblock ---------------------------------------------------------------------------------------------


class Echo(Plane):
    """A metadata plane that answers with the operation of the entry."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.gone: list[bytes] = []

    def prepare(self, request: Request, op: int, timestamp: int) -> tuple[Any, int]:
        return request.body, xxh3(request.body)

    def apply(self, prepare: Any) -> bytes:
        self.applied.append(prepare.op)
        return bytes(4) + bytes([prepare.operation])

    def client_gone(self, client: bytes) -> None:
        self.gone.append(client)


IDENTITY = GroupIdentity(CLUSTER, 1 << 63, 0)


def metadata_replica(clients: int = 8, members: int = 1) -> Replica:
    identity = GroupIdentity(CLUSTER, 1 << 63, 0, 0, members)
    replica = Replica.recover(identity, metadata_policy(8, clients), Echo(), None)
    (write,) = replica.start(incarnation=77)
    replica.step(StatePersisted(write.token, write.state))
    return replica


def metadata_request(
    operation: int, number: int, *, client: int = 1, session: int = 0, user: int = 3, digest: int = 0, body: bytes = b""
) -> Request:
    return Request(client_id(client), session, number, operation, user, digest, 0, body, (client, number), 1000)


def commit(replica: Replica, request: Request) -> Any:
    """Submit and sync; the one effect of the commit."""
    (append,) = replica.step(request)
    assert type(append) is Append and append.sync
    assert replica.step(Persisted(append.token, APPENDED)) == []
    (committed,) = replica.step(Persisted(append.token, SYNCED))
    assert type(committed) is Committed
    return committed


def test_the_first_record_is_durable_before_anything_is_served() -> None:
    replica = Replica.recover(IDENTITY, metadata_policy(), Echo(), None)
    (write,) = replica.start(incarnation=77)
    assert type(write) is PersistState
    assert write.state == VsrState(CLUSTER, 0, 1, incarnation=77)
    assert replica.status == RECOVERING and not replica.accepts()
    (refused,) = replica.step(metadata_request(REGISTER, 0))
    assert (refused.status, refused.reason) == (58, "not in service yet")
    assert replica.step(StatePersisted(write.token + 1, write.state)) == [] and replica.status == RECOVERING
    assert replica.step(StatePersisted(write.token, write.state)) == [] and replica.status == NORMAL


def test_a_record_that_could_not_be_written_is_written_again_with_the_next_tick() -> None:
    replica = Replica.recover(IDENTITY, metadata_policy(), Echo(), None)
    (write,) = replica.start()
    assert replica.step(Tick(1)) == [], "one record at a time"
    assert replica.step(PersistFailed(write.token, "no space")) == []
    assert replica.status == RECOVERING
    (again,) = replica.step(Tick(2))
    assert again.state == write.state and again.token != write.token
    assert replica.step(StatePersisted(write.token, write.state)) == [] and replica.status == RECOVERING
    replica.step(StatePersisted(again.token, again.state))
    assert replica.status == NORMAL and replica.step(Tick(3)) == []


def test_what_is_durable_is_what_was_written_and_not_what_is_wanted_by_then() -> None:
    replica = metadata_replica()
    (first,) = replica.record(checkpoint_op=5, checkpoint_checksum=9)
    assert replica.record(reconciled_through=4) == [], "one record at a time"
    (second,) = replica.step(StatePersisted(first.token, first.state))
    assert replica.durable_state is first.state and first.state.reconciled_through == 0
    assert (second.state.checkpoint_op, second.state.reconciled_through) == (5, 4)
    assert replica.step(StatePersisted(second.token, second.state)) == []
    assert replica.durable_state is second.state


@pytest.mark.parametrize("field", ["cluster", "replica_id", "replica_count"])
def test_the_record_of_another_cluster_or_member_is_refused(field: str) -> None:
    values: dict[str, Any] = {"cluster": CLUSTER, "replica_id": 0, "replica_count": 1}
    values[field] = b"another cluster." if field == "cluster" else 2
    with pytest.raises(DataDirectoryForeign):
        Replica.recover(IDENTITY, metadata_policy(), Echo(), VsrState(**values))


# --- recovery ---------------------------------------------------------------------------------------------------------


def entry(op: int, parent: int, **changes: Any) -> Prepare:
    fields: dict[str, Any] = {
        "cluster": CLUSTER,
        "view": 0,
        "replica": 0,
        "client": bytes(16),
        "parent": parent,
        "request_checksum": 0,
        "op": op,
        "commit": op - 1,
        "timestamp": 1000 + op,
        "request": 0,
        "operation": PURGE,
        "group": GROUP,
        "user_id": 0,
        "created_revision": 7,
        "durability": 0,
        "body": bytes(8),
        "checksum_body": xxh3(bytes(8)),
    }
    return Prepare.build(**(fields | changes))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("op", {"op": 3}),
        ("parent", {"parent": 1}),
        ("group", {"group": GROUP + 1}),
        ("created_revision", {"created_revision": 8}),
        ("cluster", {"cluster": b"another cluster."}),
        ("timestamp", {"timestamp": 1001}),
    ],
)
def test_an_entry_that_does_not_continue_the_log_is_refused_by_field(field: str, changes: dict[str, Any]) -> None:
    world = PartitionWorld()
    replica = Replica.recover(world.replica.identity, partition_policy(), world.plane, None)
    first = entry(1, 0)
    assert kinds(replica.replay(first)) == ["Committed"]
    with pytest.raises(LogIncoherent) as raised:
        replica.replay(
            entry(2, first.checksum) if not changes else entry(**({"op": 2, "parent": first.checksum} | changes))
        )
    assert raised.value.field == field
    assert (replica.head_op, replica.commit_min) == (1, 1)
    assert kinds(replica.replay(entry(2, first.checksum))) == ["Committed"]


def test_a_batch_that_does_not_begin_at_the_next_offset_is_refused() -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a")
    world.send(1, 2, b"b")
    second = world.log[1][0]
    stray = entry(1, 0, operation=SEND, body=bytes(second.body), checksum_body=second.checksum_body)
    fresh = PartitionWorld()
    replica = Replica.recover(world.replica.identity, partition_policy(), fresh.plane, None)
    with pytest.raises(LogIncoherent) as raised:
        replica.replay(stray)
    assert (raised.value.field, raised.value.expected, raised.value.found) == ("base_offset", 0, 1)


def test_a_replica_in_service_replays_nothing() -> None:
    with pytest.raises(LogIncoherent):
        PartitionWorld().replica.replay(entry(1, 0))


# --- more members -----------------------------------------------------------------------------------------------------


def member(members: int, durability: int) -> tuple[Replica, Append]:
    world = PartitionWorld()
    identity = GroupIdentity(CLUSTER, GROUP, 7, 0, members)
    replica = Replica.recover(identity, partition_policy(), world.plane, None)
    (write,) = replica.start()
    replica.step(StatePersisted(write.token, write.state))
    append, *sends = replica.step(world.request(SEND, 1, 1, batch(b"a"), durability=durability))
    assert [send.replica for send in sends] == list(range(1, members))
    return replica, append


def acknowledge(replica: Replica, peer: int, op: int, checksum: int, synced: bool) -> list[Any]:
    header = PrepareOkHeader(
        cluster=CLUSTER,
        replica=peer,
        group=GROUP,
        created_revision=7,
        op=op,
        prepare_checksum=checksum,
        acked_as=int(synced),
    )
    return replica.step(Message(peer, header, b"", 0))


@pytest.mark.parametrize("members", range(1, 8))
@pytest.mark.parametrize("durability", [0, 1])
def test_an_op_commits_with_a_majority_at_the_level_that_it_asks_for(members: int, durability: int) -> None:
    replica, append = member(members, durability)
    checksum = append.prepare.checksum
    synced = durability == 1
    committed = replica.step(Persisted(append.token, SYNCED if synced else APPENDED))
    for peer in range(1, members // 2 + 1):
        assert committed == [], f"committed with {peer} of {members}"
        if synced:
            assert acknowledge(replica, peer, 1, checksum, False) == [], "appended is not enough"
        committed = acknowledge(replica, peer, 1, checksum, synced)
    assert kinds(committed) == ["Committed"]


def test_the_same_member_counts_once_and_strangers_not_at_all() -> None:
    replica, append = member(5, 0)
    checksum = append.prepare.checksum
    replica.step(Persisted(append.token, APPENDED))
    for peer, op, identity in (
        (1, 1, checksum),
        (1, 1, checksum),
        (0, 1, checksum),
        (5, 1, checksum),
        (2, 2, checksum),
        (2, 1, 5),
    ):
        assert acknowledge(replica, peer, op, identity, True) == []
    assert kinds(acknowledge(replica, 2, 1, checksum, False)) == ["Committed"]
    assert replica.dropped == {"no such member": 2, "acknowledges nothing in flight": 2}


def test_nothing_commits_that_the_own_log_does_not_hold() -> None:
    replica, append = member(3, 0)
    assert acknowledge(replica, 1, 1, append.prepare.checksum, True) == []
    assert acknowledge(replica, 2, 1, append.prepare.checksum, True) == []
    assert kinds(replica.step(Persisted(append.token, APPENDED))) == ["Committed"]


def test_a_member_that_does_not_lead_accepts_nothing() -> None:
    world = PartitionWorld()
    identity = GroupIdentity(CLUSTER, GROUP, 7, 1, 3)
    replica = Replica.recover(identity, partition_policy(), world.plane, None)
    (write,) = replica.start()
    replica.step(StatePersisted(write.token, write.state))
    (refused,) = replica.step(world.request(SEND, 1, 1, batch(b"a")))
    assert (refused.status, refused.reason) == (58, "not the primary")


def test_frames_of_peers_change_nothing_and_what_is_no_event_is_an_error() -> None:
    world = PartitionWorld()
    assert world.replica.step(Message(1, None, b"", 0)) == []
    with pytest.raises(TypeError):
        world.replica.step("event")


# --- metadata ---------------------------------------------------------------------------------------------------------


def test_a_session_from_login_to_logout() -> None:
    replica = metadata_replica()
    registered = commit(replica, metadata_request(REGISTER, 0))
    session = registered.prepare.op
    created = commit(replica, metadata_request(CREATE_STREAM, 1, session=session, user=99))
    assert created.prepare.user_id == 3, "the acting user is that of the login, whatever the request claims"
    (repeat,) = replica.step(metadata_request(CREATE_STREAM, 1, session=session))
    assert (repeat.op, repeat.operation, repeat.reply) == (created.prepare.op, CREATE_STREAM, created.reply)
    commit(replica, metadata_request(LOGOUT, 2, session=session))
    (refused,) = replica.step(metadata_request(CREATE_STREAM, 3, session=session))
    assert refused.eviction == 1


def test_a_second_request_of_a_client_in_flight_has_an_unknown_outcome() -> None:
    replica = metadata_replica()
    commit(replica, metadata_request(REGISTER, 0))
    (append,) = replica.step(metadata_request(CREATE_STREAM, 1, session=1))
    (refused,) = replica.step(metadata_request(CREATE_STREAM, 2, session=1))
    assert refused.status == 57
    replica.step(Persisted(append.token, SYNCED))
    assert kinds(replica.step(metadata_request(CREATE_STREAM, 2, session=1))) == ["Append"]


def test_a_logout_that_a_newer_login_overtook_removes_nothing() -> None:
    replica = metadata_replica()
    commit(replica, metadata_request(REGISTER, 0))
    replica.step(metadata_request(REGISTER, 0))
    (logout,) = replica.step(metadata_request(LOGOUT, 9, session=1))
    assert kinds(replica.step(Persisted(logout.token, SYNCED))) == ["Committed", "Committed"]
    assert replica.table is not None and replica.table.owns(client_id(1), 2)


def test_requests_of_the_node_itself_need_no_session() -> None:
    replica = metadata_replica()
    commit(replica, metadata_request(66, 0, client=0))
    commit(replica, metadata_request(66, 0, client=0))
    assert replica.table is not None and len(replica.table) == 0


def test_the_plane_hears_of_a_client_that_was_evicted() -> None:
    replica = metadata_replica(clients=2)
    for client in (1, 2, 3):
        commit(replica, metadata_request(REGISTER, 0, client=client))
    assert isinstance(replica.plane, Echo) and replica.plane.gone == [client_id(1)]


def test_recovery_gives_the_table_of_before() -> None:
    replica = metadata_replica(clients=2)
    log = []
    for client in (1, 2, 1, 3):
        log.append(commit(replica, metadata_request(REGISTER, 0, client=client)).prepare)
        assert replica.table is not None
        session = log[-1].op
        log.append(commit(replica, metadata_request(CREATE_STREAM, session, client=client, session=session)).prepare)
    log.append(commit(replica, metadata_request(LOGOUT, 9, client=3, session=session)).prepare)
    again = Replica.recover(IDENTITY, metadata_policy(8, 2), Echo(), replica.durable_state)
    for prepare in log:
        again.replay(prepare)
    assert again.start() == [] and again.accepts()
    assert again.table is not None and replica.table is not None
    assert again.table.snapshot() == replica.table.snapshot()
    assert (again.head, again.last_timestamp) == (replica.head, replica.last_timestamp)
