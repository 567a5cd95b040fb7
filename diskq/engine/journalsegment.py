# The active segment of a journal: one file, its checksums beside it. Law: it is complete before the next
# one has a name, and it is left behind the record that fills it, as sej leaves it.

from __future__ import annotations

from collections.abc import Callable

from diskq._native.gate import Gate
from diskq._native.readahead import ReadAhead
from diskq._native.sej import SejFraming
from diskq._native.sejbuffer import SejBuffer
from diskq.engine.journalfiles import JournalFiles
from diskq.engine.streampoints import Point
from diskq.storage.appendfile import AppendFile
from diskq.storage.barrier import Debts
from diskq.storage.fs import FileSystem

__all__ = ["JournalSegment"]


class JournalSegment:
    """What a journal writes to. It is the `LiveEnd` that readers of the same thread go by."""

    def __init__(
        self, fs: FileSystem, files: JournalFiles, framing: SejFraming, gate: Gate, segment_size: int
    ) -> None:
        self._fs = fs
        self._files = files
        self._segment_size = segment_size
        self.append = AppendFile(fs, gate, lambda tell: SejBuffer(fs, framing, gate, tell))
        self.buffer = self.append.buffer

    def count_from(
        self, next_offset: int, clock: Callable[[], int] | None, on_full: Callable[[], object]
    ) -> None:
        """Once, before the first record: it gets this offset. `on_full` is told of each file that is full."""
        self.buffer.count_from(next_offset, clock, on_full)

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
        self.append.begin(self._files.data(base), self._files.sidecar(base), debts, end=end, rows=rows)
        self.buffer.begin(base)
        self.buffer.file_number = base
        # One that is full already takes one more: sej asks behind each record.
        self.buffer.limit = max(end + 1, self._segment_size)

    def begin(self, base: int, debts: Debts) -> None:
        self.resume(base, 0, 0, debts)

    def finish(self, debts: Debts) -> None:
        self.buffer.flush()
        self.append.finish(debts)
        self.buffer.retarget(-1, 0, 0)

    def abandon(self) -> None:
        self.append.abandon()

    def prepare(self) -> None:
        """Make room for the checksums of the next record. Raises OSError where there is none."""
        if self.append.needs_room:
            self.append.make_room_for_rows()

    def cut_back(self) -> None:
        """Drop what a failed write left behind the last whole record. Raises OSError."""
        if self.append.is_open and self._fs.size(self.append.handle) > self.buffer.flushed:
            self.append.cut_back()

    # --- for barriers -----------------------------------------------------------------------------

    def settle(self) -> tuple[int, ...]:
        """All that is written has its checksum: the handles of the data and of those. Raises OSError."""
        return self.append.settle()

    @property
    def point(self) -> Point:
        """Up to where it is written."""
        if not self.append.is_open:
            return Point(self.next_offset, 0, self.next_offset)
        return Point(self.buffer.base, self.buffer.flushed, self.buffer.written_offset)
