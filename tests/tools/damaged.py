# Small stores of every kind, to be damaged and repaired: how they are made, and what is in them.

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import trio

import diskq
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.stream import Stream
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.tools.stores import Kind, Store

__all__ = ["COUNT", "KINDS", "body", "digest", "flip", "made", "messages_in"]

COUNT = 60
NEVER = 1000.0
"""Seconds after which a sync is due: what is durable does not depend on how busy the machine is."""
KINDS: tuple[Kind, ...] = ("queue", "spool", "stream", "journal", "jobs")


def body(number: int) -> bytes:
    """All of one size but a few, so that nothing is found by chance."""
    return b"%03d" % number * (30 + number % 7)


def made(kind: Kind, path: str, fs: FileSystem | None = None) -> Store:
    """A thing with some files, in the directory `path`, which is there; a spool on a real disk only."""
    _MAKERS[kind](path, fs)
    return Store(kind, path, "events" if kind == "queue" else "")


def _queue(path: str, fs: FileSystem | None) -> None:
    with Queue(
        path, "events", options=diskq.QueueOptions(segment_size=3000, sync_timeout=NEVER), fs=fs
    ) as queue:
        queue.put_many([body(number) for number in range(COUNT)])


def _spool(path: str, fs: FileSystem | None) -> None:
    async def refuse(batch: object) -> None:
        raise OSError("the destination is down")

    async def fill() -> None:
        options = diskq.SpoolOptions(queue=diskq.QueueOptions(segment_size=3000, sync_timeout=NEVER))
        async with diskq.open_spool(path, deliver=refuse, options=options) as spool:
            await spool.send_many([body(number) for number in range(COUNT)])
            await trio.lowlevel.checkpoint()

    trio.run(fill)


def _stream(path: str, fs: FileSystem | None) -> None:
    options = diskq.StreamOptions(partition_count=1, segment_size=3000, sync_timeout=NEVER)
    with Stream(path, options=options, fs=fs) as stream:
        for number in range(COUNT):
            stream.append(body(number), key=f"key-{number}")


def _journal(path: str, fs: FileSystem | None) -> None:
    with Journal(path, options=diskq.JournalOptions(segment_size=3000, sync_timeout=NEVER), fs=fs) as journal:
        for number in range(COUNT):
            journal.append(body(number), key=f"key-{number}")


def _jobs(path: str, fs: FileSystem | None) -> None:
    options = diskq.PriorityOptions(soft_limit=2000, preallocate=False, sync_timeout=NEVER)
    with PriorityStore(path, options=options, fs=fs) as store:
        for number in range(COUNT):
            store.put(store.queue(), body(number), priority=number)


_MAKERS: dict[Kind, Callable[[str, FileSystem | None], None]] = {
    "queue": _queue,
    "spool": _spool,
    "stream": _stream,
    "journal": _journal,
    "jobs": _jobs,
}


def messages_in(store: Store, fs: FileSystem | None = None) -> list[bytes]:
    """What the thing still has, as its readers get it: queues and stores are opened for that."""
    disk = fs or OsFileSystem()
    if store.kind in ("queue", "spool"):
        with Queue(store.path, store.name or "spool", fs=disk) as queue:
            return queue.peek_many(10 * COUNT)
    if store.kind == "jobs":
        with PriorityStore(store.path, fs=disk) as jobs:
            return [record.body for record in jobs.peek(jobs.queue(), 10 * COUNT)]
    if store.kind == "journal":
        with JournalReader(store.path, fs=disk) as reader:
            reader.seek_oldest()
            return [message.value for message in reader.read_many(10 * COUNT)]
    with PartitionReader(disk, StreamFiles(disk, store.path).partition(0)) as stream:
        stream.seek_oldest()
        return [message.value for message in stream.read_many(10 * COUNT)]


def flip(path: Path, at: int) -> None:
    """Let a bit rot."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def digest(path: Path) -> dict[str, str]:
    """Of every file below `path` its content, in short."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
