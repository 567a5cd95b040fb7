# Verifies a store of any kind. Law: look at every byte that matters, change nothing and take no lock; report
# nothing that a running process writes or removes at this moment, and everything else.

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from diskq.storage.callbacks import check_plain
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.tools.findings import Progress, Verification
from diskq.tools.report import Report
from diskq.tools.stores import Kind, Store
from diskq.tools.verify.journal import verify_journal
from diskq.tools.verify.priority import verify_priority
from diskq.tools.verify.queue import verify_queue
from diskq.tools.verify.spool import verify_spool
from diskq.tools.verify.stream import verify_stream

__all__ = ["verify"]

_LOOKS = MappingProxyType[Kind, Callable[[FileSystem, Store, Report], None]](
    {
        "queue": verify_queue,
        "spool": verify_spool,
        "stream": verify_stream,
        "journal": verify_journal,
        "jobs": verify_priority,
    }
)


def verify(store: Store, *, fs: FileSystem | None = None, progress: Progress | None = None) -> Verification:
    """Verify all of a store: checksums, every record, and whether its files agree with each other.

    It may be in use meanwhile. `progress` is called with the bytes that were looked at. Damage is reported,
    never raised. Raises OSError if the store cannot be read, and QueueMovedError if a queue is emptied faster
    than it is read.
    """
    report = Report(None if progress is None else check_plain("progress", progress))
    _LOOKS[store.kind](fs or OsFileSystem(), store, report)
    return Verification(
        store=store,
        messages=report.messages,
        size=report.size,
        checksummed=report.checksummed,
        findings=tuple(report.findings),
    )
