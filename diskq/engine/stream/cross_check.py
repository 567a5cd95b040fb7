# What the three files of a segment say about one place. Law: one source is not enough. A length, a
# row of the index and a time each can be rotten, or what a crash of go-diskq left; a record is where
# two of them agree.
#
# Nothing here is on the way of a message: it is asked where the index and the data contradict each
# other. No size that a file claims is asked memory for, unless the file is that long.
#
# go-diskq never mends. After a crash, or a write that a full disk refused, it appends behind what is
# left of a record or of a row; so rows may lie some bytes behind their places, for the rest of a segment.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from diskq._native.core.gate import Gate
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming, count
from diskq._native.stream.read_ahead import TripletAhead, descents, find_row
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.index_entries import INDEX_ROW, TIMEINDEX_ROW
from diskq.storage.closing import let_go
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED

__all__ = ["CrossCheck", "IndexEntry", "MatchingEntry"]

_CHUNK = 256 * 1024
_HEADER = 4 * 1024  # so much is loaded to see how large a record is
# So far ahead rows are looked for at any byte; further on only where rows belong.
_NEAR = 2048 * INDEX_ROW_SIZE
_ROWS_AT_ONCE = 2048
# A row of the timeindex is looked for so many bytes around its place.
_AROUND = 64 * TIMEINDEX_ROW_SIZE


class IndexEntry(NamedTuple):
    at: int
    """The byte of the index at which it begins."""
    offset: int
    position: int
    size: int


class MatchingEntry(NamedTuple):
    """A row, and where the record is that it tells of."""

    row: IndexEntry
    position: int
    standing: int = 0
    """How well it stands there: see `CrossCheck.standing`."""


class CrossCheck:
    """One segment, as it is asked about when reading it does not go on by itself."""

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
        """The index; None while there is none: it is made after the data file."""
        if self._index is None:
            try:
                self._index = self._fs.open(self._files.index_of(self.base))
            except FileNotFoundError:
                return None
        return self._index

    @property
    def index_size(self) -> int:
        index = self._opened()
        return 0 if index is None else self._fs.size(index)

    def rows(self, at: int, most: int) -> bytes:
        """At most `most` rows of the index from byte `at` on; what is left of a torn one may follow."""
        index = self._opened()
        return b"" if index is None or at < 0 else self._fs.pread(index, most * INDEX_ROW_SIZE, at)

    def standing(self, at: int) -> int:
        """How well the row at this byte of the index stands there."""
        row = self.row(at)
        return 0 if row is None else self._standing(row)

    def row(self, at: int) -> IndexEntry | None:
        """The row that begins at this byte of the index, if one can."""
        data = self.rows(at, 1)
        return IndexEntry(at, *INDEX_ROW.unpack(data)) if len(data) == INDEX_ROW_SIZE else None

    def place(self, offset: int) -> int:
        """The byte of the index at which the row of `offset` belongs."""
        return (offset - self.base) * INDEX_ROW_SIZE

    def matching_entry(
        self, at: int, offset: int, start: int, end: int, *, drift: int = 0, limit: int = UNBOUNDED
    ) -> MatchingEntry | None:
        """The first row from byte `at` of the index on that tells of a record in bytes start:end.

        It is of message `offset` or a later one, but of none that belongs further on in the index, and
        begins before byte `limit` of it. The record has that size, and the time that the timeindex says.
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
        """A later row that tells of a record that begins inside this row's, which is at `position`.

        After it the index goes on as if what lies behind had never been: so it is the next row, or one
        whose record lies before that of the row in front of it.
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
        """Of rows that overlap, one is right: small numbers look like others, a few bytes on.

        2: the next row follows, as it must, or the index ends; 1: the beginning of one; 0: something else.
        """
        following = row.at + INDEX_ROW_SIZE
        after = self.row(following)
        if after is None:
            return 2 if following == self.index_size else 1
        return 2 if after.offset == row.offset + 1 else 0

    def _candidates(self, at: int, offset: int, start: int, end: int, limit: int) -> Iterator[IndexEntry]:
        """Rows, at any byte near `at`, further on only where rows belong."""
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
        """Is there a record of `size` bytes, within the data up to `end`, and of the time of `offset`?"""
        if size <= 0 or size > end - position:
            return False
        self._load(position, size)
        message = self._probe.take_now()
        if message is None or self._probe.position != position + size:
            return False
        times = () if offset is None else self.times_of(offset)
        return not times or message.timestamp_ns in times

    def size_at(self, position: int, end: int) -> int | None:
        """The size of the record at `position`; None: none is there, or not all of it before `end`."""
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
        """How many records fill bytes start:end, by their lengths; None: they do not, or it is more."""
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
        """Where the next record of `size` bytes begins, in the chunk from byte `start` on, before `end`."""
        self._probe.load(self._data, start, min(max(_CHUNK, size), end - start))
        return self._probe.find(start, size)

    # --- the timeindex ----------------------------------------------------------------------------

    def times_of(self, offset: int) -> set[int]:
        """The timestamps that the timeindex has for a message: several, where pushes of it had failed."""
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
