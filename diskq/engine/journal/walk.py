# Walking through a segment of a journal by its framing. Law: whole records are followed from one to the next;
# after a break the next record is searched for, and only a confirmed one is taken (`sej.resume`).

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq._native.journal import codec as journal_codec
from diskq.storage.fs import FileSystem

__all__ = ["Break", "Walk", "find_next", "records_in", "walk"]

_WINDOW = 1024 * 1024
_FIRST_LOOK = 4 * 1024 * 1024


class Break(NamedTuple):
    """Bytes start:end hold no records that can be read; `records` are missing, from `offset` on."""

    start: int
    end: int
    offset: int
    records: int
    reason: str


class RecordStretch(NamedTuple):
    """Bytes start:end hold `records` whole records, the first of which is message `offset`."""

    start: int
    end: int
    offset: int
    records: int


@dataclass(slots=True)
class Walk:
    """The result of a walk from a record boundary to the end of the bytes."""

    end: int
    """The byte after the last whole record."""
    next_offset: int
    """The offset after the last whole record."""
    stop: str = "END"
    """Why the walk stopped: END, TORN or CORRUPT."""
    reason: str = ""
    """The same in words."""
    breaks: list[Break] = field(default_factory=list)
    stretches: list[RecordStretch] = field(default_factory=list)


def records_in(
    fs: FileSystem, handle: int, start: int, end: int, offset: int
) -> tuple[RecordStretch, str, str]:
    """Return the whole consecutive records from byte `start` on, why they stop, and that in words."""
    position, records = start, 0
    size = _WINDOW
    while position < end:
        window = fs.pread(handle, min(size, end - position), position)
        found = journal_codec.count(window, offset + records)
        position += found.valid_end
        records += found.records
        if found.stop == "CORRUPT" or (
            found.stop == "TORN" and position + len(window) - found.valid_end >= end
        ):
            left = end - position
            reason = (
                f"a record begins, and {left} bytes are left"
                if found.stop == "TORN"
                else "bytes of no record"
            )
            return RecordStretch(start, position, offset, records), found.stop, reason
        if not window:
            break  # another program cut the file
        size = _WINDOW if found.records else 2 * size
    return RecordStretch(start, position, offset, records), "END", ""


def find_next(
    fs: FileSystem,
    handle: int,
    position: int,
    end: int,
    expected: int,
    next_offset: int | None,
    *,
    may_be_torn: bool = False,
) -> tuple[int, int] | None:
    """Return the byte and the offset of the first record after the broken one at `position`, or None.

    `next_offset` is the offset after byte `end`, if that is known; otherwise the file may still be growing.
    As `sej.resume`.
    """
    size = _FIRST_LOOK
    while True:
        size = min(size, end - position)
        is_all = position + size == end
        window = fs.pread(handle, size, position)
        known = -1 if next_offset is None else next_offset
        found = journal_codec.resume(window, expected, known, may_be_torn)
        if found is not None:
            return position + found[0], found[1]
        if is_all or len(window) < size:
            return None
        size *= 4


def walk(
    fs: FileSystem, handle: int, start: int, end: int, offset: int, next_offset: int | None = None
) -> Walk:
    """Walk from message `offset` at byte `start` to byte `end`, past broken bytes."""
    found = Walk(start, offset)
    for step in _steps(fs, handle, start, end, offset, next_offset, found):
        if isinstance(step, Break):
            found.breaks.append(step)
        elif step.records:
            found.stretches.append(step)
            found.end, found.next_offset = step.end, step.offset + step.records
    return found


def _steps(
    fs: FileSystem, handle: int, start: int, end: int, offset: int, next_offset: int | None, found: Walk
) -> Iterator[RecordStretch | Break]:
    while start < end:
        stretch, found.stop, found.reason = records_in(fs, handle, start, end, offset)
        yield stretch
        start, offset = stretch.end, offset + stretch.records
        if found.stop == "END":
            return
        torn = found.stop == "TORN"
        resumed = find_next(fs, handle, start, end, offset, next_offset, may_be_torn=torn)
        if resumed is None:
            return
        yield Break(start, resumed[0], offset, resumed[1] - offset, found.reason)
        start, offset = resumed
