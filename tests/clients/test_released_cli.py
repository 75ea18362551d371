"""The released command line, ``iggy-cli`` 0.14.0, drives every subcommand: once with success, once with failure.

The binary is built from the Cargo registry into the cache directory of the user, once; ``SHARDSRV_CLIENT_CACHE``
names another place, where a binary that was built
already may lie as ``iggy-cli-0.14.0/bin/iggy``. Text, exit codes and the state afterwards are looked at. `login`
needs the secret store of a desktop session: where
there is none it fails, and that is what is tested; `pat delete` then fails behind the server's success.
"""

import io
import json
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.commands import group_offset, join_group, tokens, topic_facts
from tests.support.node import Node

VERSION = "0.14.0"
INSTALL_SECONDS = 3600
RUN_SECONDS = 60

pytestmark = pytest.mark.clients


@pytest.fixture(scope="session")
def binary() -> Path:
    """The program; built when it is not in the cache."""
    default = Path(tempfile.gettempdir()) / f"shardsrv-clients-{os.getuid()}"
    root = Path(os.environ.get("SHARDSRV_CLIENT_CACHE", default)) / f"iggy-cli-{VERSION}"
    program = root / "bin" / "iggy"
    if not program.exists():
        install = ["cargo", "install", "iggy-cli", "--version", VERSION, "--root", str(root), "--locked", "--debug"]
        subprocess.run(install, check=True, timeout=INSTALL_SECONDS)
    return program


@dataclass(frozen=True)
class Result:
    code: int
    text: str


class CommandLine:
    """The program against one node, in a home directory of its own."""

    def __init__(self, binary: Path, node: Node, home: Path) -> None:
        self.binary = binary
        self.home = home
        self.used: set[str] = set()
        self.server = ["--tcp-server-address", f"{node.host}:{node.port}"]
        home.mkdir()

    def run(self, *arguments: str, user: tuple[str, str] | None = ("iggy", "iggy"), token: str = "") -> Result:
        login = []
        if token:
            login = ["--token", token]
        elif user is not None:
            login = ["--username", user[0], "--password", user[1]]
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("IGGY", "DBUS"))}
        done = subprocess.run(
            [str(self.binary), *self.server, *login, *arguments],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            env={
                **keep,
                "RUST_BACKTRACE": "0",
                "HOME": str(self.home),
                "IGGY_HOME": str(self.home),
                "XDG_DATA_HOME": str(self.home),
            },
            cwd=self.home,
        )
        return Result(done.returncode, done.stdout + done.stderr)

    def good(self, *arguments: str, text: str = "", **how: object) -> str:
        result = self.run(*arguments, **how)  # type: ignore[arg-type]
        assert result.code == 0, f"{arguments}: {result}"
        assert re.search(text, result.text), f"{arguments}: {text!r} is not in {result.text!r}"
        return result.text

    def bad(self, *arguments: str, text: str, code: int = 1, **how: object) -> None:
        result = self.run(*arguments, **how)  # type: ignore[arg-type]
        assert result.code == code, f"{arguments}: {result}"
        assert re.search(text, result.text), f"{arguments}: {text!r} is not in {result.text!r}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "node") as running:
        yield running


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with node.client() as connected:
        yield connected


@pytest.fixture
def cli(binary: Path, node: Node, tmp_path: Path) -> CommandLine:
    return CommandLine(binary, node, tmp_path / "home")


def test_system(cli: CommandLine, node: Node) -> None:
    cli.good("ping", "-c", "2", text="Ping statistics for 2 ping commands", user=None)
    node_down = CommandLine(cli.binary, node, cli.home / "down")
    node_down.server = ["--tcp-server-address", "127.0.0.1:1", "--tcp-reconnection-max-retries", "0"]
    node_down.bad("ping", "-c", "1", text="Error")
    cli.good("me", text=r"\| User ID +\| 0 ")
    cli.bad("me", text="Invalid credentials", user=("iggy", "wrong password"))
    stats = cli.good("stats", "-o", "json", text='"streams_count": 0')
    assert json.JSONDecoder().raw_decode(stats[stats.index("{") :])[0]["clients_count"] >= 1
    cli.good("user", "create", "plain", "plainpass", text="created")
    cli.bad("stats", text="Unauthorized", user=("plain", "plainpass"))
    for kind, text in (("topic", "segment_size"), ("stream", "no options"), ("user", "no options")):
        cli.good("options", kind, text=text)
    cli.bad("options", "colour", text="invalid value", code=2)
    cli.good("cluster", "metadata", text="iggy-node")
    cli.bad("cluster", "metadata", text="Invalid credentials", user=("iggy", "wrong password"))
    listed = cli.good("client", "list", "-l", "list", text=r"\d+\|0\|127.0.0.1:\d+\|TCP\|0")
    assert listed
    cli.bad("client", "list", text="Unauthorized", user=("plain", "plainpass"))
    cli.good("client", "get", "4000000", text="was not found")
    cli.bad("client", "get", "4000000", text="Unauthorized", user=("plain", "plainpass"))
    for method in ("stored", "deflated", "bzip2", "zstd", "lzma", "xz"):
        into = cli.home / method
        into.mkdir()
        cli.good("snapshot", "-c", method, "-s", "test", "-o", str(into), text="File Path")
        (made,) = into.iterdir()
        names = zipfile.ZipFile(io.BytesIO(made.read_bytes())).namelist()
        assert names == ["test.txt"], method
    cli.bad("snapshot", "-o", str(cli.home), text="Unauthorized", user=("plain", "plainpass"))


def test_streams_and_topics(cli: CommandLine, client: Client) -> None:
    cli.good("stream", "create", "one", text="Stream with name: one .*created")
    cli.bad("stream", "create", "one", text="already exists")
    cli.good("stream", "get", "one", text="one")
    cli.bad("stream", "get", "one", text="Invalid credentials", user=("nobody", "nobodypass"))
    cli.good("stream", "list", "-l", "list", text=r"0\|.*\|one\|0 B\|0\|0")
    cli.bad("stream", "list", text="Invalid credentials", user=("nobody", "nobodypass"))
    cli.good("stream", "update", "one", "two", text="updated name: two")
    cli.bad("stream", "update", "one", "three", text="was not found")
    cli.good("topic", "create", "two", "events", "2", "gzip", "1day", "-m", "10GB", text="created")
    cli.good("topic", "create", "two", "set", "1", "none", "--set", "segment_size=2MiB", text="created")
    cli.bad("topic", "create", "two", "events", "1", "none", text="already exists")
    cli.bad("topic", "create", "two", "bad", "1", "none", "--set", "segment_size=1", text="Error")
    cli.good("topic", "get", "two", "events", text="gzip")
    cli.good("topic", "get", "two", "nobody", text="was not found")
    cli.bad("topic", "get", "two", "events", text="Invalid credentials", user=("nobody", "nobodypass"))
    cli.good("topic", "list", "two", text="events")
    cli.bad("topic", "list", "two", text="Invalid credentials", user=("nobody", "nobodypass"))
    cli.good("topic", "update", "two", "events", "renamed", "none", "2days", text="updated")
    cli.bad("topic", "update", "two", "nobody", "x", "none", text="was not found")
    cli.good("partition", "create", "two", "renamed", "2", text="Created 2 partitions")
    cli.bad("partition", "create", "two", "renamed", "1001", text="Error")
    cli.good("partition", "delete", "two", "renamed", "1", text="Deleted 1 partition")
    cli.bad("partition", "delete", "two", "renamed", "50", text="Error")
    facts = topic_facts(client, "two", "renamed")
    assert facts is not None and len(facts.partitions) == 3
    for _ in range(10):
        client.send("two", "set", 0, [bytes(300 * 1024)])
    before = topic_facts(client, "two", "set")
    cli.good("segment", "delete", "two", "set", "0", "1", text="Deleted 1 segment")
    after = topic_facts(client, "two", "set")
    assert before is not None and after is not None
    assert after.partitions[0].segments == before.partitions[0].segments - 1 and after.messages < before.messages
    cli.bad("segment", "delete", "two", "set", "42", "1", text="Error")
    cli.good("topic", "purge", "two", "set", text="purged")
    cli.bad("topic", "purge", "two", "nobody", text="was not found")
    after = topic_facts(client, "two", "set")
    assert after is not None and (after.messages, after.size) == (0, 0)
    client.send("two", "set", 0, [b"x"])
    cli.good("stream", "purge", "two", text="purged")
    cli.bad("stream", "purge", "nobody", text="was not found")
    after = topic_facts(client, "two", "set")
    assert after is not None and after.messages == 0
    cli.good("topic", "delete", "two", "set", text="deleted")
    cli.bad("topic", "delete", "two", "set", text="was not found")
    cli.good("stream", "delete", "two", text="deleted")
    cli.bad("stream", "delete", "two", text="was not found")
    assert topic_facts(client, "two", "renamed") is None


def test_messages_offsets_and_groups(cli: CommandLine, client: Client) -> None:
    client.create_stream("s")
    client.create_topic("s", "t", 1)
    cli.good("message", "send", "-p", "0", "s", "t", "hello", "world", text="Sent")
    cli.bad("message", "send", "-p", "0", "s", "nobody", "hello", text="Error")
    assert [message.payload for message in client.poll("s", "t", 0)] == [b"hello", b"world"]
    cli.good("message", "poll", "-f", "-m", "10", "s", "t", "0", text="hello(.|\n)*world")
    cli.bad("message", "poll", "-f", "s", "t", "9", text="Error")
    cli.bad("message", "flush", "s", "t", "0", text="Error")
    cli.good("consumer-offset", "set", "1", "s", "t", "0", "1", text="set to 1|to 1")
    assert client.get_offset("s", "t", 0, 1) == 1
    cli.bad("consumer-offset", "set", "1", "s", "t", "0", "77", text="Error")
    cli.good("consumer-offset", "get", "1", "s", "t", "0", text="Stored offset")
    cli.bad("consumer-offset", "get", "1", "s", "t", "9", text="Error")
    cli.good("consumer-group", "create", "s", "t", "workers", text="created")
    cli.bad("consumer-group", "create", "s", "t", "workers", text="already exists")
    cli.good("consumer-group", "get", "s", "t", "workers", text="workers")
    cli.bad("consumer-group", "get", "s", "nobody", "workers", text="Error")
    cli.good("consumer-group", "list", "s", "t", text="workers")
    cli.bad("consumer-group", "list", "s", "nobody", text="Error")
    join_group(client, "s", "t", "workers")
    cli.bad("consumer-offset", "set", "-k", "consumer-group", "workers", "s", "t", "0", "1", text="Error")
    assert group_offset(client, "s", "t", "workers", 0) is None
    cli.good("consumer-group", "delete", "s", "t", "workers", text="deleted")
    cli.bad("consumer-group", "delete", "s", "t", "workers", text="Error")


def test_users_and_tokens(cli: CommandLine, client: Client) -> None:
    cli.good("user", "create", "-g", "read_servers", "alice", "alicepass", text="created")
    cli.bad("user", "create", "alice", "alicepass", text="already exists|Error")
    cli.good("user", "get", "alice", text="alice")
    cli.good("user", "get", "nobody", text="was not found")
    cli.bad("user", "get", "iggy", text="Unauthorized", user=("alice", "alicepass"))
    cli.good("user", "list", text="alice")
    cli.bad("user", "list", text="Unauthorized", user=("alice", "alicepass"))
    cli.good("user", "name", "alice", "alice2", text="updated")
    cli.bad("user", "name", "nobody", "alice3", text="Error")
    cli.good("user", "password", "alice2", "alicepass", "alicepass2", text="changed")
    cli.bad("user", "password", "alice2", "alicepass", "alicepass3", text="Error")
    cli.bad("me", text="Invalid credentials", user=("alice2", "alicepass"))
    cli.good("me", text="Client ID", user=("alice2", "alicepass2"))
    cli.good("user", "status", "alice2", "inactive", text="updated")
    cli.bad("me", text="Invalid credentials", user=("alice2", "alicepass2"))
    cli.bad("user", "status", "iggy", "inactive", text="Error")
    cli.good("user", "status", "alice2", "active", text="updated")
    cli.good("user", "permissions", "-g", "read_users", "alice2", text="updated")
    cli.bad("user", "permissions", "-g", "read_users", "iggy", text="Error")
    cli.good("user", "list", text="alice2", user=("alice2", "alicepass2"))
    created = cli.good("pat", "create", "daily", "1day", text="Token: ")
    cli.bad("pat", "create", "daily", text="Error")
    token = re.search(r"Token: (\S+)", created)
    assert token is not None and set(tokens(client)) == {"daily"}
    cli.good("me", text=r"\| User ID +\| 0 ", token=token.group(1))
    cli.bad("me", text="Error", token=token.group(1)[:-4] + "AAA=")
    cli.good("pat", "list", text="daily")
    cli.bad("pat", "list", text="Invalid credentials", user=("iggy", "wrong password"))
    # The server deletes it; the program then finds no secret store to forget it in.
    cli.bad("pat", "delete", "daily", text="No default store|Platform failure")
    cli.bad("pat", "delete", "daily", text="was not found")
    assert tokens(client) == {}
    cli.good("user", "delete", "alice2", text="deleted")
    cli.bad("user", "delete", "alice2", text="Error")
    cli.bad("user", "delete", "iggy", text="Cannot delete user")
    cli.bad("me", text="Invalid credentials", user=("alice2", "alicepass2"))


def test_contexts_and_sessions_of_the_program_itself(cli: CommandLine) -> None:
    cli.good("context", "list", text="default", user=None)
    cli.good("context", "create", "other", text="other", user=None)
    cli.bad("context", "create", "other", text="Error", user=None)
    cli.good("context", "show", "other", text="other", user=None)
    cli.bad("context", "show", "nobody", text="Error", user=None)
    cli.good("context", "use", "other", text="other", user=None)
    cli.bad("context", "use", "nobody", text="Error", user=None)
    cli.good("context", "use", "default", text="default", user=None)
    cli.good("context", "delete", "other", text="other", user=None)
    cli.bad("context", "delete", "nobody", text="Error", user=None)
    # The secret store: there is none without a desktop session.
    cli.bad("login", "1hour", text="Error")
    cli.good("logout", text="Successfully logged out")
    cli.bad("logout", text="Invalid credentials", user=("iggy", "wrong password"))
    cli.good("session", "status", text="session|Session")
