"""A short run of lies between members; with --long more. And it sees what goes wrong."""

import pytest

from shardsrv.vsr import member
from shardsrv.vsr.suffix import decode_view
from shardsrv.wire.replica_headers import CommitHeader
from tests.fuzz.members import MemberFuzzer, Report

SHORT, LONG = 5_000, 200_000


def test_no_frame_ends_the_member_that_takes_it_in(request: pytest.FixtureRequest) -> None:
    report = Report()
    MemberFuzzer(1, report).run(LONG if request.config.getoption("--long") else SHORT)
    print("\n".join(report.lines()))
    assert report.findings == {}
    assert report.taken > report.frames // 4, "most lies must look like frames"


def test_an_exception_of_the_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(member.HANDLERS, CommitHeader, lambda replica, event, out: decode_view(0, b"no suffix"))
    report = Report()
    MemberFuzzer(1, report).run(100)
    assert any("DecodeError" in what for what in report.findings), report.lines()
