"""What the processes of a node say to each other in shared memory. Types of ``_memory.pyx``; byte layouts stand there.

All memory is mapped before the fork and inherited. One writer per datum: only the owner of an arena allocates and frees
in it, only the sender of a lane moves its tail, only the receiver its head, only the owner writes a counter slot.
"""

from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import Buffer as AnyBuffer

from shardsrv.bus._arena import Arena as Arena
from shardsrv.bus._arena import Buffer as Buffer
from shardsrv.bus._arena import Region as Region

SLOT_SIZE: Final = 64
LANE_HEADER_SIZE: Final = 128
WAKE_SIZE: Final = 64

class Lane:
    """One single-producer single-consumer ring in shared memory, at ``offset`` of a region."""

    @property
    def capacity(self) -> int: ...
    @property
    def record_max(self) -> int:
        """Largest payload of one record."""
    def __init__(self, region: Region, offset: int, capacity: int) -> None: ...
    def push(self, kind: int, parts: Sequence[AnyBuffer]) -> bool:
        """Append a record (visible after `publish`). False when full: the caller keeps it and counts."""
    def publish(self) -> None:
        """Release store of the tail for all that was pushed since the last publish."""
    def deliver(self, wake: Wake) -> bool:
        """`publish`, then ``wake.notify()``."""
    def drain(self, on_record: Callable[[int, bytes], object], limit: int) -> int:
        """Consume up to ``limit`` records; the payload is copied out. Returns how many."""
    def pending(self) -> bool: ...

class Wake:
    """The sleeping word and eventfd of one receiver.

    Protocol: a producer publishes, then `notify()`: full fence, and if the receiver sleeps, one write to its eventfd. A
    receiver calls `prepare_sleep()` (sets the word, full fence), looks at its lanes once more, sleeps in epoll, then
    `awake()`; `may_sleep` is the first two in one step.
    """

    @property
    def fd(self) -> int: ...
    @property
    def wakes(self) -> int:
        """Eventfd writes made by this process."""
    def __init__(self, region: Region, offset: int, fd: int) -> None: ...
    def notify(self) -> bool:
        """Whether a sleeper was woken."""
    def prepare_sleep(self) -> None: ...
    def may_sleep(self, lanes: list[Lane], spin_us: float = 0.0) -> bool:
        """Spin, then `prepare_sleep` and look once more.

        True: sleep now (the word is set). False: records wait (the word is down).
        """
    def awake(self) -> None: ...
    @property
    def sleeping(self) -> bool: ...

class Counters:
    """Slots of 64 bytes, each written by the shard that owns the partition, read by anyone through a sequence lock.

    Slot: u64 sequence | u64 created_revision | u64 messages | u64 bytes | u64 current_offset | u64 first_offset |
    u32 segments | u32 flags | u64 reserved.
    """

    @property
    def slots(self) -> int: ...
    def __init__(self, region: Region, offset: int, slots: int) -> None: ...
    def write(
        self,
        slot: int,
        created_revision: int,
        messages: int,
        bytes_: int,
        current_offset: int,
        first_offset: int,
        segments: int,
    ) -> None: ...
    def read(self, slot: int) -> tuple[int, int, int, int, int, int]:
        """(created_revision, messages, bytes, current_offset, first_offset, segments); zeros when unused."""
    def in_use(self, slot: int) -> bool: ...
    def clear(self, slot: int) -> None: ...
