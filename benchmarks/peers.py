# The queues that Python users have today, and ours beside them: one message per call.
#
# Each peer is used as its manual says. Relaxed means that put returns before any fsync, durable
# that it returns after one; where the peer has no word for it, the comment says what stands in.
# Messages are 100 bytes; litequeue's are 100 characters, as it takes no bytes.

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.stopwatch import Reading, Stopwatch, body_of

Put = Callable[[Any], Any]
Get = Callable[[], Any]
Opened = tuple[Put, Get, Callable[[], Any]]
"""How to put one, to get one, and to close."""


def measure(
    directory: str, *, peer: str, count: int, durable: bool = False, **options: Any
) -> dict[str, Reading]:
    """Put `count` messages, then (relaxed) get them all.

    Raises ModuleNotFoundError where the peer is not installed.
    """
    put, get, close = PEERS[peer](directory, durable, **options)
    body = body_of(100).decode() if peer == "litequeue" else body_of(100)
    watch = Stopwatch()
    for _ in range(count):
        put(body)
    readings = {"put": watch.stop(count)}
    if not durable:
        watch = Stopwatch()
        for _ in range(count - 1):
            get()
        last = get()
        readings["get"] = watch.stop(count)
        assert last == body
    close()
    return readings


def fifo_queue(directory: str, durable: bool, **options: Any) -> Opened:
    """Ours, synchronous: the put that is due to sync waits for it."""
    assert not durable
    diskq = import_module("diskq")
    queue = diskq.FifoQueue(directory, "bench", diskq.QueueOptions(**options))
    return queue.put, queue.take, queue.close


def queuelib(directory: str, durable: bool) -> Opened:
    """FifoDiskQueue. It never syncs, and remembers positions only in close().

    So durable, by hand, is a best case: the messages are on the platter, but after a crash not in the queue.
    """
    queue = import_module("queuelib").FifoDiskQueue(Path(directory, "queue"))  # close() removes it

    def push(body: bytes) -> None:
        queue.push(body)
        os.fdatasync(queue.headf.fileno())

    return (push if durable else queue.push), queue.pop, queue.close


def persistqueue_file(directory: str, durable: bool) -> Opened:
    """Queue. It syncs where a chunk of 100 is full; `info` is replaced at each put and never synced."""
    assert not durable
    queue = import_module("persistqueue").Queue(directory, tempdir=directory)

    def get() -> bytes:
        body: bytes = queue.get()
        queue.task_done()
        return body

    return queue.put, get, lambda: None


def persistqueue_sqlite(directory: str, durable: bool) -> Opened:
    """SQLiteQueue. Durable as it comes. Relaxed by a pragma on its connection, for which it has no option."""
    queue = import_module("persistqueue").SQLiteQueue(directory, auto_commit=True)
    if not durable:
        queue._putter.execute("PRAGMA synchronous=NORMAL")
    return queue.put, queue.get, queue.close


def diskcache(directory: str, durable: bool) -> Opened:
    """Deque. Relaxed as it comes."""
    module = import_module("diskcache")
    cache = module.Cache(directory, eviction_policy="none", sqlite_synchronous=2 if durable else 1)
    queue = module.Deque.fromcache(cache)
    return queue.append, queue.popleft, cache.close


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

    return queue.put, get, queue.conn.close


def sqlite_by_hand(directory: str, durable: bool) -> Opened:
    """A table in WAL mode, one transaction per message: what many write before they look for a library."""
    database = sqlite3.connect(Path(directory, "queue.sqlite3"), isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    database.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def put(body: bytes) -> None:
        database.execute("INSERT INTO queue (body) VALUES (?)", (body,))

    def get() -> bytes:
        found = database.execute(
            "DELETE FROM queue WHERE id = (SELECT min(id) FROM queue) RETURNING body"
        ).fetchall()
        body: bytes = found[0][0]
        return body

    return put, get, database.close


PEERS: dict[str, Callable[..., Opened]] = {
    "FifoQueue": fifo_queue,
    "queuelib": queuelib,
    "persist-queue": persistqueue_sqlite,
    "persist-queue file": persistqueue_file,
    "diskcache": diskcache,
    "litequeue": litequeue,
    "sqlite3": sqlite_by_hand,
}
