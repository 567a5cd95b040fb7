# What instructions.py counts: the ways that every message takes. Law: nothing depends on a clock, on chance
# or on a disk's speed, so that two runs of one build count the same.
#
# Each function gets an empty directory and the number of messages. What is to be counted lies between two
# calls of `mark`.

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from diskq import (
    Journal,
    JournalScanner,
    JournalWriter,
    Queue,
    QueueOptions,
    Stream,
    StreamConsumer,
    StreamOptions,
    StreamProducer,
    open_consumer,
    open_journal,
    open_priority_store,
    open_producer,
    open_queue,
    open_scanner,
    open_spool,
)

__all__ = ["PATHS", "mark"]

BODY = b"x" * 100
KEY = b"user-042"
BATCH = 100

# No barrier comes in between, and no task's slice ends.
_STEADY: dict[str, Any] = {"sync_every": 10**9, "sync_timeout": 3600.0, "checkpoint_slice": 3600.0}
_READING: dict[str, Any] = {"checkpoint_slice": 3600.0}


def mark() -> None:
    """Make a call that is used for nothing else: at it, callgrind writes its counts since the last one."""
    os.getpgid(0)


# --- queues -----------------------------------------------------------------------------------------


async def queue_send(directory: str, count: int) -> None:
    async with open_queue(directory, "hot", **_STEADY) as queue:
        await queue.send(BODY)
        mark()
        for _ in range(count):
            await queue.send(BODY)
        mark()


async def queue_send_many(directory: str, count: int) -> None:
    batch = [BODY] * BATCH
    async with open_queue(directory, "hot", **_STEADY) as queue:
        await queue.send_many(batch)
        mark()
        for _ in range(count // BATCH):
            await queue.send_many(batch)
        mark()


async def queue_receive(directory: str, count: int) -> None:
    _fill_queue(directory, count)
    async with open_queue(directory, "hot", **_STEADY) as queue:
        mark()
        for _ in range(count):
            await queue.receive()
        mark()


async def queue_receive_many(directory: str, count: int) -> None:
    _fill_queue(directory, count)
    async with open_queue(directory, "hot", **_STEADY) as queue:
        mark()
        for _ in range(count // BATCH):
            await queue.receive_many(BATCH)
        mark()


def _fill_queue(directory: str, count: int) -> None:
    with Queue(directory, "hot") as queue:
        queue.put_many([BODY] * count)


# --- streams ----------------------------------------------------------------------------------------


async def stream_send(directory: str, count: int) -> None:
    async with open_producer(directory, partition_count=1, **_STEADY) as producer:
        await _send_each(producer, count)


async def stream_iterate(directory: str, count: int) -> None:
    with Stream(directory, options=StreamOptions(partition_count=1)) as stream:
        stream.append_many([(KEY, BODY)] * count)
    async with open_consumer(directory, end="close", **_READING) as consumer:
        await _iterate(consumer)


# --- journals ---------------------------------------------------------------------------------------


async def journal_send(directory: str, count: int) -> None:
    async with open_journal(directory, **_STEADY) as journal:
        await _send_each(journal, count)


async def journal_scan(directory: str, count: int) -> None:
    with Journal(directory) as journal:
        journal.append_many([(KEY, BODY)] * count)
    async with open_scanner(directory, end="close", **_READING) as scanner:
        await _iterate(scanner)


# --- both of them -----------------------------------------------------------------------------------


async def _send_each(writer: StreamProducer | JournalWriter, count: int) -> None:
    await writer.send(BODY, KEY)
    mark()
    for _ in range(count):
        await writer.send(BODY, KEY)
    mark()


async def _iterate(reader: StreamConsumer | JournalScanner) -> None:
    mark()
    async for _ in reader:
        pass
    mark()


# --- priorities, and what waits to be delivered -------------------------------------------------------


async def priority_cycle(directory: str, count: int) -> None:
    """Send, and receive the most urgent message, at a backlog of a thousand."""
    async with open_priority_store(directory, **_STEADY) as store:
        queue = store.queue()
        await queue.send_many([BODY] * 1000, priority=500)
        mark()
        for number in range(count):
            await queue.send(BODY, number * 7919 % 1000)
            await queue.ack(await queue.receive())
        mark()


async def spool_send(directory: str, count: int) -> None:
    async with open_spool(directory, _keep, queue=QueueOptions(**_STEADY)) as spool:
        spool.pause()
        await spool.send(BODY)
        mark()
        for _ in range(count):
            await spool.send(BODY)
        mark()


async def _keep(batch: object) -> None:
    raise AssertionError("it is paused")


PATHS: dict[str, Callable[[str, int], Awaitable[None]]] = {
    "queue: send": queue_send,
    "queue: send_many(100)": queue_send_many,
    "queue: receive": queue_receive,
    "queue: receive_many(100)": queue_receive_many,
    "stream: send": stream_send,
    "stream: async for": stream_iterate,
    "journal: send": journal_send,
    "journal: async for": journal_scan,
    "priority: send, receive, ack": priority_cycle,
    "spool: send": spool_send,
}
