"""Shared memory of a node: arenas, lanes, wake words, counters. Interface; the implementation is ``_memory.pyx``.

All memory is mapped before the fork and inherited. One writer per datum: only the owner of an arena allocates and frees in it, only
the sender of a lane moves its tail, only the receiver its head, only the owning shard writes a counter slot.
"""

from collections.abc import Buffer as AnyBuffer
from collections.abc import Callable, Sequence
from typing import Final

SLOT_SIZE: Final = 64

class Region:
    """An anonymous shared mapping (memfd), inherited by forked children."""

    size: int
    def __init__(self, name: str, size: int) -> None: ...
    def view(self, offset: int, length: int) -> memoryview: ...
    def close(self) -> None: ...

class Buffer:
    """A piece of an arena; supports the buffer protocol (writable). Freed to its arena when the last reference goes."""

    offset: int
    size: int                # asked for
    capacity: int            # of the size class
    def __len__(self) -> int: ...

class Arena:
    """Size-class allocator over a region: powers of two from 4 KiB to 128 MiB, free lists local to the owner process.

    Freed blocks of 1 MiB and more give their pages back (MADV_REMOVE) when more than `keep_bytes` lie idle.
    """

    capacity: int
    in_use: int
    def __init__(self, region: Region, *, owner: bool, keep_bytes: int = ...) -> None: ...
    def allocate(self, size: int) -> Buffer | None:
        """None when nothing is left: the caller parks or refuses."""
    def view(self, offset: int, length: int) -> memoryview:
        """A writable view by descriptor, in any process. Bounds are checked."""

class Lane:
    """One single-producer single-consumer ring in shared memory.

    Layout (docs/architecture.md, "Lanes"): head and tail on cache lines of their own, then `capacity` bytes of records
    {u32 length, u16 kind, u16 flags, length bytes, padded to 8}; a record never wraps (a PAD record fills the end).
    """

    capacity: int
    def push(self, kind: int, parts: Sequence[AnyBuffer]) -> bool:
        """Append a record (visible after `publish`). False when full: the caller keeps it and counts."""
    def publish(self) -> None:
        """Release store of the tail for all that was pushed since the last publish."""
    def drain(self, on_record: Callable[[int, bytes], None], limit: int) -> int:
        """Consume up to ``limit`` records; the payload is copied out. Returns how many."""
    def pending(self) -> bool: ...

class Wake:
    """The sleeping word and eventfd of one receiver.

    Protocol: a producer publishes, then `notify()`: full fence, and if the receiver sleeps, one write to its eventfd. A receiver calls
    `prepare_sleep()` (sets the word, full fence), looks at its lanes once more, sleeps in epoll, then `awake()`.
    """

    fd: int
    wakes: int               # eventfd writes made by this process
    def notify(self) -> bool: ...
    def prepare_sleep(self) -> None: ...
    def awake(self) -> None: ...
    @property
    def sleeping(self) -> bool: ...

class Counters:
    """A page of 64-byte slots, each written by the shard that owns the partition, read by anyone through a sequence lock.

    Slot: u64 sequence | u64 created_revision | u64 messages | u64 bytes | u64 current_offset | u64 first_offset | u32 segments | u32 flags | u64 reserved.
    """

    slots: int
    def write(self, slot: int, created_revision: int, messages: int, bytes_: int, current_offset: int, first_offset: int, segments: int) -> None: ...
    def read(self, slot: int) -> tuple[int, int, int, int, int, int]:
        """(created_revision, messages, bytes, current_offset, first_offset, segments), a consistent set."""
    def clear(self, slot: int) -> None: ...
