"""What every part of a simulated member stands on: its state in memory, its life, and what it asked of the schedule.

Invariant: everything that was asked of the schedule carries the number of the life that asked, and is void in the next
one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from shardsrv.errors import ShardsrvError
from shardsrv.plane.metadata.state import PartitionIdentity
from shardsrv.shards.group import Admission
from shardsrv.sim.clock import MemberClock
from shardsrv.sim.groups import MetadataSimGroup, PartitionSimGroup, SimGroup
from shardsrv.sim.options import Options
from shardsrv.store.boot import BootFacts, BootRecord
from shardsrv.store.descriptors import DescriptorPool
from shardsrv.store.group_key import GroupKey
from shardsrv.store.groups import GroupTable
from shardsrv.store.index import IndexCache
from shardsrv.store.layout import DataDirectory
from shardsrv.store.superblock import Superblock
from shardsrv.vsr.effects import PersistState
from shardsrv.vsr.nonce import Nonces

if TYPE_CHECKING:
    from shardsrv.sim.world import World


class Crash(BaseException):
    """The member ends inside a call to its disk; ``power`` says whether it loses what was not synced."""

    def __init__(self, power: bool) -> None:
        super().__init__()
        self.power = power


class NodeBase:
    """State and life of a member."""

    superblock: Superblock
    table: GroupTable
    partition_boot: BootRecord

    def __init__(self, world: World, index: int, disk: Any) -> None:
        self.world = world
        self.index = index
        self.name = f"n{index}"
        self.options: Options = world.options
        self.cluster = world.cluster
        self.oracles = world.oracles
        self.disk = disk
        self.directory = DataDirectory("/data")
        self.clock = MemberClock(world.schedule)
        self.latency: Random = world.chance.stream(f"latency {index}")
        self._incarnations = 0
        self.life = 0
        self.up = False
        self.halted: BaseException | None = None
        self.boot_id = self._draw_boot_id()
        self.generation = 0
        self.nameless = False
        self.wiped = False
        """Whether the disk was replaced and the member has not come back yet: what the server keeps in a file."""
        self._clear()

    def _clear(self) -> None:
        """Forget what lives in memory."""
        self.groups: dict[int, PartitionSimGroup] = {}
        self.metadata: MetadataSimGroup | None = None
        self.doubtful: dict[PartitionIdentity, BaseException] = {}
        self.boot_facts: dict[GroupKey, BootFacts] = {}
        self.boot_records: dict[GroupKey, BootRecord] = {}
        self.pool = DescriptorPool(self.disk)
        self.indexes = IndexCache()
        self.checkpoint_op = 0
        self.reconciled_through = 0
        self.recorded_through = 0
        """What the disk says of `reconciled_through`, or will soon."""
        self._record_due = 0
        self._trusted_op: int | None = None
        self.written: list[SimGroup] = []
        self.admission = Admission()
        self._unsynced: dict[SimGroup, None] = {}
        self._urgent: dict[SimGroup, None] = {}
        self._waiting: dict[SimGroup, None] = {}
        self._turn_due = False
        self._round_due = 0
        self._round_running = False
        self._unsynced_bytes = 0
        self._states: dict[PartitionSimGroup, PersistState] = {}
        self._freed: list[GroupKey] = []
        self._table_busy = False
        self._snapshot_written: tuple[int, int] | None = None

    def _draw_boot_id(self) -> bytes:
        return self.latency.getrandbits(128).to_bytes(16, "little")

    def incarnation(self) -> int:
        """A new number for a superblock that is written for the first time."""
        self._incarnations += 1
        return (self.index + 1) << 64 | self._incarnations

    def nonces(self) -> Nonces:
        """The numbers of a group's life; no two lives share any."""
        return Nonces(self.incarnation())

    @property
    def busy(self) -> bool:
        """Whether anything is to be written, synced or recorded."""
        return bool(self.written or self._unsynced or self._states or self._freed) or self._round_running

    @property
    def syncing(self) -> bool:
        """Whether a round of syncs is out."""
        return self._round_running

    # --- life ------------------------------------------------------------------------------------------------------

    def _stop(self, why: str) -> None:
        self.world.trace.line(self.name, why, self.life)
        if self.up:
            self.oracles.stopped(self)
        self.up = False
        self.life += 1
        self.world.network.reset(self.index)
        self._clear()

    def halt(self, error: BaseException) -> None:
        """The member stops by itself, with a reason."""
        self._stop(f"halt {type(error).__name__}")
        self.halted = error
        self.disk.kill()
        self.world.halted(self, error)

    def later(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:
        """Do something in this life, unless it has ended by then."""
        self.world.schedule.after(delay, self._run, self.life, action, arguments)

    def _run(self, life: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life == self.life:
            self._guard(action, *arguments)

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run something; a crash that was planted into the disk, or a fault that ends the process, ends here."""
        try:
            action(*arguments)
        except Crash as crash:
            self.world.crashed(self, crash)
        except (ShardsrvError, OSError) as error:
            self.halt(error)
