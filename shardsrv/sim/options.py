"""What the seed decides before a run begins: size, load, speed of disks and network, and how often what goes wrong.

Invariants: every run draws its own probabilities (a swarm), so that runs differ in kind and not only in luck; a concern
that a run does not have is zero. Times are microseconds, probabilities per event, intervals mean time between two of a
kind (0: never).
"""

from __future__ import annotations

from random import Random

import attrs

from shardsrv.sim.clock import MILLISECOND, SECOND
from shardsrv.vsr.timeouts import Timeouts


@attrs.frozen
class NetworkOptions:
    """Frames: least and mean additional delay, and what happens to one."""

    delay_min: int
    delay_mean: int
    loss: float
    repetition: float
    damage: float


@attrs.frozen
class FaultOptions:
    """Mean time between two faults of a kind."""

    kill: int
    stop: int
    power: int
    blackout: int
    partition: int
    clog: int
    clock_jump: int
    write_error: int
    sync_error: int
    rot: int
    misdirected: int
    wipe: int
    down_time: int
    partition_time: int
    crash_in_write: float
    """Share of kills and power losses that strike inside a call to the disk."""
    squeeze: int = 0
    lie: int = 0
    moment: float = 0.0
    """Share of kills and power losses that wait for a moment and strike behind it."""


@attrs.frozen
class LoadOptions:
    """Clients and what they ask."""

    clients: int
    think_mean: int
    timeout: int
    older: float
    """Share of clients of the older generation."""
    persisted: float
    """Share of topics whose sends wait for the disk."""
    weights: tuple[tuple[str, int], ...]
    burst: float = 0.0
    """Share of requests that follow at once, as another send to the same partition."""


@attrs.frozen
class Options:
    """All of a run."""

    seed: int
    replicas: int
    duration: int
    tick: int
    disk_latency: int
    sync_latency: int
    sync_interval: int
    segment_size: int
    unsynced_max: int
    checkpoint_bytes: int
    pipeline: int
    dedup_ops: int
    clients_table: int
    clock_skew: int
    clock_drift: int
    beyond: bool
    drop_logs: bool
    """Whether checkpoints let go of the log below them; a member that fell behind then needs a transfer."""
    timeouts: Timeouts
    network: NetworkOptions
    faults: FaultOptions
    load: LoadOptions


TIMEOUTS = (
    Timeouts(
        prepare=5, commit=10, heartbeat=50, view_change=10, view_change_status=60, probe=10, probe_attempts=3, repair=10
    ),
    Timeouts(
        prepare=10,
        commit=20,
        heartbeat=100,
        view_change=20,
        view_change_status=100,
        probe=20,
        probe_attempts=5,
        repair=20,
    ),
)
"""Waits of the replicas: shorter than a server's, so that more happens in a simulated second."""

WEIGHTS = (
    ("send", 60),
    ("store_offset", 10),
    ("delete_offset", 3),
    ("poll", 12),
    ("create_stream", 2),
    ("create_topic", 4),
    ("delete_topic", 2),
    ("delete_stream", 1),
    ("update_topic", 1),
    ("update_stream", 1),
    ("purge_topic", 2),
    ("purge_stream", 1),
    ("create_partitions", 2),
    ("delete_partitions", 1),
    ("create_group", 2),
    ("delete_group", 1),
    ("join_group", 2),
    ("leave_group", 1),
    ("create_user", 1),
    ("update_user", 1),
    ("delete_user", 1),
    ("change_password", 1),
    ("update_permissions", 1),
    ("create_token", 1),
    ("delete_token", 1),
    ("register", 1),
    ("logout", 1),
    ("mischief", 2),
)
"""Operations of the load and how often they are drawn, before the swarm changes it."""


DENSE = {"purge_topic": 10, "purge_stream": 4, "update_topic": 8, "update_user": 8, "create_partitions": 6, "send": 80}
"""Weights of runs with dense logs: more purges, and more metadata."""


def _sometimes(random: Random, share: float, low: int, high: int) -> int:
    """A value between ``low`` and ``high`` in ``share`` of the runs, else 0."""
    present = random.random() < share
    value = random.randint(low, high)
    return value if present else 0


def draw(
    random: Random, seed: int, replicas: int | None = None, seconds: int | None = None, narrow: bool = True
) -> Options:
    """The options of run ``seed``; ``replicas`` and ``seconds`` replace what the seed would draw. Without ``narrow``
    nothing of `_narrowed` is in them."""
    members = random.choice((1, 1, 3, 3, 3, 3, 3, 5, 2))
    members = members if replicas is None else replicas
    length = random.randint(20, 60) * SECOND
    delay = random.choice((200, 1_000, 3_000))
    network = NetworkOptions(
        delay_min=random.choice((50, 200)),
        delay_mean=delay,
        loss=random.choice((0.0, 0.0, 0.005, 0.02, 0.1)),
        repetition=random.choice((0.0, 0.005, 0.02)),
        damage=random.choice((0.0, 0.0, 0.002)),
    )
    faults = FaultOptions(
        kill=_sometimes(random, 0.7, 2, 15) * SECOND,
        stop=_sometimes(random, 0.4, 3, 15) * SECOND,
        power=_sometimes(random, 0.7, 2, 15) * SECOND,
        blackout=_sometimes(random, 0.3, 8, 25) * SECOND,
        partition=_sometimes(random, 0.6, 2, 10) * SECOND,
        clog=_sometimes(random, 0.4, 2, 10) * SECOND,
        clock_jump=_sometimes(random, 0.3, 3, 15) * SECOND,
        write_error=_sometimes(random, 0.25, 5, 20) * SECOND,
        sync_error=_sometimes(random, 0.25, 5, 20) * SECOND,
        rot=_sometimes(random, 0.2, 8, 25) * SECOND,
        misdirected=_sometimes(random, 0.1, 8, 25) * SECOND,
        wipe=_sometimes(random, 0.1, 10, 30) * SECOND,
        down_time=random.choice((200, 1_000, 4_000)) * MILLISECOND,
        partition_time=random.choice((500, 2_000, 6_000)) * MILLISECOND,
        crash_in_write=random.choice((0.0, 0.3, 0.8)),
    )
    weights = tuple(
        (name, weight * random.choice((0, 1, 1, 1, 4)) if name != "send" else weight) for name, weight in WEIGHTS
    )
    load = LoadOptions(
        clients=random.randint(2, 6),
        think_mean=random.choice((10, 30, 100)) * MILLISECOND,
        timeout=random.choice((300, 1_000)) * MILLISECOND,
        older=0.5,
        persisted=random.choice((0.0, 0.5, 1.0)),
        weights=weights,
    )
    options = Options(
        seed=seed,
        replicas=members,
        duration=length if seconds is None else seconds * SECOND,
        tick=10 * MILLISECOND,
        disk_latency=random.choice((20, 100, 1_000)),
        sync_latency=random.choice((100, 1_000, 8_000)),
        sync_interval=random.choice((2, 10)) * MILLISECOND,
        segment_size=random.choice((4, 16, 64)) * 1024,
        unsynced_max=random.choice((16, 256)) * 1024,
        checkpoint_bytes=random.choice((8, 64, 512)) * 1024,
        pipeline=random.choice((2, 8, 32)),
        dedup_ops=random.choice((64, 1024)),
        clients_table=random.choice((4, 64)),
        clock_skew=random.choice((0, 0, 50, 5_000)) * MILLISECOND,
        clock_drift=random.choice((0, 0, 200)),
        beyond=False,
        drop_logs=members == 1 or random.random() < 0.5,
        timeouts=random.choice(TIMEOUTS),
        network=network,
        faults=faults,
        load=load,
    )
    return _narrowed(Random(f"{seed}/narrow"), options) if narrow else options


def _narrowed(random: Random, options: Options) -> Options:
    """What some runs have besides: crashes at moments, squeezes, sends in bursts, frames that come again long after,
    and logs, checkpoints and purges so frequent that each of their steps comes often."""
    faults, load = options.faults, options.load
    moment = random.choice((0.0, 0.0, 0.5, 0.9))
    squeeze = _sometimes(random, 0.3, 2, 8) * SECOND
    repetition = random.choice((options.network.repetition, options.network.repetition, 0.2))
    load = attrs.evolve(load, burst=random.choice((0.0, 0.0, 0.8)))
    options = attrs.evolve(options, faults=attrs.evolve(faults, moment=moment, squeeze=squeeze), load=load)
    options = attrs.evolve(options, network=attrs.evolve(options.network, repetition=repetition))
    options = with_dense_logs(options) if random.random() < 0.4 else options
    return with_transfers(options) if random.random() < 0.2 else options


def with_dense_logs(options: Options) -> Options:
    """The same run with small segments, checkpoints all the time, now and then slow background syncs, and more of what
    makes them: metadata and purges."""
    random = Random(f"{options.seed}/dense")
    weights = tuple((name, DENSE.get(name, weight)) for name, weight in options.load.weights)
    return attrs.evolve(
        options,
        segment_size=random.choice((1, 2, 4)) * 1024,
        checkpoint_bytes=random.choice((2, 8)) * 1024,
        sync_interval=random.choice((2, 10, 50)) * MILLISECOND,
        load=attrs.evolve(options.load, weights=weights),
    )


def with_transfers(options: Options) -> Options:
    """The same run with logs that are let go of all the time, members that fall behind them, and members that lie about
    the state that they give away."""
    random = Random(f"{options.seed}/transfers")
    faults = attrs.evolve(
        options.faults, partition=3 * SECOND, partition_time=random.choice((500, 2_000)) * MILLISECOND, lie=3 * SECOND
    )
    network = attrs.evolve(options.network, repetition=random.choice((options.network.repetition, 0.2)))
    load = attrs.evolve(options.load, think_mean=10 * MILLISECOND)
    return attrs.evolve(with_dense_logs(options), drop_logs=True, faults=faults, network=network, load=load)


def with_wipes(options: Options) -> Options:
    """The same run with members that lose their disks every few seconds, half of them behind a vote, and elections."""
    none = dict.fromkeys(("rot", "misdirected", "power", "blackout", "write_error", "sync_error"), 0)
    moment = max(options.faults.moment, 0.3)
    faults = attrs.evolve(options.faults, **none, wipe=2 * SECOND, kill=2 * SECOND, moment=moment)
    return attrs.evolve(options, faults=faults)


def with_rot(options: Options) -> Options:
    """The same run with bits that rot, and clean stops, every few seconds."""
    moment = max(options.faults.moment, 0.3)
    return attrs.evolve(options, faults=attrs.evolve(options.faults, rot=4 * SECOND, stop=2 * SECOND, moment=moment))


def with_storm(options: Options) -> Options:
    """The same run with a crash every second or so, most of them losses of power, slow syncs, and sends in bursts."""
    faults = attrs.evolve(
        options.faults,
        kill=3 * SECOND,
        power=SECOND,
        blackout=4 * SECOND,
        down_time=200 * MILLISECOND,
        moment=max(options.faults.moment, 0.5),
    )
    repetition = max(options.network.repetition, Random(f"{options.seed}/storm").choice((0.0, 0.2)))
    network = attrs.evolve(options.network, repetition=repetition)
    return attrs.evolve(
        options, network=network, faults=faults, sync_latency=8_000, load=attrs.evolve(options.load, burst=0.8)
    )


def with_squeezes(options: Options) -> Options:
    """The same run with a squeeze every few seconds and nothing else, replicated topics and sends in bursts."""
    none = dict.fromkeys(("kill", "stop", "power", "blackout", "partition", "rot", "misdirected", "wipe"), 0)
    faults = attrs.evolve(options.faults, **none, squeeze=3 * SECOND)
    return attrs.evolve(options, faults=faults, load=attrs.evolve(options.load, burst=0.8, persisted=0.0))


def plain(options: Options) -> Options:
    """The same run without crashes at moments, squeezes and bursts."""
    faults = attrs.evolve(options.faults, moment=0.0, squeeze=0)
    return attrs.evolve(options, faults=faults, load=attrs.evolve(options.load, burst=0.0))


def with_clock_jumps(options: Options) -> Options:
    """The same run with clocks that jump every second."""
    return attrs.evolve(options, faults=attrs.evolve(options.faults, clock_jump=SECOND))


def loaded(options: Options, replicas: int | None, seconds: int | None) -> Options:
    """A loaded cluster-hour: three or five members, more than 100,000 requests, faults of every kind now and then."""
    members = replicas if replicas is not None else (3, 3, 5)[options.seed % 3]
    faults = attrs.evolve(
        options.faults,
        kill=150 * SECOND,
        stop=400 * SECOND,
        power=150 * SECOND,
        blackout=900 * SECOND,
        partition=200 * SECOND,
        clog=300 * SECOND,
        clock_jump=400 * SECOND,
        write_error=500 * SECOND,
        sync_error=500 * SECOND,
        squeeze=600 * SECOND,
        lie=600 * SECOND,
        rot=0,
        misdirected=0,
        wipe=0,
    )
    weights = tuple((name, {"send": 400, "store_offset": 60, "poll": 40}.get(name, weight)) for name, weight in WEIGHTS)
    load = attrs.evolve(options.load, clients=6, think_mean=140 * MILLISECOND, weights=weights)
    return attrs.evolve(
        options,
        replicas=members,
        duration=3600 * SECOND if seconds is None else seconds * SECOND,
        network=attrs.evolve(options.network, loss=min(options.network.loss, 0.005)),
        segment_size=256 * 1024,
        checkpoint_bytes=1024 * 1024,
        faults=faults,
        load=load,
    )
