# From a moment to an offset, in a log of segments. Law: the answer is the first offset, in offset order,
# whose message is late enough, of those that were there at some time during the call; nothing is assumed
# about the order of timestamps.
#
# For each complete segment the greatest timestamp of the log up to its end is known, or computed once; these
# maxima never step back, even if the clock did. The first segment whose maximum is late enough holds the
# answer.

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from diskq.engine.log.timestamps import as_timestamp
from diskq.storage.closing import Closing

__all__ = ["EARLIEST", "LATEST", "LogTimeLookup", "SegmentGone", "SegmentTimestamps"]

EARLIEST, LATEST = -(2**63), 2**63 - 1


class SegmentGone(Exception):
    """The segment was removed, or has changed: list the segments again."""


class SegmentTimestamps(Protocol):
    """The timestamps of one segment. All methods raise OSError, and SegmentGone."""

    base: int

    def refresh(self) -> None:
        """Read what there is now, if the segment may have grown."""

    def first_from(self, bound: int) -> int | None:
        """Return the first offset whose timestamp is at or after `bound`; None if this segment has none."""

    def greatest(self) -> int:
        """Return the greatest timestamp; EARLIEST if there are no messages."""


S = TypeVar("S", bound=SegmentTimestamps)


class LogTimeLookup(Closing, Generic[S]):
    """Finds offsets by time in one log, also while messages are appended and removed.

    It keeps files open and remembers what it has read: close it. For one thread at a time.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []  # ascending; the last one is active, as far as is known
        self._ceilings: list[int] = []  # of the first segments: the greatest timestamp up to the end of each

    @abstractmethod
    def _list(self) -> None:
        """List the segments: set their bases, and the ceilings that are known."""

    @abstractmethod
    def _segment(self, number: int) -> S:
        """Return the segment at index `number` of the bases."""

    @abstractmethod
    def _has_followers(self, segment: S) -> bool:
        """True if a segment after the last known one exists; its base is then added."""

    def offset_after(self, timestamp: datetime | int) -> int | None:
        """Return the first offset whose message is later than `timestamp`.

        `timestamp` is an aware datetime or nanoseconds since the Unix epoch. None if there is none: the log
        is empty, or no message is that late. Raises TypeError, and ValueError for a naive datetime; OSError,
        and the log's own error if it is gone; for a stream, UnsupportedFormatError.
        """
        return self._first_at(_nanoseconds(timestamp) + 1)

    def offset_at_or_after(self, timestamp: datetime | int) -> int | None:
        """Return the first offset whose message is not earlier than `timestamp`; as `offset_after`."""
        return self._first_at(_nanoseconds(timestamp))

    def _first_at(self, timestamp: int) -> int | None:
        if timestamp > LATEST:
            return None
        bound = max(timestamp, EARLIEST)
        while True:
            try:
                return self._first_from(bound)
            except SegmentGone:
                self._list()

    def _first_from(self, bound: int) -> int | None:
        number = bisect_left(self._ceilings, bound)
        while number < len(self._bases):
            segment = self._segment(number)
            segment.refresh()
            found = segment.first_from(bound)
            if found is not None:
                return found
            if number == len(self._bases) - 1:
                if not self._has_followers(segment):
                    return None
                continue  # it may have grown before the next one was made
            if number == len(self._ceilings):
                self._ceilings.append(max([*self._ceilings[-1:], segment.greatest()]))
            number += 1
        return None


def _nanoseconds(timestamp: datetime | int) -> int:
    """Return the nanoseconds of a moment; a number may be one that 64 bits cannot hold."""
    return as_timestamp(timestamp) if isinstance(timestamp, datetime) else timestamp
