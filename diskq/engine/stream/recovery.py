# Recovery of a partition: the parts that depend on go-diskq's format. Law: no offset is assigned twice, to
# different messages. The procedure is in log/segment_recovery.py.
#
#   framing is believed   The active segment's index is rebuilt (index_rebuild.py); the other segments were
#                         complete before it was begun.
#   only checksums are    Each partition is cut at the first byte that no checksum covers.
#
# Cut bytes are kept aside, under `.diskq/`.

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial

from diskq._native.core.append_buffer import BLOCK_SIZE
from diskq._native.core.framing import Count
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming, count
from diskq._native.stream.index_entries import rows_of
from diskq.engine.log.recovery import UNSYNCED, FoundLog, OpenRepairs, Trust
from diskq.engine.log.recovery_points import RecoveryPoint, read_points
from diskq.engine.log.segment_recovery import Followed, LogRecovery, cut_unwritten
from diskq.engine.stream.files import PartitionFiles, StreamFiles, read_first
from diskq.engine.stream.groups import furthest
from diskq.engine.stream.index_entries import INDEX_ROW
from diskq.engine.stream.index_rebuild import IndexRebuild, SegmentEntries, read_entries
from diskq.engine.stream.owner import owner_state
from diskq.engine.stream.unindexed import find_unindexed
from diskq.storage.append_file import ChecksumFile
from diskq.storage.barrier import PendingSyncs, opened
from diskq.storage.checksums import VerifiedPrefix, verified_prefix
from diskq.storage.fs import FileSystem
from diskq.storage.log.entries import Part
from diskq.storage.log.replay import RedoSource
from diskq.storage.repairs import Repair, RepairKind, keep_content

__all__ = ["recover_partition", "redo_source"]

_NOT_STAGED = "not as staged: the transaction's messages from here on are appended again"
# Messages that may have been read without being synced: a committed offset further on may be damaged.
_MOST_READ = 4_000_000
_ROWS_AT_ONCE = 64 * 1024


def recover_partition(
    fs: FileSystem,
    files: PartitionFiles,
    framing: TripletFraming,
    pending_syncs: PendingSyncs,
    *,
    point: RecoveryPoint | None,
    trust: Trust,
    strict: bool,
    refilled: range = range(0),
    differs_at: Callable[[RecoveryPoint], tuple[int, int] | None] | None = None,
    staged: Part | None = None,
    has_wal: bool = True,
) -> FoundLog:
    """Repair the partition, and leave the syncs to the first barrier.

    `point`: all of diskq's bytes before it are known to be durable. `refilled`: a pending transaction assigns
    these offsets again, to the same messages as before. `differs_at`, given with them, returns where the
    first of these messages is, after a recovery point, that is not as before: the segment, and the byte of
    its data. `staged`: records that a write-ahead log had, and that are in their place; without `has_wal`
    there was none. Raises CorruptionError if `strict` and anything other than a torn tail was found, and
    OSError.
    """
    repairs = OpenRepairs(fs, pending_syncs, strict=strict)
    found = FoundLog(repairs.made)
    judge = _StreamJudge(fs, files, framing, repairs, found, refilled, differs_at, staged, has_wal=has_wal)
    return LogRecovery(fs, files, judge, repairs, found, trust).run(point)


class _StreamJudge:
    def __init__(
        self,
        fs: FileSystem,
        files: PartitionFiles,
        framing: TripletFraming,
        repairs: OpenRepairs,
        found: FoundLog,
        refilled: range,
        differs_at: Callable[[RecoveryPoint], tuple[int, int] | None] | None,
        staged: Part | None,
        *,
        has_wal: bool,
    ) -> None:
        self.fs = fs
        self.files = files
        self.framing = framing
        self.repairs = repairs
        self.found = found
        self.refilled = refilled
        self.differs_at = differs_at
        self.differs: tuple[int, int] | None = None
        """Where the pending transaction's messages are not as staged: see `recover_partition`."""
        self.staged = staged
        self.has_wal = has_wal
        self.without_index: set[int] = set()
        """The segments but the last whose index or timeindex was missing."""
        self.trust = Trust.POWER_CUT
        self.to_settle: tuple[IndexRebuild, RecoveryPoint] | None = None

    @cached_property
    def first(self) -> int:
        return read_first(self.fs, self.files)

    def begin(self, point: RecoveryPoint, trust: Trust) -> RecoveryPoint:
        self.trust = trust
        first = self.first
        if first > point.base and first in self.found.bases:
            if trust in (Trust.POWER_CUT, Trust.KILLED):
                self._judge_removed(point)
            point = RecoveryPoint(first, 0, first)
        if trust is Trust.KILLED and self.differs_at is not None:
            self.differs = self.differs_at(point)
        return point

    def _judge_removed(self, point: RecoveryPoint) -> None:
        """Set aside incomplete segments that retention had removed and a power cut brought back."""
        for base in [base for base in self.found.bases if point.base <= base < self.first]:
            start = point.end if base == point.base else 0
            if not verified_prefix(
                self.fs, self.files.data(base), self.files.checksum_file(base), start
            ).is_complete:
                self.found.bases.remove(base)
                self.set_aside(base)
        self.repairs.execute_asides()

    def incomplete(self, point: RecoveryPoint, trust: Trust) -> list[int]:
        # Retention was interrupted, or another program removed the indexes.
        found = self.files.without_index(self.found.bases[:-1])
        self.without_index.update(found)
        if trust in (Trust.KILLED, Trust.POWER_CUT):
            return [base for base in found if base < point.base]  # the others are followed anyway
        return found

    def durable(self, base: int, point: RecoveryPoint) -> list[tuple[str, int]]:
        data, index, timeindex = self.files.segment(base)
        end, count = (point.end, point.next_offset - base) if base == point.base else (0, 0)
        return [(data, end), (timeindex, count * TIMEINDEX_ROW_SIZE), (index, count * INDEX_ROW_SIZE)]

    def follow(self, base: int, point: RecoveryPoint) -> Followed:
        rebuild = IndexRebuild(self.fs, self.files, self.framing, base)
        self.to_settle = rebuild, point
        rebuilt = rebuild.rebuilt
        for repair in rebuilt.repairs:
            self.repairs.report(repair)
        rebuilt.repairs.clear()
        return Followed(rebuilt.end, rebuilt.next_offset, rebuilt.given)

    def settle(self) -> None:
        """Rebuild the segment's index."""
        if self.to_settle is None:
            return
        (rebuild, point), self.to_settle = self.to_settle, None
        base, rebuilt = rebuild.base, rebuild.rebuilt
        data, *row_files = self.files.segment(base)
        sizes = {path: self.fs.size_of(path) or 0 for path in row_files}
        rebuild.write()
        # One event: entries of records that are gone go with these, and so do entries that were not synced.
        is_cut = any(
            (each.path, each.kept) == (data, rebuilt.end)
            and each.kind in (RepairKind.UNSYNCED, RepairKind.LOST)
            for each in self.repairs.made
        )
        synced = {path: size for path, size in self.durable(base, point) if path != data}
        for repair in rebuilt.repairs:
            is_part = repair.kind is RepairKind.STALE or (
                repair.kind is RepairKind.REBUILT and repair.kept >= synced.get(repair.path, repair.kept + 1)
            )
            if not (is_cut and is_part):
                self.repairs.report(repair)
        # A sync of the data may leave entries out, a clean close writes all of them. A power cut takes names,
        # and may bring back the half of a segment that retention has removed.
        known = point.next_offset if base == point.base and self.trust is Trust.CLOSED else base
        if base in self.without_index and self.trust is not Trust.POWER_CUT:
            known = rebuilt.next_offset
        if base >= self.first:
            self._report_made(base, min(known, rebuilt.next_offset), sizes)
        if rebuilt.is_changed:
            self.found.note_changed(base)

    def _report_made(self, base: int, known: int, sizes: Mapping[str, int]) -> None:
        """Report entries that were made anew, of messages before `known`.

        `sizes`: of the index and the timeindex before, in this order.
        """
        rows = (("index", INDEX_ROW_SIZE), ("timeindex", TIMEINDEX_ROW_SIZE))
        for (path, there), (name, size) in zip(sizes.items(), rows, strict=True):
            first = base + there // size
            if first < known:
                reason = f"messages {first} to {known - 1} have no entries in the {name}"
                kept = (first - base) * size
                repair = Repair(path=path, kind=RepairKind.REBUILT, kept=kept, dropped=0, reason=reason)
                self.repairs.report(repair)

    def complete(self, base: int, following: int) -> None:
        """Keep aside this segment's records without index entries: messages after them have their offsets.

        A go-diskq producer that finds records without entries writes after them, counts from the entries, and
        may begin the next segment, `following`.
        """
        left = find_unindexed(self.fs, self.files, self.framing, base, following)
        if left is None:
            return
        path = self.files.data(base)
        aside = keep_content(self.fs, self.files.kept(path), left.records)
        if not left.leave_out(self.fs, self.files, base, self.framing):
            # diskq's readers use the index; go-diskq's stop there.
            checksum_file = left.give_up_checksums(self.fs, self.files, base)
            self.fs.close(checksum_file.handle)
        self.found.note_changed(base)
        reason = "messages without index entries, whose offsets another producer's messages have now"
        size = len(left.records)
        self.repairs.report(
            Repair(
                path=path,
                kind=RepairKind.DISPLACED,
                kept=left.start,
                dropped=size,
                reason=reason,
                records=left.count,
                saved_as=aside,
            )
        )

    def cut_unwritten(self, base: int, start: int) -> bool:
        if self.differs is not None and self.differs[0] == base:
            # A reader would pass over what is damaged: then the transaction would be in by a part.
            data, kept = self.files.data(base), self.differs[1]
            self.repairs.cut(data, kept, RepairKind.UNSYNCED, _NOT_STAGED, aside_base=self.files.kept(data))
            return True
        if not self.has_wal:
            return False  # after a kill the last records have no checksums
        return cut_unwritten(self.repairs, self.files, base, start, self.staged, self._count)

    def void_checksums(self, base: int, start: int) -> None:
        self.repairs.void(self.files.data(base), self.files.checksum_file(base), start, self._count)

    def _count(self, records: bytes) -> Count:
        return count(records, self.framing.varuint)

    def assigns_again(self, offset: int) -> bool:
        return self.refilled.start < offset <= self.refilled.stop

    def next_offset(self, given: int, promised: int, trust: Trust) -> int:
        found = self.found
        if trust in (Trust.POWER_CUT, Trust.KILLED) and self.files.stream.has_groups:
            # A group that has read messages that were never synced must not skip those that replace them.
            most = max(given, found.next_offset) + _MOST_READ
            given = max(given, furthest(self.fs, self.files.stream, self.files.index, most))
        if self.assigns_again(given):
            given = max(promised, found.next_offset, self.refilled.start)
        return given

    # --- after a power cut ------------------------------------------------------------------------

    def believe(self, base: int, verified: VerifiedPrefix, point: RecoveryPoint) -> Followed:
        return self.follow(base, point)

    def is_followed(self, base: int, verified: VerifiedPrefix | None, followed: Followed) -> bool:
        is_complete = verified is None or verified.is_complete
        return is_complete and (base == followed.next_offset or not followed.end)

    def set_aside(self, base: int) -> int:
        data, *others = self.files.segment(base)
        given = SegmentEntries(
            base, read_entries(self.fs, self.files.index_of(base), self.files.data(base)), b""
        ).given()
        removals = (*others, *self.files.private_files(base))
        kept = self.files.kept(data)
        self.repairs.set_aside(data, RepairKind.UNSYNCED, UNSYNCED, aside_base=kept, removals=removals)
        self.found.note_changed(base)
        return max(base, given)

    # --- checksums --------------------------------------------------------------------------------

    def cover(self, base: int, end: int) -> None:
        """Add checksums for the records that none covers, after they were checked."""
        self.repairs.cover(self.files.checksum_file(base), end, partial(self._cover, base, end))

    def _cover(self, base: int, data_end: int, sums: ChecksumFile, covered: int) -> None:
        with opened(self.fs, self.files.data(base)) as handle:
            start = end = covered
            first = 0
            block: list[bytes] = []

            def close_block() -> None:
                data = self.fs.pread(handle, end - start, start)
                # An entry whose record cannot be read gets no checksum: readers have to decide again.
                if rows_of(self.framing, data, first, start).index_rows == b"".join(block):
                    sums.add(end, end - start, len(block), memoryview(data))

            before = None if covered else base - 1
            for offset, position, size in self._places(base, covered, data_end):
                is_next = not block or (position == end and offset == first + len(block))
                if block and not (is_next and end - start < BLOCK_SIZE):
                    close_block()
                    block = []
                is_jump = position == end and before is not None and offset != before + 1
                before = offset
                if position < covered or is_jump:
                    # Readers count the messages of blocks that follow each other. Without a checksum here,
                    # they ask the index, and see the jump.
                    end = position + size
                    continue
                if not block:
                    first, start = offset, position
                block.append(INDEX_ROW.pack(offset, position, size))
                end = position + size
            if block:
                close_block()

    def _places(self, base: int, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return offset, position and size of the records in bytes start:end of the data, ascending.

        And of the record before, if it has an entry. An entry that is not before the next one's record is of
        none that is there.
        """
        path = self.files.index_of(base)
        with opened(self.fs, path) as handle:
            places: list[tuple[int, int, int]] = []
            at = self.fs.size(handle) // INDEX_ROW_SIZE * INDEX_ROW_SIZE
            while at > 0 and (not places or places[-1][1] >= start):
                first = max(0, at - _ROWS_AT_ONCE * INDEX_ROW_SIZE)
                for row in reversed(list(INDEX_ROW.iter_unpack(self.fs.pread(handle, at - first, first)))):
                    if row[2] and row[1] + row[2] <= end:
                        places.append(row)
                        end = row[1]
                    if end < start:
                        break
                at = first
            return places[::-1]


# --- before recovery: a replay of the redo log --------------------------------------------------------


def redo_source(fs: FileSystem, files: StreamFiles, counted: Callable[[bytes], int]) -> RedoSource:
    """Return it, before an open changes the owner file, which shows whether a peer may have written.

    `counted` returns how many messages some records are. What retention has removed is covered, too.
    Raises NotFoundError, OSError.
    """
    points = read_points(fs, files)
    first = cache(lambda index: read_first(fs, files.partition(index)))
    return RedoSource(
        {index: files.partition(index).staging for index in files.partitions()},
        in_place=owner_state(fs, files) == "ours" and not points.was_left,
        is_covered=lambda index, base, end: base < first(index) or points.cover(index, base, end),
        counted=counted,
        are_zeros_skipped=True,
    )
