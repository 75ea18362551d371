"""One run: members, network, clients and faults, first with everything that the seed makes go wrong, then in peace.

The safety phase runs for the drawn duration. Then faults stop, what is down starts, links heal, and the cluster must
converge within ``CONVERGE``: every request answered, every member at the same commit of every group. Not converging is
a violation. Everything that differs between two runs comes from the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import process_time
from typing import Any, Final

import attrs

from shardsrv.errors import GroupFenced, ShardsrvError, SyncFailed
from shardsrv.sim.boot import SHARD
from shardsrv.sim.chance import Chance, exponential
from shardsrv.sim.client import Client
from shardsrv.sim.clock import SECOND, Schedule
from shardsrv.sim.disk import BLOCK, SimDisk
from shardsrv.sim.disk_faults import lose
from shardsrv.sim.faults import Faults
from shardsrv.sim.final import check_final, damaged_logs, unsettled
from shardsrv.sim.frames import Frames
from shardsrv.sim.lies import Lies
from shardsrv.sim.network import Network
from shardsrv.sim.node import Crash, Node
from shardsrv.sim.options import Options
from shardsrv.sim.oracles import Oracles
from shardsrv.sim.trace import Trace
from shardsrv.sim.trap import DiskTrap
from shardsrv.sim.violation import Violation
from shardsrv.store.faults import LogFenced, WriteFailed
from shardsrv.store.group_key import METADATA, GroupKey
from shardsrv.store.layout import CHECKPOINT_SLOTS, SNAPSHOT
from shardsrv.store.set_aside import set_aside
from shardsrv.vsr.quorum import replication_quorum
from shardsrv.vsr.status import NORMAL

CONVERGE: Final = 120 * SECOND
SPOILED: Final = ("rot", "misdirected write")
FAILED_CALLS: Final = ("write error", "sync error")
CALL_FAULTS: Final = (SyncFailed, WriteFailed, LogFenced, GroupFenced)
_DEFECTS: Final = (
    ShardsrvError,
    AssertionError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
CLUSTER: Final = b"simulated members"[:16]


@attrs.define
class Result:
    """What came of a run."""

    options: Options
    violation: Violation | None
    trace_digest: str
    last_lines: list[str]
    events: int
    simulated: int
    wall: float
    requests: int
    committed: int
    counts: dict[str, int]
    answered: dict[str, int]
    reached: dict[str, int]
    frames: dict[int, int]
    view_changes: int
    halt: BaseException | None = None


class World:
    """See the module. ``run`` once."""

    def __init__(self, options: Options, echo: bool = False) -> None:
        self.options = options
        self.cluster = CLUSTER
        self.chance = Chance(options.seed)
        self.schedule = Schedule()
        self.trace = Trace(self.schedule, echo)
        self.counts: dict[str, int] = {}
        self.points: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.frame_counts: dict[int, int] = {}
        self.oracles = Oracles(options.dedup_ops, options.replicas)
        self.frames = Frames(self)
        self.network = Network(
            self.schedule, self.chance.stream("network"), options.network, options.replicas, self._deliver, self.count
        )
        self.minority = options.replicas - replication_quorum(options.replicas)
        self.nodes: list[Node] = []
        self.traps: list[DiskTrap] = []
        self._crashes = self.chance.stream("crashes")
        self._client_random = self.chance.stream("client links")
        self._doubt: dict[int, int] = {}
        self._synced: dict[int, dict[GroupKey, int]] = {}
        self._blamed: dict[int, str] = {}
        self.spoiled_kinds: set[str] = set()
        self._restarting: set[int] = set()
        for index in range(options.replicas):
            disk = SimDisk()
            node = Node(self, index, disk)
            trap = DiskTrap(self, node, self.chance.stream(f"disk {index}"))
            disk.on_call = trap
            self.nodes.append(node)
            self.traps.append(trap)
        skew = self.chance.stream("clocks")
        for node in self.nodes:
            if options.clock_skew:
                node.clock.offset = skew.randint(-options.clock_skew, options.clock_skew)
            node.clock.drift = skew.randint(-options.clock_drift, options.clock_drift)
        load = options.load
        self.clients = [Client(self, index, index < load.clients * load.older) for index in range(load.clients)]
        self.faults = Faults(self)
        self.lies = Lies(self)
        self.peace = False
        self.view_changes = 0

    # --- a run -----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Both phases. A violation is in the result, not raised."""
        started = process_time()
        violation = None
        try:
            self._run()
        except Violation as found:
            violation = found
        except _DEFECTS as error:
            # A defect of the code under test, or of the simulator: red in either case.
            violation = Violation("crash", f"{type(error).__name__}: {error}")
            violation.__cause__ = error
        if violation is not None:
            self.trace.line("w", "violation", violation)
        return Result(
            options=self.options,
            violation=violation,
            trace_digest=self.trace.digest,
            last_lines=list(self.trace.last),
            events=self.schedule.events,
            simulated=self.schedule.now,
            wall=process_time() - started,
            requests=sum(self.answered.values()),
            committed=self.oracles.committed_ops,
            counts=self.counts,
            answered=self.answered,
            reached=self.points,
            frames=self.frame_counts,
            view_changes=self.view_changes,
        )

    def _run(self) -> None:
        for node in self.nodes:
            self.schedule.after(1 + node.latency.randrange(1000), node.start)
        for client in self.clients:
            client.begin()
        self.faults.begin()
        self.schedule.run_until(self.options.duration)
        self._make_peace()
        deadline = self.schedule.now + CONVERGE
        if self.spoiled_alone:
            self.schedule.run_until(self.schedule.now + 5 * SECOND)
            return
        self._settle(deadline)
        while quietly_damaged := damaged_logs(self):
            for node, key in quietly_damaged:
                self.met_damage(node, key)
            self.schedule.run_until(self.schedule.now + SECOND // 10)
            self._settle(deadline)
        check_final(self)

    def _settle(self, deadline: int) -> None:
        if not self.schedule.run_until(deadline, lambda: not unsettled(self)):
            raise Violation("convergence", f"{unsettled(self)}; {self._standing()}")

    def _make_peace(self) -> None:
        self.trace.line("w", "peace")
        self.peace = True
        self.faults.end()
        self.lies.end()
        self.network.quiet = True
        self.network.heal()
        for client in self.clients:
            client.stopped = True
        for node in self.nodes:
            if node.up and self.spoiled(node):
                # What rotted under a running member is met, and healed, when it reads its log again.
                self.bring_down(node, False, 1000)
            elif not node.up and node.index not in self._restarting:
                self._start_later(node, 1000)

    def _standing(self) -> str:
        return "; ".join(
            f"{node.name} {'up' if node.up else f'down ({node.halted!r})'} "
            + " ".join(
                f"{group.key[0]}/{group.key[1]}/{group.key[2]}-{group.key[3]}:{group.replica.status}"
                f" v{group.replica.view} {group.replica.commit_min}/{group.replica.head_op}"
                for group in ([node.metadata] if node.metadata else []) + list(node.groups.values())
            )
            for node in self.nodes
        )

    # --- members go down and come back -----------------------------------------------------------------------------

    def bring_down(self, node: Node, power: bool, pause: int) -> None:
        """End a member's life; it starts again after ``pause``."""
        if power:
            self._lost_power(node)
            node.power_loss(self._crashes)
        else:
            node.kill()
        self.traps[node.index].disarm()
        self._start_later(node, pause)

    def crashed(self, node: Node, crash: Crash) -> None:
        """A member ended inside a call to its disk."""
        self.bring_down(node, crash.power, exponential(self._crashes, self.options.faults.down_time))

    def halted(self, node: Node, error: BaseException) -> None:
        """A member stopped by itself: right only when something was done to its disk."""
        self.traps[node.index].disarm()
        self.count("halts")
        self.reached(f"halt {type(error).__name__}")
        if not self._excused(node, error):
            raise Violation("halt", f"{node.name} stops without cause: {type(error).__name__}: {error}") from error
        self._start_later(node, self.options.faults.down_time)

    def doubted(self, node: Node, identity: Any, error: ShardsrvError) -> None:
        """A member does not serve a partition."""
        self.count("partitions in doubt")
        self.reached(f"doubt {type(error).__name__}")
        if self.options.replicas > 1:
            # Half deleted: its deletion is committed and will be applied again, or the end of the run says that it is
            # missing.
            return
        if not self._excused(node, error):
            raise Violation("halt", f"{node.name} doubts {identity}: {type(error).__name__}: {error}") from error

    def set_aside(self, node: Node, error: BaseException) -> None:
        """A member takes what it holds of a group for damaged: right only when something was done to its disk."""
        if not self._excused(node, error):
            raise Violation("halt", f"{node.name} sets aside without cause: {type(error).__name__}: {error}") from error

    def _excused(self, node: Node, error: BaseException) -> bool:
        """Whether what was done to a member's disk is the cause: after changed bytes it may refuse whatever it finds,
        after a call that failed only that call and the log that it belongs to."""
        fault = self._blamed.get(node.index)
        return fault is not None and (fault not in FAILED_CALLS or isinstance(error, CALL_FAULTS))

    def restart_soon(self, node: Node) -> None:
        """The supervisor restarts a member that cannot go on."""
        node.later(SECOND // 10, self._restart, node)

    def _restart(self, node: Node) -> None:
        if node.up:
            self.count("supervised restarts")
            self.bring_down(node, False, 1000)

    def _start_later(self, node: Node, pause: int) -> None:
        self._restarting.add(node.index)
        self.schedule.after(pause, self._start, node)

    def _start(self, node: Node) -> None:
        self._restarting.discard(node.index)
        if not node.up:
            node.start()
            if not self.peace:
                self.frames.answer_again(node)

    def _lost_power(self, node: Node) -> None:
        """Whether this power loss is one more than `replicated` entries are promised to survive."""
        for index in [index for index, life in self._doubt.items() if self._trusted(index, life)]:
            del self._doubt[index]
        self._doubt[node.index] = node.life
        if node.up:
            groups = [*([node.metadata] if node.metadata else []), *node.groups.values()]
            self._synced[node.index] = {group.key: group.log.synced_op for group in groups}
        self._count_doubt()

    def _count_doubt(self) -> None:
        """Members whose copies may be gone: by a loss of power, or because their bytes were changed."""
        spoiled = [node.index for node in self.nodes if self.spoiled(node)]
        if len(dict.fromkeys([*self._doubt, *spoiled])) > self.minority:
            self.count("power losses beyond replicated")
            for key in list(self.oracles.history.groups):
                self.oracles.lossy(key, self._quorum_synced(key))

    def _quorum_synced(self, key: GroupKey) -> int:
        """The op up to which a quorum had synced its log of a group."""
        marks = []
        for node in self.nodes:
            group = node.group_of(key) if node.up else None
            known = self._synced.get(node.index, {}).get(key, 0)
            marks.append(known if group is None or node.index in self._doubt else group.log.synced_op)
        return sorted(marks)[self.minority]

    def _trusted(self, index: int, life: int) -> bool:
        """Whether a member that lost power takes part again in all its groups."""
        node = self.nodes[index]
        if not node.up or node.life == life or node.metadata is None:
            return False
        groups = [node.metadata, *node.groups.values()]
        return all(
            group.replica.status == NORMAL and (group.replica.member is None or not group.replica.member.suspect)
            for group in groups
        )

    def blame(self, node: Node, fault: str) -> None:
        """Something was done to a member's disk: it may stop or doubt from now on."""
        if self._blamed.get(node.index, "") not in SPOILED:
            self._blamed[node.index] = fault
        self.trace.line(node.name, fault)

    def spoilable(self, random: Random) -> Node | None:
        """A member whose bytes may change: in a cluster one of fewer than a quorum, since the others hold the data."""
        candidates = [node for node in self.nodes if self.may_spoil(node)]
        return random.choice(candidates) if candidates else None

    def may_spoil(self, node: Node) -> bool:
        """Whether bytes of this member may change: no other's have, and all others have their disks."""
        if self.options.replicas == 1:
            return True
        others = [fault for index, fault in self._blamed.items() if index != node.index and fault in SPOILED]
        return bool(self.minority) and not others and "wiped" not in self._blamed.values()

    def damage(self, random: Random, misdirected: bool) -> bool:
        """Flip a bit, or let a write land elsewhere; in a cluster only in what is no promise. A single member may
        refuse what it finds."""
        alone = self.options.replicas == 1
        node = self.spoilable(random)
        if node is None:
            return False
        paths = [path for path in files_of(node.disk, "/data") if alone or _data(path)]
        if not paths:
            return False
        # Of each kind of file alike: there are many segments and few promises.
        kind = random.choice(sorted({kind_of(path) for path in paths}))
        path = random.choice([path for path in paths if kind_of(path) == kind])
        # Of a file that was made longer than it is yet, the part in use.
        size = min(len(node.disk.read(path).rstrip(b"\0")), 16 * 1024)
        if (size < BLOCK and misdirected) or not size:
            return False
        if not misdirected:
            self.spoil(node, path, random.randrange(size * 8))
            return True
        self._spoils(node, "misdirected write", path)
        other = random.choice(paths)
        blocks = max(1, node.disk.size(other) // BLOCK)
        node.disk.misdirect(path, random.randrange(size // BLOCK), other, random.randrange(blocks))
        return True

    def spoil(self, node: Node, path: str, bit: int) -> None:
        """Flip a bit of a member's file."""
        self._spoils(node, "rot", path)
        node.disk.flip(path, bit)

    def _spoils(self, node: Node, fault: str, path: str) -> None:
        self.blame(node, fault)
        if self._doubt:
            self._count_doubt()
        self.spoiled_kinds.add(kind_of(path))
        self.reached(f"damage of {kind_of(path)}")

    def spoiled(self, node: Node) -> bool:
        """Whether bytes at rest of a member were changed."""
        return self._blamed.get(node.index, "") in SPOILED

    @property
    def spoiled_alone(self) -> bool:
        """Whether the only member has damaged data: it may refuse to go on, nobody can heal it."""
        return self.options.replicas == 1 and self.spoiled(self.nodes[0])

    def wipe(self, node: Node, pause: int, random: Random) -> bool:
        """A member loses its disk and comes back as somebody new; or, once it has recorded that its partitions are
        there, all of it but the metadata: then it must know that it had more. All others are up, and sure of what
        they acknowledged."""
        others = [other for other in self.nodes if other is not node]
        if self.options.replicas < 3 or not node.up or any(not self._sure(other) for other in others):
            return False
        if any(fault != "wiped" for fault in self._blamed.values()) or self._doubt_of(others):
            return False
        assert node.metadata is not None
        durable = node.metadata.replica.durable_state
        known = 0 if durable is None else durable.reconciled_through
        whole = random.random() < 0.7 or any(group.key.created_revision > known for group in node.groups.values())
        self.blame(node, "wiped")
        self.oracles.marks.wiped(node, whole)
        if whole:
            self.oracles.disks.wiped(node)
        self._lost_power(node)
        self._synced[node.index] = {}
        self.bring_down(node, False, pause)
        if whole:
            node.disk = SimDisk()
            node.disk.on_call = self.traps[node.index]
            node.wiped = True
        else:
            self.reached("partitions wiped")
            directory = node.directory
            lose(node.disk, directory.partitions, directory.group_table(SHARD), directory.boot_record(SHARD))
        return True

    def _doubt_of(self, nodes: list[Node]) -> bool:
        """Whether any of ``nodes`` lost power and does not yet take part again."""
        return any(
            node.index in self._doubt and not self._trusted(node.index, self._doubt[node.index]) for node in nodes
        )

    def _sure(self, node: Node) -> bool:
        """Whether a member is up, with everything that it acknowledged."""
        groups = [*([node.metadata] if node.metadata else []), *node.groups.values()]
        return bool(groups) and not any(group.replica.suspect or group.replica.member.lost for group in groups)

    # --- what members and clients call -------------------------------------------------------------------------------

    def _deliver(self, source: int, target: int, frame: bytes) -> None:
        self.nodes[target].receive(source, frame)

    def client_delay(self) -> int:
        """Between a client and its member."""
        return exponential(self._client_random, 300)

    def client_answer_lost(self) -> bool:
        """Whether the connection breaks before the answer is there."""
        return not self.peace and self._client_random.random() < 0.01

    def acknowledged(self, kind: str) -> None:
        """A client was told that its request is done."""
        self.answered[kind] = self.answered.get(kind, 0) + 1

    def met_damage(self, node: Node, key: GroupKey) -> None:
        """A read was refused for damage: where there are peers the partition is healed from them."""
        if node.index not in self._blamed:
            raise Violation("polls", f"{node.name} met damage that nobody made")
        if key == METADATA:
            # Nothing of a member goes on without its metadata: it starts again, and finds that the log is gone.
            self.bring_down(node, False, 1000)
            set_aside(node.disk, node.directory.metadata_log)
        elif self.options.replicas > 1:
            node.later(1, node.heal, key)

    def count(self, what: str) -> None:
        """Count something for the summary."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def reached(self, point: str) -> None:
        """A point that coverage counts was reached."""
        self.points[point] = self.points.get(point, 0) + 1


def _data(path: str) -> bool:
    """Whether a file is data that peers hold too, and no promise of the member."""
    name = path.rpartition("/")[2]
    return "damaged" not in path and (name.endswith(".seg") or name in (SNAPSHOT, *CHECKPOINT_SLOTS))


def kind_of(path: str) -> str:
    """What a file is: superblock, checkpoint, snapshot, seg, idx, groups or boot; the log of the metadata is a kind of
    its own, since one of it stands beside many of partitions."""
    stem, _, suffix = path.rpartition("/")[2].partition(".")
    kind = suffix if stem.isdigit() else stem
    return f"metadata {kind}" if kind == "seg" and "/metadata/" in path else kind


def files_of(disk: SimDisk, path: str) -> list[str]:
    """Every file below a directory, in order."""
    found = []
    for name in disk.listdir(path) if disk.exists(path) else []:
        below = f"{path}/{name}"
        try:
            found += files_of(disk, below)
        except NotADirectoryError:
            found.append(below)
    return found


def keys_of(world: World) -> list[GroupKey]:
    """All groups of a run."""
    return sorted(world.oracles.history.groups)


Deliver = Callable[[int, int, bytes], None]
