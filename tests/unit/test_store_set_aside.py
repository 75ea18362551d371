"""A damaged directory keeps its bytes under another name, whatever happens in between."""

from __future__ import annotations

import errno

import pytest

from shardsrv.errors import DiskFault
from shardsrv.sim.disk import Call, SimDisk
from shardsrv.store.set_aside import asides, set_aside

PATH = "/data/partitions/1/2/0-7"


def disk_with(*names: str) -> SimDisk:
    disk = SimDisk()
    for name in names:
        disk.mkdir(name)
        disk.put(f"{name}/segment", name.encode())
    disk.syncfs(disk.open_read(f"{names[0]}/segment"))
    return disk


def test_the_directory_moves_whole_and_numbers_rise() -> None:
    disk = disk_with(PATH)
    assert set_aside(disk, PATH) == f"{PATH}.damaged-1"
    assert not disk.exists(PATH) and disk.read(f"{PATH}.damaged-1/segment") == PATH.encode()
    disk.mkdir(PATH)
    assert set_aside(disk, PATH) == f"{PATH}.damaged-2"
    assert asides(disk, PATH) == [f"{PATH}.damaged-1", f"{PATH}.damaged-2"]


def test_only_what_was_set_aside_of_this_directory_counts() -> None:
    disk = disk_with(PATH, f"{PATH}1.damaged-1", f"{PATH}.damaged-x", f"{PATH}.damaged-10", f"{PATH}.damaged-9")
    assert asides(disk, PATH) == [f"{PATH}.damaged-9", f"{PATH}.damaged-10"]
    assert asides(disk, "/nowhere/0-1") == []


def test_power_lost_at_any_moment_leaves_the_directory_under_one_of_the_names() -> None:
    seen = []
    disk = disk_with(PATH)

    def look(call: Call) -> None:
        seen.extend(disk.legal_outcomes())

    disk.on_call = look
    set_aside(disk, PATH)
    seen.extend(disk.legal_outcomes())
    found = [(after.exists(f"{PATH}/segment"), after.exists(f"{PATH}.damaged-1/segment")) for after in seen]
    assert dict.fromkeys(found).keys() == {(True, False): None, (False, True): None}.keys()
    assert found[-1] == (False, True), "the new name is durable when the call has returned"


def test_a_rename_that_fails_is_the_disks_fault() -> None:
    disk = disk_with(PATH)

    def fail(call: Call) -> None:
        if call.name == "rename":
            raise OSError(errno.EIO, "no")

    disk.on_call = fail
    with pytest.raises(DiskFault) as caught:
        set_aside(disk, PATH)
    assert PATH in str(caught.value)
    assert disk.exists(PATH)
