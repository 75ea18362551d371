"""What the deciding half of a send costs: one request stepped into an entry, one report of its write stepped into a
commit.

The whole of it is measured: deduplication, stamping, sealing, pipeline, apply, reply body. One batch of one message of
100 bytes.
"""

from typing import Any

import pytest

from shardsrv.plane.partition.plane import PartitionPlane
from shardsrv.vsr.events import APPENDED, Persisted, Request, StatePersisted
from shardsrv.vsr.policy import partition_policy
from shardsrv.vsr.replica import GroupIdentity, Replica
from tests.support.groups import CLUSTER, GROUP, SEND, batch, client_id

ROUNDS = 2000


def replica() -> Replica:
    made = Replica.recover(GroupIdentity(CLUSTER, GROUP, 7), partition_policy(64), PartitionPlane(1, 2, 3), None)
    (write,) = made.start()
    made.step(StatePersisted(write.token, write.state))
    return made


def requests(count: int) -> list[Request]:
    payload = batch(b"x" * 100)
    return [
        Request(client_id(1), 5, number, SEND, 4, number, 0, payload, None, number) for number in range(1, count + 1)
    ]


def run(target: Replica, events: list[Request], together: int) -> None:
    """Each request is a step; a report of writes comes after every ``together`` of them."""
    step = target.step
    token: Any = 0
    for index, request in enumerate(events, 1):
        token = step(request)[0].token
        if index % together == 0:
            step(Persisted(token, APPENDED))


@pytest.mark.parametrize("together", [1, 32])
def test_send_through_the_replica(benchmark: Any, together: int) -> None:
    """Divide by ROUNDS for the cost of one send."""

    def fresh() -> tuple[tuple[Replica, list[Request], int], dict[str, Any]]:
        return (replica(), requests(ROUNDS), together), {}

    benchmark.pedantic(run, setup=fresh, rounds=20)


def test_retry_from_the_window(benchmark: Any) -> None:
    """A request that is answered from the window."""
    target = replica()
    (known,) = requests(1)
    run(target, [known], 1)
    assert type(benchmark(target.step, known)[0]).__name__ == "Repeat"
