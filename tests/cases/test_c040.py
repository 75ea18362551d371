"""C040: passwords and tokens are in no file, and passwords that were changed work after restarts."""

from pathlib import Path

import pytest

from tests.support.client import Client, Evicted
from tests.support.commands import change_password, create_token, create_user
from tests.support.node import Node

ROOT_PASSWORD = "root-password-in-clear"
SECRETS = ["first-password-in-clear", "second-password-in-clear", ROOT_PASSWORD]


def test_secrets_stay_secret(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        with node.client() as client:
            create_user(client, "anna", SECRETS[0])
            change_password(client, "anna", SECRETS[0], SECRETS[1])
            change_password(client, "iggy", "iggy", ROOT_PASSWORD)
            token = create_token(client, "token")
        for _ in range(2):
            node.stop()
            node.start(password=ROOT_PASSWORD)
            with Client(node.host, node.port) as anna:
                anna.login("anna", SECRETS[1])
            with Client(node.host, node.port) as anna, pytest.raises(Evicted) as evicted:
                anna.login("anna", SECRETS[0])
            assert evicted.value.reason == 9
        node.stop()
        for path in tmp_path.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                for secret in [*SECRETS, token]:
                    assert secret.encode() not in data, path
