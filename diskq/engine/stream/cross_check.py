# Cross-checking the three files of a segment at one place. Law: one source is not enough. A length, an
# index entry and a timestamp can each be damaged, or be what a crash of go-diskq left; a record is where
# two of them agree.
#
# This is not on a message's normal path: it is used where the index and the data contradict each other.
# Memory is allocated for a size that a file claims only if the file is that long.
#
# go-diskq never repairs. After a crash, or a write that a full disk refused, it appends after the fragment
# of a record or of an entry; so entries may lie some bytes after their places, for the rest of a segment.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from diskq._native.core.gate import Gate
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming, count
from diskq._native.stream.read_ahead import TripletAhead, descents, find_row
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.index_entries import INDEX_ROW, TIMEINDEX_ROW
from diskq.storage.barrier import let_go
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED

__all__ = ["CrossCheck", "IndexEntry", "MatchingEntry"]

_CHUNK = 256 * 1024
_HEADER = 4 * 1024  # bytes loaded to learn a record's size
# Up to this many bytes ahead an entry may begin at any byte; further on only at its place.
_NEAR = 2048 * INDEX_ROW_SIZE
_ROWS_AT_ONCE = 2048
# An entry of the timeindex is searched for up to this many bytes around its place.
_AROUND = 64 * TIMEINDEX_ROW_SIZE


class IndexEntry(NamedTuple):
    at: int
    """The byte of the index at which it begins."""
    offset: int
    position: int
    size: int


class MatchingEntry(NamedTuple):
    """An index entry, and the byte at which its record was found."""

    row: IndexEntry
    position: int
    standing: int = 0
    """How well the entry is confirmed there: see `CrossCheck.standing`."""


class CrossCheck:
    """Answers about one segment, for a reader that meets a contradiction."""

    def __init__(
        self, fs: FileSystem, files: PartitionFiles, base: int, data: int, framing: TripletFraming
    ) -> None:
        self._fs = fs
        self._files = files
        self.base = base
        self._data = data
        self._varuint = framing.varuint
        self._probe = TripletAhead(fs, framing, Gate())
        self._index: int | None = None
        self._descents: dict[int, tuple[int, list[int]]] = {}

    def close(self) -> None:
        if self._index is not None:
            handle, self._index = self._index, None
            let_go(self._fs, handle)

    # --- the index --------------------------------------------------------------------------------

    def _opened(self) -> int | None:
        """Return the handle of the index; None while there is none: it is made after the data file."""
        if self._index is None or not self._fs.has_name(self._index):  # a producer has replaced it
            try:
                index = self._fs.open(self._files.index_of(self.base))
            except FileNotFoundError:
                return self._index
            self.close()
            self._index = index
        return self._index

    @property
    def index_size(self) -> int:
        index = self._opened()
        return 0 if index is None else self._fs.size(index)

    def rows(self, at: int, most: int) -> bytes:
        """Return at most `most` entries of the index from byte `at` on; a fragment of an entry may follow."""
        index = self._opened()
        return b"" if index is None or at < 0 else self._fs.pread(index, most * INDEX_ROW_SIZE, at)

    def standing(self, at: int) -> int:
        """Return how well the entry at this byte of the index is confirmed by the next one."""
        row = self.row(at)
        return 0 if row is None else self._standing(row)

    def row(self, at: int) -> IndexEntry | None:
        """Return the entry that begins at this byte of the index; None if the index ends within it."""
        data = self.rows(at, 1)
        return IndexEntry(at, *INDEX_ROW.unpack(data)) if len(data) == INDEX_ROW_SIZE else None

    def place(self, offset: int) -> int:
        """Return the byte of the index at which the entry of `offset` belongs."""
        return (offset - self.base) * INDEX_ROW_SIZE

    def matching_entry(
        self, at: int, offset: int, start: int, end: int, *, drift: int = 0, limit: int = UNBOUNDED
    ) -> MatchingEntry | None:
        """Return the first entry from byte `at` of the index on whose record is in bytes start:end.

        It is of message `offset` or a later one, but not of one that belongs further on in the index, and it
        begins before byte `limit` of the index. The record has the entry's size and the timeindex's time.
        """
        best: MatchingEntry | None = None
        for row in self._candidates(at, offset, start - drift, end, limit):
            if row.at >= limit:
                break
            for position in (row.position, row.position + drift) if drift else (row.position,):
                if start <= position < end and self.is_record(position, row.size, end, row.offset):
                    good = MatchingEntry(row, position, self._standing(row))
                    limit = min(limit, row.at + INDEX_ROW_SIZE)
                    if best is None or good.standing >= best.standing:
                        best = good
        return best

    def overwriting(self, row: IndexEntry, position: int, end: int) -> MatchingEntry | None:
        """Return a later entry whose record begins inside this entry's record, which is at `position`.

        From such an entry on, the index goes on as if the earlier bytes there had never been written. So the
        entry is the next one, or its record lies before the record of the entry in front of it.
        """
        phase = row.at % INDEX_ROW_SIZE
        scanned, found = self._descents.get(phase, (phase, []))
        while len(rows := self.rows(scanned, _ROWS_AT_ONCE)) >= INDEX_ROW_SIZE:
            front = self.row(scanned - INDEX_ROW_SIZE)
            found += [scanned + at for at in descents(rows, front.position if front else 0)]
            scanned += len(rows) // INDEX_ROW_SIZE * INDEX_ROW_SIZE
        self._descents[phase] = scanned, found
        following = row.at + INDEX_ROW_SIZE
        for at in (following, *found[bisect_left(found, following) :]):
            later = self.row(at)
            if (
                later is not None
                and row.offset < later.offset <= self.base + at // INDEX_ROW_SIZE
                and position < later.position < position + row.size
                and self.is_record(later.position, later.size, end, later.offset)
            ):
                return MatchingEntry(later, later.position)
        return None

    def _standing(self, row: IndexEntry) -> int:
        """Return 2 if the next entry follows or the index ends, 1 if a fragment follows, 0 otherwise.

        Of entries that overlap, one is right: small numbers look like other numbers a few bytes further on.
        """
        following = row.at + INDEX_ROW_SIZE
        after = self.row(following)
        if after is None:
            return 2 if following == self.index_size else 1
        return 2 if after.offset == row.offset + 1 else 0

    def _candidates(self, at: int, offset: int, start: int, end: int, limit: int) -> Iterator[IndexEntry]:
        """Yield possible entries: near `at` at any byte, further on only at their places."""
        near = at + _NEAR
        most = min(_ROWS_AT_ONCE, (limit - at) // INDEX_ROW_SIZE + 1) + 1
        while at < limit and len(data := self.rows(at, most)) >= INDEX_ROW_SIZE:
            step = 1 if at < near else INDEX_ROW_SIZE
            place = 0
            while (place := find_row(data, place, step, at, self.base, offset, start, end)) >= 0:
                yield IndexEntry(at + place, *INDEX_ROW.unpack_from(data, place))
                place += step
            at += _ROWS_AT_ONCE * INDEX_ROW_SIZE

    # --- the data ---------------------------------------------------------------------------------

    def is_record(self, position: int, size: int, end: int, offset: int | None = None) -> bool:
        """True if a record of `size` bytes is at `position`, before byte `end`, with the time of `offset`."""
        if size <= 0 or size > end - position:
            return False
        self._load(position, size)
        message = self._probe.take_now()
        if message is None or self._probe.position != position + size:
            return False
        times = () if offset is None else self.times_of(offset)
        return not times or message.timestamp_ns in times

    def size_at(self, position: int, end: int) -> int | None:
        """Return the size of the record at `position`; None if none is there, or it does not end by `end`."""
        size = min(_HEADER, end - position)
        while True:
            self._load(position, size)
            if self._probe.skip_to(self._probe.next_offset + 1) and self._probe.position > position:
                return self._probe.position - position
            if self._probe.why != "TORN" or not size < self._probe.claimed <= end - position:
                return None
            size = self._probe.claimed

    def _load(self, position: int, size: int) -> None:
        loaded = self._probe.load(self._data, position, max(0, size))
        self._probe.admit(position, position + loaded)

    def count(self, start: int, end: int, most: int = UNBOUNDED) -> int | None:
        """Return how many records fill bytes start:end; None if they do not fill them, or exceed `most`."""
        counted = 0
        size = _CHUNK
        while start < end:
            asked = min(size, end - start)
            data = self._fs.pread(self._data, asked, start)
            found = count(data, self._varuint, most - counted)
            counted += found.records
            start += found.valid_end
            is_last = len(data) < asked or start - found.valid_end + asked >= end
            if start < end and (found.stop == "CORRUPT" or counted >= most or is_last):
                return None
            if not found.records:
                size *= 2
        return counted

    def find(self, start: int, size: int, end: int) -> int | None:
        """Return where the next record of `size` bytes begins, in the chunk from byte `start` to `end`."""
        self._probe.load(self._data, start, min(max(_CHUNK, size), end - start))
        return self._probe.find(start, size)

    # --- the timeindex ----------------------------------------------------------------------------

    def times_of(self, offset: int) -> set[int]:
        """Return the timestamps that the timeindex has for a message: several, if pushes of it had failed."""
        try:
            handle = self._fs.open(self._files.timeindex(self.base))
        except FileNotFoundError:
            return set()
        try:
            start = max(0, (offset - self.base) * TIMEINDEX_ROW_SIZE - _AROUND)
            data = self._fs.pread(handle, 2 * _AROUND, start)
        finally:
            let_go(self._fs, handle)
        expected = offset.to_bytes(8, "little")
        times: set[int] = set()
        at = -1
        while (at := data.find(expected, at + 1)) >= 0 and at + TIMEINDEX_ROW_SIZE <= len(data):
            times.add(TIMEINDEX_ROW.unpack_from(data, at)[1])
        return times
