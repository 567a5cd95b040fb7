"""Stores of every kind, of any size: many files, partitions, segments, readers, queues, dead letters."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import JournalCommittedOffset
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters
from diskq.engine.spool.files import SPOOL, SpoolFiles
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.stream import Stream
from diskq.options import JournalOptions, PriorityOptions, QueueOptions, StreamOptions
from diskq.storage.fs import FileSystem

__all__ = ["MAKERS", "NAME", "open_store"]

NAME = "q"
_PRIORITY = PriorityOptions(preallocate=False, soft_limit=1024, hard_limit=1024)


def _queue_files(fs: FileSystem, path: str, count: int) -> None:
    with Queue(path, NAME, options=QueueOptions(segment_size=1), fs=fs) as queue:
        for number in range(count):
            queue.put(b"%d" % number)


def _partitions(fs: FileSystem, path: str, count: int) -> None:
    with Stream(path, options=StreamOptions(partition_count=count), fs=fs) as stream:
        stream.append_many([(b"%d" % number, b"x") for number in range(count)])


def _stream_segments(fs: FileSystem, path: str, count: int) -> None:
    with Stream(path, options=StreamOptions(partition_count=1, segment_size=1), fs=fs) as stream:
        for number in range(count):
            stream.append(b"%d" % number)


def _groups(fs: FileSystem, path: str, count: int) -> None:
    _partitions(fs, path, 1)
    for number in range(count):
        _commit(fs, path, f"group{number}", 1)


def _group_of_partitions(fs: FileSystem, path: str, count: int) -> None:
    with Stream(path, options=StreamOptions(partition_count=count), fs=fs) as stream:
        for partition in range(count):
            stream.steps.accept_encoded(partition, _RECORD)
    _commit(fs, path, "group", count)


# In go-diskq's format: the key's size, the key, the time, the value's size, the value.
_RECORD = b"\x01\0\0\0k" + (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"v"


def _commit(fs: FileSystem, path: str, name: str, partitions: int) -> None:
    group = ConsumerGroup(fs, StreamFiles(fs, path), name)
    for partition in range(partitions):
        claim = group.claim(partition)
        assert claim is not None
        with group.committed_offset(partition) as committed:
            committed.commit(0)
        claim.release()


def _journal_segments(fs: FileSystem, path: str, count: int) -> None:
    with Journal(path, options=JournalOptions(segment_size=1), fs=fs) as journal:
        for number in range(count):
            journal.append(b"%d" % number)


def _readers(fs: FileSystem, path: str, count: int) -> None:
    _journal_segments(fs, path, 1)
    for number in range(count):
        JournalCommittedOffset(path, f"reader{number}", fs=fs).close()


def _priority_queues(fs: FileSystem, path: str, count: int) -> None:
    with PriorityStore(path, options=PriorityOptions(preallocate=False), fs=fs) as store:
        for number in range(count):
            store.put(store.create_queue(f"queue{number}"), b"x")


def _priority_segments(fs: FileSystem, path: str, count: int) -> None:
    with PriorityStore(path, options=_PRIORITY, fs=fs, takes_snapshots=False) as store:
        for _ in range(count):
            store.put(store.queue(), b"x" * 1024)


def _dead_letters(fs: FileSystem, path: str, count: int) -> None:
    with Queue(path, SPOOL, fs=fs) as queue:
        queue.put(b"x")
    fs.close(fs.open(SpoolFiles(path).state, write=True, create=True))
    with DeadLetters(path, fs=fs) as letters:
        letters._add(DeadLetter(f"0:{number}", "no reason", number, 1, b"x") for number in range(count))


MAKERS = MappingProxyType[str, Callable[[FileSystem, str, int], None]](
    {
        "files of a queue": _queue_files,
        "partitions": _partitions,
        "segments of a stream": _stream_segments,
        "groups": _groups,
        "partitions of a group": _group_of_partitions,
        "segments of a journal": _journal_segments,
        "readers of a journal": _readers,
        "priority queues": _priority_queues,
        "segments of a priority store": _priority_segments,
        "dead letters": _dead_letters,
    }
)
"""By what there is much of: a function that makes the store in the directory, with that number of them."""


def open_store(fs: FileSystem, path: str, kind: str) -> None:
    """Open the store and close it. `kind` as in `diskq.tools.stores`."""
    if kind in ("queue", "spool"):
        Queue(path, NAME if kind == "queue" else SPOOL, fs=fs).close()
    elif kind == "stream":
        Stream(path, fs=fs).close()
    elif kind == "journal":
        Journal(path, fs=fs).close()
    else:
        PriorityStore(path, options=_PRIORITY, fs=fs, takes_snapshots=False).close()
