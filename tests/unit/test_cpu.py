"""Shards and cores: every form of the allocation against small machines, and the kernel's files."""

from pathlib import Path

import pytest

from shardsrv.errors import ConfigurationError
from shardsrv.quantities import parse_cpu_allocation
from shardsrv.shards.cpu import CpuPlan, Machine, cgroup_quota, parse_core_list, plan, this_machine

FOUR = Machine((0, 1, 2, 3), None, ((0, 1), (2, 3)), ((0, 0), (1, 0), (2, 2), (3, 2)))


def of(text: str | int, machine: Machine = FOUR, shards: int | None = None, pin: bool = True) -> CpuPlan:
    return plan(parse_cpu_allocation(text), machine, shards=shards, pin=pin)


@pytest.mark.parametrize(
    ("text", "count", "pins"),
    [
        ("all", 4, (0, 1, 2, 3)),
        ("numa:auto", 4, (0, 1, 2, 3)),
        (3, 3, (0, 1, 2)),
        ("2", 2, (0, 1)),
        ("2..4", 2, (2, 3)),
        ("numa:nodes=1", 2, (2, 3)),
        ("numa:nodes=0,1;cores=1", 2, (0, 2)),
        ("numa:nodes=0,1;no_ht=true", 2, (0, 2)),
    ],
)
def test_a_core_for_each_shard_binds_them(text: str | int, count: int, pins: tuple[int, ...]) -> None:
    assert of(text) == CpuPlan(count, pins)


@pytest.mark.parametrize(("text", "count"), [("0..1", 2), (1, 2), (6, 6), ("2..8", 6), ("numa:nodes=0;cores=1", 2)])
def test_fewer_cores_than_shards_bind_nothing(text: str | int, count: int) -> None:
    found = of(text)
    assert (found.shard_count, found.pins) == (count, (None,) * count)
    assert "share" in found.reason


def test_one_core_still_has_two_shards() -> None:
    assert of("all", Machine((5,))).shard_count == 2


@pytest.mark.parametrize(
    ("quota", "count", "bound"), [(2.5, 2, True), (1.0, 2, False), (0.5, 2, False), (9.0, 4, True)]
)
def test_a_quota_bounds_the_shards_and_binding(quota: float, count: int, bound: bool) -> None:
    found = of("all", Machine((0, 1, 2, 3), quota))
    assert found.shard_count == count
    assert (found.pins[0] is not None) is bound


def test_the_operator_has_the_last_word_on_the_number() -> None:
    assert of("all", shards=3) == CpuPlan(3, (0, 1, 2))
    assert of("all", shards=5).pins == (None,) * 5
    with pytest.raises(ConfigurationError, match=r"2 \.\. 64"):
        of("all", shards=65)


def test_binding_can_be_turned_off() -> None:
    assert of("all", pin=False).pins == (None,) * 4


@pytest.mark.parametrize("text", ["8..12", "numa:nodes=7"])
def test_an_allocation_without_any_granted_core_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="cores 0, 1, 2, 3"):
        of(text)


def test_never_more_than_64_shards() -> None:
    assert of("all", Machine(tuple(range(256)))).shard_count == 64


@pytest.mark.parametrize(("text", "cores"), [("0-3,8\n", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ())])
def test_core_lists_of_the_kernel(text: str, cores: tuple[int, ...]) -> None:
    assert parse_core_list(text) == cores


def test_the_lowest_quota_of_the_groups_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "membership").write_text("0::/a/b\n")
    assert cgroup_quota(tmp_path, tmp_path / "membership") == 1.5


def test_the_quota_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "a").mkdir(parents=True)
    (tmp_path / "cpu" / "a" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "a" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "membership").write_text("7:memory:/a\n4:cpu,cpuacct:/a\n")
    assert cgroup_quota(tmp_path, tmp_path / "membership") == 3.0


def test_no_quota_is_none(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path, tmp_path / "absent") is None


def test_this_machine_has_cores_in_nodes() -> None:
    machine = this_machine()
    assert machine.cores and set(machine.cores) <= {core for node in machine.nodes for core in node}
