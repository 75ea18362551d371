"""Two servers under the same loads, in turn, driven by the benchmark program of the Apache Iggy project.

The program is given by its path and drives one server at a time over TCP, ours and theirs in turn in every round
of every load, so that what else happens on the machine meets both. A first short run per load and server finds
how many batches fill the wanted time, so that a fast and a slow server are both measured over seconds. The program
writes its numbers as ``report.json``; the table shows medians over the rounds.

Run ``python bench/side_by_side.py --help``.
"""

import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click

CALIBRATION_BATCHES = 20
RUN_TIMEOUT = 120.0
START_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """What the benchmark program is asked to do: so many actors, each with requests of one batch."""

    name: str
    kind: str
    actors: int
    messages: int
    size: int

    def command(self, program: Path, address: str, batches: int, output: Path) -> list[str]:
        """The command line; ``batches`` counts requests of one actor."""
        flag = "--consumers" if self.kind == "pinned-consumer" else "--producers"
        return [
            str(program),
            *("--message-size", str(self.size)),
            *("--messages-per-batch", str(self.messages)),
            *("--message-batches", str(batches)),
            *(self.kind, flag, str(self.actors)),
            *("tcp", "--server-address", address),
            *("output", "--output-dir", str(output), "--identifier", "side-by-side"),
        ]


def producers(actors: int, messages: int, size: int) -> Load:
    return Load(f"{actors} x send {messages} x {size} B", "pinned-producer", actors, messages, size)


LOADS = (
    producers(1, 1, 100),
    producers(8, 1, 100),
    producers(4, 100, 100),
    producers(1, 1000, 1000),
    producers(8, 1000, 1000),
    Load("8 x poll 1000 x 1000 B", "pinned-consumer", 8, 1000, 1000),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One run: messages per second of all actors, latencies of a request in milliseconds, mean over the actors."""

    messages_per_second: float
    megabytes_per_second: float
    p50_ms: float
    p99_ms: float
    batches: int


class RunFailed(Exception):
    """The benchmark program did not finish; the text carries what it printed last."""


class Side:
    """One of the two servers and the number of batches that fill the time under the current load."""

    def __init__(self, name: str, address: str, program: Path) -> None:
        self.name = name
        self.address = address
        self.program = program

    def run(self, load: Load, batches: int) -> Result:
        """One run. Raises :class:`RunFailed`."""
        with tempfile.TemporaryDirectory(prefix="side-by-side-") as directory:
            output = Path(directory)
            command = load.command(self.program, self.address, batches, output)
            os.sync()  # what the run before left to the kernel is not written at this run's expense
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT, cwd=directory)
            except subprocess.TimeoutExpired as error:
                raise RunFailed(f"{self.name}, {load.name}: no end within {RUN_TIMEOUT} s") from error
            reports = list(output.rglob("report.json"))
            if run.returncode or len(reports) != 1:
                shown = "\n".join((run.stdout + run.stderr).splitlines()[-15:])
                raise RunFailed(f"{self.name}, {load.name}: exit code {run.returncode}\n{shown}")
            return read_report(reports[0], batches)

    def calibrate(self, load: Load, seconds: float, max_bytes: int) -> int:
        """Batches per actor that take about ``seconds``, and at most ``max_bytes`` of payload in all."""
        most = max(CALIBRATION_BATCHES, max_bytes // (load.messages * load.size * load.actors))
        batches = CALIBRATION_BATCHES
        while True:
            per_second = self.run(load, batches).messages_per_second / load.messages / load.actors
            wanted = min(max(CALIBRATION_BATCHES, int(per_second * seconds)), most)
            # A run much shorter than wanted is mostly its own start: measure again, ten times as long.
            if batches * 10 >= wanted:
                return wanted
            batches *= 10


def read_report(path: Path, batches: int) -> Result:
    """The numbers of all actors together out of a ``report.json``."""
    summary = json.loads(path.read_text())["group_metrics"][0]["summary"]
    return Result(
        messages_per_second=summary["total_throughput_messages_per_second"],
        megabytes_per_second=summary["total_throughput_megabytes_per_second"],
        p50_ms=summary["average_p50_latency_ms"],
        p99_ms=summary["average_p99_latency_ms"],
        batches=batches,
    )


def compare(sides: Sequence[Side], load: Load, rounds: int, seconds: float, max_bytes: int) -> dict[str, list[Result]]:
    """The results of every round by side; a load of consumers is given messages to read first."""
    batches = {}
    for side in sides:
        if load.kind == "pinned-consumer":
            source = producers(load.actors, load.messages, load.size)
            stored = max(CALIBRATION_BATCHES, max_bytes // (load.messages * load.size * load.actors))
            side.run(source, stored)
            batches[side.name] = stored
        else:
            batches[side.name] = side.calibrate(load, seconds, max_bytes)
    results: dict[str, list[Result]] = {side.name: [] for side in sides}
    for number in range(rounds):
        # Who goes first changes from round to round: the second run meets the write-back of the first.
        for side in sides if number % 2 == 0 else reversed(sides):
            result = side.run(load, batches[side.name])
            results[side.name].append(result)
            click.echo(
                f"  round {number + 1} {side.name:6} {result.messages_per_second:12,.0f} messages/s"
                f"  p99 {result.p99_ms:8.3f} ms  ({result.batches} batches)",
                err=True,
            )
    return results


def row(load: Load, results: dict[str, list[Result]]) -> dict[str, object]:
    """Medians of one load, and every round behind them."""
    medians = {
        side: {field: statistics.median(getattr(one, field) for one in runs) for field in Result.__slots__}
        for side, runs in results.items()
    }
    theirs = medians["theirs"]["messages_per_second"]
    return {
        "load": load.name,
        **{f"{side}_{field}": value for side, fields in medians.items() for field, value in fields.items()},
        "ratio": medians["ours"]["messages_per_second"] / theirs if theirs else None,
        "rounds": {side: [asdict(one) for one in runs] for side, runs in results.items()},
    }


def table(rows: Sequence[dict[str, object]]) -> str:
    """The medians as text."""
    titles = ("load", "ours msg/s", "theirs msg/s", "ratio", "ours p50", "theirs p50", "ours p99", "theirs p99")
    lines = [f"{titles[0]:26}" + "".join(f"{title:>14}" for title in titles[1:])]
    for one in rows:
        rates = f"{one['ours_messages_per_second']:>14,.0f}{one['theirs_messages_per_second']:>14,.0f}"
        latencies = "".join(
            f"{one[f'{side}_{field}']:>11.3f} ms" for field in ("p50_ms", "p99_ms") for side in ("ours", "theirs")
        )
        lines.append(f"{one['load']:26}{rates}{one['ratio']:>14.2f}{latencies}")
    return "\n".join(lines)


@contextmanager
def server(name: str, command: str, address: str) -> Iterator[None]:
    """A server started for the comparison on an empty directory, stopped and removed with its data at the end."""
    with tempfile.TemporaryDirectory(prefix=f"side-by-side-{name}-") as directory:
        data = Path(directory) / "data"
        environment = {
            "IGGY_TCP_ADDRESS": address,
            "IGGY_SYSTEM_PATH": str(data),
            "IGGY_ROOT_USERNAME": "iggy",
            "IGGY_ROOT_PASSWORD": "iggy",
            "IGGY_HTTP_ENABLED": "false",
            "IGGY_QUIC_ENABLED": "false",
            "IGGY_WEBSOCKET_ENABLED": "false",
        }
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(
                shlex.split(command.replace("{data}", str(data))),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=os.getcwd(),
            )
        try:
            await_listener(process, address)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def await_listener(process: subprocess.Popen[bytes], address: str) -> None:
    """Wait until the address accepts connections. Raises ``click.ClickException`` when it never does."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
            return
        except OSError:
            pass
        try:
            code = process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        raise click.ClickException(f"the server of {address} ended with {code}")
    raise click.ClickException(f"nobody listens on {address} after {START_TIMEOUT} s")


@click.command(help=__doc__)
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The benchmark program (iggy-bench).",
)
@click.option("--ours-address", default="127.0.0.1:18190", show_default=True, help="HOST:PORT of our server.")
@click.option("--theirs-address", default="127.0.0.1:18191", show_default=True, help="HOST:PORT of the other server.")
@click.option(
    "--ours",
    "ours_command",
    help="Command that starts our server; {data} is replaced by an empty directory. "
    "Without it the server is expected to run already.",
)
@click.option("--theirs", "theirs_command", help="Command that starts the other server, as above.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100), help="Runs per load and server.")
@click.option(
    "--seconds", default=3.0, show_default=True, type=click.FloatRange(0.1, 60.0), help="Wanted time per run."
)
@click.option(
    "--max-mebibytes", default=2000, show_default=True, type=click.IntRange(1), help="Most payload of one run."
)
@click.option(
    "--load",
    "chosen",
    multiple=True,
    type=click.IntRange(1, len(LOADS)),
    help="Number of a load, may be repeated; all by default. "
    + "; ".join(f"{index}: {load.name}" for index, load in enumerate(LOADS, 1)),
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(
    program: Path,
    ours_address: str,
    theirs_address: str,
    ours_command: str | None,
    theirs_command: str | None,
    rounds: int,
    seconds: float,
    max_mebibytes: int,
    chosen: tuple[int, ...],
    json_path: Path | None,
) -> None:
    rows = []
    with ExitStack() as servers:
        for name, command, address in (
            ("ours", ours_command, ours_address),
            ("theirs", theirs_command, theirs_address),
        ):
            if command:
                servers.enter_context(server(name, command, address))
        sides = [Side("ours", ours_address, program.resolve()), Side("theirs", theirs_address, program.resolve())]
        for number in chosen or range(1, len(LOADS) + 1):
            load = LOADS[number - 1]
            click.echo(load.name, err=True)
            try:
                rows.append(row(load, compare(sides, load, rounds, seconds, max_mebibytes << 20)))
            except RunFailed as failure:
                raise click.ClickException(str(failure)) from failure
    click.echo(table(rows))
    if json_path:
        json_path.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
