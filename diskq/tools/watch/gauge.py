# Gauges, which sample a store repeatedly. Law: looking takes no lock, changes nothing, and keeps no file open
# between samples, so that removing a file frees its space. A sample costs a few system calls for each file
# that grows, and none for the content of the others.

from __future__ import annotations

from typing import Protocol

from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.tools.redo_logs import RedoLogs
from diskq.tools.stores import Store
from diskq.tools.watch.logs import JournalGauge, StreamGauge
from diskq.tools.watch.priority import StoreGauge
from diskq.tools.watch.queue import QueueGauge, SpoolGauge
from diskq.tools.watch.samples import Sample

__all__ = ["Gauge", "gauge_of"]


class Gauge(Protocol):
    """A store that is sampled. For one thread at a time."""

    store: Store

    def sample(self) -> Sample:
        """Return the store as it is now, or was a moment ago. Raises OSError, DiskqError."""


def gauge_of(store: Store, *, fs: FileSystem | None = None) -> Gauge:
    """Return the gauge of `store`. Raises UnsupportedFormatError for a redo log's format; OSError."""
    disk = RedoLogs(fs or OsFileSystem(), store).fs
    match store.kind:
        case "queue":
            return QueueGauge(disk, store, store.name)
        case "spool":
            return SpoolGauge(disk, store)
        case "stream":
            return StreamGauge(disk, store)
        case "journal":
            return JournalGauge(disk, store)
        case "jobs":
            return StoreGauge(disk, store)
