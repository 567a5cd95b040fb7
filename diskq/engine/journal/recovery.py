# Recovery of a journal: the parts that depend on sej's format. The procedure is in log/segment_recovery.py.
#
#   framing is believed   The last segment's records are followed to its end; bytes that are not whole records
#                         are cut there. Damage in the middle stays, is reported, and readers skip it.
#   only checksums are    The journal is cut at the first byte that no checksum covers.
#
# Cut bytes are kept aside, under `.diskq/`. Offsets are dense in sej's files: those of cut messages are
# assigned again. A reader that has read messages that a power cut has taken is set back.

from __future__ import annotations

from itertools import pairwise

from diskq._native.core.append_buffer import BLOCK_SIZE
from diskq._native.journal import codec as journal_codec
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.walk import RecordStretch, Walk, records_in, walk
from diskq.engine.log.recovery import UNSYNCED, FoundLog, OpenRepairs, Trust, missing_after
from diskq.engine.log.recovery_points import RecoveryPoint, read_points
from diskq.engine.log.segment_recovery import Followed, LogRecovery, cut_unwritten
from diskq.storage.append_file import ChecksumFile
from diskq.storage.barrier import PendingSyncs, opened
from diskq.storage.checksums import VerifiedPrefix, rows_after, verified_prefix, zeros_in
from diskq.storage.fs import FileSystem
from diskq.storage.lock import Holder
from diskq.storage.log.entries import Part
from diskq.storage.log.replay import RedoSource
from diskq.storage.repairs import Repair, RepairKind, last_byte

__all__ = ["judge_the_middle", "recover_journal", "redo_source"]

_AT_ONCE = 1024 * 1024


def recover_journal(
    fs: FileSystem,
    files: JournalFiles,
    pending_syncs: PendingSyncs,
    *,
    point: RecoveryPoint | None,
    trust: Trust,
    has_run_on: bool,
    strict: bool,
    staged: Part | None = None,
    has_wal: bool = True,
) -> FoundLog:
    """Repair the journal, and leave the syncs to the first barrier.

    `point`: all of diskq's bytes before it are known to be durable. `has_run_on`: the machine was certainly
    not restarted since. `staged`: records that a write-ahead log had, and that are in their place; without
    `has_wal` there was none. Raises CorruptionError if `strict` and anything other than a torn tail was
    found, and OSError.
    """
    repairs = OpenRepairs(fs, pending_syncs, strict=strict)
    found = FoundLog(repairs.made)
    judge = _JournalJudge(fs, files, repairs, found, staged, has_wal=has_wal)
    # After a power cut the offsets of what was not synced are assigned again: sej's are dense.
    counts = trust is Trust.CLOSED or (trust is not Trust.POWER_CUT and has_run_on)
    return LogRecovery(fs, files, judge, repairs, found, trust, counts_checksummed=counts).run(point)


def judge_the_middle(
    fs: FileSystem, files: JournalFiles, point: RecoveryPoint, *, strict: bool
) -> list[Repair]:
    """Set aside segments after one that ends early. For a journal that a peer opened after a killed writer.

    Whether the power was cut is unknown then, so that a segment that is not the last may end early. diskq
    has not promised that later messages outlive that: their segments are set aside, unless a peer has
    written there. Before `recover_journal`, and once: that adds checksums for all it finds, a peer's too.
    Raises as that.
    """
    repairs = OpenRepairs(fs, PendingSyncs(), strict=strict)
    _JournalJudge(fs, files, repairs, FoundLog(repairs.made)).look_at_the_middle(point)
    return repairs.made


class _JournalJudge:
    first = 0

    def __init__(
        self,
        fs: FileSystem,
        files: JournalFiles,
        repairs: OpenRepairs,
        found: FoundLog,
        staged: Part | None = None,
        *,
        has_wal: bool = True,
    ) -> None:
        self.fs = fs
        self.files = files
        self.repairs = repairs
        self.found = found
        self.staged = staged
        self.has_wal = has_wal
        self.to_cover: tuple[int, Walk] | None = None

    def begin(self, point: RecoveryPoint, trust: Trust) -> RecoveryPoint:
        return point

    def incomplete(self, point: RecoveryPoint, trust: Trust) -> list[int]:
        return []

    def durable(self, base: int, point: RecoveryPoint) -> list[tuple[str, int]]:
        return [(self.files.data(base), point.end if base == point.base else 0)]

    def complete(self, base: int, following: int) -> None:
        pass  # readers skip and report what is missing or damaged

    def assigns_again(self, offset: int) -> bool:
        return False

    def next_offset(self, given: int, promised: int, trust: Trust) -> int:
        return given

    def cut_unwritten(self, base: int, start: int) -> bool:
        if not self.has_wal:
            return False  # after a kill the last records have no checksums
        return cut_unwritten(self.repairs, self.files, base, start, self.staged, journal_codec.count)

    def void_checksums(self, base: int, start: int) -> None:
        self.repairs.void(self.files.data(base), self.files.checksum_file(base), start)

    # --- the machine ran on -----------------------------------------------------------------------

    def follow(self, base: int, point: RecoveryPoint) -> Followed:
        path = self.files.data(base)
        start, offset = (point.end, point.next_offset) if base == point.base else (0, base)
        with opened(self.fs, path, write=True) as handle:
            size = self.fs.size(handle)
            if size < start:
                start, offset = 0, base  # another program cut it
            walked = walk(self.fs, handle, start, size, offset)
            if walked.end < size:
                unwritten = self._unwritten_in_block(handle, base, walked.end)
                if unwritten is not None:
                    walked = walk(self.fs, handle, start, max(start, unwritten), offset)
            for gap in walked.breaks:
                dropped = gap.end - gap.start
                self.repairs.report(
                    Repair(
                        path=path,
                        kind=RepairKind.CORRUPT,
                        kept=gap.start,
                        dropped=dropped,
                        reason=gap.reason,
                        records=gap.records,
                    )
                )
            if walked.end < size:
                self._cut_end(handle, path, walked)
        self.to_cover = base, walked
        return Followed(walked.end, walked.next_offset, walked.next_offset)

    def _unwritten_in_block(self, handle: int, base: int, end: int) -> int | None:
        """Return the first zeros of the block that is cut at byte `end`: no checksum is left to judge them.

        A disk that went away leaves them inside records, too. None if there are none, or no block is cut.
        """
        rows = rows_after(self.fs, self.files.checksum_file(base), end)
        if not rows or rows[0].start >= end:
            return None
        start = rows[0].start
        zeros = zeros_in(self.fs.pread(handle, end - start, start))
        return None if zeros is None else start + zeros

    def _cut_end(self, handle: int, path: str, walked: Walk) -> None:
        # Zeros are bytes by which the file grew, and that were never written.
        is_begun = walked.stop == "TORN" or last_byte(self.fs, handle, walked.end) is None
        if not is_begun:
            self.repairs.check(path, walked.end, walked.reason)
        records = 0 if is_begun else None
        kept = self.files.kept(path)
        kind = RepairKind.TORN if is_begun else RepairKind.CORRUPT
        self.repairs.cut(path, walked.end, kind, walked.reason, records, aside_base=kept, handle=handle)

    def look_at_the_middle(self, point: RecoveryPoint) -> None:
        pending = [base for base in self.files.bases() if base >= point.base]
        for base, next_base in pairwise(pending):
            path = self.files.data(base)
            with opened(self.fs, path) as handle:
                start, offset = (point.end, point.next_offset) if base == point.base else (0, base)
                walked = walk(self.fs, handle, start, self.fs.size(handle), offset, next_base)
            if walked.next_offset >= next_base:
                continue
            later = [other for other in pending if other > base]
            if any(self._has_unvouched(other) for other in later):
                lost = next_base - walked.next_offset
                self.repairs.report(missing_after(path, walked.end, lost))
                continue
            for other in later:
                self.set_aside(other)
            self.repairs.execute_asides()
            break

    def _has_unvouched(self, base: int) -> bool:
        """True if the segment has bytes that no checksum covers."""
        path = self.files.data(base)
        return verified_prefix(self.fs, path, self.files.checksum_file(base), 0).end < (
            self.fs.size_of(path) or 0
        )

    # --- after a power cut ------------------------------------------------------------------------

    def believe(self, base: int, verified: VerifiedPrefix, point: RecoveryPoint) -> Followed:
        offset = (point.next_offset if base == point.base else base) + verified.records
        return Followed(verified.end, offset, offset)

    def is_followed(self, base: int, verified: VerifiedPrefix | None, followed: Followed) -> bool:
        return base == followed.next_offset

    def set_aside(self, base: int) -> int:
        path = self.files.data(base)
        removals = (self.files.checksum_file(base),)
        kept = self.files.kept(path)
        self.repairs.set_aside(path, RepairKind.UNSYNCED, UNSYNCED, aside_base=kept, removals=removals)
        return 0  # its offsets are assigned again

    # --- checksums --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Add checksums for the records that none covers, after they were checked."""
        if self.to_cover is None:
            return
        (base, walked), self.to_cover = self.to_cover, None
        if walked.stretches:
            with opened(self.fs, self.files.data(base)) as handle:
                self._cover(base, handle, walked)

    def cover(self, base: int, end: int) -> None:
        pass  # `settle` has added the checksums

    def _cover(self, base: int, handle: int, walked: Walk) -> None:

        def fill(sums: ChecksumFile, covered: int) -> None:
            for part in walked.stretches:
                if part.end > covered:
                    self._cover_stretch(sums, handle, part, covered)

        self.repairs.cover(self.files.checksum_file(base), walked.end, fill)

    def _cover_stretch(
        self, checksum_file: ChecksumFile, handle: int, part: RecordStretch, covered: int
    ) -> None:
        position, offset = part.start, part.offset
        if position < covered:
            before, _, _ = records_in(self.fs, handle, position, covered, offset)
            if before.end != covered:
                return  # a checksum's block ends where no record begins: these are not the bytes it is of
            position, offset = covered, offset + before.records
        size = _AT_ONCE
        while position < part.end:
            window = self.fs.pread(handle, min(size, part.end - position), position)
            found = journal_codec.blocks(window, offset, BLOCK_SIZE)
            is_last = position + len(window) >= part.end
            if not is_last and len(found) > 1:
                found.pop()  # the last block may be a small one
            elif not found and is_last:
                break  # a checksum's block ends where no record begins: the rest gets no checksum
            start = 0
            for end, records in found:
                checksum_file.add(position + end, end - start, records, memoryview(window)[start:end])
                start = end
                offset += records
            position += start
            size = _AT_ONCE if start else 2 * size


# --- before recovery: a replay of the redo log --------------------------------------------------------


def redo_source(fs: FileSystem, files: JournalFiles, holder: Holder | None) -> RedoSource:
    """Return it. `holder` is what the lock file says: a peer that has had the lock has emptied the file.

    Raises OSError.
    """
    points = read_points(fs, files)
    return RedoSource(
        {0: files.staging},
        in_place=holder is not None,
        is_covered=points.cover,
        counted=lambda records: journal_codec.count(records).records,
    )
