# Checksums of an append file. Law: a block that does not match is not delivered, and a corrupt row is
# distinguished from corrupt data.
#
# The checksum file of a file is rows of 24 bytes, little endian, one per block of whole records:
#
#     end u64 | size u32 | records u32 | crc32c u32 | check u32
#
# `end` is the byte after the block in the file, `size` its bytes, `crc32c` over them; `check` is
# the crc32c of the row's first 20 bytes. Each row is self-contained, so a corrupt one costs the
# verification of its own block and nothing else, and a gap between two rows was written by another program.
# `records` makes a lost block countable, and a queue countable without reading it.
# A row of size 0 says that the file is complete, and ends here.
# After the last row come zeros, written ahead: syncing a row then changes no file size, which
# spares the file system's journal. Zeros are not a row: their check is wrong.
# Format: docs/format/checksums.md.

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from diskq._native.core.blocks import ROW_SIZE, Blocks, packed_row
from diskq._native.core.crc32c import crc32c
from diskq._native.core.framing import Count
from diskq.storage.barrier import let_go, opened
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED

__all__ = [
    "CHECK_SIZE",
    "LEAST_ZEROS",
    "ROW",
    "Row",
    "Rows",
    "VerifiedPrefix",
    "checked",
    "checksum",
    "checksummed",
    "corrupt_rows",
    "is_checked",
    "rows_after",
    "rows_before",
    "rows_of_other_bytes",
    "sealed_end",
    "unpack_row",
    "verified_prefix",
    "zeros_in",
]

ROW = struct.Struct("<QIIII")
assert ROW.size == ROW_SIZE == 24
_NO_ROW = bytes(ROW.size)

_ROWS_AT_ONCE = 512  # for about 2 MiB of data
# The most zeros that are searched for later rows: far more than are written ahead, or left by a power cut.
# A file may be one hole of any size.
_MOST_ZEROS = 4 * 1024 * 1024


checksum = crc32c
"""Returns the crc32c (Castagnoli) of bytes; given the crc32c of bytes before them, of both together."""


# --- of small text files ------------------------------------------------------------------------------

_LAST_LINE = re.compile(rb"crc32c ([0-9a-f]{8})\n")
CHECK_SIZE = len(b"crc32c 00000000\n")
"""Size in bytes of the last line of diskq's text files, which is the checksum of the lines before."""


def checked(content: bytes) -> bytes:
    """Return `content` with a last line that is its checksum."""
    return content + f"crc32c {checksum(content):08x}\n".encode()


def is_checked(content: bytes, end: int) -> bool:
    """True if the checksum line of the first `end` bytes follows them, and nothing else."""
    last = _LAST_LINE.fullmatch(content, end)
    return last is not None and int(last[1], 16) == checksum(content[:end])


# --- of blocks ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A block of whole records: bytes start:end of the file, the number of records, and their crc32c."""

    start: int
    end: int
    records: int
    crc: int

    @property
    def is_seal(self) -> bool:
        """True if the row says that the file is complete."""
        return self.start == self.end

    def matches(self, data: memoryview | bytes) -> bool:
        return crc32c(data) == self.crc


def pack_row(row: Row) -> bytes:
    return packed_row(row.end, row.end - row.start, row.records, row.crc)


def unpack_row(data: bytes | memoryview) -> Row | None:
    """Return the row in these 24 bytes; None if there is none, or a corrupt one."""
    return _only_row(Blocks(crc32c), bytes(data))


def _only_row(blocks: Blocks, data: bytes) -> Row | None:
    blocks.load(data, 0)
    first = blocks.first()
    return Row(*first[:4]) if first else None


class Rows:
    """The reading side: reads the rows of one file in order, a few hundred at a time.

    The checksum file may still grow, or be created later: missing rows are looked for again.
    There are no rows if `path` is None.
    """

    def __init__(self, fs: FileSystem, path: str | None) -> None:
        self._fs = fs
        self._path = path
        self._handle: int | None = None
        self._blocks = Blocks(crc32c)
        self._one = Blocks(crc32c)  # for single rows
        self._at = 0  # the checksum file's byte after the loaded rows
        self.consumed = 0
        """The checksum file's byte after the last row that was passed."""
        self.last: Row | None = None
        """The last row that was passed."""
        self._open()

    def _open(self) -> int | None:
        if self._handle is None and self._path is not None and self._fs.size_of(self._path) is not None:
            with contextlib.suppress(FileNotFoundError):  # it may be removed at this moment
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
        self.first_after(position)  # if zeros hid rows, some may be left to pass

    @property
    def last_end(self) -> int:
        """The byte of the data after the block of the last row that was passed."""
        return self.last.end if self.last else 0

    def first_after(self, position: int) -> Row | None:
        """Return the first row that ends after `position`; None if there is none (yet).

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
        """Return rows without a gap between them, beginning with `first_after(position)`.

        Together they cover at most `most` bytes, or it is one row with a larger block. The list is empty if
        no row ends after `position` (yet).
        """
        if self.first_after(position) is None:
            return []
        return [Row(*row) for row in self._blocks.following(most)]

    def counting(self, position: int, most: int, limit: int = UNBOUNDED) -> tuple[int, int]:
        """Return the number of records of the rows that `covering` returns, and where the last one ends.

        Rows that end after byte `limit` do not count.
        """
        if self.first_after(position) is None:
            return 0, position
        return self._blocks.counted(most, limit) or (0, position)

    def reach(self, most: int, limit: int) -> int | None:
        """Return the end of the last row that `covering` returns and that ends by `limit`; None: none."""
        return self._blocks.reach(most, limit)

    def matching_end(self, data: memoryview) -> int:
        """Return up to which byte of the file blocks match; `data` begins with the first row's block.

        If the first block does not match, that is where it begins.
        """
        return self._blocks.matching_end(data)

    def _load(self) -> bool:
        """Load the next rows. False: there are none (yet)."""
        start = self._at
        end = start + _MOST_ZEROS
        while start < end and (handle := self._handle or self._open()) is not None:
            data = self._fs.pread(handle, _ROWS_AT_ONCE * ROW.size, start)
            # Zeros at the end are future rows, to be looked at again; zeros before a row are a hole in
            # the file, and corrupt rows are skipped.
            size = min(len(data), len(data.rstrip(b"\0")) + ROW.size - 1) // ROW.size * ROW.size
            if size:
                is_found = self._blocks.load(data[:size], start)
                self._at = start = start + size
                end = start + _MOST_ZEROS
                if is_found:
                    return True
            elif len(data) == _ROWS_AT_ONCE * ROW.size:
                start += len(data)
            else:
                return False
        return False

    def _first_whole(self, index: int, limit: int) -> Row | None:
        """Return the first whole row in rows index:limit, None if zeros come first."""
        assert self._handle is not None
        for number in range(index, limit):
            data = self._fs.pread(self._handle, ROW.size, number * ROW.size)
            if len(data) < ROW.size or data == _NO_ROW:
                return None
            if (row := _only_row(self._one, data)) is not None:
                return row
        return None

    def _last_whole(self, index: int) -> Row | None:
        """Return the last whole row before row `index`."""
        assert self._handle is not None
        for number in reversed(range(index)):
            row = _only_row(self._one, self._fs.pread(self._handle, ROW.size, number * ROW.size))
            if row is not None:
                return row
        return None


def rows_before(fs: FileSystem, path: str | None, position: int) -> tuple[int, int]:
    """Return the bytes of rows whose blocks end by byte `position` of the data, and the byte they reach.

    `path` is the checksum file's; None: there is none. Raises OSError.
    """
    rows = Rows(fs, path)
    try:
        rows.seek(position)
        return rows.consumed, rows.last_end
    finally:
        rows.close()


def sealed_end(fs: FileSystem, path: str | None) -> int | None:
    """Return where a complete file ends, by the row that seals it; None if the last row does not.

    It costs one read, however many rows there are. Raises OSError.
    """
    if path is None:
        return None
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        size = fs.size(handle)
        row = unpack_row(fs.pread(handle, ROW.size, size - ROW.size)) if size >= ROW.size else None
    finally:
        let_go(fs, handle)
    return row.end if row is not None and row.is_seal else None


def rows_after(fs: FileSystem, path: str | None, position: int) -> list[Row]:
    """Return all rows of the checksum file at `path` that end after byte `position` of the data.

    Raises OSError.
    """
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


def checksummed(fs: FileSystem, path: str, start: int = 0, until: int = UNBOUNDED) -> tuple[int, int]:
    """Return up to which byte the checksum file at `path` covers the data, and the records of those blocks.

    Blocks that end after byte `start` of the data count, and by byte `until`, whether or not the data exists.
    Raises OSError.
    """
    rows = Rows(fs, path)
    count, position = 0, start
    try:
        rows.seek(start)
        while True:
            records, end = rows.counting(position, UNBOUNDED, until)
            if end == position:
                return position, count
            count, position = count + records, end
    finally:
        rows.close()


def corrupt_rows(fs: FileSystem, path: str) -> list[int]:
    """Return where in the checksum file at `path` rows begin that are neither whole nor zeros.

    Raises OSError.
    """
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


# --- after a crash --------------------------------------------------------------------------------


def rows_of_other_bytes(
    fs: FileSystem,
    path: str,
    checksum_file: str,
    start: int = 0,
    count: Callable[[bytes], Count] | None = None,
) -> tuple[int, int] | None:
    """Return the bytes of rows that are of the file at `path`, and the byte of it that they reach.

    For a file to which another program has written since: a power cut may leave rows whose data it took, and
    the other program's bytes are there now. Those are the rows after the last one that matches, from byte
    `start` of the data on. A single one may be of a block that is damaged: if so by `count`, which counts
    records that have no checksum of their own, it stays. None: there are none; or the last row says that the
    file is complete, so that what does not match is damage. Raises OSError.
    """
    size = fs.size_of(path)
    if size is None or not fs.size_of(checksum_file):
        return None
    end = at = start
    others: list[Row] = []
    with opened(fs, path) as handle, contextlib.closing(Rows(fs, checksum_file)) as rows:
        rows.seek(start)
        while (row := rows.first_after(at)) is not None:
            at = row.end
            is_whole = row.end <= size and not row.is_seal
            if is_whole and row.matches(fs.pread(handle, row.end - row.start, row.start)):
                end = row.end
                others.clear()
            else:
                others.append(row)
        rows.seek(UNBOUNDED)
        if not others or (rows.last is not None and rows.last.is_seal and rows.last.end == size):
            return None
        if count is not None and len(others) == 1 and others[0].end <= size:
            row = others[0]
            if _is_damaged(row, fs.pread(handle, min(size - row.start, _AT_ONCE), row.start), count):
                return None
    return rows_before(fs, checksum_file, end)


def _is_damaged(row: Row, data: bytes, count: Callable[[bytes], Count]) -> bool:
    """True if the block of the row is damaged; False if other records are there. `data` begins with it."""
    rest = data[row.end - row.start :]
    return count(rest).valid_end == len(rest) and count(data).valid_end < len(data)


_SECTOR = 512
LEAST_ZEROS = 16
"""A run of at least this many zeros may be what a disk left for bytes that it has lost."""
_ZEROS = re.compile(rb"\0{%d,}" % LEAST_ZEROS)
_AT_ONCE = 1024 * 1024


def unwritten_at(
    fs: FileSystem, path: str, checksum_file: str | None, start: int, verified: tuple[int, int] = (0, 0)
) -> tuple[int, int] | None:
    """Return the first byte that may never have been written, and where the stretch around it begins.

    A stretch has no checksums, and such a byte begins zeros: up to the end of the file, or of the sector in
    which the stretch begins, or 16 of them. Or it is a block that does not match its checksum, and has 16 of
    them. A disk that lost what was not synced leaves that. A kill leaves none, as the write-ahead log has the
    checksums that the checksum file lacks. Bytes before `start` and those between the two of `verified` do
    not count. None: there is none. Raises OSError.
    """
    size = fs.size_of(path) or 0
    if start >= size:
        return None
    with opened(fs, path) as handle, contextlib.closing(Rows(fs, checksum_file)) as rows:
        rows.seek(start)
        at = start
        while at < size:
            if verified[0] <= at < verified[1]:
                at = verified[1]
                continue
            row = rows.first_after(at)
            if row is not None and row.end > size:
                row = None  # its block is not whole
            if row is not None and row.start <= at:
                if not row.matches(fs.pread(handle, row.end - row.start, row.start)):
                    found = _first_zeros(fs, handle, row.start, row.end, is_end=False)
                    if found is not None:
                        return found, row.start
                at = row.end
                continue
            end = size if row is None else row.start
            if at < verified[0]:
                end = min(end, verified[0])
            found = _first_zeros(fs, handle, at, end, is_end=end == size)
            if found is not None:
                return found, at
            at = end
    return None


def zeros_in(data: bytes) -> int | None:
    """Return where in `data` the first zeros begin that a disk may have left for bytes that it has lost."""
    found = _ZEROS.search(data)
    return None if found is None else found.start()


def _first_zeros(fs: FileSystem, handle: int, start: int, end: int, *, is_end: bool) -> int | None:
    """Return where zeros begin in bytes start:end that may never have been written; None: there are none."""
    sector = min(end, (start // _SECTOR + 1) * _SECTOR)
    if not fs.pread(handle, sector - start, start).strip(b"\0"):
        return start
    at, last = start, b""
    while at < end:
        last = fs.pread(handle, min(_AT_ONCE, end - at), at)
        if not last:
            break  # it has just become shorter
        if (found := zeros_in(last)) is not None:
            return at + found
        if at + len(last) == end:
            break
        at += len(last) - _SECTOR  # zeros across the border
    zeros = len(last) - len(last.rstrip(b"\0"))
    return end - zeros if is_end and zeros else None


class VerifiedPrefix(NamedTuple):
    """Up to which byte checksums match a file without a gap, and the number of records."""

    end: int
    records: int
    is_complete: bool
    """True if the file ends there, and its last row says that it is complete."""


def verified_prefix(
    fs: FileSystem,
    path: str,
    checksum_file: str | None,
    start: int,
    *,
    size: int | None = None,
    over_gaps: bool = False,
) -> VerifiedPrefix:
    """Return how far the file matches its checksums, from byte `start` on, where a block begins.

    Only the first `size` bytes of the file count (None: all). `over_gaps`: continue after bytes that no
    checksum covers. Raises OSError.
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
