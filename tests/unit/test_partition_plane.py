"""The partition's state machine: offsets, admission, purge, truncation, the window, the checkpoint."""

from typing import Any

import msgpack
import pytest

from shardsrv._core import dedup_key
from shardsrv.errors import DecodeError, LogIncoherent
from shardsrv.plane.partition import checkpoint, offsets
from shardsrv.plane.partition.dedup import DedupWindow
from shardsrv.plane.partition.plane import PartitionPlane
from tests.support.groups import DELETE, PURGE, STORE, TRUNCATE, PartitionWorld, client_id

AUTO_COMMIT = b"\xff" * 16


def world_of(*sends: int, **how: Any) -> PartitionWorld:
    """A partition with one committed batch for each number, which says how many messages it has."""
    world = PartitionWorld(**how)
    for number, messages in enumerate(sends, 1):
        world.send(1, number, *[b"m"] * messages)
    world.append()
    return world


def ask(world: PartitionWorld, operation: int, body: bytes, client: bytes | None = None, number: int = 99) -> Any:
    """Submit and write; the status of a refusal, or 0."""
    effects = world.submit(world.request(operation, 2, number, body, client_bytes=client))
    world.append()
    return getattr(effects[0], "status", 0) if effects else 0


def store(kind: int, key: int, offset: int, flags: int = 0) -> bytes:
    return offsets.encode_stores([(kind, flags, key, offset)])


def purge(world: PartitionWorld, generation: int) -> None:
    assert ask(world, PURGE, offsets.encode_purge(generation), client_id(0)) == 0


# --- sends ------------------------------------------------------------------------------------------------------------


def test_offsets_follow_each_other_and_the_reply_names_the_first() -> None:
    world = PartitionWorld()
    world.send(1, 1, b"a", b"b", b"c")
    world.send(1, 2, b"d")
    replies = [effect.reply for effect in world.append()]
    assert [int.from_bytes(reply[16:24], "little") for reply in replies] == [0, 3]
    assert replies[0][:16] == b"\x01\0\0\0\x01\0\0\0\x02\0\0\0\x03\0\0\0"
    plane = world.plane
    assert (plane.next_offset, plane.messages, plane.committed_offset, plane.first_offset) == (4, 4, 3, 0)
    assert plane.bytes == sum(len(prepare.body) for prepare, _ in world.log)


def test_what_is_in_flight_is_not_readable() -> None:
    world = world_of(2)
    world.send(1, 9, b"x")
    assert (world.plane.next_offset, world.plane.head_next_offset) == (2, 3)


def test_the_stored_batch_names_partition_offset_and_time() -> None:
    world = world_of(2, 1)
    second = world.log[1][0]
    assert [int.from_bytes(second.body[at : at + 8], "little") for at in (0, 8, 16)] == [3, 2, second.timestamp]


# --- consumer offsets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "status"), [(0, 0), (9, 0), (10, 4100), (1000, 4100), (2**62 - 1, 4100)])
@pytest.mark.parametrize("kind", [1, 2])
def test_an_offset_beyond_the_end_is_refused_and_the_previous_one_kept(kind: int, offset: int, status: int) -> None:
    world = world_of(10)
    ask(world, STORE, store(kind, 7, 5), number=1)
    assert ask(world, STORE, store(kind, 7, offset), number=2) == status
    assert world.plane.stored_offset(kind, 7) == (5 if status else offset)


@pytest.mark.parametrize("offset", [0, 5])
def test_nothing_can_be_stored_on_an_empty_partition(offset: int) -> None:
    assert ask(world_of(), STORE, store(1, 7, offset)) == 4100


def test_consumers_and_groups_of_one_number_are_apart() -> None:
    world = world_of(10)
    ask(world, STORE, store(2, 7, 4))
    assert (world.plane.stored_offset(1, 7), world.plane.stored_offset(2, 7)) == (None, 4)


def test_storing_goes_down_but_a_commit_by_a_poll_does_not() -> None:
    world = world_of(10)
    ask(world, STORE, store(1, 7, 6), number=1)
    ask(world, STORE, store(1, 7, 3), number=2)
    assert world.plane.stored_offset(1, 7) == 3
    for offset, stored in ((2, 3), (8, 8), (5, 8)):
        ask(world, STORE, store(1, 7, offset, offsets.KEEP_HIGHEST), AUTO_COMMIT)
        assert world.plane.stored_offset(1, 7) == stored


def test_deleting_what_is_not_stored_is_refused() -> None:
    world = world_of(10)
    body = offsets.encode_keys([(1, 7)])
    assert ask(world, DELETE, body, number=1) == 3021
    ask(world, STORE, store(1, 7, 6), number=2)
    assert ask(world, DELETE, body, number=3) == 0
    assert world.plane.stored_offset(1, 7) is None


def test_new_consumers_beyond_the_limit_are_refused_and_known_ones_are_not() -> None:
    world = world_of(10)
    world.plane.consumer_offsets_max = 2
    for number, (key, status) in enumerate([(1, 0), (2, 0), (3, 3024), (1, 0)]):
        assert ask(world, STORE, store(1, key, 1), number=number + 1) == status
    both = offsets.encode_stores([(1, 1, 9, 4), (1, 1, 2, 4), (2, 1, 9, 4)])
    assert ask(world, STORE, both, AUTO_COMMIT) == 0
    assert world.plane.consumer_offsets == {1: 1, 2: 4} and world.plane.group_offsets == {9: 4}


def test_three_stores_under_one_number_are_three_stores() -> None:
    world = world_of(10)
    for offset in (5, 3, 5):
        assert ask(world, STORE, store(1, 7, offset), number=4) == 0
    assert world.plane.stored_offset(1, 7) == 5
    entries = len(world.log)
    assert ask(world, STORE, store(1, 7, 5), number=4) == 0
    assert len(world.log) == entries, "a retry of the newest is known"


# --- purge and truncation ---------------------------------------------------------------------------------------------


def test_a_purge_begins_again_at_offset_0_without_offsets_of_consumers() -> None:
    world = world_of(10)
    ask(world, STORE, store(1, 7, 6))
    ask(world, STORE, store(2, 7, 6))
    purge(world, 50)
    plane = world.plane
    assert (plane.messages, plane.next_offset, plane.bytes, plane.consumer_offsets, plane.group_offsets) == (
        0,
        0,
        0,
        {},
        {},
    )
    assert plane.purge_op == plane.applied_op == 4
    world.send(1, 9, b"x")
    (committed,) = world.append()
    assert committed.reply[16:24] == bytes(8)
    purge(world, 50)
    assert plane.messages == 1, "the same purge again does nothing"


def test_a_send_behind_a_purge_in_flight_takes_offset_0() -> None:
    world = world_of(10)
    world.submit(world.request(PURGE, 0, 0, offsets.encode_purge(50), client_bytes=client_id(0)))
    world.send(1, 9, b"x")
    world.append()
    assert (world.plane.next_offset, world.plane.messages) == (1, 1)


def test_a_truncation_takes_messages_and_bytes_from_the_front() -> None:
    world = world_of(10, 5)
    first = len(world.log[0][0].body)
    assert ask(world, TRUNCATE, offsets.encode_truncate(10, first), client_id(0)) == 0
    plane = world.plane
    assert (plane.first_offset, plane.messages, plane.bytes) == (10, 5, len(world.log[1][0].body))
    assert plane.committed_offset == 14, "the end does not move"
    assert ask(world, TRUNCATE, offsets.encode_truncate(5, 1), client_id(0)) == 0
    assert (plane.first_offset, plane.messages) == (10, 5), "nothing comes back"


@pytest.mark.parametrize(("kept", "removed"), [(16, 0), (10, 10**6)])
def test_a_truncation_beyond_what_there_is_is_refused(kept: int, removed: int) -> None:
    assert ask(world_of(10, 5), TRUNCATE, offsets.encode_truncate(kept, removed), client_id(0)) == 4100


def test_a_truncation_is_not_prepared_while_a_purge_is_in_flight() -> None:
    world = world_of(10)
    world.submit(world.request(PURGE, 0, 0, offsets.encode_purge(50), client_bytes=client_id(0)))
    assert ask(world, TRUNCATE, offsets.encode_truncate(5, 1), client_id(0)) == 58


def test_an_operation_that_is_not_a_partitions_is_refused() -> None:
    assert ask(world_of(), 128, b"") == 3


def test_head_state_goes_back_to_what_is_committed() -> None:
    world = world_of(3)
    world.send(1, 8, b"x")
    world.submit(world.request(PURGE, 0, 0, offsets.encode_purge(50), client_bytes=client_id(0)))
    lost = world.log[1][0]
    plane = world.plane
    with pytest.raises(LogIncoherent):
        plane.rewind(2)
    plane.rewind(1)
    assert plane.head_next_offset == 3
    assert plane.find(world.request(160, 1, 8, bytearray(lost.body))) is None
    assert plane.dedup.rows(99)[0][1] == 1 and len(plane.dedup) == 1
    plane.advance(lost)
    assert plane.head_next_offset == 4
    plane.apply(lost)
    assert plane.next_offset == 4


# --- window -----------------------------------------------------------------------------------------------------------


def keys(count: int) -> list[bytes]:
    return [dedup_key(client_id(1), 5, 160, number, 7) for number in range(count)]


def test_the_window_forgets_what_is_older_than_its_ops_and_nothing_newer() -> None:
    window = DedupWindow(100)
    for op, key in enumerate(keys(400), 1):
        window.insert(key, op, op, op)
        window.commit(op)
        kept = window.rows(op)
        assert len(kept) == len(window) and len(kept) >= min(op, 100) and kept[-1][1] == op
        assert len(window) < 100 + 64
    assert window.find(keys(400)[399]) is not None and window.find(keys(400)[200]) is None


def test_the_window_is_the_same_whether_it_ran_or_was_made_again() -> None:
    for end in (1, 63, 64, 65, 170, 333):
        live, again = DedupWindow(30), DedupWindow(30)
        for op, key in enumerate(keys(end), 1):
            live.insert(key, op, op, op)
            live.commit(op)
        for row in live.rows(end):
            again.insert(*row)
        for op, key in enumerate(keys(end + 80), 1):
            if op > end:
                for window in (live, again):
                    window.insert(key, op, op, op)
                    window.commit(op)
                assert live.rows(op) == again.rows(op)


def test_a_key_that_comes_again_after_it_was_forgotten_is_kept_as_the_newer() -> None:
    window = DedupWindow(1)
    first = keys(1)[0]
    window.insert(first, 1, 0, 0)
    window.insert(first, 80, 5, 0)
    window.commit(64)
    known = window.find(first)
    assert known is not None and known[:2] == (80, 5)


def test_a_superseded_offset_operation_comes_back_when_the_newer_one_left_the_log() -> None:
    older, newer = (dedup_key(client_id(1), 5, 161, 1, digest) for digest in (1, 2))
    window = DedupWindow(10)
    window.insert(older, 1, 0, 0)
    window.insert(newer, 2, 0, 0)
    assert window.find(older) is None
    window.rewind(1)
    assert window.find(older) is not None and window.find(newer) is None


# --- checkpoint -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_brings_everything_back() -> None:
    world = world_of(10, 5)
    ask(world, STORE, store(1, 9, 6), number=3)
    ask(world, STORE, store(1, 2, 6), number=4)
    ask(world, STORE, store(2, 4, 1), number=5)
    ask(world, TRUNCATE, offsets.encode_truncate(10, 100), client_id(0))
    payload = world.plane.checkpoint(2**64 - 1)
    plane = PartitionPlane(1, 2, 3)
    assert plane.restore(payload) == (6, 2**64 - 1, world.log[-1][0].timestamp)
    assert plane.state() == world.plane.state()
    assert plane.checkpoint(2**64 - 1) == payload


def test_the_bytes_do_not_depend_on_the_order_in_which_consumers_came() -> None:
    payloads = []
    for order in ((1, 2, 3), (3, 1, 2)):
        state = checkpoint.PartitionCheckpoint(9, 1, 5, 7, 2, 50, 0, 0, dict.fromkeys(order, 1), {}, [])
        payloads.append(checkpoint.encode(state))
    assert payloads[0] == payloads[1]


def test_the_layout_is_pinned() -> None:
    key = dedup_key(client_id(1), 5, 160, 1, 7)
    state = checkpoint.PartitionCheckpoint(9, 1, 5, 7, 2, 50, 8, 4, {3: 1}, {6: 2}, [[key, 9, 6, 5]])
    assert msgpack.unpackb(checkpoint.encode(state)) == [
        1,
        9,
        1,
        5,
        7,
        2,
        5,
        50,
        8,
        4,
        [[3, 1]],
        [[6, 2]],
        [[key, 9, 6, 5]],
    ]
    assert checkpoint.decode(checkpoint.encode(state)) == state


GOOD: list[Any] = [1, 9, 1, 5, 7, 2, 5, 50, 8, 4, [[3, 1]], [[6, 2]], [[bytes(41), 9, 6, 5]]]
DEFECTS: dict[str, Any] = {
    "another version": [2, *GOOD[1:]],
    "a field too few": GOOD[:-1],
    "a field too many": [*GOOD, 0],
    "not an array": {"op": 1},
    "an op beyond 2**62": [1, 2**62, *GOOD[2:]],
    "a negative offset": [*GOOD[:4], -1, *GOOD[5:]],
    "messages that do not fit": [*GOOD[:6], 6, *GOOD[7:]],
    "first behind next": [*GOOD[:5], 8, 0, *GOOD[7:]],
    "a purge after the op": [*GOOD[:9], 10, *GOOD[10:]],
    "consumers out of order": [*GOOD[:10], [[3, 1], [2, 1]], *GOOD[11:]],
    "one consumer twice": [*GOOD[:10], [[3, 1], [3, 1]], *GOOD[11:]],
    "a consumer beyond u32": [*GOOD[:10], [[2**32, 1]], *GOOD[11:]],
    "offsets that are no list": [*GOOD[:11], 5, GOOD[12]],
    "a short key": [*GOOD[:12], [[bytes(40), 9, 6, 5]]],
    "a window beyond the op": [*GOOD[:12], [[bytes(41), 10, 6, 5]]],
    "a window out of order": [*GOOD[:12], [[bytes(41), 9, 6, 5], [bytes(41), 8, 6, 5]]],
    "a window that is no list": [*GOOD[:12], 5],
}


def test_the_good_one_is_good() -> None:
    assert checkpoint.decode(msgpack.packb(GOOD)).op == 9


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(defect: str) -> None:
    plane = world_of(3).plane
    before = plane.state()
    with pytest.raises(DecodeError):
        plane.restore(msgpack.packb(DEFECTS[defect]))
    assert plane.state() == before


def test_bytes_that_are_no_messagepack_are_refused() -> None:
    payload = msgpack.packb(GOOD)
    for data in (b"", b"\xc1", payload[:-1], payload + b"\0"):
        with pytest.raises(DecodeError):
            checkpoint.decode(data)
