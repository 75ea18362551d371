"""Admission of messages by the space that is free: never into the reserve, and again as soon as there is room."""

from shardsrv.shards.disk_space import ENTRY_BYTES, LOOK_BYTES, RESERVE_BYTES, DiskSpace

SHARDS = 3
RESERVE = RESERVE_BYTES + SHARDS * LOOK_BYTES


class FileSystem:
    """So many bytes are free; `looks` counts the questions."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.looks = 0

    def __call__(self, path: str) -> int:
        self.looks += 1
        return self.free


def test_all_shards_together_never_reach_into_the_reserve() -> None:
    disk = FileSystem(RESERVE + 10 * LOOK_BYTES)
    shards = [DiskSpace("", SHARDS, disk) for _ in range(SHARDS)]
    size = 100_000
    refused = 0
    while refused < SHARDS:
        refused = sum(not shard.admits(size) for shard in shards)
        disk.free -= (SHARDS - refused) * (size + ENTRY_BYTES)
    assert RESERVE_BYTES <= disk.free < RESERVE + SHARDS * (size + ENTRY_BYTES)


def test_the_file_system_is_asked_rarely_while_there_is_room_and_each_time_when_there_is_none() -> None:
    disk = FileSystem(1 << 40)
    space = DiskSpace("", SHARDS, disk)
    assert all(space.admits(1000) for _ in range(10_000))
    assert disk.looks <= 10_000 * (1000 + ENTRY_BYTES) // LOOK_BYTES + 1
    disk.free, disk.looks = RESERVE, 0
    while space.admits(1000):
        pass
    assert not space.admits(1000) and disk.looks == 2
    disk.free = 1 << 40
    assert space.admits(1000)


def test_a_request_larger_than_one_look_is_admitted_where_it_fits() -> None:
    disk = FileSystem(RESERVE + 3 * LOOK_BYTES)
    assert DiskSpace("", SHARDS, disk).admits(2 * LOOK_BYTES)
    assert not DiskSpace("", SHARDS, disk).admits(3 * LOOK_BYTES)


def test_a_file_system_that_cannot_be_asked_is_written_to() -> None:
    def fails(path: str) -> int:
        raise OSError(5, "no answer")

    assert DiskSpace("", SHARDS, fails).admits(1)
    assert DiskSpace("/", SHARDS).admits(1)
