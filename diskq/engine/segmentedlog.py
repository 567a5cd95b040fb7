# A log in segments. Law: a segment is complete, rows and all, before the next one has a name; and
# what was complete is synced by the next barrier, without anybody waiting for it.
#
# What a segment is made of is its type's business: see tripletsegment.py.

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from diskq.storage.barrier import Debts

__all__ = ["ActiveSegment", "SegmentedLog"]


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

    def begin(self, base: int, debts: Debts) -> None:
        """Make the files of the segment `base`, and write there. Raises OSError; it is then not open."""

    def finish(self, debts: Debts) -> None:
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

    def roll(self, debts: Debts) -> None:
        """Leave a full segment for the next one, or make up for a roll that failed.

        Raises OSError where there is no room, or no handle, for it: call it again before the next record.
        """
        if self.active.is_open:
            self.active.finish(debts)
        base = self.active.next_offset
        self.active.begin(base, debts)
        if base not in self.bases[-1:]:
            self.bases.append(base)
