# statistics(): frozen, in documented units, cheap, and from any thread.

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

import diskq
from diskq.engine.log.sync import DurationCounter
from diskq.hub.replication import Progress, ReplicationStatistics
from diskq.storage.sync_times import BOUNDS
from diskq.testing import CrashFS, FaultFS

KINDS = (
    *("queue", "work", "producer", "consumer", "journal", "scanner", "shards", "shard scanner"),
    *("store", "priority queue", "replay", "spool", "budget"),
)


@asynccontextmanager
async def everything(fs: Any) -> AsyncIterator[dict[str, Any]]:
    """One of each kind, open on one disk, and each with a few messages."""

    async def deliver(batch: diskq.Batch) -> None:
        await trio.sleep_forever()

    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        budget = diskq.DiskBudget(1024 * 1024)
        queue = await enter(diskq.open_queue("/q", "events", fs=fs, budget=budget))
        worked_on = await enter(diskq.open_queue("/w", "jobs", fs=fs))
        await worked_on.send_many([b"1", b"2", b"3"])
        work = await enter(worked_on.working())
        await work.receive()
        producer = await enter(diskq.open_producer("/s", fs=fs, partition_count=2))
        consumer = await enter(diskq.open_consumer("/s", group="g", fs=fs))
        journal = await enter(diskq.open_journal("/j", fs=fs))
        scanner = await enter(diskq.open_scanner("/j", reader="r", fs=fs))
        shards = await enter(diskq.open_shards("/many", "p", 1, fs=fs))
        await shards.send(b"x", key=b"k")
        shard_scanner = await enter(diskq.open_shard_scanner("/many", "p", 1, fs=fs))
        store = await enter(diskq.open_priority_store("/jobs", fs=fs))
        mail = await store.create_queue("mail")
        replay = await enter(diskq.open_replay("/s", fs=fs))
        spool = await enter(diskq.open_spool("/spool", deliver, fs=fs))
        for sink in (queue, producer, journal, spool):
            await sink.send(b"hello")
        await mail.send(b"hello", priority=1)
        stores = (
            queue,
            work,
            producer,
            consumer,
            journal,
            scanner,
            shards,
            shard_scanner,
            store,
            mail,
            replay,
        )
        yield dict(zip(KINDS, (*stores, spool, budget), strict=True))


@pytest.fixture
def whole_disk() -> CrashFS:
    fs = CrashFS()
    for path in ("/", "/q", "/w"):
        fs.make_directory_durably(path)
    return fs


def single(told: Any) -> Any:
    return next(iter(told.values())) if isinstance(told, dict) else told


@pytest.mark.parametrize("kind", KINDS)
async def test_statistics_are_a_frozen_dataclass_and_ask_the_disk_nothing(whole_disk, kind, autojump_clock):
    fs = FaultFS(whole_disk)
    async with everything(fs) as stores:
        await trio.testing.wait_all_tasks_blocked()
        before = len(fs.calls)
        told = single(stores[kind].statistics())
        # A sync that a store began before may still be at work, in a thread of its own.
        assert [call for call in fs.calls[before:] if call.thread == threading.get_ident()] == []
        assert dataclasses.is_dataclass(told)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(told, dataclasses.fields(told)[0].name, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_statistics_work_in_another_thread(whole_disk, kind, autojump_clock):
    async with everything(whole_disk) as stores:
        await trio.testing.wait_all_tasks_blocked()
        here = stores[kind].statistics()
        there: list[Any] = []
        thread = threading.Thread(target=lambda: there.append(stores[kind].statistics()))
        thread.start()
        thread.join()
        assert [type(single(each)) for each in there] == [type(single(here))]


@pytest.mark.parametrize("kind", ["consumer", "scanner", "shard scanner"])
async def test_a_look_counts_what_was_not_received(whole_disk, kind, autojump_clock):
    async with everything(whole_disk) as stores:
        told = await trio.to_thread.run_sync(stores[kind].look)
        assert sum(part.lag for part in getattr(single(told), "partitions", {0: single(told)}).values()) == 1


async def test_statistics_in_a_thread_while_all_is_busy(whole_disk):
    interval = sys.getswitchinterval()
    failures: list[BaseException] = []
    async with everything(whole_disk) as stores:
        is_over = threading.Event()

        def ask() -> None:
            try:
                while not is_over.is_set():
                    for store in stores.values():
                        store.statistics()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=ask)
        sys.setswitchinterval(1e-5)
        try:
            thread.start()
            for number in range(100):
                await stores["queue"].send(b"%d" % number)
                await stores["producer"].send(b"%d" % number, key=b"%d" % number)
                await stores["shards"].send(b"%d" % number, key=b"%d" % number)
                await stores["priority queue"].send(b"%d" % number, priority=number)
                await stores["spool"].send(b"%d" % number)
                await stores["queue"].receive()
                await stores["consumer"].receive()
            is_over.set()
            await trio.to_thread.run_sync(thread.join)
        finally:
            is_over.set()
            sys.setswitchinterval(interval)
    assert failures == []


async def test_barriers_are_timed(whole_disk):
    async with diskq.open_queue("/q", "events", fs=whole_disk) as queue:
        before = queue.statistics().barrier_seconds
        await queue.send(b"x", durability="synced")
        await queue.sync()
        told = queue.statistics().barrier_seconds
        assert (told.count - before.count, told.buckets[0] - before.buckets[0]) == (2, 2)


def test_durations_are_counted_by_their_length():
    counter = DurationCounter()
    for seconds in (0.0, 0.0001, 0.0002, 100.0):
        counter.count(seconds)
    told = counter.now()
    assert (told.count, told.buckets[:2], told.buckets[-1]) == (4, (2, 1), 1)
    assert told.seconds == pytest.approx(100.0003)
    assert len(told.buckets) == len(BOUNDS) + 1
    assert list(BOUNDS) == sorted(BOUNDS)


def test_a_copys_progress_is_kept():
    progress = Progress()
    assert progress.statistics() == ReplicationStatistics()
    progress(ReplicationStatistics(delivered=3))
    assert progress.statistics().delivered == 3


STATISTICS = [name for name in diskq.__all__ if name.endswith("Statistics")]


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_are_described(name):
    kind = getattr(diskq, name)
    assert dataclasses.is_dataclass(kind)
    assert kind.__doc__
