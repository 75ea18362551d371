"""Regions, arenas, lanes, wake words and counters: one process, and two."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable

import pytest

from shardsrv.bus._memory import LANE_HEADER_SIZE, Arena, Buffer, Counters, Lane, Region, Wake
from shardsrv.errors import OurFault

KIB = 1024
MIB = 1024 * 1024


def run_in_child(body: Callable[[], None]) -> int:
    """Fork; the child runs ``body`` and leaves with 0, or 1 when it raised. Returns the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
    except BaseException:
        os._exit(1)
    os._exit(0)


def join(pid: int, seconds: float = 20.0) -> int:
    """Exit code of the child; kills it past the deadline."""
    deadline = time.monotonic() + seconds
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(descriptor)


def make_lane(capacity: int = 4096) -> Lane:
    return Lane(Region("lane", LANE_HEADER_SIZE + capacity), 0, capacity)


# --- regions ----------------------------------------------------------------------------------------------------------


def test_region_is_shared_with_a_forked_child() -> None:
    region = Region("shared", 8 * KIB)
    view = region.view(4096, 5)

    def child() -> None:
        view[:] = b"hello"

    assert join(run_in_child(child)) == 0
    assert bytes(view) == b"hello"


def test_region_view_outside_is_refused() -> None:
    region = Region("small", 4096)
    assert len(region.view(4096, 0)) == 0
    for offset, length in ((0, 4097), (4096, 1), (2**63, 2**63)):
        with pytest.raises(OurFault):
            region.view(offset, length)


def test_region_view_outlives_close_and_the_object() -> None:
    region = Region("kept", 4096)
    view = region.view(0, 3)
    region.close()
    region.close()
    del region
    view[:] = b"abc"
    assert bytes(view) == b"abc"


def test_dropping_a_region_in_a_child_leaves_the_parents_mapping() -> None:
    holder = [Region("parent", 4096)]

    def child() -> None:
        holder.clear()

    assert join(run_in_child(child)) == 0
    holder[0].view(0, 2)[:] = b"ok"
    assert bytes(holder[0].view(0, 2)) == b"ok"


# --- arena ------------------------------------------------------------------------------------------------------------


def test_arena_classes_are_powers_of_two_from_a_page() -> None:
    arena = Arena(Region("arena", 4 * MIB), owner=True)
    for size, capacity in ((0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (MIB, MIB), (MIB + 1, 2 * MIB)):
        buffer = arena.allocate(size)
        assert buffer is not None
        assert (buffer.size, buffer.capacity, len(buffer)) == (size, capacity, size)
        assert buffer.offset % capacity == 0
        assert arena.in_use == capacity
        del buffer
        assert arena.in_use == 0


def test_arena_buffer_is_the_memory_that_the_descriptor_names() -> None:
    arena = Arena(Region("arena", MIB), owner=True)
    arena.allocate(100)
    kept, buffer = arena.allocate(4096), arena.allocate(5000)
    assert kept is not None and buffer is not None
    memoryview(buffer)[:5] = b"bytes"
    assert bytes(arena.view(buffer.offset, 5)) == b"bytes"
    with pytest.raises(OurFault):
        arena.view(MIB - 10, 11)


def test_arena_memoryview_keeps_the_block() -> None:
    arena = Arena(Region("arena", MIB), owner=True)
    view = memoryview(arena.allocate(10))  # type: ignore[arg-type]
    assert arena.in_use == 4096
    view.release()
    assert arena.in_use == 0


def test_arena_full_answers_none_and_recovers_whole() -> None:
    arena = Arena(Region("arena", 3 * MIB), owner=True)
    pages: list[Buffer] = []
    while (buffer := arena.allocate(1)) is not None:
        pages.append(buffer)
    assert len(pages) == 3 * MIB // 4096
    assert len({buffer.offset for buffer in pages}) == len(pages)
    assert arena.allocate(1) is None
    random.Random(1).shuffle(pages)
    pages.clear()
    # Every page was joined with its buddy again, those that wait in the cache as well.
    assert arena.allocate(2 * MIB) is not None
    assert arena.in_use == 0


def test_arena_random_use_never_overlaps_and_counts_exactly() -> None:
    draw = random.Random(7)
    arena = Arena(Region("arena", 8 * MIB), owner=True, keep_bytes=MIB)
    held: dict[int, tuple[Buffer, bytes]] = {}
    got: Buffer | None
    buffer: Buffer | None
    for step in range(6000):
        if held and (draw.random() < 0.48 or len(held) > 120):
            key = draw.choice(list(held))
            buffer, mark = held.pop(key)
            view = memoryview(buffer)
            assert bytes(view[:8]) == mark and bytes(view[-8:]) == mark
            view.release()
        else:
            got = arena.allocate(max(16, int(2 ** draw.uniform(3, 21))))
            if got is not None:
                mark = step.to_bytes(8, "little")
                memoryview(got)[:8] = mark
                memoryview(got)[-8:] = mark
                held[step] = (got, mark)
        got = buffer = None
        assert arena.in_use == sum(buffer.capacity for buffer, _ in held.values())
    held.clear()
    assert arena.in_use == 0
    assert arena.allocate(8 * MIB) is not None


def test_arena_gives_idle_pages_back() -> None:
    region = Region("arena", 64 * MIB)
    arena = Arena(region, owner=True, keep_bytes=8 * MIB)
    blocks = [arena.allocate(MIB) for _ in range(64)]
    for block in blocks:
        memoryview(block)[:] = b"\xff" * MIB  # type: ignore[arg-type]
    blocks.clear()
    del block
    for _ in range(64):
        arena.allocate(MIB)
    assert arena.idle_bytes <= 8 * MIB
    resident = os.fstat(region.fd).st_blocks * 512
    assert resident <= 9 * MIB


def test_arena_refuses_foreign_owners_and_impossible_sizes() -> None:
    region = Region("arena", MIB)
    with pytest.raises(OurFault):
        Arena(region, owner=False).allocate(1)
    arena = Arena(region, owner=True)
    with pytest.raises(OurFault):
        arena.allocate(128 * MIB + 1)
    assert arena.allocate(2 * MIB) is None


def test_arena_buffer_inherited_by_a_child_frees_nothing() -> None:
    arena = Arena(Region("arena", MIB), owner=True)
    holder = [arena.allocate(100)]

    def child() -> None:
        before = arena.in_use, arena.frees
        holder.clear()
        assert (arena.in_use, arena.frees) == before
        with pytest.raises(OurFault):
            arena.allocate(1)

    assert join(run_in_child(child)) == 0
    assert arena.in_use == 4096


# --- lanes ------------------------------------------------------------------------------------------------------------


def drained(lane: Lane, limit: int = 1000) -> list[tuple[int, bytes]]:
    records: list[tuple[int, bytes]] = []
    lane.drain(lambda kind, payload: records.append((kind, payload)), limit)
    return records


def test_lane_shows_records_only_after_publish_and_in_order() -> None:
    lane = make_lane()
    assert lane.push(1, (b"one",)) and lane.push(2, (b"t", bytearray(b"w"), memoryview(b"o"))) and lane.push(3, ())
    assert not lane.pending() and drained(lane) == []
    lane.publish()
    assert lane.pending()
    assert drained(lane, limit=1) == [(1, b"one")]
    assert drained(lane) == [(2, b"two"), (3, b"")]
    assert not lane.pending()


def test_lane_full_refuses_and_takes_again_after_drain() -> None:
    lane = make_lane(256)
    pushed = 0
    while lane.push(1, (b"x" * 24,)):
        pushed += 1
    assert pushed == 256 // 32
    assert not lane.push(1, (b"",))
    lane.publish()
    assert len(drained(lane, limit=1)) == 1
    assert lane.push(9, (b"y" * 24,))
    lane.publish()
    assert drained(lane)[-1] == (9, b"y" * 24)


def test_lane_records_never_wrap_whatever_their_sizes() -> None:
    draw = random.Random(3)
    lane = make_lane(1024)
    sent: list[tuple[int, bytes]] = []
    received: list[tuple[int, bytes]] = []
    for number in range(5000):
        record = (number % 100, draw.randbytes(draw.randrange(lane.record_max + 1)))
        if lane.push(record[0], (record[1],)):
            sent.append(record)
        lane.publish()
        if draw.random() < 0.7:
            received += drained(lane, limit=draw.randrange(1, 4))
    received += drained(lane)
    assert len(sent) > 1000 and received == sent


def test_lane_largest_record_fits_at_every_cursor() -> None:
    lane = make_lane(256)
    for _ in range(100):
        assert lane.push(1, (b"z" * lane.record_max,))
        lane.publish()
        assert drained(lane) == [(1, b"z" * lane.record_max)]
        assert lane.push(2, (b"",))
        lane.publish()
        drained(lane)
    with pytest.raises(OurFault):
        lane.push(1, (b"z" * (lane.record_max + 1),))
    with pytest.raises(OurFault):
        lane.push(0xFFFF, (b"",))


def test_lane_more_parts_than_the_fast_path_takes() -> None:
    lane = make_lane()
    assert lane.push(4, [bytes([n]) for n in range(40)])
    lane.publish()
    assert drained(lane) == [(4, bytes(range(40)))]


def test_lane_handler_that_raises_consumes_its_record_only() -> None:
    lane = make_lane()
    for number in range(3):
        lane.push(number, (b"r",))
    lane.publish()

    def fail(kind: int, payload: bytes) -> None:
        raise KeyError(kind)

    with pytest.raises(KeyError):
        lane.drain(fail, 10)
    assert drained(lane) == [(1, b"r"), (2, b"r")]


def test_lane_record_beyond_the_published_tail_is_a_defect() -> None:
    region = Region("lane", LANE_HEADER_SIZE + 256)
    lane = Lane(region, 0, 256)
    lane.push(1, (b"12345678",))
    lane.publish()
    region.view(LANE_HEADER_SIZE, 4)[:] = (200).to_bytes(4, "little")
    with pytest.raises(OurFault):
        drained(lane)


def test_lane_refuses_shapes_that_break_the_layout() -> None:
    region = Region("lane", 16 * KIB)
    for offset, capacity in ((0, 1000), (0, 128), (8, 1024), (0, 32 * KIB)):
        with pytest.raises(OurFault):
            Lane(region, offset, capacity)


def test_lane_between_two_processes_loses_and_reorders_nothing() -> None:
    region = Region("lane", LANE_HEADER_SIZE + 4096)
    count = 50_000

    def child() -> None:
        lane = Lane(region, 0, 4096)
        for number in range(count):
            payload = number.to_bytes(8, "little") * (number % 5 + 1)
            while not lane.push(number & 0xFF, (payload,)):
                lane.publish()
                os.sched_yield()
            if number % 7 == 0:
                lane.publish()
        lane.publish()

    pid = run_in_child(child)
    lane = Lane(region, 0, 4096)
    expected = 0
    deadline = time.monotonic() + 20

    def check(kind: int, payload: bytes) -> None:
        nonlocal expected
        assert kind == expected & 0xFF and payload == expected.to_bytes(8, "little") * (expected % 5 + 1)
        expected += 1

    while expected < count and time.monotonic() < deadline:
        if lane.drain(check, 256) == 0:
            os.sched_yield()
    assert join(pid) == 0
    assert expected == count


# --- wake -------------------------------------------------------------------------------------------------------------


def make_wake() -> Wake:
    return Wake(Region("wake", 64), 0, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))


def test_wake_writes_only_to_a_sleeper_and_only_once() -> None:
    wake = make_wake()
    assert not wake.notify()
    wake.prepare_sleep()
    assert wake.sleeping
    assert wake.notify() and not wake.sleeping
    assert not wake.notify()
    assert os.eventfd_read(wake.fd) == 1 and wake.wakes == 1
    wake.prepare_sleep()
    wake.awake()
    assert not wake.notify()
    os.close(wake.fd)


def test_wake_may_sleep_only_when_no_lane_has_records() -> None:
    wake, empty, lane = make_wake(), make_lane(), make_lane()
    assert wake.may_sleep([empty, lane], spin_us=20.0) and wake.sleeping
    lane.push(1, (b"r",))
    assert lane.deliver(wake) and not wake.sleeping
    assert not wake.may_sleep([empty, lane]) and not wake.sleeping
    assert not wake.may_sleep([empty, lane], spin_us=1e6)
    drained(lane)
    assert wake.may_sleep([empty, lane])
    with pytest.raises(TypeError):
        wake.may_sleep(["no lane"])  # type: ignore[list-item]
    os.close(wake.fd)


def test_no_wake_up_is_lost_between_two_processes() -> None:
    """Litmus of the fences: each side stores, then loads the other's word, at the same moment as nearly as can be had.

    The answering side spins, so that its answer comes after about a microsecond; the asking side goes to sleep after a
    random time of that order. Without the fence in `notify` the answer is published and the word is read too early: the
    asking side sleeps on a full lane. With either fence taken out this failed within a second, in every run on two
    cores.
    """
    half = 64 + LANE_HEADER_SIZE + 4096
    region = Region("litmus", 2 * half)
    fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2)]
    payload, stop = (b"ping",), 2

    def ends(me: int) -> tuple[Lane, Lane, Wake, Wake]:
        return (
            Lane(region, me * half + 64, 4096),
            Lane(region, (1 - me) * half + 64, 4096),
            Wake(region, me * half, fds[me]),
            Wake(region, (1 - me) * half, fds[1 - me]),
        )

    def answer() -> None:
        mine, other, wake, peer = ends(1)
        kinds: list[int] = []
        patience = time.monotonic() + 15
        while stop not in kinds and time.monotonic() < patience:
            kinds.clear()
            if mine.drain(lambda kind, _: kinds.append(kind), 1):
                other.push(1, payload)
                other.deliver(peer)
            elif wake.may_sleep([mine], spin_us=2000.0):
                wake.awake()

    def slept_on_a_full_lane(mine: Lane, wake: Wake) -> bool:
        while not select.select([wake.fd], [], [], 0.02)[0]:
            # The answer may have come just now: then its wake-up follows at once.
            if mine.pending() and not select.select([wake.fd], [], [], 0.2)[0]:
                return True
        os.eventfd_read(wake.fd)
        return False

    pid = run_in_child(answer)
    mine, other, wake, peer = ends(0)
    lanes, draw = [mine], random.Random(1)
    lost = sleeps = 0
    end = time.monotonic() + 1.2
    while time.monotonic() < end and lost == 0:
        for _ in range(200):
            other.push(1, payload)
            other.deliver(peer)
            while mine.drain(lambda kind, _: None, 4) == 0:
                if wake.may_sleep(lanes, spin_us=draw.random() * 4):
                    sleeps += 1
                    lost += slept_on_a_full_lane(mine, wake)
                    wake.awake()
    other.push(stop, payload)
    other.deliver(peer)
    assert join(pid) == 0
    assert lost == 0 and sleeps > 100
    for fd in fds:
        os.close(fd)


# --- counters ---------------------------------------------------------------------------------------------------------


def test_counters_slots_are_apart_and_cleared() -> None:
    counters = Counters(Region("counters", 4096), 0, 64)
    counters.write(3, 2**63, 10, 2**40, 9, 1, 2**32 - 1)
    assert counters.read(3) == (2**63, 10, 2**40, 9, 1, 2**32 - 1) and counters.in_use(3)
    assert counters.read(2) == counters.read(4) == (0,) * 6 and not counters.in_use(4)
    counters.clear(3)
    assert counters.read(3) == (0,) * 6 and not counters.in_use(3)
    for slot in (-1, 64):
        with pytest.raises(OurFault):
            counters.read(slot)
    with pytest.raises(OurFault):
        Counters(Region("counters", 4096), 0, 65)


def test_counters_read_beside_a_writer_is_never_torn() -> None:
    region = Region("counters", 4096)

    def child() -> None:
        counters = Counters(region, 0, 1)
        for value in range(1, 150_000):
            counters.write(0, value, value, value, value, value, value)

    counters = Counters(region, 0, 1)
    pid = run_in_child(child)
    seen: set[int] = set()
    last, deadline = 0, time.monotonic() + 20
    while last != 149_999 and time.monotonic() < deadline:
        values = counters.read(0)
        assert len(set(values)) == 1 and values[0] >= last
        last = values[0]
        seen.add(last)
    assert join(pid) == 0
    assert last == 149_999 and len(seen) > 2


def test_counters_slot_of_a_dead_writer_is_an_error_not_a_hang() -> None:
    region = Region("counters", 4096)
    counters = Counters(region, 0, 1)
    region.view(0, 8)[:] = (7).to_bytes(8, "little")
    with pytest.raises(OurFault):
        counters.read(0)
