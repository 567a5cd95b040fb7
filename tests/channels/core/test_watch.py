# Who is called when files change: by the kernel's word where there is one, now and then elsewhere.

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from diskq.channels.core.watch import Listener, listen
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import blocked, crash_disk, until


class Told:
    """A listener, and what it was called with."""

    def __init__(self, fs: CrashFS | OsFileSystem | FaultFS[OsFileSystem], finds: bool = False) -> None:
        self.calls: list[str | None] = []
        self.times: list[float] = []
        self.finds = finds
        self.listener: Listener = listen(fs, self._notice)

    def _notice(self, path: str | None) -> bool:
        self.calls.append(path)
        self.times.append(trio.current_time())
        return self.finds


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "0.index"
    path.write_bytes(b"")
    return path


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


class Steps(trio.abc.Instrument):
    """Counts what the tasks of the run do."""

    def __init__(self) -> None:
        self.taken = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += task.name == "diskq watches files"


@pytest.fixture
async def steps() -> AsyncIterator[Steps]:
    instrument = Steps()
    trio.lowlevel.add_instrument(instrument)
    yield instrument
    trio.lowlevel.remove_instrument(instrument)


# --- the kernel's word ------------------------------------------------------------------------


async def test_listeners_of_a_path_are_called_when_it_changes(tmp_path, file):
    one, both, none = Told(OsFileSystem()), Told(OsFileSystem()), Told(OsFileSystem())
    one.listener.add_file(str(file))
    both.listener.add_file(str(file))
    both.listener.add_directory(str(tmp_path))
    append(file)
    await until(lambda: bool(one.calls))
    (tmp_path / "1.index").touch()
    await until(lambda: len(both.calls) > 1)
    assert one.calls == [str(file)]
    assert both.calls == [str(file), str(tmp_path)]
    assert none.calls == []
    for told in (one, both, none):
        told.listener.close()


async def test_a_listener_that_removed_a_path_is_not_called(file):
    one, other = Told(OsFileSystem()), Told(OsFileSystem())
    for told in (one, other):
        told.listener.add_file(str(file))
    one.listener.remove(str(file))
    one.listener.remove(str(file))
    append(file)
    await until(lambda: bool(other.calls))
    other.listener.close()
    append(file)
    await blocked()
    assert one.calls == []
    assert len(other.calls) == 1
    one.listener.close()


async def test_while_nothing_happens_nothing_is_done(autojump_clock, steps, tmp_path, file):
    told = Told(OsFileSystem())
    told.listener.add_file(str(file))
    told.listener.add_directory(str(tmp_path))
    told.listener.begin_to_wait()
    await blocked()
    before = steps.taken
    await trio.sleep(86_000)
    assert steps.taken == before
    assert not told.listener.is_polled
    told.listener.close()


@pytest.mark.usefixtures("no_collections")
async def test_all_of_one_run_share_one_descriptor_and_give_it_back(file):
    before = set(os.listdir("/proc/self/fd"))
    told = [Told(OsFileSystem()) for _ in range(50)]
    for each in told:
        each.listener.add_file(str(file))
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    for each in told:
        each.listener.close()
        each.listener.close()
    await blocked()
    assert set(os.listdir("/proc/self/fd")) == before


async def test_a_listener_that_comes_as_the_last_one_leaves_is_called(file):
    first = Told(OsFileSystem())
    await blocked()
    first.listener.close()
    second = Told(OsFileSystem())
    second.listener.add_file(str(file))
    append(file)
    await until(lambda: bool(second.calls))
    second.listener.close()
    await blocked()
    third = Told(OsFileSystem())
    third.listener.add_file(str(file))
    append(file)
    await until(lambda: bool(third.calls))
    third.listener.close()


@pytest.mark.usefixtures("no_collections")
def test_a_listener_that_was_not_closed_ends_with_the_run(file):
    async def forget() -> None:
        Told(OsFileSystem()).listener.add_file(str(file))
        await blocked()

    before = set(os.listdir("/proc/self/fd"))
    trio.run(forget)
    assert set(os.listdir("/proc/self/fd")) == before


# --- looking now and then ---------------------------------------------------------------------


async def test_a_disk_without_watches_is_polled_soon_and_then_less_and_less_often(autojump_clock):
    told = Told(crash_disk())
    told.listener.add_directory("/q")
    assert told.listener.is_polled
    told.listener.begin_to_wait()
    start = trio.current_time()
    await trio.sleep(2)
    after = [round(time - start, 3) for time in told.times]
    assert after[:6] == [0.01, 0.03, 0.07, 0.15, 0.31, 0.56]
    assert 10 <= len(after) <= 12
    assert set(told.calls) == {None}
    told.listener.close()


async def test_while_something_is_found_it_is_looked_at_soon(autojump_clock):
    told = Told(crash_disk(), finds=True)
    told.listener.begin_to_wait()
    await trio.sleep(0.995)
    assert len(told.calls) == 99
    told.finds = False
    await trio.sleep(10)
    assert len(told.calls) < 99 + 50
    told.listener.close()


async def test_a_listener_that_begins_to_wait_is_polled_soon(autojump_clock):
    told = Told(crash_disk())
    told.listener.begin_to_wait()
    await trio.sleep(10)
    told.listener.end_waiting()
    start = trio.current_time()
    told.times.clear()
    told.listener.begin_to_wait()
    await trio.sleep(1)
    assert 0 < told.times[0] - start <= 0.011
    told.listener.close()


async def test_nothing_is_polled_while_no_task_waits(autojump_clock, steps):
    told = Told(crash_disk())
    await trio.sleep(1)
    assert told.calls == []
    told.listener.begin_to_wait()
    await trio.sleep(1)
    told.listener.end_waiting()
    await trio.sleep(1)
    before, calls = steps.taken, len(told.calls)
    await trio.sleep(86_000)
    assert (steps.taken, len(told.calls)) == (before, calls)
    told.listener.close()


async def test_what_cannot_be_watched_is_looked_at_until_it_can(autojump_clock: MockClock, tmp_path, file):
    missing = tmp_path / "1.index"
    told = Told(FaultFS(OsFileSystem()))
    told.listener.add_file(str(file))
    told.listener.add_file(str(missing))
    assert told.listener.is_polled
    told.listener.begin_to_wait()
    await trio.sleep(0.1)
    assert None in told.calls
    missing.touch()
    told.listener.add_file(str(missing))
    assert not told.listener.is_polled
    append(missing)
    await until(lambda: str(missing) in told.calls)
    told.listener.close()
