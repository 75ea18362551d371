"""`SimDisk`: the `Disk` of the store in memory, with a page cache that a power loss takes away.

Invariants: every call of the store's drivers works as on Linux; after `crash` the disk holds one of the states that the
syncs allow and nothing else: data of a file is durable after fdatasync of it, a name after a sync of its directory, all
after syncfs. Names that changed since (made, renamed, removed) are kept or lost one by one, a rename as one. Equal
calls and equal random objects give equal states.

Faults: `on_call` sees each call before it is carried out and may raise `OSError` (a failed fdatasync loses its pages
and marks them clean), or return a number of bytes after which a write or read ends short. A slow sync is a callback
that lets time pass. `flip`, `damage` and `misdirect` change what lies at rest.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from shardsrv._core import xxh3
from shardsrv.sim.disk_choices import BLOCK, ChoicePoint, NameChange, SimDirectory, combinations, draw, reachable_files
from shardsrv.sim.disk_file import SECTOR, SimFile


@attrs.frozen
class Call:
    """One call before it is carried out. `length` is that of a write, read or truncation in bytes."""

    name: str
    path: str
    position: int = 0
    length: int = 0


@attrs.define(eq=False)
class Handle:
    """An open file."""

    file: SimFile
    path: str
    writable: bool


class SimDisk:
    """See the module. ``capacity`` in bytes bounds what is allotted; ``sector`` is what the disk writes as one."""

    def __init__(self, *, capacity: int | None = None, sector: int = SECTOR) -> None:
        self.root = SimDirectory()
        self.capacity = capacity
        self.sector = sector
        self.on_call: Callable[[Call], int | None] | None = None
        self.on_slow_sync: Callable[[str], None] | None = None
        self.after_call: Callable[[Call], None] | None = None
        """Told of each call that changed or synced anything, after it: the crash points of a run."""
        self._names: list[NameChange] = []
        self._handles: dict[int, Handle] = {}
        self._next_handle = 3
        self._sequence = 0

    # --- files -----------------------------------------------------------------------------------------------------

    def open_read(self, path: str) -> int:
        self._before(Call("open_read", path))
        return self._handle(Handle(self._file(path), path, False))

    def open_write(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        call = Call("open_write", path)
        self._before(call)
        parent, name = self._parent(path)
        if name not in parent.entries:
            if not create and not exclusive:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._rename_all([(parent, name, SimFile(self.sector))])
            self._after(call)
        elif exclusive:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self._handle(Handle(self._file(path), path, True))

    def close(self, handle: int) -> None:
        if self._handles.pop(handle, None) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def pwritev(self, handle: int, buffers: Sequence[Any], position: int) -> int:
        held = self._held(handle, writable=True)
        data = b"".join(bytes(buffer) for buffer in buffers)
        call = Call("pwritev", held.path, position, len(data))
        short = self._before(call)
        if short is not None:
            data = data[:short]
        self._reserve(held.file, position + len(data))
        held.file.write(position, data, self._tick())
        self._after(call)
        return len(data)

    def preadv(self, handle: int, buffers: Sequence[Any], position: int) -> int:
        held = self._held(handle)
        limit = self._before(Call("preadv", held.path, position, sum(len(buffer) for buffer in buffers)))
        data, done = held.file.data, 0
        for buffer in buffers:
            target = memoryview(buffer).cast("B")
            wanted = len(target) if limit is None else min(len(target), limit - done)
            part = data[position + done : position + done + wanted]
            target[: len(part)] = part
            done += len(part)
            if len(part) < len(target):
                break
        return done

    def truncate(self, handle: int, length: int) -> None:
        held = self._held(handle, writable=True)
        call = Call("truncate", held.path, 0, length)
        self._before(call)
        self._reserve(held.file, length)
        held.file.truncate(length, self._tick())
        self._after(call)

    def fallocate(self, handle: int, position: int, length: int) -> None:
        held = self._held(handle, writable=True)
        self._before(Call("fallocate", held.path, position, length))
        self._reserve(held.file, position + length)
        held.file.allocated = max(held.file.allocated, position + length)

    def fdatasync(self, handle: int) -> None:
        held = self._held(handle)
        call = Call("fdatasync", held.path)
        try:
            self._before(call)
        except OSError:
            held.file.fail_sync()
            raise
        if self.on_slow_sync is not None:
            self.on_slow_sync(held.path)
        held.file.sync()
        self._after(call)

    def fdatasync_all(self, handles: list[int]) -> tuple[int, int] | None:
        for position, handle in enumerate(handles):
            try:
                self.fdatasync(handle)
            except OSError as error:
                return position, error.errno or errno.EIO
        return None

    # --- names -----------------------------------------------------------------------------------------------------

    def fsync_dir(self, path: str) -> None:
        directory = self._directory(path)
        call = Call("fsync_dir", path)
        self._before(call)
        if self.on_slow_sync is not None:
            self.on_slow_sync(path)
        left = []
        for change in self._names:
            if any(each is directory for each, _, _ in change.effects):
                self._apply(change)
            else:
                left.append(change)
        self._names = left
        self._after(call)

    def syncfs(self, handle: int) -> None:
        held = self._held(handle)
        call = Call("syncfs", held.path)
        try:
            self._before(call)
        except OSError:
            for file in self._files():
                file.fail_sync()
            raise
        if self.on_slow_sync is not None:
            self.on_slow_sync(held.path)
        for file in self._files():
            file.sync()
        for change in self._names:
            self._apply(change)
        self._names = []
        self._after(call)

    def rename(self, source: str, target: str) -> None:
        call = Call("rename", target)
        self._before(call)
        (old, old_name), (new, new_name) = self._parent(source), self._parent(target)
        node = self._lookup(source)
        held = new.entries.get(new_name)
        if held is not None and isinstance(held, SimDirectory) != isinstance(node, SimDirectory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        self._rename_all([(old, old_name, None), (new, new_name, node)])
        self._after(call)

    def unlink(self, path: str) -> None:
        call = Call("unlink", path)
        self._before(call)
        self._file(path)
        parent, name = self._parent(path)
        self._rename_all([(parent, name, None)])
        self._after(call)

    def mkdir(self, path: str) -> None:
        call = Call("mkdir", path)
        self._before(call)
        directory, made = self.root, False
        if self.exists(path) and not isinstance(self._lookup(path), SimDirectory):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        for name in _parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = SimDirectory()
                self._rename_all([(directory, name, node)])
                made = True
            if not isinstance(node, SimDirectory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            directory = node
        if made:
            self._after(call)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all below it, file by file; nothing when it does not exist. Not synced."""
        if not self.exists(path):
            return
        for name in self.listdir(path):
            below = f"{path}/{name}"
            if isinstance(self._lookup(below), SimDirectory):
                self.remove_tree(below)
            else:
                self.unlink(below)
        call = Call("rmdir", path)
        self._before(call)
        parent, name = self._parent(path)
        self._rename_all([(parent, name, None)])
        self._after(call)

    def listdir(self, path: str) -> list[str]:
        self._before(Call("listdir", path))
        return sorted(self._directory(path).entries)

    def exists(self, path: str) -> bool:
        try:
            self._lookup(path)
        except OSError:
            return False
        return True

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def free_bytes(self, path: str) -> int:
        return 1 << 50 if self.capacity is None else max(0, self.capacity - self._used())

    # --- the end of a process, and of power ------------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies: its handles are gone, the page cache stays."""
        self._handles.clear()

    def choice_points(self) -> list[ChoicePoint]:
        """Everything that a power loss now would decide, in a fixed order: names, then files by path."""
        points = [ChoicePoint(change, None, (0, change.sequence)) for change in self._names]
        for file in self._files():
            if len(file.sizes) > 1:
                points.append(ChoicePoint(file, None, tuple(sequence for sequence, _ in file.sizes)))
            for number, versions in file.sectors.items():
                points.append(ChoicePoint(file, number, tuple(sequence for sequence, _ in versions)))
        return points

    def outcome(self, points: Sequence[ChoicePoint], choices: Iterable[int]) -> SimDisk:
        """The disk after a power loss in which point i took its option ``choices[i]``; this one stays as it is."""
        kept: list[NameChange] = []
        lengths: dict[SimFile, int] = {}
        sectors: dict[SimFile, dict[int, int]] = {}
        for point, option in zip(points, choices, strict=True):
            if isinstance(point.owner, NameChange):
                if option:
                    kept.append(point.owner)
            elif point.sector is None:
                lengths[point.owner] = option
            else:
                sectors.setdefault(point.owner, {})[point.sector] = option
        changed: dict[SimDirectory, dict[str, SimFile | SimDirectory]] = {}
        for change in kept:
            for directory, name, node in change.effects:
                names = changed.setdefault(directory, dict(directory.durable))
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
        after = SimDisk(capacity=self.capacity, sector=self.sector)
        made: dict[SimFile | SimDirectory, SimFile | SimDirectory] = {self.root: after.root}

        def build(old: SimDirectory, new: SimDirectory) -> None:
            for name, node in changed.get(old, old.durable).items():
                if node not in made:
                    if isinstance(node, SimFile):
                        made[node] = node.outcome(lengths.get(node, 0), sectors.get(node, {}))
                    else:
                        made[node] = SimDirectory()
                        build(node, made[node])  # type: ignore[arg-type]
                new.entries[name] = made[node]
            new.durable = dict(new.entries)

        build(self.root, after.root)
        return after

    def crash(self, choice: random.Random | Sequence[int]) -> None:
        """Power is lost: this disk goes on as one of its outcomes, drawn or given as an option for each choice
        point."""
        points = self.choice_points()
        options = draw(points, choice) if isinstance(choice, random.Random) else choice
        after = self.outcome(points, options)
        self.root = after.root
        self._names = []
        self._handles.clear()

    def legal_outcomes(self, limit: int = 1024, source: random.Random | None = None) -> Iterator[SimDisk]:
        """Different disks that a power loss now may leave: all, when the choices allow at most ``limit`` combinations;
        else all lost, all kept, every moment in time (to half the limit), and drawn ones, ``limit`` combinations in
        all."""
        points = self.choice_points()
        seen: set[tuple[Any, ...]] = set()
        for choices in combinations(points, limit, source or random.Random(0)):
            after = self.outcome(points, choices)
            key = after.fingerprint()
            if key not in seen:
                seen.add(key)
                yield after

    def copy(self) -> SimDisk:
        """An equal disk with the same unsynced changes and no open handle."""
        other = SimDisk(capacity=self.capacity, sector=self.sector)
        other._sequence = self._sequence
        made: dict[SimFile | SimDirectory, SimFile | SimDirectory] = {self.root: other.root}

        def twin(node: SimFile | SimDirectory) -> SimFile | SimDirectory:
            if node not in made:
                made[node] = node.copy() if isinstance(node, SimFile) else SimDirectory()
                if isinstance(node, SimDirectory):
                    fill(node)
            return made[node]

        def fill(node: SimDirectory) -> None:
            target = made[node]
            assert isinstance(target, SimDirectory)
            target.entries = {name: twin(each) for name, each in node.entries.items()}
            target.durable = {name: twin(each) for name, each in node.durable.items()}

        fill(self.root)
        for change in self._names:
            effects = []
            for directory, name, node in change.effects:
                target = twin(directory)
                assert isinstance(target, SimDirectory)
                effects.append((target, name, None if node is None else twin(node)))
            other._names.append(NameChange(change.sequence, tuple(effects)))
        return other

    # --- what lies at rest -----------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """The contents as a process sees them."""
        return bytes(self._file(path).data)

    def paths(self) -> list[str]:
        """Every file, sorted."""
        return [path for path, _ in self._walk(self.root, "")]

    def fingerprint(self) -> tuple[Any, ...]:
        """Equal for disks with equal names and contents as seen."""
        return tuple((path, xxh3(file.data), len(file.data)) for path, file in self._walk(self.root, ""))

    def put(self, path: str, data: bytes) -> None:
        """Make a file with these contents, durable at once with its directories."""
        before = len(self._names)
        self.mkdir(path.rpartition("/")[0])
        parent, name = self._parent(path)
        file = SimFile(self.sector)
        file.write(0, data, self._tick())
        file.sync()
        self._rename_all([(parent, name, file)])
        for change in self._names[before:]:
            self._apply(change)
        del self._names[before:]

    def flip(self, path: str, bit: int) -> None:
        """One bit of what is durable has changed."""
        file = self._file(path)
        byte = bit // 8
        number, at = divmod(byte, self.sector)
        old = file.sectors[number][0][1][at] if number in file.sectors else file.data[byte]
        file.damage(byte, bytes([old ^ 1 << bit % 8]))

    def damage(self, path: str, position: int, data: bytes) -> None:
        """Bytes of what is durable have changed."""
        self._file(path).damage(position, data)

    def misdirect(self, source: str, block: int, target: str, other: int) -> None:
        """The last write of a 4 KiB block landed on another one: that one holds it now, and the source holds zeros."""
        data = self._file(source).data[block * BLOCK : (block + 1) * BLOCK]
        self.damage(target, other * BLOCK, bytes(data))
        self.damage(source, block * BLOCK, bytes(len(data)))

    # --- inside ----------------------------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._sequence += 1
        return self._sequence

    def _before(self, call: Call) -> int | None:
        return None if self.on_call is None else self.on_call(call)

    def _after(self, call: Call) -> None:
        if self.after_call is not None:
            self.after_call(call)

    def _handle(self, held: Handle) -> int:
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = held
        return number

    def _held(self, handle: int, *, writable: bool = False) -> Handle:
        held = self._handles.get(handle)
        if held is None or (writable and not held.writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return held

    def _rename_all(self, effects: list[tuple[SimDirectory, str, SimFile | SimDirectory | None]]) -> None:
        for directory, name, node in effects:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        self._names.append(NameChange(self._tick(), tuple(effects)))

    @staticmethod
    def _apply(change: NameChange) -> None:
        for directory, name, node in change.effects:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node

    def _lookup(self, path: str) -> SimFile | SimDirectory:
        node: SimFile | SimDirectory = self.root
        for name in _parts(path):
            if not isinstance(node, SimDirectory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if name not in node.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = node.entries[name]
        return node

    def _file(self, path: str) -> SimFile:
        node = self._lookup(path)
        if not isinstance(node, SimFile):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _directory(self, path: str) -> SimDirectory:
        node = self._lookup(path)
        if not isinstance(node, SimDirectory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _parent(self, path: str) -> tuple[SimDirectory, str]:
        head, _, name = path.rpartition("/")
        return self._directory(head), name

    def _walk(self, directory: SimDirectory, path: str) -> Iterator[tuple[str, SimFile]]:
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if isinstance(node, SimFile):
                yield f"{path}/{name}", node
            else:
                yield from self._walk(node, f"{path}/{name}")

    def _files(self) -> list[SimFile]:
        """Every file that has a name, is open, or may have a name again after a power loss."""
        return reachable_files(self.root, self._names, [held.file for held in self._handles.values()])

    def _used(self) -> int:
        return sum(max(len(file.data), file.allocated) for _, file in self._walk(self.root, ""))

    def _reserve(self, file: SimFile, end: int) -> None:
        """Raise ENOSPC when ``file`` cannot reach to ``end``."""
        held = max(len(file.data), file.allocated)
        if self.capacity is not None and end > held and end - held > self.capacity - self._used():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
