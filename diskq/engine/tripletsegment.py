# The active segment of a partition, in go-diskq's three files. Law: data first, then the timeindex,
# the index last: who finds a row in the index finds the record.

from __future__ import annotations

from contextlib import ExitStack

from diskq._native.gate import Gate
from diskq._native.readahead import ReadAhead
from diskq._native.triplet import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming
from diskq._native.tripletbuffer import TripletBuffer
from diskq.engine.streamfiles import PartitionFiles
from diskq.engine.streampoints import Point
from diskq.engine.timemarks import TimeMarks
from diskq.storage.appendfile import AppendFile
from diskq.storage.barrier import Debts, close_all
from diskq.storage.fs import FileSystem

__all__ = ["TripletSegment"]


class TripletSegment:
    """What a partition writes to. It is the `LiveEnd` that readers of the same thread go by."""

    def __init__(
        self, fs: FileSystem, files: PartitionFiles, framing: TripletFraming, gate: Gate, roll_size: int
    ) -> None:
        self._fs = fs
        self._files = files
        self._roll_size = roll_size
        self.append = AppendFile(fs, gate, lambda tell: TripletBuffer(fs, framing, gate, tell))
        self.buffer = self.append.buffer
        self._index = self._timeindex = -1
        self._marks = TimeMarks(fs, files)

    # --- for readers of this thread ---------------------------------------------------------------

    @property
    def base(self) -> int:
        """The offset of the active segment's first record."""
        # Where the next segment could not be made yet, the one before is complete all the same.
        return self.buffer.base if self.append.is_open else self.next_offset

    @property
    def end(self) -> int:
        """The byte of its data up to which whole records are in the page cache."""
        return self.buffer.flushed

    @property
    def next_offset(self) -> int:
        """The offset behind the last record there."""
        return self.buffer.written_offset

    def lend(self, ahead: ReadAhead) -> bool:
        """Let it have what is written and still in memory of the bytes from its position on.

        False: nothing is. It must be at a byte of the active segment.
        """
        return self.buffer.flushed == self.buffer.end and self.buffer.lend(ahead)

    # --- from one segment to the next -------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.append.is_open

    @property
    def is_full(self) -> bool:
        return self.buffer.is_full

    @property
    def is_ready(self) -> bool:
        """May a record be appended without looking after anything first?"""
        return self.append.is_ready and not self.buffer.is_full

    def resume(self, base: int, end: int, rows: int, debts: Debts) -> None:
        """Go on in a segment that is there: behind byte `end` of its data, its checksums behind `rows`."""
        self._open(base, end, rows, debts)

    def begin(self, base: int, debts: Debts) -> None:
        self._open(base, 0, 0, debts)

    def _open(self, base: int, end: int, rows: int, debts: Debts) -> None:
        data, index, timeindex = self._files.segment(base)
        count = self.buffer.next_offset - base
        # In this order: to go-diskq the index file's name is the sign that the segment is there.
        self.append.begin(data, self._files.sidecar(base), debts, end=end, rows=rows)
        try:
            self._index = self._opened(index, count * INDEX_ROW_SIZE)
            self._timeindex = self._opened(timeindex, count * TIMEINDEX_ROW_SIZE)
            self._marks.begin(base, self._timeindex, count)
        except OSError:
            self.abandon()
            raise
        self.buffer.file_number = base
        self.buffer.begin_rows(base, self._index, self._timeindex)
        self.buffer.limit = self._roll_size

    def _opened(self, path: str, size: int) -> int:
        handle = self._fs.open(path, write=True, create=True)
        try:
            if self._fs.size(handle) > size:
                self._fs.truncate(handle, size)
        except BaseException:
            self._fs.close(handle)
            raise
        return handle

    def finish(self, debts: Debts) -> None:
        self.buffer.flush()
        self.buffer.write_rows()
        size = self.buffer.end
        self.append.finish(debts)
        debts.files += (self._timeindex, self._index)
        debts.closing += (self._timeindex, self._index)
        self._index = self._timeindex = -1
        self.buffer.retarget(-1, 0, 0)
        self._marks.seal(self.buffer.next_offset - self.buffer.base, size)

    def abandon(self) -> None:
        handles = [handle for handle in (self._index, self._timeindex) if handle >= 0]
        self._index = self._timeindex = -1
        with ExitStack() as stack:
            stack.callback(self.append.abandon)
            stack.callback(self._marks.close)
            stack.callback(close_all, self._fs, handles)

    def prepare(self) -> None:
        """Make room for the checksums of the next record. Raises OSError where there is none."""
        if self.append.needs_room:
            self.append.make_room_for_rows()

    def cut_back(self) -> None:
        """Drop what a failed write left behind the last whole record and its rows. Raises OSError."""
        if not self.append.is_open:
            return
        if self._fs.size(self.append.handle) > self.buffer.flushed:
            self.append.cut_back()
        count = self.buffer.rows_written - self.buffer.base
        for handle, size in (
            (self._index, count * INDEX_ROW_SIZE),
            (self._timeindex, count * TIMEINDEX_ROW_SIZE),
        ):
            if self._fs.size(handle) > size:
                self._fs.truncate(handle, size)

    def rows_are_written(self) -> None:
        """Note what the rows that were written say about time."""
        self._marks.extend(self.buffer.rows_written - self.buffer.base)

    # --- for barriers -----------------------------------------------------------------------------

    def settle(self) -> tuple[int, ...]:
        """All that is written has its checksum: the handles of the data and of those. Raises OSError."""
        return self.append.settle()

    @property
    def rows(self) -> tuple[int, ...]:
        """The handles of the timeindex and the index."""
        return (self._timeindex, self._index) if self.append.is_open else ()

    @property
    def point(self) -> Point:
        """Up to where it is written."""
        if not self.append.is_open:
            return Point(self.next_offset, 0, self.next_offset)
        return Point(self.buffer.base, self.buffer.flushed, self.buffer.written_offset)
