# How a log is read while it is measured, a partition of a stream or a journal: to its end. Law: the same loop
# for both, so that their readings are of the same work.

from __future__ import annotations

import trio

from benchmarks.stopwatch import Reading, Stopwatch
from diskq import JournalReader, JournalScanner, StreamConsumer
from diskq.engine.stream.partition_reader import PartitionReader

__all__ = ["by_columns", "receive_each", "to_the_end", "with_gb"]


async def to_the_end(reader: StreamConsumer | JournalScanner, count: int, batch: int) -> Reading:
    """Of `count` messages, one by one, or up to `batch` at once."""
    watch = Stopwatch()
    received = await (_receive_batches(reader, batch) if batch else receive_each(reader))
    found = watch.stop(count)
    assert received == count
    return found


async def receive_each(reader: StreamConsumer | JournalScanner) -> int:
    """One by one. Returns how many they were."""
    received = 0
    async for _ in reader:
        received += 1
    return received


async def _receive_batches(reader: StreamConsumer | JournalScanner, batch: int) -> int:
    received = 0
    try:
        while True:
            received += len(await reader.receive_many(batch))
    except trio.EndOfChannel:
        return received


def by_columns(reader: PartitionReader | JournalReader, count: int) -> Reading:
    """Of `count` messages of 100 bytes, every one; each batch of columns is let go for the next one."""
    watch = Stopwatch()
    read = size = 0
    while (found := reader.columns()) is not None:
        read += found[1].records
        size += len(found[1].values)
    reading = watch.stop(count)
    assert (read, size) == (count, count * 100)
    return reading


def with_gb(reading: Reading, record: int) -> Reading:
    """And GB/s, where a message takes `record` bytes of file."""
    return reading | {"gb_s": reading["count"] * record / reading["seconds"] / 1e9}
