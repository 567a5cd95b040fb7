# Opening a partition after whatever happened to it. Law: opening never refuses because of a crash,
# never loses a whole record, never invents one, never gives an offset twice, and tells what it did.
#
# What is believed behind the last full barrier depends on what happened:
#
#   the machine ran on   (or a peer wrote): the page cache survived. The active segment's files are
#                        made to agree (mending.py); the others were complete before it was begun.
#   it was restarted     what has no agreeing checksum may be zeros behind a good length: each
#                        partition is cut at the first byte that no checksum vouches for.
#
# Whatever is cut is kept aside, under `.diskq/`.

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from diskq._native.appendbuffer import BLOCK_SIZE
from diskq._native.triplet import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming
from diskq._native.tripletrows import rows_of
from diskq.engine.groups import furthest
from diskq.engine.mending import INDEX_ROW, SegmentRows, content_of, mend
from diskq.engine.missingend import told_end
from diskq.engine.missingstart import missing_start
from diskq.engine.streamfiles import PartitionFiles
from diskq.engine.streampoints import Point, read_first
from diskq.engine.unindexed import find_unindexed
from diskq.errors import CorruptionError
from diskq.storage.barrier import Barrier, Debts
from diskq.storage.checksums import Rows, Sidecar, vouched
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.recovery import Repair, cut_tail, keep_content, rewrite
from diskq.storage.segments import free_aside

__all__ = ["Found", "recover_partition"]

UNSYNCED = "not synced before the machine stopped"
MISSING = "messages are missing at the end"
# So many messages may have been read that were never synced: a marker that says more may be rotten.
_MOST_READ = 4_000_000
_MOST_OPEN = 64  # files that wait for the first barrier
_ROWS_AT_ONCE = 64 * 1024


@dataclass(slots=True)
class Found:
    """A partition as it is found, and mended: what its producer goes on from."""

    bases: list[int]
    """Its segments, ascending. The last one is active; it may have to be made, and is empty then."""
    end: int
    """Bytes of the active segment's data."""
    next_offset: int
    rows: int = 0
    """Bytes of checksum rows that belong to them."""
    repairs: list[Repair] = field(default_factory=list)
    changed_from: int | None = None
    """What else is known of segments from this one on is stale: rows of theirs were changed."""


def recover_partition(
    fs: FileSystem,
    files: PartitionFiles,
    framing: TripletFraming,
    debts: Debts,
    *,
    point: Point | None,
    was_closed: bool,
    was_restarted: bool,
    strict: bool,
    refilled: range = range(0),
) -> Found:
    """Mend what needs it, and owe it to the first barrier.

    `point`: everything of ours before it is known to be durable; `was_closed`: and there is nothing of
    ours behind. `was_restarted`: the machine was, since we last wrote. `refilled`: a transaction that is
    pending gives these offsets again, to the same messages as before. Raises CorruptionError if
    `strict` and something other than a torn tail was found, and OSError.
    """
    return _Recovery(fs, files, framing, debts, strict).run(point, was_closed, was_restarted, refilled)


class _Recovery:
    def __init__(
        self, fs: FileSystem, files: PartitionFiles, framing: TripletFraming, debts: Debts, strict: bool
    ) -> None:
        self.fs = fs
        self.files = files
        self.framing = framing
        self.debts = debts
        self.strict = strict
        self.found = Found([], 0, 0)
        self.given = 0  # the offset behind the last one of which there is a trace
        self.is_cut = False  # after a power cut, where checksums end

    def run(self, point: Point | None, was_closed: bool, was_restarted: bool, refilled: range) -> Found:
        found = self.found
        found.bases = self.files.bases()
        first = read_first(self.fs, self.files)
        missing = missing_start(found.bases, self.files.sidecars(), self.files.data, first)
        found.repairs += [missing] if missing is not None else []
        told = told_end(self.fs, self.files, found.bases)
        # Before a segment is begun that has one of these names.
        Barrier(removals=tuple(self.files.orphans(found.bases))).pay(self.fs)
        is_told = point is not None
        oldest = found.bases[0] if found.bases else 0
        point = point or Point(oldest, 0, oldest)
        promised = point.next_offset
        is_doubtful = was_restarted and not was_closed
        if first > point.base and first in found.bases:
            if is_doubtful:
                self._judge_the_removed(point, first)
            point = Point(first, 0, first)
        for base in self.files.halves(found.bases[:-1]):
            if base < point.base or not is_doubtful:
                # Retention did not get far, or somebody took them away.
                self._mend(base, Point(base, 0, base))
        found.end, found.next_offset, self.given = 0, 0, first
        if not found.bases:
            pass  # a new partition; or all files that were there are gone
        elif found.bases[-1] < point.base:
            self._mend(found.bases[-1], point)  # files that were there are gone
        elif is_doubtful:
            self._believe_checksums(point, is_told)
        elif was_closed and self._is_as_it_was_left(point):
            found.end, found.next_offset = point.end, point.next_offset
        else:
            for base, following in pairwise(found.bases[:]):
                if base >= point.base and not was_closed:
                    self._keep_unindexed(base, following)
                    self._owe(base, point)
            self._mend(found.bases[-1], point)
        given = max(self.given, promised)
        if not is_doubtful:
            given = max(given, told)
        else:
            # A group that has read what was never synced must not skip what comes in its place.
            most = max(given, found.next_offset) + _MOST_READ
            given = max(given, furthest(self.fs, self.files.stream, self.files.index, most))
        if refilled.start < given <= refilled.stop:
            given = max(promised, found.next_offset, refilled.start)
        if found.next_offset < given or not found.bases:
            self._begin_behind(given, promised, point)
        else:
            found.rows = self._covered(found.bases[-1], found.end)
        return found

    def _is_as_it_was_left(self, point: Point) -> bool:
        sizes = tuple(self.fs.size_of(path) for path in self.files.segment(point.base))
        count = point.next_offset - point.base
        return self.found.bases[-1] == point.base and sizes == (
            point.end,
            count * INDEX_ROW_SIZE,
            count * TIMEINDEX_ROW_SIZE,
        )

    def _begin_behind(self, given: int, promised: int, point: Point) -> None:
        """Messages that were there are gone. Somebody may have read them: their offsets stay theirs."""
        found = self.found
        lost = given - (found.next_offset or point.base)
        if lost:
            path = self.files.data(found.bases[-1] if found.bases else point.base)
            repair = Repair(path=path, kept=found.end, dropped=0, reason=MISSING, records=lost)
            if found.next_offset < promised or not self.is_cut:
                self._report(repair)
            else:
                found.repairs.append(repair)  # nobody was promised that they outlive a power cut
        found.bases.append(given)
        found.end, found.next_offset = 0, given

    # --- after a power cut ------------------------------------------------------------------------

    def _believe_checksums(self, point: Point, is_told: bool) -> None:
        """Keep what they vouch for, without a gap, from the point on; set the rest aside.

        Where no point is told, segments without any checksums at all are a peer's, and kept too.
        """
        found = self.found
        self.is_cut = True
        pending = [base for base in found.bases if base >= point.base]
        found.bases = [base for base in found.bases if base < point.base]
        is_complete = True
        while pending and is_complete and (pending[0] == found.next_offset or not found.end):
            base = pending.pop(0)
            if is_told or self.fs.size_of(self.files.sidecar(base)) is not None:
                end, is_complete = self._vouched(base, point.end if base == point.base else 0)
                self._cut_data(base, end)
            found.bases.append(base)
            self._mend(base, point)
        asides = Debts()
        for base in pending:
            self.given = max(self.given, base, self._given(base))
            self._set_aside(base, asides)
        # Before the lock is signed with the new boot: who comes next would believe their framing.
        asides.directories[self.files.private] = None
        asides.freeze((), ()).pay(self.fs)

    def _judge_the_removed(self, point: Point, first: int) -> None:
        """Of what retention had removed before segment `first` something is back. Keep what is complete."""
        asides = Debts()
        for base in [base for base in self.found.bases if point.base <= base < first]:
            if not self._vouched(base, point.end if base == point.base else 0)[1]:
                self.found.bases.remove(base)
                self._set_aside(base, asides)
        asides.freeze((), ()).pay(self.fs)

    def _vouched(self, base: int, start: int) -> tuple[int, bool]:
        """Up to where checksums vouch for the data from `start` on, and is the segment complete there?"""
        found = vouched(self.fs, self.files.data(base), self.files.sidecar(base), start)
        return found.end, found.is_complete

    def _cut_data(self, base: int, end: int) -> None:
        path = self.files.data(base)
        if (self.fs.size_of(path) or 0) <= end:
            return
        handle = self.fs.open(path, write=True)
        try:
            self.found.repairs.append(
                cut_tail(self.fs, handle, path, end, UNSYNCED, 0, beside=self.files.kept(path))
            )
        finally:
            self.fs.close(handle)

    def _given(self, base: int) -> int:
        """The offset behind the last one that the index of a segment tells of."""
        path = self.files.index_of(base)
        return SegmentRows(base, content_of(self.fs, path), b"").given()

    def _set_aside(self, base: int, asides: Debts) -> None:
        data, *others = self.files.segment(base)
        aside = free_aside(self.fs, self.files.kept(data))
        size = self.fs.size_of(data) or 0
        asides.asides.append((data, aside))
        asides.removals += [*others, *self.files.beside(base)]
        self._changed(base)
        if size:
            self.found.repairs.append(
                Repair(path=data, kept=0, dropped=size, reason=UNSYNCED, records=0, saved_as=aside)
            )

    # --- the small steps --------------------------------------------------------------------------

    def _mend(self, base: int, point: Point) -> None:
        """Make the segment's files agree; it is then the last one that was found."""
        mended = mend(self.fs, self.files, self.framing, base)
        for repair in mended.repairs:
            self._report(repair)
        if mended.is_changed:
            self._changed(base)
        self.given = max(self.given, mended.given)
        self.found.end, self.found.next_offset = mended.end, mended.next_offset
        self._owe(base, point)

    def _keep_unindexed(self, base: int, following: int) -> None:
        """Keep aside what of ours a peer has written after, and rolled: its messages have those offsets."""
        left = find_unindexed(self.fs, self.files, self.framing, base, following)
        if left is None:
            return
        path = self.files.data(base)
        aside = keep_content(self.fs, self.files.kept(path), left.records)
        if not left.leave_out(self.fs, self.files, base, self.framing):
            # Readers of ours go by the index; go-diskq's stop there.
            sidecar = left.give_up_checksums(self.fs, self.files, base)
            self.fs.close(sidecar.handle)
        self._changed(base)
        reason = "messages without index rows, whose offsets another producer's messages have now"
        size = len(left.records)
        self._report(
            Repair(
                path=path, kept=left.start, dropped=size, reason=reason, records=left.count, saved_as=aside
            )
        )

    def _owe(self, base: int, point: Point) -> None:
        """Let the first barrier write and sync what may never have reached the platter."""
        data, index, timeindex = self.files.segment(base)
        start = count = 0
        if base == point.base:
            start, count = point.end, point.next_offset - base
        for path, begin in (
            (data, start),
            (self.files.sidecar(base), 0),
            (timeindex, count * TIMEINDEX_ROW_SIZE),
            (index, count * INDEX_ROW_SIZE),
        ):
            if self.fs.size_of(path) is not None:
                handle = self.fs.open(path, write=True)
                self.debts.files.append(handle)
                self.debts.closing.append(handle)
                rewrite(self.fs, handle, begin, self.fs.size(handle))
        if len(self.debts.closing) >= _MOST_OPEN:
            self.debts.pay_files(self.fs)

    def _covered(self, base: int, end: int) -> int:
        """Vouch for the records that no checksum covers: they were looked at. Returns the bytes of rows."""
        if not end:
            return 0
        rows = Rows(self.fs, self.files.sidecar(base))
        try:
            rows.seek(end)
            kept, covered = rows.consumed, rows.last_end
        finally:
            rows.close()
        if covered >= end:
            return kept
        try:
            return self._cover(base, kept, covered)
        except OSError as failure:
            # On a full disk they do without.
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            return kept

    def _cover(self, base: int, kept: int, covered: int) -> int:
        handle = self.fs.open(self.files.data(base))
        try:
            sidecar = Sidecar.open(self.fs, self.files.sidecar(base), kept, covered)
            self.debts.files.append(sidecar.handle)
            self.debts.closing.append(sidecar.handle)
            start = end = covered
            first = 0
            block: list[bytes] = []

            def close_block() -> None:
                data = self.fs.pread(handle, end - start, start)
                # What is told of and cannot be read stays without: whoever reads has to judge again.
                if rows_of(self.framing, data, first, start).index_rows == b"".join(block):
                    sidecar.add(end, end - start, len(block), memoryview(data))

            for offset, position, size in self._places(base, covered):
                if block and (position != end or offset != first + len(block) or end - start >= BLOCK_SIZE):
                    close_block()
                    block = []
                if not block:
                    first, start = offset, position
                block.append(INDEX_ROW.pack(offset, position, size))
                end = position + size
            if block:
                close_block()
            sidecar.flush()
            return sidecar.written
        finally:
            self.fs.close(handle)

    def _places(self, base: int, start: int) -> list[tuple[int, int, int]]:
        """Offset, position and size of the records that begin at byte `start` of the data or later."""
        path = self.files.index_of(base)
        handle = self.fs.open(path)
        try:
            places: list[tuple[int, int, int]] = []
            at = self.fs.size(handle)
            while at > 0 and (not places or places[0][1] > start):
                first = max(0, at - _ROWS_AT_ONCE * INDEX_ROW_SIZE)
                rows = INDEX_ROW.iter_unpack(self.fs.pread(handle, at - first, first))
                places[:0] = [row for row in rows if row[1] >= start and row[2]]
                at = first
            return places
        finally:
            self.fs.close(handle)

    def _changed(self, base: int) -> None:
        found = self.found
        found.changed_from = base if found.changed_from is None else min(base, found.changed_from)

    def _report(self, repair: Repair) -> None:
        if self.strict and repair.records != 0:
            raise CorruptionError(repair.path, repair.kept, repair.reason)
        self.found.repairs.append(repair)
