"""The hashes of the compiled core: published values, the package's own call, and the fallback without C symbols."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardsrv import _core
from tests.support.batches import encode_batch


def test_published_values_of_the_empty_string() -> None:
    assert _core.xxh3(b"") == 0x2D06800538D394C2
    assert _core.xxh32(b"") == 0x02CC5D05


@given(st.binary(max_size=5000))
def test_equal_to_the_package(data: bytes) -> None:
    assert _core.xxh3(data) == xxhash.xxh3_64_intdigest(data)
    assert _core.xxh32(data) == xxhash.xxh32_intdigest(data)


@pytest.mark.parametrize("length", [65535, 65536, 65537, 1_000_003])
def test_long_buffers_of_any_kind(length: int) -> None:
    data = os.urandom(length)
    for buffer in (data, bytearray(data), memoryview(data), memoryview(b"x" + data)[1:]):
        assert _core.xxh3(buffer) == xxhash.xxh3_64_intdigest(data)
        assert _core.xxh32(buffer) == xxhash.xxh32_intdigest(data)


def test_no_buffer_and_no_contiguous_buffer_are_type_and_buffer_errors() -> None:
    with pytest.raises(TypeError):
        _core.xxh3("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        _core.xxh3(memoryview(b"abcdef")[::2])


def ran_beside(call: Callable[[], object]) -> bool:
    """Whether another thread ran during ``call``. Switching by time is off: only a release lets it in."""
    gate, ran = threading.Lock(), threading.Event()
    gate.acquire()

    def other() -> None:
        gate.acquire()
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    gate.release()
    call()
    inside = ran.is_set()
    thread.join()
    return inside


def test_long_work_lets_other_threads_run_and_short_work_does_not() -> None:
    long, short = bytes(64 << 20), bytes(4096)
    batch = encode_batch([bytes(60_000)] * 500)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        assert any(ran_beside(lambda: _core.xxh3(long)) for _ in range(50))
        assert any(ran_beside(lambda: _core.check_batch(batch)) for _ in range(50))
        assert not any(ran_beside(lambda: _core.xxh3(short)) for _ in range(20))
    finally:
        sys.setswitchinterval(interval)


FALLBACK = """
import os, xxhash
from shardsrv import _core
from tests.support.batches import encode_batch
from tests.support.entries import entry, send_body
assert _core.HASH_BACKEND == "python", _core.HASH_BACKEND
for length in (0, 1, 300, 70_000):
    data = os.urandom(length)
    assert _core.xxh3(data) == xxhash.xxh3_64_intdigest(data)
    assert _core.xxh32(data) == xxhash.xxh32_intdigest(data)
batch = encode_batch([b"x" * 1000] * 600)
numeric = b"\\x01\\x04\\0\\0\\0\\0"
assert _core.parse_send(send_body(batch, numeric, numeric, b"\\x01\\0", 600)).message_count == 600
body = os.urandom(100_000)
assert _core.Prepare.verify(entry(body, xxhash.xxh3_64_intdigest(body))) == _core.VALID
print("same")
"""


def test_python_fallback_gives_the_same_values() -> None:
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-c", FALLBACK],
        cwd=root,
        env={**os.environ, "SHARDSRV_XXHASH": "python"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout.strip() == "same", result.stderr
