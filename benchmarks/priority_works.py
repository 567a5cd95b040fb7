# What a store of priority queues does while it is measured, and the queues beside it. Of those only Redis
# knows priorities: the others are what Python users have for jobs that are acknowledged, first in, first out.
#
# Messages are 100 bytes; litequeue's are 100 characters, as it takes no bytes.

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import trio

from benchmarks.servers import redis_at
from benchmarks.stopwatch import Reading, Stopwatch, body_of, resident_mib, shares
from diskq import PriorityQueueChannel, PriorityStore, open_priority_store
from diskq.options import Durability

BATCH = 100
KEYS = 1000

_random = random.Random(7)


def keys_of(count: int, *, distinct: bool = False) -> list[int]:
    return [_random.randrange(2**62 if distinct else KEYS) for _ in range(count)]


def fill(directory: str, count: int, *, distinct: bool = False) -> None:
    """Make a store with `count` messages in its default queue, and a snapshot of them."""
    body = body_of(100)
    with PriorityStore(f"{directory}/store") as store:
        queue = store.queue()
        for share in shares(count, -(-count // 1000)):
            # Each a bytes object of its own, as messages are.
            store.put_many(
                queue, [bytes(bytearray(body)) for _ in range(share)], keys_of(share, distinct=distinct)
            )
        store.snapshot()


# --- ours -------------------------------------------------------------------------------------------


async def send(directory: str, *, count: int, size: int = 100, batch: int = 0) -> Reading:
    """Each send returns when its records are written, or each batch's."""
    body, keys = body_of(size), keys_of(count)
    async with open_priority_store(f"{directory}/store", durability="written") as store:
        queue = store.queue()
        batches = [[(key, body) for key in keys[at : at + batch]] for at in range(0, count, batch or count)]
        watch = Stopwatch()
        if batch:
            for messages in batches:
                await queue.send_many(messages)
        else:
            for key in keys:
                await queue.send(body, key)
        return watch.stop(count)


async def send_synced(directory: str, *, count: int, tasks: int = 1) -> Reading:
    """Each send returns after its sync; tasks that wait share one."""
    body = body_of(100)

    async def produce(queue: PriorityQueueChannel, keys: Sequence[int]) -> None:
        for key in keys:
            await queue.send(body, key)

    async with open_priority_store(f"{directory}/store", durability="synced") as store:
        work = [keys_of(share) for share in shares(count, tasks)]
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            for keys in work:
                nursery.start_soon(produce, store.queue(), keys)
        return watch.stop(count)


async def receive_and_ack(directory: str, *, backlog: int, count: int, batch: int = BATCH) -> Reading:
    """Take messages from the front of a backlog, and acknowledge them, a batch at a time."""
    fill(directory, backlog)
    async with open_priority_store(f"{directory}/store") as store:
        queue = store.queue()
        watch = Stopwatch()
        for _ in range(count // batch):
            if batch == 1:
                await queue.ack(await queue.receive())
            else:
                await queue.ack(await queue.receive_many(batch))
        return watch.stop(count // batch * batch)


async def at_backlog(directory: str, *, backlog: int, count: int, distinct: bool = False) -> Reading:
    """Send, receive and acknowledge batches, with a constant backlog in the queue."""
    fill(directory, backlog, distinct=distinct)
    body = body_of(100)
    async with open_priority_store(f"{directory}/store") as store:
        queue = store.queue()
        batches = [
            list(zip(keys_of(BATCH, distinct=distinct), [body] * BATCH, strict=True))
            for _ in range(count // BATCH)
        ]
        watch = Stopwatch()
        for messages in batches:
            await queue.send_many(messages)
            await queue.ack(await queue.receive_many(BATCH))
        return watch.stop(count // BATCH * BATCH)


async def many(directory: str, *, count: int) -> dict[str, Reading]:
    """Open a store of `count` messages from its snapshot, and send to it, one message after the other.

    It sends during another snapshot, and for the same time without one; with messages that are written, and
    with synced ones.
    """
    path = f"{directory}/store"
    resident = resident_mib() * 2**20
    watch = Stopwatch()
    async with open_priority_store(path) as store:
        opened = watch.stop(1)
        grown = resident_mib() * 2**20 - resident - 100 * count
        opened |= {"open_ms": opened["seconds"] * 1e3, "record_bytes": grown / count}
        queue, body = store.queue(), body_of(100)
        assert queue.statistics().ready == count

        async def send_while(is_so: Callable[[], bool], word: Durability) -> Reading:
            delays: list[float] = []
            watch = Stopwatch()
            while is_so() or not delays:
                began = perf_counter()
                await queue.send(body, 5, durability=word)
                await trio.lowlevel.checkpoint()
                delays.append(perf_counter() - began)
            return watch.stop(len(delays)) | {"longest_ms": max(delays) * 1e3}

        readings = {"open": opened}
        words: tuple[Durability, ...] = ("written", "synced")
        for word in words:
            await queue.send(body)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.snapshot)
                while not store.statistics().is_taking_snapshot:
                    await trio.lowlevel.checkpoint()
                found = await send_while(lambda: store.statistics().is_taking_snapshot, word)
            readings[f"{word}, snapshot"] = found
            end = perf_counter() + found["seconds"]
            readings[f"{word}, beside"] = await send_while(partial(_is_before, end), word)
    return readings


def _is_before(end: float) -> bool:
    return perf_counter() < end


# --- what stands beside it --------------------------------------------------------------------------


Peer = tuple[Callable[[list[bytes]], Any], Callable[[int], Any], Callable[[], Any]]
"""The calls that put some, that get and acknowledge a number, and that close."""


def put_durably(directory: str, *, peer: str, count: int, batch: int = 1) -> Reading:
    """Each put returns after its sync. Raises ModuleNotFoundError where the peer is not installed."""
    put, _, close = PEERS[peer](directory, True)
    try:
        bodies = [body_of(100)] * batch
        watch = Stopwatch()
        for _ in range(count // batch):
            put(bodies)
        return watch.stop(count // batch * batch)
    finally:
        close()


def get_and_ack(directory: str, *, peer: str, backlog: int, count: int, batch: int = 1) -> Reading:
    """Take from a backlog, and say that it is done. Raises ModuleNotFoundError."""
    put, get, close = PEERS[peer](directory, False)
    try:
        for share in shares(backlog, -(-backlog // 1000)):
            put([body_of(100)] * share)
        watch = Stopwatch()
        for _ in range(count // batch):
            get(batch)
        return watch.stop(count // batch * batch)
    finally:
        close()


def localqueue(directory: str, durable: bool) -> Peer:
    """SimpleQueue: relaxed as it comes, durable by its own word. Bytes go as they are."""

    class AsTheyAre:
        dumps = loads = staticmethod(lambda body: body)

    module = import_module("localqueue")
    mode = module.DurabilityMode.DURABLE if durable else module.DurabilityMode.RELAXED
    queue = module.SimpleQueue(directory, serializer=AsTheyAre(), durability=mode)

    def put(bodies: list[bytes]) -> None:
        if len(bodies) == 1:
            queue.put(bodies[0])
        else:
            queue.put_many(bodies)

    def get(count: int) -> None:
        assert count == 1
        queue.ack(queue.get())

    return put, get, queue.close


def persistqueue(directory: str, durable: bool) -> Peer:
    """SQLiteAckQueue. Durable as it comes. Relaxed by a pragma, as nothing else is."""
    queue = import_module("persistqueue").SQLiteAckQueue(directory)
    if not durable:
        for connection in (queue._putter, queue._getter):
            connection.execute("PRAGMA synchronous=NORMAL")

    def put(bodies: list[bytes]) -> None:
        for body in bodies:
            queue.put(body)

    def get(count: int) -> None:
        assert count == 1
        queue.ack(queue.get())

    return put, get, queue.close


def litequeue(directory: str, durable: bool) -> Peer:
    """Relaxed as it comes. Durable by a pragma on its connection, for which it has no option."""
    queue = import_module("litequeue").LiteQueue(str(Path(directory, "queue.sqlite3")))
    if durable:
        queue.conn.execute("PRAGMA synchronous=FULL")

    def put(bodies: list[bytes]) -> None:
        for body in bodies:
            queue.put(body.decode())

    def get(count: int) -> None:
        assert count == 1
        queue.done(queue.pop().message_id)

    return put, get, queue.conn.close


def redis(directory: str, durable: bool) -> Peer:
    """A sorted set, by a Unix socket; members are made distinct by a number. ZPOPMIN removes at once: no ack.

    Durable with an append-only file that is synced before each answer; relaxed, each second. Several at
    once go in one pipeline.
    """
    server, client = redis_at(directory, durable)
    numbers = iter(range(2**62))

    def put(bodies: list[bytes]) -> None:
        pipeline = client.pipeline(transaction=False)
        for body in bodies:
            pipeline.zadd("jobs", {b"%016x" % next(numbers) + body: _random.randrange(KEYS)})
        pipeline.execute()

    def get(count: int) -> None:
        assert len(client.zpopmin("jobs", count)) == count

    def close() -> None:
        client.close()
        server.stop()

    return put, get, close


PEERS: dict[str, Callable[[str, bool], Peer]] = {
    "localqueue": localqueue,
    "persist-queue ack": persistqueue,
    "litequeue": litequeue,
    "redis": redis,
}
