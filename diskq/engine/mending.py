# Making the three files of a segment agree. Law: the data file is the authority; rows are made again
# from its records, and nothing that somebody wrote is destroyed.
#
# The rows that the records ask for are compared with those that are there. Where they differ, who is
# right depends on who vouches for the bytes:
#
#   a checksum agrees     the data is what was written: the row is replaced.
#   a checksum disagrees  the block is rotten: its rows stay as they are, and whoever reads is told.
#   nobody                a peer wrote it. A row that fits a record, and its time, is believed, also
#                         where go-diskq left the torn half of an older record before it; otherwise
#                         the record is.

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq._native.triplet import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming
from diskq._native.tripletrows import RowsOf, rows_of
from diskq.engine.streamfiles import PartitionFiles
from diskq.storage.barrier import write_all
from diskq.storage.checksums import Row, Rows
from diskq.storage.fs import FileSystem
from diskq.storage.recovery import Repair, cut_tail, keep_copy

__all__ = ["INDEX_ROW", "Mended", "mend"]

INDEX_ROW = struct.Struct("<QQQ")
assert INDEX_ROW.size == INDEX_ROW_SIZE
_TIMEINDEX_ROW = struct.Struct("<Qq")
assert _TIMEINDEX_ROW.size == TIMEINDEX_ROW_SIZE

_CHUNK = 1024 * 1024


@dataclass(slots=True)
class Mended:
    """A segment whose files agree: its data ends at byte `end`, and the next record has `next_offset`."""

    end: int
    next_offset: int
    is_changed: bool = False
    """Is a row that was there another one now, or gone?"""
    repairs: list[Repair] = field(default_factory=list)


class _Place(NamedTuple):
    position: int
    offset: int


def mend(fs: FileSystem, files: PartitionFiles, framing: TripletFraming, base: int) -> Mended:
    """Make the files of the segment at `base` agree. Raises OSError."""
    mender = _Mender(fs, files, framing, base)
    try:
        return mender.run()
    finally:
        mender.close()


class _Mender:
    def __init__(self, fs: FileSystem, files: PartitionFiles, framing: TripletFraming, base: int) -> None:
        self.fs = fs
        self.files = files
        self.framing = framing
        self.base = base
        self.data, self.index, self.timeindex = files.segment(base)
        self.rows = _SegmentRows(base, _content(fs, self.index), _content(fs, self.timeindex))
        self.mended = Mended(0, base)
        self.sums = Rows(fs, files.sidecar(base))
        try:
            self.handle = fs.open(self.data)
        except OSError:
            self.sums.close()
            raise
        self.size = 0

    def close(self) -> None:
        self.fs.close(self.handle)
        self.sums.close()

    def run(self) -> Mended:
        self.size = self.fs.size(self.handle)
        self.sums.seek(0)
        end, next_offset = self._walk()
        self.mended.end, self.mended.next_offset = end, next_offset
        if end < self.size:
            self._cut(self.data, end, f"a record that is not whole ({self.size - end} bytes)")
        count = next_offset - self.base
        self._write(self.timeindex, self.rows.timeindex_patches(), count, TIMEINDEX_ROW_SIZE)
        self._write(self.index, self.rows.index_patches(), count, INDEX_ROW_SIZE)
        return self.mended

    # --- the records ------------------------------------------------------------------------------

    def _walk(self) -> _Place:
        """Go through the records, settle their rows, and go on behind what cannot be read."""
        place = _Place(0, self.base)
        want = _CHUNK
        while place.position < self.size:
            made = self._scanned(place, want)
            moved = self._settle_rows(place, made)
            if moved is not None:
                place = moved
                continue
            place = _Place(place.position + made.valid_end, place.offset + made.records)
            left = self.size - place.position
            if made.stop == "TORN" and made.claimed <= left and (made.records or want < left):
                want = max(_CHUNK, 2 * want if not made.records else 0, made.claimed)
            elif made.stop != "END":
                further = self._beyond(place)
                if further is None:
                    break
                place = further
        return place

    def _scanned(self, place: _Place, size: int) -> RowsOf:
        chunk = self.fs.pread(self.handle, min(size, self.size - place.position), place.position)
        return rows_of(self.framing, chunk, place.offset, place.position)

    def _settle_rows(self, place: _Place, made: RowsOf) -> _Place | None:
        """Decide on each record whose rows are not those that it asks for.

        None: all of `made` is the truth. Otherwise the place to go on at, which is another one.
        """
        number = 0
        while (number := self.rows.agreed(place.offset, made, number)) < made.records:
            offset = place.offset + number
            position, size = INDEX_ROW.unpack_from(made.index_rows, number * INDEX_ROW_SIZE)[1:]
            if not self.rows.has(offset):
                self.rows.put(offset, made, number, made.records)  # never written, as all behind it
                return None
            block = self._block_at(position)
            if block is None:
                told = self._believed(offset, position)
                if told is not None and told.position != position + size:
                    return told
            elif not self._matches(block):
                return self._behind(block, _Place(position, offset))
            self.rows.put(offset, made, number, number + 1)
            number += 1
        return None

    def _beyond(self, place: _Place) -> _Place | None:
        """No record begins here. Where does one, further on? None: nowhere, this is the end."""
        block = self._block_at(place.position)
        if block is not None and block.end <= self.size:
            return self._behind(block, place)
        for offset in range(place.offset, self.base + self.rows.count):
            told = self._believed(offset, place.position)
            if told is not None:
                if lost := offset - place.offset:
                    start = told.position - self.rows.index_row(offset)[2]
                    self._report(self.data, place.position, start, "no record can be read there", lost)
                return told
        return None

    def _believed(self, offset: int, position: int) -> _Place | None:
        """Behind the record that the rows of `offset` tell of, at `position` or later, if they fit it."""
        if not self.rows.has(offset):
            return None
        said, start, size = self.rows.index_row(offset)
        if said != offset or start < position or start + size > self.size:
            return None
        made = rows_of(self.framing, self.fs.pread(self.handle, size, start), offset, start)
        fits = made.records == 1 and made.valid_end == size
        return _Place(start + size, offset + 1) if fits and self.rows.agreed(offset, made, 0) == 1 else None

    def _block_at(self, position: int) -> Row | None:
        """The block of checksums that covers the byte, if there is one."""
        blocks = self.sums.covering(position, 0)
        return blocks[0] if blocks and blocks[0].start <= position else None

    def _matches(self, block: Row) -> bool:
        return block.matches(self.fs.pread(self.handle, block.end - block.start, block.start))

    def _behind(self, block: Row, place: _Place) -> _Place:
        """Behind a rotten block. Its checksum's row knows how many records it held."""
        whole = self.fs.pread(self.handle, place.position - block.start, block.start)
        before = rows_of(self.framing, whole, 0, block.start).records
        return _Place(block.end, place.offset - before + block.records)

    # --- the files --------------------------------------------------------------------------------

    def _write(self, path: str, patches: list[tuple[int, bytes]], count: int, row_size: int) -> None:
        """Write the rows that were decided on, and cut those that belong to no record."""
        handle = self.fs.open(path, write=True, create=True)
        try:
            size = self.fs.size(handle)
            if size > count * row_size:
                self.mended.is_changed |= size >= (count + 1) * row_size
                self._cut(path, count * row_size, "rows of no record")
            whole = min(size // row_size, count) * row_size
            wrong = [start for start, _ in patches if start < whole]
            if wrong:
                self.mended.is_changed = True
                aside = keep_copy(self.fs, handle, self.files.kept(path))
                self._report(path, wrong[0], whole, "rows that disagree with their records", 0, aside)
            for start, content in patches:
                write_all(self.fs, handle, content, start)
        finally:
            self.fs.close(handle)

    def _cut(self, path: str, end: int, reason: str) -> None:
        """What a torn write left was never acknowledged, and is no message lost."""
        handle = self.fs.open(path, write=True)
        try:
            self.mended.repairs.append(
                cut_tail(self.fs, handle, path, end, reason, 0, beside=self.files.kept(path))
            )
        finally:
            self.fs.close(handle)

    def _report(
        self, path: str, start: int, end: int, reason: str, records: int, aside: str | None = None
    ) -> None:
        self.mended.repairs.append(
            Repair(path=path, kept=start, dropped=end - start, reason=reason, records=records, saved_as=aside)
        )


class _SegmentRows:
    """The rows of a segment as they are on disk, and as they are to be."""

    def __init__(self, base: int, index: bytes, timeindex: bytes) -> None:
        self.base = base
        self._index = memoryview(index)
        self._timeindex = memoryview(timeindex)
        self.count = min(len(index) // INDEX_ROW_SIZE, len(timeindex) // TIMEINDEX_ROW_SIZE)
        """So many records have both of their rows."""
        self._patches: list[tuple[int, bytes, bytes]] = []

    def has(self, offset: int) -> bool:
        return offset - self.base < self.count

    def index_row(self, offset: int) -> tuple[int, int, int]:
        """Offset, position, size: what the row at that offset's place says."""
        offset, position, size = INDEX_ROW.unpack_from(self._index, (offset - self.base) * INDEX_ROW_SIZE)
        return offset, position, size

    def agreed(self, offset: int, made: RowsOf, start: int) -> int:
        """The first of the rows `made` from `start` on, the first being `offset`'s, that is not there so."""
        if self._is_there(offset, made, start, made.records):
            return made.records
        number = start
        while self._is_there(offset, made, number, number + 1):
            number += 1
        return number

    def _is_there(self, offset: int, made: RowsOf, start: int, end: int) -> bool:
        first, last = offset - self.base + start, offset - self.base + end
        index = self._index[first * INDEX_ROW_SIZE : last * INDEX_ROW_SIZE]
        timeindex = self._timeindex[first * TIMEINDEX_ROW_SIZE : last * TIMEINDEX_ROW_SIZE]
        return (
            index == memoryview(made.index_rows)[start * INDEX_ROW_SIZE : end * INDEX_ROW_SIZE]
            and timeindex
            == memoryview(made.timeindex_rows)[start * TIMEINDEX_ROW_SIZE : end * TIMEINDEX_ROW_SIZE]
        )

    def put(self, offset: int, made: RowsOf, start: int, end: int) -> None:
        """From `offset` on, the rows start:end of those made are to be there."""
        self._patches.append(
            (
                offset - self.base,
                made.index_rows[start * INDEX_ROW_SIZE : end * INDEX_ROW_SIZE],
                made.timeindex_rows[start * TIMEINDEX_ROW_SIZE : end * TIMEINDEX_ROW_SIZE],
            )
        )

    def index_patches(self) -> list[tuple[int, bytes]]:
        return _joined((row * INDEX_ROW_SIZE, index) for row, index, _ in self._patches)

    def timeindex_patches(self) -> list[tuple[int, bytes]]:
        return _joined((row * TIMEINDEX_ROW_SIZE, timeindex) for row, _, timeindex in self._patches)


def _joined(patches: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Pieces that follow each other, as one."""
    joined: list[tuple[int, bytearray]] = []
    for start, content in patches:
        if joined and joined[-1][0] + len(joined[-1][1]) == start:
            joined[-1][1].extend(content)
        else:
            joined.append((start, bytearray(content)))
    return [(start, bytes(content)) for start, content in joined]


def _content(fs: FileSystem, path: str) -> bytes:
    size = fs.size_of(path)
    if not size:
        return b""
    handle = fs.open(path)
    try:
        return fs.pread(handle, size, 0)
    finally:
        fs.close(handle)
