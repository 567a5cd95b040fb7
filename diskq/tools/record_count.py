# Counts the messages between two positions of a queue. Law: bytes that checksums cover are not read, as
# entries of checksum files hold numbers of records; and only the range that was asked for is looked at.

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diskq._native.queue import codec as queue_codec
from diskq.engine.queue.files import QueueFiles, QueuePosition
from diskq.engine.queue.snapshot import waiting_after
from diskq.storage.barrier import let_go
from diskq.storage.checksums import Rows
from diskq.storage.fs import FileSystem
from diskq.storage.log.format import read_wal

__all__ = ["Counted", "bytes_between", "count_between", "count_waiting"]

_WINDOW = 1024 * 1024
_LENGTH = 4


def bytes_between(start: QueuePosition, end: QueuePosition, sizes: Mapping[int, int]) -> int:
    """Return the bytes from `start` to `end`, given the files' sizes; removed files count nothing."""
    if start >= end:
        return 0
    between = sum(size for number, size in sizes.items() if start.file <= number < end.file)
    return max(0, between + end.byte - start.byte)


class Counted(NamedTuple):
    """The number of whole messages, and the position after the last of them."""

    records: int
    end: QueuePosition


def count_between(fs: FileSystem, files: QueueFiles, start: QueuePosition, end: QueuePosition) -> Counted:
    """Count the messages from `start`, where one begins, to `end`. Raises OSError.

    Messages in a file that was removed meanwhile are not counted.
    """
    found, reached = 0, start
    for number in range(start.file, end.file + 1):
        size = fs.size_of(files.data(number))
        if size is not None:
            first = start.byte if number == start.file else 0
            last = min(size, end.byte) if number == end.file else size
            records, behind = _count(fs, files.data(number), files.checksum_file(number), first, last)
            found, reached = found + records, QueuePosition(number, behind)
    return Counted(found, reached)


def count_waiting(fs: FileSystem, files: QueueFiles, end: QueuePosition) -> int:
    """Count the messages that were accepted and are to be written after `end`. Raises OSError."""
    waiting = waiting_after(fs, files, read_wal(fs, files.wal), end)
    return 0 if waiting is None else queue_codec.count(waiting.content).records


def _count(fs: FileSystem, path: str, checksum_file: str, position: int, end: int) -> tuple[int, int]:
    if position >= end:
        return 0, position
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return 0, position
    rows = Rows(fs, None)
    found = 0
    try:
        rows = Rows(fs, checksum_file)
        rows.seek(position)
        while position < end:
            row = rows.first_after(position)
            if row is not None and row.start == position and row.end <= end:
                records, position = rows.counting(position, end - position)
                found += records
                continue
            # Up to the next entry, if the position is inside a block, or another program wrote here.
            goal = end if row is None else min(end, row.start if row.start > position else row.end)
            records, behind = _parse(fs, handle, position, goal)
            if behind == position:
                break
            found, position = found + records, behind
    finally:
        rows.close()
        let_go(fs, handle)
    return found, position


def _parse(fs: FileSystem, handle: int, position: int, end: int) -> tuple[int, int]:
    """Count records by their lengths, in one window at most; and return the byte after them."""
    window = fs.pread(handle, min(_WINDOW, end - position), position)
    counted = queue_codec.count(window)
    if counted.records or len(window) < _LENGTH:
        return counted.records, position + counted.valid_end
    # A record that is larger than the window; or the beginning of one that is being written.
    behind = position + _LENGTH + int.from_bytes(window[:_LENGTH], "big")
    return (1, behind) if counted.stop == "TORN" and behind <= end else (0, position)
