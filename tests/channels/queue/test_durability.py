# The durability words, and the sync policy: what is true when a call returns, and what comes true by itself.

from __future__ import annotations

from functools import partial

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
    numbered,
    opened,
    until,
)

SUMS = "/q/.diskq/events.diskqueue.000000.dat.sums"
REDO = "/q/.diskq/events.redo"


def written(disk: FaultFS[CrashFS]) -> bytes:
    """What is in the first data file, for everybody to see."""
    return disk.inner.files().get(data_path(), b"")


def barriers(queue: diskq.QueueChannel) -> int:
    return queue.statistics().barriers


async def until_barrier(queue: diskq.QueueChannel, number: int) -> None:
    await until(lambda: barriers(queue) >= number)
    assert barriers(queue) == number


# --- synced -----------------------------------------------------------------------------------


async def test_synced_to_the_files_returns_after_the_data_and_its_checksums_were_synced():
    disk = fault_disk()
    async with opened(disk, sync_to="files") as queue:
        for number in range(5):
            before = len(disk.calls)
            await queue.send(b"%d" % number, durability="synced")
            calls = [(call.verb, call.path) for call in disk.calls[before:]]
            put = calls.index(("pwrite", data_path()))
            data = calls.index(("sync_files", data_path()))
            rows = max(i for i, call in enumerate(calls) if call == ("pwrite", SUMS))
            sums = calls.index(("sync_files", SUMS))
            assert put < data < sums
            assert rows < sums


@pytest.mark.parametrize("how", ["send", "send_many", "by option", "after a roll", "at once"])
async def test_what_was_sent_synced_survives_a_power_cut(how):
    disk = fault_disk()
    options = diskq.QueueOptions(
        durability="synced" if how == "by option" else "written",
        segment_size=20 if how == "after a roll" else 1_000_000,
    )
    async with opened(disk, options=options) as queue:
        sent: list[bytes] = []
        for number in range(20):
            bodies = [b"%d" % number] * 3
            if how == "send_many":
                await queue.send_many(bodies, durability="synced")
            elif how == "at once":
                async with trio.open_nursery() as nursery:
                    for body in bodies:
                        nursery.start_soon(partial(queue.send, body, durability="synced"))
            else:
                for body in bodies:
                    await queue.send(body, durability=None if how == "by option" else "synced")
            sent += bodies
            assert left_in(disk.inner.crash()) == sent
        assert drain(queue) == sent


async def test_what_was_sent_before_is_synced_with_it():
    disk = fault_disk()
    async with opened(disk) as queue:
        await queue.send_many(numbered(10))
        await queue.send(b"in memory", durability="memory")
        await queue.send(b"synced", durability="synced")
        assert left_in(disk.inner.crash()) == [*numbered(10), b"in memory", b"synced"]


@pytest.mark.parametrize("producers", [16, 64])
async def test_producers_that_wait_for_the_disk_share_their_syncs(producers):
    disk = fault_disk()
    async with opened(disk) as queue:
        before = barriers(queue)

        async def produce() -> None:
            for _ in range(10):
                await queue.send(b"x", durability="synced")

        async with trio.open_nursery() as nursery:
            for _ in range(producers):
                nursery.start_soon(produce)
        assert barriers(queue) - before <= 25  # 10 at best, and one by one it would be 160, or 640
        assert len(left_in(disk.inner.crash())) == 10 * producers


async def test_a_send_while_a_barrier_is_executed_waits_for_the_next_one():
    disk = PatientDisk()
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        await queue.send(b"zero", durability="synced")
        tasks = Tasks(nursery)
        disk.hold()
        await tasks.start("first", lambda: queue.send(b"first", durability="synced"))
        await until(lambda: disk.waiting == 1)
        await tasks.start("second", lambda: queue.send(b"second", durability="synced"))
        before = barriers(queue)
        disk.let_go()
        await until(lambda: "second" in tasks)
        assert barriers(queue) == before + 2
        assert left_in(disk.inner.crash()) == [b"zero", b"first", b"second"]


@pytest.mark.parametrize("sync_to", ["log", "files"])
async def test_a_barrier_for_senders_alone_syncs_no_metadata(sync_to):
    disk = fault_disk()
    async with opened(disk, sync_to=sync_to) as queue:
        for _ in range(2):  # the first one makes the log, and the second one is the first in it
            await queue.send(b"first", durability="synced")
        before = len(disk.calls)
        await queue.send(b"second", durability="synced")
        syncs = [call.path for call in disk.calls[before:] if call.verb.startswith("sync")]
        assert syncs == ([REDO] if sync_to == "log" else [data_path(), SUMS])


# --- written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint_slice", [0, 100e-6, 60.0])
async def test_what_was_sent_is_in_the_page_cache_when_the_call_returns(checkpoint_slice):
    disk = fault_disk()
    async with opened(disk, checkpoint_slice=checkpoint_slice, segment_size=500) as queue:
        sent = []
        for number in range(100):
            body = b"%d" % number
            match number % 3:
                case 0:
                    await queue.send(body)
                case 1:
                    await queue.send_many([body])
                case 2:
                    queue.send_nowait(body)
            sent.append(body)
            assert left_in(disk.inner.kill()) == sent


@pytest.mark.parametrize("checkpoint_slice", [0, 100e-6, 60.0])
async def test_a_while_later_it_is_in_the_file_for_everybody_to_see(tmp_path, checkpoint_slice):
    async with diskq.open_queue(tmp_path, "events", checkpoint_slice=checkpoint_slice) as queue:
        for number in range(100):
            await queue.send(b"message %d" % number)
        await blocked()
        assert b"message 99" in (tmp_path / "events.diskqueue.000000.dat").read_bytes()


async def test_written_costs_no_sync_until_one_is_due(mock_clock):
    disk = fault_disk()
    async with opened(disk) as queue:
        before = len(disk.calls)
        for body in numbered(1000):
            await queue.send(body)
        await blocked()
        assert not [call for call in disk.calls[before:] if call.verb.startswith("sync")]


# --- memory -------------------------------------------------------------------------------------


async def hold_one(disk: FaultFS[CrashFS], queue: diskq.QueueChannel) -> None:
    before = written(disk).count(b"held")
    await queue.send(b"held", durability="memory")
    assert written(disk).count(b"held") == before
    assert queue.depth == 1


async def test_memory_messages_are_in_the_page_cache_within_memory_flush(autojump_clock):
    disk = fault_disk()
    async with opened(disk, durability="memory", memory_flush=0.5) as queue:
        for round_ in range(3):
            body = b"held %d" % round_
            await queue.send(body)
            queue.send_nowait(body)
            await trio.sleep(0.4)
            assert body not in written(disk)
            await trio.sleep(0.2)
            assert written(disk).count(body) == 2


async def test_one_memory_message_among_written_ones_is_flushed_too(autojump_clock):
    disk = fault_disk()
    async with opened(disk, memory_flush=0.5) as queue:
        await hold_one(disk, queue)
        await trio.sleep(0.6)
        assert b"held" in written(disk)


@pytest.mark.parametrize("who", ["sync", "a synced send", "a written send", "a full buffer"])
async def test_memory_messages_are_written_by_the_call_that_needs_them_on_disk(who):
    disk = fault_disk()
    async with opened(disk, memory_flush=1e9) as queue:
        await hold_one(disk, queue)
        match who:
            case "sync":
                await queue.sync()
            case "a synced send":
                await queue.send(b"x", durability="synced")
            case "a written send":
                await queue.send(b"x", durability="written")
            case "a full buffer":
                for _ in range(40):
                    await queue.send(b"x" * 9996, durability="memory")
        assert b"held" in written(disk)


@pytest.mark.parametrize("durability", ["memory", "written", "synced"])
async def test_a_receiver_gets_what_is_in_memory_still_and_in_its_place(durability):
    disk = fault_disk()
    async with opened(disk, memory_flush=1e9) as queue:
        for number in range(50):
            body = b"%d" % number
            await hold_one(disk, queue)
            await queue.send(body, durability=durability)
            await queue.send(b"last", durability="memory")
            assert await queue.peek() == b"held"
            match number % 3:
                case 0:
                    assert [await queue.receive() for _ in range(3)] == [b"held", body, b"last"]
                case 1:
                    assert await queue.receive_many(9) == [b"held", body, b"last"]
                case 2:
                    async with queue.receiving(9) as bodies:
                        assert bodies == [b"held", body, b"last"]
            assert queue.depth == 0
            await queue.sync()
            await queue.clear()
            assert left_in(disk.inner.kill()) == []


async def test_memory_messages_are_written_when_the_queue_closes():
    disk = fault_disk()
    async with opened(disk, memory_flush=1e9) as queue:
        await hold_one(disk, queue)
    assert left_in(disk.inner.crash()) == [b"held"]


async def test_memory_messages_do_not_pile_up():
    disk = fault_disk()
    async with opened(disk, durability="memory", memory_flush=1e9) as queue:
        for _ in range(100):
            await queue.send(b"x" * 9996)
        assert len(written(disk)) >= 700_000


async def test_a_kill_costs_what_was_in_memory_and_nothing_else():
    disk = fault_disk()
    async with opened(disk, memory_flush=1e9) as queue:
        await queue.send(b"written")
        await queue.send(b"held", durability="memory")
        assert left_in(disk.inner.kill()) == [b"written"]


# --- the sync policy ------------------------------------------------------------------------------


async def send(queue: diskq.QueueChannel) -> None:
    await queue.send(b"x")


async def receive(queue: diskq.QueueChannel) -> None:
    await queue.receive()


async def commit(queue: diskq.QueueChannel) -> None:
    async with queue.receiving(1):
        pass


def send_now(queue: diskq.QueueChannel) -> None:
    queue.send_nowait(b"x")


async def test_every_n_messages_are_synced(mock_clock):
    disk = fault_disk()
    async with opened(disk, sync_every=10) as queue:
        for times in range(1, 6):
            for number in range(10):
                assert barriers(queue) == times
                await (queue.send(b"x") if number % 2 else queue.send_many([b"x"]))
            await until_barrier(queue, times + 1)
            assert metadata(disk.inner)[0] == 10 * times
            assert len(left_in(disk.inner.crash())) == 10 * times


async def test_consumed_messages_count_too(mock_clock):
    disk = fault_disk()
    async with opened(disk, sync_every=10) as queue:
        await queue.send_many([b"x"] * 100)
        await queue.sync()
        executed = barriers(queue)
        for times in range(1, 6):
            for number in range(10):
                assert barriers(queue) == executed + times - 1
                await (queue.receive() if number % 2 else commit(queue))
            await until_barrier(queue, executed + times)
            assert metadata(disk.inner)[:3] == (100 - 10 * times, 0, 50 * times)


@pytest.mark.parametrize("checkpoint_slice", [0, 60.0])
async def test_messages_in_and_out_are_counted_together(mock_clock, checkpoint_slice):
    disk = fault_disk()
    async with opened(disk, sync_every=20, checkpoint_slice=checkpoint_slice) as queue:
        await queue.send_many([b"x"] * 30)
        await queue.sync()
        executed = barriers(queue)
        for times in range(1, 6):
            for number in range(20):
                assert barriers(queue) == executed + times - 1
                await (queue.receive() if number % 3 else queue.send(b"x"))
            await until_barrier(queue, executed + times)


async def test_a_crash_redelivers_up_to_n_messages(mock_clock):
    disk = fault_disk()
    async with opened(disk, sync_every=10) as queue:
        await queue.send_many(numbered(100))
        await queue.sync()
        executed = barriers(queue)
        for number in range(100):
            assert await queue.receive() == b"%d" % number
            if number % 10 == 9:
                await until_barrier(queue, executed + (number + 1) // 10)
                assert metadata(disk.inner)[0] == 99 - number
            rest = left_in(disk.inner.crash())
            assert rest == numbered(len(rest), start=100 - len(rest))
            assert len(rest) - queue.depth <= 10


@pytest.mark.parametrize("act", [send, send_now, receive, commit])
async def test_one_act_is_synced_within_the_timeout(mock_clock, act):
    # Each time from an idle queue; as the peer's TestDiskQueueSyncAfterRead looks at its metadata.
    disk = fault_disk()
    async with opened(disk, sync_timeout=2.0) as queue:
        await queue.send_many([b"x"] * 10)
        await queue.sync()
        for _ in range(5):
            executed = barriers(queue)
            if (waits := act(queue)) is not None:
                await waits
            await blocked()
            mock_clock.jump(1.9)
            await trio.testing.wait_all_tasks_blocked(0.005)
            assert barriers(queue) == executed
            mock_clock.jump(0.2)
            await until_barrier(queue, executed + 1)
            assert metadata(disk.inner)[0] == queue.depth
            assert len(left_in(disk.inner.crash())) == queue.depth


async def test_the_timeout_runs_from_the_first_unsynced_message(autojump_clock):
    disk = fault_disk()
    async with opened(disk, sync_timeout=2.0) as queue:
        for _ in range(15):
            await queue.send(b"x")
            await trio.sleep(0.25)
        await until(lambda: barriers(queue) >= 2)
        assert metadata(disk.inner)[0] >= 7


async def test_reading_without_writing_is_synced_and_the_position_is_durable(mock_clock):
    disk = fault_disk()
    async with opened(disk) as queue:
        await queue.send_many(numbered(10))
        await queue.sync()
        await queue.receive_many(4)
        await blocked()
        mock_clock.jump(2.1)
        await until(lambda: metadata(disk.inner)[0] == 6)
        assert left_in(disk.inner.crash()) == numbered(6, start=4)


async def test_what_a_long_block_commits_is_synced_though_a_sync_came_in_between(mock_clock):
    disk = fault_disk()
    async with opened(disk) as queue:
        await queue.send_many(numbered(10))
        await queue.sync()
        async with queue.receiving(4):
            await queue.sync()
            assert left_in(disk.inner.crash()) == numbered(10)
        await blocked()
        mock_clock.jump(2.1)
        await until(lambda: metadata(disk.inner)[0] == 6)
        assert left_in(disk.inner.crash()) == numbered(6, start=4)


async def test_peeking_costs_no_sync(mock_clock):
    disk = fault_disk()
    async with opened(disk) as queue:
        await queue.send_many(numbered(10))
        await queue.sync()
        executed = barriers(queue)
        await queue.peek()
        async with queue.receiving(4):
            mock_clock.jump(2.1)
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert barriers(queue) == executed


async def test_a_consumed_file_goes_with_the_barrier_that_follows(mock_clock):
    disk = fault_disk()
    async with opened(disk, segment_size=50) as queue:
        for body in numbered(30, start=10):
            await queue.send(body)
        await queue.sync()
        for _ in range(9):
            await queue.receive()
        await until(lambda: data_path(0) not in disk.inner.files())
        assert data_path(1) in disk.inner.files()
        assert left_in(disk.inner.crash())[-21:] == numbered(21, start=19)


async def test_syncs_follow_each_other_only_where_there_is_something_to_sync(autojump_clock):
    disk = fault_disk()
    async with opened(disk, sync_timeout=2.0) as queue:
        await queue.send(b"x")
        await trio.sleep(3)
        await until(lambda: queue.statistics().unsynced_bytes == 0)
        executed = barriers(queue)
        await trio.sleep(1000)
        assert barriers(queue) == executed


# --- sends that share a write -----------------------------------------------------------------------


def data_writes(disk: FaultFS[CrashFS]) -> int:
    return sum(call.verb == "pwrite" and call.path == data_path() for call in disk.calls)


async def test_tasks_that_wait_for_the_disk_share_the_write_too():
    disk = fault_disk()
    async with opened(disk, durability="synced") as queue:
        await queue.send(b"first")
        disk.calls.clear()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(queue.send, b"%d" % number)
        assert data_writes(disk) == 2, "the first one is alone yet"
        assert sorted(left_in(disk.inner.crash())) == sorted(
            [b"first", *(b"%d" % number for number in range(20))]
        )


ACTS = ["send", "send_nowait", "send_many", "memory", "a large one", "receive", "sync", "clear", "leave"]


@pytest.mark.parametrize("act", ACTS)
async def test_what_waits_to_be_written_is_written_before_what_comes_after_it(act):
    disk = PatientDisk()
    received: list[bytes] = []
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with opened(disk) as queue:
            await queue.send(b"0")
            disk.hold()
            await tasks.start("holds", queue.sync)
            await tasks.start("alone", queue.send, b"1", durability="synced")
            await tasks.start("first", queue.send, b"2", durability="synced")
            await tasks.start("second", queue.send, b"3", durability="synced")
            assert queue.statistics().tasks_waiting_send == 4
            assert queue.statistics().depth == 2
            match act:
                case "send":
                    await queue.send(b"4")
                case "send_nowait":
                    queue.send_nowait(b"4")
                case "send_many":
                    await queue.send_many([b"4", b"5"])
                case "memory":
                    await queue.send(b"4", durability="memory")
                case "a large one":
                    await tasks.start("large", queue.send, b"x" * 100_000, durability="synced")
                case "receive":
                    await queue.send(b"4")
                    received = drain(queue)
                    assert received == [b"0", b"1", b"2", b"3", b"4"]
                case "sync":
                    await tasks.start("sync", queue.sync)
                case "clear":
                    await tasks.start("clear", queue.clear)
            disk.let_go()
            if act in ("sync", "clear"):
                await until(lambda: act in tasks)
            await until(lambda: "first" in tasks and "second" in tasks)
    expected = [] if act == "clear" else [b"0", b"1", b"2", b"3"]
    found = [*received, *left_in(disk.inner.crash())]
    assert found[: len(expected)] == expected
    assert (len(found) > 0) == bool(expected)


async def test_a_closed_handle_adds_nothing_to_a_batch():
    async with opened(fault_disk(), durability="synced") as queue, trio.open_nursery() as nursery:
        other = queue.clone()
        await other.send(b"x")
        nursery.start_soon(queue.send, b"x")
        nursery.start_soon(queue.send, b"x")
        await trio.lowlevel.checkpoint()
        other.close()
        with pytest.raises(trio.ClosedResourceError):
            await other.send(b"never")


async def test_a_broken_queue_wakes_all_that_wait_with_one_batch():
    disk = PatientDisk()
    async with trio.open_nursery() as nursery:
        with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 (leaving the block raises)
            async with opened(disk, durability="synced") as queue:
                await queue.send(b"0")
                disk.hold()
                failures: list[BaseException] = []

                async def send(number: int) -> None:
                    with pytest.raises(trio.BrokenResourceError) as failed:
                        await queue.send(b"%d" % number)
                    failures.append(failed.value)

                for number in range(6):
                    nursery.start_soon(send, number)
                await until(lambda: queue.statistics().tasks_waiting_send == 6)
                disk.fail("sync_files", 1, times=None)
                disk.let_go()
                await until(lambda: len(failures) == 6)
                assert len(set(map(id, failures))) == 6, "each has an error of its own"
