"""A file of the simulated disk: what readers see, what is durable, and every state that a power loss may leave.

Model of the page cache. A write makes sectors dirty; writeback may bring any dirty sector to the disk at any moment, in
the contents it then has. So after a power loss each dirty sector holds one of its versions since the last sync, each
chosen for itself: writes are lost, kept, torn and reordered, and no sector holds a mixture that never stood in memory.
The length is chosen from its own history. A truncation that is kept takes the bytes behind it with it: what was cut
away never comes back behind a length that was set later.

Invariants: sectors that are not dirty are durable as they are seen, except those in `lost`, which a failed sync left
clean in memory and old on the disk.
"""

from __future__ import annotations

from collections.abc import Mapping

SECTOR = 512
"""Bytes that a disk writes as one."""
_ZEROS = bytes(SECTOR)


class SimFile:
    """One file. `data` may be shared with copies: it is duplicated before the first change."""

    __slots__ = ("_cuts", "_owned", "allocated", "data", "lost", "sector", "sectors", "sizes")

    def __init__(self, sector: int = SECTOR) -> None:
        self.sector = sector
        self.data: bytearray | bytes = b""
        self._owned = False
        self.allocated = 0
        self.sizes: list[tuple[int, int]] = [(0, 0)]
        """(sequence, length): the durable one, then every later one."""
        self.sectors: dict[int, list[tuple[int, bytes]]] = {}
        """Versions of each dirty sector, (sequence, contents): the durable one first."""
        self._cuts: list[tuple[int, dict[int, int]]] = []
        self.lost: dict[int, bytes] = {}
        """Durable contents of sectors that memory takes for clean and sees otherwise."""

    # --- calls -----------------------------------------------------------------------------------------------------

    def write(self, position: int, data: bytes, sequence: int) -> None:
        """Write ``data``; a gap before it reads as zeros."""
        if not data:
            return
        end, size = position + len(data), self.sector
        seen = self._own()
        touched = range(position // size, (end - 1) // size + 1)
        for number in touched:
            self._dirty(number)
        if position > len(seen):
            seen.extend(bytes(position - len(seen)))
        seen[position:end] = data
        for number in touched:
            self.sectors[number].append((sequence, self._image(number)))
        if len(seen) != self.sizes[-1][1]:
            self.sizes.append((sequence, len(seen)))

    def truncate(self, length: int, sequence: int) -> None:
        """Set the length; growth reads as zeros."""
        seen = self._own()
        if length > len(seen):
            seen.extend(bytes(length - len(seen)))
        elif length < len(seen):
            floors = {}
            for number in range(length // self.sector, -(-len(seen) // self.sector)):
                self._dirty(number)
            old = len(seen)
            del seen[length:]
            for number in range(length // self.sector, -(-old // self.sector)):
                floors[number] = len(self.sectors[number])
                self.sectors[number].append((sequence, self._image(number)))
            self._cuts.append((len(self.sizes), floors))
        if len(seen) != self.sizes[-1][1]:
            self.sizes.append((sequence, len(seen)))

    def sync(self) -> None:
        """Everything seen is durable, except what an earlier failed sync has lost."""
        for number in self.sectors:
            self.lost.pop(number, None)
        self.sectors.clear()
        self._cuts.clear()
        self.sizes = [(0, len(self.data))]

    def fail_sync(self) -> None:
        """A sync that failed: dirty sectors count as clean from now on and are not on the disk. The length still is
        dirty."""
        for number, versions in self.sectors.items():
            self.lost[number] = versions[0][1]
        self.sectors.clear()
        self._cuts.clear()

    def damage(self, position: int, data: bytes) -> None:
        """Change bytes at rest: what was durable is other than what was written. Bytes behind the end are left out."""
        size = self.sector
        seen = self._own()
        for at in range(position, min(position + len(data), len(seen))):
            number, byte = divmod(at, size)
            value = data[at - position : at - position + 1]
            if number in self.sectors:
                sequence, image = self.sectors[number][0]
                self.sectors[number][0] = (sequence, image[:byte] + value + image[byte + 1 :])
            elif number in self.lost:
                image = self.lost[number]
                self.lost[number] = image[:byte] + value + image[byte + 1 :]
            else:
                seen[at : at + 1] = value

    # --- outcomes --------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """True when a power loss leaves exactly what is seen."""
        return not self.sectors and not self.lost and len(self.sizes) == 1

    @property
    def durable(self) -> bytes:
        """What a power loss leaves that keeps nothing of what was not synced."""
        return bytes(self.outcome(0, dict.fromkeys(self.sectors, 0)).data)

    def outcome(self, size: int, chosen: Mapping[int, int]) -> SimFile:
        """The file after a power loss with length number ``size`` and, for each dirty sector, version number
        ``chosen``."""
        length = self.sizes[size][1]
        after = SimFile(self.sector)
        after.allocated = self.allocated
        after.sizes = [(0, length)]
        if self.settled:
            self._owned = False
            after.data = self.data
            return after
        floors: dict[int, int] = {}
        for number, below in self._cuts:
            if number <= size:
                floors.update(below)
        data = bytearray(self.data[:length]).ljust(length, b"\0")
        for number, image in self.lost.items():
            self._put(data, number, image)
        for number, versions in self.sectors.items():
            version = max(chosen[number], floors.get(number, 0))
            self._put(data, number, versions[version][1])
        del data[length:]
        after.data = bytes(data)
        return after

    def copy(self) -> SimFile:
        """An equal file with a life of its own."""
        other = SimFile(self.sector)
        self._owned = False
        other.data, other.allocated = self.data, self.allocated
        other.sizes = list(self.sizes)
        other.sectors = {number: list(versions) for number, versions in self.sectors.items()}
        other._cuts = list(self._cuts)
        other.lost = dict(self.lost)
        return other

    # --- bytes -----------------------------------------------------------------------------------------------------

    def _own(self) -> bytearray:
        if not self._owned:
            self.data = bytearray(self.data)
            self._owned = True
        assert isinstance(self.data, bytearray)
        return self.data

    def _image(self, number: int) -> bytes:
        start = number * self.sector
        return bytes(self.data[start : start + self.sector]).ljust(self.sector, b"\0")

    def _dirty(self, number: int) -> None:
        """Remember the durable contents of a sector that is about to change."""
        if number not in self.sectors:
            durable = self.lost.get(number)
            self.sectors[number] = [(0, self._image(number) if durable is None else durable)]

    def _put(self, data: bytearray, number: int, image: bytes) -> None:
        start = number * self.sector
        if start < len(data):
            data[start : start + self.sector] = image
