"""What is installed: the plan as a table, coherence, the one writer, and the client table above its frontier."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from shardsrv._core import Prepare, xxh3
from shardsrv.vsr import client_table_wire
from shardsrv.vsr import transfer_faults as faults
from shardsrv.vsr import transfer_notes as notes
from shardsrv.vsr.client_gate import ClientGate
from shardsrv.vsr.client_table import ClientTable
from shardsrv.vsr.plane import Plane
from shardsrv.vsr.policy import METADATA, PARTITION
from shardsrv.vsr.transfer_install import (
    CHECKPOINT,
    INSTALL,
    NOBODY,
    Checked,
    SnapshotWriter,
    Target,
    check_content,
    examine,
    plan_install,
)
from shardsrv.vsr.transfer_limits import TransferLimits
from shardsrv.wire.constants import METADATA_GROUP, Operation
from shardsrv.wire.manifest import Artifact
from tests.support.transfers import client_id, table_of

SNAPSHOT, TABLE = Artifact(0, 40, 10, 1), Artifact(1, 50, 10, 1)


def checked(op: int, table_frontier: int, purge: int = 0) -> Checked:
    return Checked(op, 1, 1, b"", ClientTable(4), ClientTable(4), table_frontier, purge)


@pytest.mark.parametrize(
    ("applied", "holds", "frontier", "plan"),
    [
        (0, False, 50, (True, True, 40)),
        (39, False, 40, (True, True, 40)),
        (39, False, 39, (True, False, 40)),
        (39, True, 39, (False, True, 39)),
        (39, True, 38, (False, False, 39)),
        (40, False, 50, (False, True, 40)),
        (60, False, 60, (False, True, 60)),
        (60, False, 59, (False, False, 60)),
    ],
)
def test_plans(applied: int, holds: bool, frontier: int, plan: tuple[bool, bool, int]) -> None:
    made = plan_install(applied, holds, checked(40, frontier))
    assert (made.restores, made.takes_table, made.applied_frontier) == plan


def test_no_plan_goes_back() -> None:
    for applied, holds, op, frontier in product(range(5), (True, False), range(1, 5), range(5)):
        plan = plan_install(applied, holds, checked(op, frontier))
        assert plan.applied_frontier >= applied
        assert not plan.takes_table or frontier >= plan.applied_frontier
        assert plan.restores == (op > applied and not holds)


@pytest.mark.parametrize(
    ("artifacts", "commit_op", "commit_max", "error"),
    [
        ([SNAPSHOT, TABLE], 49, 60, faults.IncoherentManifest),
        ([Artifact(0, 51, 1, 1), TABLE], 50, 60, faults.IncoherentManifest),
        ([SNAPSHOT, TABLE], 50, 49, faults.IncoherentManifest),
        ([SNAPSHOT], 50, 50, faults.MissingArtifact),
        ([TABLE], 50, 50, faults.MissingArtifact),
        ([SNAPSHOT, TABLE, TABLE], 50, 50, faults.MissingArtifact),
        ([SNAPSHOT, TABLE, Artifact(200, 1, 1, 1)], 50, 50, faults.UnknownArtifact),
        ([SNAPSHOT, Artifact(1, 50, 2**30 + 1, 1)], 50, 50, faults.ArtifactTooLarge),
    ],
)
def test_descriptors_that_are_refused(artifacts: list[Artifact], commit_op: int, commit_max: int, error: type) -> None:
    with pytest.raises(error):
        examine(METADATA, artifacts, commit_op, commit_max, TransferLimits())


def test_the_total_is_bounded_too() -> None:
    limits = TransferLimits(artifact_max=10, manifest_max=19)
    with pytest.raises(faults.ArtifactTooLarge) as refusal:
        examine(METADATA, [SNAPSHOT, TABLE], 50, 50, limits)
    assert (refusal.value.length, refusal.value.maximum, refusal.value.index) == (20, 19, None)


def test_an_incoherent_manifest_names_all_three_numbers() -> None:
    with pytest.raises(faults.IncoherentManifest) as refusal:
        examine(METADATA, [SNAPSHOT, TABLE], 45, 50, TransferLimits())
    text = str(refusal.value)
    assert all(number in text for number in ("40", "45", "50"))
    assert refusal.value.__cause__ is None


def test_partitions_have_their_own_kinds() -> None:
    checkpoint, first, second = Artifact(4, 40, 1, 1), Artifact(2, 1, 1, 1), Artifact(2, 20, 1, 1)
    limits = TransferLimits()
    assert examine(PARTITION, [checkpoint, first, second], 40, 44, limits).generation == 40
    for bad in ([checkpoint, second, first], [checkpoint, first, first], [first], [checkpoint, TABLE]):
        with pytest.raises(faults.TransferRefused):
            examine(PARTITION, bad, 40, 44, limits)


@pytest.mark.parametrize(
    ("content", "purge", "error"),
    [
        (checked(41, 50), 0, faults.ContentMismatch),
        (checked(40, 51), 0, faults.IncoherentManifest),
        (checked(40, 50, purge=3), 4, faults.PurgedMeanwhile),
    ],
)
def test_content_that_is_not_what_was_promised(content: Checked, purge: int, error: type) -> None:
    target = Target((SNAPSHOT, TABLE), 40, 50, 50)
    check_content(target, checked(40, 50, purge=3), 3)
    with pytest.raises(error):
        check_content(target, content, purge)


def test_one_writer() -> None:
    writer = SnapshotWriter()
    assert writer.take(CHECKPOINT) and not writer.take(INSTALL) and not writer.take(CHECKPOINT)
    writer.leave(INSTALL)
    assert writer.holder == CHECKPOINT
    writer.leave(CHECKPOINT)
    assert writer.holder == NOBODY and writer.take(INSTALL)


def test_no_name_of_a_note_is_the_beginning_of_another() -> None:
    for one, other in product(notes.ALL_NOTES, notes.ALL_NOTES):
        assert one is other or one not in other


# --- the table above its frontier -------------------------------------------------------------------------------------


class Recorder(Plane):
    """A plane that writes down what it is told."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.gone: list[bytes] = []

    def apply(self, prepare: Any) -> bytes:
        self.applied.append(prepare.op)
        return bytes(4)

    def client_gone(self, client: bytes) -> None:
        self.gone.append(client)


def register(op: int, client: int) -> Prepare:
    body = b""
    return Prepare.build(
        cluster=bytes(16),
        view=0,
        replica=0,
        client=client_id(client),
        parent=0,
        request_checksum=0,
        request_checksum_high=0,
        op=op,
        commit=op - 1,
        timestamp=op,
        request=0,
        operation=int(Operation.REGISTER),
        group=METADATA_GROUP,
        user_id=1,
        created_revision=0,
        durability=1,
        body=body,
        checksum_body=xxh3(body),
    )


def grown(upto: int, capacity: int = 3) -> tuple[ClientGate, Recorder]:
    """A gate that has seen registers of clients 1.. at ops 1.. up to ``upto``."""
    gate, plane = ClientGate(ClientTable(capacity)), Recorder()
    for op in range(1, upto + 1):
        gate.commit(register(op, op), plane)
    return gate, plane


def test_what_is_replayed_below_the_frontier_has_no_effect_on_the_table() -> None:
    """Planted: a register that is replayed raises its client's epoch again and fences the owner."""
    source, _ = grown(6)
    gate, plane = grown(3)
    assert plane.applied == [1, 2, 3]
    gate.install(source.table, 6, 3)
    assert gate.table is source.table and gate.frontier == 6
    before = source.table.state()
    for op in (4, 5):
        gate.commit(register(op, op), plane)
        assert gate.table.state() == before, "nothing of it is new to the table"
    assert gate.applied_table.state() != before, "a snapshot taken now holds the table as of now"
    gate.commit(register(6, 6), plane)
    assert gate.table.state() == before and gate.contradictions == 0
    assert plane.applied == [1, 2, 3, 4, 5, 6], "the state machine runs every op"
    gate.commit(register(7, 7), plane)
    assert gate.table.get(client_id(7)) is not None


def test_evictions_below_the_frontier_reach_the_plane() -> None:
    source, expected = grown(6)
    gate, plane = grown(3)
    gate.install(source.table, 6, 3)
    for op in (4, 5, 6):
        gate.commit(register(op, op), plane)
    assert plane.gone == expected.gone == [client_id(1), client_id(2), client_id(3)]


def test_a_table_of_the_applied_op_is_the_own_one_and_the_own_slots_stay() -> None:
    """S2-15: what was transferred is packed into slots 0..count; the table that the log gave has those of every other
    member, so their snapshots stay equal."""
    source, _ = grown(3)
    gate, plane = grown(3)
    for each in (source, gate):
        each.table.remove(client_id(2))
    before = gate.table.snapshot()
    packed = client_table_wire.decode(client_table_wire.encode(client_table_wire.view_of(source.table, 3)), 3)
    assert packed.snapshot() != before and packed.state() == gate.table.state()
    gate.install(packed, 3, 3)
    assert gate.table.snapshot() == before and (gate.frontier, gate.contradictions) == (3, 0)
    gate.commit(register(4, 4), plane)
    assert gate.table.get(client_id(4)) is not None


def test_a_table_of_the_applied_op_that_contradicts_the_own_one_is_counted() -> None:
    gate, _plane = grown(3)
    before = gate.table.snapshot()
    gate.install(table_of({1: 1}), 3, 3)
    assert gate.contradictions == 1 and gate.table.snapshot() == before


def test_a_table_of_an_earlier_time_is_not_taken() -> None:
    gate, _plane = grown(3)
    gate.install(table_of({1: 1}), 6, 3)
    before = gate.table
    gate.install(table_of({2: 2}), 5, 3)
    assert gate.table is before
    with pytest.raises(AssertionError):
        gate.install(table_of({2: 2}), 2, 3)  # `plan_install` never asks for it
    assert gate.table is before


def test_a_table_that_contradicts_the_log_is_counted_and_corrected() -> None:
    source, _ = grown(4)
    source.table.remove(client_id(2))
    gate, plane = grown(3)
    gate.install(source.table, 4, 3)
    gate.commit(register(4, 4), plane)
    assert gate.contradictions == 1 and gate.table.get(client_id(2)) is not None


def test_a_restore_begins_from_the_snapshots_own_table() -> None:
    gate, _plane = grown(3)
    gate.install(table_of({1: 1}), 9, 3)
    gate.restore(table_of({5: 5}))
    assert gate.table is gate.applied_table and gate.table.get(client_id(5)) is not None
