"""Entries and logs for the tests of durable state: chained prepares, and a directory's bytes as one value."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardsrv._core import Prepare
from shardsrv.store.disk import OsDisk
from shardsrv.store.log import GroupIdentity, LogRecovery, PrepareLog
from tests.support.batches import encode_batch
from tests.support.entries import CLUSTER, FIELDS, SEND_MESSAGES, STORE_OFFSET, log_of, stamped

GROUP = int(str(FIELDS["group"]))
IDENTITY = GroupIdentity(CLUSTER, GROUP, int(str(FIELDS["created_revision"])))
PURGE = 192
BIG = 1 << 20


class Chain:
    """Makes the entries of one log, in order. `bodies` are made on demand; offsets run on as a primary stamps them."""

    def __init__(self, parent: int = 0, next_op: int = 1, offset: int = 0) -> None:
        self.parent = parent
        self.next_op = next_op
        self.offset = offset
        self.generation = 0

    def other(self, size: int = 8, fill: int = 1) -> Prepare:
        """An entry that is no batch, with a body of ``size`` bytes."""
        return self._make(STORE_OFFSET, bytes([fill % 256]) * size)

    def send(self, count: int = 1, size: int = 16) -> Prepare:
        """A batch of ``count`` messages of ``size`` bytes; its time is that of the entry."""
        ids = [number.to_bytes(16, "little") for number in range(count)]
        batch = encode_batch([bytes([self.next_op % 256]) * size] * count, ids=ids)
        body = stamped(batch, 0, self.offset, 1_000_000 + self.next_op)
        self.offset += count
        return self._make(SEND_MESSAGES, body)

    def purge(self, again: bool = False) -> Prepare:
        """A purge: offsets begin at 0 behind it; ``again``: of the same generation as the last, without effect."""
        if not again:
            self.generation += 1
            self.offset = 0
        return self._make(PURGE, self.generation.to_bytes(8, "little"))

    def _make(self, operation: int, body: bytes) -> Prepare:
        prepare = Prepare.load(log_of([(operation, body)], self.parent, self.next_op), 0)
        self.parent = prepare.checksum
        self.next_op += 1
        return prepare


def open_log(directory: Path, **arguments: Any) -> tuple[PrepareLog, LogRecovery]:
    """Open the log of `IDENTITY`."""
    arguments.setdefault("segment_size", BIG)
    return PrepareLog.open(OsDisk(), str(directory), IDENTITY, **arguments)


def write_log(directory: Path, prepares: Iterable[Prepare], sync: bool = True, **arguments: Any) -> None:
    """A new log with ``prepares``, one flush each, left as a process that ends leaves it: without an active index."""
    log, _ = open_log(directory, **arguments)
    for prepare in prepares:
        log.append(prepare)
        log.flush()
    if sync:
        sync_log(log)
    abandon(log)


def sync_log(log: PrepareLog) -> None:
    """One whole sync."""
    plan = log.sync_plan()
    plan.run()
    log.mark_synced(plan)


def abandon(log: PrepareLog) -> None:
    """Close the descriptors and nothing else, as the end of a process does."""
    log.close(index=False)


def fingerprint(directory: Path) -> dict[str, str]:
    """Name -> hash of every file below ``directory``."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def segment_files(directory: Path) -> list[Path]:
    """Segment files in op order."""
    return sorted(directory.glob("*.seg"))


def entry_edges(data: bytes) -> list[int]:
    """Positions of the entries of a segment file, and its end."""
    edges = [256]
    while edges[-1] < len(data):
        edges.append(edges[-1] + int.from_bytes(data[edges[-1] + 48 : edges[-1] + 52], "little"))
    return edges


@contextmanager
def fast_directory() -> Iterator[Path]:
    """A directory in memory where there is one: for tests that open a log thousands of times."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(dir=base, prefix="shardsrv-test-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
