"""Rules that hold because one function follows them: nothing else in the room of consensus does the same. Read from the
syntax, nothing is executed. And numbers that stand twice, in the configuration and in the code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardsrv.config_sources import embedded
from shardsrv.quantities import parse_duration, parse_size
from shardsrv.vsr.policy import metadata_policy, partition_policy
from shardsrv.vsr.timeouts import DEFAULT_TIMEOUTS
from shardsrv.vsr.transfer_limits import FRAME_MAX_DEFAULT, TransferLimits

VSR = Path(__file__).resolve().parents[2] / "shardsrv" / "vsr"
TICK = 0.01
"""Seconds of a tick."""


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """(name, node) of every function and method; a method's name begins with its class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{item.name}", item) for item in node.body if isinstance(item, ast.FunctionDef))


def places(rule: Callable[[ast.AST], bool], texts: dict[str, str] | None = None) -> set[str]:
    """``module.function`` of every function of the room with a node that ``rule`` picks."""
    if texts is None:
        texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(VSR.glob("*.py"))}
    return {
        f"{module}.{name}"
        for module, text in texts.items()
        for name, function in functions(ast.parse(text))
        if any(rule(node) for node in ast.walk(function))
    }


def assigns(*attributes: str) -> Callable[[ast.AST], bool]:
    """Picks assignments to one of the attributes of anything."""

    def rule(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in attributes and isinstance(node.ctx, ast.Store)

    return rule


def calls(name: str) -> Callable[[ast.AST], bool]:
    """Picks calls of a function by the end of its dotted name."""

    def rule(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and f".{ast.unparse(node.func)}".endswith(f".{name}")

    return rule


def test_the_head_moves_in_known_places_only() -> None:
    """S1-16: an entry that arrives moves it in `ingest.append`, by the rule of `head`, whichever way it came; the other
    places are the primary's own entry, the replay of the own log, a cut and an install."""
    assert places(assigns("head_op", "head_checksum")) == {
        "ingest.append",
        "ingest.cut",
        "member.installed",
        "replica.Replica.__init__",
        "replica.Replica._append",
        "replica.Replica.take_head",
    }
    assert places(calls("refreshed")) == {"ingest.append"}
    assert places(calls("ingest.offer")) == {"normal.on_prepare", "repair.on_repair_prepare"}


def test_state_changes_through_one_function_live_and_in_recovery() -> None:
    """S0-37."""
    assert places(calls("plane.apply")) == {"client_gate.ClientGate._commit", "replica.Replica.commit_entry"}
    assert places(calls("commit_entry")) == {
        "ingest.commit",
        "member.committed_so_far",
        "replica.Replica.advance_commit",
        "replica.Replica.replay",
    }


def test_a_transfer_begins_in_one_function() -> None:
    """S2-49: copies of it would drift apart."""
    assert places(calls("Session")) == {"transfer_receiver.TransferReceiver.arm"}
    assert places(calls("RequestStateTransferHeader")) == {"transfer_session.ask_target"}
    assert places(calls("ask_target")) == {
        "transfer_receiver.TransferReceiver.arm",
        "transfer_receiver.TransferReceiver.tick",
    }


def test_acknowledgements_are_made_in_one_function() -> None:
    """S2-34: each caller of it asks first whether anything may be acknowledged."""
    assert places(calls("PrepareOkHeader")) == {"normal._send_ok"}
    assert places(calls("_send_ok")) == {"normal._acknowledge_again", "normal._in_time", "normal.acknowledge"}
    assert places(calls("_may_acknowledge")) == {"normal._acknowledge_again", "normal.acknowledge"}


@pytest.mark.parametrize(
    ("text", "rule", "found"),
    [
        ("def f(r):\n    r.head_op = 1", assigns("head_op"), {"m.f"}),
        ("class C:\n    def f(self):\n        self.a, self.head_op = 1, 2", assigns("head_op"), {"m.C.f"}),
        ("def f(r):\n    return r.head_op", assigns("head_op"), set()),
        ("def f(r):\n    x = lambda: r.plane.apply(1)", calls("plane.apply"), {"m.f"}),
        ("def f(r):\n    r.airplane.apply(1)", calls("plane.apply"), set()),
    ],
)
def test_places_are_found(text: str, rule: Callable[[ast.AST], bool], found: set[str]) -> None:
    assert places(rule, {"m": text}) == found


def test_the_configuration_repeats_the_numbers_of_the_code() -> None:
    """S2-26: defaults stand where people read them and where the pure room has them."""
    given = embedded()
    cluster, metadata = given["cluster"], given["metadata"]

    def ticks(key: str) -> int:
        return round(parse_duration(cluster[key]) / TICK)

    assert cluster["repair_chunk_max"] == metadata_policy().repair_chunk == partition_policy().repair_chunk
    assert metadata["prepare_queue_depth"] == metadata_policy().pipeline_depth
    assert metadata["clients_table_max"] == metadata_policy().clients_max
    assert parse_size(given["message_bus"]["max_message_size"]) == FRAME_MAX_DEFAULT == TransferLimits().frame_max
    assert ticks("repair_retry_interval") == TransferLimits().retry_ticks == DEFAULT_TIMEOUTS.repair
    assert ticks("heartbeat_timeout") == DEFAULT_TIMEOUTS.heartbeat
    assert ticks("commit_broadcast_interval") == DEFAULT_TIMEOUTS.commit
    assert ticks("prepare_retransmit_interval") == DEFAULT_TIMEOUTS.prepare
    assert ticks("view_change_retransmit_interval") == DEFAULT_TIMEOUTS.view_change
    assert ticks("view_change_status_timeout") == DEFAULT_TIMEOUTS.view_change_status
    assert ticks("request_start_view_retransmit_interval") == DEFAULT_TIMEOUTS.probe
    assert cluster["view_probe_attempts_max"] == DEFAULT_TIMEOUTS.probe_attempts
    TransferLimits().check_queue(given["message_bus"]["peer_queue_capacity"])
    assert cluster["repair_chunk_max"] < given["message_bus"]["peer_queue_capacity"], "an answer rides that queue"
