"""The command line: ``shardsrv --node N`` runs a node in the foreground; subcommands look at a data directory,
or begin it anew.

Invariants: an error is one sentence on standard error that says what, where and the way out; exit codes are few and
listed in the help; nothing heavy is imported before it is known what is to be done.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from shardsrv import __version__

EPILOG = """\b
Exit codes of a node:
  0  stopped as asked; everything acknowledged is synced
  1  configuration, data directory, address or environment needs your hand
  2  usage
  3  storage is full, failing or damaged
  4  the node died again and again and was not started once more
  5  stopped as asked, but a shard had to be killed; the next start recovers

\b
Examples:
  shardsrv --data ./local_data --with-default-root-credentials
  IGGY_TCP_ADDRESS=0.0.0.0:8090 shardsrv --node 0 --config /etc/shardsrv.toml
  shardsrv verify ./local_data
  shardsrv recover --node 2 --config /etc/shardsrv.toml

Every key of the configuration, with its default, unit and reason, stands in shardsrv/config.toml; each one is also an
environment variable, for example IGGY_SYSTEM_PATH for system.path. SIGTERM, SIGINT and SIGHUP stop the node in good
order.
"""

_NODE = click.option(
    "--node",
    "--replica-id",
    "node",
    type=click.IntRange(0, 255),
    default=0,
    show_default=True,
    help="Number of this node in its cluster; 0 for a single node.",
)
_CONFIG = click.option(
    "--config", "config_file", metavar="FILE", help="Configuration file [default: IGGY_CONFIG_PATH, or none]."
)
_DATA = click.option("--data", metavar="DIR", help="Data directory; wins over system.path [default: local_data].")


@click.group(
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@_NODE
@_CONFIG
@_DATA
@click.option(
    "--shards",
    type=click.IntRange(2, 64),
    help="Number of shards (processes), at least 2 [default: from system.sharding.cpu_allocation].",
)
@click.option("-f", "--fresh", is_flag=True, help="Empty the data directory first. All data of this node is lost.")
@click.option(
    "--with-default-root-credentials",
    is_flag=True,
    help="Root user iggy with password iggy where the environment names none. For development.",
)
@click.version_option(__version__, "-V", "--version", prog_name="shardsrv")
@click.pass_context
def main(
    context: click.Context,
    node: int,
    config_file: str | None,
    data: str | None,
    shards: int | None,
    fresh: bool,
    with_default_root_credentials: bool,
) -> None:
    """A message-streaming server that speaks the protocol of Apache Iggy.

    Without a command: run a node in the foreground until it is told to stop. It is ready when it prints the addresses
    it listens on, and when runtime/current_config.toml exists in its data directory.
    """
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if _was_given(context, name)]
        if given:
            raise click.UsageError(f"options of a node ({', '.join(given)}) do not go with a command")
        return
    sys.exit(serve(node, config_file, data, shards, fresh, with_default_root_credentials))


def _was_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def serve(
    node: int, config_file: str | None, data: str | None, shards: int | None, fresh: bool, default_credentials: bool
) -> int:
    """Run a node; returns its exit code."""
    from shardsrv import config
    from shardsrv.advice import advice
    from shardsrv.errors import ShardsrvError
    from shardsrv.shards import supervisor

    notices: tuple[config.Notice, ...] = ()
    if default_credentials:
        notices = (config.set_default_root_credentials(os.environ),)
    try:
        loaded, found = _load(config_file, data)
    except ShardsrvError as error:
        supervisor.complain(advice(error))
        return int(supervisor.ExitCode.OPERATOR)
    return supervisor.run(loaded, supervisor.Options(node=node, shards=shards, fresh=fresh, notices=notices + found))


def _load(config_file: str | None, data: str | None) -> tuple[Any, Any]:
    """The configuration and what there is to say about it. Raises `ConfigurationError`."""
    from shardsrv import config

    for name, value in config.dot_env(os.environ).items():
        os.environ.setdefault(name, value)
    options: dict[str, tuple[object, str]] = {"system.path": (data, "--data")} if data else {}
    return config.load(config_file, os.environ, options)


def _tool(name: str, directory: str, as_json: bool) -> int:
    """Run a tool of the store; its module is imported only here."""
    import importlib

    from shardsrv.advice import advice
    from shardsrv.errors import ShardsrvError
    from shardsrv.shards.control import exit_code

    run: Any = getattr(importlib.import_module(f"shardsrv.store.{name}"), name)
    try:
        return int(run(directory, as_json))
    except ShardsrvError as error:
        click.echo(f"shardsrv: {advice(error)}", err=True)
        return int(exit_code(error))


_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")


@main.command()
@_DIRECTORY
@_JSON
def inspect(directory: str, as_json: bool) -> None:
    """Show what a data directory holds: superblocks, boot record, snapshot, logs, partitions. Changes nothing."""
    sys.exit(_tool("inspect", directory, as_json))


@main.command()
@_DIRECTORY
@_JSON
def verify(directory: str, as_json: bool) -> None:
    """Check every seal and chain of a data directory; the exit code says clean, torn or damaged. Changes nothing."""
    sys.exit(_tool("verify", directory, as_json))


@main.command()
@_NODE
@_CONFIG
@_DATA
@click.option("--yes", is_flag=True, help="Do it; without this the command only says what it would do.")
def recover(node: int, config_file: str | None, data: str | None, yes: bool) -> None:
    """Let a node of a cluster begin anew whose data directory is lost or cannot be used any more.

    \b
    The other nodes refuse a node that comes back with another directory than it had, because it has forgotten what it
    acknowledged and promised. This command makes the directory one that says so: the node then joins as one that holds
    nothing, counts in no quorum, and gets everything from the others.

    \b
    Before you do it:
      * the node is stopped, and will never run on its old directory again: the others refuse that one from then on;
      * a majority of the other nodes runs and has its data: what only this node held is gone;
      * the root user is in the environment (IGGY_ROOT_USERNAME, IGGY_ROOT_PASSWORD), as for a new node.

    What the directory still holds is kept below before-recover-N in it; remove that when you need it no more.
    """
    sys.exit(_recover(node, config_file, data, yes))


def _recover(node: int, config_file: str | None, data: str | None, confirmed: bool) -> int:
    """Begin a node anew; returns the exit code."""
    from pathlib import Path

    from shardsrv.advice import advice
    from shardsrv.errors import ConfigurationError, ShardsrvError
    from shardsrv.shards import rejoin, supervisor
    from shardsrv.shards.control import exit_code

    try:
        loaded, _ = _load(config_file, data)
        supervisor.check_node(loaded, node)
        if not loaded.cluster.enabled:
            raise ConfigurationError("cluster.enabled", False, "a node alone has nobody to get its data from")
        path = Path(loaded.system.path).absolute()
        where = f"node {node} of cluster {loaded.cluster.name} in {path}"
        if not confirmed:
            click.echo(f"{where} would begin anew: what it holds is set aside. Nothing was changed; do it with --yes.")
            return int(supervisor.ExitCode.OPERATOR)
        kept = rejoin.begin_anew(path, loaded.cluster.name, node)
    except ShardsrvError as error:
        click.echo(f"shardsrv: {advice(error)}", err=True)
        return int(exit_code(error))
    click.echo(f"{where} begins anew with its next start." + (f" What it held is in {kept}." if kept else ""))
    return 0
