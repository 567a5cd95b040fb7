# What is logged. Law: each event has one name and one level, which are here; whoever logs tells what
# happened, and the facts beside it, so that nobody has to take them out of a sentence. Text of others, as a
# destination's error is, is in a record as one line without control characters.
#
# The loggers are below `diskq`, one for each subject. Nothing is set up: where a program sets up no logging,
# Python writes warnings and errors to standard error, and that somebody's message was lost is worth a line.

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Literal

from diskq.storage.one_line import one_line, traceback_lines
from diskq.storage.repairs import Repair

__all__ = ["EVENTS", "FACTS", "Log", "Subject", "nothing_logged"]

Subject = Literal[
    "queue", "stream", "journal", "priority", "offsets", "reading", "spool", "threads", "hub", "metrics"
]

EVENTS: Mapping[str, tuple[int, str]] = {
    # Promises that do not hold until someone acts.
    "broken": (logging.ERROR, "A disk failed: it must be opened again."),
    "close_failed": (logging.ERROR, "The last sync failed, or files could not be closed."),
    "messages_lost": (logging.ERROR, "Messages in memory could not be written before the end."),
    "delivery_ended": (logging.ERROR, "Delivering raised what is not to be tried again."),
    "hub_disk_failed": (logging.ERROR, "A hub could not write, or read, a journal."),
    "hub_failed": (logging.ERROR, "A fault of diskq; the request was refused."),
    # Something is not as it should be; it is dealt with.
    "repair": (logging.WARNING, "Files were damaged and have been repaired; what was cut is kept aside."),
    "gap": (logging.WARNING, "A reader passed over bytes that are damaged."),
    "disk_full": (logging.WARNING, "No free space: it is kept, and tried again."),
    "removal_failed": (logging.WARNING, "Old segments could not be removed; that is tried again."),
    "unguarded": (
        logging.WARNING,
        "A committed offset is written, and its shadow copy is not: rot would not be noticed.",
    ),
    "no_snapshot": (logging.WARNING, "A snapshot could not be written; the log stays."),
    "receive_failed": (logging.WARNING, "A receiver failed while another had a message."),
    "delivery_failed": (logging.WARNING, "A try failed; once for each kind of failure in a row."),
    "dead_letters": (logging.WARNING, "Messages became dead letters."),
    "copy_failed": (logging.WARNING, "A hub could not be reached; once for each kind of failure in a row."),
    "request_late": (logging.WARNING, "A request to a hub did not come in, and was ended."),
    "tokens_readable": (logging.WARNING, "Every user of the machine may read a file of tokens."),
    "lag_unknown": (logging.WARNING, "A scrape could not look at a reader's files."),
    "unreadable": (logging.WARNING, "A scrape left out what could not be asked for its numbers."),
    # As it should be, and worth knowing.
    "delivery_resumed": (logging.INFO, "Delivering works again."),
    "copy_resumed": (logging.INFO, "The hub is there again."),
    "hub_listens": (logging.INFO, "A hub takes requests."),
    "request_refused": (logging.INFO, "A hub refused a request; the client caused it."),
}
"""By name: the level, and what it means."""

FACTS: Mapping[str, str] = {
    "event": "Its name.",
    "path": "The file, directory, or what is open.",
    "error": "What the failure says, in one line.",
    "offset": "A message's offset, or in a queue's file the byte.",
    "count": "How many messages.",
    "dropped_bytes": "How many are not delivered, from `offset` on.",
    "saved_as": "Where the dropped bytes are.",
    "reason": "Why, in words.",
    "failures": "How many there were in a row.",
    "peer": "The client of a hub.",
    "code": "gRPC's status.",
}
"""What may stand beside an event: an attribute of the record, with `diskq_` before its name."""


_is_silent = ContextVar("_is_silent", default=False)


@contextlib.contextmanager
def nothing_logged() -> Iterator[None]:
    """What is done in this block is only tried out, in memory: nothing of it happens to anybody's files."""
    before = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(before)


def _safe(given: object) -> object:
    """A number as it is, anything else as one line of text."""
    return given if isinstance(given, int | float) else one_line(given)


def _with_safe_traceback(record: logging.LogRecord) -> bool:
    """Formatters take a record's `exc_text` where it has one."""
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = traceback_lines(record.exc_info[1])
    return True


class Log:
    """Tells of one subject: the logger `diskq.SUBJECT`."""

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
        """Log that it happened, at its level. Facts that are None are left out."""
        level, _ = EVENTS[event]
        if self._logger.isEnabledFor(level) and not _is_silent.get():
            extra = {f"diskq_{name}": _safe(fact) for name, fact in facts.items() if fact is not None}
            extra["diskq_event"] = event
            safe = map(_safe, args)
            self._logger.log(level, message, *safe, exc_info=exc_info, extra=extra, stacklevel=2)

    def report_repairs(
        self, repairs: Sequence[Repair], start: int = 0, *, reported: Sequence[Repair] = ()
    ) -> int:
        """Log those from number `start` on that were not `reported` before; returns how many there are.

        An open tells before its first barrier what it has found. If it is killed, the next one finds all
        in order, and has nothing to tell.
        """
        for repair in repairs[start:]:
            if repair not in reported:
                self.report_repair(repair)
        return len(repairs)

    def report_repair(self, repair: Repair) -> None:
        """Log what was found wrong, and mended."""
        self.report(
            "repair",
            "%s",
            repair,
            path=repair.path,
            offset=repair.kept,
            dropped_bytes=repair.dropped,
            count=repair.records,
            saved_as=repair.saved_as,
            reason=repair.reason,
        )
