# The active segment of a partition, in go-diskq's three files. Law: data is written first, then the
# timeindex, the index last: a reader that finds an index entry finds the record.

from __future__ import annotations

from contextlib import ExitStack

from diskq._native.core.gate import Gate
from diskq._native.stream.append_buffer import TripletBuffer
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming
from diskq._native.stream.times import ROWS_IN_A_MARK
from diskq.engine.log.segment import OffsetSegment
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.index_entries import TIMEINDEX_ROW
from diskq.engine.stream.time_summary import TimeSummary
from diskq.storage.barrier import PendingSyncs, close_all, cut_to, open_at
from diskq.storage.fs import FileSystem

__all__ = ["TripletSegment"]


class TripletSegment(OffsetSegment[TripletBuffer]):
    """The segment to which a partition is written."""

    def __init__(
        self, fs: FileSystem, files: PartitionFiles, framing: TripletFraming, gate: Gate, roll_size: int
    ) -> None:
        super().__init__(fs, gate, lambda report: TripletBuffer(fs, framing, gate, report))
        self._files = files
        self._roll_size = roll_size
        self._index = self._timeindex = -1
        self._summary: TimeSummary | None = None  # until there is something to note

    def resume(self, base: int, end: int, rows: int, pending_syncs: PendingSyncs) -> None:
        data, index, timeindex = self._files.segment(base)
        count = self.buffer.next_offset - base
        # In this order: for go-diskq a segment exists when its index file has a name.
        self.append.begin(data, self._files.checksum_file(base), pending_syncs, end=end, rows=rows)
        try:
            self._index = open_at(self._fs, index, count * INDEX_ROW_SIZE)
            self._timeindex = open_at(self._fs, timeindex, count * TIMEINDEX_ROW_SIZE)
            if self._summary is None and (count >= ROWS_IN_A_MARK or self._files.has_notes):
                self._summary = TimeSummary(self._fs, self._files)
            if self._summary is not None:
                self._summary.begin(base, self._timeindex, count)
        except OSError:
            self.abandon()
            raise
        self.buffer.file_number = base
        self.buffer.begin_rows(base, self._index, self._timeindex)
        self.buffer.limit = self._roll_size

    def finish(self, pending_syncs: PendingSyncs) -> None:
        self.buffer.flush()
        self.buffer.write_rows()
        size, summary = self.buffer.end, self._begun_summary()
        super().finish(pending_syncs)
        pending_syncs.sync_and_close(self._timeindex, self._index)
        self._index = self._timeindex = -1
        summary.seal(self.buffer.next_offset - self.buffer.base, size)

    def abandon(self) -> None:
        handles = [handle for handle in (self._index, self._timeindex) if handle >= 0]
        self._index = self._timeindex = -1
        with ExitStack() as stack:
            stack.callback(super().abandon)
            if self._summary is not None:
                stack.callback(self._summary.close)
            stack.callback(close_all, self._fs, handles)

    def cut_back(self) -> None:
        """Drop what a failed write left after the last whole record and its entries. Raises OSError."""
        super().cut_back()
        if not self.append.is_open:
            return
        count = self.buffer.rows_written - self.buffer.base
        cut_to(self._fs, self._index, count * INDEX_ROW_SIZE)
        cut_to(self._fs, self._timeindex, count * TIMEINDEX_ROW_SIZE)

    def rows_are_written(self) -> None:
        """Update the time index summary for the entries that were written."""
        entries = self.buffer.rows_written - self.buffer.base
        if entries >= ROWS_IN_A_MARK:
            self._begun_summary().extend(entries)

    def _begun_summary(self) -> TimeSummary:
        if self._summary is None:
            self._summary = TimeSummary(self._fs, self._files, is_new=True)
            self._summary.begin(self.buffer.base, self._timeindex, 0)
        return self._summary

    def seal(self) -> None:
        """Make it full, so that the next record belongs into the next segment."""
        self.buffer.limit = min(self.buffer.limit, self.buffer.end)

    def first_timestamp(self) -> int | None:
        """Return the timestamp of its first record, in nanoseconds; None if there is none. Raises OSError."""
        if not self.append.is_open or self.buffer.rows_written == self.buffer.base:
            return None
        row = self._fs.pread(self._timeindex, TIMEINDEX_ROW.size, 0)
        timestamp: int = TIMEINDEX_ROW.unpack(row)[1]
        return timestamp

    @property
    def has_all_rows(self) -> bool:
        """True if each written record has its entries in the index and the timeindex."""
        return self.buffer.rows_written == self.buffer.written_offset

    @property
    def rows(self) -> tuple[int, ...]:
        """Return the handles of the timeindex and the index."""
        return (self._timeindex, self._index) if self.append.is_open else ()
