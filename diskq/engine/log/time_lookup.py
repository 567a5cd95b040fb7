# From a moment to an offset, in a log of segments. Law: the answer is the first offset, in offset order,
# whose message is late enough, of those that were there at some time during the call; nothing is assumed of
# the order of timestamps.
#
# Of each segment that is complete the greatest timestamp up to its end is known, or found out once; these
# never step back, whatever the clock did. The first segment in which it is late enough holds the answer.

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from typing import Generic, Protocol, TypeVar

from diskq.storage.closing import Closing

__all__ = ["EARLIEST", "LATEST", "MomentLookup", "Moments", "SegmentGone"]

EARLIEST, LATEST = -(2**63), 2**63 - 1


class SegmentGone(Exception):
    """The segment was removed, or is not what was known of it: look again at what there is."""


class Moments(Protocol):
    """When the messages of one segment were. All raise OSError, and SegmentGone."""

    base: int

    def refresh(self) -> None:
        """See what there is now, if it may have grown."""

    def first_from(self, bound: int) -> int | None:
        """The first offset whose timestamp is at or after `bound`; None: there is none in this segment."""

    def greatest(self) -> int:
        """The greatest timestamp; EARLIEST where there are no messages."""


S = TypeVar("S", bound=Moments)


class MomentLookup(Closing, Generic[S]):
    """Finds offsets by time in one log, which somebody may be writing to, and removing from.

    It keeps files open and remembers what it has read: close it. For one thread at a time.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []  # ascending; the last one is active, as far as is known
        self._ceilings: list[int] = []  # of the first so many: the greatest timestamp up to their end

    @abstractmethod
    def _list(self) -> None:
        """See which segments there are: have their bases, and the ceilings that are known."""

    @abstractmethod
    def _segment(self, number: int) -> S:
        """The segment of that base."""

    @abstractmethod
    def _has_followers(self, segment: S) -> bool:
        """Has the last segment that is known of been left for another? Then that one is known of, too."""

    def offset_after(self, timestamp: int) -> int | None:
        """The first offset whose message is later than `timestamp` (ns since 1970).

        None where there is none: the log is empty, or no message is that late. Raises OSError, and the
        log's own error where it is gone; of a stream, UnsupportedFormatError.
        """
        return self.offset_at_or_after(timestamp + 1)

    def offset_at_or_after(self, timestamp: int) -> int | None:
        """The first offset whose message is not earlier than `timestamp`; as `offset_after`."""
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
