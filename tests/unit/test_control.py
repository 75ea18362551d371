"""The control channel: whole messages, pieces, the end, and what an error becomes."""

import socket

import pytest

from shardsrv.errors import CrashLoop, DiskFull, OurFault, PortInUse, SyncFailed
from shardsrv.shards.control import ControlChannel, ControlMessage, ExitCode, cause_of, exit_code, leaf


def test_messages_arrive_in_order_and_receive_never_waits() -> None:
    ours, theirs = ControlChannel.pair()
    assert theirs.receive() == []
    ours.send("serve", addresses={"tcp": "127.0.0.1:1"})
    ours.send("stop", deadline_seconds=1.5)
    assert theirs.receive() == [
        ControlMessage("serve", {"addresses": {"tcp": "127.0.0.1:1"}}),
        ControlMessage("stop", {"deadline_seconds": 1.5}),
    ]
    assert theirs.ready(partitions=3) and theirs.stopped(clean=True)
    assert [message.kind for message in ours.receive()] == ["ready", "stopped"]
    ours.close()
    theirs.close()


def test_a_message_in_pieces_is_whole_or_absent() -> None:
    raw, side = socket.socketpair()
    channel = ControlChannel(side)
    raw.send(b'{"kind":"ser')
    assert channel.receive() == []
    raw.send(b've","a":1}\n{"kind":"stop"}')
    assert channel.receive() == [ControlMessage("serve", {"a": 1})]
    raw.close()
    assert channel.receive() == [] and channel.ended
    channel.close()


def test_what_was_said_before_the_end_is_heard() -> None:
    ours, theirs = ControlChannel.pair()
    theirs.stopped(clean=False)
    theirs.close()
    assert ours.receive() == [ControlMessage("stopped", {"clean": False})]
    assert ours.ended
    assert ours.send("stop") is False
    ours.close()


@pytest.mark.parametrize("line", [b"[]\n", b"nonsense\n", b'{"no":"kind"}\n'])
def test_what_is_no_message_is_a_defect(line: bytes) -> None:
    raw, side = socket.socketpair()
    channel = ControlChannel(side)
    raw.send(line)
    with pytest.raises(OurFault, match="control message"):
        channel.receive()
    raw.close()
    channel.close()


def test_a_message_that_is_too_long_is_a_defect() -> None:
    ours, theirs = ControlChannel.pair()
    with pytest.raises(OurFault, match="bytes"):
        ours.send("serve", blob="x" * (1 << 20))
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DiskFull(path="/d", needed=2, available=1), ExitCode.DISK),
        (PortInUse("127.0.0.1", 8090), ExitCode.OPERATOR),
        (CrashLoop(cause="x", deaths=3, seconds=1.0), ExitCode.CRASH_LOOP),
        (KeyError("x"), ExitCode.DEFECT),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(error: Exception, code: ExitCode) -> None:
    assert exit_code(error) is code


def test_in_a_group_the_disk_comes_first() -> None:
    disk = SyncFailed(path="/d", errno=5)
    group = BaseExceptionGroup("a", [KeyError("x"), ExceptionGroup("b", [PortInUse("127.0.0.1", 1), disk])])
    assert leaf(group) is disk
    ours, theirs = ControlChannel.pair()
    assert theirs.fatal(group) is ExitCode.DISK
    (message,) = ours.receive()
    assert message.fields["code"] == 3 and "syncing /d failed (errno 5)" in message.fields["text"]
    ours.close()
    theirs.close()


def test_two_deaths_at_one_place_have_one_cause_whatever_the_values() -> None:
    causes = set()
    for value in (1, 2):
        try:
            raise ValueError(value)
        except ValueError as error:
            causes.add(cause_of(error))
    assert len(causes) == 1 and "ValueError in test_two_deaths" in causes.pop()
    assert cause_of(ValueError()) == "ValueError"
