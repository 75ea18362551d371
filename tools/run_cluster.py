"""Runs every node of a cluster configuration on this machine, in the foreground, until it is told to stop.

    python tools/run_cluster.py [--config docs/cluster.toml] [--data ./local_cluster] [options of every node ...]

Each node has its data in ``DIR/node-N``; the root user is iggy with password iggy: for development. Ctrl-C or SIGTERM
stops all of them in good order. The exit code is the highest of theirs.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--config", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "cluster.toml")
    flags.add_argument("--data", type=Path, default=Path("local_cluster"))
    given, options = flags.parse_known_args()
    nodes = tomllib.loads(given.config.read_text(encoding="utf-8"))["cluster"]["nodes"]
    running = [start(node["replica_id"], given.config, given.data, options) for node in nodes]

    def pass_on(number: int, _frame: object) -> None:
        for process in running:
            process.send_signal(number)

    for number in STOPPING:
        signal.signal(number, pass_on)
    return max(process.wait() for process in running)


def start(node: int, config: Path, data: Path, options: list[str]) -> subprocess.Popen[bytes]:
    """A node in a session of its own: a Ctrl-C of the terminal reaches it once, through this process."""
    command = [sys.executable, "-m", "shardsrv", "--node", str(node), "--config", str(config)]
    command += ["--data", str(data / f"node-{node}"), "--with-default-root-credentials", *options]
    return subprocess.Popen(command, start_new_session=True)


if __name__ == "__main__":
    sys.exit(main())
