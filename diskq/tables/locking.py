# The right to change a table. Law: only the holder of the lock writes, renames and removes; and what a killed
# holder left half written goes before anything else is done.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diskq.errors import DiskFullError
from diskq.storage.barrier import Barrier, keep_path
from diskq.storage.directories import make_directories
from diskq.storage.fs import FULL_DISK_ERRNOS
from diskq.storage.lock import Lock
from diskq.tables.state import TableState

__all__ = ["full_disk_reported", "locked"]


@contextmanager
def full_disk_reported(table: TableState) -> Iterator[None]:
    """Raise DiskFullError for an OSError of a full disk: not for those of a caller's own files."""
    try:
        yield
    except OSError as failure:
        table.is_kept = False
        if failure.errno not in FULL_DISK_ERRNOS:
            raise
        raise DiskFullError(table.names.directory, f"the disk is full ({failure})") from failure


@contextmanager
def locked(table: TableState) -> Iterator[None]:
    """Hold the table's lock for a `with` block. Raises LockedError, OSError."""
    fs, names = table.fs, table.names
    if table.remote is not None:
        with table.remote.locked(names.private, names.directory):
            yield
        return
    with full_disk_reported(table):
        make_directories(fs, names.private)
        lock = Lock(fs, names.lock, names.directory)
    try:
        with full_disk_reported(table):
            lock.sign(can_wait=True)
            Barrier(removals=tuple(names.leftovers())).execute(fs)
            if not table.is_kept:
                # A killed process may have left names that are not durable; retention relies on them.
                keep_path(fs, names.lock)
                directories = tuple(names.partition(index) for index in names.partitions())
                Barrier(directories=directories).execute(fs)
                table.is_kept = True
        yield
    finally:
        lock.release()
