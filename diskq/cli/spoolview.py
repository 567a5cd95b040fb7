# A spool as its files show it. Law: look, and touch nothing: no lock is taken, no file is changed,
# whoever has it open does not notice.
#
# While a process has it, what that process says of itself is what counts; when nobody has it, what is in
# its queues.

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from diskq.cli.directories import check_directory
from diskq.cli.parsing import CommandError
from diskq.cli.queueview import look, queue_names
from diskq.engine.spoolfiles import DEAD, SPOOL, SpoolFiles, SpoolStatus, read_state
from diskq.storage.fs import OsFileSystem
from diskq.storage.lock import Holder

__all__ = ["SpoolView", "check_spool", "look_at_spool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolView:
    status: SpoolStatus
    """What it said of itself last; where no spool is at work on it, with the numbers of its queues."""
    is_exact: bool
    """Is the depth right? It is not where a process was killed, until the next open."""
    is_open: bool | None
    """Does a process have it? None: it cannot be told from here."""
    is_at_work: bool
    """Does that process deliver?"""
    holder: Holder | None
    """Who has it, or had it last."""


def check_spool(path: str, advice: str = "") -> None:
    """Raises CommandError unless there is a spool in the directory `path`."""
    check_directory(path, advice)
    if SPOOL not in queue_names(path) and read_state(OsFileSystem(), SpoolFiles(path)) is None:
        raise CommandError(f"{path}: there is no spool here{advice}")


def look_at_spool(path: str) -> SpoolView:
    """The spool as it is now, or was a moment ago. Raises CommandError where there is none, OSError."""
    check_spool(path)
    state = read_state(OsFileSystem(), SpoolFiles(path))
    queue = look(path, SPOOL)
    is_at_work = queue.is_open is not False and state is not None and state.is_open
    status = state.status if state is not None else SpoolStatus()
    if not is_at_work:
        dead = look(path, DEAD).depth if DEAD in queue_names(path) else 0
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
    )
