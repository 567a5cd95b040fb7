# Verifies a spool. Law: its messages are in its queues; its own files may be lost, and then some messages are
# delivered again.

from __future__ import annotations

from functools import partial

from diskq.engine.layouts import queue_names
from diskq.engine.queue.files import QueueFiles
from diskq.engine.spool.files import DEAD, SPOOL, SpoolFiles, read_note, read_state
from diskq.storage.fs import FileSystem
from diskq.storage.repairs import RepairKind
from diskq.tools.report import Report, report_leftovers, settled
from diskq.tools.stores import Store
from diskq.tools.verify.queue import verify_queue

__all__ = ["verify_spool"]


def verify_spool(fs: FileSystem, store: Store, report: Report) -> None:
    """Verify the store. Raises QueueMovedError, OSError."""
    names = queue_names(fs, store.path)
    for name in (SPOOL, DEAD):
        if name in names:
            verify_queue(fs, Store("queue", store.path, name), report)
    report.take(settled(partial(_look_at_notes, fs, SpoolFiles(store.path)), None))


def _look_at_notes(fs: FileSystem, files: SpoolFiles, report: Report) -> None:
    if fs.size_of(files.state) is not None and read_state(fs, files) is None:
        what = "no spool wrote this state: the first messages may be delivered again"
        report.damage(RepairKind.REBUILT, files.state, 0, what)
    # It is written in place, without a sync.
    if fs.size_of(files.note) and read_note(fs, files) is None:
        what = "no spool wrote this note: the first messages may be delivered again"
        report.torn(RepairKind.REBUILT, files.note, 0, what)
    report_leftovers(fs, files.leftovers(fs), QueueFiles(fs, files.path, SPOOL).lock, report)
