# Repairs a spool. Law: its messages are in its queues, which are repaired like others; its own notes may be
# lost, and then some messages are delivered again.

from __future__ import annotations

import errno

from diskq.engine.layouts import queue_names
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.engine.spool.files import DEAD, SPOOL, SpoolFiles, SpoolStatus, read_note, read_state
from diskq.storage.fs import FileSystem
from diskq.storage.repairs import Repair, RepairKind, keep_copy
from diskq.tools.repair.queue import repair_queue

__all__ = ["repair_spool"]


def repair_spool(fs: FileSystem, path: str, *, is_dry: bool) -> list[Repair]:
    """Repair the spool in `fs`; with `is_dry` only as an open does, and the rest is reported.

    Raises LockedError, DiskqError, OSError.
    """
    there = queue_names(fs, path)
    repairs = [
        each
        for name in (SPOOL, DEAD)
        if name in there
        for each in repair_queue(fs, path, name, is_dry=is_dry)
    ]
    return repairs + _repair_notes(fs, path)


def _repair_notes(fs: FileSystem, path: str) -> list[Repair]:
    files = SpoolFiles(path)
    wrong = []
    if fs.size_of(files.state) is not None and read_state(fs, files) is None:
        wrong.append(files.state)
    if fs.size_of(files.note) and read_note(fs, files) is None:
        wrong.append(files.note)
    if not wrong:
        return []
    repairs = []
    with Queue(path, SPOOL, fs=fs) as queue:
        for each in wrong:
            size = fs.size_of(each) or 0
            handle = fs.open(each)
            try:
                aside = keep_copy(fs, handle, each)
            finally:
                fs.close(handle)
            reason = "no spool wrote it: the first messages may be delivered again"
            repairs.append(
                Repair(
                    path=each, kind=RepairKind.REBUILT, kept=0, dropped=size, reason=reason, saved_as=aside
                )
            )
        # An open begins a file anew that it cannot read.
        with DeliveryCursor(fs, path, queue.steps) as box:
            if not box.barrier(box.found or SpoolStatus(), is_open=False).execute(fs):
                raise OSError(errno.ENOSPC, "no space for the state of the spool", files.state)
    return repairs
