# What is tortured: ours, and the queues that Python and Go users have. Law: each is opened as its manual
# says and as durably as it knows how, and used in one way: put one, take one, read all, close. It is judged
# by what its documents promise (promises.py).

from __future__ import annotations

import os
import sqlite3
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import diskq
from diskq.distribution import DISTRIBUTION
from diskq.storage.fs import Identity, OsFileSystem
from diskq.tools.convert.sources import entries
from diskq.tools.stores import stores_at
from tests.compat.go_peer import GoPeer
from tests.compat.golang import GoUnavailableError
from tests.engine.queues import leased
from tests.torture.promises import DOCUMENTS, NOTHING, OURS, Documents

__all__ = ["SYSTEMS", "Opened", "Program", "System", "disk"]

ROLL = 2000
"""Bytes: files are used up and begun many times in a short run."""


class Opened(Protocol):
    """A system that is open."""

    def put(self, body: bytes) -> object:
        """Return when it is as durable as the system makes it."""

    def take(self) -> bytes | None:
        """The oldest message, which is gone when this returns. None: there is none."""

    def read_all(self) -> list[bytes]: ...

    def close(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Program:
    """A system that is a program of its own, and says its lines itself."""

    path: str
    settings: tuple[str, ...] = ()

    def produce(self, directory: str, first: int, count: int, take_every: int) -> list[str]:
        """Its command line."""
        numbers = (f"--first={first}", f"--count={count}", f"--take-every={take_every}")
        return [self.path, "nsq", "hammer", f"--dir={directory}", "--name=q", *numbers, *self.settings]

    def read_all(self, directory: str) -> list[bytes]:
        waits = ("--idle=40", "--stall=300")
        command = [self.path, "nsq", "get", f"--dir={directory}", "--name=q", *waits, *self.settings]
        frames = subprocess.run(command, capture_output=True, check=True).stdout
        bodies, at = [], 0
        while at < len(frames):
            (size,) = struct.unpack_from(">I", frames, at)
            bodies.append(frames[at + 4 : at + 4 + size])
            at += 4 + size
        return bodies


@dataclass(frozen=True, slots=True)
class System:
    """One thing that is tortured."""

    name: str
    open: Callable[[str, OsFileSystem], Opened] | None = None
    """In a directory that is there, on a disk of ours (which peers do not care about)."""
    program: Callable[[], Program] | None = None
    package: str = ""
    """Whose version is told."""
    documents: Documents = NOTHING
    opened: str = ""
    """How, where there is a choice."""
    takes: bool = True
    """True if one message can be taken and be gone."""
    is_ours: bool = False

    @property
    def promises(self) -> frozenset[str]:
        return self.documents.promises

    def version(self) -> str:
        """Raises PackageNotFoundError or GoUnavailableError where it is not to be had."""
        if self.program is not None:
            self.program()
            module = Path(__file__).parents[1] / "compat" / "gopeer" / "go.mod"
            return module.read_text().split("go-diskqueue ")[1].split()[0]
        return version(self.package) if self.package else sqlite3.sqlite_version

    def is_there(self) -> bool:
        try:
            self.version()
        except (PackageNotFoundError, GoUnavailableError):
            return False
        return True


# --- the disk under ours ----------------------------------------------------------------------------


@dataclass
class _Disk(OsFileSystem):
    """The real one, after the machine was restarted, or with a clock that is set again and again."""

    was_restarted: bool = False
    steps: Iterator[float] | None = None

    def identity(self) -> Identity:
        me = super().identity()
        return replace(me, boot_id="another start of the machine") if self.was_restarted else me

    def wall_clock(self) -> float:
        return super().wall_clock() + (next(self.steps) if self.steps else 0.0)


def disk(*, was_restarted: bool = False, steps: Iterator[float] | None = None) -> OsFileSystem:
    """For `System.open`. `steps` are seconds by which the wall clock is wrong, one for each look at it."""
    return _Disk(was_restarted, steps)


# --- ours -------------------------------------------------------------------------------------------


class _Queue:
    def __init__(self, directory: str, fs: OsFileSystem) -> None:
        options = diskq.QueueOptions(segment_size=ROLL, sync_every=7)
        self.queue = diskq.Queue(directory, "events", options=options, fs=fs)

    def put(self, body: bytes) -> None:
        self.queue.put(body, durability="synced")

    def take(self) -> bytes | None:
        return next(iter(self.queue.get_many(1)), None)

    def read_all(self) -> list[bytes]:
        return self.queue.peek_many(1 << 20)

    def close(self) -> None:
        self.queue.close()


class _Working(_Queue):
    def __init__(self, directory: str, fs: OsFileSystem) -> None:
        super().__init__(directory, fs)
        self.work = diskq.QueueWork(self.queue)

    def take(self) -> bytes | None:
        lease = leased(self.work)
        if lease is None:
            return None
        self.work.ack(lease)
        return bytes(lease.body)

    def read_all(self) -> list[bytes]:
        return [bytes(lease.body) for lease in iter(lambda: leased(self.work), None)]

    def close(self) -> None:
        self.work.close()
        self.queue.close()


class _Log:
    """A stream or a journal: nothing is taken out of them."""

    def __init__(self, directory: str, fs: OsFileSystem) -> None:
        self.directory = directory
        self.fs = fs

    def take(self) -> bytes | None:
        raise NotImplementedError

    def read_all(self) -> list[bytes]:
        return [each.value for store in stores_at(self.directory) for each in entries(store, fs=self.fs)]


class _Stream(_Log):
    def __init__(self, directory: str, fs: OsFileSystem) -> None:
        super().__init__(directory, fs)
        options = diskq.StreamOptions(partition_count=1, segment_size=ROLL, sync_every=7)
        self.stream = diskq.Stream(directory, options=options, fs=fs)

    def put(self, body: bytes) -> None:
        self.stream.append(body, b"key", durability="synced")

    def close(self) -> None:
        self.stream.close()


class _Journal(_Log):
    def __init__(self, directory: str, fs: OsFileSystem) -> None:
        super().__init__(directory, fs)
        self.journal = diskq.Journal(
            directory, options=diskq.JournalOptions(segment_size=ROLL, sync_every=7), fs=fs
        )

    def put(self, body: bytes) -> None:
        self.journal.append(body, b"key", durability="synced")

    def close(self) -> None:
        self.journal.close()


class _Jobs:
    def __init__(self, directory: str, fs: OsFileSystem) -> None:
        options = diskq.PriorityOptions(soft_limit=ROLL, hard_limit=2 * ROLL, sync_every=7)
        self.store = diskq.PriorityStore(directory, options=options, fs=fs)

    def put(self, body: bytes) -> None:
        self.store.put(self.store.queue(), body, 0, durability="synced")

    def take(self) -> bytes | None:
        queue = self.store.queue()
        record = self.store.get(queue)
        if record is None:
            return None
        self.store.ack(queue, record)
        return bytes(record.body)

    def read_all(self) -> list[bytes]:
        return [bytes(each.body) for each in self.store.peek(self.store.queue(), 1 << 20)]

    def close(self) -> None:
        self.store.close()


class _Spool:
    """A spool in a thread with a Trio of its own, asked from this one."""

    def __init__(self, directory: str, fs: OsFileSystem) -> None:
        self.trio = import_module("trio")
        self.directory = os.path.join(directory, "spool")
        self.fs = fs
        self.got: list[bytes] = []
        self.delivers = False
        self.failure: BaseException | None = None
        self.is_open = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.is_open.wait()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self.trio.run(self._hold)
        except BaseException as failure:
            self.failure = failure
        finally:
            self.is_open.set()

    async def _hold(self) -> None:
        self.token = self.trio.lowlevel.current_trio_token()
        self.end = self.trio.Event()
        self.begin = self.trio.Event()
        async with diskq.open_spool(self.directory, deliver=self._deliver, fs=self.fs) as self.spool:
            self.is_open.set()
            await self.end.wait()

    async def _deliver(self, batch: diskq.Batch) -> None:
        await self.begin.wait()
        self.got += batch

    def put(self, body: bytes) -> None:
        self._ask(self._send, body)

    async def _send(self, body: bytes) -> None:
        await self.spool.send(body, durability="synced")

    def _ask(self, act: Callable[..., Any], *args: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return self.trio.from_thread.run(act, *args, trio_token=self.token)

    def take(self) -> bytes | None:
        raise NotImplementedError

    async def _drain(self) -> None:
        self.begin.set()
        await self.spool.drained()

    def read_all(self) -> list[bytes]:
        self._ask(self._drain)
        return self.got

    def close(self) -> None:
        if self.failure is None:
            with suppress(self.trio.RunFinishedError):
                self.token.run_sync_soon(self.end.set)
        self.thread.join()
        if self.failure is not None:
            raise self.failure


# --- peers ------------------------------------------------------------------------------------------


class _Peer:
    """Made of three functions."""

    def __init__(
        self, put: Callable[[bytes], Any], take: Callable[[], bytes | None], close: Callable[[], Any]
    ) -> None:
        self.put, self.take, self.close = put, take, close

    def read_all(self) -> list[bytes]:
        bodies: list[bytes] = []
        while (body := self.take()) is not None:
            bodies.append(body)
        return bodies


def _queuelib(directory: str, fs: OsFileSystem) -> Opened:
    queue = import_module("queuelib").FifoDiskQueue(os.path.join(directory, "queue"), chunksize=10)

    def push(body: bytes) -> None:
        queue.push(body)
        os.fdatasync(queue.headf.fileno())

    return _Peer(push, queue.pop, queue.close)


def _none_if_empty(get: Callable[[], bytes], empty: type[Exception]) -> Callable[[], bytes | None]:
    def take() -> bytes | None:
        try:
            return get()
        except empty:
            return None

    return take


def _persistqueue_file(directory: str, fs: OsFileSystem) -> Opened:
    module = import_module("persistqueue")
    queue = module.Queue(os.path.join(directory, "queue"), chunksize=10, tempdir=directory)

    def get() -> bytes:
        body: bytes = queue.get(block=False)
        queue.task_done()
        return body

    return _Peer(queue.put, _none_if_empty(get, module.Empty), lambda: None)


def _persistqueue_sqlite(directory: str, fs: OsFileSystem) -> Opened:
    module = import_module("persistqueue")
    queue = module.SQLiteQueue(directory, auto_commit=True)
    return _Peer(queue.put, _none_if_empty(lambda: queue.get(block=False), module.Empty), queue.close)


def _diskcache(directory: str, fs: OsFileSystem) -> Opened:
    module = import_module("diskcache")
    cache = module.Cache(directory, eviction_policy="none", sqlite_synchronous=2)
    queue = module.Deque.fromcache(cache)
    return _Peer(queue.append, _none_if_empty(queue.popleft, IndexError), cache.close)


def _litequeue(directory: str, fs: OsFileSystem) -> Opened:
    """It takes text."""
    queue = import_module("litequeue").LiteQueue(os.path.join(directory, "queue.sqlite3"))
    queue.conn.execute("PRAGMA synchronous=FULL")

    def take() -> bytes | None:
        found = queue.pop()
        if found is None:
            return None
        queue.done(found.message_id)
        return bytes.fromhex(found.data)

    return _Peer(lambda body: queue.put(body.hex()), take, queue.conn.close)


def _localqueue(directory: str, fs: OsFileSystem) -> Opened:
    module = import_module("localqueue")

    class AsTheyAre:
        dumps = loads = staticmethod(lambda body: body)

    durable = module.DurabilityMode.DURABLE
    queue = module.SimpleQueue(directory, serializer=AsTheyAre(), durability=durable)

    def get() -> bytes:
        job = queue.get(block=False)
        queue.ack(job)
        body: bytes = job.data
        return body

    return _Peer(queue.put, _none_if_empty(get, module.Empty), queue.close)


def _sqlite(directory: str, fs: OsFileSystem) -> Opened:
    database = sqlite3.connect(os.path.join(directory, "queue.sqlite3"), isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def put(body: bytes) -> None:
        database.execute("INSERT INTO queue (body) VALUES (?)", (body,))

    def take() -> bytes | None:
        found = database.execute(
            "DELETE FROM queue WHERE id = (SELECT min(id) FROM queue) RETURNING body"
        ).fetchall()
        return found[0][0] if found else None

    return _Peer(put, take, database.close)


def _go(*settings: str) -> Callable[[], Program]:
    return lambda: Program(str(GoPeer.build().program), (f"--max-bytes-per-file={ROLL}", *settings))


# --- the table --------------------------------------------------------------------------------------


def _ours(name: str, opened: Callable[[str, OsFileSystem], Opened], *, takes: bool = True) -> System:
    how = "each put with the word `synced`"
    return System(name, opened, package=DISTRIBUTION, opened=how, documents=OURS, takes=takes, is_ours=True)


def _peer(name: str, open: Callable[[str, OsFileSystem], Opened] | None = None, **about: Any) -> System:
    return System(name, open, documents=DOCUMENTS[name], **about)


_ALL_SYSTEMS = [
    _ours("queue", _Queue),
    _ours("stream", _Stream, takes=False),
    _ours("journal", _Journal, takes=False),
    _ours("jobs", _Jobs),
    _ours("spool", _Spool, takes=False),
    _ours("working", _Working),
    _peer("go-diskqueue, sync 1", program=_go("--sync-every=1"), opened="a sync after each message"),
    _peer("go-diskqueue", program=_go(), opened="as nsqd opens it: a sync each 2,500 messages or 2 s"),
    _peer(
        "queuelib",
        _queuelib,
        package="queuelib",
        opened="`FifoDiskQueue`, and an fdatasync by hand after each push",
    ),
    _peer(
        "persist-queue file",
        _persistqueue_file,
        package="persist-queue",
        opened="`Queue`, with `tempdir` on the same disk",
    ),
    _peer(
        "persist-queue SQLite",
        _persistqueue_sqlite,
        package="persist-queue",
        opened="`SQLiteQueue` with `auto_commit=True`: WAL mode, and synchronous=FULL as SQLite comes",
    ),
    _peer(
        "diskcache Deque",
        _diskcache,
        package="diskcache",
        opened="`Deque` of a `Cache` in WAL mode, with its setting `sqlite_synchronous=2` (FULL)",
    ),
    _peer(
        "litequeue",
        _litequeue,
        package="litequeue",
        opened="WAL mode, with synchronous=FULL by a pragma (it chooses NORMAL itself)",
    ),
    _peer("localqueue", _localqueue, package="localqueue", opened="`DurabilityMode.DURABLE`"),
    _peer("sqlite3", _sqlite, opened="a table by hand, WAL mode, synchronous=FULL"),
]

SYSTEMS = {system.name: system for system in _ALL_SYSTEMS}
