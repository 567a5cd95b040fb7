# What is logged. Law: each event has one name and one level, which are here; a record has the facts as
# attributes, so that no program has to parse them out of a sentence. Text from outside, such as a
# destination's error, is in a record as one line without control characters.
#
# The loggers are below `diskq`, one for each subject. diskq configures no logging: if the program does not
# either, Python writes warnings and errors to standard error, and a lost message is worth a line there.

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Literal

from diskq.storage.one_line import one_line, traceback_lines
from diskq.storage.repairs import Repair

__all__ = ["EVENTS", "FACTS", "Log", "Subject", "held_back", "logged_aside", "nothing_logged"]

Subject = Literal[
    "queue", "stream", "journal", "priority", "offsets", "reading", "spool", "threads", "hub", "metrics"
]

EVENTS: Mapping[str, tuple[int, str]] = {
    # Promises that do not hold until the user acts.
    "broken": (logging.ERROR, "A disk failed: it must be opened again."),
    "close_failed": (logging.ERROR, "The last sync failed, or files could not be closed."),
    "messages_lost": (logging.ERROR, "Messages in memory could not be written before the end."),
    "delivery_ended": (logging.ERROR, "Delivering raised an error that is not retried."),
    "hub_disk_failed": (logging.ERROR, "A hub could not write or read a journal."),
    "hub_failed": (logging.ERROR, "A bug in diskq; the request was refused."),
    # Problems that diskq handles.
    "repair": (logging.WARNING, "Files were damaged and have been repaired; cut bytes are kept aside."),
    "gap": (logging.WARNING, "A reader skipped damaged bytes."),
    "disk_full": (logging.WARNING, "No free space: the data is kept, and the write is retried."),
    "removal_failed": (logging.WARNING, "Old segments could not be removed; the removal is retried."),
    "future_timestamp": (
        logging.WARNING,
        "A message is stamped in the future: retention goes by when its segment was written.",
    ),
    "unguarded": (
        logging.WARNING,
        "A committed offset is written without its shadow copy: bit rot would not be noticed.",
    ),
    "share_kept": (
        logging.WARNING,
        "A member of a group waits for partitions that another one does not give up.",
    ),
    "no_redo_log": (
        logging.WARNING,
        "The redo log could not be made: `synced` messages are synced to files.",
    ),
    "no_snapshot": (logging.WARNING, "A snapshot could not be written; the log stays."),
    "receive_failed": (logging.WARNING, "A receiver failed while another had a message."),
    "delivery_failed": (logging.WARNING, "An attempt failed; once for each kind of failure in a row."),
    "dead_letters": (logging.WARNING, "Messages became dead letters."),
    "copy_failed": (
        logging.WARNING,
        "A hub could not be reached; once for each kind of failure in a row.",
    ),
    "request_late": (logging.WARNING, "A request to a hub did not arrive in time, and was ended."),
    "tokens_readable": (logging.WARNING, "Every user of the machine may read a file of tokens."),
    "lag_unknown": (logging.WARNING, "A scrape could not read a reader's files."),
    "unreadable": (logging.WARNING, "A scrape left out an object that could not be read."),
    # Normal operation, worth knowing.
    "delivery_resumed": (logging.INFO, "Delivery works again."),
    "copy_resumed": (logging.INFO, "The hub can be reached again."),
    "hub_listens": (logging.INFO, "A hub accepts requests."),
    "request_refused": (logging.INFO, "A hub refused a request; the client caused it."),
}
"""By name: the level and the meaning of the event."""

FACTS: Mapping[str, str] = {
    "event": "Its name.",
    "path": "The file, directory or store.",
    "error": "The error message, in one line.",
    "offset": "A message's offset, or the byte in a queue's file.",
    "count": "The number of messages.",
    "kind": "What a repair is about: the value of a `RepairKind`.",
    "dropped_bytes": "The number of bytes not delivered, from `offset` on.",
    "saved_as": "The file with the dropped bytes.",
    "reason": "The reason, in words.",
    "failures": "The number of failures in a row.",
    "peer": "The client of a hub.",
    "code": "The gRPC status.",
}
"""The facts of an event: attributes of the record, each with `diskq_` before its name."""


_is_silent = ContextVar("_is_silent", default=False)


@contextlib.contextmanager
def nothing_logged() -> Iterator[None]:
    """Log nothing in a `with` block: what happens in it is a trial run in memory and changes no file."""
    before = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(before)


class _OfThread(threading.local):
    # Not of a context: what is begun meanwhile, such as a task, outlives the call.
    is_aside = False
    held_back: list[tuple[logging.Logger, logging.LogRecord]] | None = None


_here = _OfThread()


@contextlib.contextmanager
def logged_aside() -> Iterator[None]:
    """Write what is logged in a `with` block to standard error alone, as Python does without a handler.

    For a handler of logging that puts into a store, and for the time in which other handlers have a record:
    what is logged about the store must not come back to the handler, and again, without end.
    """
    before, _here.is_aside = _here.is_aside, True
    try:
        yield
    finally:
        _here.is_aside = before


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Log what is logged in a `with` block when it is left.

    For a block in which a lock is held: a handler may wait for another thread, which waits for that lock.
    """
    records: list[tuple[logging.Logger, logging.LogRecord]] = []
    before, _here.held_back = _here.held_back, records
    try:
        yield
    finally:
        _here.held_back = before
        for logger, record in records:
            _hand_out(logger, record)


def _hand_out(logger: logging.Logger, record: logging.LogRecord) -> None:
    if not _here.is_aside:
        with logged_aside():
            logger.handle(record)
        return
    last = logging.lastResort
    if last is not None and record.levelno >= last.level and not logger.disabled and logger.filter(record):
        last.handle(record)


def _safe(given: object) -> object:
    """Return a number as it is, anything else as one line of text."""
    return given if isinstance(given, int | float) else one_line(given)


def _with_safe_traceback(record: logging.LogRecord) -> bool:
    """Set the record's `exc_text`, which formatters use instead of formatting the traceback themselves."""
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = traceback_lines(record.exc_info[1])
    return True


class Log:
    """Logs the events of one subject, to the logger `diskq.SUBJECT`."""

    def __init__(self, subject: Subject) -> None:
        self._logger = logging.getLogger(f"diskq.{subject}")
        self._logger.addFilter(_with_safe_traceback)

    def report(
        self,
        event: str,
        message: str,
        *args: object,
        exc_info: BaseException | None = None,
        **facts: object,
    ) -> None:
        """Log the event at its level. Facts that are None are left out."""
        level, _ = EVENTS[event]
        if self._logger.isEnabledFor(level) and not _is_silent.get():
            extra = {f"diskq_{name}": _safe(fact) for name, fact in facts.items() if fact is not None}
            extra["diskq_event"] = event
            safe = tuple(map(_safe, args))
            path, line, function, _ = self._logger.findCaller(stacklevel=2)
            raised = None if exc_info is None else (type(exc_info), exc_info, exc_info.__traceback__)
            record = self._logger.makeRecord(
                self._logger.name, level, path, line, message, safe, raised, function, extra
            )
            if (records := _here.held_back) is None:
                _hand_out(self._logger, record)
            else:
                records.append((self._logger, record))

    def report_repairs(
        self, repairs: Sequence[Repair], start: int = 0, *, reported: Sequence[Repair] = ()
    ) -> int:
        """Log the repairs from number `start` on, but for those in `reported`. Returns `len(repairs)`.

        An open logs its repairs before its first barrier. If it is killed, the next one finds the files in
        order, and has nothing to log.
        """
        for repair in repairs[start:]:
            if repair not in reported:
                self.report_repair(repair)
        return len(repairs)

    def report_repair(self, repair: Repair) -> None:
        """Log one repair."""
        self.report(
            "repair",
            "%s",
            repair,
            path=repair.path,
            kind=repair.kind.value,
            offset=repair.kept,
            dropped_bytes=repair.dropped,
            count=repair.records,
            saved_as=repair.saved_as,
            reason=repair.reason,
        )
