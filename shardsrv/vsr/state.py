"""`VsrState`: what a replica promised and must still know after a restart; the payload of a superblock record.

Layout, little-endian, no padding. Records of 58 and 66 bytes decode with later fields 0; any other length does not.

    Off Len Field
      0  16 cluster
     16   1 replica_id u8
     17   1 replica_count u8
     18   4 view u32
     22   4 log_view u32
     26   8 commit_max u64          a lower bound for recovery; a plain commit does not write the record
     34   8 checkpoint_op u64       \\ the snapshot that the dropped prefix of the log went into
     42  16 checkpoint_checksum u128 /
     58   8 offset_frontier u64     partitions: next offset that was ever promised; 0 on metadata
     66  16 incarnation u128
     82   8 reconciled_through u64  metadata: partition directories exist for all partitions created at or below this op

Invariants: log_view <= view; ops, commits and offsets below 2**62; a view-change write repeats the last checkpoint
pair.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

import attrs

from shardsrv.errors import DataDirectoryForeign, DecodeError, EncodeError, Found

SIZE: Final = 90
SIZES: Final = (58, 66, 90)
LIMIT: Final = 1 << 62

_LAYOUT: Final = struct.Struct("<16sBBIIQQ16sQ16sQ")
assert _LAYOUT.size == SIZE


@attrs.define(slots=False)
class StateForeign(DataDirectoryForeign):
    """A superblock that belongs to another cluster or replica: `field` names what differs."""

    summary: ClassVar[str] = "superblock is not ours"
    field: str = ""


@attrs.frozen
class VsrState:
    """The durable consensus numbers of one group. `incarnation` and `checkpoint_checksum` are ints (u128)."""

    cluster: bytes
    replica_id: int
    replica_count: int
    view: int = 0
    log_view: int = 0
    commit_max: int = 0
    checkpoint_op: int = 0
    checkpoint_checksum: int = 0
    offset_frontier: int = 0
    incarnation: int = 0
    reconciled_through: int = 0

    def encode(self) -> bytes:
        """The 90 bytes of the record. Raises `EncodeError` for a value that its field cannot carry."""
        problem = self._problem()
        if problem:
            raise EncodeError("", problem, attrs.asdict(self)[problem])
        return _LAYOUT.pack(
            self.cluster,
            self.replica_id,
            self.replica_count,
            self.view,
            self.log_view,
            self.commit_max,
            self.checkpoint_op,
            self.checkpoint_checksum.to_bytes(16, "little"),
            self.offset_frontier,
            self.incarnation.to_bytes(16, "little"),
            self.reconciled_through,
        )

    @classmethod
    def decode(cls, data: bytes) -> VsrState:
        """Read 58, 66 or 90 bytes. Raises `DecodeError` naming the field."""
        if len(data) not in SIZES:
            raise DecodeError("superblock state length", 0, "58, 66 or 90 bytes", len(data))
        fields = _LAYOUT.unpack(bytes(data).ljust(SIZE, b"\0"))
        (
            cluster,
            replica_id,
            replica_count,
            view,
            log_view,
            commit_max,
            checkpoint_op,
            checksum,
            frontier,
            incarnation,
            through,
        ) = fields
        state = cls(
            cluster,
            replica_id,
            replica_count,
            view,
            log_view,
            commit_max,
            checkpoint_op,
            int.from_bytes(checksum, "little"),
            frontier,
            int.from_bytes(incarnation, "little"),
            through,
        )
        problem = state._problem()
        if problem:
            raise DecodeError(f"superblock state {problem}", 0, None, attrs.asdict(state)[problem])
        return state

    def _problem(self) -> str:
        """The first field with a value outside its bounds, or an empty text."""
        if len(self.cluster) != 16:
            return "cluster"
        for name in ("replica_id", "replica_count"):
            if not 0 <= getattr(self, name) <= 255:
                return name
        if not 0 <= self.view < 1 << 32:
            return "view"
        if not 0 <= self.log_view <= self.view:
            return "log_view"
        for name in ("commit_max", "checkpoint_op", "offset_frontier", "reconciled_through"):
            if not 0 <= getattr(self, name) < LIMIT:
                return name
        for name in ("checkpoint_checksum", "incarnation"):
            if not 0 <= getattr(self, name) < 1 << 128:
                return name
        return ""

    def check_identity(self, cluster: bytes, replica_id: int, replica_count: int, path: str = "") -> None:
        """Raises `StateForeign` when the record belongs to another cluster, replica or cluster size (S0-18)."""
        expected: dict[str, Found] = {"cluster": cluster, "replica_id": replica_id, "replica_count": replica_count}
        for field, value in expected.items():
            found = getattr(self, field)
            if found != value:
                raise StateForeign(path, value, found, field)
