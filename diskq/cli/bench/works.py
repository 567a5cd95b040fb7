# The work that `diskq bench` measures. Law: the clock runs during the work alone; opening, filling and
# closing are outside. Each engine does the same work, with its default options.

from __future__ import annotations

import gc
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.journal.scanner import open_scanner
from diskq.channels.journal.writer import open_journal
from diskq.channels.priority.store import open_priority_store
from diskq.channels.queue.queue import open_queue
from diskq.channels.stream.consumer import open_consumer
from diskq.channels.stream.producer import open_producer

__all__ = ["ENGINES", "PRODUCERS", "WORKS", "Measured", "run_engine", "synced_by"]

PRODUCERS = (1, 16, 64)
"""Numbers of tasks, each of which waits for stable storage before it sends again."""


def synced_by(tasks: int) -> str:
    """Return the name of the work in which `tasks` tasks send."""
    return f"synced by {tasks}"


WORKS = ("send", "send_many", "receive", *map(synced_by, PRODUCERS))

_BATCH_ITEMS = 500
_BATCH_BYTES = 512 * 1024
# Messages between two looks at the clock.
_STRIDE = 50


class Measured(NamedTuple):
    """The result of one piece of work."""

    rate: float
    """Messages per second."""
    cpu: float
    """Seconds of CPU time of this process per message: all threads, user and system."""


class _Stopwatch:
    def __init__(self) -> None:
        self._cpu = _cpu_seconds()
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._began

    def stop(self, count: int) -> Measured:
        return Measured(count / self.seconds, (_cpu_seconds() - self._cpu) / count)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# --- engines --------------------------------------------------------------------------------------


class _Ends(NamedTuple):
    """The calls of an open engine: how a body gets in, and how it comes out."""

    send: Callable[[bytes], Awaitable[Any]]
    send_synced: Callable[[bytes], Awaitable[Any]]
    send_many: Callable[[list[bytes]], Awaitable[Any]]
    receive: Callable[[], Awaitable[Any]]


@asynccontextmanager
async def _queue(directory: str) -> AsyncIterator[_Ends]:
    async with open_queue(directory, "bench") as queue:
        yield _Ends(queue.send, partial(queue.send, durability="synced"), queue.send_many, queue.receive)


@asynccontextmanager
async def _stream(directory: str) -> AsyncIterator[_Ends]:
    path = os.path.join(directory, "stream")
    async with open_producer(path) as producer, open_consumer(path) as consumer:
        send = partial(producer.send, key=b"key")
        send_many = partial(producer.send_many, key=b"key")
        yield _Ends(send, partial(send, durability="synced"), send_many, consumer.receive)


@asynccontextmanager
async def _journal(directory: str) -> AsyncIterator[_Ends]:
    path = os.path.join(directory, "journal")
    async with open_journal(path) as journal, open_scanner(path) as scanner:
        send_synced = partial(journal.send, durability="synced")
        yield _Ends(journal.send, send_synced, journal.send_many, scanner.receive)


@asynccontextmanager
async def _priority(directory: str) -> AsyncIterator[_Ends]:
    async with open_priority_store(os.path.join(directory, "jobs")) as store:
        queue = store.queue()

        async def receive() -> None:
            async with queue.receiving():
                pass  # leaving the block acknowledges

        yield _Ends(queue.send, partial(queue.send, durability="synced"), queue.send_many, receive)


ENGINES: dict[str, Callable[[str], AbstractAsyncContextManager[_Ends]]] = {
    "queue": _queue,
    "stream": _stream,
    "journal": _journal,
    "jobs": _priority,
}


# --- work -----------------------------------------------------------------------------------------


async def run_engine(name: str, directory: str, size: int, seconds: float) -> dict[str, Measured]:
    """Measure one engine in an empty directory, with bodies of `size` bytes. Returns a result per work.

    Each of WORKS takes about `seconds`; receiving takes less when it has received all messages.
    """
    gc.collect()
    body = b"x" * size
    async with ENGINES[name](directory) as ends:
        found, sent = {}, 0
        found["send"], sent = await _send(ends, body, seconds)
        found["send_many"], more = await _send_many(ends, body, seconds)
        await ends.send_synced(body)  # so that the next work does not sync these messages
        found["receive"] = await _receive(ends, sent + more, seconds)
        for tasks in PRODUCERS:
            found[synced_by(tasks)] = await _send_synced(ends, body, tasks, seconds)
    return found


async def _send(ends: _Ends, body: bytes, seconds: float) -> tuple[Measured, int]:
    send, stride, count = ends.send, _stride_of(body), 0
    watch = _Stopwatch()
    while not count or watch.seconds < seconds:
        for _ in range(stride):
            await send(body)
        count += stride
    return watch.stop(count), count


async def _send_many(ends: _Ends, body: bytes, seconds: float) -> tuple[Measured, int]:
    batch = [body] * max(1, min(_BATCH_ITEMS, _BATCH_BYTES // (len(body) or 1)))
    count = 0
    watch = _Stopwatch()
    while not count or watch.seconds < seconds:
        await ends.send_many(batch)
        count += len(batch)
    return watch.stop(count), count


async def _receive(ends: _Ends, there: int, seconds: float) -> Measured:
    receive, count = ends.receive, 0
    watch = _Stopwatch()
    while not count or (watch.seconds < seconds and count < there):
        for _ in range(min(_STRIDE, there - count)):
            await receive()
            count += 1
    return watch.stop(count)


async def _send_synced(ends: _Ends, body: bytes, tasks: int, seconds: float) -> Measured:
    count = 0

    @enable_ki_protection
    async def produce() -> None:
        nonlocal count
        while True:  # at least once
            await ends.send_synced(body)
            count += 1
            if watch.seconds >= seconds:
                break

    watch = _Stopwatch()
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(produce)
    return watch.stop(count)


def _stride_of(body: bytes) -> int:
    return _STRIDE if len(body) <= 4096 else 1
