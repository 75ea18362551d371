"""What many cases begin with."""

import pytest

from tests.support.client import Client


@pytest.fixture
def topic(client: Client) -> None:
    """Stream ``s`` with topic ``t`` of one partition."""
    client.create_stream("s")
    client.create_topic("s", "t")
