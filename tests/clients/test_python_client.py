"""The released Python clients, of both generations, work unmodified against a node.

Each client lives in a virtual environment of its own, made once and kept in the cache directory of the user.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.node import Node

SCRIPTS = ("script.py", "script_groups.py")
VERSIONS = ("0.9.0", "0.9.0.dev6")
"""Versions of the package ``apache-iggy``: the released generation and the one before."""
INSTALL_SECONDS = 300
RUN_SECONDS = 60

pytestmark = pytest.mark.clients


@pytest.fixture(scope="session")
def cache() -> Path:
    """Where the environments are kept; ``SHARDSRV_CLIENT_CACHE`` names another place."""
    default = Path(tempfile.gettempdir()) / f"shardsrv-clients-{os.getuid()}"
    return Path(os.environ.get("SHARDSRV_CLIENT_CACHE", default))


def interpreter(cache: Path, version: str) -> Path:
    """The interpreter of the environment that holds this version of the client; made when it is not there."""
    environment = cache / f"apache-iggy-{version}-py{sys.version_info.major}{sys.version_info.minor}"
    python = environment / "bin" / "python"
    complete = environment / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True, timeout=INSTALL_SECONDS)
        install = [str(python), "-m", "pip", "install", "--quiet", f"apache-iggy=={version}"]
        subprocess.run(install, check=True, timeout=INSTALL_SECONDS)
        complete.touch()
    return python


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_script(version: str, script: str, cache: Path, tmp_path: Path) -> None:
    python = interpreter(cache, version)
    with Node(tmp_path) as node:
        command = [str(python), str(Path(__file__).with_name(script)), f"{node.host}:{node.port}"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
        assert run.returncode == 0, f"{run.stderr}\n{node.log_tail()}"
        assert run.stdout.splitlines()[-1:] == ["done"]
        assert node.stop() == 0
