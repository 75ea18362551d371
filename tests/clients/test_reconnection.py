"""C032: released clients with reconnection on go through a kill of the node without help, and lose nothing."""

import subprocess
from pathlib import Path

import pytest

from tests.clients.test_python_client import RUN_SECONDS, VERSIONS, cache, interpreter
from tests.support.client import Client, Refused
from tests.support.frames import GET_ME
from tests.support.node import Node

__all__ = ["cache"]

SCRIPT = Path(__file__).with_name("reconnecting.py")

pytestmark = pytest.mark.clients


def test_a_producer_and_a_group_go_through_a_kill(cache: Path, tmp_path: Path) -> None:
    python = interpreter(cache, VERSIONS[0])
    with Node(tmp_path) as node, (tmp_path / "errors").open("w+") as errors:
        command = [str(python), str(SCRIPT), f"{node.host}:{node.port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as script:
            assert script.stdout is not None
            try:
                assert script.stdout.readline() == "flowing\n", (tmp_path / "errors").read_text()
                node.kill()
                assert script.stdout.readline() == "waiting\n", (tmp_path / "errors").read_text()
                node.start()
                output, _ = script.communicate(timeout=RUN_SECONDS)
            finally:
                script.kill()
        assert output.splitlines()[-1:] == ["done"], f"{(tmp_path / 'errors').read_text()}\n{node.log_tail()}"
        with Client(node.host, node.port) as stranger:
            stranger.client = b"never logged in."
            with pytest.raises(Refused) as refused:
                stranger.read(GET_ME)
            assert refused.value.code == 40
