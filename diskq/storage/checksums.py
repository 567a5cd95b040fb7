# Checksums beside an append file. Law: a block that disagrees is not delivered, and a row that is
# rotten itself is told from rotten data.
#
# The checksum file of a file is rows of 24 bytes, little endian, one per block of whole records:
#
#     end u64 | size u32 | records u32 | crc32c u32 | check u32
#
# `end` is the byte after the block in the file, `size` its bytes, `crc32c` over them; `check` is
# the crc32c of the row's first 20 bytes. A row speaks for itself, so a rotten one costs its own
# block's verification and nothing else, and a gap between two rows is what somebody else wrote.
# `records` makes a lost block countable, and a queue countable without reading it.
# A row of size 0 says that the file is complete, and ends here.
# Behind the last row lie zeros, written ahead: syncing a row then changes no file size, which
# spares the file system's journal. Zeros are no row: their check is wrong.
# Format: docs/format/checksums.md.

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from diskq._native.core.blocks import ROW_SIZE, Blocks
from diskq.storage.barrier import write_all
from diskq.storage.closing import let_go
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED

__all__ = [
    "ROW",
    "ChecksumFile",
    "Row",
    "Rows",
    "VerifiedPrefix",
    "checksum",
    "checksummed",
    "corrupt_rows",
    "replace_last_rows",
    "rows_after",
    "rows_before",
    "verified_prefix",
]

ROW = struct.Struct("<QIIII")
assert ROW.size == ROW_SIZE == 24
_NO_ROW = bytes(ROW.size)
_CHECKED = struct.Struct("<QIII")
assert _CHECKED.size == 20
_CHECK = struct.Struct("<I")

_WRITE_AT = 16 * ROW.size  # about 64 KiB of data: rows wait in memory until then, or a barrier
_SPARE_ROWS = 64  # as zeros kept ready, so that a full disk is noticed before a message is in
_LEAST_AHEAD = 4 * 1024
_MOST_AHEAD = 64 * 1024
_ROWS_AT_ONCE = 512  # for about 2 MiB of data
# So many zeros are looked through for rows behind them: far more than are written ahead, or torn by a power
# cut. A file may be all hole, of any size.
_MOST_ZEROS = 4 * 1024 * 1024


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """crc32c (Castagnoli) of `data`; or of bytes whose crc32c is `before`, and of `data` behind them."""
    return crc32c(data, before)


class Row(NamedTuple):
    """A block of whole records: bytes start:end of the file, how many records, and their crc32c."""

    start: int
    end: int
    records: int
    crc: int

    @property
    def is_seal(self) -> bool:
        """Does it say that the file is complete?"""
        return self.start == self.end

    def matches(self, data: memoryview | bytes) -> bool:
        return crc32c(data) == self.crc


def pack_row(row: Row) -> bytes:
    return _packed(row.end, row.end - row.start, row.records, row.crc)


def _packed(end: int, size: int, records: int, crc: int) -> bytes:
    fields = _CHECKED.pack(end, size, records, crc)
    return fields + _CHECK.pack(crc32c(fields))


def unpack_row(data: bytes | memoryview) -> Row | None:
    """The row in these 24 bytes; None where there is none, or a rotten one."""
    return _only_row(Blocks(crc32c), bytes(data))


def _only_row(blocks: Blocks, data: bytes) -> Row | None:
    blocks.load(data, 0)
    first = blocks.first()
    return Row(*first[:4]) if first else None


@dataclass(slots=True)
class ChecksumFile:
    """The writing side: rows of the active file."""

    fs: FileSystem
    path: str
    handle: int
    written: int
    """Bytes of rows in the page cache."""
    allocated: int
    """Bytes of the file, zeros included."""
    waiting: bytearray
    covered: int
    """The byte of the data up to which rows reach, written or waiting."""

    @classmethod
    def open(cls, fs: FileSystem, path: str, rows: int, covered: int) -> ChecksumFile:
        """Go on after `rows` bytes of rows, which reach to byte `covered` of the data.

        What follows them in the checksum file is cut off: with 0 it begins anew, whatever was there.
        """
        handle = fs.open(path, write=True, create=True)
        checksum_file = cls(fs, path, handle, rows, rows, bytearray(), covered)
        try:
            if fs.size(handle) != rows:
                fs.truncate(handle, rows)
        except BaseException:
            fs.close(handle)
            raise
        return checksum_file

    def add(self, end: int, size: int, records: int, data: memoryview) -> None:
        """A block of these bytes ends here. Kept in memory until `_WRITE_AT`, or the next barrier."""
        self.add_row(end, size, records, crc32c(data))

    def add_row(self, end: int, size: int, records: int, crc: int) -> None:
        """As `add`, for a block whose checksum is known."""
        self.waiting += _packed(end, size, records, crc)
        self.covered = end
        if len(self.waiting) >= _WRITE_AT:
            self.flush()

    def flush(self) -> None:
        """Put the waiting rows into the page cache, over zeros that are there already."""
        if self.waiting:
            write_all(self.fs, self.handle, bytes(self.waiting), self.written)
            self.written += len(self.waiting)
            self.allocated = max(self.allocated, self.written)
            self.waiting.clear()

    @property
    def shown(self) -> int:
        """The byte of the data up to which rows are in the page cache."""
        first = unpack_row(bytes(self.waiting[: ROW.size]))
        return first.start if first is not None else self.covered

    @property
    def room(self) -> int:
        """For so many more rows zeros are left."""
        return max(0, self.allocated - self.written - len(self.waiting)) // ROW.size

    @property
    def has_room(self) -> bool:
        """Are zeros left for the rows of the next messages?"""
        return self.allocated - self.written - len(self.waiting) >= _SPARE_ROWS * ROW.size

    @property
    def growth(self) -> int:
        """So many bytes `make_room` would write now."""
        return 0 if self.has_room else self.next_growth

    @property
    def next_growth(self) -> int:
        """So many bytes it will write when the zeros are used up."""
        return min(_MOST_AHEAD, max(_LEAST_AHEAD, self.allocated))

    def make_room(self) -> None:
        """Write zeros ahead. Raises OSError where the disk is full; the checksum file is as before."""
        ahead = self.growth
        write_all(self.fs, self.handle, bytes(ahead), self.allocated)
        self.allocated += ahead

    def seal(self) -> None:
        """The data file is complete: say so, and drop the zeros."""
        rows = bytes(self.waiting) + _packed(self.covered, 0, 0, 0)
        write_all(self.fs, self.handle, rows, self.written)
        self.written += len(rows)
        self.waiting.clear()
        self.fs.truncate(self.handle, self.written)
        self.allocated = self.written


class Rows:
    """The reading side: the rows of one file, in order, a few hundred at a time.

    The checksum file may still be growing, or be made only later: rows that were not there yet are looked
    for again. There are none where `path` is None.
    """

    def __init__(self, fs: FileSystem, path: str | None) -> None:
        self._fs = fs
        self._path = path
        self._handle: int | None = None
        self._blocks = Blocks(crc32c)
        self._one = Blocks(crc32c)  # for a row that is looked at alone
        self._at = 0  # the checksum file's byte behind what is loaded
        self.consumed = 0
        """The checksum file's byte behind the last row that was passed."""
        self.last: Row | None = None
        """That row."""
        self._open()

    def _open(self) -> int | None:
        if self._handle is None and self._path is not None and self._fs.size_of(self._path) is not None:
            with contextlib.suppress(FileNotFoundError):  # it may go in this moment
                self._handle = self._fs.open(self._path)
        return self._handle

    def close(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            let_go(self._fs, handle)

    def seek(self, position: int) -> None:
        """Go, in O(log n), to the first row that ends after byte `position` of the data."""
        if (handle := self._open()) is None:
            return
        low, high = 0, self._fs.size(handle) // ROW.size if position > 0 else 0
        while low < high:
            middle = (low + high) // 2
            row = self._first_whole(middle, high)
            if row is None or row.end > position:
                high = middle
            else:
                low = middle + 1
        self._blocks.load(b"", 0)
        self._at = self.consumed = low * ROW.size
        self.last = self._last_whole(low)
        self.first_after(position)  # where zeros hid rows, there may be some left to pass

    @property
    def last_end(self) -> int:
        """The byte of the data behind the block of the last row that was passed."""
        return self.last.end if self.last else 0

    def first_after(self, position: int) -> Row | None:
        """The first row that ends after `position`; None where there is none (yet).

        Rows that end at or before `position` are passed for good.
        """
        while True:
            if (passed := self._blocks.pass_to(position)) is not None:
                *row, self.consumed = passed
                self.last = Row(*row)
            if (first := self._blocks.first()) is not None:
                return Row(*first[:4])
            if not self._load():
                return None

    def covering(self, position: int, most: int) -> list[Row]:
        """Rows without a gap between them, the first one being `first_after(position)`.

        Together they cover at most `most` bytes, but there is one, however large its block, unless
        no row ends after `position` (yet).
        """
        if self.first_after(position) is None:
            return []
        return [Row(*row) for row in self._blocks.following(most)]

    def counting(self, position: int, most: int) -> tuple[int, int]:
        """Of the rows that `covering` returns: how many records they are of, and where the last one ends."""
        if self.first_after(position) is None:
            return 0, position
        rows = self._blocks.following(most)
        return sum(row[2] for row in rows), rows[-1][1]

    def reach(self, most: int, limit: int) -> int | None:
        """Where the last one ends of the rows that `covering` returns, by byte `limit`; None: none does."""
        return self._blocks.reach(most, limit)

    def agreeing(self, data: memoryview) -> int:
        """`data` begins with the block of the first row: up to which byte of the file are blocks as written?

        Up to where that block begins, if not even that one is.
        """
        return self._blocks.agreeing(data)

    def _load(self) -> bool:
        """Load the next few rows. False: there are none (yet)."""
        start = self._at
        end = start + _MOST_ZEROS
        while start < end and (handle := self._handle or self._open()) is not None:
            data = self._fs.pread(handle, _ROWS_AT_ONCE * ROW.size, start)
            # Zeros at the end are rows to come, to be looked at again; zeros before a row are a hole
            # that somebody tore, and rotten rows are passed over.
            behind = min(len(data), len(data.rstrip(b"\0")) + ROW.size - 1) // ROW.size * ROW.size
            if behind:
                is_found = self._blocks.load(data[:behind], start)
                self._at = start = start + behind
                end = start + _MOST_ZEROS
                if is_found:
                    return True
            elif len(data) == _ROWS_AT_ONCE * ROW.size:
                start += len(data)
            else:
                return False
        return False

    def _first_whole(self, index: int, limit: int) -> Row | None:
        """The first row that is whole in rows index:limit, None where the zeros begin first."""
        assert self._handle is not None
        for number in range(index, limit):
            data = self._fs.pread(self._handle, ROW.size, number * ROW.size)
            if len(data) < ROW.size or data == _NO_ROW:
                return None
            if (row := _only_row(self._one, data)) is not None:
                return row
        return None

    def _last_whole(self, index: int) -> Row | None:
        """The last row that is whole before row `index`."""
        assert self._handle is not None
        for number in reversed(range(index)):
            row = _only_row(self._one, self._fs.pread(self._handle, ROW.size, number * ROW.size))
            if row is not None:
                return row
        return None


def rows_before(fs: FileSystem, path: str | None, position: int) -> tuple[int, int]:
    """Bytes of the rows of blocks that end by byte `position` of the data, and the byte to which they reach.

    `path` is the checksum file's; None: there is none. Raises OSError.
    """
    rows = Rows(fs, path)
    try:
        rows.seek(position)
        return rows.consumed, rows.last_end
    finally:
        rows.close()


def rows_after(fs: FileSystem, path: str | None, position: int) -> list[Row]:
    """All rows in the checksum file at `path` that end after byte `position` of the data. Raises OSError."""
    found: list[Row] = []
    rows = Rows(fs, path)
    try:
        rows.seek(position)
        while more := rows.covering(position, UNBOUNDED):
            found += more
            position = more[-1].end
    finally:
        rows.close()
    return found


def replace_last_rows(fs: FileSystem, path: str, last: Sequence[Row]) -> None:
    """Replace the rows in the checksum file at `path` that do not end before the first of these. Raises
    OSError.
    """
    kept, covered = rows_before(fs, path, last[0].start)
    checksum_file = ChecksumFile.open(fs, path, kept, covered)
    try:
        for row in last:
            checksum_file.add_row(row.end, row.end - row.start, row.records, row.crc)
        checksum_file.flush()
    finally:
        fs.close(checksum_file.handle)


def checksummed(fs: FileSystem, path: str, start: int = 0) -> tuple[int, int]:
    """Up to which byte blocks have checksums in the checksum file at `path`, and how many records those have.

    Those that end after byte `start` of the data count, whether or not they are there. Raises OSError.
    """
    rows = Rows(fs, path)
    count, position = 0, start
    try:
        while True:
            records, end = rows.counting(position, UNBOUNDED)
            if end == position:
                return position, count
            count, position = count + records, end
    finally:
        rows.close()


def corrupt_rows(fs: FileSystem, path: str) -> list[int]:
    """Where in the checksum file at `path` rows begin that are neither whole nor zeros. Raises OSError."""
    found: list[int] = []
    if fs.size_of(path) is None:
        return found
    handle = fs.open(path)
    try:
        start, end = 0, _MOST_ZEROS
        while start < end and (data := fs.pread(handle, _ROWS_AT_ONCE * ROW.size, start)):
            if data.strip(b"\0"):
                for at in range(0, len(data), ROW.size):
                    row = data[at : at + ROW.size]
                    if row.strip(b"\0") and (len(row) < ROW.size or unpack_row(row) is None):
                        found.append(start + at)
                end = start + _MOST_ZEROS
            start += len(data)
    finally:
        let_go(fs, handle)
    return found


# --- after a power cut ----------------------------------------------------------------------------


class VerifiedPrefix(NamedTuple):
    """How far checksums vouch for a file without a gap, and for how many records."""

    end: int
    records: int
    is_complete: bool
    """Does the file end there, and say that this is all of it?"""


def verified_prefix(
    fs: FileSystem,
    path: str,
    checksum_file: str | None,
    start: int,
    *,
    size: int | None = None,
    over_gaps: bool = False,
) -> VerifiedPrefix:
    """Up to where checksums vouch for the file from byte `start` on, where a block begins. Raises OSError.

    Of the file the first `size` bytes count (None: all). `over_gaps`: go on behind what nothing vouches for.
    """
    size = fs.size_of(path) or 0 if size is None else size
    end = at = min(start, size)
    records = 0
    handle = fs.open(path)
    rows = Rows(fs, None)
    try:
        rows = Rows(fs, checksum_file)
        rows.seek(end)
        while (row := rows.first_after(at)) is not None:
            at = row.end
            data = fs.pread(handle, row.end - row.start, row.start)
            if row.start != end and not over_gaps:
                break
            if row.end > size or not row.matches(data):
                if not over_gaps:
                    break
                continue
            end = row.end
            records += row.records
        last = rows.last
    finally:
        rows.close()
        let_go(fs, handle)
    return VerifiedPrefix(end, records, last is not None and last.is_seal and last.end == end == size)
