# Reading one segment of a journal. Law: a message is returned if a checksum covers it, or else its framing
# and offset are right; skipped bytes are reported, and the offsets after them are right, as records have
# theirs.
#
# Bytes at the end of a segment that is still written to, and that are not a whole record, are waited for:
# they may soon be one. After damage the next record is searched for (walk.py).

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Literal

from diskq._native.journal.codec import RECORD_OVERHEAD
from diskq._native.journal.read_ahead import SejAhead
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.walk import find_next
from diskq.engine.log.segment_reader import LogSegmentReader
from diskq.storage.block_reader import BrokenFraming, CorruptBlock, Loss, Unverified, WalRows
from diskq.storage.checksums import Row
from diskq.storage.fs import FileSystem

__all__ = ["JournalSegmentReader"]

_OFFSET = struct.Struct(">Q")

Tail = Literal["END", "TORN", "CORRUPT"]


class JournalSegmentReader(LogSegmentReader[SejAhead]):
    """One segment of a journal, as `LogSegmentReader`."""

    index_size = 0

    def __init__(
        self, fs: FileSystem, ahead: SejAhead, files: JournalFiles, base: int, wal_rows: WalRows | None = None
    ) -> None:
        super().__init__(fs, ahead, files, base, wal_rows)
        self.tail: Tail = "END"
        """Why nothing more is ready at the end: END at a boundary, TORN inside a record, or CORRUPT."""

    # --- where to begin ---------------------------------------------------------------------------

    def approach(self, offset: int) -> None:
        """Move to message `offset`, or as near before it as checksums allow."""
        if offset <= self.base:
            return
        low, high = 0, self.size
        best = (0, self.base)
        while low < high:
            middle = (low + high) // 2
            row = self._block_at(middle)
            if row is None or row.is_seal or row.start < best[0] or row.end > self.size:
                high = middle
                continue
            stated = self._offset_at(row.start)
            if stated is None or stated > offset or not self._is_as_written(row):
                high = middle
                continue
            best = (row.start, stated)
            low = max(middle + 1, row.end)
        self.begin_at(*best)

    def _block_at(self, position: int) -> Row | None:
        self.blocks.rows.seek(position)
        return self.blocks.rows.first_after(position)

    def _is_as_written(self, row: Row) -> bool:
        return row.matches(self._fs.pread(self.blocks.handle, row.end - row.start, row.start))

    def _offset_at(self, position: int) -> int | None:
        """Return the offset that the record at this byte has; None if it is impossible."""
        head = self._fs.pread(self.blocks.handle, _OFFSET.size, position)
        if len(head) < _OFFSET.size:
            return None
        (offset,) = _OFFSET.unpack(head)
        return offset if 0 <= offset - self.base <= position // RECORD_OVERHEAD else None

    # --- reading on -------------------------------------------------------------------------------

    def read_on(self, end: int, known_end: int | None = None, covered_end: int | None = None) -> Loss | None:
        """Read on, as `BlockReader.fill`. `known_end` is the offset after byte `end`, if that is known.

        All bytes up to there were then written. Otherwise bytes at the end that are not a record are left for
        later: nothing is ready, or lost.
        """
        if self._undecided is not None and self._undecided == self._state(end, known_end):
            return None
        self._readable_end, self._known_end = end, known_end
        if self._messages.position < end:
            self._undecided = None
            self.tail = "END"
            return self._fill(end, covered_end)
        return self.missing_end()

    def believe_to(self, end: int) -> None:
        """Do nothing: framing shows whether there are whole records up to byte `end`."""

    def missing_end(self) -> Loss | None:
        """Return the loss of messages after the end of the data, if any are known to have been there."""
        offset, position = self._messages.next_offset, self._messages.position
        if self._known_end is None or self._known_end <= offset or self._messages.is_ready:
            return None
        return self._lose(max(position, self.size), self._known_end, f"the file ends at byte {self.size}")

    def _state(self, end: int, known_end: int | None) -> object:
        return self._messages.position, end, known_end

    def _lose(self, end: int, next_offset: int, reason: str) -> Loss:
        """Skip to byte `end`, with message `next_offset`. Returns the loss."""
        start, offset = self._messages.position, self._messages.next_offset
        self._messages.seek(end)
        self._messages.next_offset = next_offset
        return Loss(start, end, next_offset - offset, reason)

    def _stated_offset_after(self, position: int, end: int) -> int | None:
        """Return the offset at byte `end`, after a broken part from `position` on; None if it is unknown."""
        expected = self._messages.next_offset
        if end >= self._readable_end:
            return None if self._known_end is None else max(expected, self._known_end)
        stated = self._offset_at(end)
        if stated is None or not 0 <= stated - expected <= (end - position) // RECORD_OVERHEAD:
            return None
        return stated

    # --- bytes with checksums ---------------------------------------------------------------------

    def _numbered(self, corrupt: CorruptBlock) -> Loss:
        loss, row = corrupt
        offset = self._messages.next_offset
        stated = self._stated_offset_after(loss.start, row.end)
        self._messages.next_offset = offset + (loss.records or 0) if stated is None else stated
        return replace(loss, records=self._messages.next_offset - offset)

    # --- bytes without ----------------------------------------------------------------------------

    def _take_unverified(self, unverified: Unverified) -> Loss | None:
        broken = self.blocks.take_framed(unverified)
        return None if broken is None else self._give_up(broken)

    def _give_up(self, broken: BrokenFraming) -> Loss | None:
        """Return the loss for a place without a record, where one was expected; None if that may change."""
        position, broken_end, _, reason, is_torn = broken
        end = min(broken_end, self._readable_end)
        offset = self._messages.next_offset
        is_growing = end == self._readable_end and self._known_end is None
        stated = self._stated_offset_after(position, end)
        most = offset + (end - position) // RECORD_OVERHEAD + 1
        self._messages.seek(position)
        found = find_next(
            self._fs,
            self.blocks.handle,
            position,
            end,
            offset,
            None if is_growing else most if stated is None else stated,
            may_be_torn=is_torn and is_growing,
        )
        if found is not None:
            return self._lose(*found, reason)
        if is_growing:
            self.tail = "TORN" if is_torn else "CORRUPT"
            self._undecided = self._state(self._readable_end, self._known_end)
            return None
        return self._lose(end, offset if stated is None else stated, reason)
