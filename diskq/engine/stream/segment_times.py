# The timestamps of one segment. Law: the data file is the authority. The timeindex is believed where a mark's
# checksum agrees with its bytes; without a mark, an answer from it is compared with the record itself; and
# if it is wrong, or missing, the records are read instead.

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming
from diskq._native.stream.times import (
    MARK_SIZE,
    ROWS_IN_A_MARK,
    counts_up,
    extremes,
    first_from,
    first_mark,
    survey,
    times_of,
)
from diskq.engine.log.time_lookup import EARLIEST, SegmentGone
from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.engine.stream.index_entries import INDEX_ROW, TIMEINDEX_ROW
from diskq.engine.stream.settings import read_settings
from diskq.engine.stream.time_summary import (
    CHUNK,
    LATEST,
    Sealed,
    greatest_of,
    is_whole_mark,
    make_marks,
    marked_crc,
    pack_mark,
    read_marks,
)
from diskq.storage.barrier import let_go
from diskq.storage.checksums import checksum
from diskq.storage.fs import FileSystem

__all__ = ["SegmentGone", "SegmentTimes", "framing_of"]

_AT_ONCE = 64 * CHUNK
_STRETCH = 64 * 1024  # bytes of data
_LEAST_RECORD = 10  # bytes
_PEEK = 512  # bytes: usually enough for a record's key and timestamp
_NONE = -1


def framing_of(fs: FileSystem, files: StreamFiles) -> Callable[[], TripletFraming]:
    """Return a function that reads the framing of the stream's records: usually no record need be read.

    That function raises UnsupportedFormatError, and OSError.
    """

    @cache
    def framing() -> TripletFraming:
        settings = read_settings(fs, files)
        return TripletFraming(varuint=settings is not None and settings.encoding == "varuint")

    return framing


class _Doubt(Exception):
    """The timeindex, or its marks, cannot be right: the records have to be read."""


class SegmentTimes:
    """The timestamps of one segment, which grows until `settle` sets where it ends.

    All calls raise OSError; and SegmentGone, with the files closed, if the segment was removed.
    """

    def __init__(
        self, fs: FileSystem, files: PartitionFiles, base: int, framing: Callable[[], TripletFraming]
    ) -> None:
        self._fs = fs
        self._files = files
        self._framing = framing
        self.base = base
        self.entries = 0
        """The number of messages that are known to exist."""
        self._seal: Sealed | None = None
        self._most: int | None = None  # entries, up to the next segment
        self._marks = bytearray()
        self._vouched = 0  # how many of the marks were read from their file, not made here
        self._held = bytearray()  # for each mark: 1 if it, and the one before, are known to be whole
        self._starts: list[int] = []  # by the records: the byte at which each 256 of them begin
        self._timeindex = self._index = self._data = _NONE

    # --- where it ends, and its files -------------------------------------------------------------

    def settle(self, next_base: int, seal: Sealed | None = None) -> None:
        """Note that the segment is complete, up to `next_base`. `seal` is believed if its size fits."""
        self.close()
        self._most = next_base - self.base
        self._seal = seal
        self.entries = self._most

    def refresh(self) -> None:
        """Count the messages again if the segment may have grown: those that have an index entry."""
        if self._most is not None:
            return
        self._open_index()
        if self._index == _NONE or not self._fs.has_name(self._index):
            self._check()  # a vanished index alone is damage
            self._index = self._closed(self._index)
        else:
            self.entries = self._fs.size(self._index) // INDEX_ROW_SIZE

    def count(self) -> int:
        """Return the number of messages in the segment."""
        self.refresh()
        self._check()
        return self.entries

    def find_more(self, next_offset: int) -> int:
        """Return the count, with messages up to `next_offset` that a reader found without entries."""
        self._check()
        self.entries = max(self.entries, next_offset - self.base)
        return self.entries

    def close(self) -> None:
        """Close the files until they are needed again. Idempotent."""
        self._timeindex = self._closed(self._timeindex)
        self._index = self._closed(self._index)
        self._data = self._closed(self._data)

    def _closed(self, handle: int) -> int:
        let_go(self._fs, handle)
        return _NONE

    def _check(self) -> None:
        """Open the timeindex. Raises SegmentGone if the segment is gone, or not the one that was sealed."""
        if self._timeindex != _NONE:
            if self._fs.has_name(self._timeindex):
                return
            self.close()
        size = self._fs.size_of(self._files.data(self.base))
        if size is None or (self._seal is not None and size != self._seal.size):
            self.close()
            raise SegmentGone(self._files.data(self.base))
        self._timeindex = self._opened(self._files.timeindex(self.base))
        if self._most is not None and self._seal is None:
            self.entries = min(self._most, self._rows_there() or size // _LEAST_RECORD)

    def _rows_there(self) -> int:
        """Return the entries of a complete segment. A hole may follow it: go-diskq's vacuum, or a loss."""
        index = self._fs.size_of(self._files.index_of(self.base)) or 0
        timeindex = self._fs.size(self._timeindex) if self._timeindex != _NONE else 0
        return max(index // INDEX_ROW_SIZE, timeindex // TIMEINDEX_ROW_SIZE)

    def _opened(self, path: str) -> int:
        try:
            return self._fs.open(path)
        except FileNotFoundError:
            return _NONE

    def _open_index(self) -> None:
        if self._index == _NONE:
            self._index = self._opened(self._files.index_of(self.base))

    def _open_data(self) -> None:
        if self._data == _NONE:
            self._data = self._opened(self._files.data(self.base))
            if self._data == _NONE:
                self.close()
                raise SegmentGone(self._files.data(self.base))

    # --- questions --------------------------------------------------------------------------------

    def first_from(self, bound: int) -> int | None:
        """Return the first offset whose timestamp is at or after `bound`; None if this segment has none."""
        self._check()
        if not self._starts:
            try:
                return self._first_by_marks(bound)
            except _Doubt:
                self._begin_anew()
        return self._first_by_records(bound)

    def greatest(self) -> int:
        """Return the greatest timestamp; EARLIEST if there are no messages."""
        self._check()
        if self._seal is not None:
            return self._seal.greatest
        if not self._starts:
            try:
                return self._greatest_by_marks()
            except _Doubt:
                self._begin_anew()
        self._read_on()
        rest = self._records_of(len(self._marks) // MARK_SIZE)
        return max(greatest_of(self._marks), extremes(rest)[1] if rest else EARLIEST)

    def timestamp_of(self, offset: int) -> int | None:
        """Return the timestamp in the message's record; None if it is missing or cannot be read."""
        self._check()
        if not self.base <= offset < self.base + self.entries:
            return None
        timestamp = self._recorded_timestamp(offset)
        if timestamp is not None:
            return timestamp
        if not self._starts:
            self._begin_anew()
        self._read_on()
        rows = self._records_of((offset - self.base) // ROWS_IN_A_MARK)
        return next(
            (its_own for number, its_own in TIMEINDEX_ROW.iter_unpack(rows) if number == offset), None
        )

    # --- by the timeindex and its marks -----------------------------------------------------------

    def _first_by_marks(self, bound: int) -> int | None:
        count = self._know_marks()
        number = first_mark(self._marks, bound)
        self._hold(number)
        rows, is_sure = self._chunk(number)
        at = first_from(rows, bound)
        if at >= 0:
            offset, timestamp = TIMEINDEX_ROW.unpack_from(rows, at * TIMEINDEX_ROW_SIZE)
            if is_sure or self._recorded_timestamp(offset) == timestamp:
                return int(offset)
            raise _Doubt
        if number < count:
            raise _Doubt
        return None

    def _greatest_by_marks(self) -> int:
        count = self._know_marks()
        self._hold(count)
        rest, _ = self._chunk(count)
        return max(greatest_of(self._marks), extremes(rest)[1] if rest else EARLIEST)

    def _know_marks(self) -> int:
        """Read or make the marks of all whole 256 entries. Returns their number."""
        if self._timeindex == _NONE:
            raise _Doubt
        wanted = self.entries // ROWS_IN_A_MARK
        count = len(self._marks) // MARK_SIZE
        if count < wanted and count == self._vouched:
            self._marks += read_marks(self._fs, self._files, self.base, count, wanted)
            self._vouched = count = len(self._marks) // MARK_SIZE
        while count < wanted:
            self._hold(count)
            size = min((wanted - count) * CHUNK, _AT_ONCE)
            rows = self._fs.pread(self._timeindex, size, count * CHUNK)
            read = survey(rows, self.base + count * ROWS_IN_A_MARK, greatest_of(self._marks))
            if read is None or len(rows) != size:
                raise _Doubt
            self._marks += make_marks(rows, read.maxima)
            count += size // CHUNK
        self._held += bytes(count + 1 - len(self._held))
        return count

    def _hold(self, number: int) -> None:
        """Check that mark `number`, if it exists, and the one before are whole. Raises _Doubt."""
        if number < len(self._held) and self._held[number]:
            return
        for its in range(max(0, number - 1), min(number + 1, len(self._marks) // MARK_SIZE)):
            if not is_whole_mark(self._marks, its):
                raise _Doubt
        if number < len(self._marks) // MARK_SIZE:
            self._held += bytes(max(0, number + 1 - len(self._held)))
            self._held[number] = True

    def _chunk(self, number: int) -> tuple[bytes, bool]:
        """Return the entries of mark `number`, or after the last mark; and True if a checksum agrees."""
        start = number * ROWS_IN_A_MARK
        size = min(ROWS_IN_A_MARK, self.entries - start) * TIMEINDEX_ROW_SIZE
        crc = None
        if number < self._vouched:
            crc = marked_crc(self._marks, number)
        elif self._seal is not None and size < CHUNK:
            crc = self._seal.rest
        rows = self._fs.pread(self._timeindex, size, number * CHUNK)
        if crc is not None and checksum(rows) == crc:
            return rows, True
        if crc is None and len(rows) == size and counts_up(rows, self.base + start):
            return rows, False
        raise _Doubt

    def _recorded_timestamp(self, offset: int) -> int | None:
        """Return the timestamp of the record at the index entry's position; None if no record is there."""
        self._open_index()
        if self._index == _NONE:
            return None
        row = self._fs.pread(self._index, INDEX_ROW_SIZE, (offset - self.base) * INDEX_ROW_SIZE)
        if len(row) != INDEX_ROW_SIZE:
            return None
        number, position, size = INDEX_ROW.unpack(row)
        if number != offset or max(position, size) > LATEST:
            return None
        rows, _ = self._times(offset, offset + 1, position, row, _PEEK)
        return int(TIMEINDEX_ROW.unpack(rows)[1]) if rows else None

    # --- by the records ---------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Discard what was learned from the timeindex, and use the records."""
        self._marks.clear()
        self._held.clear()
        self._vouched = 0
        self._starts = [0]

    def _first_by_records(self, bound: int) -> int | None:
        self._read_on()
        for number in range(first_mark(self._marks, bound), len(self._starts)):
            rows = self._records_of(number)
            at = first_from(rows, bound)
            if at >= 0:
                return int(TIMEINDEX_ROW.unpack_from(rows, at * TIMEINDEX_ROW_SIZE)[0])
        return None

    def _read_on(self) -> None:
        """Make marks, and find places, of all whole 256 offsets."""
        while len(self._starts) * ROWS_IN_A_MARK <= self.entries:
            number = len(self._starts) - 1
            rows, end = self._read(number)
            greatest = max(greatest_of(self._marks), extremes(rows)[1] if rows else EARLIEST)
            self._marks += pack_mark(greatest, 0)
            self._starts.append(end)

    def _records_of(self, number: int) -> bytes:
        """Return timeindex entries, from records, of 256 offsets, or those after the last whole 256."""
        return self._read(number)[0]

    def _read(self, number: int) -> tuple[bytes, int]:
        first = self.base + number * ROWS_IN_A_MARK
        last = min(first + ROWS_IN_A_MARK, self.base + self.entries)
        self._open_index()
        index = b""
        if self._index != _NONE:
            start = (first - self.base) * INDEX_ROW_SIZE
            index = self._fs.pread(self._index, (last - first) * INDEX_ROW_SIZE, start)
        return self._times(first, last, self._starts[number], index, _STRETCH)

    def _times(
        self, offset: int, end_offset: int, position: int, index: bytes, stretch: int
    ) -> tuple[bytes, int]:
        """Return timeindex entries of the records from `offset`, at `position`, and the byte after them."""
        self._open_data()
        file_end = self._fs.size(self._data)
        framing = self._framing()
        rows = []
        first, window, start = offset, b"", 0
        while True:
            read = times_of(
                framing,
                window,
                start,
                file_end,
                index[(offset - first) * INDEX_ROW_SIZE :],
                offset,
                position,
                end_offset,
            )
            rows.append(read.rows)
            offset, position = read.next_offset, read.position
            if read.wanted is None:
                break
            start, needed = read.wanted
            window = self._fs.pread(self._data, max(needed, stretch), start)
            if len(window) < needed:
                break  # another process cut the file
        return b"".join(rows), position
