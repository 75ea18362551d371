"""Opening a log: walk it, decide by the table, and only then touch it.

Invariants: a refusal leaves every byte as it was (S1-02): no file is made, cut, renamed or synced before the verdict; a
cut is synced before the log is used; on the same kernel boot, and after a failed sync, the unsynced tail is written
again, because a sync that failed in the dead process may have left pages that the kernel believes clean.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from shardsrv._core import Prepare
from shardsrv.store.disk import Disk, disk_fault, read_exact, write_all
from shardsrv.store.faults import LogDamaged
from shardsrv.store.log_files import CHUNK, cut_suffix, segment_path
from shardsrv.store.log_walk import Damage, LogWalker, ResumePoint, Walk
from shardsrv.store.recovery import LOG_DAMAGE, Action, Region, Row, Shape
from shardsrv.store.segment import SEGMENT_HEADER, GroupIdentity


@attrs.frozen
class LogFacts:
    """What the boot record knows of a log before it is opened.

    synced_op: the synced frontier; same_boot: the kernel is the one that the frontier was written under; clean: the
    last stop was clean; members: replicas of the group; synced_checksum: identity of the entry at the frontier, 0 when
    not known; fenced: a write or sync of it failed under the kernel of the boot record, so that its page cache may show
    what the disk does not hold (`same_boot` and `clean` are then false).
    """

    synced_op: int = 0
    same_boot: bool = False
    clean: bool = False
    members: int = 1
    synced_checksum: int = 0
    fenced: bool = False


@attrs.frozen
class LogRecovery:
    """What opening found and did. `row` is the label of the decision; `cut_bytes` and `cut_op` tell what was cut
    away."""

    row: str
    action: Action
    shape: Shape
    replayed: int
    scanned_bytes: int
    rewritten_bytes: int = 0
    cut_op: int | None = None
    cut_path: str = ""
    cut_bytes: int = 0
    detail: str = ""


def recover(
    disk: Disk,
    directory: str,
    identity: GroupIdentity,
    resume: ResumePoint | None,
    facts: LogFacts,
    validate: bool,
    on_prepare: Callable[[Prepare], object] | None,
    with_peers: bool = False,
) -> tuple[Walk, LogRecovery]:
    """Walk, decide, act. ``with_peers``: what other members decide or repair is cut as well; the owner must then
    abstain until it holds what they hold.

    Raises:
        LogDamaged: refused, or an outcome that needs other members (`action` says which); nothing was changed.
        LogForeign, UnsupportedVersion, Unreadable: see `LogWalker.run`.
        DiskFault: a cut or a rewrite failed.
    """
    synced_op = max(facts.synced_op, resume.op if resume is not None else 0)
    check_body = validate or not facts.clean
    known = facts.synced_checksum if facts.synced_op == synced_op else 0
    walk = LogWalker(disk, directory, identity, resume, synced_op, known, check_body, on_prepare).run()
    damage = walk.damage
    if damage is None and walk.head_op < synced_op:
        last = walk.firsts[-1] if walk.firsts else walk.head_op + 1
        detail = f"the log ends at op {walk.head_op} and was synced up to op {synced_op}"
        damage = Damage(walk.head_op + 1, last, walk.sizes.get(last, 0), Shape.NONE, detail)
    row = decide(damage, synced_op, facts)
    floor = resume.op if resume is not None else 0
    peers = with_peers and damage is not None and damage.op > floor and row.decision in (Action.ABSTAIN, Action.REPAIR)
    if row.decision not in (Action.ACCEPT, Action.CUT) and not peers:
        assert damage is not None
        raise LogDamaged(
            segment_path(directory, damage.first_op),
            damage.position,
            damage.op,
            None,
            None,
            damage.shape.value,
            row.decision.value,
            row.label,
            damage.detail,
            synced_op,
            facts.same_boot,
            facts.clean,
            facts.members,
        )
    base = LogRecovery(row.label, row.decision, Shape.NONE, walk.replayed, walk.scanned_bytes)
    if damage is not None:
        base = _cut(disk, directory, walk, damage, base)
    if (facts.same_boot or facts.fenced) and not facts.clean and walk.unsynced_at is not None:
        base = attrs.evolve(base, rewritten_bytes=_rewrite(disk, walk, walk.unsynced_at))
    return walk, base


def decide(damage: Damage | None, synced_op: int, facts: LogFacts) -> Row[Action]:
    """The row of the table for what the walk found."""
    shape = damage.shape if damage is not None else Shape.NONE
    region = Region.SYNCED if damage is not None and damage.op <= synced_op else Region.UNSYNCED
    return LOG_DAMAGE.decide(region, facts.same_boot, facts.clean, shape, facts.members == 1)


def _cut(disk: Disk, directory: str, walk: Walk, damage: Damage, base: LogRecovery) -> LogRecovery:
    """Cut the log at the damage: everything from ``damage.op`` on goes."""
    path = segment_path(directory, damage.first_op)
    keep = damage.position > SEGMENT_HEADER
    remove = [op for op in walk.firsts if op > damage.first_op or (op == damage.first_op and not keep)]
    try:
        total = sum(disk.size(segment_path(directory, op)) for op in walk.firsts if op >= damage.first_op)
    except OSError as error:
        raise disk_fault(error, path, "read") from error
    if walk.firsts:
        cut_suffix(disk, directory, remove, (damage.first_op, damage.position) if keep else None)
    walk.segments = [segment for segment in walk.segments if segment.first_op not in remove]
    return attrs.evolve(
        base,
        shape=damage.shape,
        cut_op=damage.op,
        cut_path=path,
        cut_bytes=total - (damage.position if keep else 0),
        detail=damage.detail,
    )


def _rewrite(disk: Disk, walk: Walk, start: tuple[int, int]) -> int:
    """Write the bytes from ``start`` (segment, position) to the end once more, as they are, so that the next sync
    covers them."""
    done = 0
    for segment in walk.segments:
        if segment.first_op < start[0]:
            continue
        position = start[1] if segment.first_op == start[0] else 0
        action = "open"
        try:
            handle = disk.open_write(segment.path)
            try:
                while position < segment.size:
                    action = "read"
                    chunk = memoryview(bytearray(min(CHUNK, segment.size - position)))
                    count = read_exact(disk, handle, chunk, position)
                    action = "rewrite"
                    write_all(disk, handle, [chunk[:count]], position, count)
                    position += count
                    done += count
            finally:
                disk.close(handle)
        except OSError as error:
            raise disk_fault(error, segment.path, action) from error
    return done
