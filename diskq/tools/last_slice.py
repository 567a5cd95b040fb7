# The last time slice of a writer that was killed: messages that are in its write-ahead log alone, until the
# next open writes them into the files. Law: nothing is changed. Readers of streams and journals leave them
# out, as their owner may live; a tool that copies a store must not.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diskq.engine.journal.files import JournalFiles
from diskq.engine.stream.files import StreamFiles
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.lock import may_be_open
from diskq.storage.log.format import holds_records
from diskq.storage.log_events import nothing_logged
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import Repair
from diskq.tools.checkpoint import checkpoint, queues_of
from diskq.tools.holders import writer_of
from diskq.tools.redo_logs import RedoLogs
from diskq.tools.stores import Store

__all__ = ["has_last_slice", "with_last_slice"]


def has_last_slice(store: Store, *, fs: FileSystem | None = None) -> bool:
    """True if messages wait in a write-ahead log of the store, and nobody has it open. Raises OSError."""
    fs = fs or OsFileSystem()
    if store.kind == "jobs":
        return False  # it has none
    if store.kind == "stream":
        stream = StreamFiles(fs, store.path)
        wals = [stream.partition(index).wal for index in stream.partitions()]
        is_open = writer_of(fs, stream) is not None
    elif store.kind == "journal":
        journal = JournalFiles(fs, store.path)
        wals, is_open = [journal.wal], may_be_open(fs, journal.lock)
    else:
        queues = queues_of(fs, store)
        wals, is_open = [its.wal for its in queues], any(may_be_open(fs, its.lock) for its in queues)
    return not is_open and any(holds_records(fs, wal) for wal in wals)


@contextmanager
def with_last_slice(fs: FileSystem, store: Store) -> Iterator[tuple[FileSystem, tuple[Repair, ...]]]:
    """Give the files of a store with that slice, and the repairs of the open that has written it.

    They are as a checkpoint leaves them, in memory; without such a slice they are what is there. Raises as
    `checkpoint`.
    """
    if not has_last_slice(store, fs=fs):
        yield RedoLogs(fs, store).fs, ()
        return
    with OverlayFS(fs) as overlay:
        with nothing_logged():
            made = checkpoint(store, fs=overlay)
        yield overlay, made.repairs
