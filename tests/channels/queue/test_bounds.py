# Bounds, and what happens at them: too much unsynced, too many bytes, no room on the disk.

from __future__ import annotations

import random

import pytest
import trio

import diskq
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import (
    PatientDisk,
    Tasks,
    blocked,
    data_path,
    drain,
    fault_disk,
    left_in,
    metadata,
    opened,
    until,
)

KIB = 1024
BODY = b"x" * 1020  # with its framing: 1 KiB


def body(number: int, size: int = 1020) -> bytes:
    return (b"%d " % number).ljust(size, b".")


def bytes_on(disk: FaultFS[CrashFS]) -> int:
    """What the queue's messages and checksums take on the disk, as anybody can see it."""
    return sum(len(data) for path, data in disk.inner.files().items() if ".diskqueue.0" in path)


async def fill(queue: diskq.QueueChannel, size: int = 1020) -> int:
    """Send until there is no room; returns how many were sent."""
    sent = 0
    try:
        while True:
            queue.send_nowait(body(sent, size))
            sent += 1
    except (trio.WouldBlock, diskq.FullError):
        return sent


# --- max_unsynced: senders wait for a sync ----------------------------------------------------


async def test_too_much_unsynced_parks_senders_until_a_barrier_is_paid():
    disk = PatientDisk()
    async with opened(disk, max_unsynced=8 * KIB) as queue, trio.open_nursery() as nursery:
        disk.hold()
        for number in range(8):
            await queue.send(body(number))
        assert queue.statistics().unsynced_bytes == 8 * KIB
        tasks = Tasks(nursery)
        await tasks.start("parked", queue.send, body(8))
        await tasks.start("parked, too", queue.send_many, [body(9), body(10)])
        assert not tasks.ended
        assert queue.statistics().tasks_waiting_send == 2
        assert queue.depth == 8
        disk.let_go()
        await until(lambda: len(tasks.ended) == 2)
        assert drain(queue) == [body(number) for number in range(11)]


async def test_send_nowait_would_block_where_too_much_is_unsynced():
    disk = PatientDisk()
    async with opened(disk, max_unsynced=8 * KIB) as queue:
        disk.hold()
        for number in range(8):
            queue.send_nowait(body(number))
        with pytest.raises(trio.WouldBlock):
            queue.send_nowait(b"")
        assert queue.depth == 8
        disk.let_go()
        await until(lambda: queue.statistics().unsynced_bytes == 0)  # asked for by who would have blocked
        queue.send_nowait(b"")
        assert queue.depth == 9


async def test_what_is_larger_than_the_bound_on_unsynced_bytes_passes_alone():
    disk = PatientDisk()
    async with opened(disk, max_unsynced=100) as queue:
        await queue.send(BODY)
        await queue.send(BODY)
        await queue.send_many([BODY] * 3)
        assert queue.depth == 5
        await until(lambda: queue.statistics().unsynced_bytes == 0)
        disk.hold()  # the next sync begins at once, and would end before the look below
        await queue.send_many([BODY] * 3)
        assert queue.depth == 8
        assert queue.statistics().unsynced_bytes == 3 * KIB
        disk.let_go()


async def test_receiving_goes_on_while_senders_wait_for_a_sync():
    disk = PatientDisk()
    async with opened(disk, max_unsynced=4 * KIB) as queue, trio.open_nursery() as nursery:
        disk.hold()
        for number in range(4):
            await queue.send(body(number))
        tasks = Tasks(nursery)
        await tasks.start("parked", queue.send, body(4))
        assert [await queue.receive() for _ in range(4)] == [body(number) for number in range(4)]
        disk.let_go()
        assert await queue.receive() == body(4)


async def test_unsynced_bytes_stay_bounded_whatever_producers_do():
    disk = fault_disk()
    disk.delay("sync_files", 0.002)
    worst = 0
    async with opened(disk, max_unsynced=16 * KIB) as queue, trio.open_nursery() as nursery:

        async def produce():
            nonlocal worst
            for number in range(100):
                await queue.send(body(number))
                worst = max(worst, queue.statistics().unsynced_bytes)

        for _ in range(5):
            nursery.start_soon(produce)
    assert worst <= 16 * KIB
    assert len(left_in(disk.inner)) == 500


# --- max_bytes, with its policies -------------------------------------------------------------


async def test_a_full_queue_parks_senders_until_a_file_is_consumed():
    async with opened(fault_disk(), max_bytes=64 * KIB) as queue, trio.open_nursery() as nursery:
        sent = await fill(queue)
        assert 40 <= sent <= 64
        tasks = Tasks(nursery)
        await tasks.start(0, queue.send, body(sent))
        await tasks.start(1, queue.send, body(sent + 1))
        with pytest.raises(trio.WouldBlock):
            queue.send_nowait(b"")
        got = [await queue.receive() for _ in range(8)]  # one file of the eight
        await until(lambda: 1 in tasks)
        assert got + drain(queue) == [body(number) for number in range(sent + 2)]


async def test_a_full_queue_refuses_with_on_full_reject():
    async with opened(fault_disk(), max_bytes=64 * KIB, on_full="reject") as queue:
        sent = await fill(queue)
        for call in (queue.send(BODY), queue.send_many([BODY]), queue.send(BODY, durability="synced")):
            with pytest.raises(diskq.FullError, match="max_bytes=65536") as raised:
                await call
            assert raised.value.accepted == 0
        with pytest.raises(diskq.FullError):
            queue.send_nowait(BODY)
        assert queue.depth == sent
        await queue.receive_many(20)
        await queue.send(BODY)
        assert drain(queue) == [*(body(number) for number in range(20, sent)), BODY]


async def test_a_full_queue_drops_its_oldest_file_with_drop_oldest():
    async with opened(fault_disk(), max_bytes=64 * KIB, on_full="drop_oldest") as queue:
        for number in range(200):
            await queue.send(body(number))
        dropped = queue.statistics().dropped
        assert dropped + queue.depth == 200
        assert queue.depth >= 40
        assert drain(queue) == [body(number) for number in range(dropped, 200)]


async def test_the_oldest_is_dropped_even_where_a_block_has_it_and_nothing_else_is():
    async with opened(fault_disk(), max_bytes=64 * KIB, on_full="drop_oldest") as queue:
        await queue.send(body(0))
        async with queue.receiving(1) as bodies:
            assert bodies == [body(0)]
            for number in range(1, 200):
                await queue.send(body(number))
        statistics = queue.statistics()
        assert statistics.delivered + statistics.dropped + queue.depth == 200
        first = 200 - queue.depth
        assert drain(queue) == [body(number) for number in range(first, 200)]


async def test_a_batch_for_a_full_queue_is_in_whole_or_not_at_all():
    async with opened(fault_disk(), max_bytes=64 * KIB, on_full="reject") as queue:
        sent = await fill(queue)
        await queue.receive_many(16)
        with pytest.raises(diskq.FullError) as raised:
            await queue.send_many([BODY] * 40)
        assert raised.value.accepted == 0
        assert queue.depth == sent - 16


@pytest.mark.parametrize("is_one_by_one", [True, False])
async def test_messages_that_nearly_fill_the_bound_get_through_it(autojump_clock, is_one_by_one):
    # Each has to wait until files of others are consumed, the one that it would go into among them.
    sizes = [random.Random(number).choice([1, 10, 25, 40]) * KIB for number in range(60)]
    got: list[bytes] = []
    async with opened(fault_disk(), max_bytes=64 * KIB) as queue, trio.open_nursery() as nursery:

        async def receive() -> None:
            while len(got) < len(sizes):
                if is_one_by_one:
                    got.append(await queue.receive())
                else:
                    async with queue.receiving(3) as block:
                        await trio.sleep(1)
                    got.extend(block)

        nursery.start_soon(receive)
        for number, size in enumerate(sizes):
            await queue.send(body(number, size))
    assert got == [body(number, size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("on_full", ["wait", "reject", "drop_oldest"])
async def test_what_can_never_fit_is_refused_at_once(on_full, autojump_clock):
    async with opened(fault_disk(), max_bytes=64 * KIB, on_full=on_full) as queue:
        await queue.send(BODY)
        for call in (lambda: queue.send(bytes(70 * KIB)), lambda: queue.send_many([BODY] * 100)):
            with trio.fail_after(60), pytest.raises(diskq.FullError):
                await call()
        with pytest.raises(diskq.FullError):
            queue.send_nowait(bytes(70 * KIB))
        assert drain(queue) == [BODY]
        await queue.send(BODY)
        assert queue.depth == 1


@pytest.mark.parametrize("on_full", ["wait", "reject", "drop_oldest"])
async def test_the_disk_never_holds_more_than_the_bound(on_full):
    disk = fault_disk()
    disk.delay("sync_files", 0.003)
    worst = refused = 0
    async with opened(disk, max_bytes=64 * KIB, on_full=on_full) as queue, trio.open_nursery() as nursery:

        async def consume():
            async for _ in queue:
                pass

        nursery.start_soon(consume)
        for number in range(500):
            try:
                await queue.send(body(number))
            except diskq.FullError:
                refused += 1
                await trio.lowlevel.checkpoint()
            worst = max(worst, bytes_on(disk))
        nursery.cancel_scope.cancel()
    assert worst <= 64 * KIB
    assert refused < 400


async def test_a_full_queue_without_readers_is_left_alone(mock_clock):
    # What is full stays full, however often it is synced.
    disk = fault_disk()
    async with opened(disk, max_bytes=64 * KIB) as queue, trio.open_nursery() as nursery:
        await fill(queue)
        await queue.sync()
        tasks = Tasks(nursery)
        await tasks.start("parked", queue.send, BODY)
        await until(lambda: queue.statistics().unsynced_bytes == 0)
        barriers = queue.statistics().barriers
        for _ in range(20):
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert queue.statistics().barriers <= barriers + 2
        assert not tasks.ended
        nursery.cancel_scope.cancel()


# --- fairness among senders -------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["unsynced", "bytes"])
async def test_senders_that_wait_for_room_are_let_in_in_order_of_arrival(bound):
    disk = PatientDisk()
    options = {"max_unsynced": 40 * KIB} if bound == "unsynced" else {"max_bytes": 64 * KIB}
    async with opened(disk, **options) as queue, trio.open_nursery() as nursery:
        if bound == "unsynced":
            disk.hold()
        sent = await fill(queue)
        tasks = Tasks(nursery)
        sizes = [1020, 3000, 10, 500, 6000, 1]
        for number, size in enumerate(sizes, sent):
            await tasks.start(number, queue.send, body(number, size))
        assert not tasks.ended
        disk.let_go()
        got = [await queue.receive() for _ in range(sent + len(sizes))]
        assert got == [body(n) for n in range(sent)] + [body(n, size) for n, size in enumerate(sizes, sent)]


async def test_space_belongs_to_the_waiting_sender_before_it_runs():
    async with opened(fault_disk(), max_bytes=64 * KIB) as queue, trio.open_nursery() as nursery:
        sent = await fill(queue, size=4000)
        tasks = Tasks(nursery)
        await tasks.start("waited", queue.send, body(sent, 4000))
        queue.receive_nowait()
        queue.receive_nowait()
        while queue.statistics().tasks_waiting_send:
            with pytest.raises(trio.WouldBlock):
                queue.send_nowait(b"late")
            await trio.testing.wait_all_tasks_blocked(0.001)
        queue.send_nowait(b"late")
        assert drain(queue)[-2:] == [body(sent, 4000), b"late"]


async def test_a_small_message_does_not_overtake_a_large_one_that_waits():
    async with opened(fault_disk(), max_bytes=64 * KIB) as queue, trio.open_nursery() as nursery:
        sent = await fill(queue, size=7000)
        tasks = Tasks(nursery)
        await tasks.start("large", queue.send, body(sent, 7000))
        await tasks.start("small", queue.send, b"s")
        assert not tasks.ended
        with pytest.raises(trio.WouldBlock):
            queue.send_nowait(b"smaller")
        await queue.receive_many(4)
        await until(lambda: len(tasks.ended) == 2)
        assert drain(queue)[-2:] == [body(sent, 7000), b"s"]


async def test_a_sender_that_gives_up_lets_the_next_one_in():
    async with opened(fault_disk(), max_bytes=64 * KIB) as queue, trio.open_nursery() as nursery:
        sent = await fill(queue, size=4000)
        tasks = Tasks(nursery)
        await tasks.start("too large for the rest", queue.send, body(sent, 4000))
        await tasks.start("small", queue.send, b"s")
        tasks.scopes["too large for the rest"].cancel()
        await blocked()
        assert tasks["small"] is None
        assert queue.depth == sent + 1


async def test_a_handle_that_is_closed_gives_up_the_places_of_its_senders():
    async with opened(fault_disk(), max_bytes=64 * KIB) as queue, trio.open_nursery() as nursery:
        sent = await fill(queue, size=4000)
        shadow = queue.clone()
        tasks = Tasks(nursery)
        await tasks.start("shadow", shadow.send, body(sent, 4000))
        await tasks.start("small", queue.send, b"s")
        shadow.close()
        await blocked()
        assert type(tasks["shadow"]) is trio.ClosedResourceError
        assert tasks["small"] is None
        assert drain(queue)[-1] == b"s"


async def test_the_end_of_the_block_wakes_waiting_senders():
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        disk = fault_disk()
        async with opened(disk, max_bytes=64 * KIB) as queue:
            sent = await fill(queue)
            await tasks.start(1, queue.send, BODY)
            await tasks.start(2, queue.send_many, [BODY] * 2)
    assert type(tasks[1]) is type(tasks[2]) is trio.ClosedResourceError
    assert len(left_in(disk.inner)) == sent


# --- a full disk ------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["written", "synced"])
async def test_a_full_disk_raises_in_the_sender_and_nothing_partial_is_left(durability):
    disk = fault_disk()
    async with opened(disk, durability=durability) as queue:
        await queue.send(b"before")
        size = len(disk.inner.read(data_path()))
        disk.capacity(500)
        for call in (queue.send(BODY), queue.send_many([b"x" * 300] * 2)):
            with pytest.raises(diskq.FullError) as raised:
                await call
            assert raised.value.accepted == 0
            assert isinstance(raised.value.__cause__, OSError)
        with pytest.raises(diskq.FullError):
            queue.send_nowait(BODY)
        assert len(disk.inner.read(data_path())) == size
        assert queue.depth == 1
        await queue.send(b"fits")
        disk.capacity(None)
        await queue.send(b"after")
        assert drain(queue) == [b"before", b"fits", b"after"]
    assert left_in(disk.inner) == []


async def test_only_whose_message_did_not_fit_hears_of_the_full_disk():
    disk = fault_disk()
    async with opened(disk, checkpoint_slice=0) as queue, trio.open_nursery() as nursery:
        await queue.send(b"before")
        disk.capacity(5000)
        tasks = Tasks(nursery)
        for number in range(16):
            tasks.start_soon(number, queue.send, body(number))
        await blocked()
        refused = {number for number in range(16) if isinstance(tasks[number], diskq.FullError)}
        assert len(refused) == 12
        assert len({id(tasks[number]) for number in refused}) == 12
        disk.capacity(None)
        await queue.send(b"after")
        got = drain(queue)
        assert sorted(got[1:-1]) == sorted(body(number) for number in range(16) if number not in refused)
        assert (got[0], got[-1]) == (b"before", b"after")


async def test_a_batch_that_the_disk_refused_midway_can_be_repeated_from_where_it_ended():
    disk = fault_disk()
    async with opened(disk, segment_size=100 * KIB) as queue:
        bodies = [body(number) for number in range(600)]
        await queue.send(b"before")
        disk.capacity(300 * KIB)
        with pytest.raises(diskq.FullError) as raised:
            await queue.send_many(bodies)
        accepted = raised.value.accepted
        assert 0 < accepted < 300
        assert queue.depth == 1 + accepted
        disk.capacity(None)
        await queue.send_many(bodies[accepted:])
        assert drain(queue) == [b"before", *bodies]


async def test_a_full_disk_can_be_drained_which_makes_room():
    disk = fault_disk()
    async with opened(disk, segment_size=8 * KIB) as queue:
        bodies = [body(number) for number in range(40)]
        await queue.send_many(bodies)
        await queue.sync()
        disk.capacity(0)
        with pytest.raises(diskq.FullError):
            await queue.send(BODY)
        got = [await queue.receive() for _ in range(10)]
        async with queue.receiving(10) as block:
            got += block
        await queue.sync()
        await queue.send(BODY)
        got += drain(queue)
        assert got == [*bodies, BODY]
    assert left_in(disk.inner) == []


async def test_a_sync_that_finds_no_room_for_the_metadata_makes_room_of_what_is_consumed():
    """Where nothing was refused in this run before: it is the first to meet the full disk."""
    disk = fault_disk()
    async with opened(disk) as queue:
        await queue.send_many([BODY] * 10)
    async with opened(disk) as queue:
        assert drain(queue) == [BODY] * 10
        disk.capacity(0)
        await queue.sync()
        await queue.send(BODY)
        assert drain(queue) == [BODY]
    assert left_in(disk.inner) == []


async def test_memory_messages_that_find_no_room_are_kept_and_written_when_there_is_some(autojump_clock):
    disk = fault_disk()
    async with opened(disk, durability="memory") as queue:
        await queue.send(b"first")
        await queue.sync()
        disk.capacity(0)
        await queue.send(b"second")
        with pytest.raises(diskq.FullError):
            await queue.sync()
        assert queue.depth == 2
        await trio.sleep(1)
        disk.capacity(None)
        await trio.sleep(1)
        await until(lambda: b"second" in disk.inner.read(data_path()))
        assert drain(queue) == [b"first", b"second"]


async def test_a_synced_message_is_synced_although_another_found_no_space(autojump_clock):
    disk = PatientDisk()
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        await queue.send(b"first")
        tasks = Tasks(nursery)
        disk.hold()
        nursery.start_soon(queue.sync)
        await until(lambda: disk.waiting == 1)
        await tasks.start("synced", lambda: queue.send(b"second", durability="synced"))
        await queue.send(b"third", durability="memory")
        disk.capacity(0)
        disk.let_go()
        await until(lambda: "synced" in tasks)
        assert tasks["synced"] is None
        assert left_in(disk.inner.crash()) == [b"first", b"second"]
        disk.capacity(None)
        await queue.sync()
        assert left_in(disk.inner.crash()) == [b"first", b"second", b"third"]


async def test_the_metadata_names_the_file_although_memory_messages_were_received():
    disk = fault_disk()
    async with opened(disk, memory_flush=1e9) as queue:
        await queue.send(b"first", durability="synced")
        disk.capacity(200)  # enough for metadata, and for no body of the next ones
        await queue.send_many([BODY, BODY, BODY], durability="memory")
        assert len(await queue.receive_many(3)) == 3
        with pytest.raises(diskq.FullError):
            await queue.sync()
        assert metadata(disk.inner) == (0, 0, 9, 0, 9)
        disk.capacity(None)
        await queue.sync()
        assert metadata(disk.inner)[0] == 1
        assert left_in(disk.inner.crash()) == [BODY]


async def test_memory_messages_that_find_no_room_until_the_end_are_missed_aloud():
    disk = fault_disk()
    with pytest.raises(diskq.FullError):  # noqa: PT012
        async with opened(disk, durability="memory") as queue:
            await queue.send(b"first")
            await queue.sync()
            disk.capacity(0)
            await queue.send(bytes(100_000))  # more than the write-ahead log's reserve
    assert left_in(disk.inner) == [b"first"]


async def test_a_full_disk_at_the_end_does_not_hide_why_the_block_ended():
    disk = fault_disk()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with opened(disk, durability="memory") as queue:
            await queue.send(b"first")
            await queue.sync()
            disk.capacity(0)
            await queue.send(b"second")
            raise ZeroDivisionError
    async with opened(disk):
        pass
