"""Micro benchmarks of the compiled core: `python -m pytest bench/test_core.py`. Median times are what to look at.

The budgets they serve: two hash passes a byte on the way of a batch, and single microseconds a request beside them.
"""

import os
import struct
from collections.abc import Callable
from typing import Any

import pytest

from shardsrv import _core
from tests.support.batches import encode_batch
from tests.support.entries import SEND_MESSAGES, log_of, send_body, stamped

Benchmark = Callable[..., Any]

NUMERIC = b"\x01\x04\0\0\0\0"
PARTITION = b"\x02\x04\0\0\0\0"
SHAPES = {"1x100": (1, 100), "100x100": (100, 100), "1000x1000": (1000, 1000)}
FIELDS: dict[str, Any] = {
    "cluster": bytes(16),
    "view": 1,
    "replica": 0,
    "client": bytes(16),
    "parent": 5,
    "request_checksum": 6,
    "commit": 6,
    "timestamp": 1_700_000_000_000_000,
    "request": 8,
    "group": 3,
    "user_id": 1,
    "created_revision": 4,
    "durability": 0,
}


def batch_of(shape: str) -> bytes:
    messages, size = SHAPES[shape]
    return encode_batch([os.urandom(size) for _ in range(messages)])


def log_of_batches(shape: str, entries: int) -> bytes:
    batch, count = batch_of(shape), SHAPES[shape][0]
    return log_of([(SEND_MESSAGES, stamped(batch, 0, index * count, 1000 + index)) for index in range(entries)])


@pytest.mark.parametrize("length", [8, 256, 4096, 1 << 20])
def test_xxh3(benchmark: Benchmark, length: int) -> None:
    data = os.urandom(length)
    assert benchmark(_core.xxh3, data) == _core.xxh3(data)


@pytest.mark.parametrize("shape", SHAPES)
def test_parse_send(benchmark: Benchmark, shape: str) -> None:
    body = send_body(batch_of(shape), NUMERIC, NUMERIC, PARTITION, SHAPES[shape][0])
    assert benchmark(_core.parse_send, body).message_count == SHAPES[shape][0]


@pytest.mark.parametrize("shape", SHAPES)
def test_stamp(benchmark: Benchmark, shape: str) -> None:
    batch = bytearray(batch_of(shape))
    benchmark(_core.stamp_batch, batch, 1, 2, 3)
    assert _core.check_batch(batch) == 0


def test_build_and_seal(benchmark: Benchmark) -> None:
    body = stamped(batch_of("1x100"), 0, 0, 1)
    checksum = struct.unpack_from("<Q", body, 40)[0]

    def build() -> _core.Prepare:
        return _core.Prepare.build(**FIELDS, op=7, operation=160, body=body, checksum_body=checksum)

    prepare = benchmark(build)
    assert _core.Prepare.verify(bytes(prepare.header) + body) == _core.VALID


def test_one_attribute(benchmark: Benchmark) -> None:
    prepare = _core.Prepare.load(log_of_batches("1x100", 1))
    assert benchmark(lambda: prepare.op) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_verify(benchmark: Benchmark, shape: str) -> None:
    log = log_of_batches(shape, 1)
    assert benchmark(_core.Prepare.verify, log) == _core.VALID


def test_load(benchmark: Benchmark) -> None:
    log = log_of_batches("1x100", 1)
    assert benchmark(_core.Prepare.load, log).op == 1


@pytest.mark.parametrize(("shape", "entries"), [("1x100", 1000), ("1000x1000", 8)])
@pytest.mark.parametrize("objects", [False, True])
def test_scan_log(benchmark: Benchmark, shape: str, entries: int, objects: bool) -> None:
    log = log_of_batches(shape, entries)
    seen = (lambda prepare, position: None) if objects else None
    assert benchmark(_core.scan_log, log, 0, 0, 1, seen).count == entries


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(("shape", "entries"), [("1x100", 100), ("1000x1000", 8)])
def test_slice_whole(benchmark: Benchmark, shape: str, entries: int, check: bool) -> None:
    log = log_of_batches(shape, entries)
    count = entries * SHAPES[shape][0]
    result = benchmark(_core.slice_prepares, log, 0, len(log), 0, count, 1 << 60, False, check)
    assert result.count == count


def test_slice_cut_out_of_a_batch(benchmark: Benchmark) -> None:
    log = log_of_batches("1000x1000", 1)
    assert benchmark(_core.slice_prepares, log, 0, len(log), 500, 10, 1 << 60).count == 10


def test_send_reply_body(benchmark: Benchmark) -> None:
    assert len(benchmark(_core.send_reply_body, 1, 2, 3, 4)) == 24


def test_dedup_key(benchmark: Benchmark) -> None:
    assert len(benchmark(_core.dedup_key, bytes(16), 1, 160, 2, 3)) == 41
