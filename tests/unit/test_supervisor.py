"""The supervisor with real forks and a shard that does next to nothing: start, stop, death, restart, refusals, exit
codes.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import select
import signal
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardsrv.config import Config, load
from shardsrv.errors import DiskFull, OperatorFault
from shardsrv.quantities import parse_address
from shardsrv.shards import supervisor
from shardsrv.shards.control import ControlMessage, ExitCode
from shardsrv.shards.spawn import Entry, ShardContext

PATIENCE = 20.0
"""Seconds after which a test that waits for an event has failed; a good run waits for milliseconds."""


class NoShared:
    def close(self) -> None:
        pass


def heard(context: ShardContext) -> Iterator[ControlMessage]:
    """What the supervisor says, until it is gone."""
    while not context.control.ended:
        select.select([context.control.fileno()], [], [])
        yield from context.control.receive()


def obedient(context: ShardContext) -> int:
    """Ready, notes that it serves, stops when asked."""
    context.control.ready(shard_pid=os.getpid())
    for message in heard(context):
        if message.kind == "serve":
            Path(context.data, f"serving-{context.shard}").write_text(str(context.generation))
        if message.kind == "stop":
            context.control.stopped(clean=True)
            return 0
    return 9


def never_ready(context: ShardContext) -> int:
    return 0 if next(heard(context)).kind == "stop" and context.control.stopped(clean=True) else 9


def deaf(context: ShardContext) -> int:
    context.control.ready(shard_pid=os.getpid())
    while True:
        signal.pause()


def broken(context: ShardContext) -> int:
    with open(Path(context.data, "lives"), "a") as lives:
        lives.write(f"{context.generation}\n")
    raise RuntimeError("planted")


def silent(context: ShardContext) -> int:
    """Ends when the supervisor is gone, and says nothing about how."""
    context.control.ready(shard_pid=os.getpid())
    for _ in heard(context):
        pass
    return None  # type: ignore[return-value]


def out_of_space(context: ShardContext) -> int:
    if context.shard == 1:
        raise ExceptionGroup(
            "tasks", [RuntimeError("cancelled"), DiskFull(path=str(context.data), needed=8, available=4)]
        )
    return obedient(context)


def told_wrong(context: ShardContext) -> int:
    if context.shard == 1:
        raise OperatorFault()
    return obedient(context)


def unclean(context: ShardContext) -> int:
    context.control.ready(shard_pid=os.getpid())
    for message in heard(context):
        if message.kind == "stop":
            context.control.stopped(clean=False)
            return 0
    return 9


def in_the_way(context: ShardContext) -> int:
    """Puts something where the current configuration would be written."""
    if context.shard == 0:
        Path(context.data, "runtime", "current_config.toml.tmp").mkdir()
    return obedient(context)


class Node:
    """A supervisor in a forked process, whose output is read line by line."""

    def __init__(
        self,
        config: Config,
        options: Callable[[], supervisor.Options],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._read, write = os.pipe()
        self.text = ""
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.close(self._read)
                os.dup2(write, 1)
                os.dup2(write, 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
                before()
                code = supervisor.run(config, options())
            finally:
                os._exit(code)
        os.close(write)

    def until(self, pattern: str) -> re.Match[str]:
        """Read until the output matches; fails when it ends or time runs out first."""
        give_up = time.monotonic() + PATIENCE
        while (match := re.search(pattern, self.text)) is None:
            readable, _, _ = select.select([self._read], [], [], max(0.0, give_up - time.monotonic()))
            piece = os.read(self._read, 65536) if readable else b""
            assert piece, f"no {pattern!r} in:\n{self.text}"
            self.text += piece.decode()
        end = match.end()
        self.text, self.before = self.text[end:], self.text[:end]
        return match

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Exit code; the rest of the output is in `text`."""
        if self.status is None:
            while piece := os.read(self._read, 65536):
                self.text += piece.decode()
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def stop_reading(self) -> None:
        os.close(self._read)
        self._read = os.open("/dev/null", os.O_RDONLY)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if self.status is None:
            self.signal(signal.SIGKILL)
            self.wait()
        os.close(self._read)


Start = Callable[..., Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def start(
        entry: Entry = obedient,
        before: Callable[[], None] = lambda: None,
        data: Path | None = None,
        fresh: bool = False,
        node: int = 0,
        **environment: str,
    ) -> Node:
        variables = {
            "IGGY_ENV_PATH": "/dev/null",
            "IGGY_TCP_ADDRESS": "127.0.0.1:0",
            "IGGY_SYSTEM_PATH": str(data or tmp_path / "data"),
            "IGGY_LIMITS_CONNECTIONS_MAX": "64",
            **environment,
        }
        config, _ = load(None, variables)

        def options() -> supervisor.Options:
            return supervisor.Options(
                node=node,
                shards=3,
                fresh=fresh,
                environment={},
                entry=entry,
                make_shared=lambda _count, _config: NoShared(),
                prepare=lambda _data, _count: None,
            )

        nodes.append(Node(config, options, before))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()


def shard_pids(node: Node) -> list[int]:
    """Process ids of the three shards, by shard; call it once after each start."""
    pids = {}
    for _ in range(3):
        match = node.until(r"server shard ready of=(\d) shard_pid=(\d+)")
        pids[int(match[1])] = int(match[2])
    return [pids[shard] for shard in sorted(pids)]


def address(data: Path) -> tuple[str, int]:
    return parse_address(tomllib.loads((data / "runtime" / "current_config.toml").read_text())["tcp"]["address"])


def gone(pid: int) -> bool:
    """Wait for a process that is not our child to end."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE)[0])
    finally:
        os.close(descriptor)


# --- start and stop --------------------------------------------------------------------------------------------------


def test_a_node_listens_then_writes_its_configuration_and_stops_clean(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    node = start()
    node.until(r"server client listeners started tcp=127\.0\.0\.1:\d+")
    node.until(r"shardsrv node 0 is ready: tcp 127\.0\.0\.1:\d+; data in " + re.escape(str(data)))
    with socket.create_connection(address(data), timeout=PATIENCE):
        pass
    assert node.stop() == ExitCode.CLEAN
    assert (
        "SIGTERM received; signalling server shutdown" in node.text and "server shutdown complete code=0" in node.text
    )
    assert not (data / "runtime" / "current_config.toml").exists()
    assert sorted(entry.name for entry in data.iterdir() if not entry.name.startswith("serving")) == [
        "lock",
        "logs",
        "metadata",
        "partitions",
        "runtime",
        "shards",
        "shardsrv.json",
    ]
    assert "server client listeners started" in (data / "logs" / "shardsrv.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_stop_too(start: Start, number: signal.Signals) -> None:
    node = start()
    node.until("is ready")
    node.signal(number)
    assert node.wait() == ExitCode.CLEAN


def test_shards_are_named_and_leave_signals_to_the_supervisor(start: Start) -> None:
    node = start()
    pids = shard_pids(node)
    node.until("is ready")
    assert [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids] == [f"shardsrv-0-{n}" for n in range(3)]
    assert Path(f"/proc/{node.pid}/comm").read_text().strip() == "shardsrv-0"
    for pid in pids:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    assert node.stop() == ExitCode.CLEAN
    assert "died" not in node.text


def test_a_second_signal_is_ignored_with_a_line(start: Start) -> None:
    node = start(
        deaf, IGGY_SYSTEM_SHARDING_SHUTDOWN_JOIN_TIMEOUT="300ms", IGGY_SYSTEM_SHARDING_SHUTDOWN_DRAIN_TIMEOUT="200ms"
    )
    node.until("is ready")
    node.signal(signal.SIGTERM)
    node.until("SIGTERM received")
    node.signal(signal.SIGINT)
    node.until("second SIGINT ignored; server is already shutting down")
    assert node.wait() == ExitCode.UNCLEAN_STOP


def test_shards_that_do_not_stop_are_killed_at_the_deadline(start: Start) -> None:
    node = start(
        deaf, IGGY_SYSTEM_SHARDING_SHUTDOWN_JOIN_TIMEOUT="200ms", IGGY_SYSTEM_SHARDING_SHUTDOWN_DRAIN_TIMEOUT="100ms"
    )
    pids = shard_pids(node)
    node.until("is ready")
    began = time.monotonic()
    assert node.stop() == ExitCode.UNCLEAN_STOP
    assert 0.2 <= time.monotonic() - began < 2
    assert "did not stop in good order" in node.text
    assert all(gone(pid) for pid in pids)


def test_a_shard_that_says_it_was_not_clean_decides_the_exit_code(start: Start) -> None:
    node = start(unclean)
    node.until("is ready")
    assert node.stop() == ExitCode.UNCLEAN_STOP


def test_a_node_that_is_still_recovering_can_be_stopped(start: Start, tmp_path: Path) -> None:
    node = start(never_ready)
    node.until("awaiting shard runtimes")
    assert not (tmp_path / "data" / "runtime" / "current_config.toml").exists()
    assert node.stop() == ExitCode.CLEAN


def test_without_listeners_a_node_is_ready_too(start: Start) -> None:
    node = start(IGGY_TCP_ENABLED="false")
    node.until("is ready: no listener")
    assert node.stop() == ExitCode.CLEAN


def test_a_configuration_that_cannot_be_written_does_not_keep_the_node_from_serving(start: Start) -> None:
    node = start(in_the_way)
    node.until("current_config.toml cannot be written")
    node.until("is ready")
    assert node.stop() == ExitCode.CLEAN


def test_an_output_that_nobody_reads_any_more_does_not_matter(start: Start, tmp_path: Path) -> None:
    node = start()
    node.until("awaiting shard runtimes")
    node.stop_reading()
    give_up = time.monotonic() + PATIENCE
    while not (tmp_path / "data" / "runtime" / "current_config.toml").exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    node.signal(signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(node.pid, 0)[1]) == ExitCode.CLEAN
    node.status = ExitCode.CLEAN


def test_archives_of_the_log_are_looked_at_while_the_node_serves(start: Start, tmp_path: Path) -> None:
    archive = tmp_path / "data" / "logs" / "shardsrv.log.7"
    node = start(IGGY_SYSTEM_LOGGING_ROTATION_CHECK_INTERVAL="1 s", IGGY_SYSTEM_LOGGING_RETENTION="1 s")
    node.until("is ready")
    archive.write_text("old")
    os.utime(archive, (1, 1))
    give_up = time.monotonic() + PATIENCE
    while archive.exists():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert node.stop() == ExitCode.CLEAN


# --- death -----------------------------------------------------------------------------------------------------------


def test_a_killed_shard_restarts_the_node_on_the_same_port(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    node = start()
    first = shard_pids(node)
    node.until("is ready")
    port = address(data)
    began = time.monotonic()
    os.kill(first[1], signal.SIGKILL)
    node.until("shard ended by SIGKILL")
    second = shard_pids(node)
    node.until("is ready")
    assert time.monotonic() - began < 2
    assert not set(first) & set(second) and all(gone(pid) for pid in first)
    assert address(data) == port
    with socket.create_connection(port, timeout=PATIENCE):
        pass
    assert node.stop() == ExitCode.CLEAN
    assert (data / "serving-0").read_text() == "2"


def test_the_shards_follow_a_killed_supervisor_and_free_the_lock(start: Start, tmp_path: Path) -> None:
    node = start()
    pids = shard_pids(node)
    node.until("is ready")
    port = address(tmp_path / "data")
    node.signal(signal.SIGKILL)
    again = start(IGGY_TCP_ADDRESS=f"127.0.0.1:{port[1]}")
    again.until("is ready")
    assert all(gone(pid) for pid in pids)
    assert again.stop() == ExitCode.CLEAN


def test_a_shard_that_ends_oddly_never_runs_the_code_of_the_supervisor(start: Start, tmp_path: Path) -> None:
    node = start(silent)
    pids = shard_pids(node)
    node.until("is ready")
    lock = tmp_path / "data" / "lock"
    holder = lock.read_text()
    assert holder.strip() == str(node.pid)
    node.signal(signal.SIGKILL)
    assert all(gone(pid) for pid in pids)
    assert lock.read_text() == holder
    assert "shutdown complete" not in (tmp_path / "data" / "logs" / "shardsrv.log").read_text()


def test_deaths_before_readiness_are_a_crash_loop(start: Start, tmp_path: Path) -> None:
    node = start(broken)
    assert node.wait() == ExitCode.CRASH_LOOP
    assert "the node died 3 times" in node.text and "RuntimeError in broken" in node.text
    assert "is not started again" in node.text and "planted" in node.text
    lives = (tmp_path / "data" / "lives").read_text().split()
    assert sorted(set(lives)) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("entry", "code", "text"),
    [
        (out_of_space, ExitCode.DISK, "is full (4 bytes left, 8 needed)"),
        (told_wrong, ExitCode.OPERATOR, "operator fault"),
    ],
)
def test_a_fault_that_a_restart_cannot_mend_stops_the_node(
    start: Start, entry: Entry, code: ExitCode, text: str
) -> None:
    node = start(entry)
    assert node.wait() == code
    last = node.text.strip().split("\n")[-1]
    assert last.startswith("shardsrv: ") and text in last
    assert "generation=2" not in node.text


# --- refusals --------------------------------------------------------------------------------------------------------


def refusal(node: Node) -> str:
    """The one sentence of a node that refused to start."""
    assert node.wait() == ExitCode.OPERATOR
    complaints = [line for line in node.text.split("\n") if line.startswith("shardsrv: ")]
    assert len(complaints) == 1
    return complaints[0]


def test_a_directory_in_use_is_refused_and_its_node_not_disturbed(start: Start, tmp_path: Path) -> None:
    node = start()
    node.until("is ready")
    assert f"is in use by process {node.pid}; stop it" in refusal(start())
    assert node.stop() == ExitCode.CLEAN


@pytest.mark.parametrize("name", ["streams", "metadata/journal.wal", "photo.jpg"])
def test_a_foreign_directory_is_refused_untouched(start: Start, tmp_path: Path, name: str) -> None:
    data = tmp_path / "other"
    (data / name).parent.mkdir(parents=True)
    (data / name).write_text("theirs")
    assert "is not this node's" in refusal(start(data=data))
    assert [path for path in data.rglob("*") if path.is_file()] == [data / name]


def test_a_foreign_directory_is_refused_even_if_it_was_to_be_emptied(start: Start, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("theirs")
    assert "is not this node's" in refusal(start(data=tmp_path, fresh=True))
    assert (tmp_path / "photo.jpg").exists()


def test_a_directory_of_another_cluster_is_refused(start: Start) -> None:
    node = start()
    node.until("is ready")
    assert node.stop() == ExitCode.CLEAN
    sentence = refusal(start(IGGY_CLUSTER_NAME="another"))
    assert "node 0 of cluster iggy-cluster" in sentence and "node 0 of cluster another" in sentence


def test_a_directory_of_our_layout_without_identity_is_taken(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data" / "metadata" / "log").mkdir(parents=True)
    (tmp_path / "data" / "lost+found").mkdir()
    node = start()
    node.until("is ready")
    assert node.stop() == ExitCode.CLEAN


def test_fresh_empties_a_directory_of_ours(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    node = start()
    node.until("is ready")
    assert node.stop() == ExitCode.CLEAN
    (data / "partitions" / "0").mkdir()
    node = start(fresh=True)
    node.until("is ready")
    assert list((data / "partitions").iterdir()) == []
    assert node.stop() == ExitCode.CLEAN


def test_a_directory_that_cannot_be_made_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sentence = refusal(start(data=tmp_path / "file" / "data"))
    assert "system.path" in sentence and "Not a directory" in sentence and "--data" in sentence


def test_a_port_in_use_is_refused_with_the_way_out(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = refusal(start(IGGY_TCP_ADDRESS=f"127.0.0.1:{port}"))
    assert f"127.0.0.1 port {port} is in use" in sentence and "IGGY_TCP_ADDRESS" in sentence


def test_an_address_of_another_machine_is_refused(start: Start) -> None:
    assert "tcp.address" in refusal(start(IGGY_TCP_ADDRESS="203.0.113.7:8090"))


def test_too_few_descriptors_are_refused_with_the_numbers(start: Start) -> None:
    node = start(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
    assert "1088 file descriptors are needed and at most 256 are allowed" in refusal(node)


def test_the_soft_limit_of_descriptors_is_raised(start: Start) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    node = start(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)))
    pid = shard_pids(node)[0]
    soft = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    assert soft == hard or soft >= 1088
    assert node.stop() == ExitCode.CLEAN


def test_a_single_node_is_node_0(start: Start) -> None:
    assert "--node = 1" in refusal(start(node=1))


# --- process 1 -------------------------------------------------------------------------------------------------------


def orphaning(context: ShardContext) -> int:
    """Leaves a grandchild that ends after its parent, which only process 1 can collect."""
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(write)
    return obedient(context)


def test_process_1_collects_orphans(start: Start) -> None:
    def become_process_1() -> None:
        new_pid_namespace = 0x2000_0000
        if ctypes.CDLL(None, use_errno=True).unshare(new_pid_namespace) != 0:
            os.write(1, b"no namespace\n")
            os._exit(0)
        first = os.fork()
        if first:
            os.write(1, b"process 1 is %d\n" % first)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))

    node = start(orphaning, before=become_process_1)
    match = node.until(r"no namespace|process 1 is (\d+)")
    if match[1] is None:
        pytest.skip("this environment does not allow a namespace of processes")
    node.until("is ready")
    first = int(match[1])
    children = Path(f"/proc/{first}/task/{first}/children")
    give_up = time.monotonic() + PATIENCE
    while len(children.read_text().split()) != 3:
        assert time.monotonic() < give_up, children.read_text()
        os.sched_yield()
    os.kill(first, signal.SIGTERM)
    assert node.wait() == ExitCode.CLEAN
