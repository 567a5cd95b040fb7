"""Each kind by one small adapter, so that a promise that all keep is tested once.

An engine kind (`ENGINES`) opens a synchronous engine, a channel kind (`CHANNELS`) a Trio channel on the same
files. A directory that is there belongs to one kind:

    store = kind.open(path, fs=disk, sync_every=3)      store.put(body, "synced"); store.close()
    kind.read(path, fs=disk)                            all messages, oldest first, by an open of its own

    async with channel.open(path, fs=disk) as opened:   await opened.send(body)

A reader kind (`READERS`) opens a `StreamReader` on what the kind "stream" has written.

`read` takes nothing away. Options go by their names to the kind's options; those that a kind does not have
are an error of the test. `path` may be on a disk of `diskq.testing` or on the real one (fs=None).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

import diskq
from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.reader import JournalReader
from diskq.engine.priority.files import StoreFiles
from diskq.engine.queue.files import QueueFiles
from diskq.engine.spool.dead_letters import DeadLetters
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.engine.spool.files import SPOOL
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.reader import ReadableStream
from diskq.options import Durability
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.repairs import Repair
from tests.engine.queues import leased

__all__ = [
    "CHANNELS",
    "DURABILITIES",
    "ENGINES",
    "NAME",
    "READERS",
    "Channel",
    "ChannelKind",
    "Kind",
    "Opened",
    "ReaderKind",
    "bodies",
    "body",
    "channels",
    "end_deliveries",
    "engines",
]

NAME = "events"
"""The queue's, in its directory."""
DURABILITIES: tuple[Durability, ...] = ("memory", "written", "synced")
ALL = 1 << 30
LONG = 1000.0


def body(number: int, size: int = 0) -> bytes:
    """Return a message that contains its number, of at least `size` bytes."""
    return (b"%d " % number).ljust(size, b".")


def bodies(count: int, start: int = 0, size: int = 0) -> list[bytes]:
    return [body(number, size) for number in range(start, start + count)]


# --- the engines ------------------------------------------------------------------------------------------


class Opened:
    """An engine that is open."""

    engine: Any
    """What a program holds: its public calls are in `calls`."""
    takes = False
    """True if a message can be consumed."""

    def put(self, body: bytes, durability: Durability | None = None) -> None:
        raise NotImplementedError

    def put_many(self, bodies: list[bytes], durability: Durability | None = None) -> None:
        """One call of the engine."""
        raise NotImplementedError

    def take(self) -> bytes | None:
        """The oldest message, which has left when this returns; None where there is none."""
        raise NotImplementedError

    def sync(self) -> None:
        self.engine.sync()

    def flush(self) -> None:
        self.engine.flush()

    def close(self) -> None:
        self.engine.close()

    @property
    def repairs(self) -> tuple[Repair, ...]:
        repairs: tuple[Repair, ...] = self.engine.repairs
        return repairs

    @property
    def guard(self) -> ThreadGuard:
        """What lets one thread in at a time."""
        guard: ThreadGuard = self.engine.guard
        return guard

    @property
    def log(self) -> Any:
        """Its writer, as the loop of a channel uses it."""
        return self.engine.log

    def accepted(self) -> int:
        """Messages that are in, as the engine counts them, of which none was taken."""
        raise NotImplementedError

    def calls(self) -> dict[str, Callable[[], object]]:
        """Every call that changes or reads messages, once, with arguments that would do."""
        raise NotImplementedError

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Queue(Opened):
    takes = True

    def __init__(self, path: AnyPath, options: Any, how: dict[str, Any], name: str = NAME) -> None:
        self.engine = self.queue = diskq.Queue(path, name, options=options, **how)

    def put(self, body: bytes, durability: Durability | None = None) -> None:
        self.queue.put_nowait(body, durability=durability)

    def put_many(self, bodies: list[bytes], durability: Durability | None = None) -> None:
        self.queue.put_many(bodies, durability=durability)

    def take(self) -> bytes | None:
        return next(iter(self.queue.get_many(1)), None)

    def accepted(self) -> int:
        return self.queue.steps.accepted_total

    def calls(self) -> dict[str, Callable[[], object]]:
        queue = self.queue
        return {
            "put": lambda: queue.put(b"x"),
            "put, in memory": lambda: queue.put(b"x", durability="memory"),
            "put, synced": lambda: queue.put(b"x", durability="synced"),
            "put, of another kind": lambda: queue.put(bytearray(b"x")),
            "put_many": lambda: queue.put_many([b"x", b"y"]),
            "get": queue.get,
            "get_nowait": queue.get_nowait,
            "get_many": lambda: queue.get_many(2),
            "peek": queue.peek,
            "peek_many": lambda: queue.peek_many(2),
            "advance": lambda: queue.advance(0),
            "clear": queue.clear,
            "empty": queue.empty,
            "attach": lambda: diskq.QueueWork(queue),
            "flush": queue.flush,
            "sync": queue.sync,
            "delete": queue.delete,
        }


class _Leases(_Queue):
    def __init__(self, path: AnyPath, options: Any, how: dict[str, Any]) -> None:
        super().__init__(path, options, how)
        try:
            self.work = diskq.QueueWork(self.queue)
        except BaseException:
            self.queue.close()
            raise

    def take(self) -> bytes | None:
        lease = leased(self.work)
        if lease is None:
            return None
        self.work.ack(lease)
        return bytes(lease.body)

    def close(self) -> None:
        try:
            self.work.close()
        finally:
            self.queue.close()

    def calls(self) -> dict[str, Callable[[], object]]:
        work, queue = self.work, self.queue
        return {
            "put": lambda: queue.put(b"x"),
            "put_many": lambda: queue.put_many([b"x", b"y"]),
            "get": work.get,
            "get_nowait": work.get_nowait,
            "get_many": lambda: work.get_many(2),
            "ack": lambda: work.ack([]),
            "nack": lambda: work.nack([]),
            "release": lambda: work.release([]),
            "sync": queue.sync,
        }


class _Stream(Opened):
    def __init__(self, path: AnyPath, options: Any, how: dict[str, Any]) -> None:
        self.engine = self.stream = diskq.Stream(path, options=options, **how)

    def put(self, body: bytes, durability: Durability | None = None) -> None:
        self.stream.append(body, b"key", durability=durability)

    def put_many(self, bodies: list[bytes], durability: Durability | None = None) -> None:
        self.stream.append_many(bodies, b"key", durability=durability)

    def accepted(self) -> int:
        return sum(self.stream.next_offsets)

    def calls(self) -> dict[str, Callable[[], object]]:
        stream = self.stream
        return {
            "append": lambda: stream.append(b"x"),
            "append, in memory": lambda: stream.append(b"x", durability="memory"),
            "append, synced": lambda: stream.append(b"x", durability="synced"),
            "append_many": lambda: stream.append_many([b"x", b"y"]),
            "flush": stream.flush,
            "vacuum": stream.vacuum,
            "sync": stream.sync,
        }


class _Journal(Opened):
    def __init__(self, path: AnyPath, options: Any, how: dict[str, Any]) -> None:
        self.engine = self.journal = diskq.Journal(path, options=options, **how)

    def put(self, body: bytes, durability: Durability | None = None) -> None:
        self.journal.append(body, b"key", durability=durability)

    def put_many(self, bodies: list[bytes], durability: Durability | None = None) -> None:
        self.journal.append_many(bodies, durability=durability)

    def accepted(self) -> int:
        return self.journal.next_offset

    def calls(self) -> dict[str, Callable[[], object]]:
        journal = self.journal
        return {
            "append": lambda: journal.append(b"x"),
            "append, in memory": lambda: journal.append(b"x", durability="memory"),
            "append, synced": lambda: journal.append(b"x", durability="synced"),
            "append_many": lambda: journal.append_many([b"x", b"y"]),
            "append_encoded": lambda: journal.append_encoded(b""),
            "flush": journal.flush,
            "sync": journal.sync,
        }


class _Priority(Opened):
    takes = True

    def __init__(self, path: AnyPath, options: Any, how: dict[str, Any]) -> None:
        self.engine = self.store = diskq.PriorityStore(path, options=options, **how)
        self.of = self.store.queue()

    def put(self, body: bytes, durability: Durability | None = None) -> None:
        self.store.put(self.of, body, 0, durability=durability)

    def put_many(self, bodies: list[bytes], durability: Durability | None = None) -> None:
        self.store.put_many(self.of, bodies, 0, durability=durability)

    def take(self) -> bytes | None:
        record = self.store.get(self.of)
        if record is None:
            return None
        self.store.ack(self.of, record)
        return bytes(record.body)

    def accepted(self) -> int:
        return self.store.info(self.of).stored

    def calls(self) -> dict[str, Callable[[], object]]:
        store, queue = self.store, self.of
        return {
            "put": lambda: store.put(queue, b"x"),
            "put, in memory": lambda: store.put(queue, b"x", 0, durability="memory"),
            "put, synced": lambda: store.put(queue, b"x", 0, durability="synced"),
            "put_many": lambda: store.put_many(queue, [b"x", b"y"]),
            "get": lambda: store.get(queue),
            "get_many": lambda: store.get_many(queue, 2),
            "peek": lambda: store.peek(queue),
            "ack_many": lambda: store.ack_many(queue, []),
            "nack_many": lambda: store.nack_many(queue, []),
            "create_queue": lambda: store.create_queue("mail"),
            "delete_queue": lambda: store.delete_queue("mail"),
            "snapshot": store.snapshot,
            "flush": store.flush,
            "sync": store.sync,
        }


class _Spool(_Queue):
    """The files of a spool as its channel opens them; a message taken is delivered."""

    def __init__(self, path: AnyPath, options: Any, how: dict[str, Any]) -> None:
        fs = how["fs"] = how.get("fs") or OsFileSystem()
        with ExitStack() as opened:
            super().__init__(path, options, how, SPOOL)
            opened.enter_context(self.queue)
            self.letters = opened.enter_context(DeadLetters(path, fs=fs))
            self.cursor = opened.enter_context(DeliveryCursor(fs, os.fspath(path), self.queue.steps))
            self._all = opened.pop_all()

    def take(self) -> bytes | None:
        if not (waiting := self.queue.steps.head.peek_many(*self.cursor.limits(1, ALL))):
            return None
        self.cursor.take_batch(waiting)
        self.cursor.begin_try()
        (delivered,) = self.cursor.batch()
        self.queue.advance(self.cursor.count)
        self.cursor.commit()
        return delivered

    def close(self) -> None:
        self._all.close()


_delivering: list[diskq.Spool] = []


def end_deliveries() -> None:
    """End the threads of spools that this test has not closed, as those of a process that was killed."""
    while _delivering:
        spool = _delivering.pop()
        _end_delivery(spool)
        spool._thread.join(60)


def _end_delivery(spool: diskq.Spool) -> None:
    spool._is_closing = True
    spool._wake()


class _ThreadedSpool(Opened):
    """A spool whose thread delivers a message when one is taken, and none otherwise."""

    takes = True

    def __init__(self, path: AnyPath, options: Any, how: dict[str, Any]) -> None:
        wanted: list[list[bytes]] = []  # where the next delivery puts its message

        def deliver(batch: diskq.Batch) -> None:
            if not wanted:
                raise diskq.Retry("nothing is taken", after=LONG)
            wanted.pop().extend(batch)

        self._wanted = wanted
        self.engine = self.spool = diskq.Spool(path, deliver, max_messages=1, queue=options, **how)
        _delivering.append(self.spool)
        self._process = os.getpid()

    def __del__(self) -> None:
        """End the thread of one that was not closed, as that of a process that was killed."""
        if hasattr(self, "_process") and self._process == os.getpid():
            _end_delivery(self.spool)

    def put(self, body: bytes, durability: Durability | None = None) -> None:
        self.spool.put(body, durability=durability)

    def put_many(self, bodies: list[bytes], durability: Durability | None = None) -> None:
        self.spool.put_many(bodies, durability=durability)

    def take(self) -> bytes | None:
        depth = self.spool.statistics().depth
        if not depth:
            return None
        taken: list[bytes] = []
        self._wanted.append(taken)
        while not taken or self.spool.statistics().depth == depth:
            if self.spool.failure is not None:
                raise self.spool.failure
            self.spool.resume()
            time.sleep(0)
        return taken[0]

    def flush(self) -> None:
        self.spool._queue.flush()

    @property
    def guard(self) -> ThreadGuard:
        return self.spool._queue.guard

    @property
    def log(self) -> Any:
        return self.spool._queue.log

    def accepted(self) -> int:
        return self.spool._queue.steps.accepted_total

    def calls(self) -> dict[str, Callable[[], object]]:
        spool = self.spool
        return {
            "put": lambda: spool.put(b"x"),
            "put, in memory": lambda: spool.put(b"x", durability="memory"),
            "put, synced": lambda: spool.put(b"x", durability="synced"),
            "put_nowait": lambda: spool.put_nowait(b"x"),
            "put_many": lambda: spool.put_many([b"x", b"y"]),
            "replay": lambda: spool.dead_letters.replay([]),
            "sync": spool.sync,
        }


# --- their files ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """Paths of what one kind has in a directory."""

    lock: str
    """The file whose lock means that a process has it open."""
    wals: tuple[str, ...]
    data: str
    """A glob for the files with the messages."""


def _queue_names(path: str, name: str = NAME) -> Names:
    files = QueueFiles(OsFileSystem(), path, name)
    return Names(files.lock, (files.wal,), f"{path}/{name}.diskqueue.0*.dat")


def _stream_names(path: str) -> Names:
    files = StreamFiles(OsFileSystem(), path)
    return Names(files.lock, (files.partition(0).wal,), f"{files.partition(0).directory}/*.data")


def _journal_names(path: str) -> Names:
    files = JournalFiles(OsFileSystem(), path)
    return Names(files.lock, (files.wal,), f"{files.directory}/*.jnl")


def _priority_names(path: str) -> Names:
    files = StoreFiles.found(OsFileSystem(), path)
    return Names(files.lock, (), f"{files.log}/*.log")


# --- reading all back -------------------------------------------------------------------------------------


def _read_stream(path: str, fs: FileSystem) -> list[bytes]:
    stream = ReadableStream(path, fs=fs)
    found: list[bytes] = []
    for partition in stream.partitions():
        with stream.open(partition) as reader:
            reader.seek_oldest()
            found += [message.value for message in iter(reader.read, None)]
    return found


def _read_journal(path: str, fs: FileSystem) -> list[bytes]:
    with JournalReader(path, fs=fs) as reader:
        reader.seek_oldest()
        return [message.value for message in reader.read_many(ALL)]


# --- the table of engines ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One engine."""

    name: str
    opened: Callable[[AnyPath, Any, dict[str, Any]], Opened]
    options: type[Any]
    small: dict[str, Any]
    """Options with which files are rolled after some 1,000 bytes."""
    names: Callable[[str], Names]
    closed: type[Exception] = ValueError
    """What a call after `close` raises."""
    has_wal: bool = True
    """True if it can be opened as its channel does, with a write-ahead log."""

    def open(
        self, path: AnyPath, *, fs: FileSystem | None = None, wal: bool = False, **options: Any
    ) -> Opened:
        """Open it for writing. With `wal` as its channel does: what is put waits for `flush`.

        Then the fast calls shut after `time_slice` seconds of a clock that the test may give as `clock`.
        """
        how: dict[str, Any] = {name: options.pop(name) for name in ("clock", "time_slice") if name in options}
        if wal and self.has_wal:
            how = {"time_slice": 100e-6, "uses_wal": True, **how}
        if self.name == "stream":
            options.setdefault("partition_count", 1)
        how["fs"] = fs
        return self.opened(path, self.options(**options), how)

    def read(self, path: AnyPath, *, fs: FileSystem | None = None) -> list[bytes]:
        """Return all messages, oldest first, from an open of its own, which repairs first. Consumes none."""
        return self.read_with_repairs(path, fs=fs)[0]

    def read_with_repairs(
        self, path: AnyPath, *, fs: FileSystem | None = None
    ) -> tuple[list[bytes], tuple[Repair, ...]]:
        """Return the same, and the repairs of the open."""
        fs = fs or OsFileSystem()
        with self.open(path, fs=fs) as store:
            repairs = store.repairs
            if isinstance(store, _Leases):
                found = [bytes(lease.body) for lease in iter(lambda: leased(store.work), None)]
            elif isinstance(store, _Queue):
                found = store.queue.peek_many(ALL)
            elif isinstance(store, _ThreadedSpool):
                found = store.spool._queue.peek_many(ALL)
            elif isinstance(store, _Priority):
                found = [bytes(each.body) for each in store.store.peek(store.of, ALL)]
            else:
                found = []
        if isinstance(store, _Stream):
            found = _read_stream(os.fspath(path), fs)
        elif isinstance(store, _Journal):
            found = _read_journal(os.fspath(path), fs)
        return found, repairs

    def __str__(self) -> str:
        return self.name


_ENGINES = [
    Kind("queue", _Queue, diskq.QueueOptions, {"segment_size": 1000}, _queue_names),
    Kind("leases", _Leases, diskq.QueueOptions, {"segment_size": 1000}, _queue_names),
    Kind("stream", _Stream, diskq.StreamOptions, {"segment_size": 1000}, _stream_names),
    Kind("journal", _Journal, diskq.JournalOptions, {"segment_size": 1000}, _journal_names),
    Kind(
        "priority",
        _Priority,
        diskq.PriorityOptions,
        {"soft_limit": 1000, "hard_limit": 2000},
        _priority_names,
        has_wal=False,
    ),
    Kind(
        "spool",
        _Spool,
        diskq.QueueOptions,
        {"segment_size": 1000},
        lambda path: _queue_names(path, SPOOL),
    ),
    Kind(
        "threaded spool",
        _ThreadedSpool,
        diskq.QueueOptions,
        {"segment_size": 1000},
        lambda path: _queue_names(path, SPOOL),
        has_wal=False,
    ),
]
ENGINES = {kind.name: kind for kind in _ENGINES}


def engines(*but: str) -> list[Kind]:
    """All engine kinds, for `parametrize` with ids=str, but for those named."""
    return [kind for kind in _ENGINES if kind.name not in but]


# --- readers without an event loop ------------------------------------------------------------------------


@dataclass(frozen=True)
class ReaderKind:
    """One way to read a stream in a synchronous program."""

    name: str
    group: str | None = None

    def open(self, path: AnyPath, *, fs: FileSystem | None = None, **options: Any) -> diskq.StreamReader:
        return diskq.StreamReader(path, group=self.group, fs=fs, **options)

    def calls(self, reader: diskq.StreamReader) -> dict[str, Callable[[], object]]:
        """Every call, once, with arguments that would do. They wait for nothing."""
        found: dict[str, Callable[[], object]] = {
            "read": lambda: reader.read(0),
            "read, waiting": lambda: reader.read(0.001),
            "read_many": lambda: reader.read_many(2, timeout=0),
            "lag": reader.lag,
            "seek": lambda: reader.seek("oldest"),
        }
        if self.group is not None:
            found |= {
                "commit": reader.commit,
                "commit, synced": lambda: reader.commit(durability="synced"),
                "sync": reader.sync,
            }
        return found

    def __str__(self) -> str:
        return self.name


READERS = [ReaderKind("reader"), ReaderKind("reader of a group", "g")]


# --- the channels -----------------------------------------------------------------------------------------


class Channel:
    """A channel that is open, for sending and, where messages can be taken, for receiving."""

    def __init__(self, kind: ChannelKind, handle: Any, path: str, got: list[bytes] | None = None) -> None:
        self.kind = kind
        self.handle = handle
        """What the program holds (of a priority store, the queue of it)."""
        self.path = path
        self.got = got
        """What a spool has delivered, in order."""

    async def send(self, body: bytes, durability: Durability | None = None) -> None:
        await self.handle.send(body, durability=durability)

    async def send_many(self, bodies: list[bytes], durability: Durability | None = None) -> None:
        await self.handle.send_many(bodies, durability=durability)

    def send_nowait(self, body: bytes) -> None:
        self.handle.send_nowait(body)

    async def receive(self) -> bytes:
        """The oldest message, which has left when this returns. Not of logs and spools."""
        if self.kind.name == "priority":
            message = await self.handle.receive()
            await self.handle.ack(message)
            return bytes(message.body)
        received: bytes = await self.handle.receive()
        return received

    async def sync(self) -> None:
        await (self.store if self.kind.name == "priority" else self.handle).sync()

    async def aclose(self) -> None:
        await self.handle.aclose()

    @property
    def repairs(self) -> tuple[Repair, ...]:
        repairs: tuple[Repair, ...] = (self.store if self.kind.name == "priority" else self.handle).repairs
        return repairs

    store: Any = None
    """Of a priority queue, the store that was opened."""


@dataclass(frozen=True)
class ChannelKind:
    """One kind of channel, on the files of one engine."""

    name: str
    engine: Kind
    opener: Callable[..., Any]
    options: type[Any]
    takes: bool
    """True if messages can be received from the same handle."""

    def opening(self, path: AnyPath, *, fs: FileSystem | None = None, **options: Any) -> Any:
        """What `diskq.open_...` gives for it: an async context manager. A spool's needs `deliver`."""
        if self.name == "queue":
            return self.opener(path, NAME, fs=fs, **options)
        if self.name == "stream":
            options.setdefault("partition_count", 1)
        if self.name == "spool":
            deliver = options.pop("deliver")
            names = {field.name for field in dataclasses.fields(diskq.SpoolOptions)}
            inner = {name: options.pop(name) for name in [*options] if name not in names}
            return self.opener(path, deliver, fs=fs, queue=diskq.QueueOptions(**inner), **options)
        return self.opener(path, fs=fs, **options)

    def open(
        self, path: AnyPath, *, fs: FileSystem | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Channel]:
        """Open it. A spool delivers nothing, unless it is given `deliver`; what it delivers is in `got`.

        Options that a spool has only for its queue go there. The block's end is the channel's.
        """
        return self._open(path, fs, options)

    @asynccontextmanager
    async def _open(
        self, path: AnyPath, fs: FileSystem | None, options: dict[str, Any]
    ) -> AsyncIterator[Channel]:
        got: list[bytes] | None = None
        if self.name == "spool" and "deliver" not in options:
            options["deliver"] = _never
        elif self.name == "spool":
            got, options["deliver"] = _collecting(options["deliver"])
        async with self.opening(path, fs=fs, **options) as handle:
            channel = Channel(self, handle, str(path), got)
            if self.name == "priority":
                channel.store, channel.handle = handle, handle.queue()
            yield channel

    def read(self, path: AnyPath, *, fs: FileSystem | None = None) -> list[bytes]:
        """As `Kind.read`: by an engine, when the channel is closed."""
        return self.engine.read(path, fs=fs)

    def __str__(self) -> str:
        return f"{self.name} channel"


async def _never(batch: diskq.Batch) -> None:
    await anyio.sleep_forever()


def _collecting(deliver: Callable[..., Any]) -> tuple[list[bytes], Callable[..., Any]]:
    got: list[bytes] = []

    async def collect(batch: diskq.Batch) -> None:
        await deliver(batch)
        got.extend(batch)

    return got, collect


_CHANNELS = [
    ChannelKind("queue", ENGINES["queue"], diskq.open_queue, diskq.QueueOptions, takes=True),
    ChannelKind("stream", ENGINES["stream"], diskq.open_producer, diskq.StreamOptions, takes=False),
    ChannelKind("journal", ENGINES["journal"], diskq.open_journal, diskq.JournalOptions, takes=False),
    ChannelKind(
        "priority", ENGINES["priority"], diskq.open_priority_store, diskq.PriorityOptions, takes=True
    ),
    ChannelKind("spool", ENGINES["spool"], diskq.open_spool, diskq.SpoolOptions, takes=False),
]
CHANNELS = {kind.name: kind for kind in _CHANNELS}


def channels(*but: str) -> list[ChannelKind]:
    """All kinds of channels, for `parametrize` with ids=str, but for those named."""
    return [kind for kind in _CHANNELS if kind.name not in but]


def each_call(store: Opened) -> Iterator[tuple[str, Callable[[], object]]]:
    """(name, call) of all that a program can call, `close` last."""
    yield from store.calls().items()
    yield "close", store.close
