# From a moment to an offset in a partition. Law: see log/time_lookup.py.
#
# A partition's segments are few, and `sealed` has a row for each complete one: the first whose greatest
# timestamp is late enough contains the answer. Its marks show which 256 of its entries, and those are
# searched. Of segments without a row (a peer's) the timeindex is read, once.

from __future__ import annotations

from itertools import pairwise

from diskq._native.stream.times import SEALED_SIZE, sealed_chain
from diskq.engine.log.time_lookup import LogTimeLookup
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.segment_times import SegmentTimes, framing_of
from diskq.engine.stream.time_summary import Sealed, fitting, read_sealed, sealed_rows
from diskq.storage.checksums import checksum
from diskq.storage.closing import Dropped
from diskq.storage.fs import FileSystem

__all__ = ["TimeLookup"]

# How many segments may hold files open at once.
_MOST_OPEN = 64


class TimeLookup(LogTimeLookup[SegmentTimes], Dropped):
    """Finds offsets by time in one partition, while other processes may write to it and remove segments.

    It keeps files open and caches what it has read: close it. For one thread at a time.
    """

    def __init__(self, fs: FileSystem, files: PartitionFiles) -> None:
        """Raises NotFoundError if there is no such partition, and OSError."""
        super().__init__()
        self._fs = fs
        self._files = files
        self._framing = framing_of(fs, files.stream)
        self._segments: dict[int, SegmentTimes] = {}
        self._in_use: set[int] = set()  # segments whose files are open
        self._seals: dict[int, Sealed] | None = None  # of the complete segments; None: read from the rows
        self._sealed = read_sealed(fs, files)
        chain = sealed_chain(self._sealed, checksum)
        if chain is None:
            self._list()
        else:
            self._bases, self._ceilings = chain

    def close(self) -> None:
        """Close the files. Idempotent; the next lookup opens them again."""
        for base in self._in_use:
            if base in self._segments:
                self._segments[base].close()
        self._in_use.clear()

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        return (self._fs, f"time lookup in {self._files.directory}") if self._in_use else None

    def _let_go_dropped(self) -> None:
        self.close()

    @property
    def is_quick(self) -> bool:
        """True if `sealed` has all complete segments, so that none of them has to be read as a whole."""
        return len(self._ceilings) >= len(self._bases) - 1

    # --- the segments there are -------------------------------------------------------------------

    def _list(self) -> None:
        """List the segments, and read their rows of `sealed`."""
        rows = sealed_rows(read_sealed(self._fs, self._files))
        self._bases = self._files.bases()
        self._seals = {}
        self._ceilings.clear()
        for base in self._segments.keys() - set(self._bases[:-1]):
            self._segments.pop(base).close()
        for number, (base, next_base) in enumerate(pairwise(self._bases)):
            row = fitting(rows, base, next_base, self._size_of(base))
            if row is not None:
                self._seals[base] = row
                if len(self._ceilings) == number:
                    self._ceilings.append(max([row.greatest, *self._ceilings[-1:]]))
            if base in self._segments:
                self._segments[base].settle(next_base, self._seals.get(base))

    def _size_of(self, base: int) -> int | None:
        return self._fs.size_of(self._files.data(base))

    def _segment(self, number: int) -> SegmentTimes:
        base = self._bases[number]
        if base not in self._in_use:
            if len(self._in_use) == _MOST_OPEN:
                self.close()
            self._in_use.add(base)
        segment = self._segments.get(base)
        if segment is None:
            segment = self._segments[base] = SegmentTimes(self._fs, self._files, base, self._framing)
            if number < len(self._bases) - 1:
                segment.settle(self._bases[number + 1], self._seal(number))
        return segment

    def _seal(self, number: int) -> Sealed | None:
        if self._seals is not None:
            return self._seals.get(self._bases[number])
        return Sealed.unpack(self._sealed[number * SEALED_SIZE :][:SEALED_SIZE])

    def _has_followers(self, segment: SegmentTimes) -> bool:
        """True if the last known segment is followed by another, which is then known, too."""
        following = segment.base + segment.entries
        if segment.entries and self._size_of(following) is not None:
            later = [following]
        else:
            # Usually there is none. But if messages were lost, their offsets are not assigned again.
            later = self._files.bases_after(segment.base)
        if later:
            self._bases += later
            segment.settle(later[0])
        return bool(later)
