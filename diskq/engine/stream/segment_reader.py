# Reading one segment of a partition. Law: a message is returned if a checksum covers it, or the index and
# the data agree on it; skipped bytes are reported, and the offsets after them are right.
#
# The data file is read forward, a stretch at a time:
#
#   blocks with checksums       are verified, and their records taken in sequence
#   bytes without checksums     are taken as far as the index entries agree with the records on
#   (a peer's, or recent ones)  offset, byte and size
#   bytes that this process     are taken in sequence, without an index
#   wrote a moment ago
#
# If entry and record contradict each other, cross_check.py finds what can be believed: the next correct
# entry locates its record, and the entries around it explain the bytes between.

from __future__ import annotations

from dataclasses import replace

from diskq._native.stream.codec import INDEX_ROW_SIZE, TripletFraming
from diskq._native.stream.read_ahead import TripletAhead
from diskq.engine.log.segment_reader import LogSegmentReader
from diskq.engine.stream.cross_check import CrossCheck, IndexEntry, MatchingEntry
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.index_entries import INDEX_ROW
from diskq.storage.block_reader import STRETCH, BrokenFraming, CorruptBlock, Loss, Unverified, WalRows
from diskq.storage.checksums import Row, Rows
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED

__all__ = ["SegmentReader"]

# Index entries that are read at once.
_ROWS_AT_ONCE = 1024
_MOST_GUESSES = 16

NO_RECORD = "bytes of no record"
OVERWRITTEN = "overwritten by a later record"
CONTRADICTION = "index and data contradict each other"


class SegmentReader(LogSegmentReader[TripletAhead]):
    """One segment of a partition, as `LogSegmentReader`."""

    def __init__(
        self,
        fs: FileSystem,
        ahead: TripletAhead,
        framing: TripletFraming,
        files: PartitionFiles,
        base: int,
        wal_rows: WalRows | None = None,
    ) -> None:
        super().__init__(fs, ahead, files, base, wal_rows, self._takeable)
        self._checksum_file = files.checksum_file(base)
        self._cross_check = CrossCheck(fs, files, base, self.blocks.handle, framing)
        self._believed_to = 0  # up to this byte of the data, lengths are believed
        self._shift = 0  # bytes by which entries lie after their places in the index
        self._drift = 0  # bytes by which records lie after the positions in their entries

    def close(self) -> None:
        super().close()
        self._cross_check.close()

    @property
    def index_size(self) -> int:
        """Bytes of the index, now."""
        return self._cross_check.index_size

    # --- where to begin ---------------------------------------------------------------------------

    def approach(self, offset: int) -> None:
        """Move to message `offset`, or as near before it as is known without reading what lies between."""
        if offset <= self.base:
            return
        size = self.size
        last = min(offset, self.base + self.index_size // INDEX_ROW_SIZE)
        for shift in range(INDEX_ROW_SIZE):
            if last > self.base and (position := self._position_by_index(last, shift, size)) is not None:
                self.begin_at(position, last)
                self._shift = shift
                return
        self.begin_at(*self._position_by_checksums(offset, size))

    def _position_by_index(self, offset: int, shift: int, size: int) -> int | None:
        """Return the byte after the two records before message `offset`, if their entries agree with them."""
        first = max(self.base, offset - 2)
        rows = self._cross_check.rows(self._cross_check.place(first) + shift, offset - first)
        if len(rows) < (offset - first) * INDEX_ROW_SIZE:
            return None
        end = 0 if first == self.base else INDEX_ROW.unpack_from(rows)[1]
        for number, (said, position, length) in enumerate(INDEX_ROW.iter_unpack(rows), first):
            if said != number or position != end:
                return None
            if not self._cross_check.is_record(position, length, size, number):
                return None
            end = position + length
        return end

    def _position_by_checksums(self, offset: int, end: int) -> tuple[int, int]:
        """Return the byte and offset that gapless blocks reach from the start, up to `end` and `offset`."""
        rows = Rows(self._fs, self._checksum_file)
        position, reached = 0, self.base
        try:
            while (row := rows.first_after(position)) is not None:
                if row.start != position or row.end > end or reached + row.records > offset:
                    break
                position, reached = row.end, reached + row.records
        finally:
            rows.close()
        return position, reached

    # --- reading on -------------------------------------------------------------------------------

    def read_on(self, end: int, known_end: int | None = None, covered_end: int | None = None) -> Loss | None:
        """Read on, as `BlockReader.fill`. `known_end` is the offset after byte `end`, if that is known.

        All bytes up to there were then written. Otherwise some may not be decidable yet: then nothing is
        ready, and nothing is lost. The offsets of lost messages are skipped.
        """
        self._readable_end = end
        self._known_end = known_end
        if self._messages.position < end:
            return self._fill(end, covered_end)
        if known_end is None or known_end <= self._messages.next_offset:
            return None
        return self.missing_end()

    def believe_to(self, end: int) -> None:
        """Note that there are whole records, and nothing between them, up to byte `end` of the data."""
        self._believed_to = end

    def follow(self, most: int) -> bool:
        """Admit up to `most` bytes that were written after the position since the end was reached there.

        They have index entries, and are too recent for a checksum. False if the case is not that simple.
        """
        offset, position = self._messages.next_offset, self._messages.position
        rows = self._cross_check.rows(self._place(offset), _ROWS_AT_ONCE)
        if len(rows) < INDEX_ROW_SIZE or self._drift or INDEX_ROW.unpack_from(rows)[:2] != (offset, position):
            return False
        count = len(rows) // INDEX_ROW_SIZE
        _, last, size = INDEX_ROW.unpack_from(rows, (count - 1) * INDEX_ROW_SIZE)
        if not 0 < last + size - position <= most:
            return False
        self._messages.load(self.blocks.handle, position, last + size - position)
        return bool(self._messages.admit_rows(rows, count == _ROWS_AT_ONCE))

    def missing_end(self) -> Loss | None:
        """Return the loss of messages after the end of the data, if any are known to have been there."""
        offset, position = self._messages.next_offset, self._messages.position
        rows_end, by_rows = self._counted_by_checksums(position)
        known = offset + max(by_rows, self._counted_by_index(offset))
        if self._known_end is not None:
            known = self._known_end
        size = self.size
        if known <= offset or (size > self._readable_end and self._known_end is None):
            return None
        return self._lose(max(rows_end, position, size), known - offset, f"the file ends at byte {size}")

    def _counted_by_checksums(self, position: int) -> tuple[int, int]:
        """Return the end of the last block, and the number of records from `position` to there."""
        rows = Rows(self._fs, self._checksum_file)
        records = 0
        try:
            rows.seek(position)
            while (row := rows.first_after(position)) is not None:
                if row.start < position:
                    records -= self._cross_check.count(row.start, position) or 0
                position = row.end
                records += row.records
        finally:
            rows.close()
        return position, records

    def _counted_by_index(self, offset: int) -> int:
        """Return how many consecutive entries the index has from the entry of message `offset` on."""
        expected = offset
        while rows := self._cross_check.rows(self._place(expected), _ROWS_AT_ONCE):
            for said, _, _ in INDEX_ROW.iter_unpack(rows[: len(rows) // INDEX_ROW_SIZE * INDEX_ROW_SIZE]):
                if said != expected:
                    return expected - offset
                expected += 1
            if len(rows) < INDEX_ROW_SIZE:
                break
        return expected - offset

    def _place(self, offset: int) -> int:
        return self._cross_check.place(offset) + self._shift

    def _lose(self, end: int, records: int, reason: str) -> Loss:
        """Skip to byte `end`, `records` messages further on. Returns the loss."""
        start = self._messages.position
        self._messages.seek(end)
        self._messages.next_offset += records
        return Loss(start, end, records, reason)

    # --- bytes with checksums ---------------------------------------------------------------------

    def _takeable(self, row: Row, position: int) -> Row | None:
        """Return the block up to its last record with an index entry: a go-diskq producer continues there."""
        offset = self._messages.next_offset
        first = offset if position == row.start else self._offset_before(row, offset)
        if first is None:
            return None
        data = self._cross_check.rows(self._place(first), row.records)
        found = list(INDEX_ROW.iter_unpack(data[: len(data) // INDEX_ROW_SIZE * INDEX_ROW_SIZE]))
        for number in reversed(range(len(found))):
            said, start, size = found[number]
            end = start + self._drift + size
            if said == first + number and position < end <= row.end:
                return row._replace(end=end, records=number + 1)
        return None

    def _offset_before(self, row: Row, offset: int) -> int | None:
        """Return the offset of the first message of the block that contains message `offset`."""
        for number in range(offset - 1, max(self.base, offset - row.records) - 1, -1):
            found = self._cross_check.row(self._place(number))
            if found is not None and (found.offset, found.position + self._drift) == (number, row.start):
                return number
        return None

    def _numbered(self, corrupt: CorruptBlock) -> Loss:
        loss, row = corrupt
        offset = self._messages.next_offset
        if loss.records is None:
            loss = replace(loss, records=max(0, self._offset_after(row, offset) - offset))
        self._messages.next_offset += loss.records or 0
        return loss

    def _offset_after(self, row: Row, offset: int) -> int:
        """Return the offset after a damaged block of which message `offset` is not the first."""
        for number in range(offset, offset + row.records):
            found = self._cross_check.row(self._place(number))
            if found and found.offset == number and found.position + self._drift + found.size == row.end:
                return number + 1
        position, reached = self._position_by_checksums(UNBOUNDED, row.end)
        return reached if position == row.end else offset

    # --- bytes without ----------------------------------------------------------------------------

    def _take_unverified(self, unverified: Unverified) -> Loss | None:
        """Admit records as far as the index entries agree with them."""
        position, end, cut_short = unverified.position, unverified.end, unverified.cut_short
        if position < (believed := min(end, self._believed_to)):
            return self._take_framed(unverified._replace(end=believed, lost_end=believed, cut_short=None))
        if self._undecided is not None and self._undecided == self._state(end):
            return None
        rows = self._cross_check.rows(self._place(self._messages.next_offset), _ROWS_AT_ONCE)
        is_tail = end == self._readable_end and self._known_end is None and cut_short is None
        if is_tail and len(rows) < INDEX_ROW_SIZE:
            return None  # its entry is written after the record
        if len(rows) >= INDEX_ROW_SIZE:
            self._load(position, end, rows)
            has_more = len(rows) == _ROWS_AT_ONCE * INDEX_ROW_SIZE
            if self._messages.admit_rows(rows, has_more, self._drift):
                return None
        return self._judge(position, end, rows, cut_short)

    def _load(self, position: int, end: int, rows: bytes) -> None:
        """Load the records of these entries: up to one stretch, or the first record however large."""
        offset, first, size = INDEX_ROW.unpack_from(rows)
        if (offset, first + self._drift) != (self._messages.next_offset, position):
            size = 0  # of another entry, or of none
        _, last, last_size = INDEX_ROW.unpack_from(rows, (len(rows) // INDEX_ROW_SIZE - 1) * INDEX_ROW_SIZE)
        found = last + self._drift + last_size - position
        if not 0 < found <= STRETCH:
            found = STRETCH
        self._messages.load(self.blocks.handle, position, min(max(found, size), end - position))

    def _take_framed(self, unverified: Unverified) -> Loss | None:
        """Admit records whose lengths are believed."""
        broken = self.blocks.take_framed(unverified)
        return None if broken is None else self._give_up(broken)

    def _give_up(self, broken: BrokenFraming) -> Loss:
        """Return the loss for a place without a record, where one was believed to be."""
        position, broken_end, _, reason, is_torn = broken
        self._believed_to = 0
        self._messages.seek(position)
        if broken_end == self._readable_end and self._known_end is not None:
            return self._lose(broken_end, max(0, self._known_end - self._messages.next_offset), reason)
        return Loss(position, position, 0, reason, is_torn)

    # --- where entry and record contradict each other ---------------------------------------------

    def _judge(self, position: int, end: int, rows: bytes, cut_short: Row | None) -> Loss | None:
        """Find what can be believed at `position`, where nothing could be admitted."""
        offset = self._messages.next_offset
        state = self._state(end)
        if len(rows) >= INDEX_ROW_SIZE and self._messages.admit_rows(
            rows[:INDEX_ROW_SIZE], drift=self._drift
        ):
            return self._unless_disputed(position, end, self._place(offset))
        # From its place on, whatever the shift before: recovery may have put the entries in order meanwhile.
        at = self._cross_check.place(offset)
        good = self._cross_check.matching_entry(at, offset, position, end, drift=self._drift)
        if good is not None:
            return self._resume(position, end, good)
        known = self._known_end
        if end < self._readable_end and cut_short is None:
            known = self._known_at(end)
            if known is None and self._known_end is not None:
                lost = max(0, self._known_end - offset)
                return self._lose(self._readable_end, lost, CONTRADICTION)
        found = self._after_fragments(position, end, known)
        if found is None and known is not None:
            found = self._fill_gap(position, end, known - offset)
        elif found is None and cut_short is not None:
            found = self.missing_end()
        elif found is None:
            found = self._judge_last(position, end)
        if found is None and not self._messages.is_ready:
            self._undecided = state
        return found

    def _state(self, end: int) -> object:
        """Return what a decision depends on: an undecided place stays undecided until this changes."""
        return self._messages.next_offset, end, self._known_end, self._cross_check.index_size

    def _unless_disputed(self, position: int, end: int, at: int) -> Loss | None:
        """Return the loss if another entry disputes the record here; None if no entry does.

        This record is as its entry says, but the next one is not. If a power cut left more of the index than
        of the data, and go-diskq went on, a later entry is of a record that begins inside this one. If
        go-diskq went on after a fragment of an entry, the bytes of both may look like one entry.
        """
        offset = self._messages.next_offset
        row = self._cross_check.row(at)
        assert row is not None, "the entry that was admitted"
        rival = self._cross_check.matching_entry(
            at + 1, offset, position + 1, end, drift=self._drift, limit=at + INDEX_ROW_SIZE
        )
        if rival is None or rival.standing < self._cross_check.standing(at):
            rival = self._cross_check.overwriting(row, position, end)
        if rival is None:
            return None
        self._messages.seek(position)
        return self._go_on_at(rival, OVERWRITTEN if rival.row.offset > offset else NO_RECORD)

    def _resume(self, position: int, end: int, good: MatchingEntry) -> Loss | None:
        """Continue by an entry further on that is right; what lies before its record is believed or lost."""
        row = good.row
        between = row.offset - self._messages.next_offset
        if good.position == position and not between:
            self._follow(good)  # nothing is lost: only the entry is not at its place
            return self._take_unverified(Unverified(position, end, end))
        if between and self._cross_check.count(position, good.position, between) == between:
            self._follow(good)
            return self._believe(position, good.position)
        if not between and self._is_out_of_line(position, end, good):
            return self._believe(position, position + row.size)
        return self._go_on_at(good, CONTRADICTION if between else NO_RECORD)

    def _is_out_of_line(self, position: int, end: int, good: MatchingEntry) -> bool:
        """True if the next entry places this entry's record at `position`, not where the entry says."""
        row = good.row
        after = self._cross_check.row(row.at + INDEX_ROW_SIZE)
        return (
            after is not None
            and (after.offset, after.position + self._drift) == (row.offset + 1, position + row.size)
            and self._cross_check.is_record(position, row.size, end, row.offset)
        )

    def _after_fragments(self, position: int, end: int, known: int | None) -> Loss | None:
        """Skip fragments of a failed write in front of the record; None if the record is not after such."""
        offset = self._messages.next_offset
        for at in range(self._place(offset), self._place(offset) + INDEX_ROW_SIZE):
            row = self._cross_check.row(at)
            if row is not None and (row.offset, row.position + self._drift) == (offset, position):
                found = self._find_shifted(row, position, end, known)
                if found is not None:
                    return self._go_on_at(found, NO_RECORD)
        return None

    def _find_shifted(
        self, row: IndexEntry, position: int, end: int, known: int | None
    ) -> MatchingEntry | None:
        """Return this entry's record if it is after byte `position`, and the next record follows it."""
        after = self._cross_check.row(row.at + INDEX_ROW_SIZE)
        if after is not None and (after.offset, after.position) != (row.offset + 1, row.position + row.size):
            return None
        start: int | None = position
        for _ in range(_MOST_GUESSES):
            assert start is not None
            start = self._cross_check.find(start + 1, row.size, end)
            if start is None:
                break
            record_end = start + row.size
            if after is None:
                is_followed = record_end == end and known in (None, row.offset + 1)
            else:
                is_followed = self._cross_check.is_record(record_end, after.size, end, after.offset)
            if is_followed and self._cross_check.is_record(start, row.size, end, row.offset):
                return MatchingEntry(row, start)
        return None

    def _fill_gap(self, position: int, end: int, expected: int) -> Loss | None:
        """Decide on bytes without an entry that should hold `expected` messages."""
        if expected > 0 and self._cross_check.count(position, end, expected) == expected:
            return self._believe(position, end)
        if end == self._readable_end and expected > 0:
            return self.missing_end()
        return self._lose(end, max(0, expected), CONTRADICTION if expected > 0 else NO_RECORD)

    def _known_at(self, start: int) -> int | None:
        """Return the offset of the first message of the block that begins at byte `start`."""
        offset, position = self._messages.next_offset, self._messages.position
        good = self._cross_check.matching_entry(
            self._place(offset), offset, start, self._readable_end, drift=self._drift
        )
        if good is not None:
            between = self._cross_check.count(start, good.position)
            if between is not None:
                return good.row.offset - between
        end, records = self._counted_by_checksums(start)
        if self._known_end is not None and end == self._readable_end:
            return self._known_end - records
        counted = self._cross_check.count(position, start)
        return None if counted is None else offset + counted

    def _judge_last(self, position: int, end: int) -> Loss | None:
        """Decide on bytes after the last good entry of a segment that is still written to."""
        offset = self._messages.next_offset
        row = self._cross_check.row(self._place(offset))
        if row is None:
            return None
        size = self._cross_check.size_at(position, end)
        is_its = row.offset == offset
        is_here = row.position + self._drift == position
        if size is not None and size == row.size and (is_its or is_here):
            return self._believe(position, position + size)  # one of the entry's three numbers is damaged
        if not (is_its and is_here):
            return None
        # The entry and the record give two sizes. After the right one a record begins, or the file ends.
        by_row = self._is_boundary(position + row.size, end)
        by_record = size is not None and self._is_boundary(position + size, end)
        if by_record and not by_row and size is not None:
            return self._believe(position, position + size)
        if by_row and not by_record:
            return self._lose(position + row.size, 1, CONTRADICTION)
        return self.missing_end() if row.size > end - position and size is None else None

    def _is_boundary(self, position: int, end: int) -> bool:
        return position == end or (position < end and self._cross_check.size_at(position, end) is not None)

    # --- what follows from it ---------------------------------------------------------------------

    def _follow(self, good: MatchingEntry) -> None:
        """Expect the following entries and records at the same shift and drift as this one."""
        self._shift = good.row.at - self._cross_check.place(good.row.offset)
        self._drift = good.position - good.row.position

    def _go_on_at(self, good: MatchingEntry, reason: str) -> Loss:
        lost = good.row.offset - self._messages.next_offset
        self._follow(good)
        return self._lose(good.position, lost, reason)

    def _believe(self, position: int, end: int) -> Loss | None:
        self._believed_to = end
        return self._take_framed(Unverified(position, end, end))
