# Rebuilding the index and the timeindex of a segment. Law: the data file is the authority; entries are made
# again from its records, and no bytes that a program wrote are destroyed.
#
# The entries that the records imply are compared with the existing ones. If they differ, the block's
# checksum decides:
#
#   it agrees      The data is what was written: the entry is replaced.
#   it disagrees   The block is damaged: its entries stay as they are, and readers report the damage.
#   there is none  A peer wrote the block, or it is recent. Of three sources (record, index entry, timeindex
#                  entry) two that agree correct the third. If all three differ, the decision is that of a
#                  reader (segment_reader.py), so that a message has the same offset before and after.
#
# Whole records without any entry, at the end, get one. Zeros are not records (codec.pyx).
#
# What cannot be read is cut only if no later entry is of a whole record. A power cut leaves torn records and
# zeros, and go-diskq appends to whatever it finds: its entries follow a fragment of an entry, and its first
# offset is the number of entries that are left, which may be fewer than the records. Then its messages keep
# their order, and get higher offsets.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq._native.core.gate import Gate
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming
from diskq._native.stream.index_entries import RowsOf, rows_of
from diskq._native.stream.read_ahead import TripletAhead, find_row
from diskq.engine.stream.cross_check import CrossCheck
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.index_entries import INDEX_ROW, TIMEINDEX_ROW
from diskq.engine.stream.segment_reader import SegmentReader
from diskq.storage.barrier import cut_to, let_go, opened, write_all
from diskq.storage.block_reader import Loss
from diskq.storage.checksums import Row, Rows
from diskq.storage.fs import FileSystem, full_disk_ignored
from diskq.storage.repairs import Repair, RepairKind, cut_tail, keep_copy
from diskq.storage.swap import Swap

__all__ = ["IndexRebuild", "RebuiltSegment", "SegmentEntries", "read_entries", "rebuild_index"]

_CHUNK = 1024 * 1024
# Bytes of entries that are read however small the data file is.
_ROWS_IN_ANY_CASE = 64 * 1024 * 1024
# Bytes of the smallest record: bounds how many entries a large data file can have.
_LEAST_RECORD = 8
# The most searches of the whole index for conflicts: a segment may contradict itself everywhere.
_MOST_SEARCHES = 64
_NO_RECORD = "entries of no record"
_NO_ENTRY = bytes(INDEX_ROW_SIZE)
# An entry of the timeindex is searched for up to this many bytes around its place.
_AROUND = 64 * TIMEINDEX_ROW_SIZE


@dataclass(slots=True)
class RebuiltSegment:
    """A segment whose files agree: its data ends at byte `end`, and the next record has `next_offset`."""

    end: int
    next_offset: int
    given: int
    """The offset after the last one that any file mentions; that message may be lost."""
    is_changed: bool = False
    """True if an existing entry was changed or removed."""
    repairs: list[Repair] = field(default_factory=list)


class _IndexPlace(NamedTuple):
    position: int
    offset: int


class _FileChanges(NamedTuple):
    """What differs in an index or a timeindex."""

    path: str
    size: int
    """Bytes that are there."""
    end: int
    """Bytes that it is to have: those after them are of no record."""
    patches: list[tuple[int, bytes]]
    """Bytes that are to be written, each with the place where they belong."""
    wrong: tuple[int, int] | None
    """Where there are entries that are not as they are to be."""


def rebuild_index(
    fs: FileSystem, files: PartitionFiles, framing: TripletFraming, base: int
) -> RebuiltSegment:
    """Rebuild the index and the timeindex of the segment at `base` from its data. Raises OSError."""
    rebuild = IndexRebuild(fs, files, framing, base)
    rebuild.write()
    return rebuild.rebuilt


class IndexRebuild:
    """One rebuild. The data is read, and its end cut, when it is made; the entries are changed by `write`."""

    def __init__(self, fs: FileSystem, files: PartitionFiles, framing: TripletFraming, base: int) -> None:
        self.fs = fs
        self.files = files
        self.framing = framing
        self.base = base
        self.data, self.index, self.timeindex = files.segment(base)
        self.rows = SegmentEntries(
            base, read_entries(fs, self.index, self.data), read_entries(fs, self.timeindex, self.data)
        )
        self.rebuilt = RebuiltSegment(0, base, base)
        """What is known before `write`; it adds repairs."""
        self.losses: list[Loss] = []
        self.sums = Rows(fs, files.checksum_file(base))
        try:
            self.handle = fs.open(self.data)
        except OSError:
            self.sums.close()
            raise
        self.size = self.covered = 0
        self.last = _IndexPlace(-1, -1)
        self._searches = 0
        self._named = (-1, -1)  # from the first byte on, the next record with an entry is at the second
        self._is_damaged = False  # then offsets may be wrong, and contradict no entry
        try:
            self._plan()
        finally:
            self.sums.close()
            let_go(self.fs, self.handle)

    def _plan(self) -> None:
        self.size = self.fs.size(self.handle)
        self.sums.seek(self.size)
        self.covered = self.sums.last_end
        self.sums.seek(0)
        rebuilt = self.rebuilt
        made = self._skipped()
        if made is not None:
            self.rows.put(self.base, made, 0, made.records)
            rebuilt.end, rebuilt.next_offset = made.valid_end, self.base + made.records
        else:
            good, place = self._walk()
            if place.position < self.size:
                good = self._resume(good, place)
            (rebuilt.end, rebuilt.next_offset), rebuilt.given = good, place.offset
        if rebuilt.end < self.size:
            what = "zeros" if self._are_zeros(rebuilt.end, self.size) else "a record that is not whole"
            self._cut(self.data, rebuilt.end, RepairKind.TORN, f"{what} ({self.size - rebuilt.end} bytes)")
        rebuilt.given = max(rebuilt.given, self.rows.given())

    def write(self) -> None:
        """Make the entries agree with the data. Raises OSError."""
        rebuilt = self.rebuilt
        before = len(rebuilt.repairs)
        self._write(rebuilt.next_offset - self.base)
        if len(rebuilt.repairs) > before:
            # If nothing was rebuilt, the losses were reported before, and readers report them again.
            for loss in self.losses:
                if loss.start < rebuilt.end:
                    self.rebuilt.repairs.append(
                        Repair.of_bytes(self.data, loss.kind, loss.start, loss.end, loss.reason, loss.records)
                    )

    # --- the records ------------------------------------------------------------------------------

    def _skipped(self) -> RowsOf | None:
        """Return all entries made anew, if go-diskq appended after records without entries; else None.

        A diskq writer that died between data and entries left such records. go-diskq takes the next position
        from the data and the next offset from the index: the entries that it wrote name the right bytes, but
        go-diskq's `Read` goes by the sizes in the entries alone, and fails there for good. Once the skipped
        records have entries, the messages after them have higher offsets.
        """
        number = self.rows.first_skipped()
        if number is None:
            return None
        made = rows_of(self.framing, self.fs.pread(self.handle, self.size, 0), self.base, 0)
        places = {(position, size) for _, position, size in INDEX_ROW.iter_unpack(made.index_rows)}
        named = self.rows.places()
        # diskq wrote those that checksums cover. Whether a peer's own were acknowledged is unknown.
        skipped = sorted(places - named)
        blocks = [self._block_at(position) for position, _ in skipped]
        is_ours = all(
            block is not None and sum(place) <= block.end
            for block, place in zip(blocks, skipped, strict=True)
        )
        if not self._is_as_checked() or not is_ours or not named <= places:
            return None
        count = len(skipped)
        reason = f"{count} messages have no index entries here, and another producer wrote after them: "
        reason += f"they get entries, and the offsets of its messages go up by {count}"
        at = number * INDEX_ROW_SIZE
        self.rebuilt.repairs.append(Repair.of_bytes(self.index, RepairKind.FOREIGN, at, at, reason, 0))
        return made

    def _is_as_checked(self) -> bool:
        """True if all existing checksums agree with the data."""
        at = 0
        self.sums.seek(0)
        while blocks := self.sums.covering(at, 0):
            if blocks[0].end > self.size or not self._matches(blocks[0]):
                break
            at = blocks[0].end
        self.sums.seek(0)
        return not blocks

    def _walk(self) -> tuple[_IndexPlace, _IndexPlace]:
        """Decide on the entries of all records, passing over what cannot be read.

        Returns the place after the last record, and the place after the messages that are missing there.
        """
        good = place = _IndexPlace(0, self.base)
        want = _CHUNK
        while place.position < self.size:
            made = self._scanned(place, want)
            settled = self._settle_rows(place, made)
            if settled < made.records:
                place = self._place_of(made, settled)
            else:
                place = _IndexPlace(place.position + made.valid_end, place.offset + made.records)
            if settled:
                before = self._place_of(made, settled - 1)
                if (at := self._entry_inside(before, place)) is not None:
                    self.rows.take_back(before.offset)
                    good = place = self._go_on_at(at, before)
                    continue
                good, self.last = place, before
            if settled == made.records:
                left = self.size - place.position
                if made.stop == "TORN" and made.claimed <= left and (made.records or want < left):
                    want = max(_CHUNK, 2 * want if not made.records else 0, made.claimed)
                    continue
                if made.stop == "END":
                    continue
            at = self._later_entry(place)
            if at is None:
                at = self._conflicting_entry(place)
            if at is not None:
                good = place = self._go_on_at(at, place)
                continue
            further, good = self._after_contradiction(place, good)
            if further.position <= place.position:
                number = self._uncontradicted(made, settled, made.records)
                if number == settled:
                    break
                self.rows.put(place.offset, made, settled, number)
                further = good = self._place_of(made, number)
            place = further
        return good, place

    # --- records after what cannot be read --------------------------------------------------------

    def _resume(self, good: _IndexPlace, place: _IndexPlace) -> _IndexPlace:
        """Decide on the records after `place` that have entries. Returns the place after the last record.

        `good` is returned if there are none.
        """
        while place.position < self.size:
            at = self._first_entry(place.position + (not self._is_damaged), self.size)
            if at is None:
                break
            good = place = self._go_on_at(at, place)
        return good

    def _later_entry(self, place: _IndexPlace) -> int | None:
        """Return where the record at `place` has an entry with a higher offset; None if it has none.

        The index kept entries of records that a power cut took, and another producer's record is in the place
        of one: the last of the two entries counts.
        """
        if self._is_damaged or place.position < self.covered or self._searches >= _MOST_SEARCHES:
            return None
        self._searches += 1
        return self._first_entry(place.position, place.position + 1, place.offset + 1)

    def _entry_inside(self, start: _IndexPlace, end: _IndexPlace) -> int | None:
        """Return where the entry of a record is that begins inside the record from `start` to `end`, or None.

        A power cut left a part of the record, and the first bytes of another producer's made it whole.
        """
        if self._is_damaged or start.position < self.covered or self._searches >= _MOST_SEARCHES:
            return None
        self._searches += 1
        return self._first_entry(start.position + 1, end.position, start.offset + 1)

    def _conflicting_entry(self, place: _IndexPlace) -> int | None:
        """Return where the entry of the next whole record is, if an earlier record has its offset; else None.

        An index that lost its end, or got zeros there, has fewer entries than there are records. go-diskq
        opened such a segment, and gave the offsets of the records without entries a second time.
        """
        if self._is_damaged or place.position < self.covered or self._searches >= _MOST_SEARCHES:
            return None
        self._searches += 1
        at = self._first_entry(place.position, self.size)
        is_conflict = at is not None and INDEX_ROW.unpack_from(self.rows.index, at)[0] < place.offset
        return at if is_conflict else None

    def _go_on_at(self, at: int, place: _IndexPlace) -> _IndexPlace:
        """Decide on the records from that on whose entry is at byte `at` of the index.

        Returns the place after the last one. Records before it, from `place` on, get entries if nothing else
        is there.
        """
        said, position, _ = INDEX_ROW.unpack_from(self.rows.index, at)
        if said < place.offset and position > place.position:
            between = self.fs.pread(self.handle, position - place.position, place.position)
            made = rows_of(self.framing, between, place.offset, place.position)
            if made.valid_end == len(between):
                self.rows.put(place.offset, made, 0, made.records)
                place = self._place_of(made, made.records)
        first = _IndexPlace(position, max(said, place.offset))
        self.rows.clear(place.offset, first.offset)
        if place.position < position:
            what = "zeros" if self._are_zeros(place.position, position) else "bytes of no record"
        elif first.offset > place.offset:
            what = "records of which only entries are left"
        if first != place:
            self.losses.append(Loss(place.position, position, first.offset - place.offset, what))
        return self._take_entries(at, first)

    def _first_entry(self, start: int, end: int, offset: int = 0) -> int | None:
        """Return where in the index the first whole record that begins in start:end has its entry.

        It may be any byte, after a fragment of an entry. Only entries of messages from `offset` on count.
        """
        index, found = self.rows.index, None
        check = CrossCheck(self.fs, self.files, self.base, self.handle, self.framing)
        try:
            at = -1
            least = max(self.base, offset)
            while (at := find_row(index, at + 1, 1, 0, self.base, least, start, end)) >= 0:
                said, position, size = INDEX_ROW.unpack_from(index, at)
                if check.is_record(position, size, self.size, said):
                    found, end = at, position
        finally:
            check.close()
        return found

    def _take_entries(self, at: int, place: _IndexPlace) -> _IndexPlace:
        """Set the entries of the records from `place` on that follow each other, in data and index.

        Byte `at` of the index has the entry of the first. Returns the place after the last one.
        """
        index, want = self.rows.index, _CHUNK
        said = INDEX_ROW.unpack_from(index, at)[0]
        if moved := place.offset - said:
            reason = f"another producer's messages begin with offset {said}, which an older one has: "
            reason += f"their offsets go up by {moved}"
            self.rebuilt.repairs.append(Repair.of_bytes(self.index, RepairKind.FOREIGN, at, at, reason, 0))
        while place.position < self.size:
            chunk = self.fs.pread(self.handle, min(want, self.size - place.position), place.position)
            theirs = rows_of(self.framing, chunk, said, place.position)
            number = _count_equal(theirs.index_rows, index[at : at + len(theirs.index_rows)])
            at += number * INDEX_ROW_SIZE
            if at + INDEX_ROW_SIZE > len(index):
                number = theirs.records  # the producer died between the data and the index
            if number:
                made = rows_of(self.framing, chunk, place.offset, place.position)
                self.rows.put(place.offset, made, 0, number)
                place = self._place_of(made, number)
                said += number
            left = self.size - place.position
            is_cut_short = theirs.stop == "TORN" and theirs.claimed <= left and (number or want < left)
            if number < theirs.records or not (theirs.stop == "END" or is_cut_short):
                break
            want = _CHUNK if number else max(2 * want, theirs.claimed)
        self.last = _IndexPlace(-1, -1)  # the record before was decided on by its entry
        return place

    def _are_zeros(self, start: int, end: int) -> bool:
        """True if bytes start:end of the data are zeros."""
        while start < end:
            chunk = self.fs.pread(self.handle, min(_CHUNK, end - start), start)
            if not chunk or chunk.strip(b"\0"):
                return False
            start += len(chunk)
        return True

    # --- the records, continued -------------------------------------------------------------------

    def _scanned(self, place: _IndexPlace, size: int) -> RowsOf:
        """Return the whole records in at most `size` bytes from `place` on."""
        chunk = self.fs.pread(self.handle, min(size, self.size - place.position), place.position)
        return rows_of(self.framing, chunk, place.offset, place.position)

    def _settle_rows(self, place: _IndexPlace, made: RowsOf) -> int:
        """Decide on the entries that differ from the records. Returns how many records were decided on."""
        number = 0
        while (number := self.rows.agreed(place.offset, made, number)) < made.records:
            start, offset = self._place_of(made, number)
            block = self._block_at(start)
            if block is not None:
                if not self._matches(block):
                    break
                settled = self._first_at_or_after(made, number, block.end)
            elif self.rows.has_index(offset):
                settled = self.rows.agreed(place.offset, made, number, without_time=True)
                if settled == number or self._later_entry(self._place_of(made, number)) is not None:
                    break  # neither the index entry nor two sources agree with the record, or two entries do
            else:
                limit = self._first_at_or_after(made, number, self._uncovered_to(start))
                settled = self._uncontradicted(made, number, limit)
                if settled == made.records and self._ends_in_zeros(self._place_of(made, settled).position):
                    settled -= 1
                if settled == number:
                    break
            self.rows.put(offset, made, number, settled)
            number = settled
        return number

    def _ends_in_zeros(self, end: int) -> bool:
        """True if the record before byte `end`, which nothing confirms, ends in zeros that go on after it.

        A power cut took the rest of it, and zeros where the length of its value should be make it whole.
        """
        return self.fs.pread(self.handle, 2, end - 1) == b"\0\0"

    def _uncontradicted(self, made: RowsOf, number: int, limit: int) -> int:
        """Return the end of the run of records number:limit that no existing entry contradicts.

        An entry of a record that begins inside one of them contradicts that one: a torn record and the bytes
        of another producer after it may look like a whole one.
        """
        limit = self._before_named(made, number, limit)
        if number < limit and not self.rows.has_any_from(self._place_of(made, number).offset):
            return limit
        while number < limit:
            row = made.timeindex_rows[number * TIMEINDEX_ROW_SIZE : (number + 1) * TIMEINDEX_ROW_SIZE]
            if self.rows.contradicts(*TIMEINDEX_ROW.unpack(row)):
                break
            number += 1
        return number

    def _before_named(self, made: RowsOf, number: int, limit: int) -> int:
        """Return the end of the run of records number:limit before the next one that an entry names."""
        if number >= limit:
            return limit
        start = self._place_of(made, number).position
        asked, named = self._named
        if not asked <= start <= named:
            at = self._first_entry(start, self.size)
            named = self.size if at is None else INDEX_ROW.unpack_from(self.rows.index, at)[1]
            self._named = start, named
        low, high = number, limit
        while low < high:
            middle = (low + high) // 2
            if self._place_of(made, middle + 1).position <= named:
                low = middle + 1
            else:
                high = middle
        return low

    @staticmethod
    def _place_of(made: RowsOf, number: int) -> _IndexPlace:
        """Return where record `number` of these begins; after the last one, where the next begins."""
        if number == made.records:
            offset, position, size = INDEX_ROW.unpack_from(made.index_rows, (number - 1) * INDEX_ROW_SIZE)
            return _IndexPlace(position + size, offset + 1)
        offset, position, _ = INDEX_ROW.unpack_from(made.index_rows, number * INDEX_ROW_SIZE)
        return _IndexPlace(position, offset)

    def _first_at_or_after(self, made: RowsOf, number: int, end: int) -> int:
        """Return the first record after `number` that begins at byte `end` or later."""
        number += 1
        while number < made.records and self._place_of(made, number).position < end:
            number += 1
        return number

    def _after_contradiction(self, place: _IndexPlace, good: _IndexPlace) -> tuple[_IndexPlace, _IndexPlace]:
        """Return where reading continues after a place that cannot be decided by its own bytes.

        It does not continue if that is not after `place`. The second place is after the last record passed.
        """
        block = self._block_at(place.position)
        if block is not None and block.end <= self.size:
            self._is_damaged = True
            after = self._after_block(block, place)
            return after, after
        if self.covered <= self.last.position and self.last.offset + 1 == place.offset:
            # The contradiction may be in the record before, which no checksum covers either: decide it again.
            taken = self.rows.take_back(self.last.offset)
            further, good = self._read(self.last, good)
            if further.position <= self.last.position:
                self.rows.put_again(taken)  # nothing else is known of it
            return further, good
        return self._read(place, good)

    def _read(self, place: _IndexPlace, good: _IndexPlace) -> tuple[_IndexPlace, _IndexPlace]:
        """Read on from `place` as a reader does, by two of three sources, and set the entries on the way."""
        ahead = TripletAhead(self.fs, self.framing, Gate())
        reader = SegmentReader(self.fs, ahead, self.framing, self.files, self.base)
        try:
            reader.begin_at(place.position, place.offset)
            while True:
                if (loss := reader.read_on(self.size)) is not None:
                    self.losses.append(loss)
                elif not ahead.is_ready:
                    return _IndexPlace(ahead.position, ahead.next_offset), good
                start = ahead.position
                while (message := ahead.take_now()) is not None:
                    self.rows.put_one(message.offset, start, ahead.position - start, message.timestamp_ns)
                    start = ahead.position
                    good = _IndexPlace(ahead.position, ahead.next_offset)
        finally:
            reader.close()

    def _block_at(self, position: int) -> Row | None:
        """Return the checksum entry of the block that covers the byte, or None."""
        blocks = self.sums.covering(position, 0)
        return blocks[0] if blocks and blocks[0].start <= position else None

    def _uncovered_to(self, position: int) -> int:
        """Return the byte at which the next block with a checksum begins."""
        row = self.sums.first_after(position)
        return self.size if row is None else row.start

    def _matches(self, block: Row) -> bool:
        return block.matches(self.fs.pread(self.handle, block.end - block.start, block.start))

    def _after_block(self, block: Row, place: _IndexPlace) -> _IndexPlace:
        """Return the place after a damaged block, whose checksum entry says how many records it has."""
        whole = self.fs.pread(self.handle, place.position - block.start, block.start)
        before = rows_of(self.framing, whole, 0, block.start).records
        return _IndexPlace(block.end, place.offset - before + block.records)

    # --- the files --------------------------------------------------------------------------------

    def _write(self, count: int) -> None:
        """Write the entries that were decided on, and cut those that belong to no record."""
        changes = (
            self._changes(self.timeindex, self.rows.timeindex_patches(), count, TIMEINDEX_ROW_SIZE),
            self._changes(self.index, self.rows.index_patches(), count, INDEX_ROW_SIZE),
        )
        if any(its.wrong for its in changes):
            self._replace(changes)
            return
        for its in changes:
            if its.size > its.end:
                self._cut(its.path, its.end, RepairKind.STALE, _NO_RECORD)
            self._write_over(its)

    def _changes(
        self, path: str, patches: list[tuple[int, bytes]], count: int, row_size: int
    ) -> _FileChanges:
        """Return what differs. The file is made if it is missing."""
        end = count * row_size
        with opened(self.fs, path, write=True, create=True) as handle:
            size = self.fs.size(handle)
            there = [
                self.fs.pread(handle, min(len(content), max(0, end - start)), start)
                for start, content in patches
            ]
        whole = min(size // row_size * row_size, end)
        other = [(patch, old) for patch, old in zip(patches, there, strict=True) if old != patch[1]]
        wrong = [start for (start, content), old in other if old[: whole - start] != content[: whole - start]]
        self.rebuilt.is_changed |= size >= end + row_size
        is_wrong = bool(wrong) and wrong[0] < whole
        return _FileChanges(
            path, size, end, [patch for patch, _ in other], (wrong[0], whole) if is_wrong else None
        )

    def _write_over(self, its: _FileChanges) -> None:
        with opened(self.fs, its.path, write=True) as handle:
            for start, content in its.patches:
                write_all(self.fs, handle, content, start)

    def _replace(self, changes: Sequence[_FileChanges]) -> None:
        """Replace both files at once, durably.

        A peer's records may be found by their entries alone: a power cut among writes over them would leave
        neither the old entries nor the new ones, or an index and a timeindex that contradict each other. If
        the disk is full, they are written over all the same.
        """
        self.rebuilt.is_changed = True
        swap = Swap(self.fs, self.files.stream.path, self.files.stream.swap)
        for its in changes:
            with opened(self.fs, its.path) as handle:
                if its.size > its.end:
                    aside = keep_copy(self.fs, handle, self.files.kept(its.path), its.end)
                    self.rebuilt.repairs.append(
                        Repair.of_bytes(its.path, RepairKind.STALE, its.end, its.size, _NO_RECORD, 0, aside)
                    )
                if its.wrong is not None:
                    aside = keep_copy(self.fs, handle, self.files.kept(its.path), 0, its.end)
                    reason = "entries that disagree with their records"
                    self.rebuilt.repairs.append(
                        Repair.of_bytes(its.path, RepairKind.REBUILT, *its.wrong, reason, 0, aside)
                    )
                entries = bytearray(self.fs.pread(handle, its.end, 0))
            for start, content in its.patches:
                entries.extend(bytes(max(0, start - len(entries))))
                entries[start : start + len(content)] = content
            swap.install(its.path, bytes(entries))
        with full_disk_ignored():
            swap.carry_out()
            return
        for its in changes:
            with opened(self.fs, its.path, write=True) as handle:
                cut_to(self.fs, handle, its.end)
            self._write_over(its)

    def _cut(self, path: str, end: int, kind: RepairKind, reason: str) -> None:
        """Cut the file at byte `end`. The cut bytes are of a torn write: no acknowledged message is lost."""
        with opened(self.fs, path, write=True) as handle:
            self.rebuilt.repairs.append(
                cut_tail(self.fs, handle, path, end, kind, reason, 0, aside_base=self.files.kept(path))
            )


_Patch = tuple[int, bytes, bytes]
"""Entries of the index and of the timeindex, and the number of the first in its segment."""


class SegmentEntries:
    """The index and timeindex entries of a segment: those on disk, and those to be written."""

    def __init__(self, base: int, index: bytes, timeindex: bytes) -> None:
        self.base = base
        self.index = index
        self._index = memoryview(index)
        self._timeindex = memoryview(timeindex)
        self.index_count = len(index) // INDEX_ROW_SIZE
        self._patches: list[_Patch] = []

    def has_index(self, offset: int) -> bool:
        """True if the index has an entry at the offset's place, whatever it says. Zeros are no entry."""
        number = offset - self.base
        return number < self.index_count and not self._are_zeros(number)

    def _are_zeros(self, number: int) -> bool:
        return self._index[number * INDEX_ROW_SIZE : (number + 1) * INDEX_ROW_SIZE] == _NO_ENTRY

    def has_any_from(self, offset: int) -> bool:
        """True if the index or the timeindex has an entry at the offset's place or after it."""
        rows = len(self._timeindex) - (offset - self.base) * TIMEINDEX_ROW_SIZE
        return rows > 0 or self.has_index(offset)

    def contradicts(self, offset: int, timestamp: int) -> bool:
        """True if the index has an entry of this message, or the timeindex has another time for it."""
        number = offset - self.base
        said = (
            INDEX_ROW.unpack_from(self._index, number * INDEX_ROW_SIZE) if self.has_index(offset) else (-1,)
        )
        if said[0] == offset:
            return True
        # Of several entries the last one counts: those before it are of pushes that failed. They may lie
        # some bytes after their places, if one of them is torn.
        if self._time_at(number)[0] == offset != self._time_at(number + 1)[0]:
            return self._time_at(number)[1] != timestamp
        start = max(0, number * TIMEINDEX_ROW_SIZE - _AROUND)
        rows = bytes(self._timeindex[start : start + 2 * _AROUND])
        at = rows.rfind(offset.to_bytes(8, "little"))
        if at < 0 or len(rows) < at + TIMEINDEX_ROW_SIZE:
            return False
        return bool(TIMEINDEX_ROW.unpack_from(rows, at)[1] != timestamp)

    def _time_at(self, number: int) -> tuple[int, int]:
        """Return the timeindex entry at this place, as offset and timestamp; -1 and 0 if there is none."""
        row = self._timeindex[number * TIMEINDEX_ROW_SIZE : (number + 1) * TIMEINDEX_ROW_SIZE]
        if len(row) < TIMEINDEX_ROW_SIZE:
            return -1, 0
        offset, timestamp = TIMEINDEX_ROW.unpack(row)
        return offset, timestamp

    def places(self) -> set[tuple[int, int]]:
        """Return position and size of the records that have index entries."""
        return {(position, size) for _, position, size in self._all()}

    def fill(self, size: int) -> bool:
        """True if the records that have entries fill bytes 0 to `size` without a gap."""
        end = 0
        for number, (offset, position, length) in enumerate(self._all()):
            if offset != self.base + number or position != end:
                return False
            end += length
        return end == size

    def first_skipped(self) -> int | None:
        """Return the first entry whose record begins after the end of the one before.

        None if there is none, or entries are wrong.
        """
        end, found = 0, None
        for number, (offset, position, size) in enumerate(self._all()):
            if offset != self.base + number or position < end:
                return None
            if position > end and found is None:
                found = number
            end = position + size
        return found

    def _all(self) -> Iterator[tuple[int, int, int]]:
        return INDEX_ROW.iter_unpack(self._index[: self.index_count * INDEX_ROW_SIZE])

    def take_back(self, offset: int) -> list[_Patch]:
        """Forget what was decided for the entry of `offset` and those after it, and return it."""
        number = offset - self.base
        kept: list[_Patch] = []
        taken: list[_Patch] = []
        for first, index, timeindex in self._patches:
            count = max(0, number - first)
            of_index, of_times = count * INDEX_ROW_SIZE, count * TIMEINDEX_ROW_SIZE
            if of_index:
                kept.append((first, index[:of_index], timeindex[:of_times]))
            if of_index < len(index):
                taken.append((first + count, index[of_index:], timeindex[of_times:]))
        self._patches = kept
        return taken

    def put_again(self, taken: list[_Patch]) -> None:
        """Set the entries that `take_back` has returned."""
        self._patches += taken

    def given(self) -> int:
        """Return the offset after the last entry that is at its place."""
        for number in reversed(range(self.index_count)):
            said = INDEX_ROW.unpack_from(self._index, number * INDEX_ROW_SIZE)[0]
            if said == self.base + number and not self._are_zeros(number):
                return self.base + number + 1
        return self.base

    def agreed(self, offset: int, made: RowsOf, start: int, *, without_time: bool = False) -> int:
        """Return the number of the first entry in `made`, from `start` on, that differs from the disk's.

        Entry 0 of `made` belongs to message `offset`. If all entries agree, returns `made.records`.
        """
        if self._is_there(offset, made, start, made.records, without_time):
            return made.records
        number, step = start, made.records - start
        while step:  # by halving: most entries agree
            if number + step <= made.records and self._is_there(
                offset, made, number, number + step, without_time
            ):
                number += step
            else:
                step //= 2
        return number

    def _is_there(self, offset: int, made: RowsOf, start: int, end: int, without_time: bool) -> bool:
        first, last = offset - self.base + start, offset - self.base + end
        index = self._index[first * INDEX_ROW_SIZE : last * INDEX_ROW_SIZE]
        if index != memoryview(made.index_rows)[start * INDEX_ROW_SIZE : end * INDEX_ROW_SIZE]:
            return False
        if without_time:
            return True
        timeindex = self._timeindex[first * TIMEINDEX_ROW_SIZE : last * TIMEINDEX_ROW_SIZE]
        return (
            timeindex
            == memoryview(made.timeindex_rows)[start * TIMEINDEX_ROW_SIZE : end * TIMEINDEX_ROW_SIZE]
        )

    def put(self, offset: int, made: RowsOf, start: int, end: int) -> None:
        """Set entries start:end of `made` in the index; entry 0 of `made` belongs to message `offset`."""
        self._patches.append(
            (
                offset - self.base,
                made.index_rows[start * INDEX_ROW_SIZE : end * INDEX_ROW_SIZE],
                made.timeindex_rows[start * TIMEINDEX_ROW_SIZE : end * TIMEINDEX_ROW_SIZE],
            )
        )

    def clear(self, first: int, end: int) -> None:
        """Make zeros of the entries of messages first:end, which have no records."""
        if first < end:
            self._patches.append((first - self.base, bytes((end - first) * INDEX_ROW_SIZE), b""))

    def put_one(self, offset: int, position: int, size: int, timestamp: int) -> None:
        """Set the entries of one record."""
        index = INDEX_ROW.pack(offset, position, size)
        self._patches.append((offset - self.base, index, TIMEINDEX_ROW.pack(offset, timestamp)))

    def index_patches(self) -> list[tuple[int, bytes]]:
        return _joined((row * INDEX_ROW_SIZE, index) for row, index, _ in self._patches)

    def timeindex_patches(self) -> list[tuple[int, bytes]]:
        return _joined((row * TIMEINDEX_ROW_SIZE, timeindex) for row, _, timeindex in self._patches)


def _count_equal(rows: bytes, others: bytes) -> int:
    """Return how many index entries at the start of both are equal."""
    number = min(len(rows), len(others)) // INDEX_ROW_SIZE
    while rows[: number * INDEX_ROW_SIZE] != others[: number * INDEX_ROW_SIZE]:
        pairs = zip(INDEX_ROW.iter_unpack(rows), INDEX_ROW.iter_unpack(others), strict=False)
        number = next(at for at, (one, other) in enumerate(pairs) if one != other)
    return number


def _joined(patches: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Join patches that follow each other."""
    joined: list[tuple[int, bytearray]] = []
    for start, content in patches:
        if joined and joined[-1][0] + len(joined[-1][1]) == start:
            joined[-1][1].extend(content)
        else:
            joined.append((start, bytearray(content)))
    return [(start, bytes(content)) for start, content in joined]


def read_entries(fs: FileSystem, path: str, data: str) -> bytes:
    """Return an index or a timeindex, as far as `data` can have entries; empty if there is no such file.

    Entries may be of data that is gone: 64 MiB are read however small the data file is.
    """
    size = fs.size_of(path)
    if not size:
        return b""
    needed = (fs.size_of(data) or 0) // _LEAST_RECORD * INDEX_ROW_SIZE
    with opened(fs, path) as handle:
        return fs.pread(handle, min(size, max(needed, _ROWS_IN_ANY_CASE)), 0)
