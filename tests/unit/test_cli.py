"""The command line: what it accepts, what it refuses in one sentence, and how it starts a node."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shardsrv import __version__, cli
from shardsrv.advice import advice
from shardsrv.config import Config
from shardsrv.errors import (
    ConfigurationError,
    CrashLoop,
    Damaged,
    DataDirectoryForeign,
    DataDirectoryLocked,
    DiskFull,
    PortInUse,
    ShardsrvError,
    SyncFailed,
    TooFewDescriptors,
    Unreadable,
    UnsupportedVersion,
)
from shardsrv.shards import supervisor


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Config, supervisor.Options]]:
    """Nodes that the command line would run; they end with code 0 at once."""
    nodes: list[tuple[Config, supervisor.Options]] = []
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("IGGY_")]:
        monkeypatch.delenv(name)

    def run(config: Config, options: supervisor.Options) -> int:
        nodes.append((config, options))
        return 0

    monkeypatch.setattr(supervisor, "run", run)
    return nodes


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.main, arguments)


def test_options_reach_the_supervisor(started: list[tuple[Config, supervisor.Options]], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[metadata]\nclients_table_max = 9\n")
    result = invoke("--node", "0", "--config", "c.toml", "--data", "there", "--shards", "4", "--fresh")
    assert result.exit_code == 0, result.output
    ((config, options),) = started
    assert (config.system.path, config.metadata.clients_table_max) == ("there", 9)
    assert (options.node, options.shards, options.fresh) == (0, 4, True)


def test_the_names_of_the_reference_are_taken_too(started: list[tuple[Config, supervisor.Options]]) -> None:
    assert invoke("--replica-id", "3", "-f").exit_code == 0
    assert (started[0][1].node, started[0][1].fresh) == (3, True)


def test_default_root_credentials_go_into_the_environment(
    started: list[tuple[Config, supervisor.Options]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGGY_ROOT_USERNAME", "")
    monkeypatch.setenv("IGGY_ROOT_PASSWORD", "")
    assert invoke("--with-default-root-credentials").exit_code == 0
    assert (os.environ["IGGY_ROOT_USERNAME"], os.environ["IGGY_ROOT_PASSWORD"]) == ("iggy", "iggy")
    assert "development" in started[0][1].notices[0].event


def test_a_bad_configuration_is_one_sentence_and_code_1(
    started: list[tuple[Config, supervisor.Options]], tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text('[tcp]\nadress = "127.0.0.1:1"\n')
    result = invoke("--config", "c.toml")
    assert result.exit_code == 1 and started == []
    assert result.stderr.startswith("shardsrv: configuration tcp.adress = '127.0.0.1:1' cannot be used: ")
    assert "did you mean tcp.address?" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--node", "256"), ("--shards", "1"), ("--nod", "1"), ("dance",), ("verify",)])
def test_usage_errors_have_code_2(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_options_of_a_node_do_not_go_with_a_command(tmp_path: Path) -> None:
    result = invoke("--shards", "3", "verify", str(tmp_path))
    assert result.exit_code == 2 and "shards" in result.stderr


@pytest.mark.parametrize("name", ["inspect", "verify"])
@pytest.mark.parametrize("as_json", [False, True])
def test_tools_get_the_directory_and_give_the_exit_code(
    name: str, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Tool:
        @staticmethod
        def run(path: str, json: bool) -> int:
            calls.append((path, json))
            return 7

    setattr(Tool, name, Tool.run)
    monkeypatch.setitem(sys.modules, f"shardsrv.store.{name}", Tool)  # type: ignore[arg-type]
    assert invoke(name, str(tmp_path), *(["--json"] if as_json else [])).exit_code == 7
    assert calls == [(str(tmp_path), as_json)]


def test_version_and_help_are_quick_and_import_nothing_heavy() -> None:
    program = "import sys, shardsrv.cli\ntry: shardsrv.cli.main(['--version'])\nfinally: print(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    version, modules = result.stdout.strip().split("\n")
    assert version.endswith(__version__)
    assert not {"'trio'", "'structlog'", "'argon2'", "'shardsrv.shards'"} & set(modules.strip("[]").split(", "))


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "shardsrv", "-h"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("Usage: shardsrv") and "Exit codes" in result.stdout


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("tcp.address", "x", "no"),
        DataDirectoryLocked("/d", 7),
        DataDirectoryLocked("/d", None),
        DataDirectoryForeign("/d", found="photo.jpg"),
        PortInUse("127.0.0.1", 8090),
        TooFewDescriptors(needed=9, limit=8),
        CrashLoop(cause="x", deaths=3, seconds=2.5),
        DiskFull(path="/d", needed=9, available=8),
        SyncFailed(path="/d", errno=5),
        Damaged(path="/d", offset=8, op=3, expected=1, found=2),
        Unreadable("/d", "denied", 13),
        UnsupportedVersion("superblock", "/d", 9, 1, 2),
    ],
)
def test_every_refusal_is_one_sentence_with_its_facts(error: ShardsrvError) -> None:
    sentence = advice(error)
    assert "\n" not in sentence and len(sentence) < 300
    for fact in error.facts().values():
        assert fact is None or str(fact) in sentence
