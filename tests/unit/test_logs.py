"""Log lines, levels, archives, and outputs that do not take what they are given."""

import io
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardsrv import logs
from shardsrv.config import Config, Notice, load


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    output, threshold = logs._output, logs._threshold
    yield
    logs._output, logs._threshold = output, threshold


def config_with(**logging: str) -> Config:
    variables = {f"IGGY_SYSTEM_LOGGING_{name.upper()}": value for name, value in logging.items()}
    return load(environment={"IGGY_ENV_PATH": "/dev/null", **variables})[0]


def test_a_record_is_one_line_with_node_shard_and_fields(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.configure(config_with(), tmp_path, {}, stream)
    logs.get_logger(2, 3).info("group ready\nnow", op=7, name="a b", key=b"\x01\xff", share=0.25, quote='say "x"')
    pattern = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z  INFO node-2 shard-3: group ready now"
        r' op=7 name="a b" key=01ff share=0\.25 quote="say \\"x\\""\n'
    )
    assert re.fullmatch(pattern, stream.getvalue())
    assert (tmp_path / "logs" / "shardsrv.log").read_text() == stream.getvalue()


def test_a_traceback_follows_on_lines_of_its_own(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.configure(config_with(file_enabled="false"), tmp_path, {}, stream)
    try:
        raise ValueError("planted")
    except ValueError:
        logs.get_logger(0, "supervisor").exception("it failed")
    first, *rest = stream.getvalue().rstrip("\n").split("\n")
    assert first.endswith("ERROR node-0 supervisor: it failed")
    assert all(line.startswith("    ") for line in rest) and rest[-1] == "    ValueError: planted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("level", "variable", "shown"),
    [
        ("info", "", ["info", "warning", "error"]),
        ("warn", "", ["warning", "error"]),
        ("error", "debug", ["debug", "info", "warning", "error"]),
        ("info", "server=trace,off", []),
        ("debug", "nonsense", ["debug", "info", "warning", "error"]),
    ],
)
def test_the_variable_wins_over_the_level(tmp_path: Path, level: str, variable: str, shown: list[str]) -> None:
    stream = io.StringIO()
    logs.configure(config_with(level=level, file_enabled="false"), tmp_path, {"RUST_LOG": variable}, stream)
    logger = logs.get_logger(0, 0)
    for method in ("debug", "info", "warning", "error"):
        getattr(logger, method)(f"as {method}")
    assert re.findall(r"as (\w+)", stream.getvalue()) == shown


def test_notices_are_logged_at_their_level(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.configure(config_with(), tmp_path, {}, stream)
    logs.report(logs.get_logger(0, "supervisor"), (Notice("warning", "look", {"at": "this"}), Notice("info", "fine")))
    assert re.findall(r"(\w+) node-0 supervisor: (.*)", stream.getvalue()) == [
        ("WARN", "look at=this"),
        ("INFO", "fine"),
    ]


def log_file(folder: Path, **changes: float) -> logs.LogFile:
    limits = {"file_bytes_max": 100, "total_bytes_max": 0, "retention": 3600.0, **changes}
    return logs.LogFile(folder, **limits)  # type: ignore[arg-type]


def test_a_full_file_is_archived_and_no_line_lost_by_any_process(tmp_path: Path) -> None:
    first, second = log_file(tmp_path), log_file(tmp_path)
    for number in range(40):
        (first if number % 3 else second).write(b"%030d\n" % number)
    files = sorted(tmp_path.glob("shardsrv.log*"))
    assert max(path.stat().st_size for path in files) <= 100 and len(files) == 14
    lines = sorted(int(line) for path in files for line in path.read_text().split())
    assert lines == list(range(40))
    assert (tmp_path / "shardsrv.log").read_text().split()[-1] == f"{39:030}"


def test_archives_past_the_total_go_oldest_first(tmp_path: Path) -> None:
    file = log_file(tmp_path, total_bytes_max=250)
    for number in range(30):
        file.write(b"%049d\n" % number)
    assert sorted(path.name for path in tmp_path.glob("shardsrv.log*")) == ["shardsrv.log", "shardsrv.log.1"]
    kept = [int(line) for name in ("shardsrv.log.1", "shardsrv.log") for line in (tmp_path / name).read_text().split()]
    assert kept == [26, 27, 28, 29]


def test_archives_past_their_age_go(tmp_path: Path) -> None:
    file = log_file(tmp_path)
    for number in range(6):
        file.write(b"%060d\n" % number)
    old = time.time() - 7200
    os.utime(tmp_path / "shardsrv.log.3", (old, old))
    file.prune()
    assert not (tmp_path / "shardsrv.log.3").exists() and (tmp_path / "shardsrv.log.2").exists()


def test_a_line_longer_than_the_file_may_be_is_written_whole(tmp_path: Path) -> None:
    file = log_file(tmp_path)
    file.write(b"x" * 300 + b"\n")
    file.write(b"y\n")
    assert (tmp_path / "shardsrv.log.1").stat().st_size == 301
    assert (tmp_path / "shardsrv.log").read_bytes() == b"y\n"


def test_a_reader_that_does_not_read_costs_lines_and_never_blocks() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        output = logs.Output(stream)
        for _ in range(200):
            output.msg("z" * 1000)
        assert output.lost > 0
        got = os.read(read, 1 << 20)
        assert got.count(b"\n") == 200 - output.lost
    os.close(read)


def test_a_closed_output_costs_lines_and_raises_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        output = logs.Output(stream)
        output.msg("nobody reads")
        assert output.lost == 1
