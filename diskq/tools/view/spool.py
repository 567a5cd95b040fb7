# A spool as its files show it. Law: no lock is taken and no file is changed; a process that has the spool
# open does not notice.
#
# While a process has it open, the numbers come from that process's status file; otherwise from its queues.

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from diskq.engine.spool.files import DEAD, SPOOL, SpoolFiles, SpoolStatus, read_state
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.lock import Holder
from diskq.storage.slots import slots_in
from diskq.tools.view.queue import QueueView, look, queue_names

__all__ = ["SpoolView", "is_spool", "look_at_spool", "slots_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolView:
    status: SpoolStatus
    """Its last status; if no spool is at work on it, with the numbers of its queues."""
    is_exact: bool
    """True if the depth is right, as that of its queue is."""
    is_open: bool | None
    """True if a process has it open; None: not known from here."""
    is_at_work: bool
    """True if that process delivers."""
    holder: Holder | None
    """The process that has it open, or had it last."""
    queue: QueueView
    """The pending messages, as its queue shows them."""


def is_spool(path: str) -> bool:
    """True if there is a spool in the directory `path`. Raises OSError."""
    return SPOOL in queue_names(path) or read_state(OsFileSystem(), SpoolFiles(path)) is not None


def slots_of(path: str, *, fs: FileSystem | None = None) -> list[str]:
    """Return the spools in the slots below `path`, unless there is one in it. Raises OSError."""
    slots = slots_in(fs or OsFileSystem(), path)
    return [] if not slots or is_spool(path) else [slot for slot in slots if is_spool(slot)]


def look_at_spool(path: str, *, fs: FileSystem | None = None, opens: bool = True) -> SpoolView:
    """Return the spool as it is now, or was a moment ago. `opens` and errors as `look`."""
    disk = fs or OsFileSystem()
    state = read_state(disk, SpoolFiles(path))
    queue = look(path, SPOOL, fs=disk, opens=opens)
    is_at_work = queue.is_open is not False and state is not None and state.is_open
    status = state.status if state is not None else SpoolStatus()
    if not is_at_work:
        dead = look(path, DEAD, fs=disk, opens=opens).depth if DEAD in queue_names(path, fs=disk) else 0
        status = dataclasses.replace(
            status,
            depth=queue.depth or 0,
            bytes=queue.bytes,
            dead_letters=dead or 0,
            is_paused=False,
            next_try_at=None,
            arrival_rate=0.0,
            delivery_rate=0.0,
        )
    return SpoolView(
        status=status,
        is_exact=is_at_work or queue.is_exact,
        is_open=queue.is_open,
        is_at_work=is_at_work,
        holder=queue.holder,
        queue=queue,
    )
