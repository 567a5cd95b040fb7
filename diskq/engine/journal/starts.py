# Where reading a journal may begin. Law: a place that is cut or removed meanwhile is looked up again.
# Synchronous.

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Literal

from diskq._native.core.gate import Gate
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.time_lookup import JournalTimes
from diskq.engine.log.start import checked_start
from diskq.engine.log.timestamps import as_timestamp
from diskq.errors import OffsetOutOfRangeError
from diskq.storage.fs import AnyPath, FileSystem

__all__ = ["JournalStart", "checked_journal_start", "open_reader", "seek_start"]

JournalStart = Literal["oldest", "newest"] | int | datetime

_WORDS = ("oldest", "newest")
# How often a place is looked up if another program cuts or removes it meanwhile.
_TRIES = 3


def checked_journal_start(start: JournalStart) -> JournalStart:
    """Return `start`; raises TypeError, or ValueError: unknown word, negative offset, naive datetime."""
    checked_start(start, _WORDS)
    return start


def open_reader(
    path: AnyPath,
    fs: FileSystem,
    time_slice: float,
    *,
    gate: Gate | None = None,
    number: int = 0,
) -> JournalReader:
    """Return a reader at offset 0, whose fast path is closed periodically; with `gate`, together with others.

    `number` is the partition that its messages get.
    """
    return JournalReader(path, fs=fs, gate=Gate(time_slice) if gate is None else gate, partition=number)


def seek_start(reader: JournalReader, start: JournalStart) -> None:
    """Move to `start`: "newest" is after the last message, a moment is the first message not before it.

    Raises OffsetOutOfRangeError if the offset does not exist, NotFoundError, OSError.
    """
    if start == "oldest":
        reader.seek_oldest()
    elif start == "newest":
        _seek_end(reader)
    elif isinstance(start, datetime):
        _seek_moment(reader, as_timestamp(start))
    else:
        reader.seek(start)


def _seek_end(reader: JournalReader) -> None:
    for attempt in itertools.count(1):
        try:
            return reader.seek(reader.next_offset())
        except OffsetOutOfRangeError:
            if attempt == _TRIES:
                raise


def _seek_moment(reader: JournalReader, timestamp: int) -> None:
    for attempt in itertools.count(1):
        with JournalTimes(reader.path, fs=reader.fs) as times:
            offset = times.offset_at_or_after(timestamp)
        if offset is None:
            return _seek_end(reader)
        try:
            return reader.seek(offset)
        except OffsetOutOfRangeError:
            if attempt == _TRIES:  # segments are removed faster than they can be searched
                raise
