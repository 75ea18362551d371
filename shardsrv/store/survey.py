"""A survey of a data directory: everything that lies in it, read and judged, nothing changed. Works while the server is
stopped; of a running one it may see files half way, and says that the lock is held.

Invariants: a finding has one of three weights (clean, torn: what a kill or a power loss may leave, damaged); no file is
made, renamed or synced; what cannot be read is reported and does not end the survey.
"""

from __future__ import annotations

import enum
import fcntl
import os
from typing import Any, Final

import attrs
import msgpack

from shardsrv.errors import ShardsrvError
from shardsrv.store.boot import BootFacts, BootFile, decode_boot_file, kernel_boot_id, merge_boot_files
from shardsrv.store.checkpoint import Checkpoint
from shardsrv.store.disk import OsDisk, read_all
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.groups import MAX_TABLE, GroupRecord, decode_table, merge_tables
from shardsrv.store.layout import DataDirectory, boot_record_shard, groups_table_shard, partition_keys
from shardsrv.store.log_files import list_segments, segment_path
from shardsrv.store.log_opening import LogFacts, decide
from shardsrv.store.log_walk import LogWalker, ResumePoint, Walk
from shardsrv.store.record import Empty, Outcome, Present, Unreadable
from shardsrv.store.recovery import Action, Shape, check_pairing
from shardsrv.store.segment import GroupIdentity, decode_header
from shardsrv.store.snapshot import read_snapshot
from shardsrv.store.superblock import Superblock, state_of
from shardsrv.vsr.state import VsrState

MAX_BOOT: Final = 1 << 27


class Weight(enum.IntEnum):
    """How bad it is; also the exit code of `verify`."""

    CLEAN = 0
    TORN = 1
    DAMAGED = 2


@attrs.frozen
class Finding:
    """Something that is not as a clean stop leaves it."""

    weight: Weight
    path: str
    text: str


@attrs.define
class Survey:
    """What was found: `facts` by section, for people and programs, and `findings`."""

    root: str
    lock_held: bool = False
    facts: dict[str, Any] = attrs.Factory(dict)
    findings: list[Finding] = attrs.Factory(list)

    @property
    def weight(self) -> Weight:
        return max((finding.weight for finding in self.findings), default=Weight.CLEAN)


def is_data_directory(root: str) -> bool:
    """True when any of the places of a data directory is there."""
    layout = DataDirectory(root)
    return any(
        os.path.lexists(path) for path in (layout.description, layout.metadata, layout.shards, layout.partitions)
    )


class Surveyor:
    """Goes through one directory. ``deep``: walk every entry of every log; else headers and sizes only."""

    def __init__(self, root: str, deep: bool) -> None:
        self._layout = DataDirectory(root.rstrip("/") or "/")
        self._deep = deep
        self._disk = OsDisk()
        self._boot: dict[GroupKey, BootFacts] = {}
        self._survey = Survey(self._layout.root)

    def run(self) -> Survey:
        """Look at everything."""
        survey = self._survey
        survey.lock_held = self._lock_held()
        if os.path.exists(self._layout.description):
            with open(self._layout.description, encoding="utf-8", errors="replace") as file:
                survey.facts["description"] = file.read(4096).strip()
        survey.facts["boot"] = self._boot_records()
        survey.facts["metadata"] = self._metadata()
        survey.facts["groups"], records = self._group_tables()
        survey.facts["partitions"] = self._partitions(records)
        return survey

    def _find(self, weight: Weight, path: str, text: str) -> None:
        self._survey.findings.append(Finding(weight, path, text))

    def _lock_held(self) -> bool:
        try:
            handle = os.open(self._layout.lock, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def _names(self, directory: str) -> list[str]:
        try:
            return self._disk.listdir(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._find(Weight.DAMAGED, directory, f"cannot be listed: {error.strerror}")
            return []

    # --- shards ----------------------------------------------------------------------------------------------------

    def _boot_records(self) -> dict[str, Any]:
        files: dict[int, BootFile] = {}
        for name in self._names(self._layout.shards):
            shard = boot_record_shard(name)
            if shard is None:
                continue
            path = self._layout.boot_record(shard)
            try:
                file = files[shard] = decode_boot_file(read_all(self._disk, path, MAX_BOOT))
            except ShardsrvError as error:
                self._find(Weight.DAMAGED, path, str(error))
                continue
            if file.reason:
                self._find(Weight.TORN, path, f"the head is unreadable, all logs count as unsynced: {file.reason}")
            if file.bad_entries:
                self._find(Weight.TORN, path, f"{file.bad_entries} entries do not hold and count as missing")
        self._boot, _ = merge_boot_files(files.values())
        return {str(shard): self._boot_facts(file) for shard, file in sorted(files.items())}

    @staticmethod
    def _boot_facts(file: BootFile) -> dict[str, Any]:
        head = file.head
        return {
            "boot_id": head.boot_id.hex() if head else None,
            "clean": head.clean if head else False,
            "generation": head.generation if head else 0,
            "entries": len(file.entries),
            "fenced": [list(entry.key) for entry in file.entries if entry.fenced],
        }

    def _group_tables(self) -> tuple[dict[str, Any], dict[GroupKey, GroupRecord]]:
        tables: dict[int, list[GroupRecord]] = {}
        for name in self._names(self._layout.shards):
            shard = groups_table_shard(name)
            if shard is None:
                continue
            path = self._layout.group_table(shard)
            try:
                tables[shard] = decode_table(read_all(self._disk, path, MAX_TABLE), path)
            except ShardsrvError as error:
                self._find(Weight.DAMAGED, path, str(error))
                continue
            for record in tables[shard]:
                if isinstance(record.outcome, Unreadable):
                    whose = list(record.key) if record.key else "unknown"
                    self._find(Weight.DAMAGED, path, f"pair {record.pair} of group {whose}: {record.outcome.reason}")
        return {str(shard): {"records": len(records)} for shard, records in sorted(tables.items())}, merge_tables(
            tables
        )

    # --- metadata --------------------------------------------------------------------------------------------------

    def _metadata(self) -> dict[str, Any]:
        superblock = Superblock(self._disk, self._layout.metadata)
        outcome = superblock.read()
        facts: dict[str, Any] = {"superblock": outcome_facts(outcome)}
        state: VsrState | None = None
        try:
            state = state_of(outcome, (superblock.path(0), superblock.path(1)))
        except ShardsrvError as error:
            self._find(Weight.DAMAGED, self._layout.metadata, str(error))
        if state is not None:
            facts["superblock"]["state"] = state_facts(state)
        resume = None
        try:
            snapshot = read_snapshot(self._disk, self._layout.snapshot)
            pair = None
            if snapshot is not None:
                facts["snapshot"], resume = snapshot_facts(snapshot.payload)
                facts["snapshot"]["checksum"] = f"{snapshot.checksum:016x}"
                pair = (resume.op, snapshot.checksum)
            if state is not None:
                check_pairing((state.checkpoint_op, state.checkpoint_checksum), pair, self._layout.snapshot)
        except (ShardsrvError, ValueError) as error:
            self._find(Weight.DAMAGED, self._layout.snapshot, str(error))
        facts["log"] = self._log(self._layout.metadata_log, METADATA, resume, True)
        return facts

    # --- partitions ------------------------------------------------------------------------------------------------

    def _partitions(self, records: dict[GroupKey, GroupRecord]) -> list[dict[str, Any]]:
        found = []
        for key in partition_keys(self._layout.partitions, self._names):
            path = self._layout.partition(*key)
            facts: dict[str, Any] = {"key": list(key), "path": path}
            record = records.get(key)
            if record is not None:
                facts["superblock"] = outcome_facts(record.outcome)
                facts["superblock"] |= self._partition_state(record, path)
            checkpoint = Checkpoint(self._disk, path).read()
            facts["checkpoint"] = outcome_facts(checkpoint)
            resume, complete = None, True
            if isinstance(checkpoint, Present):
                try:
                    facts["checkpoint"]["fields"], resume = checkpoint_facts(checkpoint.payload)
                except ValueError as error:
                    self._find(Weight.DAMAGED, path, f"checkpoint payload: {error}")
            elif isinstance(checkpoint, Unreadable):
                complete = False
                self._find(Weight.DAMAGED, path, f"checkpoint slot {'ab'[checkpoint.slot]}: {checkpoint.reason}")
            facts["log"] = self._log(path, key, resume, complete)
            if record is None and facts["log"].get("segments"):
                self._find(Weight.DAMAGED, path, "a log without a record in any group table")
            found.append(facts)
        return found

    def _partition_state(self, record: GroupRecord, path: str) -> dict[str, Any]:
        if not isinstance(record.outcome, Present):
            return {}
        try:
            return {"state": state_facts(VsrState.decode(record.state))}
        except ShardsrvError as error:
            self._find(Weight.DAMAGED, path, str(error))
            return {}

    # --- logs ------------------------------------------------------------------------------------------------------

    def _log(self, directory: str, key: GroupKey, resume: ResumePoint | None, complete: bool) -> dict[str, Any]:
        try:
            firsts = list_segments(self._disk, directory)
            facts: dict[str, Any] = {"segments": [], "bytes": 0}
            for first_op in firsts:
                size = self._disk.size(segment_path(directory, first_op))
                facts["segments"].append({"first_op": first_op, "bytes": size})
                facts["bytes"] += size
        except (ShardsrvError, OSError) as error:
            self._find(Weight.DAMAGED, directory, str(error))
            return {}
        if not firsts:
            return facts
        identity = self._identity(directory, firsts, key)
        if identity is None:
            return facts
        try:
            walk = self._walk(directory, identity, firsts, resume, complete)
        except ShardsrvError as error:
            self._find(Weight.DAMAGED, directory, str(error))
            return facts
        facts |= {"first_op": firsts[0], "last_op": walk.head_op, "next_offset": walk.next_offset}
        facts["first_offset"] = walk.segments[0].header.base_offset if walk.segments else None
        entry = self._boot.get(key)
        if entry is not None:
            facts["synced_op"] = entry.entry.synced_op
        self._judge(directory, walk, entry, resume)
        return facts

    def _identity(self, directory: str, firsts: list[int], key: GroupKey) -> GroupIdentity | None:
        """Whose log it is, from the first segment header that can be read; the rest is checked against it."""
        for first_op in firsts:
            path = segment_path(directory, first_op)
            try:
                with open(path, "rb") as file:
                    found = decode_header(file.read(256), path)[0]
            except (OSError, ShardsrvError):
                # The walk finds the same header bad, with its place.
                continue
            if (found.group, found.created_revision) != (key.group, key.created_revision):
                owner = f"group {found.group} revision {found.created_revision}"
                self._find(Weight.DAMAGED, path, f"belongs to {owner}, lies in the directory of {tuple(key)}")
                return None
            return found
        self._find(Weight.DAMAGED, directory, "no segment has a header that can be read")
        return None

    def _walk(
        self, directory: str, identity: GroupIdentity, firsts: list[int], resume: ResumePoint | None, complete: bool
    ) -> Walk:
        """Deep: from the first segment, trusting its parent. Else from the resume point, as a start does."""
        known = (resume.op, resume.checksum) if resume is not None else (0, 0)
        if self._deep or (resume is None and not complete):
            resume = self._before(directory, firsts[0], resume)
        return LogWalker(self._disk, directory, identity, resume, *known, True, None).run()

    def _before(self, directory: str, first_op: int, resume: ResumePoint | None) -> ResumePoint | None:
        """A resume point in front of the first segment, so that the whole log is walked."""
        if first_op == 1:
            return None
        path = segment_path(directory, first_op)
        with open(path, "rb") as file:
            try:
                header = decode_header(file.read(256), path)[1]
            except ShardsrvError:
                return resume
        return ResumePoint(first_op - 1, header.parent, header.base_offset)

    def _judge(self, directory: str, walk: Walk, boot: BootFacts | None, resume: ResumePoint | None) -> None:
        """Weigh what the walk ended at as a start on this machine would."""
        facts = boot.log_facts(kernel_boot_id(), 1) if boot is not None else LogFacts()
        synced = max(facts.synced_op, resume.op if resume is not None else 0)
        damage = walk.damage
        if damage is None:
            if walk.head_op < synced:
                text = f"the log ends at op {walk.head_op} and was synced up to op {synced}"
                self._find(Weight.DAMAGED, directory, text)
            elif resume is not None and walk.firsts[0] > resume.op + 1:
                text = f"the log begins at op {walk.firsts[0]}, behind the checkpoint of op {resume.op}"
                self._find(Weight.DAMAGED, directory, text)
            return
        row = decide(damage, synced, facts)
        # Of a log without any boot facts nothing was promised: only a tail without whole entries behind it is taken for
        # torn.
        unknown = boot is None and damage.shape is Shape.BAD_INSIDE
        torn = row.decision is Action.CUT and not unknown
        path = segment_path(directory, damage.first_op)
        text = f"byte {damage.position}: {damage.detail} ({damage.shape.value}; a start would: {row.decision.value})"
        self._find(Weight.TORN if torn else Weight.DAMAGED, path, text)


# --- facts as plain values -------------------------------------------------------------------------------------------


def outcome_facts(outcome: Outcome) -> dict[str, Any]:
    """A pair of slots as plain values."""
    if isinstance(outcome, Present):
        return {
            "outcome": "present",
            "sequence": outcome.sequence,
            "slot": "ab"[outcome.slot],
            "bytes": len(outcome.payload),
        }
    if isinstance(outcome, Unreadable):
        return {
            "outcome": "unreadable",
            "slot": "ab"[outcome.slot],
            "reason": outcome.reason,
            "version": outcome.version,
        }
    assert isinstance(outcome, Empty)
    return {"outcome": "empty"}


def state_facts(state: VsrState) -> dict[str, Any]:
    """A `VsrState` as plain values."""
    facts = attrs.asdict(state)
    facts["cluster"] = state.cluster.hex()
    for name in ("checkpoint_checksum", "incarnation"):
        facts[name] = f"{facts[name]:032x}"
    return facts


def _array(payload: bytes, what: str, least: int) -> list[Any]:
    """A positional MessagePack array with integers in front. Raises `ValueError`."""
    try:
        value = msgpack.unpackb(payload, strict_map_key=False, use_list=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"{what} is no MessagePack: {error}") from error
    if not isinstance(value, list) or len(value) < least or not all(isinstance(item, int) for item in value[:least]):
        raise ValueError(f"{what} does not begin with {least} integers")
    return value


def _shape(value: object) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, list | bytes | str | dict) else repr(value)


def snapshot_facts(payload: bytes) -> tuple[dict[str, Any], ResumePoint]:
    """What a snapshot says at the level of MessagePack, and where the log goes on from it. Raises `ValueError`."""
    value = _array(payload, "snapshot", 5)
    facts = dict(zip(("format_version", "created_at", "op", "op_checksum", "timestamp"), value[:5], strict=True))
    facts["op_checksum"] = f"{value[3]:016x}"
    facts |= {"bytes": len(payload), "sections": [_shape(section) for section in value[5:]]}
    return facts, ResumePoint(value[2], value[3], 0)


def checkpoint_facts(payload: bytes) -> tuple[dict[str, Any], ResumePoint]:
    """What a partition checkpoint says at the level of MessagePack, and where the log goes on from it. Raises
    `ValueError`."""
    names = ("format_version", "op", "op_checksum", "timestamp", "next_offset", "first_offset", "messages", "bytes")
    value = _array(payload, "checkpoint", len(names))
    facts = dict(zip(names, value, strict=False))
    facts["op_checksum"] = f"{value[2]:016x}"
    facts["sections"] = [_shape(section) for section in value[len(names) :]]
    return facts, ResumePoint(value[1], value[2], value[4])


__all__ = ["Finding", "Survey", "Surveyor", "Weight", "is_data_directory"]
