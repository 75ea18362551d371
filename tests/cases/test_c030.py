"""C030: values of the environment arrive as they are, and one that cannot be read stops the start with its name."""

import tomllib
from pathlib import Path

import pytest

from tests.support.node import Node, NodeFailed


def test_values_take_effect(tmp_path: Path) -> None:
    environment = {
        "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "2 m",
        "IGGY_PARTITION_SYNC_BYTES": "10 MB",
        "IGGY_PERSONAL_ACCESS_TOKEN_MAX_TOKENS_PER_USER": "7",
        "IGGY_SYSTEM_PARTITION_VALIDATE_CHECKSUM": "false",
    }
    with Node(tmp_path, environment=environment) as node:
        (path,) = (node.data / "runtime").glob("*.toml")
        written = tomllib.loads(path.read_text())
    assert written["data_maintenance"]["messages"]["interval"] in ("2 m", "2m", "120 s", "120s")
    assert written["personal_access_token"]["max_tokens_per_user"] == 7
    assert written["system"]["partition"]["validate_checksum"] is False
    assert str(written["partition"]["sync_bytes"]).replace(" ", "") in ("10MB", "10000000B", "10000000")


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL", "data_maintenance.messages.interval"),
        ("IGGY_CONSUMER_GROUP_REBALANCING_TIMEOUT", "consumer_group.rebalancing_timeout"),
        ("IGGY_PERSONAL_ACCESS_TOKEN_MAX_TOKENS_PER_USER", "personal_access_token.max_tokens_per_user"),
    ],
)
def test_a_value_that_cannot_be_read(tmp_path: Path, variable: str, key: str) -> None:
    node = Node(tmp_path, environment={variable: "many"})
    with pytest.raises(NodeFailed):
        node.start()
    log = node.log_tail()
    assert key in log and "many" in log and variable in log
