# Records without index entries in a segment that is not the last one. Law: bytes that a peer wrote keep their
# offsets; records that diskq acknowledged and that have no offset are kept aside and reported.
#
# A writer that died between data and entries leaves them. go-diskq takes its next position from the size of
# the data and its next offset from the index, so its messages follow in the data, with the offsets that were
# meant for diskq's. In the last segment diskq's get entries, and the offsets of the others go up
# (index_rebuild.py). Once go-diskq has rolled to another segment, whose name is its first offset, no offset
# is left for diskq's records. They are removed from the data then: go-diskq reads it from the start, and
# ignores the positions in the index.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diskq._native.stream.codec import TripletFraming
from diskq._native.stream.index_entries import rows_of
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.index_entries import INDEX_ROW
from diskq.engine.stream.index_rebuild import SegmentEntries, read_entries
from diskq.storage.append_file import ChecksumFile
from diskq.storage.barrier import let_go
from diskq.storage.checksums import Row, Rows, checksum, pack_row, rows_before
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.swap import Swap

__all__ = ["Unindexed", "find_unindexed"]


# A larger segment is not rewritten: its data would be in memory several times.
_LARGEST = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Unindexed:
    """Records in a segment's data that diskq wrote, and that no entry of its index names."""

    start: int
    """The byte of the data at which the first of them begins."""
    count: int
    records: bytes
    """All of them, as they are in the data file."""
    block: Row
    """The checksum of the block in which the first of them is."""
    before: int
    """How many records of the block are before them."""
    data: bytes
    """The data without them."""
    others: int
    """How many records of a peer have no entry either; whether they were acknowledged is unknown."""

    def leave_out(self, fs: FileSystem, files: PartitionFiles, base: int, framing: TripletFraming) -> bool:
        """Replace the segment's files, together, by files without these records. False if that is impossible.

        Messages keep their offsets. Those after the removed records have no checksums. Raises OSError.
        """
        if self.others:
            return False
        sums = [row for row in _blocks(fs, files, base) if row.end <= self.block.start]
        if self.before:
            block = self.data[self.block.start : self.start]
            sums.append(Row(self.block.start, self.start, self.before, checksum(block)))
        made = rows_of(framing, self.data, base, 0)
        swap = Swap(fs, files.stream.path, files.stream.swap)
        swap.install(files.data(base), self.data)
        swap.install(files.index_of(base), made.index_rows)
        swap.install(files.timeindex(base), made.timeindex_rows)
        swap.install(files.checksum_file(base), b"".join(map(pack_row, sums)))
        swap.remove(files.marks(base))
        try:
            swap.carry_out()
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            return False
        return True

    def give_up_checksums(self, fs: FileSystem, files: PartitionFiles, base: int) -> ChecksumFile:
        """Cut the checksum file of the segment `base` before `start`: after it, readers then go by the index.

        Returns the checksum file, which the caller closes.
        """
        kept, covered = rows_before(fs, files.checksum_file(base), self.block.start)
        checksum_file = ChecksumFile.open(fs, files.checksum_file(base), kept, covered)
        if self.before:
            size = self.start - self.block.start
            checksum_file.add(
                self.start, size, self.before, memoryview(_read(fs, files, base, self.block.start, size))
            )
            checksum_file.flush()
        return checksum_file


def find_unindexed(
    fs: FileSystem, files: PartitionFiles, framing: TripletFraming, base: int, following: int
) -> Unindexed | None:
    """Return diskq's records without entries; None if each record has its entry, or nothing is certain.

    `following` is the offset with which the next segment begins. If it leaves an offset for each record,
    they had entries, and readers do without. Raises OSError.
    """
    size = fs.size_of(files.data(base)) or 0
    rows = SegmentEntries(base, read_entries(fs, files.index_of(base), files.data(base)), b"")
    if rows.fill(size) or size > _LARGEST:
        return None
    data = _read(fs, files, base, 0, size)
    made = rows_of(framing, data, base, 0)
    places = {(position, length) for _, position, length in INDEX_ROW.iter_unpack(made.index_rows)}
    left_out = sorted(places - rows.places())
    if made.valid_end < size or not rows.places() <= places or not left_out:
        return None
    if base + len(places) <= following:
        return None
    blocks = _blocks(fs, files, base)
    is_ours = [any(row.start <= at < row.end for row in blocks) for at, _ in left_out]
    if not all(row.matches(data[row.start : row.end]) for row in blocks):
        return None
    ours = [place for place, is_its in zip(left_out, is_ours, strict=True) if is_its]
    if not ours:
        return None  # a peer's own: whether they were acknowledged is unknown
    start = ours[0][0]
    block = next(row for row in blocks if row.start <= start < row.end)
    before = sum(block.start <= at < start for at, _ in places)
    records = b"".join(data[at : at + length] for at, length in ours)
    kept = _without(ours, data)
    return Unindexed(start, len(ours), records, block, before, kept, len(left_out) - len(ours))


def _without(places: Sequence[tuple[int, int]], data: bytes) -> bytes:
    """Return the data without the records at these places."""
    kept, end = bytearray(), 0
    for at, length in places:
        kept += data[end:at]
        end = at + length
    return bytes(kept + data[end:])


def _read(fs: FileSystem, files: PartitionFiles, base: int, start: int, size: int) -> bytes:
    handle = fs.open(files.data(base))
    try:
        return fs.pread(handle, size, start)
    finally:
        let_go(fs, handle)


def _blocks(fs: FileSystem, files: PartitionFiles, base: int) -> list[Row]:
    rows = Rows(fs, files.checksum_file(base))
    found: list[Row] = []
    try:
        while (row := rows.first_after(found[-1].end if found else 0)) is not None:
            found.append(row)
        return found
    finally:
        rows.close()
