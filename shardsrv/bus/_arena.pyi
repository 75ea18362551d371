"""Regions of shared memory and the arena that allocates in one. Types of ``_arena.pyx``."""

class Region:
    """An anonymous shared mapping (memfd), inherited by forked children."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def fd(self) -> int: ...
    def __init__(self, name: str, size: int) -> None: ...
    def view(self, offset: int, length: int) -> memoryview: ...
    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last object that points into it."""

class Buffer:
    """A piece of an arena; supports the buffer protocol (writable). Freed to its arena when the last reference goes."""

    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes asked for."""
    @property
    def capacity(self) -> int:
        """Bytes of the size class."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Arena:
    """Buddy allocator over a region: powers of two from 4 KiB to 128 MiB, book-keeping local to the owner process.

    When more than `keep_bytes` lie idle in whole granules of 1 MiB, pages go back to the kernel (MADV_REMOVE), a few
    at a time.
    """

    @property
    def region(self) -> Region: ...
    @property
    def owner(self) -> bool: ...
    @property
    def capacity(self) -> int: ...
    @property
    def in_use(self) -> int:
        """Bytes of blocks that are handed out."""
    @property
    def idle_bytes(self) -> int:
        """Bytes of touched granules that nothing lies in."""
    @property
    def keep_bytes(self) -> int: ...
    @property
    def frees(self) -> int:
        """Blocks freed so far: whether room may have come back since it was last looked at."""
    def __init__(self, region: Region, *, owner: bool, keep_bytes: int = ...) -> None: ...
    def allocate(self, size: int) -> Buffer | None:
        """None when nothing is left: the caller parks or refuses.

        Raises OurFault above 128 MiB, or in a process that does not own the arena.
        """
    def view(self, offset: int, length: int) -> memoryview:
        """A writable view by descriptor, in any process. Raises OurFault outside the arena."""
