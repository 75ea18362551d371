"""The metadata plane: what a replica of the metadata group calls, and what every shard applies and asks.

Invariants: entries are applied in op order, each once; the same entries give the same state, replies and changes on
every shard and node, whatever their configuration; restoring replaces the state in one step after everything was
checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from shardsrv._core import xxh3
from shardsrv.errors import OurFault, RequestRefused
from shardsrv.plane.metadata import admission, apply, groups, queries, snapshot
from shardsrv.plane.metadata.admission import Context, PasswordResult, PasswordTask, TokenSecret
from shardsrv.plane.metadata.changes import Change
from shardsrv.plane.metadata.options_catalog import TopicDefaults, TopicSettings
from shardsrv.plane.metadata.queries import Reader
from shardsrv.plane.metadata.records import Counters
from shardsrv.plane.metadata.snapshot import Snapshot
from shardsrv.plane.metadata.state import ROOT_ID, MetadataState, PartitionIdentity
from shardsrv.vsr.events import Request
from shardsrv.vsr.plane import Plane
from shardsrv.wire.constants import ZERO_ID
from shardsrv.wire.cursor import Buffer
from shardsrv.wire.primitives import Identifier


@attrs.frozen(slots=True)
class OwnedPartition:
    """A partition that exists, with all that its owner needs. `purge_generation` is the op of the last purge it must
    have carried out (0: none)."""

    identity: PartitionIdentity
    slot: int
    created_view: int
    purge_generation: int
    settings: TopicSettings


class MetadataPlane(Plane):
    """One copy of the metadata. `op` and `timestamp` (microseconds) are those of the last entry applied."""

    __slots__ = ("_changes", "defaults", "gone", "op", "state", "timestamp")

    def __init__(self, state: MetadataState, defaults: TopicDefaults) -> None:
        """`state` as of op 0; `defaults` fill in options that clients do not send, and are used by `resolve` only."""
        self.state = state
        self.defaults = defaults
        self.op = 0
        self.timestamp = 0
        self._changes: list[Change] = []
        self.gone: dict[int, bytes] = {}
        """Clients that the client table gave up, by the op of the entry that did it: the driver of the copy that has
        the table tells the other copies (`end_client`) at the same place of the log, and takes them out."""

    # --- before an entry exists ------------------------------------------------------------------------------------

    def refusal(self, operation: int, body: Buffer, user_id: int = ROOT_ID) -> RequestRefused | None:
        """The refusal (a status) of a client's command that is not to enter the log, or None. Rights are not looked at:
        they are decided when the entry is applied."""
        try:
            self.check(operation, body, user_id)
        except RequestRefused as refusal:
            return refusal
        return None

    def check(self, operation: int, body: Buffer, user_id: int = ROOT_ID) -> None:
        """Raises what `refusal` returns."""
        admission.check(Context(self.state, self.defaults, user_id=user_id), operation, body)

    def password_task(self, operation: int, body: Buffer) -> PasswordTask | None:
        """The hashing that must be done before `resolve`, or None. Raises RequestRefused."""
        return admission.password_task(self.state, operation, body)

    def resolve(
        self,
        operation: int,
        body: Buffer,
        view: int = 0,
        secrets: PasswordResult | TokenSecret | None = None,
        user_id: int = ROOT_ID,
    ) -> tuple[int, bytes]:
        """The operation and body of the entry that a client's command becomes (132 -> 64, 136 -> 65). Raises
        RequestRefused where `refusal` returns one. `view` is the metadata view, written into what is created; `secrets`
        are the hashes of a command with passwords, or the digest of the token that a command is to create."""
        return admission.resolve(Context(self.state, self.defaults, view, secrets, user_id), operation, body)

    def prepare(self, request: Request, op: int, timestamp: int) -> tuple[bytes, int]:
        """Body and body checksum of the entry that `request`, whose body is resolved, becomes."""
        body = bytes(request.body)
        return body, xxh3(body)

    # --- entries ---------------------------------------------------------------------------------------------------

    def apply(self, prepare: Any) -> bytes:
        """The reply body of the next committed entry (`shardsrv._core.Prepare`). Ops rise; one that concerns the client
        table alone may be left out. Raises OurFault for an entry that is not above the last one."""
        if prepare.op <= self.op:
            raise OurFault(f"entry {prepare.op} applied behind entry {self.op}")
        reply = apply.apply(self.state, prepare, self._changes)
        self.op = prepare.op
        self.timestamp = prepare.timestamp
        return reply

    def client_gone(self, client: bytes) -> None:
        """The client table gave a client up (`vsr.plane`): its memberships end. Follows from the entry just applied, so
        every copy must be told at the same place of the log."""
        self.gone[self.op] = client
        self.end_client(client)

    def end_client(self, client: bytes) -> None:
        """End every membership of a client id."""
        groups.end_session(self.state, self._changes, client)

    def take_changes(self) -> list[Change]:
        """What the entries applied since the last call mean for the owners of partitions, in order."""
        changes, self._changes = self._changes, []
        return changes

    # --- questions -------------------------------------------------------------------------------------------------

    def query(self, code: int, body: Buffer, user_id: int, counters: Counters, client: bytes = ZERO_ID) -> bytes:
        """The reply body of a client's read. Raises RequestRefused with the status; see `queries.QUERIES`. `client`
        is the client id of the session (it is what a consumer group knows).
        """
        return queries.answer(Reader(self.state, self.defaults, user_id, counters, client), code, body)

    def find_partition(self, stream: Identifier, topic: Identifier, partition: int) -> PartitionIdentity:
        """The identity behind what a client names. Raises RequestRefused (1009, 2010, 3007)."""
        return queries.find_partition(self.state, stream, topic, partition)

    def owned(self) -> Iterator[OwnedPartition]:
        """Every partition that exists, in ascending order of ids."""
        for topic, partition, identity in self.state.all_partitions():
            generation = topic.purge_generation_of(partition)
            yield OwnedPartition(identity, partition.slot, partition.created_view, generation, topic.settings)

    # --- snapshots -------------------------------------------------------------------------------------------------

    def encode_snapshot(self, checksum: int, created_at: int, client_table: list[Any]) -> bytes:
        """The payload of a snapshot at `op`, whose entry has the identity `checksum`."""
        return snapshot.encode(
            self.state,
            op=self.op,
            checksum=checksum,
            timestamp=self.timestamp,
            created_at=created_at,
            client_table=client_table,
        )

    def restore(self, restored: Snapshot) -> None:
        """Takes over the state of a snapshot that `snapshot.decode` has checked. Changes not yet drained are dropped:
        they belong to the state that is replaced, and the driver goes by `owned` now."""
        self.state = restored.state
        self.op = restored.op
        self.timestamp = restored.timestamp
        self._changes = []
