# The right to change a table. Law: only the holder of the lock writes, renames and removes; and what a killed
# holder left half written goes before anything else is done.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diskq.storage.barrier import Barrier, keep_path
from diskq.storage.directories import make_directories
from diskq.storage.lock import Lock
from diskq.tables.state import TableState

__all__ = ["locked"]


@contextmanager
def locked(table: TableState) -> Iterator[None]:
    """Hold the table's lock for a `with` block. Raises LockedError, OSError."""
    fs, names = table.fs, table.names
    make_directories(fs, names.private)
    lock = Lock(fs, names.lock, names.directory)
    try:
        lock.sign(can_wait=True)
        Barrier(removals=tuple(names.leftovers())).execute(fs)
        if not table.is_kept:
            # A process that was killed may have made names that are not durable; retention relies on them.
            keep_path(fs, names.lock)
            directories = tuple(names.partition(index) for index in names.partitions())
            Barrier(directories=directories).execute(fs)
            table.is_kept = True
        yield
    finally:
        lock.release()
