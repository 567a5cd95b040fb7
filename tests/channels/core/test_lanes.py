# Two lanes: a sync of the redo log goes on beside one of the files. Law: a task that waits for its message is
# woken by the first sync that covers it, of either lane; one that waits for everything, by one of the files.

from __future__ import annotations

import errno
import fnmatch
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import diskq
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import Tasks, blocked, crash_disk, left_in, numbered, opened, until

FILES = "*.dat"
LOG = "*.redo"
LARGE = bytes(300 * 1024)
"""More than the log takes."""


class TwoLanes(FaultFS[CrashFS]):
    """A disk that keeps the syncs of some files waiting."""

    def __init__(self) -> None:
        super().__init__(crash_disk())
        self.held: dict[str, threading.Event] = {}
        self.waiting: list[str] = []
        self.is_stuck = False

    def hold(self, pattern: str) -> None:
        self.held[pattern] = threading.Event()

    def let_go(self, pattern: str) -> None:
        self.held.pop(pattern).set()

    def is_waiting(self, pattern: str) -> bool:
        return pattern in self.waiting

    def sync_files(self, handles: Sequence[int]) -> None:
        paths = [self._path(handle) for handle in handles]
        for pattern, event in list(self.held.items()):
            if fnmatch.filter(paths, pattern):
                self.waiting.append(pattern)
                self.is_stuck |= not event.wait(60)
                self.waiting.remove(pattern)
        super().sync_files(handles)


@asynccontextmanager
async def with_a_log(disk: TwoLanes, **options: Any) -> AsyncIterator[tuple[diskq.QueueChannel, Tasks]]:
    """A queue that has a redo log, and tasks."""
    async with trio.open_nursery() as nursery, opened(disk, **options) as queue:
        for body in (b"0", b"1"):
            await queue.send(body, durability="synced")
        yield queue, Tasks(nursery)
    assert not disk.is_stuck, "nobody let it go"


async def synced(tasks: Tasks, queue: diskq.QueueChannel, body: bytes) -> None:
    await tasks.start(body, lambda: queue.send(body, durability="synced"))


async def test_a_synced_sender_does_not_wait_for_a_sync_of_the_files():
    disk = TwoLanes()
    async with with_a_log(disk) as (queue, tasks):
        disk.hold(FILES)
        await tasks.start("sync", queue.sync)
        await until(lambda: disk.is_waiting(FILES))
        for body in (b"2", b"3"):
            await queue.send(body, durability="synced")
        assert "sync" not in tasks
        assert left_in(disk.inner.crash()) == [b"0", b"1", b"2", b"3"]
        disk.let_go(FILES)
        await until(lambda: "sync" in tasks)


async def test_a_sync_of_the_files_wakes_those_that_wait_for_the_log_too():
    disk = TwoLanes()
    async with with_a_log(disk) as (queue, tasks):
        disk.hold(LOG)
        await synced(tasks, queue, b"2")
        await until(lambda: disk.is_waiting(LOG))
        await synced(tasks, queue, b"3")
        await tasks.start("sync", queue.sync)
        await until(lambda: len(tasks.ended) == 3)
        assert left_in(disk.inner.crash()) == [b"0", b"1", b"2", b"3"]
        assert disk.is_waiting(LOG)
        await synced(tasks, queue, b"4")
        await blocked()
        assert b"4" not in tasks, "no sync was prepared since"
        disk.let_go(LOG)
        await until(lambda: b"4" in tasks)
        assert left_in(disk.inner.crash())[-1] == b"4"


async def test_a_sync_of_the_files_wakes_nobody_who_came_after_it():
    disk = TwoLanes()
    async with with_a_log(disk) as (queue, tasks):
        disk.hold(FILES)
        await tasks.start("sync", queue.sync)
        await until(lambda: disk.is_waiting(FILES))
        disk.hold(LOG)
        await synced(tasks, queue, b"2")
        await until(lambda: disk.is_waiting(LOG))
        disk.let_go(FILES)
        await until(lambda: "sync" in tasks)
        await blocked()
        assert b"2" not in tasks
        disk.let_go(LOG)
        await until(lambda: b"2" in tasks)


async def test_a_sync_of_the_log_wakes_nobody_who_came_after_it():
    disk = TwoLanes()
    async with with_a_log(disk) as (queue, tasks):
        disk.hold(LOG)
        await synced(tasks, queue, b"2")
        await until(lambda: disk.is_waiting(LOG))
        await synced(tasks, queue, LARGE)
        disk.hold(FILES)
        await tasks.start("sync", queue.sync)
        await until(lambda: disk.is_waiting(FILES))
        disk.let_go(LOG)
        await until(lambda: b"2" in tasks)
        await blocked()
        assert len(tasks.ended) == 1
        disk.let_go(FILES)
        await until(lambda: len(tasks.ended) == 3)


async def test_who_waits_for_everything_waits_for_a_sync_that_began_later():
    disk = TwoLanes()
    async with with_a_log(disk) as (queue, tasks):
        disk.hold(FILES)
        await tasks.start("first", queue.sync)
        await until(lambda: disk.is_waiting(FILES))
        await queue.send(b"2")
        await tasks.start("second", queue.sync)
        disk.let_go(FILES)
        disk.hold(FILES)
        await until(lambda: "first" in tasks)
        await until(lambda: disk.is_waiting(FILES))
        await blocked()
        assert "second" not in tasks
        disk.let_go(FILES)
        await until(lambda: "second" in tasks)
        assert left_in(disk.inner.crash()) == [b"0", b"1", b"2"]


async def test_a_message_that_the_log_does_not_take_waits_for_the_files_and_no_longer():
    disk = TwoLanes()
    async with with_a_log(disk) as (queue, tasks):
        disk.hold(FILES)
        await tasks.start("sync", queue.sync)
        await until(lambda: disk.is_waiting(FILES))
        before = queue.statistics().barriers  # that are complete
        await synced(tasks, queue, LARGE)
        await blocked()
        assert LARGE not in tasks, "the sync that is under way was prepared before"
        disk.let_go(FILES)
        await until(lambda: LARGE in tasks)
        await blocked()
        assert queue.statistics().barriers == before + 2
        assert left_in(disk.inner.crash())[-1] == LARGE


async def test_small_messages_do_not_pass_a_large_one_that_is_not_durable_yet():
    disk = TwoLanes()
    async with with_a_log(disk) as (queue, tasks):
        disk.hold(FILES)
        await tasks.start("sync", queue.sync)
        await until(lambda: disk.is_waiting(FILES))
        await synced(tasks, queue, LARGE)
        await synced(tasks, queue, b"small")
        await blocked()
        assert not tasks.ended
        disk.let_go(FILES)
        await until(lambda: len(tasks.ended) == 3)
        assert left_in(disk.inner.crash())[-2:] == [LARGE, b"small"]


async def test_a_sync_that_the_policy_wants_holds_up_no_synced_sender():
    disk = TwoLanes()
    async with with_a_log(disk, sync_every=5, sync_timeout=10**9) as (queue, _):
        disk.hold(FILES)
        for body in numbered(30, start=2):
            await queue.send(body, durability="synced")
        assert disk.is_waiting(FILES)
        disk.let_go(FILES)


async def test_every_sync_is_counted_of_whichever_lane():
    disk = TwoLanes()
    async with with_a_log(disk) as (queue, _):
        await queue.sync()
        before = queue.statistics()
        await queue.send(b"2", durability="synced")
        await queue.sync()
        after = queue.statistics()
        assert after.barriers == before.barriers + 2
        assert after.barrier_seconds.count == before.barrier_seconds.count + 2


@pytest.mark.parametrize("first", [FILES, LOG])
async def test_closing_waits_for_both_lanes(first):
    disk = TwoLanes()
    async with trio.open_nursery() as nursery:
        left = trio.Event()

        async def use() -> None:
            async with with_a_log(disk) as (queue, tasks):
                disk.hold(FILES)
                await tasks.start("sync", queue.sync)
                await until(lambda: disk.is_waiting(FILES))
                disk.hold(LOG)
                await synced(tasks, queue, b"2")
                await until(lambda: disk.is_waiting(LOG))
            left.set()

        nursery.start_soon(use)
        await until(lambda: len(disk.waiting) == 2)
        for pattern in (first, LOG if first == FILES else FILES):
            await blocked()
            assert not left.is_set()
            disk.let_go(pattern)
        await left.wait()
        assert left_in(disk.inner) == [b"0", b"1", b"2"]
        assert not disk.inner.open_files()


@pytest.mark.parametrize("failing", [FILES, LOG])
async def test_a_failed_sync_of_one_lane_breaks_the_queue_and_its_end_waits_for_the_other(failing):
    disk = TwoLanes()
    other = LOG if failing == FILES else FILES

    async def use() -> None:
        async with with_a_log(disk) as (queue, tasks):
            disk.hold(FILES)
            await tasks.start("sync", queue.sync)
            await until(lambda: disk.is_waiting(FILES))
            disk.hold(LOG)
            await synced(tasks, queue, b"2")
            await until(lambda: disk.is_waiting(LOG))
            disk.fail("sync_files", path=failing)
            disk.let_go(failing)
            await until(lambda: len(tasks.ended) == 2)
            for _, failure in tasks.ended:
                assert isinstance(failure, trio.BrokenResourceError)
            with pytest.raises(trio.BrokenResourceError):
                await queue.send(b"3")
            nursery.start_soon(let_go_of_the_other)

    async def let_go_of_the_other() -> None:
        await blocked()
        assert disk.inner.open_files()
        disk.let_go(other)

    async with trio.open_nursery() as nursery:
        with pytest.raises(ExceptionGroup) as raised:
            await use()
    assert raised.group_contains(trio.BrokenResourceError, depth=1)
    assert not disk.is_stuck, "its end held up Trio's thread"
    assert not disk.inner.open_files()
    assert left_in(disk.inner)[:2] == [b"0", b"1"]


# --- a sender that is alone ---------------------------------------------------------------------------


class StepsOfLoops(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.startswith("io_loop of")


@pytest.mark.parametrize("sync_to", ["log", "files"])
async def test_a_sender_that_is_alone_needs_no_turn_of_the_loop(sync_to):
    disk = TwoLanes()
    async with with_a_log(disk, sync_to=sync_to) as (queue, _):
        await blocked()
        steps = StepsOfLoops()
        trio.lowlevel.add_instrument(steps)
        for number in range(10):
            await queue.send(b"%d" % number, durability="synced")
        trio.lowlevel.remove_instrument(steps)
        assert steps.count == 0


@pytest.mark.parametrize("sync_to", ["log", "files"])
@pytest.mark.parametrize("senders", [2, 16, 100])
async def test_several_senders_share_each_sync_once_they_have_met(senders, sync_to):
    disk = TwoLanes()
    # A sender whose slice ends, as its process had no processor for so long, is left out of one sync.
    async with with_a_log(disk, sync_to=sync_to, checkpoint_slice=60.0) as (queue, _):

        async def send(count: int) -> None:
            for _ in range(count):
                await queue.send(b"x", durability="synced")

        before = queue.statistics().barriers
        async with trio.open_nursery() as nursery:
            for _ in range(senders):
                nursery.start_soon(send, 20)
        assert queue.statistics().barriers - before <= 22


async def test_the_full_disk_of_a_sender_that_is_alone_is_its_own_error():
    disk = FaultFS(CrashFS())
    disk.inner.make_directory_durably("/jobs")
    async with diskq.open_priority_store("/jobs", fs=disk, preallocate=False, durability="synced") as store:
        queue = store.queue()
        for number in range(3):
            await queue.send(b"%d" % number)
        disk.fail("pwrite", error=errno.ENOSPC, times=None, path="*.log")
        with pytest.raises(diskq.DiskFullError):
            await queue.send(b"refused")
        disk.heal()
        await queue.send(b"taken")
        bodies = [record.body for record in await queue.receive_many(10)]
        assert bodies == [b"0", b"1", b"2", b"taken"]
