# Memory in front of the disk, as tasks see it. Law: where receivers keep up, the disk hears of nothing;
# where they do not, no message loses its place.

from __future__ import annotations

import errno
from functools import partial
from typing import Any

import pytest
import trio

import diskq
from tests.channels.rig import (
    Tasks,
    blocked,
    crash_disk,
    data_path,
    drain,
    fault_disk,
    left_in,
    numbered,
    opened,
)
from tests.reference import nsq_oracle

KIB = 1024
FIRST: dict[str, Any] = {"durability": "memory", "memory_size": 64 * KIB}


@pytest.mark.parametrize("checkpoint_slice", [0, 100e-6])
@pytest.mark.parametrize("receivers", [1, 3])
async def test_where_receivers_keep_up_no_byte_is_written(receivers, checkpoint_slice, autojump_clock):
    disk = crash_disk()
    async with (
        opened(disk, **FIRST, checkpoint_slice=checkpoint_slice) as queue,
        trio.open_nursery() as nursery,
    ):
        before = disk.operations
        got: list[bytes] = []

        async def receive() -> None:
            async for message in queue:
                got.append(message)

        for _ in range(receivers):
            nursery.start_soon(receive)
        for start in range(0, 3000, 30):
            for message in numbered(10, start):
                await queue.send(message)
            await queue.send_many(numbered(10, start + 10))
            for message in numbered(10, start + 20):
                queue.send_nowait(message)
            await trio.sleep(1.0)
        assert got == numbered(3000) or (receivers > 1 and sorted(got) == sorted(numbered(3000)))
        assert disk.operations == before, disk.journal[before:]
        assert queue.statistics().accepted == queue.statistics().delivered == 3000
        nursery.cancel_scope.cancel()
    assert disk.size_of(data_path()) is None


async def test_blocks_and_batches_and_peeks_need_no_disk_either():
    disk = crash_disk()
    async with opened(disk, **FIRST) as queue:
        before = disk.operations
        await queue.send_many(numbered(100))
        assert await queue.peek() == b"0"
        async with queue.receiving(10) as bodies:
            assert bodies == numbered(10)
            await queue.send(b"100")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with queue.receiving(10) as bodies:
                assert bodies == numbered(10, 10)
                raise ZeroDivisionError
        assert await queue.receive_many(15) == numbered(15, 10)
        assert await queue.receive_many(30, max_bytes=7) == numbered(3, 25)
        assert queue.receive_nowait() == b"28"
        assert queue.depth == 72
        assert drain(queue) == numbered(72, 29)
        assert disk.operations == before


async def test_time_writes_nothing(autojump_clock):
    disk = crash_disk()
    async with opened(disk, **FIRST) as queue:
        before = disk.operations
        await queue.send_many(numbered(10))
        await trio.sleep(3600)
        assert disk.operations == before
        assert queue.statistics().memory_bytes > 0


async def test_what_waits_at_the_end_is_in_files_that_peers_read(tmp_path):
    async with diskq.open_queue(tmp_path, "q", **FIRST) as queue:
        await queue.send_many(numbered(500))
        assert await queue.receive_many(100) == numbered(100)
    assert nsq_oracle.read_dir(tmp_path, "q") == numbered(400, 100)


async def test_a_slow_receiver_loses_no_message_and_no_order():
    disk = crash_disk()
    async with opened(disk, durability="memory", memory_size=2 * KIB, segment_size=500) as queue:
        got = []
        for start in range(0, 2000, 100):
            for message in numbered(50, start):
                await queue.send(message)
            await queue.send_many(numbered(50, start + 50))
            got += [await queue.receive() for _ in range(40)]
            got += await queue.receive_many(35)
            assert queue.statistics().memory_bytes <= 2 * KIB
        got += drain(queue)
        assert got == numbered(2000)
        await queue.sync()  # no barrier is on its way any more
        before = disk.operations
        await queue.send(b"again")
        assert await queue.receive() == b"again"
        assert disk.operations == before, "it has caught up"


async def test_a_lingering_task_is_woken_by_messages_in_memory(autojump_clock):
    async with opened(crash_disk(), **FIRST) as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await queue.send(b"0")
        await tasks.start("lingering", queue.receive_many, 5, linger=100.0)
        for message in numbered(3, 1):
            await queue.send(message)
        await blocked()
        assert not tasks.ended
        start = trio.current_time()
        await queue.send(b"4")
        await blocked()
        assert tasks["lingering"] == numbered(5)
        assert trio.current_time() == start


@pytest.mark.parametrize("word", ["written", "synced"])
async def test_a_stronger_word_is_kept_and_comes_after_what_was_sent_before(word):
    disk = crash_disk()
    async with opened(disk, **FIRST) as queue:
        for message in numbered(3):
            await queue.send(message)
        await queue.send(b"strong", durability=word)
        expected = [*numbered(3), b"strong"]
        assert left_in(disk.kill() if word == "written" else disk.crash()) == expected
        await queue.send(b"4")
        assert left_in(disk.kill()) == expected
        await queue.send_many([b"5", b"6"], durability=word)
        assert drain(queue) == [*expected, *numbered(3, 4)]


async def test_sync_makes_memory_durable_and_a_barrier_of_others_does_not():
    disk = crash_disk()
    async with opened(disk, **FIRST) as queue:
        await queue.send_many(numbered(5))
        await queue.sync()
        assert left_in(disk.crash()) == numbered(5)
        await queue.send(b"5")
        assert await queue.receive() == b"0"
        await queue._loop.barrier(with_metadata=True)  # as the loop takes one when it is due
        assert left_in(disk.crash()) == numbered(4, 1)
        assert queue.depth == 5


async def test_a_block_whose_messages_are_written_meanwhile_still_has_them():
    disk = crash_disk()
    async with opened(disk, **FIRST) as queue:
        await queue.send_many(numbered(10))
        async with queue.receiving(4) as bodies:
            await queue.sync()
            assert bodies == numbered(4)
            assert left_in(disk.kill()) == numbered(10)
        assert queue.depth == 6
        await queue.sync()
        assert left_in(disk.crash()) == numbered(6, 4)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with queue.receiving(4) as bodies:
                await queue.send(b"10", durability="written")
                raise ZeroDivisionError
        assert drain(queue) == numbered(7, 4)


async def test_the_next_sender_gets_the_full_disk_error_and_receivers_go_on():
    disk = fault_disk()
    async with opened(disk, durability="memory", memory_size=2 * KIB) as queue:
        await queue.send(b"written", durability="written")
        disk.capacity(0)
        accepted = 0
        with pytest.raises(diskq.FullError):  # noqa: PT012
            while True:
                await queue.send(b"%d" % accepted)
                accepted += 1
        with pytest.raises(diskq.FullError):
            await queue.send(b"refused")
        with pytest.raises(diskq.FullError):
            queue.send_nowait(b"refused")
        with pytest.raises(diskq.FullError):
            await queue.send(b"refused", durability="synced")
        with pytest.raises(diskq.FullError):
            await queue.sync()
        assert queue.depth == 1 + accepted
        assert await queue.receive() == b"written"
        assert await queue.receive_many(5) == numbered(5)
        await queue.send(b"in")
        disk.capacity(None)
        await queue.sync()
        assert left_in(disk.inner.crash()) == [*numbered(accepted - 5, 5), b"in"]
        assert drain(queue) == [*numbered(accepted - 5, 5), b"in"]


async def test_messages_that_never_fit_on_the_disk_are_reported_at_the_close():
    disk = fault_disk()
    with pytest.raises(diskq.FullError):  # noqa: PT012
        async with opened(disk, **FIRST) as queue:
            await queue.send(b"first", durability="synced")
            await queue.send(b"second")
            disk.capacity(0)
    assert left_in(disk.inner) == [b"first"]


async def test_a_failed_disk_breaks_it_for_everybody():
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk, **FIRST) as queue:
            await queue.send(b"first")
            disk.fail("sync_files", error=errno.EIO, times=None)
            with pytest.raises(trio.BrokenResourceError):
                await queue.sync()
            with pytest.raises(trio.BrokenResourceError):
                await queue.send(b"second")
            with pytest.raises(trio.BrokenResourceError):
                await queue.receive()


async def test_senders_that_wait_for_room_get_what_receivers_leave_in_memory():
    disk = crash_disk()
    bound = 64 * KIB
    async with opened(disk, durability="memory", memory_size=256 * KIB, max_bytes=bound) as queue:
        sent = 0
        try:
            while True:
                queue.send_nowait(b"%0500d" % sent)
                sent += 1
        except trio.WouldBlock:
            pass
        assert sent > 80
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("gave up", queue.send, b"%0500d" % 10**6)
            await tasks.start("waited", queue.send, b"%0500d" % sent)
            tasks.scopes["gave up"].cancel()
            await blocked()
            assert tasks["gave up"] == "cancelled"
            assert "waited" not in tasks
            assert await queue.receive_many(3) == [b"%0500d" % number for number in range(3)]
            await blocked()
            assert tasks["waited"] is None
        assert drain(queue) == [b"%0500d" % number for number in range(3, sent + 1)]
        assert sum(len(data) for path, data in disk.files().items() if ".diskqueue.0" in path) == 0


async def test_synced_messages_of_many_tasks_come_after_those_in_memory():
    disk = fault_disk()
    async with opened(disk, **FIRST) as queue:
        await queue.send(b"held")
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(partial(queue.send, b"%d" % number, durability="synced"))
        found = left_in(disk.inner.crash())
        assert found[0] == b"held"
        assert sorted(found[1:]) == sorted(b"%d" % number for number in range(10))
