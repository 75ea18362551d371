"""A short run of the fuzzer of a living node; with --long a hundred thousand frames. And it sees what goes wrong."""

from pathlib import Path

import pytest

from tests.fuzz.frames import Frames
from tests.fuzz.node import NodeFuzzer, Report, fuzz
from tests.fuzz.wire_line import Line, Unexpected, Volley
from tests.support.frames import HEADER_SIZE, NON_REPLICATED, PING, request_header
from tests.support.node import Node

SHORT, LONG = 5_000, 100_000


def test_every_frame_is_answered_and_nothing_ends(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    report = fuzz(tmp_path, LONG if request.config.getoption("--long") else SHORT, seed=1, shards=3)
    print("\n".join(report.lines()))
    assert report.findings == []
    assert report.answers["reply"] > report.frames // 20, "frames that are all refused reach little"


def test_a_process_that_ends_is_found(tmp_path: Path) -> None:
    report = Report()
    with Node(tmp_path) as node:
        fuzzer = NodeFuzzer(node, Frames(1), report)
        node.kill_shard(1)
        fuzzer.watch()
    assert "ended" in report.findings[0]


def ping(line: Line, request: int, command: int = 5) -> bytes:
    return request_header(
        operation=NON_REPLICATED,
        size=HEADER_SIZE,
        client=line.client.client,
        session=0,
        request=request,
        code=PING,
        command=command,
    )


def test_a_missing_and_a_disordered_answer_are_found(node: Node) -> None:
    """Answers to one volley, held against another."""
    line = Line(node, logged_in=False)
    line.begin(Volley([ping(line, 1), ping(line, 2, command=9), ping(line, 3)]))
    while not line.done:
        line.write()
        line.read()
    line.check()
    for other in ([ping(line, 3), ping(line, 1)], [ping(line, number) for number in (1, 2, 3)]):
        line.volley = Volley(other)
        with pytest.raises(Unexpected):
            line.check()
    line.close()
