# The queues that Python users have today, and ours beside them: one message per call.
#
# Each peer is used as its manual says. Relaxed means that put returns before any fsync, durable
# that it returns after one; where the peer has no word for it, the comment says what stands in.
# Messages are 100 bytes; litequeue's are 100 characters, as it takes no bytes. The key-value stores are
# queues by hand: keys are numbers that grow, the first key is the next message. What runs as a server is in
# benchmarks/servers.py, and its processor time counts as the client's.

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import count as count_from
from pathlib import Path
from typing import Any

from benchmarks.servers import jetstream, redis_streams
from benchmarks.stopwatch import Reading, Stopwatch, body_of, shares

_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Opened:
    """A queue of a peer's, at work."""

    put: Callable[[Any], Any]
    get: Callable[[], Any]
    close: Callable[[], Any]
    put_many: Callable[[Sequence[Any]], Any] | None = None
    """All of them with one sync, where it can: None where it takes one at a time."""
    scan: Callable[[], Iterator[Any]] | None = None
    """Every message in turn, none of which is taken."""
    pids: tuple[int, ...] = ()
    """Of its servers."""


def measure(
    directory: str, *, peer: str, count: int, durable: bool = False, **options: Any
) -> dict[str, Reading]:
    """Put `count` messages, then (relaxed) get them all.

    Raises ModuleNotFoundError where the peer is not installed.
    """
    queue, body = PEERS[peer](directory, durable, **options), body_for(peer, 100)
    watch = Stopwatch(*queue.pids)
    for _ in range(count):
        queue.put(body)
    readings = {"put": watch.stop(count)}
    if not durable:
        watch = Stopwatch(*queue.pids)
        for _ in range(count - 1):
            queue.get()
        last = queue.get()
        readings["get"] = watch.stop(count)
        assert last == body
    queue.close()
    return readings


def put(
    directory: str, *, peer: str, count: int, size: int = 100, batch: int = 1, durable: bool = False
) -> Reading:
    """Put `count` messages, one by one or `batch` with one sync. Raises ModuleNotFoundError."""
    queue, body = PEERS[peer](directory, durable), body_for(peer, size)
    bodies = [body] * batch
    watch = Stopwatch(*queue.pids)
    if batch == 1:
        for _ in range(count):
            queue.put(body)
    else:
        assert queue.put_many is not None
        for _ in range(count // batch):
            queue.put_many(bodies)
    found = watch.stop(count // batch * batch)
    queue.close()
    return found


def fill(directory: str, *, peer: str, count: int, size: int = 100) -> None:
    """Write `count` messages, and close in order. Raises ModuleNotFoundError."""
    queue, body = PEERS[peer](directory, False), body_for(peer, size)
    for share in shares(count, -(-count // 1000)):
        if queue.put_many is not None:
            queue.put_many([body] * share)
        else:
            for _ in range(share):
                queue.put(body)
    queue.close()


def scan(directory: str, *, peer: str, count: int) -> Reading:
    """Read every message of what was filled before, in turn. Raises ModuleNotFoundError."""
    queue = PEERS[peer](directory, False)
    assert queue.scan is not None
    watch = Stopwatch(*queue.pids)
    read = sum(1 for _ in queue.scan())
    found = watch.stop(count)
    queue.close()
    assert read == count
    return found


def body_for(peer: str, size: int) -> Any:
    return body_of(size).decode() if peer == "litequeue" else body_of(size)


# --- each of them ------------------------------------------------------------------------------------


def fifo_queue(directory: str, durable: bool, **options: Any) -> Opened:
    """Ours, synchronous: the put that is due to sync waits for it."""
    assert not durable
    diskq = import_module("diskq")
    queue = diskq.Queue(directory, "bench", options=diskq.QueueOptions(**options))
    return Opened(queue.put, queue.get, queue.close, queue.put_many)


def queuelib(directory: str, durable: bool) -> Opened:
    """FifoDiskQueue. It never syncs, and remembers positions only in close().

    So durable, by hand, is a best case: the messages are on stable storage, but after a crash not in the
    queue.
    """
    queue = import_module("queuelib").FifoDiskQueue(Path(directory, "queue"))  # close() removes it

    def push(body: bytes) -> None:
        queue.push(body)
        os.fdatasync(queue.headf.fileno())

    return Opened(push if durable else queue.push, queue.pop, queue.close)


def persistqueue_file(directory: str, durable: bool) -> Opened:
    """Queue. It syncs where a chunk of 100 is full; `info` is replaced at each put and never synced."""
    assert not durable
    queue = import_module("persistqueue").Queue(directory, tempdir=directory)

    def get() -> bytes:
        body: bytes = queue.get()
        queue.task_done()
        return body

    return Opened(queue.put, get, lambda: None)


def persistqueue_sqlite(directory: str, durable: bool) -> Opened:
    """SQLiteQueue. Durable as it comes. Relaxed by a pragma on its connection, for which it has no option."""
    queue = import_module("persistqueue").SQLiteQueue(directory, auto_commit=True)
    if not durable:
        queue._putter.execute("PRAGMA synchronous=NORMAL")
    return Opened(queue.put, queue.get, queue.close)


def diskcache(directory: str, durable: bool) -> Opened:
    """Deque. Relaxed as it comes."""
    module = import_module("diskcache")
    cache = module.Cache(directory, eviction_policy="none", sqlite_synchronous=2 if durable else 1)
    queue = module.Deque.fromcache(cache)
    return Opened(queue.append, queue.popleft, cache.close)


def litequeue(directory: str, durable: bool) -> Opened:
    """Relaxed as it comes. Durable by a pragma on its connection, for which it has no option."""
    queue = import_module("litequeue").LiteQueue(str(Path(directory, "queue.sqlite3")))
    if durable:
        queue.conn.execute("PRAGMA synchronous=FULL")

    def get() -> str:
        message = queue.pop()
        queue.done(message.message_id)
        body: str = message.data
        return body

    return Opened(queue.put, get, queue.conn.close)


def localqueue(directory: str, durable: bool) -> Opened:
    """SimpleQueue: relaxed as it comes, durable by its own word. Bytes go as they are."""

    class AsTheyAre:
        dumps = loads = staticmethod(lambda body: body)

    module = import_module("localqueue")
    mode = module.DurabilityMode.DURABLE if durable else module.DurabilityMode.RELAXED
    queue = module.SimpleQueue(directory, serializer=AsTheyAre(), durability=mode)

    def get() -> bytes:
        job = queue.get()
        queue.ack(job)
        body: bytes = job.data
        return body

    return Opened(queue.put, get, queue.close, queue.put_many)


def sqlite_by_hand(directory: str, durable: bool) -> Opened:
    """A table in WAL mode, one transaction per message: what many write before they look for a library."""
    database = sqlite3.connect(Path(directory, "queue.sqlite3"), isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    database.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def put(body: bytes) -> None:
        database.execute("INSERT INTO queue (body) VALUES (?)", (body,))

    def get() -> bytes:
        found = database.execute(
            "DELETE FROM queue WHERE id = (SELECT min(id) FROM queue) RETURNING body"
        ).fetchall()
        body: bytes = found[0][0]
        return body

    def put_many(bodies: Sequence[bytes]) -> None:
        database.execute("BEGIN")
        database.executemany("INSERT INTO queue (body) VALUES (?)", [(body,) for body in bodies])
        database.execute("COMMIT")

    def scan() -> Iterator[bytes]:
        for (body,) in database.execute("SELECT body FROM queue ORDER BY id"):
            yield body

    return Opened(put, get, database.close, put_many, scan)


def lmdb_by_hand(directory: str, durable: bool) -> Opened:
    """A transaction per message. Relaxed is `sync=False`: nothing is synced until it is closed."""
    module = import_module("lmdb")
    environment = module.open(directory, map_size=2**36, sync=durable)
    with environment.begin() as transaction, transaction.cursor() as cursor:
        numbers = count_from(int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 0)

    def put_many(bodies: Sequence[bytes]) -> None:
        with environment.begin(write=True) as transaction:
            for body in bodies:
                transaction.put(next(numbers).to_bytes(_KEY_BYTES, "big"), body, append=True)

    def get() -> bytes:
        with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.first()
            body: bytes = cursor.value()
            cursor.delete()
            return body

    def scan() -> Iterator[bytes]:
        with environment.begin() as transaction, transaction.cursor() as cursor:
            yield from cursor.iternext(keys=False)

    return Opened(lambda body: put_many((body,)), get, environment.close, put_many, scan)


def rocksdb_by_hand(directory: str, durable: bool) -> Opened:
    """A key that grows. Which one is first is remembered in the process, and found when it is opened.

    A best case: who looks for the first key at each get walks over the tombstones of all before it.
    """
    module = import_module("rocksdict")
    store = module.Rdict(str(Path(directory, "store")), module.Options(raw_mode=True))
    options = module.WriteOptions()
    options.sync = durable
    first, last = store.iter(), store.iter()
    first.seek_to_first()
    last.seek_to_last()
    heads = count_from(int.from_bytes(first.key(), "big") if first.valid() else 0)
    numbers = count_from(int.from_bytes(last.key(), "big") + 1 if last.valid() else 0)
    del first, last

    def put(body: bytes) -> None:
        store.put(next(numbers).to_bytes(_KEY_BYTES, "big"), body, options)

    def put_many(bodies: Sequence[bytes]) -> None:
        batch = module.WriteBatch(raw_mode=True)
        for body in bodies:
            batch.put(next(numbers).to_bytes(_KEY_BYTES, "big"), body)
        store.write(batch, options)

    def get() -> bytes:
        key = next(heads).to_bytes(_KEY_BYTES, "big")
        body: bytes = store.get(key)
        store.delete(key, options)
        return body

    def scan() -> Iterator[bytes]:
        yield from store.values()

    return Opened(put, get, store.close, put_many, scan)


def redis(directory: str, durable: bool) -> Opened:
    """A stream and a group, by a Unix socket: XADD; XREADGROUP of one and XACK; several in one pipeline."""
    server, client = redis_streams(directory, durable)

    def put(body: bytes) -> None:
        client.xadd("queue", {"b": body})

    def put_many(bodies: Sequence[bytes]) -> None:
        pipeline = client.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd("queue", {"b": body})
        pipeline.execute()

    def get() -> bytes:
        number, fields = client.xreadgroup("all", "one", {"queue": ">"}, count=1)[0][1][0]
        client.xack("queue", "all", number)
        body: bytes = fields[b"b"]
        return body

    def scan() -> Iterator[bytes]:
        after = "-"
        while found := client.xrange("queue", min=after, count=1000):
            yield from (fields[b"b"] for _, fields in found)
            after = "(" + found[-1][0].decode()

    def close() -> None:
        client.close()
        server.stop()

    return Opened(put, get, close, put_many, scan, (server.pid,))


def nats(directory: str, durable: bool) -> Opened:
    """JetStream with file storage, by loopback: publish waits for its ack; got by a pull consumer, a hundred
    at once, and acknowledged one by one. Several are published at once, and their acks awaited."""
    assert not durable, "the server answers before it syncs"
    server, ask = jetstream(directory)
    return Opened(ask.put, ask.get, ask.close, ask.put_many, pids=(server.pid,))


PEERS: dict[str, Callable[..., Opened]] = {
    "Queue": fifo_queue,
    "queuelib": queuelib,
    "persist-queue": persistqueue_sqlite,
    "persist-queue file": persistqueue_file,
    "diskcache": diskcache,
    "litequeue": litequeue,
    "localqueue": localqueue,
    "sqlite3": sqlite_by_hand,
    "LMDB": lmdb_by_hand,
    "RocksDB": rocksdb_by_hand,
    "Redis": redis,
    "NATS": nats,
}
