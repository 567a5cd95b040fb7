"""One small adapter for each object that is open in Trio, so that a promise that all keep is tested once.

`disk()` has three messages, b"0", b"1" and b"2", of every kind. A `Handle` opens one object on it, and names
what a program can call:

    async with handle.open(fs) as its: ...          the public block, as a program writes it
    handle.plain, handle.awaited                    calls by name: what they are given is `its`
    handle.waiting                                  a call that waits for ever, on `disk(messages=0)`
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel

import diskq
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.contract.kinds import ENGINES

__all__ = ["HANDLES", "Handle", "disk", "feeding", "handles", "left"]

Plain = Callable[[Any], object]
Awaited = Callable[[Any], Awaitable[object]]

SHARDS = ("/many/p.1.000", "/many/p.1.001")
KINDS = ("queue", "priority", "stream", "journal", "spool", "shards")


@cache
def _disk(messages: int) -> CrashFS:
    fs = CrashFS()
    for path in ("/", "/q", "/jobs", "/spool"):
        fs.make_directory_durably(path)
    bodies = [b"%d" % number for number in range(messages)]
    with diskq.Queue("/q", "events", fs=fs) as queue:
        queue.put_many(bodies)
    with diskq.Stream("/s", options=diskq.StreamOptions(partition_count=1), fs=fs) as stream:
        stream.append_many(bodies)
    for path in ("/j", *SHARDS):
        with diskq.Journal(path, fs=fs) as journal:
            journal.append_many(bodies if path == "/j" else bodies[:1])
    with diskq.PriorityStore("/jobs", fs=fs) as store:
        store.create_queue("old")
        for body in bodies:
            store.put(store.queue(), body)
    with diskq.Queue("/q", "spare", fs=fs):
        pass
    return fs


def disk(messages: int = 3) -> CrashFS:
    return _disk(messages).copy()


def left(fs: CrashFS, *kinds: str) -> dict[str, list[bytes]]:
    """What another process finds, of these kinds, or of all."""
    return {kind: _left(fs.copy(), kind) for kind in kinds or KINDS}


def _left(fs: CrashFS, kind: str) -> list[bytes]:
    if kind == "queue":
        with diskq.Queue("/q", "events", fs=fs) as queue:
            return queue.get_many(100)
    if kind == "priority":
        with diskq.PriorityStore("/jobs", fs=fs) as store:
            return [bytes(record.body) for record in store.get_many(store.queue(), 100)]
    if kind == "shards":
        return [body for path in SHARDS for body in ENGINES["journal"].read(path, fs=fs)]
    return ENGINES[kind].read({"stream": "/s", "journal": "/j", "spool": "/spool"}[kind], fs=fs)


# --- what is open ---------------------------------------------------------------------------------

_SENDERS: WeakKeyDictionary[Any, Callable[[bytes], object]] = WeakKeyDictionary()
"""Of what is received from and not sent to: where its messages are sent."""


async def _never(batch: diskq.Batch) -> None:
    await anyio.sleep_forever()


def _queue(fs: FileSystem, **options: Any) -> Any:
    return diskq.open_queue("/q", "events", fs=fs, **options)


@asynccontextmanager
async def _work(fs: FileSystem, **options: Any) -> AsyncIterator[Any]:
    async with _queue(fs, **options) as queue, queue.working() as work:
        _SENDERS[work] = queue.send_nowait
        yield work


@asynccontextmanager
async def _priority(fs: FileSystem, **options: Any) -> AsyncIterator[Any]:
    async with diskq.open_priority_store("/jobs", fs=fs, **options) as store:
        yield store.queue()


@asynccontextmanager
async def _merge(fs: FileSystem, **options: Any) -> AsyncIterator[Any]:
    async with _queue(fs, **options) as queue, diskq.merge(queue) as merged:
        _SENDERS[merged] = queue.send_nowait
        yield merged


@asynccontextmanager
async def _watch(fs: FileSystem, **options: Any) -> AsyncIterator[Any]:
    async with diskq.open_root_watch("/many", fs=fs) as watch:
        for _ in range(2):
            watch.receive_nowait()
        yield watch


@asynccontextmanager
async def _threads(fs: FileSystem, **options: Any) -> AsyncIterator[Any]:
    async with _queue(fs, **options) as queue, diskq.open_thread_sender(queue) as sender:
        yield sender


async def _use(block: AbstractAsyncContextManager[Any]) -> Any:
    async with block as taken:
        await anyio.lowlevel.checkpoint()
    return taken


@asynccontextmanager
async def feeding(handle: Handle, its: Any, fs: FileSystem) -> AsyncIterator[Callable[[bytes], object]]:
    """What sends a message to who receives from `its`."""
    if handle.name.startswith("consumer"):
        async with diskq.open_producer("/s", fs=fs) as producer:
            yield producer.send_nowait
    elif handle.name.startswith("scanner"):
        path = SHARDS[0] if "shards" in handle.name else "/j"
        async with diskq.open_journal(path, fs=fs) as journal:
            yield journal.send_nowait
    else:
        yield _SENDERS.get(its) or its.send_nowait


_SENDS: dict[str, Awaited] = {
    "send": lambda its: its.send(b"x"),
    "send, synced": lambda its: its.send(b"x", durability="synced"),
    "send_many": lambda its: its.send_many([b"x", b"y"]),
    "sync": lambda its: its.sync(),
}
_RECEIVES: dict[str, Awaited] = {
    "receive": lambda its: its.receive(),
    "receive_if": lambda its: its.receive_if(lambda: True),
    "async for": lambda its: its.__anext__(),
}
_MANY: dict[str, Awaited] = {
    "receive_many": lambda its: its.receive_many(2),
    "receive_many, lingering": lambda its: its.receive_many(2, linger=1),
}
_BLOCKS: dict[str, Awaited] = {
    "peek": lambda its: its.peek(),
    "receiving": lambda its: _use(its.receiving(2)),
    "receiving, lingering": lambda its: _use(its.receiving(5, linger=1)),
}
_SEND_NOW: dict[str, Plain] = {"send_nowait": lambda its: its.send_nowait(b"x")}
_RECEIVE_NOW: dict[str, Plain] = {"receive_nowait": lambda its: its.receive_nowait()}
_EMPTY: dict[str, Plain] = {"empty": lambda its: its.empty()}
_CLOSE: dict[str, Plain] = {"close": lambda its: its.close()}
_CLONE: dict[str, Plain] = {"clone": lambda its: its.clone()}
_COMMITS: dict[str, Awaited] = {"commit": lambda its: its.commit(), "sync": lambda its: its.sync()}


@dataclass(frozen=True)
class Handle:
    """One kind of what is open in Trio."""

    name: str
    opening: Callable[..., AbstractAsyncContextManager[Any]]
    plain: Mapping[str, Plain] = field(default_factory=dict)
    awaited: Mapping[str, Awaited] = field(default_factory=dict)
    waiting: Awaited | None = None

    def open(self, fs: FileSystem, **options: Any) -> AbstractAsyncContextManager[Any]:
        return self.opening(fs=fs, **options)

    @property
    def kind(self) -> str:
        """As `left` has it: whose messages it sends, or receives."""
        words = {"producer": "stream", "consumer": "stream", "replay": "stream", "scanner": "journal"}
        if "shards" in self.name or "root" in self.name:
            return "shards"
        first = self.name.split()[0].rstrip(",")
        return first if first in KINDS else words.get(first, "queue")

    def __str__(self) -> str:
        return self.name


_RECEIVE: Awaited = _RECEIVES["receive"]
_TAIL = {**_RECEIVES, **_MANY, **_BLOCKS}

_HANDLES = [
    Handle(
        "queue",
        _queue,
        {**_SEND_NOW, **_RECEIVE_NOW, **_CLONE, **_CLOSE, **_EMPTY},
        {**_SENDS, **_TAIL, "clear": lambda its: its.clear()},
        _RECEIVE,
    ),
    Handle(
        "queue, memory first",
        lambda fs, **options: _queue(fs, durability="memory", memory_size=10_000, **options),
        {**_SEND_NOW, **_RECEIVE_NOW, **_CLONE, **_CLOSE, **_EMPTY},
        {**_SENDS, **_TAIL, "clear": lambda its: its.clear()},
        _RECEIVE,
    ),
    Handle(
        "work",
        _work,
        {**_RECEIVE_NOW, **_CLOSE, "ack": lambda its: its.ack(()), "nack": lambda its: its.nack(())},
        {**_RECEIVES, **_MANY, "receiving": lambda its: _use(its.receiving())},
        _RECEIVE,
    ),
    Handle(
        "producer",
        lambda fs, **options: diskq.open_producer("/s", fs=fs, **options),
        {**_SEND_NOW, **_CLONE, **_CLOSE},
        {**_SENDS, "vacuum": lambda its: its.vacuum()},
    ),
    Handle(
        "consumer",
        lambda fs, **options: diskq.open_consumer("/s", fs=fs, **options),
        {**_RECEIVE_NOW, **_CLOSE},
        {**_TAIL, "seek": lambda its: its.seek("oldest")},
        _RECEIVE,
    ),
    Handle(
        "consumer of a group",
        lambda fs, **options: diskq.open_consumer("/s", group="g", fs=fs, **options),
        {**_RECEIVE_NOW, **_CLOSE},
        {**_TAIL, **_COMMITS, "seek": lambda its: its.seek("oldest")},
        _RECEIVE,
    ),
    Handle(
        "journal",
        lambda fs, **options: diskq.open_journal("/j", fs=fs, **options),
        {**_SEND_NOW, **_CLONE, **_CLOSE},
        {**_SENDS},
    ),
    Handle(
        "scanner",
        lambda fs, **options: diskq.open_scanner("/j", fs=fs, **options),
        {**_RECEIVE_NOW, **_CLOSE},
        {**_TAIL, "seek": lambda its: its.seek("oldest")},
        _RECEIVE,
    ),
    Handle(
        "scanner with a name",
        lambda fs, **options: diskq.open_scanner("/j", reader="r", fs=fs, **options),
        {**_RECEIVE_NOW, **_CLOSE},
        {**_TAIL, **_COMMITS, "seek": lambda its: its.seek("oldest")},
        _RECEIVE,
    ),
    Handle(
        "shards",
        lambda fs, **options: diskq.open_shards("/many", "p", 1, fs=fs, **options),
        {**_CLOSE},
        {**_SENDS},
    ),
    Handle(
        "scanner of shards",
        lambda fs, **options: diskq.open_shard_scanner("/many", "p", 1, reader="r", fs=fs, **options),
        {**_RECEIVE_NOW, **_CLOSE},
        {**_TAIL, **_COMMITS, "seek": lambda its: its.seek("oldest")},
        _RECEIVE,
    ),
    Handle(
        "priority store",
        lambda fs, **options: diskq.open_priority_store("/jobs", fs=fs, **options),
        {**_CLOSE, "queue": lambda its: its.queue(), "queues": lambda its: its.queues()},
        {
            "create_queue": lambda its: its.create_queue("new"),
            "delete_queue": lambda its: its.delete_queue("old"),
            "snapshot": lambda its: its.snapshot(),
            "sync": lambda its: its.sync(),
        },
    ),
    Handle(
        "priority queue",
        _priority,
        {
            **_SEND_NOW,
            **_RECEIVE_NOW,
            **_CLOSE,
            "ack_nowait": lambda its: its.ack_nowait(()),
            "nack": lambda its: its.nack(()),
        },
        {
            **{name: call for name, call in _SENDS.items() if name != "sync"},
            **_RECEIVES,
            **_MANY,
            "peek": lambda its: its.peek(),
            "receiving": lambda its: _use(its.receiving()),
            "ack": lambda its: its.ack(()),
        },
        _RECEIVE,
    ),
    Handle(
        "spool",
        lambda fs, **options: diskq.open_spool("/spool", _never, fs=fs, **options),
        {**_SEND_NOW, **_CLOSE, "pause": lambda its: its.pause(), "resume": lambda its: its.resume()},
        {**_SENDS, "drained": lambda its: its.drained()},
    ),
    Handle(
        "replay",
        lambda fs, **options: diskq.open_replay("/s", fs=fs, speed=None, **options),
        {**_RECEIVE_NOW, **_CLOSE},
        {"receive": _RECEIVE, "receive_many": _MANY["receive_many"], "async for": _RECEIVES["async for"]},
    ),
    Handle(
        "merge",
        _merge,
        {**_RECEIVE_NOW},
        {**_RECEIVES},
        _RECEIVE,
    ),
    Handle("watch of a root", _watch, {**_RECEIVE_NOW, **_CLOSE}, {"receive": _RECEIVE}, _RECEIVE),
    Handle("sender from threads", _threads, {}, {}),
]
HANDLES = {handle.name: handle for handle in _HANDLES}


def handles(*but: str) -> list[Handle]:
    """All of them, for `parametrize` with ids=str, but for those named."""
    return [handle for handle in _HANDLES if handle.name not in but]
