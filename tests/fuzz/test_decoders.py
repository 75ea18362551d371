"""A short run of the decoder fuzzer; with --long a million executions. And the fuzzer itself finds what is planted."""

import time

import pytest

from shardsrv.errors import DecodeError
from tests.fuzz import corpus, seals
from tests.fuzz.decoders import SLOW_SECONDS, Fuzzer
from tests.fuzz.targets import Target, all_targets

SHORT, LONG = 50_000, 1_000_000
TARGETS = all_targets()


def test_nothing_but_refusals_leaves_a_decoder(request: pytest.FixtureRequest) -> None:
    report = Fuzzer(TARGETS, seed=1).run(LONG if request.config.getoption("--long") else SHORT)
    print("\n".join(report.lines()))
    assert report.findings == {}
    assert report.accepted > report.executions // 4, "mutations that nobody accepts reach no field behind the first"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_samples_are_what_the_decoder_reads(target: Target) -> None:
    """Some sample of every target is accepted, and seals that are made again are those of the sample."""
    accepted = 0
    for sample in target.samples:
        try:
            target.run(sample)
        except target.refusals:
            continue
        accepted += 1
        if target.seal is not None:
            sealed = bytearray(sample)
            target.seal(sealed)
            assert bytes(sealed) == sample
    assert accepted


def _fails(data: bytes) -> None:
    if len(data) > 4 and data[4] == 0xFF:
        raise KeyError(data[4])
    raise DecodeError("always")


def _slow(data: bytes) -> None:
    end = time.thread_time() + SLOW_SECONDS + 0.1
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize(("run", "found"), [(_fails, "KeyError"), (_slow, " s")], ids=["untyped", "slow"])
def test_a_planted_failure_is_found(run: object, found: str) -> None:
    target = Target("planted", [bytes(64)], run, (DecodeError,))  # type: ignore[arg-type]
    report = Fuzzer([target], seed=1).run(3000 if run is _fails else 1)
    assert any(found in what for what in report.findings), report.lines()


def test_a_mutated_body_behind_its_seals_is_accepted() -> None:
    """Without the seals made again a mutated frame never gets behind its checksum."""
    frame = bytearray(corpus.log()[1].restamped(5) + bytes(corpus.log()[1].body))
    frame[-1] ^= 1
    target = next(target for target in TARGETS if target.name == "replica frame")
    with pytest.raises(target.refusals):
        target.run(bytes(frame))
    seals.seal_replica_frame(frame)
    target.run(bytes(frame))
