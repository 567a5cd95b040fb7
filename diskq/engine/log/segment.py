# A log in segments. Law: a segment is complete, rows and all, before the next one has a name; and
# what was complete is synced by the next barrier, without anybody waiting for it.
#
# What a segment is made of is its type's business: stream/segment.py, journal/segment.py,
# priority/command_segment.py. What the first two share, a data file with checksums beside it and offsets in
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
    """The segment that is written. One object serves a log for life, and is moved from one to the next."""

    @property
    def is_open(self) -> bool:
        """Is there a segment to write to?"""

    @property
    def is_full(self) -> bool:
        """Does the next record belong into the next segment?"""

    @property
    def next_offset(self) -> int:
        """The offset of the next record: the name of the next segment, when this one is full."""

    def begin(self, base: int, pending_syncs: PendingSyncs) -> None:
        """Make the files of the segment `base`, and write there. Raises OSError; it is then not open."""

    def finish(self, pending_syncs: PendingSyncs) -> None:
        """The segment is complete: the next barrier syncs and closes it. Raises OSError: as before."""

    def abandon(self) -> None:
        """Close it without a promise."""


A = TypeVar("A", bound=ActiveSegment)


class SegmentedLog(Generic[A]):
    """Segments in a row, the last of which is written to."""

    def __init__(self, active: A, bases: list[int]) -> None:
        self.active = active
        self.bases = bases
        """Offsets of the segments' first records, ascending."""

    def roll(self, pending_syncs: PendingSyncs) -> None:
        """Leave a full segment for the next one, or make up for a roll that failed.

        Raises OSError where there is no room, or no handle, for it: call it again before the next record.
        """
        if self.active.is_open:
            self.active.finish(pending_syncs)
        base = self.active.next_offset
        self.active.begin(base, pending_syncs)
        if base not in self.bases[-1:]:
            self.bases.append(base)


B = TypeVar("B", bound=OffsetBuffer)


class OffsetSegment(Generic[B]):
    """An active segment of a log with offsets. It is the `LiveEnd` that readers of the same thread go by."""

    def __init__(self, fs: FileSystem, gate: Gate, make_buffer: Callable[[OnBlock], B]) -> None:
        """`make_buffer` makes the format's buffer, as for `AppendFile`."""
        self._fs = fs
        self.append: AppendFile[B] = AppendFile(fs, gate, make_buffer)
        self.buffer = self.append.buffer

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

    def resume(self, base: int, end: int, rows: int, pending_syncs: PendingSyncs) -> None:
        """Go on in a segment that is there: behind byte `end` of its data, its checksums behind `rows`.

        Raises OSError; it is then not open.
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
        """Make room for the checksums of the next record. Raises OSError where there is none."""
        if self.append.needs_room:
            self.append.make_room_for_rows()

    def cut_back(self) -> None:
        """Drop what a failed write left behind the last whole record. Raises OSError."""
        if self.append.is_open:
            cut_to(self._fs, self.append.handle, self.buffer.flushed)

    # --- for barriers -----------------------------------------------------------------------------

    def settle(self) -> tuple[int, ...]:
        """All that is written has its checksum: the handles of the data and of those. Raises OSError."""
        return self.append.settle()

    @property
    def point(self) -> RecoveryPoint:
        """Up to where it is written."""
        if not self.append.is_open:
            return RecoveryPoint(self.next_offset, 0, self.next_offset)
        return RecoveryPoint(self.buffer.base, self.buffer.flushed, self.buffer.written_offset)
