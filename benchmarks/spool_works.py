# What a spool does while it is measured, and the loops beside it. The destination is there, in this process,
# and takes every batch at once: what is left is what the spool costs.

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import trio

from benchmarks.stopwatch import Reading, Stopwatch, body_of, reading
from benchmarks.works import NAME, fill
from diskq import Batch, QueueOptions, open_queue, open_spool

BATCH = 100


class Destination:
    """Counts what it takes."""

    def __init__(self) -> None:
        self.taken = 0

    async def take(self, batch: Batch) -> None:
        self.taken += len(batch)
        await trio.lowlevel.checkpoint()  # as whatever goes over a network does


async def steady(directory: str, *, count: int, batch: int = 0, **queue: Any) -> Reading:
    """One task sends, one by one or `batch` at once, until the last is delivered."""
    body, destination = body_of(100), Destination()
    async with open_spool(
        f"{directory}/spool", deliver=destination.take, max_messages=BATCH, queue=QueueOptions(**queue)
    ) as spool:
        watch = Stopwatch()
        if batch:
            for _ in range(count // batch):
                await spool.send_many([body] * batch)
        else:
            for _ in range(count):
                await spool.send(body)
        await spool.drained()
        found = watch.stop(destination.taken)
    assert destination.taken == (count // batch * batch if batch else count)
    return found


async def drain(directory: str, *, count: int) -> Reading:
    """Deliver what was left from before, to the last message."""
    body, destination, is_there = body_of(100), Destination(), trio.Event()

    async def deliver(batch: Batch) -> None:
        await is_there.wait()
        await destination.take(batch)

    async with open_spool(f"{directory}/spool", deliver=deliver, max_messages=BATCH) as spool:
        for _ in range(count // 1000):
            await spool.send_many([body] * 1000)
        await spool.sync()
        watch = Stopwatch()
        is_there.set()
        await spool.drained()
        found = watch.stop(destination.taken)
    assert destination.taken == count // 1000 * 1000
    return found


async def leases(directory: str, *, count: int, batch: int = 0) -> Reading:
    """Receive and acknowledge, one by one or `batch` at once, until the last of a queue that was filled."""
    fill(directory, count)
    async with open_queue(directory, NAME) as queue, queue.working() as work:
        watch = Stopwatch()
        if batch:
            done = 0
            while done < count:
                found = await work.receive_many(min(batch, count - done))
                work.ack(found)
                done += len(found)
        else:
            for _ in range(count):
                work.ack(await work.receive())
        return watch.stop(count)


# --- the loops that stand in for one -----------------------------------------------------------------


Loop = tuple[Callable[[list[bytes]], Any], Callable[[], Any], Callable[[], Any]]
"""How to put some, to get one and say that it is done, and to close."""


def get_and_ack(directory: str, *, peer: str, count: int, backlog: int = 1000) -> Reading:
    """Get one, say that it is done, and so on; there are never more than `backlog` in it.

    Putting is not measured. Raises ModuleNotFoundError where the peer is not installed.
    """
    put, get, close = PEERS[peer](directory)
    seconds = cpu_seconds = 0.0
    bodies = [body_of(100)] * backlog
    for _ in range(count // backlog):
        put(bodies)
        watch = Stopwatch()
        for _ in range(backlog - 1):
            get()
        last = get()
        taken = watch.stop(backlog)
        assert last == bodies[-1]
        seconds += taken["seconds"]
        cpu_seconds += taken["cpu_us"] * backlog / 1e6
    close()
    return reading(count // backlog * backlog, seconds, cpu_seconds)


def localqueue(directory: str) -> Loop:
    """SimpleQueue, relaxed as it comes: WAL and `synchronous=NORMAL`. Bytes go as they are."""

    class AsTheyAre:
        dumps = loads = staticmethod(lambda body: body)

    queue = import_module("localqueue").SimpleQueue(directory, serializer=AsTheyAre())

    def get() -> bytes:
        job = queue.get()
        queue.ack(job)
        body: bytes = job.data
        return body

    return queue.put_many, get, queue.close


def persistqueue_ack(directory: str) -> Loop:
    """SQLiteAckQueue. Relaxed by a pragma on its connections, for which it has no option."""
    queue = import_module("persistqueue").SQLiteAckQueue(directory)
    for connection in (queue._putter, queue._getter):
        connection.execute("PRAGMA synchronous=NORMAL")

    def put(bodies: list[bytes]) -> None:
        queue.clear_acked_data(max_delete=None, keep_latest=0)  # as its manual advises
        for body in bodies:
            queue.put(body)

    def get() -> bytes:
        body: bytes = queue.get()
        queue.ack(body)
        return body

    return put, get, queue.close


def persistqueue_file(directory: str) -> Loop:
    """Queue: `task_done` is what it has for an ack."""
    queue = import_module("persistqueue").Queue(directory, tempdir=directory)

    def put(bodies: list[bytes]) -> None:
        for body in bodies:
            queue.put(body)

    def get() -> bytes:
        body: bytes = queue.get()
        queue.task_done()
        return body

    return put, get, lambda: None


PEERS: dict[str, Callable[[str], Loop]] = {
    "localqueue": localqueue,
    "persist-queue ack": persistqueue_ack,
    "persist-queue file": persistqueue_file,
}
