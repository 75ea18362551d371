"""The data directory: whose it is, who uses it, and what lies in it at the top.

Layout of DIR: ``lock`` (flock held by every process of the node), ``shardsrv.json`` (identity), ``ballast``,
``runtime/``, ``logs/``, ``metadata/``, ``shards/``, ``partitions/``. Identity, JSON: {"program": "shardsrv", "format":
1, "cluster": name, "node": number}.
Invariants: nothing is written into a directory before it is known to be empty or ours; the lock is free only when the
last process of the node is gone; a directory of another node, cluster, program or a later format is refused as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
from pathlib import Path
from types import FrameType

import attrs
import msgspec

from shardsrv.errors import (
    ConfigurationError,
    DataDirectoryForeign,
    DataDirectoryLocked,
    Unreadable,
    UnsupportedVersion,
)

FORMAT = 1
IDENTITY = "shardsrv.json"
LOCK = "lock"
_OURS = (LOCK, IDENTITY, IDENTITY + ".tmp", "ballast", "runtime", "logs", "metadata", "shards", "partitions")
_OURS_IN_METADATA = ("superblock.a", "superblock.b", "superblock.a.tmp", "superblock.b.tmp", "log")
NOT_COUNTED = ("lost+found",)
"""What a file system puts at the root of a volume by itself."""

DYING_SECONDS = 0.25
"""How long the process that holds the lock is watched before it counts as running."""

LOCK_WAIT_SECONDS = 5
"""How long the shards of a supervisor that was killed may take to follow it, with much memory to give back."""


class Identity(msgspec.Struct, frozen=True):
    """Who a data directory belongs to."""

    program: str
    format: int
    cluster: str
    node: int


@attrs.define(eq=False)
class ClaimedDirectory:
    """An open, locked data directory. Forked shards inherit the descriptor of the lock, which keeps it locked."""

    path: Path
    identity: Identity
    lock: int
    after_crash: bool
    """Whether the last process that held the lock did not let go of it by itself."""

    @classmethod
    def open(
        cls, path: Path, *, cluster: str, node: int, fresh: bool = False, runtime: str = "runtime"
    ) -> ClaimedDirectory:
        """Take `path` for this node, making it where it does not exist; `fresh` empties it first.

        Raises:
            ConfigurationError: it cannot be made or written.
            DataDirectoryForeign: it belongs to another node, cluster or program.
            DataDirectoryLocked: another process uses it.
            Unreadable: its identity cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        path = path.absolute()
        identity = Identity("shardsrv", FORMAT, cluster, node)
        try:
            path.mkdir(parents=True, exist_ok=True)
            check(path, identity)
            lock, after_crash = take_lock(path)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            found = check(path, identity)
            if fresh:
                _empty(path)
            if fresh or found is None:
                _write_identity(path, identity)
            _remove_below(path / runtime)
            for folder in (runtime, "metadata", "shards", "partitions"):
                (path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            os.close(lock)
            raise _unusable(path, error) from error
        except BaseException:
            os.close(lock)
            raise
        return cls(path, identity, lock, after_crash)

    def close(self) -> None:
        """Let go of the lock, as the last process of the node."""
        _name_holder(self.lock, None)
        os.close(self.lock)


def check(path: Path, identity: Identity) -> Identity | None:
    """The identity in `path`, None where there is none yet and nothing foreign either.

    Raises:
        DataDirectoryForeign, Unreadable, UnsupportedVersion: as `ClaimedDirectory.open`.
        OSError: the directory cannot be listed.
    """
    found = _read_identity(path)
    if found is None:
        foreign = [name for name in sorted(os.listdir(path)) if name not in (*_OURS, *NOT_COUNTED)]
        if "metadata" in os.listdir(path):
            inside = sorted(os.listdir(path / "metadata"))
            foreign += [
                f"metadata/{name}"
                for name in inside
                if name not in _OURS_IN_METADATA and not name.startswith("snapshot.bin")
            ]
        if foreign:
            raise DataDirectoryForeign(str(path), found=foreign[0])
        return None
    if found.program != identity.program:
        raise DataDirectoryForeign(str(path), expected=identity.program, found=found.program)
    if found.format != FORMAT:
        raise UnsupportedVersion("data directory", str(path / IDENTITY), found.format, FORMAT, FORMAT)
    if (found.cluster, found.node) != (identity.cluster, identity.node):
        raise DataDirectoryForeign(
            str(path),
            expected=f"node {identity.node} of cluster {identity.cluster}",
            found=f"node {found.node} of cluster {found.cluster}",
        )
    return found


def _read_identity(path: Path) -> Identity | None:
    file = path / IDENTITY
    try:
        return msgspec.json.decode(file.read_bytes(), type=Identity)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise Unreadable(str(file), reason=f"it is no identity of a data directory: {error}") from error
    except OSError as error:
        raise Unreadable(str(file), reason=error.strerror or "", errno=error.errno) from error


def _write_identity(path: Path, identity: Identity) -> None:
    temporary = path / f"{IDENTITY}.tmp"
    with open(temporary, "wb") as file:
        file.write(msgspec.json.encode(identity) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path / IDENTITY)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove_below(folder: Path) -> None:
    """Empty `folder`, keeping itself: on a full disk it could not be made again."""
    if folder.is_dir():
        for entry in folder.iterdir():
            _remove(entry)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _empty(path: Path) -> None:
    """Remove everything but the lock, the identity last: a wipe that is cut short leaves a directory that is still
    ours.
    """
    for name in sorted(os.listdir(path), key=lambda name: name == IDENTITY):
        if name not in (LOCK, *NOT_COUNTED):
            _remove(path / name)


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    reason = f"the data directory cannot be used: {error.strerror} ({error.filename}); give a writable one with --data"
    return ConfigurationError("system.path", str(path), reason)


# --- lock ------------------------------------------------------------------------------------------------------------


def take_lock(path: Path) -> tuple[int, bool]:
    """The descriptor of the locked ``lock`` file, which names this process from now on, and whether it named another.

    Where the process that it names is gone, its shards are about to follow, and the lock is waited for.

    Raises:
        DataDirectoryLocked: a living process holds it.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _holder(descriptor)
            if (pid is not None and _stays_alive(pid)) or not _lock_within(descriptor, LOCK_WAIT_SECONDS):
                raise DataDirectoryLocked(str(path), pid) from None
        after_crash = _holder(descriptor) is not None
        _name_holder(descriptor, os.getpid())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, after_crash


def _name_holder(descriptor: int, pid: int | None) -> None:
    """Write who holds the lock, in a fixed width: on a full disk the bytes that the file has can still be written over.

    Where even that fails the lock holds all the same, and only a refused node cannot name this one.
    """
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, b"%-19s\n" % str(pid or "").encode(), 0)


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _stays_alive(pid: int) -> bool:
    """Whether `pid` runs and goes on to: one that was killed a moment ago may still be on its way out."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return not select.select([descriptor], [], [], DYING_SECONDS)[0]
    finally:
        os.close(descriptor)


class _TooLong(Exception):
    pass


def _lock_within(descriptor: int, seconds: float) -> bool:
    """Wait for the lock in the kernel; the alarm is the deadline."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    except _TooLong:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        with contextlib.suppress(TypeError):
            signal.signal(signal.SIGALRM, before)
