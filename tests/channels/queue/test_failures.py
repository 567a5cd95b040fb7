# A disk that breaks its promises: every caller gets the error, none a false success, and a reopen repairs it.

from __future__ import annotations

import errno
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio

import diskq
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import (
    PatientDisk,
    Tasks,
    blocked,
    crash_disk,
    data_path,
    drain,
    fault_disk,
    left_in,
    numbered,
    opened,
    until,
)


def assert_broken(failure: object, cause: int | None = errno.EIO) -> None:
    """A BrokenResourceError, from a StorageFailedError, from an OSError with that errno."""
    assert isinstance(failure, trio.BrokenResourceError)
    assert isinstance(failure.__cause__, diskq.StorageFailedError)
    assert isinstance(failure.__cause__.__cause__, OSError)
    assert failure.__cause__.__cause__.errno == cause


async def use_block(queue: diskq.QueueChannel) -> None:
    async with queue.receiving(3):
        pass


NEW_CALLS: dict[str, Callable[[diskq.QueueChannel], Awaitable[object]]] = {
    "send": lambda queue: queue.send(b"new"),
    "send synced": lambda queue: queue.send(b"new", durability="synced"),
    "send to memory": lambda queue: queue.send(b"new", durability="memory"),
    "send_many": lambda queue: queue.send_many([b"new"]),
    "receive": lambda queue: queue.receive(),
    "receive_many": lambda queue: queue.receive_many(3),
    "receive_many, lingering": lambda queue: queue.receive_many(3, linger=5),
    "peek": lambda queue: queue.peek(),
    "receiving": use_block,
    "clear": lambda queue: queue.clear(),
    "sync": lambda queue: queue.sync(),
}


# --- a failed sync is final -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["*.dat", "*.sums", "*.tmp"])
async def test_a_failing_sync_breaks_the_queue_for_everybody(path):
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError) as at_the_end:  # noqa: PT012
        async with opened(disk) as queue:
            await queue.send_many(numbered(3), durability="synced")
            shadow = queue.clone()
            disk.fail("sync_files", path=path)
            with pytest.raises(trio.BrokenResourceError) as raised:
                await queue.sync()
            assert_broken(raised.value)
            for call in NEW_CALLS.values():
                for handle in (queue, shadow):
                    with pytest.raises(trio.BrokenResourceError) as raised:
                        await call(handle)
                    assert_broken(raised.value)
            for handle in (queue, shadow):
                with pytest.raises(trio.BrokenResourceError):
                    handle.send_nowait(b"new")
                with pytest.raises(trio.BrokenResourceError):
                    handle.receive_nowait()
                with pytest.raises(trio.BrokenResourceError):
                    handle.clone()
            handle.statistics()
    assert_broken(at_the_end.value)
    assert left_in(disk.inner.crash()) == numbered(3)


@pytest.mark.parametrize("call", NEW_CALLS.values(), ids=NEW_CALLS.keys())
async def test_a_sync_that_fails_in_the_background_reaches_the_next_call(call, mock_clock):
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk) as queue:
            await queue.send_many(numbered(5))
            assert await queue.receive() == b"0"
            disk.fail("sync_files")
            mock_clock.jump(3)
            await until(lambda: disk.calls[-1].error == errno.EIO)
            await blocked()
            await call(queue)


async def test_every_waiting_task_is_woken_with_an_exception_of_its_own():
    disk = PatientDisk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk, max_unsynced=4096) as queue, trio.open_nursery() as nursery:
            await queue.send(b"x" * 4000)
            tasks = Tasks(nursery)
            disk.hold()
            await tasks.start("sync", queue.sync)
            for key in ("synced", "synced, too"):
                await tasks.start(key, lambda: queue.send(b"y", durability="synced"))
            for key in ("room", "more room"):
                await tasks.start(key, queue.send, b"x" * 4000)
            drained = drain(queue)
            for key in ("receive", "receive, too"):
                await tasks.start(key, queue.receive)
            await tasks.start("peek", queue.peek)
            await tasks.start("many", queue.receive_many, 3)
            await tasks.start("block", use_block, queue)
            assert not tasks.ended
            disk.fail("sync_files")
            disk.let_go()
            await until(lambda: len(tasks.ended) == 10)
            for _, failure in tasks.ended:
                assert_broken(failure)
            assert len({id(failure) for _, failure in tasks.ended}) == 10
            assert drained == [b"x" * 4000, b"y", b"y"]
            statistics = queue.statistics()
            assert statistics.tasks_waiting_send == statistics.tasks_waiting_receive == 0


async def test_a_call_that_is_on_its_way_when_the_queue_breaks_ends_too():
    # Its schedule point is before the break, its wait after it.
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk, checkpoint_slice=0) as queue, trio.open_nursery() as nursery:
            await queue.send(b"x")
            tasks = Tasks(nursery)
            disk.fail("sync_files")
            tasks.start_soon("first", queue.sync)
            begun = 1
            while "first" not in tasks:
                for call in NEW_CALLS.values():
                    tasks.start_soon(begun, call, queue)
                    begun += 1
                await trio.lowlevel.checkpoint()
            await until(lambda: len(tasks.ended) == begun)


async def test_a_lingering_task_is_woken_too(mock_clock):
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk) as queue, trio.open_nursery() as nursery:
            await queue.send(b"x")
            tasks = Tasks(nursery)
            await tasks.start("lingers", queue.receive_many, 10, linger=1e9)
            disk.fail("sync_files")
            mock_clock.jump(3)
            await until(lambda: "lingers" in tasks)
            assert_broken(tasks["lingers"])


async def test_a_block_that_ends_on_a_broken_queue_says_so_and_its_messages_stay(mock_clock):
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk) as queue:
            await queue.send_many(numbered(3), durability="synced")
            async with queue.receiving(2):
                disk.fail("sync_files")
                mock_clock.jump(3)
                await until(lambda: disk.calls[-1].error == errno.EIO)
                await blocked()
    assert left_in(disk.inner.crash()) == numbered(3)


async def test_nothing_is_acknowledged_as_synced_after_a_failed_sync():
    # The kernel now holds the lost bytes for clean: another sync would succeed, and lie.
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk) as queue, trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            disk.fail("sync_files", path="*.dat")
            for key in range(20):
                tasks.start_soon(key, lambda: queue.send(b"x", durability="synced"))
            await until(lambda: len(tasks.ended) == 20)
            assert not [result for _, result in tasks.ended if result is None]
            syncs = [call for call in disk.calls if call.verb == "sync_files" and call.path == data_path()]
            assert [call.error for call in syncs] == [errno.EIO]


async def test_what_was_synced_before_is_there_at_the_reopen_and_the_rest_may_be():
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk) as queue:
            await queue.send_many(numbered(10), durability="synced")
            await queue.send_many(numbered(5, start=10))
            disk.fail("sync_files")
            await queue.sync()
    assert left_in(disk.inner.crash()) == numbered(10)
    # Without a power cut they are in the page cache still; recovery writes them again, and syncs them then.
    async with opened(disk) as queue:
        assert queue.depth == 15
        assert left_in(disk.inner.crash()) == numbered(15)
        await queue.send(b"15", durability="synced")
        assert left_in(disk.inner.crash()) == numbered(16)
        assert drain(queue) == numbered(16)


async def test_the_end_of_the_block_raises_what_fails_only_then():
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError) as raised:  # noqa: PT012
        async with opened(disk) as queue:
            await queue.send(b"x")
            disk.fail("sync_files")
    assert_broken(raised.value)
    async with opened(disk) as queue:
        assert drain(queue) == [b"x"]


async def test_the_blocks_own_exception_goes_before_a_broken_queue():
    disk = fault_disk()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with opened(disk) as queue:
            await queue.send(b"x")
            disk.fail("sync_files")
            raise ZeroDivisionError


async def test_a_cancelled_block_stays_cancelled_though_the_queue_is_broken():
    disk = fault_disk()
    with trio.CancelScope() as scope:
        async with opened(disk) as queue:
            await queue.send(b"x")
            disk.fail("sync_files")
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    "verb, path",
    [
        ("sync_files", "*.tmp"),
        ("sync_directory", None),
        ("open", "*.tmp"),
        ("pwrite", "*.tmp"),
        ("rename", "*.tmp"),
        ("unlink", "*.sums"),
    ],
)
async def test_wherever_a_barrier_fails_it_is_not_reported_as_executed(verb, path):
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError) as raised:  # noqa: PT012
        async with opened(disk, segment_size=20) as queue:
            await queue.send_many(numbered(20))
            await queue.sync()
            await queue.receive_many(15)
            disk.fail(verb, path=path)
            await queue.sync()
    assert_broken(raised.value)
    assert left_in(disk.inner.kill())[-5:] == numbered(5, start=15)


# --- what is not final ------------------------------------------------------------------------------


async def test_a_write_error_that_is_no_full_disk_raises_only_in_the_sender():
    disk = fault_disk()
    async with opened(disk, checkpoint_slice=0) as queue, trio.open_nursery() as nursery:
        await queue.send(b"before")
        tasks = Tasks(nursery)
        await tasks.start("receive", queue.receive)
        disk.fail("pwrite", path="*.dat", nth=2)
        await queue.send(b"first")
        with pytest.raises(OSError, match=r"\[Errno 5\]"):
            await queue.send(b"second")
        await queue.send(b"third")
        await blocked()
        assert tasks["receive"] == b"before"
        assert drain(queue) == [b"first", b"third"]


async def test_a_write_error_outside_any_call_breaks_the_queue_and_costs_no_message():
    # Messages of one slice are accepted, and written together a moment later.
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError) as raised:  # noqa: PT012
        async with opened(disk, checkpoint_slice=60.0) as queue:
            await queue.send(b"sets the clock running")
            await queue.send(b"written at once")
            disk.fail("pwrite", path="*.dat")
            for body in numbered(10):
                await queue.send(body)
            await blocked()
            await queue.send(b"refused")
    assert raised.value.__cause__ is not None
    async with opened(disk) as queue:
        assert drain(queue) == [b"sets the clock running", b"written at once", *numbered(10)]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES, errno.EIO])
async def test_a_read_error_raises_in_the_receiver_and_nothing_is_lost(error):
    disk = fault_disk()
    async with opened(disk) as queue:
        await queue.send_many(numbered(5))
    async with opened(disk) as queue:
        fault = disk.fail("open" if error == errno.EMFILE else "pread", error=error, path="*.dat")
        with pytest.raises(OSError) as raised:  # noqa: PT011
            await queue.receive()
        assert raised.value.errno == error
        assert fault.hits == 1
        assert drain(queue) == numbered(5)
        assert not queue.repairs


async def test_a_read_error_raises_in_one_waiting_task_and_the_next_gets_the_message():
    disk = fault_disk()
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("many", queue.receive_many, 3)
        await tasks.start("one", queue.receive)
        disk.fail("pread", path="*.dat")
        await queue.send(b"x", durability="memory")
        await queue.sync()
        await blocked()
        results = dict(tasks.ended)
        if isinstance(results.get("many"), OSError):
            assert results["one"] == b"x"
        else:
            assert results == {"many": [b"x"]}
        nursery.cancel_scope.cancel()


# --- the unexpected -----------------------------------------------------------------------------------


class Surprise(Exception):
    pass


class SurprisingDisk(FaultFS[CrashFS]):
    """Its syncs fail as no disk does."""

    is_armed = False

    def sync_files(self, handles: Sequence[int]) -> None:
        if self.is_armed:
            raise Surprise
        super().sync_files(handles)


async def test_an_unexpected_error_in_the_background_is_not_swallowed():
    disk = SurprisingDisk(crash_disk())
    with pytest.raises(trio.BrokenResourceError) as at_the_end:  # noqa: PT012
        async with opened(disk) as queue, trio.open_nursery() as nursery:
            await queue.send_many(numbered(3), durability="synced")
            tasks = Tasks(nursery)
            disk.is_armed = True
            await tasks.start("synced", lambda: queue.send(b"x", durability="synced"))
            await tasks.start("sync", queue.sync)
            await until(lambda: len(tasks.ended) == 2)
            for _, failure in tasks.ended:
                assert isinstance(failure, trio.BrokenResourceError)
                assert isinstance(failure.__cause__, Surprise)
            with pytest.raises(trio.BrokenResourceError) as raised:
                await queue.send(b"y")
            assert isinstance(raised.value.__cause__, Surprise)
    assert isinstance(at_the_end.value.__cause__, Surprise)
    disk.is_armed = False
    async with opened(disk) as queue:
        assert drain(queue)[:3] == numbered(3)


async def test_the_loop_ends_with_the_block_and_its_thread_with_it():
    before = threading.active_count()
    for _ in range(20):
        async with opened(fault_disk()) as queue:
            await queue.send(b"x")
    # Trio keeps a worker or two of its own for a while.
    named = [thread.name for thread in threading.enumerate() if "diskq" in thread.name]
    assert not named
    assert threading.active_count() <= before + 3


@pytest.fixture
async def damaged() -> CrashFS:
    """Three messages, each in a block of its own; a bit of the second has rotted."""
    disk = crash_disk()
    async with opened(disk) as queue:
        for number in range(3):
            await queue.send(b"%d" % number * 3000, durability="synced")
    data = bytearray(disk.read(data_path()))
    data[3500] ^= 1
    disk.write_durably(data_path(), bytes(data))
    return disk


async def test_a_damaged_message_is_passed_over_and_reported(damaged):
    async with opened(damaged) as queue:
        assert [await queue.receive() for _ in range(2)] == [b"0" * 3000, b"2" * 3000]
        assert queue.statistics().lost == 1
        assert [repair.records for repair in queue.repairs] == [1]
        assert queue.depth == 0


async def test_a_damaged_message_raises_in_strict_mode(damaged):
    async def read() -> None:
        async with opened(damaged, strict=True) as queue:
            assert await queue.receive() == b"0" * 3000
            await queue.receive()

    with pytest.raises(diskq.CorruptionError):
        await read()
