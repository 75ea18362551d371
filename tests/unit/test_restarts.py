"""Back-off and the crash loop, with the clock as an argument."""

import pytest

from shardsrv.errors import CrashLoop
from shardsrv.shards.restarts import RestartPolicy


def test_the_first_restart_is_at_once_and_then_the_delay_doubles_to_a_bound() -> None:
    policy = RestartPolicy()
    delays = [policy.died(100.0 * n, f"cause {n}", ready_since=100.0 * n - 1, killed=False) for n in range(1, 10)]
    assert delays == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_ten_seconds_of_readiness_forget_the_delay() -> None:
    policy = RestartPolicy()
    for n in range(4):
        policy.died(100.0 * n, str(n), ready_since=100.0 * n, killed=False)
    assert policy.died(1000.0, "x", ready_since=990.0, killed=False) == 0.0
    assert policy.died(1009.0, "y", ready_since=1000.0, killed=False) == 0.25


def test_three_deaths_in_a_row_before_readiness_are_a_crash_loop() -> None:
    policy = RestartPolicy()
    policy.died(0.0, "a", ready_since=None, killed=False)
    policy.died(1.0, "b", ready_since=None, killed=False)
    with pytest.raises(CrashLoop) as loop:
        policy.died(2.0, "c", ready_since=None, killed=False)
    assert (loop.value.cause, loop.value.deaths) == ("c", 3)


def test_a_readiness_between_breaks_the_row() -> None:
    policy = RestartPolicy()
    for n, ready in enumerate([None, None, 90.0, None, None]):
        policy.died(100.0 * n, str(n), ready_since=ready, killed=False)
    with pytest.raises(CrashLoop):
        policy.died(600.0, "last", ready_since=None, killed=False)


def test_five_deaths_of_one_cause_within_a_minute_are_a_crash_loop() -> None:
    policy = RestartPolicy()
    for n in range(4):
        policy.died(14.0 * n, "same", ready_since=14.0 * n - 1, killed=False)
        policy.died(14.0 * n + 1, f"other {n}", ready_since=14.0 * n, killed=False)
    with pytest.raises(CrashLoop) as loop:
        policy.died(56.0, "same", ready_since=55.0, killed=False)
    assert (loop.value.cause, loop.value.deaths, loop.value.seconds) == ("same", 5, 56.0)


def test_five_deaths_of_one_cause_over_more_than_a_minute_are_not() -> None:
    policy = RestartPolicy()
    for n in range(20):
        policy.died(16.0 * n, "same", ready_since=16.0 * n - 1, killed=False)


def test_a_kill_signal_is_no_cause_and_costs_half_a_second_at_most() -> None:
    policy = RestartPolicy()
    delays = [policy.died(float(n), "killed", ready_since=None, killed=True) for n in range(30)]
    assert delays[0] == 0.0 and max(delays) == 0.5
