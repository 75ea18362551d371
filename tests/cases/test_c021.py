"""C021: tokens end when they say, are capped, are shown once and are in no file."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.client import Client, Evicted, Refused
from tests.support.commands import CREATE_TOKEN, create_token, delete_token, login_with_token, tokens
from tests.support.node import Node

CAP = 100
SECOND = 1_000_000


def outcome(node: Node, token: str) -> int:
    """0, or the reason of the eviction of a login with the token."""
    with Client(node.host, node.port) as client:
        try:
            login_with_token(client, token)
        except Evicted as eviction:
            return eviction.reason
        return 0


def test_expiry_and_cleaning(tmp_path: Path, eventually: Callable[..., None]) -> None:
    with Node(tmp_path, environment={"IGGY_PERSONAL_ACCESS_TOKEN_CLEANER_INTERVAL": "500 ms"}) as node:
        with node.client() as client:
            short = create_token(client, "short", SECOND)
            long = create_token(client, "long", 3600 * SECOND)
            ever = create_token(client, "ever")
            assert outcome(node, short) == outcome(node, long) == outcome(node, ever) == 0
            time.sleep(1.2)
            assert outcome(node, short) == 10
            eventually(lambda: set(tokens(client)) == {"long", "ever"}, 3.0)
            later = create_token(client, "later", 2 * SECOND)
            made = time.monotonic()
        node.restart()
        if time.monotonic() - made < 1.5:
            assert outcome(node, later) == 0
        time.sleep(max(0.0, made + 2.2 - time.monotonic()))
        assert outcome(node, later) == 10
        assert outcome(node, long) == outcome(node, ever) == 0
        texts = [token.encode() for token in (short, long, ever, later)]
        for path in tmp_path.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert not any(text in data for text in texts), path


def test_cap_names_and_repeats(node: Node, client: Client) -> None:
    for number in range(CAP):
        create_token(client, f"token {number}")
    with pytest.raises(Refused) as refused:
        create_token(client, "one more")
    assert (refused.value.code, refused.value.channel) == (52, "status")
    delete_token(client, "token 0")
    with pytest.raises(Refused) as refused:
        create_token(client, "token 1")
    assert (refused.value.code, refused.value.channel) == (51, "result")
    text = create_token(client, "again")
    repeated = client.exchange(CREATE_TOKEN, b"\5again" + bytes(8), request=client.request)
    assert repeated.result == 51, "the secret is not shown twice"
    assert outcome(node, text) == 0
    delete_token(client, "again")
    assert outcome(node, text) == 10
    with pytest.raises(Refused) as refused:
        delete_token(client, "again")
    assert refused.value.code == 20
