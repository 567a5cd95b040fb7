# From a moment to an offset in a journal. Law: see log/time_lookup.py. A message that has no time is earlier
# than any moment.
#
# sej's files have no time index. So each segment is read once, at the first lookup; the cache is small: for
# each stretch its beginning, and the greatest timestamp up to its end.

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from diskq._native.core.gate import Gate
from diskq._native.journal.codec import SejFraming
from diskq._native.journal.read_ahead import SejAhead
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.replayed import journal_replay
from diskq.engine.journal.segment_reader import JournalSegmentReader
from diskq.engine.log.time_lookup import EARLIEST, LATEST, LogTimeLookup, SegmentGone
from diskq.storage.block_reader import STRETCH
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path

__all__ = ["JournalTimes"]


class TimedStretch(NamedTuple):
    """Messages from `offset` on, the first of which begins at byte `position`."""

    offset: int
    position: int
    greatest: int
    """The greatest timestamp of the segment up to the end of the stretch."""


class SegmentMoments:
    """The timestamps of one segment of a journal, which grows until `settle` sets where it ends."""

    def __init__(self, fs: FileSystem, files: JournalFiles, base: int) -> None:
        self._fs = fs
        self._files = files
        self.base = base
        self._stretches: list[TimedStretch] = []
        self._reached = (0, base)  # the byte and the offset after the last stretch
        self._known_end: int | None = None
        self._is_whole = False
        self._ahead = SejAhead(fs, SejFraming(), Gate())

    def settle(self, next_base: int) -> None:
        """Note that the segment is complete, and the next one is `next_base`."""
        self._known_end = next_base

    def refresh(self) -> None:
        """Read what is new, if the segment may have grown."""
        if self._is_whole:
            return
        is_whole = self._known_end is not None
        reader = self._open()
        try:
            reader.begin_at(*self._reached)
            while self._fill(reader):
                self._take_in()
            self._reached = (self._ahead.position, self._ahead.next_offset)
        finally:
            reader.close()
        self._is_whole = is_whole

    def first_from(self, bound: int) -> int | None:
        """Return the first offset whose timestamp is at or after `bound`; None if this segment has none."""
        number = bisect_left(self._stretches, bound, key=lambda stretch: stretch.greatest)
        if number == len(self._stretches):
            return None
        reader = self._open()
        try:
            reader.begin_at(self._stretches[number].position, self._stretches[number].offset)
            while self._fill(reader):
                self._ahead.skip_earlier(bound)
                if self._is_ready:
                    return self._ahead.next_offset
        finally:
            reader.close()
        return None

    def greatest(self) -> int:
        """Return the greatest timestamp; EARLIEST if there are no messages, or none has a time."""
        return self._stretches[-1].greatest if self._stretches else EARLIEST

    def _open(self) -> JournalSegmentReader:
        try:
            return JournalSegmentReader(self._fs, self._ahead, self._files, self.base)
        except FileNotFoundError:
            raise SegmentGone(self._files.data(self.base)) from None

    @property
    def _is_ready(self) -> bool:
        return self._ahead.is_ready and self._ahead.why == "END"

    def _fill(self, reader: JournalSegmentReader) -> bool:
        """Fill the read-ahead, skipping what cannot be read. False if there is nothing more now."""
        while not self._is_ready:
            if reader.read_on(reader.size, self._known_end) is None and not self._ahead.is_ready:
                return False
        return True

    def _take_in(self) -> None:
        ahead = self._ahead
        position, offset = ahead.position, ahead.next_offset
        greatest = self.greatest()
        while self._is_ready:
            greatest = max(greatest, ahead.skip_earlier(LATEST))
            if self._is_ready:
                greatest = LATEST
                ahead.skip_to(ahead.next_offset + 1)
        if ahead.next_offset == offset:
            return
        if self._stretches and position - self._stretches[-1].position < STRETCH:
            self._stretches[-1] = self._stretches[-1]._replace(greatest=greatest)
        else:
            self._stretches.append(TimedStretch(offset, position, greatest))


class JournalTimes(LogTimeLookup[SegmentMoments]):
    """Finds offsets by time in one journal, while other processes may write to it and remove segments.

    It caches what it has read. For one thread at a time.
    """

    def __init__(self, path: AnyPath, *, fs: FileSystem | None = None) -> None:
        """Raises NotFoundError, OSError."""
        super().__init__()
        self._fs = journal_replay(fs or OsFileSystem(), as_path(path)).files_to_read()
        self._files = JournalFiles(self._fs, as_path(path))
        self._segments: dict[int, SegmentMoments] = {}
        self._list()

    def close(self) -> None:
        """Drop the cache. Idempotent; the next lookup reads again."""
        self._segments.clear()
        self._ceilings.clear()

    def _list(self) -> None:
        self._bases = self._files.bases()
        self._ceilings.clear()
        for base in self._segments.keys() - set(self._bases):
            del self._segments[base]
        for base, next_base in pairwise(self._bases):
            if base in self._segments:
                self._segments[base].settle(next_base)

    def _segment(self, number: int) -> SegmentMoments:
        base = self._bases[number]
        segment = self._segments.get(base)
        if segment is None:
            segment = self._segments[base] = SegmentMoments(self._fs, self._files, base)
            if number < len(self._bases) - 1:
                segment.settle(self._bases[number + 1])
        return segment

    def _has_followers(self, segment: SegmentMoments) -> bool:
        later = [base for base in self._files.bases() if base > segment.base]
        if later:
            self._bases += later
            segment.settle(later[0])
        return bool(later)
