# The threads that execute syncs. Law: a Trio run has few of them, however many stores are open; one slow disk
# does not hold up the others; and they end with the last store.

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path

import pytest
import trio

import diskq
from diskq.channels.core.sync_executor import MOST_THREADS, SyncPool
from tests.channels.rig import DIRECTORY, PatientDisk, Tasks, blocked, crash_disk, opened, until
from tests.contract.kinds import ChannelKind, channels
from tests.contract.lives import PATH
from tests.contract.lives import crash_disk as kind_disk

needs_descriptors = pytest.mark.skipif(sys.platform == "win32", reason="syncs are executed by Python there")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("diskq")]


@contextlib.asynccontextmanager
async def many(count: int, open_one: Callable[[int], diskq.open_queue]):
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_one(number)) for number in range(count)]


def on_a_crash_disk(number: int) -> diskq.open_queue:
    return opened(crash_disk(), sync_timeout=3600.0)


async def send_synced(queues: list[diskq.QueueChannel], body: bytes) -> None:
    async with trio.open_nursery() as nursery:
        for queue in queues:
            nursery.start_soon(partial(queue.send, body, durability="synced"))


@pytest.mark.parametrize("is_real", [False, True])
async def test_many_queues_have_few_threads(is_real: bool, tmp_path: Path) -> None:
    def on_the_disk(number: int) -> diskq.open_queue:
        # No sync but those that are asked for, however long the test takes.
        return diskq.open_queue(tmp_path, f"q{number}", sync_timeout=3600.0)

    async with many(60, on_the_disk if is_real else on_a_crash_disk) as queues:
        before = [queue.statistics().barriers for queue in queues]
        for round_ in range(3):
            await send_synced(queues, b"%d" % round_)
            assert 1 <= len(threads()) <= MOST_THREADS
        for queue in queues:
            assert [queue.receive_nowait() for _ in range(3)] == [b"0", b"1", b"2"]
        assert [queue.statistics().barriers for queue in queues] == [count + 3 for count in before]
    assert not threads()


@needs_descriptors
async def test_nothing_stays_open_after_the_last_store(tmp_path: Path) -> None:
    async def use() -> None:
        async with many(3, lambda number: diskq.open_queue(tmp_path, f"q{number}")) as queues:
            for body in (b"0", b"1", b"2"):
                await send_synced(queues, body)
        await blocked()

    await use()
    gc.collect()
    before = os.listdir("/dev/fd")
    for _ in range(3):
        await use()
        assert os.listdir("/dev/fd") == before
        assert not threads()


async def test_one_sender_alone_needs_one_thread(tmp_path: Path) -> None:
    async with many(10, lambda number: diskq.open_queue(tmp_path, f"q{number}")) as queues:
        for queue in queues:
            for _ in range(20):
                await queue.send(b"x", durability="synced")
        assert len(threads()) <= 2  # the first sync of each is Python: it may end in the moment of the next


async def test_a_slow_disk_holds_up_no_other_store():
    slow = PatientDisk()
    async with many(5, on_a_crash_disk) as queues, opened(slow) as held, trio.open_nursery() as nursery:
        slow.hold()
        tasks = Tasks(nursery)
        await tasks.start("held", lambda: held.send(b"x", durability="synced"))
        await until(lambda: slow.waiting == 1)
        for body in (b"0", b"1"):
            await send_synced(queues, body)
        assert "held" not in tasks
        slow.let_go()


class DeadDisk(PatientDisk):
    """A disk of its own, whose syncs do not end while it is held."""

    def device_of(self, path: str) -> Hashable:
        return self


@pytest.mark.parametrize("kind", channels(), ids=str)
async def test_a_disk_that_does_not_answer_holds_up_no_store_on_another(kind: ChannelKind) -> None:
    dead = DeadDisk()
    stores = 2 * MOST_THREADS
    async with (
        many(stores, lambda number: diskq.open_queue(DIRECTORY, f"q{number}", fs=dead)) as queues,
        kind.open(PATH, fs=kind_disk()) as channel,
        trio.open_nursery() as nursery,
    ):
        dead.hold()
        tasks = Tasks(nursery)
        await tasks.start("held", send_synced, queues, b"x")
        await until(lambda: dead.waiting == MOST_THREADS)
        await channel.send(b"a", "synced")
        await channel.sync()
        assert "held" not in tasks
        assert len(threads()) <= 2 * MOST_THREADS
        dead.let_go()
    assert not threads()


async def test_syncs_go_on_beside_jobs_that_take_long():
    pool = SyncPool.join()
    go_on = threading.Event()
    done: list[int] = []

    def job(number: int) -> Callable[[], None]:
        assert go_on.wait(60)
        return lambda: done.append(number)

    for number in range(2 * MOST_THREADS):
        pool.run_long(partial(job, number))
    async with many(3, on_a_crash_disk) as queues:
        await send_synced(queues, b"x")
    assert not done
    go_on.set()
    await until(lambda: len(done) == 2 * MOST_THREADS)
    pool.leave()
    assert sorted(done) == list(range(2 * MOST_THREADS))
    assert not threads()


async def test_two_runs_of_trio_have_their_own_threads():
    async def elsewhere() -> list[str]:
        async with opened(crash_disk()) as queue:
            await queue.send(b"x", durability="synced")
            return threads()

    async with opened(crash_disk()) as queue:
        await queue.send(b"x", durability="synced")
        before = threads()
        found = await trio.to_thread.run_sync(trio.run, elsewhere)
        assert len(found) > len(before)
        assert threads() == before
        await queue.send(b"y", durability="synced")


async def test_where_no_thread_starts_those_there_are_do_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name.startswith("diskq"):
            raise RuntimeError("can't start new thread")
        start(self)

    slow = PatientDisk()
    async with many(5, on_a_crash_disk) as queues, opened(slow) as held, trio.open_nursery() as nursery:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        slow.hold()
        tasks = Tasks(nursery)
        await tasks.start("held", lambda: held.send(b"x", durability="synced"))
        await tasks.start("others", send_synced, queues, b"0")
        assert len(threads()) == 1
        slow.let_go()
        await until(lambda: len(tasks.ended) == 2)
        assert tasks["others"] is None


@needs_descriptors
async def test_where_no_descriptor_is_left_for_it_syncs_are_executed_all_the_same(tmp_path: Path) -> None:
    async with diskq.open_queue(tmp_path, "events", sync_to="files") as queue:
        await queue.send(b"0", durability="synced")
        await queue.sync()
    async with diskq.open_queue(tmp_path, "events", sync_to="files", sync_timeout=10**9) as queue:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))), limit[1]))
        try:
            await queue.send(b"1", durability="synced")
            await queue.send(b"2", durability="synced")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for body in (b"3", b"4"):
            await queue.send(body, durability="synced")
        assert [queue.receive_nowait() for _ in range(5)] == [b"%d" % number for number in range(5)]


@needs_descriptors
async def test_a_sync_that_the_disk_refuses_breaks_the_queue(tmp_path: Path) -> None:
    """Its descriptors become those of a pipe, and fdatasync(2) refuses that."""
    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(diskq.open_queue(tmp_path, "events", sync_to="files"))
        for _ in range(3):
            await queue.send(b"x", durability="synced")
        path = tmp_path / "events.diskqueue.000000.dat"
        mine = [descriptor for descriptor in map(int, os.listdir("/dev/fd")) if is_open_on(descriptor, path)]
        spare = [os.dup(descriptor) for descriptor in mine]
        pipe = os.pipe()
        for descriptor in mine:
            os.dup2(pipe[1], descriptor)
        with pytest.raises(trio.BrokenResourceError) as raised:
            await queue.sync()
        assert isinstance(raised.value.__cause__, diskq.StorageFailedError)
        for descriptor, old in zip(mine, spare, strict=True):
            os.dup2(old, descriptor)
        for descriptor in (*spare, *pipe):
            os.close(descriptor)
        with pytest.raises(trio.BrokenResourceError):
            await stack.aclose()


def is_open_on(descriptor: int, path: Path) -> bool:
    try:
        found, there = os.fstat(descriptor), path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (there.st_dev, there.st_ino)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
async def test_a_child_of_a_fork_has_threads_of_its_own(tmp_path: Path) -> None:
    async def use(name: str) -> None:
        async with diskq.open_queue(tmp_path, name) as queue:
            for _ in range(3):
                await queue.send(b"x", durability="synced")

    def use_elsewhere() -> None:
        trio.run(use, "child")

    async with diskq.open_queue(tmp_path, "parent") as queue:
        await queue.send(b"x", durability="synced")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                worker = threading.Thread(target=use_elsewhere)  # the run of this thread is the parent's
                worker.start()
                worker.join()
                with diskq.Queue(tmp_path, "child") as left:
                    status = int(left.get_many(10) != [b"x"] * 3)
            finally:
                os._exit(status)
        _, status = await trio.to_thread.run_sync(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await queue.send(b"y", durability="synced")
        assert [queue.receive_nowait() for _ in range(2)] == [b"x", b"y"]


def test_a_run_that_ends_with_an_error_leaves_no_thread() -> None:
    class Crash(Exception):
        pass

    async def use() -> None:
        async with opened(crash_disk()) as queue:
            await queue.send(b"x", durability="synced")
            raise Crash

    with pytest.raises(Crash):
        trio.run(use)
    assert not threads()


async def test_long_work_that_another_thread_has_done_leaves_its_thread_alone() -> None:
    """Two threads were called for two works, and the first one did both before the second one looked."""
    pool = SyncPool.join()
    go_on = threading.Event()
    done: list[int] = []

    def work(number: int) -> Callable[[], None]:
        assert go_on.wait(60)
        return partial(done.append, number)

    for _ in range(50):
        go_on.clear()
        done.clear()
        for number in range(6):
            pool.run_long(partial(work, number))
        go_on.set()
        await until(lambda: len(done) == 6)
    assert pool._long_running >= 0
    await trio.to_thread.run_sync(pool.leave)
    assert not threads()


async def test_a_thread_that_finds_no_long_work_is_free_again() -> None:
    pool = SyncPool.join()
    pool._long_running = 1
    pool._run_long()()
    assert pool._long_running == 0
    await trio.to_thread.run_sync(pool.leave)
