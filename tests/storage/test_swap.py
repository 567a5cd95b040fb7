# Files replaced together. Law: before the plan is durable nothing is changed, after it everything is.

from __future__ import annotations

import pytest

from diskq.storage.swap import Swap, finish_swap
from diskq.testing import CrashFS, FaultFS
from tests.crash.harness import Witness, run_cuts

OLD = {"/q/a": b"old a", "/q/b": b"old b", "/q/c": b"old c"}
NEW = {"/q/a": b"new a", "/q/b": b"new b", "/q/d": b"new d"}


def disk() -> CrashFS:
    fs = CrashFS()
    begin(fs)
    return fs


def begin(fs: CrashFS) -> None:
    fs.make_directory_durably("/q/.diskq")
    for path, content in OLD.items():
        fs.write_durably(path, content)


def swap_on(fs: CrashFS | FaultFS[CrashFS]) -> Swap:
    swap = Swap(fs, "/q", "repair")
    for path, content in NEW.items():
        swap.install(path, content)
    swap.remove("/q/c")
    swap.keep("/q/a", "/q/.diskq/a")
    return swap


def files_of(fs: CrashFS) -> dict[str, bytes]:
    return {path: content for path, content in fs.files().items() if ".diskq" not in path}


def test_all_that_is_planned_is_done():
    fs = disk()
    swap_on(fs).carry_out()
    assert files_of(fs) == NEW
    assert {path for path in fs.files() if ".diskq" in path} == {"/q/.diskq/a.bad"}


def test_what_is_replaced_is_kept():
    fs = disk()
    swap_on(fs).carry_out()
    assert fs.read("/q/.diskq/a.bad") == OLD["/q/a"]


def test_after_every_crash_it_is_all_or_nothing():
    def workload(fs: CrashFS, witness: Witness) -> None:
        begin(fs)
        swap = swap_on(fs)
        witness.attempted.append("swap")
        swap.carry_out()
        witness.synced.append("swap")

    def check(_: str, fs: CrashFS, witness: Witness) -> None:
        if not witness.attempted:
            return
        finish_swap(fs, "/q", "repair")
        found = files_of(fs)
        assert found == NEW if witness.synced else found in (OLD, NEW)
        assert found == OLD or fs.read("/q/.diskq/a.bad") == OLD["/q/a"]

    run_cuts(workload, check, again=3)


def test_the_next_open_finishes_it():
    fs = disk()
    swap_on(fs).carry_out()
    operations = fs.operations
    for cut in range(1, operations + 1):
        fs = CrashFS(cut_at=cut)
        try:
            begin(fs)
            swap_on(fs).carry_out()
        except BaseException:
            fs = fs.kill()
        if finish_swap(fs, "/q", "repair"):
            assert files_of(fs) == NEW
            return
    pytest.fail("it was never found half done")


@pytest.mark.parametrize("free", range(0, 120, 7))
def test_on_a_full_disk_nothing_is_changed(free):
    inner = disk()
    fs = FaultFS(inner)
    fs.capacity(free)
    with pytest.raises(OSError, match=r"(?i)space|full|room"):
        swap_on(fs).carry_out()
    assert inner.files() == OLD


def test_a_plan_that_comes_back_removes_no_new_file():
    fs = disk()
    swap_on(fs).carry_out()
    fs.write_durably("/q/c", b"another c")
    assert not finish_swap(fs.crash(), "/q", "repair")


def test_a_swap_killed_before_its_plan_begins_anew():
    fs = disk()
    fs.make_directory_durably("/q/.diskq/repair")
    fs.write_durably("/q/.diskq/repair/0.new", b"half")
    swap_on(fs).carry_out()
    assert files_of(fs) == NEW
