# What streams do while they are measured, as works.py has it for the queue. Messages are 100 bytes
# with a key of 8: 128 bytes in a data file, as go-diskq has them.

from __future__ import annotations

import os
import random
import sys
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count as count_from
from itertools import cycle, islice
from pathlib import Path
from subprocess import DEVNULL, PIPE
from time import perf_counter, perf_counter_ns
from typing import Any

import trio

from benchmarks.log_works import by_columns, receive_each, to_the_end, with_gb
from benchmarks.stopwatch import Reading, Stopwatch, body_of, quantiles, shares
from benchmarks.works import latency_of
from diskq import StreamOptions, StreamProducer, offset_after, open_consumer, open_producer
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, key_hash
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.stream import Stream
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.engine.stream.time_summary import TimeSummary
from diskq.storage.fs import OsFileSystem

KEY = "user-042"
RECORD = 20 + len(KEY) + 100
BEGAN = datetime(2013, 7, 4, 10, tzinfo=UTC)
BEGAN_NS = int(BEGAN.timestamp()) * 10**9
APART_US = 1000
APART_NS = 1000 * APART_US


def fill(directory: str, count: int, **options: Any) -> None:
    """Make a stream of one partition and `count` messages, a millisecond apart, closed in order."""
    body = body_of(100)
    with Stream(directory, options=StreamOptions(partition_count=1, **options)) as stream:
        for at in range(0, count, 1000):
            stream.append_many(
                [(KEY, body, BEGAN_NS + number * APART_NS) for number in range(at, min(at + 1000, count))]
            )


# --- sending -------------------------------------------------------------------------------------------


async def send(
    directory: str,
    *,
    count: int,
    size: int = 100,
    tasks: int = 1,
    batch: int = 0,
    partitions: int = 1,
    **options: Any,
) -> Reading:
    """Measure until the last `send` of the last task has returned. The keys of all partitions take turns."""
    keys = keys_of(partitions)
    async with open_producer(directory, **options) as producer:
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            for share in shares(count, tasks):
                nursery.start_soon(_produce, producer, keys, body_of(size), share, batch)
        return watch.stop(count)


def keys_of(partitions: int) -> list[str]:
    """Return keys of 8 bytes for `partitions` different partitions, of the three of a stream."""
    keys: dict[int, str] = {}
    for number in count_from(42):
        key = f"user-{number:03}"
        keys.setdefault(key_hash(key.encode()) % 3, key)
        if len(keys) >= partitions:
            return list(keys.values())
    raise AssertionError


async def _produce(producer: StreamProducer, keys: list[str], body: bytes, count: int, batch: int) -> None:
    if batch:
        bodies = [body] * batch
        for share in [batch] * (count // batch) + [count % batch]:
            await producer.send_many(bodies[:share], keys[0])
    else:
        for key in islice(cycle(keys), count):
            await producer.send(body, key)


# --- receiving -----------------------------------------------------------------------------------------


async def consume(directory: str, *, count: int, batch: int = 0) -> Reading:
    fill(directory, count)
    async with open_consumer(directory, partitions=[0], end="close") as consumer:
        return await to_the_end(consumer, count, batch)


def columns(directory: str, *, count: int) -> Reading:
    fill(directory, count)
    files = StreamFiles(OsFileSystem(), directory).partition(0)
    with PartitionReader(OsFileSystem(), files) as reader:
        return with_gb(by_columns(reader, count), RECORD)


# --- looking for a moment ------------------------------------------------------------------------------


def sparse(directory: str, *, messages: int) -> None:
    """Make a partition as `fill` does, in complete segments, with only the files about time filled.

    These are the timeindexes, and what a producer notes of them. The data and the indexes have their
    sizes, and holes where their bytes would be.
    """
    fs = OsFileSystem()
    files = StreamFiles(fs, directory).partition(0)
    for path in (files.directory, files.private):
        os.makedirs(path)
    in_each = 32 * 2**20 // RECORD  # segments of the default size
    marks = TimeSummary(fs, files)
    for base in [*range(0, messages, in_each), messages]:
        entries = min(in_each, messages - base)
        rows = array("q", bytes(TIMEINDEX_ROW_SIZE * entries))
        rows[0::2] = array("q", range(base, base + entries))
        times = range(BEGAN_NS + base * APART_NS, BEGAN_NS + (base + entries) * APART_NS, APART_NS)
        rows[1::2] = array("q", times)
        Path(files.timeindex(base)).write_bytes(rows)
        for path, width in ((files.data(base), RECORD), (files.index_of(base), INDEX_ROW_SIZE)):
            with open(path, "wb") as file:
                file.truncate(width * entries)
        if entries:
            timeindex = fs.open(files.timeindex(base))
            marks.begin(base, timeindex, entries)
            marks.seal(entries, entries * RECORD)
            fs.close(timeindex)


def lookup(directory: str, *, count: int, messages: int) -> Reading:
    """Random moments of a partition that is kept open, each segment of which was asked before."""
    files = StreamFiles(OsFileSystem(), directory).partition(0)
    wanted = [random.randrange(1, messages) for _ in range(count)]
    moments = [BEGAN_NS + number * APART_NS - 1 for number in wanted]
    took, found = [], []
    for base in files.bases():
        Path(files.timeindex(base)).read_bytes()  # into the page cache, where they may not be any more
    with TimeLookup(OsFileSystem(), files) as times:
        for number in range(0, messages, 10_000):  # every segment once
            times.offset_after(BEGAN_NS + number * APART_NS)
        watch = Stopwatch()
        for moment in moments:
            started = perf_counter()
            found.append(times.offset_after(moment))
            took.append(perf_counter() - started)
        reading = watch.stop(count)
    assert found == wanted
    return reading | quantiles(took)


async def lookup_cold(directory: str, *, count: int, messages: int) -> Reading:
    """Random moments, each asked of a path: whatever is needed is opened for it, and closed."""
    took = []
    watch = Stopwatch()
    for _ in range(count):
        wanted = random.randrange(1, messages)
        when = BEGAN + timedelta(microseconds=wanted * APART_US - 1)
        started = perf_counter()
        found = await offset_after(directory, 0, when)
        took.append(perf_counter() - started)
        assert found == wanted
    return watch.stop(count) | quantiles(took)


# --- waiting -------------------------------------------------------------------------------------------


async def latency(directory: str, *, count: int, pace: float = 0.0) -> Reading:
    """From before `send` to received by another task of this process; the next is sent after that."""
    async with (
        open_producer(directory, partition_count=1) as producer,
        open_consumer(directory, partitions=[0]) as consumer,
    ):
        return await latency_of(lambda body: producer.send(body, KEY), consumer.receive, count, pace)


async def latency_across(directory: str, *, count: int, pace: float = 0.0) -> Reading:
    """The same, sent by another process. CPU is this one's."""
    fill(directory, 1)
    warm_up = 100
    took: list[float] = []
    async with (
        open_consumer(directory, partitions=[0], start=1) as consumer,
        _other_process(directory) as ask,
    ):
        for number in range(warm_up + count):
            if number == warm_up:
                watch = Stopwatch()
            if pace:
                await trio.sleep(pace)
            await ask()
            message = await consumer.receive()
            took.append((perf_counter_ns() - int.from_bytes(message.value[:8], "little")) / 1e9)
        return watch.stop(count) | quantiles(took[warm_up:])


@asynccontextmanager
async def _other_process(directory: str) -> AsyncIterator[Callable[[], Any]]:
    """A producer that sends a message each time it is asked to."""
    command = [sys.executable, "-m", "benchmarks.child", "stream_works", "send_when_asked", directory, "{}"]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, stdin=PIPE, stdout=DEVNULL)
        process: trio.Process = await nursery.start(run)
        assert process.stdin is not None
        yield partial(process.stdin.send_all, b"1")
        await process.stdin.aclose()


async def send_when_asked(directory: str) -> None:
    """A message for each byte that comes: the time at which it is sent, and the rest of 100 bytes."""
    rest = body_of(100)[8:]
    async with open_producer(directory) as producer, trio.lowlevel.FdStream(os.dup(0)) as asked:
        while await asked.receive_some(1):
            await producer.send(perf_counter_ns().to_bytes(8, "little") + rest, KEY)


async def idle(directory: str, *, seconds: float) -> Reading:
    """What a consumer that waits for messages uses meanwhile."""
    fill(directory, 1000)
    async with open_consumer(directory, partitions=[0]) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(receive_each, consumer)
        await trio.sleep(0.5)
        watch = Stopwatch()
        await trio.sleep(seconds)
        found = watch.stop(1)
        nursery.cancel_scope.cancel()
    return found | {"cpu_ms": found["cpu_us"] / 1e3}
