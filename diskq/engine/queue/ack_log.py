# The ack log: what is acknowledged beyond the acknowledged prefix, and how often messages were handed out.
# Law: every row is true of the bytes that are there, and a missing row costs a second delivery, never a
# message.
#
# NSQ's metadata has one read position, up to which everything is consumed. Acknowledgements of later messages
# are stored here, in files of rows of 36 bytes, little endian:
#
#     kind u16 | attempts u16 | delay u32 (ms) | file u64 | byte u64 | value i64 | check u32
#
#     1 acked    the messages in bytes byte:value of the data file are acknowledged
#     2 handed   all messages before this place were handed out, at least once
#     3 tried    the message that begins here was handed out `attempts` times, and is not to be again
#                before `value` (ns since the Unix epoch), but after `delay` at the latest; 0: at once
#
# `check` is the crc32c of the row's first 32 bytes. Each row stands for itself: torn, rotten and missing rows
# say nothing, and zeros are no row. Acked rows add up; of the handed rows the furthest counts, of a message's
# tried rows the last one; and an acked message is acked whatever other rows say.
#
# A row never speaks of another message than the one it was written for, because
#
#   - a place in NSQ's files is written once; what follows the written bytes can only be replaced after
#     a crash has cut it off, by the open that cut it, or by a peer;
#   - so each open, before the queue accepts anything, takes back the rows about places from the write
#     position on (`repair_ack_logs`), durably, in its first barrier, which comes before the metadata;
#   - and all rows, if the metadata is not diskq's: a peer was here, or began anew;
#   - a row about a message is written when the message is in its file, not before.
#
# The order between ack log and metadata does not matter then: rows before the metadata's read position are
# passed over, and messages without rows are delivered again.
#
# When a file has grown, a new one with a higher number begins with the rows that still matter, is synced by
# the next barrier, and the old one is removed by the same barrier. If a power cut undoes that, both are read,
# in order: all in the old one is still true.
# Format: docs/format/acks.md.

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq.engine.queue.files import QueueFiles, QueuePosition
from diskq.storage.barrier import PendingSyncs, let_go, rewrite, write_all
from diskq.storage.checksums import checksum
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.log_events import Log

__all__ = [
    "LONGEST_DELAY",
    "MOST_ATTEMPTS",
    "ROW",
    "AckLog",
    "Known",
    "Tried",
    "acked_row",
    "acked_rows",
    "broken_rows",
    "handed_row",
    "read_ack_logs",
    "repair_ack_logs",
    "tried_row",
]

log = Log("queue")

ROW = struct.Struct("<HHIQQqI")
_FIELDS = struct.Struct("<HHIQQq")
assert (ROW.size, _FIELDS.size) == (36, 32)
_NO_ROW = bytes(ROW.size)
_CHECK = struct.Struct("<I")

ACKED, HANDED, TRIED = 1, 2, 3

MOST_ATTEMPTS = 65_535
"""A count that has reached this value stays there."""
LONGEST_DELAY = 2**32 // 1000 - 1
"""In seconds: 49 days."""

# A file may grow to `_GROWN` bytes, or to `_TIMES` times the size it began with.
_GROWN = 256 * 1024
_LARGEST = 256 * 1024 * 1024  # far more than it ever grows to; anything after that is ignored
_TIMES = 4
# Up to this many bytes of rows wait while the disk is full; then the next file will contain what matters.
_MOST_UNWRITTEN = 64 * 1024

_BEGINNING = QueuePosition(0, 0)

Place = tuple[int, int, int]
"""The number of a data file, and the bytes of a message's record in it: start, end."""


# --- rows -----------------------------------------------------------------------------------------


def _packed(kind: int, attempts: int, delay: int, file: int, byte: int, value: int) -> bytes:
    fields = _FIELDS.pack(kind, attempts, delay, file, byte, value)
    return fields + _CHECK.pack(checksum(fields))


def acked_row(file: int, start: int, end: int) -> bytes:
    """Return a row: the messages in bytes start:end of the file are acknowledged."""
    return _packed(ACKED, 0, 0, file, start, end)


def handed_row(place: QueuePosition) -> bytes:
    """Return a row: all messages before `place` were handed out, at least once."""
    return _packed(HANDED, 0, 0, place.file, place.byte, 0)


def tried_row(file: int, byte: int, attempts: int, due: float = 0.0, delay: float = 0.0) -> bytes:
    """Return a row: this message was handed out `attempts` times; it rests until `due` (Unix time, s)."""
    milliseconds = min(-int(-delay * 1000 // 1), 2**32 - 1)
    return _packed(TRIED, min(attempts, MOST_ATTEMPTS), milliseconds, file, byte, int(due * 1e9))


def acked_rows(places: Iterable[Place]) -> list[bytes]:
    """Return rows for these messages, in any order: one for each run of adjacent ones."""
    rows: list[bytes] = []
    begun: Place | None = None
    for file, start, end in sorted(places):
        if begun is not None and (file, start) == (begun[0], begun[2]):
            begun = (file, begun[1], end)
            continue
        if begun is not None:
            rows.append(acked_row(*begun))
        begun = (file, start, end)
    if begun is not None:
        rows.append(acked_row(*begun))
    return rows


class _Row(NamedTuple):
    at: int  # the byte of the ack log where it begins
    kind: int
    attempts: int
    delay: int
    file: int
    byte: int
    value: int


def _rows(content: bytes) -> Iterator[_Row]:
    """Yield the rows that are whole."""
    for at in range(0, len(content) - ROW.size + 1, ROW.size):
        data = content[at : at + ROW.size]
        *fields, check = ROW.unpack(data)
        if check == checksum(data[: _FIELDS.size]):
            yield _Row(at, *fields)


# --- reading --------------------------------------------------------------------------------------


class Tried(NamedTuple):
    """The state of a message that was handed out, and may be again."""

    attempts: int
    due: float = 0.0
    """Seconds since the Unix epoch."""
    delay: float = 0.0
    """In seconds: the message does not rest longer than this, whatever the clock says."""


@dataclass(slots=True)
class Known:
    """What the ack logs say of the messages from some place on."""

    acked: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By file: the bytes start:end of acknowledged messages, ascending, apart from each other."""
    tried: dict[tuple[int, int], Tried] = field(default_factory=dict)
    """By file and byte."""
    handed: QueuePosition = _BEGINNING
    """All messages before it were handed out."""

    @property
    def end(self) -> QueuePosition:
        """The place from which on nothing is known."""
        acked = [QueuePosition(file, ranges[-1][1]) for file, ranges in self.acked.items()]
        tried = [QueuePosition(file, byte + 1) for file, byte in self.tried]
        return max([self.handed, *acked, *tried])

    def is_acked(self, file: int, byte: int) -> bool:
        """True if the message that begins here is acknowledged."""
        ranges = self.acked.get(file, [])
        at = bisect.bisect_right(ranges, (byte, 2**63)) - 1
        return at >= 0 and byte < ranges[at][1]

    def of(self, file: int, byte: int) -> Tried:
        """Return the state of the message that begins here."""
        tried = self.tried.get((file, byte))
        return tried or Tried(int(QueuePosition(file, byte) < self.handed))

    def rows_from(self, place: QueuePosition) -> list[bytes]:
        """Return rows with all that is known of the messages from `place` on, except `handed`."""
        rows = [
            acked_row(file, max(start, place.byte if file == place.file else 0), end)
            for file, ranges in self.acked.items()
            for start, end in ranges
            if (file, end) > place
        ]
        return rows + [
            tried_row(*at, tried.attempts, tried.due, tried.delay)
            for at, tried in self.tried.items()
            if at >= place
        ]


def read_ack_logs(fs: FileSystem, files: QueueFiles) -> Known:
    """Return what is known of the queue's messages. Raises OSError."""
    known = Known()
    for number in files.ack_logs():
        for row in _rows(_content(fs, files.ack_log(number))):
            if row.kind == ACKED:
                known.acked.setdefault(row.file, []).append((row.byte, row.value))
            elif row.kind == HANDED:
                known.handed = max(known.handed, QueuePosition(row.file, row.byte))
            elif row.kind == TRIED:
                tried = Tried(row.attempts, row.value / 1e9, row.delay / 1000)
                known.tried[row.file, row.byte] = tried
    for file, ranges in known.acked.items():
        known.acked[file] = _joined(ranges)
    return known


def broken_rows(fs: FileSystem, path: str) -> list[int]:
    """Return where rows begin that are neither whole nor zeros: torn, or rotten. Raises OSError."""
    content = _content(fs, path)
    whole = {row.at for row in _rows(content)}
    starts = range(0, len(content), ROW.size)
    return [at for at in starts if at not in whole and content[at : at + ROW.size].strip(b"\0")]


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _content(fs: FileSystem, path: str) -> bytes:
    handle = fs.open(path)
    try:
        return fs.pread(handle, min(fs.size(handle), _LARGEST), 0)
    finally:
        let_go(fs, handle)


# --- at each open of the queue --------------------------------------------------------------------


def repair_ack_logs(
    fs: FileSystem,
    files: QueueFiles,
    read: QueuePosition,
    write: QueuePosition,
    pending_syncs: PendingSyncs,
    *,
    is_ours: bool,
) -> None:
    """Remove from the ack logs all rows about places from `write` on; all rows at all, if not `is_ours`.

    The first barrier makes it durable, before its metadata; it also removes files without any row that
    still matters. Raises OSError.
    """
    for number in files.ack_logs():
        path = files.ack_log(number)
        handle = fs.open(path, write=True)
        pending_syncs.closing.append(handle)
        if not is_ours:
            fs.truncate(handle, 0)
            pending_syncs.files.append(handle)
            pending_syncs.removals.append(path)
            continue
        if fs.size(handle) > _LARGEST:
            fs.truncate(handle, _LARGEST)
        rows = list(_rows(fs.pread(handle, fs.size(handle), 0)))
        replaced = [(row, new) for row in rows if (new := _replacement(row, write)) is not None]
        if rows:
            # All of it: what was acknowledged before a kill may never have been synced.
            pending_syncs.files.append(handle)
        try:
            rewrite(fs, handle, 0, fs.size(handle))
            for row, new in replaced:
                write_all(fs, handle, new, row.at)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            fs.truncate(handle, 0)  # needs no space
        if not any(_end(row) > read for row in rows):
            pending_syncs.removals.append(path)


def _end(row: _Row) -> QueuePosition:
    return QueuePosition(row.file, row.value if row.kind == ACKED else row.byte + (row.kind == TRIED))


def _replacement(row: _Row, write: QueuePosition) -> bytes | None:
    """Return what replaces the row; None if it may stay."""
    if _end(row) <= write:
        return None
    if row.kind == HANDED:
        return handed_row(write)
    if row.kind == ACKED and (row.file, row.byte) < write:
        return acked_row(row.file, row.byte, write.byte)
    return _NO_ROW


# --- writing --------------------------------------------------------------------------------------


class AckLog:
    """The writing side. Rows given to `add` are in the page cache, and durable with the next barrier.

    If the disk is full, rows wait in memory: consuming messages frees space.
    """

    def __init__(self, fs: FileSystem, files: QueueFiles, pending_syncs: PendingSyncs) -> None:
        """Go on in the last existing file. `pending_syncs`: what the queue's next barrier syncs."""
        self._fs = fs
        self._files = files
        self._pending_syncs = pending_syncs
        numbers = files.ack_logs()
        self._old = numbers[:-1]  # a power cut brought them back
        self._number = numbers[-1] if numbers else 0
        self._handle = -1
        self.size = 0
        """Bytes of rows in the file."""
        self._first_size = 0  # bytes of the rows it began with
        self._unwritten = bytearray()
        self._lacks = False  # True if rows waited too long and were dropped
        self._was_full = False
        self._is_dirty = False
        if numbers:
            self._handle = fs.open(files.ack_log(self._number), write=True)
            try:
                self.size = fs.size(self._handle) // ROW.size * ROW.size
            except BaseException:
                self.abandon()
                raise

    def wall_clock(self) -> float:
        """Return the time in seconds since the Unix epoch."""
        return self._fs.wall_clock()

    def add(self, rows: bytes) -> None:
        """Write some more rows. Raises OSError, except if the disk is full."""
        self._unwritten += rows
        if not self._unwritten:
            return
        try:
            if self._handle < 0:
                self._begin()
            write_all(self._fs, self._handle, bytes(self._unwritten), self.size)
        except OSError as failure:
            self._refused(failure)
            return
        self.size += len(self._unwritten)
        self._unwritten.clear()
        self._was_full = False
        self._is_dirty = True

    def settle(self, matters: Iterable[bytes]) -> tuple[int, ...]:
        """Write all rows that can be written. Returns the handles that the barrier is to sync.

        When the file has grown, a new one begins with the rows `matters`, which are computed only then.
        """
        self.add(b"")
        if self._old or self._lacks or self.size > max(_GROWN, _TIMES * self._first_size):
            self._begin_anew(b"".join(matters))
        if not self._is_dirty:
            return ()
        self._is_dirty = False
        return (self._handle,)

    def close(self) -> None:
        """Close it: the next barrier syncs and closes the file."""
        try:
            self.add(b"")
        finally:
            if self._handle >= 0:
                if self._is_dirty:
                    self._pending_syncs.files.append(self._handle)
                self._pending_syncs.closing.append(self._handle)
                self._handle = -1

    def abandon(self) -> None:
        """Close it without a promise."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)

    def _begin(self) -> None:
        self._number += 1
        path = self._files.ack_log(self._number)
        self._handle = self._fs.open(path, write=True, create=True)
        self._pending_syncs.directories[self._files.private] = None

    def _begin_anew(self, content: bytes) -> None:
        number = self._number + 1
        path = self._files.ack_log(number)
        try:
            handle = self._fs.open(path, write=True, create=True)
            try:
                self._fs.truncate(handle, 0)  # what an attempt on a full disk has left
                write_all(self._fs, handle, content, 0)
            except BaseException:
                self._fs.close(handle)
                self._pending_syncs.removals.append(path)
                raise
        except OSError as failure:
            self._refused(failure)
            return
        self._pending_syncs.directories[self._files.private] = None
        old = [*self._old, self._number] if self._handle >= 0 else self._old
        self._pending_syncs.removals += map(self._files.ack_log, old)
        if self._handle >= 0:
            self._pending_syncs.closing.append(self._handle)
        self._old = []
        self._handle, self._number = handle, number
        self.size = self._first_size = len(content)
        self._unwritten.clear()
        self._lacks = self._was_full = False
        self._is_dirty = True

    def _refused(self, failure: OSError) -> None:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise failure
        if not self._was_full:
            path = self._files.ack_log(self._number)
            log.report(
                "disk_full", "%s: the disk is full, acknowledgements will be written later", path, path=path
            )
        self._was_full = True
        if len(self._unwritten) > _MOST_UNWRITTEN:
            self._unwritten.clear()
            self._lacks = True
