# A log in segments. Law: a segment is complete, with all its entries, before the next one has a name; the
# next barrier syncs complete segments, and no call waits for that.
#
# Each kind defines what its segments consist of: stream/segment.py, journal/segment.py,
# priority/command_segment.py. What the first two share, a data file with a checksum file and with offsets in
# its buffer, is here.

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from diskq._native.core.gate import Gate
from diskq._native.core.offset_buffer import OffsetBuffer
from diskq._native.core.read_ahead import ReadAhead
from diskq.engine.log.recovery_points import RecoveryPoint
from diskq.storage.append_file import AppendFile, OnBlock
from diskq.storage.barrier import PendingSyncs, cut_to
from diskq.storage.fs import FileSystem

__all__ = ["ActiveSegment", "OffsetSegment", "SegmentedLog"]


class ActiveSegment(Protocol):
    """The segment that is being written. One object serves all segments of a log, one after the other."""

    @property
    def is_open(self) -> bool:
        """True if there is a segment to write to."""

    @property
    def is_full(self) -> bool:
        """True if the next record belongs into the next segment."""

    @property
    def next_offset(self) -> int:
        """The offset of the next record: the name of the next segment, when this one is full."""

    def begin(self, base: int, pending_syncs: PendingSyncs) -> None:
        """Make the files of the segment `base`, and write there. Raises OSError; it is then not open."""

    def finish(self, pending_syncs: PendingSyncs) -> None:
        """Complete the segment: the next barrier syncs and closes it. Raises OSError, without any change."""

    def abandon(self) -> None:
        """Close it without a promise."""


A = TypeVar("A", bound=ActiveSegment)


class SegmentedLog(Generic[A]):
    """Segments in order; the last one is being written."""

    def __init__(self, active: A, bases: list[int]) -> None:
        self.active = active
        self.bases = bases
        """Offsets of the segments' first records, ascending."""

    def roll(self, pending_syncs: PendingSyncs) -> None:
        """Go on from a full segment to the next one, or repeat a roll that failed.

        Raises OSError if there is no space, or no handle, for it: call it again before the next record.
        """
        if self.active.is_open:
            self.active.finish(pending_syncs)
        base = self.active.next_offset
        self.active.begin(base, pending_syncs)
        if base not in self.bases[-1:]:
            self.bases.append(base)


B = TypeVar("B", bound=OffsetBuffer)


class OffsetSegment(Generic[B]):
    """An active segment of a log with offsets. It is the `LiveEnd` for readers of the same thread."""

    def __init__(self, fs: FileSystem, gate: Gate, make_buffer: Callable[[OnBlock], B]) -> None:
        """`make_buffer` makes the format's buffer, as for `AppendFile`."""
        self._fs = fs
        self.append: AppendFile[B] = AppendFile(fs, gate, make_buffer)
        self.buffer = self.append.buffer

    # --- for readers of this thread ---------------------------------------------------------------

    @property
    def base(self) -> int:
        """The offset of the active segment's first record."""
        # While the next segment cannot be made, the one before is complete already.
        return self.buffer.base if self.append.is_open else self.next_offset

    @property
    def end(self) -> int:
        """The byte of its data up to which whole records are in the page cache."""
        return self.buffer.flushed

    @property
    def next_offset(self) -> int:
        """The offset after the last record there."""
        return self.buffer.written_offset

    def lend(self, ahead: ReadAhead) -> bool:
        """Pass to `ahead` the bytes from its position on that are written and still in memory.

        False if there are none. `ahead` must be at a byte of the active segment.
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
        """True if a record may be appended at once, without `prepare` or a roll."""
        return self.append.is_ready and not self.buffer.is_full

    def resume(self, base: int, end: int, rows: int, pending_syncs: PendingSyncs) -> None:
        """Go on in an existing segment: after `end` bytes of data and `rows` bytes of the checksum file.

        Raises OSError; the segment is then not open.
        """
        raise NotImplementedError

    def begin(self, base: int, pending_syncs: PendingSyncs) -> None:
        self.resume(base, 0, 0, pending_syncs)

    def finish(self, pending_syncs: PendingSyncs) -> None:
        self.buffer.flush()
        self.append.finish(pending_syncs)
        self.buffer.retarget(-1, 0, 0)

    def abandon(self) -> None:
        self.append.abandon()

    def prepare(self) -> None:
        """Reserve disk space for the checksums of the next record. Raises OSError if there is none."""
        if self.append.needs_room:
            self.append.prepare()

    def cut_back(self) -> None:
        """Cut off what a failed write left after the last whole record. Raises OSError."""
        if self.append.is_open:
            cut_to(self._fs, self.append.handle, self.buffer.flushed)

    # --- for barriers -----------------------------------------------------------------------------

    def settle(self) -> tuple[int, ...]:
        """Write all checksums still missing. Returns the handles of both files. Raises OSError."""
        return self.append.settle()

    @property
    def point(self) -> RecoveryPoint:
        """The place up to which the segment is written."""
        if not self.append.is_open:
            return RecoveryPoint(self.next_offset, 0, self.next_offset)
        return RecoveryPoint(self.buffer.base, self.buffer.flushed, self.buffer.written_offset)
