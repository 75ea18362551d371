"""State transfer of the metadata group: its snapshot file and client table, and how they are installed.

Order of an install: snapshot file durable, pair in the superblock (the replica's), then the log is begun anew behind
it. A crash before the file leaves everything as it was; one behind it recovers from the snapshot, with a pair that may
lag and a log that may still end below it (`store.log_reload`).
"""

from __future__ import annotations

from collections.abc import Callable

from shardsrv.errors import DecodeError, DiskFault, UnsupportedVersion
from shardsrv.plane.metadata import snapshot as snapshot_format
from shardsrv.shards.transfer_driver import OwnFault, Pair, Source, TransferDriver
from shardsrv.store.disk import Disk
from shardsrv.store.layout import SNAPSHOT
from shardsrv.store.log import PrepareLog
from shardsrv.store.log_reload import reload_log, remove_segments
from shardsrv.store.log_walk import ResumePoint
from shardsrv.store.snapshot import read_snapshot, write_snapshot
from shardsrv.vsr import client_table_wire
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.transfer_effects import Note
from shardsrv.vsr.transfer_faults import ArtifactDamaged, NoSnapshot, SnapshotUnreadable
from shardsrv.vsr.transfer_install import Checked
from shardsrv.vsr.transfer_offer import Offer
from shardsrv.wire.manifest import Artifact, ArtifactKind
from shardsrv.wire.sealed_body import artifact_checksum

_SNAPSHOT = int(ArtifactKind.METADATA_SNAPSHOT)
_TABLE = int(ArtifactKind.CLIENT_TABLE)


class MetadataTransferDriver(TransferDriver):
    """``directory`` holds snapshot.bin; ``log`` is the group's own."""

    def __init__(
        self, disk: Disk, directory: str, log: PrepareLog, cluster: bytes, note: Callable[[Note], None] | None = None
    ) -> None:
        super().__init__(disk, directory, note)
        self._log = log
        self._cluster = cluster

    def load(self, commit_op: int, captured: client_table_wire.TableView) -> Callable[[], Offer]:
        """See `TransferDriver.load`."""
        disk, directory, cluster = self.disk, self.directory, self._cluster

        def work() -> Offer:
            payload, op = read_payload(disk, f"{directory}/{SNAPSHOT}")
            table = client_table_wire.encode(captured, cluster)
            pairs: tuple[Pair, ...] = (
                (Artifact(_SNAPSHOT, op, len(payload), artifact_checksum(payload)), Source(disk, payload)),
                (Artifact(_TABLE, captured.frontier, len(table), artifact_checksum(table)), Source(disk, table)),
            )
            return Offer(op, commit_op, pairs)

        return work

    def check(self, artifacts: tuple[Artifact, ...], clients_max: int) -> Checked:
        """See `TransferDriver.check`."""
        payloads: dict[int, bytes] = {}
        frontier = 0
        for index, artifact in enumerate(artifacts):
            try:
                data = self.staging.read(index)
            except DiskFault as fault:
                raise OwnFault(fault) from fault
            found = artifact_checksum(data)
            if found != artifact.checksum:
                raise ArtifactDamaged(index, artifact.kind, artifact.checksum, found)
            payloads[artifact.kind] = data
            frontier = artifact.frontier if artifact.kind == _TABLE else frontier
        payload = payloads[_SNAPSHOT]
        state = snapshot_format.decode(payload)
        base = ClientTable.restore(state.client_table, clients_max)
        table = client_table_wire.decode(payloads[_TABLE], clients_max)
        return Checked(state.op, state.checksum, state.timestamp, state, base, table, frontier, 0, payload)

    def install(self, content: Checked) -> int:
        """See `TransferDriver.install`."""
        return write_snapshot(self.disk, self.directory, SNAPSHOT, content.source)

    def rebase(self, content: Checked) -> int:
        """See `TransferDriver.rebase`."""
        log = self._log
        reload_log(log, ResumePoint(content.op, content.checksum), lambda: remove_segments(self.disk, log.directory))
        return log.first_op


def read_payload(disk: Disk, path: str) -> tuple[bytes, int]:
    """(payload, op) of the snapshot on disk; what it holds is decoded, since a damaged one must not be sent on.

    Raises:
        NoSnapshot: there is none, or only that of a group that never wrote an entry.
        SnapshotUnreadable: it does not verify, or does not decode.
    """
    try:
        found = read_snapshot(disk, path)
        if found is None:
            raise NoSnapshot
        state = snapshot_format.decode(found.payload)
    except (DiskFault, DecodeError, UnsupportedVersion) as fault:
        raise SnapshotUnreadable(cause=fault) from fault
    if state.op == 0:
        raise NoSnapshot
    return found.payload, state.op
