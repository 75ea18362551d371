"""Links between shards: what is broadcast arrives everywhere, in order, also when the arena has no room at first."""

from collections.abc import Iterator

import pytest

from shardsrv.bus.shared import Shared
from shardsrv.shards.links import INLINE_MAX, Links

ARENA = 1 << 20
LARGE = 400_000


@pytest.fixture
def links() -> Iterator[list[Links]]:
    """Three shards in one process."""
    shared = Shared.create(3, lane_bytes=1 << 16, arena_bytes=ARENA, counter_slots=1)
    made = [Links(shared, shard) for shard in range(3)]
    yield made
    shared.close()


def carry(links: list[Links]) -> list[list[tuple[int, int, bytes, bytes]]]:
    """Turns of all shards until nothing is left; what each received as (sender, kind, head, body)."""
    heard: list[list[tuple[int, int, bytes, bytes]]] = [[] for _ in links]
    for _ in range(20):
        for mine, one in zip(heard, links, strict=True):
            one.publish()
            one.drain(lambda *record, mine=mine: mine.append((record[0], record[1], *map(bytes, record[2:]))))
    assert not any(one.has_waiting() for one in links)
    return heard


def test_a_broadcast_that_finds_no_room_waits_in_its_place(links: list[Links]) -> None:
    bodies = [bytes([number]) * (LARGE if number % 2 else 10) for number in range(8)]
    for number, body in enumerate(bodies):
        links[0].broadcast(3, b"head %d" % number, body)
    assert links[0].has_waiting()
    expected = [(0, 3, b"head %d" % number, body) for number, body in enumerate(bodies)]
    assert carry(links) == [[], expected, expected]
    assert links[0].records_delayed > 0


def test_what_is_sent_to_one_is_refused_when_there_is_no_room(links: list[Links]) -> None:
    links[0].send(1, 3, b"fits", bytes(LARGE))
    links[0].send(1, 3, b"too", bytes(LARGE))
    with pytest.raises(MemoryError):
        links[0].send(1, 3, b"does not", bytes(LARGE))
    links[0].send(1, 3, b"inline", bytes(INLINE_MAX))
    assert [head for _, _, head, _ in carry(links)[1]] == [b"fits", b"too", b"inline"]
