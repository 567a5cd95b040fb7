# The time index summary: notes beside a timeindex, so that a moment is found without reading all of it.
# Law: these are hints. Every row has a checksum, none is needed, and none can make a lookup wrong: the data
# file is the authority, the timeindex is made from it, and the marks are checksums of the timeindex.
#
# `<base>.marks` has one row ("mark") of 16 bytes for each whole 256 entries (4 KiB) of the segment's
# timeindex, little endian:
#
#     max i64 | crc32c of these 4096 bytes u32 | crc32c of the row's first 12 bytes u32
#
# `max` is the greatest timestamp of the segment up to there: timestamps may step back, running maxima
# do not, so that they can be searched by halving.
#
# `sealed` has one row of 64 bytes for each complete segment, appended when it rolls:
#
#     base u64 | count u64 | bytes of data u64 | timestamps: first, last, min, max i64
#     | crc32c of the entries after the last whole 256 u32 | crc32c of the row's first 60 bytes u32
#
# For segments that retention has removed there may be one row, of no bytes: base 0, and count up to the
# first existing segment. So rows that begin with offset 0 and have no gap are complete, and no directory
# needs to be listed to know the segments.
#
# Only removals are synced here: a row about bytes that recovery has replaced must not return after a power
# cut.
# Format: docs/format/triplet.md.

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping
from typing import NamedTuple

from diskq._native.stream.codec import TIMEINDEX_ROW_SIZE
from diskq._native.stream.times import (
    MARK_SIZE,
    ROWS_IN_A_MARK,
    SEALED_SIZE,
    extremes,
    survey,
)
from diskq.engine.log.time_lookup import EARLIEST, LATEST
from diskq.engine.stream.files import PartitionFiles
from diskq.storage.barrier import Barrier, let_go, opened, write_all
from diskq.storage.checksums import checksum
from diskq.storage.fs import FileSystem

__all__ = [
    "CHUNK",
    "EARLIEST",
    "LATEST",
    "Sealed",
    "TimeSummary",
    "fitting",
    "forget_from",
    "forget_removed",
    "greatest_of",
    "is_whole_mark",
    "make_marks",
    "marked_crc",
    "pack_mark",
    "read_marks",
    "read_sealed",
    "sealed_rows",
]

CHUNK = ROWS_IN_A_MARK * TIMEINDEX_ROW_SIZE
"""Bytes of a timeindex that one mark covers."""

_AT_ONCE = 64 * CHUNK

_LARGEST_SEALED = 64 * 1024 * 1024  # rows of a million segments
_MARK = struct.Struct("<qII")
_MARKED = struct.Struct("<qI")
assert (_MARK.size, _MARKED.size) == (MARK_SIZE, 12)
_MAX = struct.Struct("<q")
_CHECK = struct.Struct("<I")

_SEALED = struct.Struct("<QQQqqqqII")
_CHECKED = struct.Struct("<QQQqqqqI")
assert (_SEALED.size, _CHECKED.size) == (SEALED_SIZE, 60)

# After this many more rows of `sealed`, rows of removed segments are dropped from its start.
_ROWS_BETWEEN_LOOKS = 64


# --- rows -----------------------------------------------------------------------------------------


class Sealed(NamedTuple):
    """A complete segment: the number of entries, bytes of data, and timestamps in nanoseconds."""

    base: int
    entries: int
    size: int
    first: int
    """The timestamp of the first message."""
    last: int
    """The timestamp of the last message."""
    least: int
    greatest: int
    rest: int
    """The checksum of the timeindex's entries after its last whole 256."""

    @property
    def next_base(self) -> int:
        return self.base + self.entries

    def pack(self) -> bytes:
        fields = _CHECKED.pack(*self)
        return fields + _CHECK.pack(checksum(fields))

    @classmethod
    def unpack(cls, row: bytes) -> Sealed | None:
        """Return the segment of these 64 bytes; None if their checksum disagrees."""
        *fields, check = _SEALED.unpack(row)
        if check != checksum(row[: _CHECKED.size]):
            return None
        return cls(*fields)


def pack_mark(greatest: int, crc: int) -> bytes:
    fields = _MARKED.pack(greatest, crc)
    return fields + _CHECK.pack(checksum(fields))


def is_whole_mark(marks: bytes | bytearray, number: int) -> bool:
    """True if the mark's checksum agrees."""
    at = number * MARK_SIZE
    check: int = _CHECK.unpack_from(marks, at + _MARKED.size)[0]
    return check == checksum(bytes(marks[at : at + _MARKED.size]))


def marked_crc(marks: bytes | bytearray, number: int) -> int:
    """Return the checksum of the timeindex entries that a mark covers."""
    crc: int = _CHECK.unpack_from(marks, number * MARK_SIZE + _MAX.size)[0]
    return crc


def make_marks(rows: bytes, maxima: list[int]) -> bytes:
    """Return the marks of whole 256 timeindex entries, whose running greatest timestamps are `maxima`."""
    if len(maxima) == 1:
        return pack_mark(maxima[0], checksum(rows))
    crcs = [checksum(rows[at : at + CHUNK]) for at in range(0, len(rows), CHUNK)]
    return b"".join(map(pack_mark, maxima, crcs))


def greatest_of(marks: bytes | bytearray) -> int:
    """Return the greatest timestamp of the entries that have marks."""
    if not marks:
        return EARLIEST
    greatest: int = _MAX.unpack_from(marks, len(marks) - MARK_SIZE)[0]
    return greatest


# --- reading --------------------------------------------------------------------------------------


def read_marks(fs: FileSystem, files: PartitionFiles, base: int, start: int, end: int) -> bytes:
    """Return marks start:end of a segment, as far as they exist, unchecked. Raises OSError."""
    content = _read(fs, files.marks(base), (end - start) * MARK_SIZE, start * MARK_SIZE)
    return content[: len(content) // MARK_SIZE * MARK_SIZE]


def read_sealed(fs: FileSystem, files: PartitionFiles) -> bytes:
    """Return the rows of a partition's complete segments, unchecked. Raises OSError."""
    content = _read(fs, files.sealed, _LARGEST_SEALED)
    return content[: len(content) // SEALED_SIZE * SEALED_SIZE]


def _read(fs: FileSystem, path: str, most: int, start: int = 0) -> bytes:
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return b""
    try:
        return fs.pread(handle, min(most, max(0, fs.size(handle) - start)), start)
    finally:
        let_go(fs, handle)


def sealed_rows(content: bytes) -> dict[int, Sealed]:
    """Return the segments of whole rows by base, ascending; the last row of a segment counts."""
    rows = (Sealed.unpack(content[at : at + SEALED_SIZE]) for at in range(0, len(content), SEALED_SIZE))
    return dict(sorted((row.base, row) for row in rows if row is not None))


def fitting(rows: Mapping[int, Sealed], base: int, next_base: int, size: int | None) -> Sealed | None:
    """Return the row of segment `base` if it ends before `next_base` and has `size` bytes, else None."""
    row = rows.get(base)
    return row if row is not None and (row.next_base, row.size) == (next_base, size) else None


# --- writing --------------------------------------------------------------------------------------


class TimeSummary:
    """Writes the summary of one partition: moved from segment to segment as they roll.

    A mark or a row that cannot be written is tried again later. No error is raised for it: it costs a time
    lookup some time, and affects no message.
    """

    def __init__(self, fs: FileSystem, files: PartitionFiles, *, is_new: bool = False) -> None:
        """`is_new`: the partition has no notes yet."""
        self._fs = fs
        self._files = files
        self._unsealed = b""  # rows of `sealed` that could not be written yet
        self._handle = -1
        self._timeindex = -1
        self._is_begun = is_new
        self._start(0)

    def _start(self, base: int) -> None:
        self.base = base
        self._marked = 0  # marks that were made, each of whole 256 entries
        self._written = 0  # marks that were written
        self._unwritten = b""
        self._least: int | None = LATEST  # of what was marked; None: not known
        self._greatest = EARLIEST
        self._due = ROWS_IN_A_MARK  # the number of entries at which the next mark is due
        self._is_lost = False  # the timeindex is not as it should be: nothing more is summarised

    def begin(self, base: int, timeindex: int, entries: int) -> None:
        """Continue in the segment `base`, whose timeindex (a handle, open for reading) has `entries` entries.

        The first call removes notes about entries and segments that do not exist: raises OSError if it
        cannot.
        """
        self.close()
        self._start(base)
        self._timeindex = timeindex
        marks = b""
        if not self._is_begun:
            marks = self._known(entries // ROWS_IN_A_MARK)
            cuts = _cuts_from(self._fs, self._files, base, marked=base + 1)
            _take_back(self._fs, [*self._cut_from(len(marks)), *cuts])
            self._is_begun = True
        if marks:
            self._marked = self._written = len(marks) // MARK_SIZE
            self._least, self._greatest = None, greatest_of(marks)
            self._due = (self._marked + 1) * ROWS_IN_A_MARK
        self.extend(entries)

    def _known(self, most: int) -> bytes:
        """Return the existing marks if the last of them is whole and agrees with the timeindex; else none."""
        with contextlib.suppress(OSError):
            marks = read_marks(self._fs, self._files, self.base, 0, most) if most else b""
            last = len(marks) // MARK_SIZE - 1
            if last >= 0 and is_whole_mark(marks, last):
                rows = self._fs.pread(self._timeindex, CHUNK, last * CHUNK)
                if _MARKED.unpack_from(marks, last * MARK_SIZE)[1] == checksum(rows):
                    return marks
        return b""

    def _cut_from(self, size: int) -> list[tuple[str, int]]:
        """Return where to cut off marks of entries that do not exist."""
        path = self._files.marks(self.base)
        return [(path, size)] if (self._fs.size_of(path) or 0) > size else []

    def extend(self, entries: int) -> None:
        """Note that the timeindex has `entries` entries now. Makes and writes the marks that are due."""
        if entries < self._due or self._is_lost:
            return
        self._due = entries // ROWS_IN_A_MARK * ROWS_IN_A_MARK + ROWS_IN_A_MARK
        with contextlib.suppress(OSError):
            while entries >= (self._marked + 1) * ROWS_IN_A_MARK and self._mark(entries):
                pass
            self._write()

    def _mark(self, entries: int) -> bool:
        """Make the marks of the next whole 256 entries, of some at once. False if none can be made."""
        size = min((entries // ROWS_IN_A_MARK - self._marked) * CHUNK, _AT_ONCE)
        rows = self._take(size)
        if rows is not None:
            self._marked += size // CHUNK
        return rows is not None

    def _take(self, size: int) -> bytes | None:
        """Read and survey `size` bytes of entries after the marked ones. None if they are not in order."""
        rows = self._fs.pread(self._timeindex, size, self._marked * CHUNK)
        surveyed = survey(rows, self.base + self._marked * ROWS_IN_A_MARK, self._greatest)
        if surveyed is None or len(rows) != size:
            self._is_lost = True
            return None
        self._greatest = surveyed.greatest
        if self._least is not None:
            self._least = min(self._least, surveyed.least)
        if surveyed.maxima:
            self._unwritten += make_marks(rows, surveyed.maxima)
        return rows

    def _write(self) -> None:
        if not self._unwritten:
            return
        if self._handle < 0:
            self._handle = self._fs.open(self._files.marks(self.base), write=True, create=True)
        write_all(self._fs, self._handle, self._unwritten, self._written * MARK_SIZE)
        self._written = self._marked
        self._unwritten = b""

    def seal(self, entries: int, size: int) -> None:
        """Note that the segment is complete, with `entries` entries and `size` bytes, and leave it."""
        self.extend(entries)
        row = None
        with contextlib.suppress(OSError):
            if entries and not self._is_lost:
                row = self._row(entries, size)
        self.close()
        if row is not None:
            self._unsealed += row.pack()
        with contextlib.suppress(OSError):
            self._append()

    def _row(self, entries: int, size: int) -> Sealed | None:
        if entries >= (self._marked + 1) * ROWS_IN_A_MARK:
            return None  # the timeindex could not be read
        rest = self._take((entries - self._marked * ROWS_IN_A_MARK) * TIMEINDEX_ROW_SIZE)
        if rest is None:
            return None
        if self._least is None:
            self._least = self._least_of_all(entries)
        first, last = self._timestamp(0), self._timestamp(entries - 1)
        return Sealed(self.base, entries, size, first, last, self._least, self._greatest, checksum(rest))

    def _timestamp(self, number: int) -> int:
        row = self._fs.pread(self._timeindex, TIMEINDEX_ROW_SIZE, number * TIMEINDEX_ROW_SIZE)
        timestamp: int = _MAX.unpack_from(row, TIMEINDEX_ROW_SIZE - _MAX.size)[0]
        return timestamp

    def _least_of_all(self, entries: int) -> int:
        """Return the least timestamp of a segment that another process began: reads its entries."""
        stretches = range(0, entries * TIMEINDEX_ROW_SIZE, _AT_ONCE)
        return min(extremes(self._fs.pread(self._timeindex, _AT_ONCE, at))[0] for at in stretches)

    def _append(self) -> None:
        if not self._unsealed:
            return
        with opened(self._fs, self._files.sealed, write=True, create=True) as handle:
            end = self._fs.size(handle) // SEALED_SIZE * SEALED_SIZE
            write_all(self._fs, handle, self._unsealed, end)
        self._unsealed = b""
        if end and end // SEALED_SIZE % _ROWS_BETWEEN_LOOKS == 0:
            forget_removed(self._fs, self._files)

    def close(self) -> None:
        """Leave the segment as it is. The timeindex's handle stays the caller's. Idempotent."""
        handle, self._handle = self._handle, -1
        self._timeindex = -1
        self._is_lost = True
        if handle >= 0:
            self._fs.close(handle)
        self._unwritten = b""


# --- removing notes -------------------------------------------------------------------------------


def forget_from(fs: FileSystem, files: PartitionFiles, base: int) -> None:
    """Remove the notes about segment `base` and later ones, which recovery has changed.

    They are gone durably when this returns. Raises OSError.
    """
    _take_back(fs, _cuts_from(fs, files, base, marked=base))


def forget_removed(fs: FileSystem, files: PartitionFiles) -> None:
    """Drop the rows of segments that retention has removed. For the process that appends.

    The file is written in place, and not synced: a power cut may leave a row twice, or lose one, and neither
    harms. Raises OSError.
    """
    content = read_sealed(fs, files)
    bases = files.bases()
    rows = [row for row in sealed_rows(content).values() if row.base >= bases[0]] if bases else []
    if bases[:1] == [row.base for row in rows[:1]] or len(bases) == 1:
        rows.insert(0, Sealed(0, bases[0], 0, 0, 0, LATEST, EARLIEST, 0))
    kept = b"".join(row.pack() for row in rows if row.entries)
    if kept == content:
        return
    with opened(fs, files.sealed, write=True, create=True) as handle:
        write_all(fs, handle, kept, 0)
        fs.truncate(handle, len(kept))


def _cuts_from(fs: FileSystem, files: PartitionFiles, base: int, marked: int) -> list[tuple[str, int]]:
    """Return where to cut rows of segments that end after `base`, and marks of segments from `marked` on."""
    cuts = [(files.marks(number), 0) for number in files.marked() if number >= marked]
    content = read_sealed(fs, files)
    for at in range(0, len(content), SEALED_SIZE):
        row = Sealed.unpack(content[at : at + SEALED_SIZE])
        if row is not None and row.next_base > base:
            return [*cuts, (files.sealed, at)]
    return cuts


def _take_back(fs: FileSystem, cuts: list[tuple[str, int]]) -> None:
    """Shorten these files, durably."""
    handles: list[int] = []
    try:
        for path, size in cuts:
            with contextlib.suppress(FileNotFoundError):
                handles.append(fs.open(path, write=True))
                fs.truncate(handles[-1], size)
        if handles:
            Barrier(files=tuple(handles)).execute(fs)
    finally:
        for handle in handles:
            fs.close(handle)
