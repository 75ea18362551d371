"""C029: variables of other programs do not hinder the start; a misspelt one of ours is named with its nearest."""

from pathlib import Path

from tests.support.node import Node


def test_variables_of_others(tmp_path: Path) -> None:
    environment = {"IGGY_USERNAME": "iggy", "IGGY_CONNECTORS_X": "1", "IGGY_MCP_Y": "1", "IGGY_TCP_ADRESS": "x"}
    with Node(tmp_path, environment=environment) as node:
        log = node.log_tail(200)
        assert "IGGY_TCP_ADRESS" in log and "IGGY_TCP_ADDRESS" in log
