# Puts everything that diskq keeps beside a peer's files into those files. Law: it does what an open and a
# close do, and no more; a store that was closed is not touched.
#
# After a crash messages may be in the write-ahead log or in the redo log, and the marks of a producer may be
# left. A peer does not know these files: so a checkpoint comes before its program is started.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diskq._native.queue.codec import MAX_BODY
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.journal import Journal
from diskq.engine.layouts import queue_names
from diskq.engine.log.engine import LogEngine
from diskq.engine.log.recovery_points import read_points
from diskq.engine.priority.files import StoreFiles, StorePoint
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.files import QueueFiles
from diskq.engine.spool.files import DEAD, SPOOL
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.owner import owner_state
from diskq.engine.stream.stream import Stream
from diskq.options import JournalOptions, QueueOptions, StreamOptions
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.log.format import holds_nothing
from diskq.storage.repairs import Repair
from diskq.storage.state import read_state
from diskq.tools.redo_logs import found_in_redo_log, is_log_empty
from diskq.tools.stores import Store

__all__ = ["Checkpoint", "checkpoint", "queues_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint has done."""

    store: Store
    was_needed: bool
    """False if the store had been closed: all was in its files already."""
    restored: int = 0
    """Bytes of messages that were in the redo log alone, and are in the files now."""
    repairs: tuple[Repair, ...] = ()
    """What an open found wrong, and did about it."""


def checkpoint(store: Store, *, take_over: bool = False, fs: FileSystem | None = None) -> Checkpoint:
    """Put all messages of the store durably into its files, as an open and a close do.

    `take_over`: a stream's owner file was left by a go-diskq producer that does not run any more. Raises
    LockedError if a process has the store open: its own close does the same. Raises DiskFullError,
    DamagedStoreError and other DiskqErrors as an open does, and OSError.
    """
    disk = fs or OsFileSystem()
    if _was_closed(disk, store):
        return Checkpoint(store=store, was_needed=False)
    repairs: list[Repair] = []
    restored = 0
    for opened in _openings(disk, store, take_over):
        with opened as engine:
            repairs += engine.repairs
            restored += sum(its.size for its in found_in_redo_log(engine))
    return Checkpoint(store=store, was_needed=True, restored=restored, repairs=tuple(repairs))


def _openings(fs: FileSystem, store: Store, take_over: bool) -> Iterator[LogEngine]:
    """Open what the store consists of, one after the other."""
    if store.kind == "jobs":
        yield PriorityStore(store.path, fs=fs, takes_snapshots=False)
    elif store.kind == "stream":
        yield Stream(store.path, options=StreamOptions(sync_to="files"), fs=fs, take_over=take_over)
    elif store.kind == "journal":
        yield Journal(store.path, options=JournalOptions(sync_to="files"), fs=fs)
    else:
        for files in queues_of(fs, store):
            # Whatever the limits with which they were sent, messages may have to be appended again.
            options = QueueOptions(max_message_size=MAX_BODY, sync_to="files")
            yield Queue(files.directory, files.name, options=options, fs=fs)


def queues_of(fs: FileSystem, store: Store) -> list[QueueFiles]:
    """Return the files of the queue, or of both queues of a spool. Raises OSError."""
    names = [store.name]
    if store.kind == "spool":
        there = queue_names(fs, store.path)
        names = [name for name in (SPOOL, DEAD) if name in there]
    return [QueueFiles(fs, store.path, name) for name in names]


# --- what is left of an open ------------------------------------------------------------------------------


def _was_closed(fs: FileSystem, store: Store) -> bool:
    """True if everything is in the store's files: a diskq process has closed it, or none ever had it."""
    if store.kind == "jobs":
        jobs = StoreFiles.existing(fs, store.path)
        point = StorePoint.read(fs, jobs)
        return fs.size_of(jobs.point) is None or (point is not None and point.closed is not None)
    if store.kind == "stream":
        stream = StreamFiles(fs, store.path)
        is_left = owner_state(fs, stream) == "ours" or fs.size_of(stream.intent) is not None
        return read_points(fs, stream).is_closed and not is_left and is_log_empty(fs, stream)
    if store.kind == "journal":
        journal = JournalFiles(fs, store.path)
        return read_points(fs, journal).is_closed and is_log_empty(fs, journal)
    return all(_was_queue_closed(fs, files) for files in queues_of(fs, store))


def _was_queue_closed(fs: FileSystem, files: QueueFiles) -> bool:
    left = read_state(fs, files)
    is_left = left is not None and not left.is_closed
    return not is_left and holds_nothing(fs, files.wal) and is_log_empty(fs, files)
