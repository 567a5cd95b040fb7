# Opening a journal after whatever happened to it. Law: opening never refuses because of a crash, never
# loses a whole record, never invents one, and tells what it did.
#
# What is believed behind the last full barrier depends on what happened:
#
#   the machine ran on   (or a peer wrote): the page cache survived. The last segment's records are followed
#                        to its end; what is no whole record there is cut. Damage in the middle stays where
#                        it is, is told, and is passed over by readers.
#   it was restarted     what has no agreeing checksum may be zeros behind a good length: the journal is cut
#                        at the first byte that no checksum vouches for.
#
# Whatever is cut is kept aside, under `.diskq/`. Offsets are dense in sej's files: what was cut is given
# again. A reader that had come further, by messages that no power cut has left, is set back.

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from diskq._native import sej
from diskq._native.appendbuffer import BLOCK_SIZE
from diskq.engine.journalfiles import JournalFiles
from diskq.engine.journalwalk import Stretch, Walk, walk
from diskq.engine.missingend import told_end
from diskq.engine.missingstart import missing_start
from diskq.engine.streampoints import Point
from diskq.errors import CorruptionError
from diskq.storage.barrier import Barrier, Debts
from diskq.storage.checksums import Rows, Sidecar, vouched
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.recovery import Repair, cut_tail, rewrite
from diskq.storage.segments import free_aside

__all__ = ["MISSING", "UNSYNCED", "Found", "judge_the_middle", "recover_journal"]

UNSYNCED = "not synced before the machine stopped"
MISSING = "messages are missing at the end"
_AT_ONCE = 1024 * 1024
_MOST_OPEN = 64  # files that wait for the first barrier


@dataclass(slots=True)
class Found:
    """A journal as it is found, and mended: what its writer goes on from."""

    bases: list[int]
    """Its segments, ascending. The last one is active; it may have to be made, and is empty then."""
    end: int
    """Bytes of the active segment."""
    next_offset: int
    rows: int = 0
    """Bytes of checksum rows that belong to them."""
    repairs: list[Repair] = field(default_factory=list)


def recover_journal(
    fs: FileSystem,
    files: JournalFiles,
    debts: Debts,
    *,
    point: Point | None,
    was_closed: bool,
    was_restarted: bool,
    was_ours: bool,
    strict: bool,
) -> Found:
    """Mend what needs it, and owe it to the first barrier.

    `point`: everything of ours before it is known to be durable; `was_closed`: and there is nothing of ours
    behind. `was_restarted`: the machine was, since we last wrote. `was_ours`: nobody else has written since.
    Raises CorruptionError if `strict` and something other than a torn tail was found, and OSError.
    """
    return _Recovery(fs, files, debts, was_ours, strict).run(point, was_closed, was_restarted)


def judge_the_middle(fs: FileSystem, files: JournalFiles, point: Point, *, strict: bool) -> list[Repair]:
    """A peer has come behind a writer of ours that was killed, and nobody knows about the power.

    Then a segment may end early that is not the last. Nothing of ours behind it was promised to outlive
    that: it is set aside, unless a peer has written there. Before `recover_journal`, and once: that one
    vouches for what it finds, a peer's too. Raises as that.
    """
    return _Recovery(fs, files, Debts(), False, strict).look_at_the_middle(point)


class _Recovery:
    def __init__(
        self, fs: FileSystem, files: JournalFiles, debts: Debts, was_ours: bool, strict: bool
    ) -> None:
        self.fs = fs
        self.files = files
        self.debts = debts
        self.was_ours = was_ours
        self.strict = strict
        self.found = Found([], 0, 0)

    def run(self, point: Point | None, was_closed: bool, was_restarted: bool) -> Found:
        found = self.found
        found.bases = self.files.bases()
        missing = missing_start(found.bases, self.files.sidecars(), self.files.data)
        found.repairs += [missing] if missing is not None else []
        told = told_end(self.fs, self.files, found.bases)
        # Before a segment is begun that has one of these names.
        Barrier(removals=tuple(self.files.orphans(found.bases))).pay(self.fs)
        is_told = point is not None
        oldest = found.bases[0] if found.bases else 0
        point = point or Point(oldest, 0, oldest)
        promised = point.next_offset
        if found.bases and point.base < oldest:
            point = Point(oldest, 0, oldest)  # somebody removed the first ones
        if not found.bases:
            pass  # a new journal; or all files that were there are gone
        elif found.bases[-1] < point.base:
            self._look_at_last(Point(found.bases[-1], 0, found.bases[-1]))
        elif was_restarted and not was_closed:
            self._believe_checksums(point, is_told)
        elif was_closed and self._is_as_it_was_left(point):
            found.end, found.next_offset = point.end, point.next_offset
        else:
            for base in found.bases[:-1]:
                if base >= point.base and not was_closed:
                    self._owe(base, point)
            self._look_at_last(point)
        if not (was_restarted and not was_closed):
            promised = max(promised, told)
        if found.next_offset < promised or not found.bases:
            self._begin_behind(promised, point)
        else:
            found.rows = self._rows_of(found.bases[-1], found.end)
        return found

    def _is_as_it_was_left(self, point: Point) -> bool:
        size = self.fs.size_of(self.files.data(point.base))
        return self.found.bases[-1] == point.base and size == point.end

    def _begin_behind(self, promised: int, point: Point) -> None:
        """Files that were there are gone. Somebody may have read them: their offsets stay theirs."""
        found = self.found
        lost = promised - (found.next_offset if found.bases else point.base)
        if lost:
            path = self.files.data(found.bases[-1] if found.bases else point.base)
            self._report(Repair(path=path, kept=found.end, dropped=0, reason=MISSING, records=lost))
        found.bases.append(promised)
        found.end, found.next_offset = 0, promised

    # --- the machine ran on -----------------------------------------------------------------------

    def _look_at_last(self, point: Point) -> None:
        """Follow the records of the last segment, from the point on; cut what is none at its end."""
        found, base = self.found, self.found.bases[-1]
        path = self.files.data(base)
        start, offset = (point.end, point.next_offset) if base == point.base else (0, base)
        handle = self.fs.open(path, write=True)
        try:
            size = self.fs.size(handle)
            if size < start:
                start, offset = 0, base  # somebody cut it
            walked = walk(self.fs, handle, start, size, offset)
            for gap in walked.breaks:
                dropped = gap.end - gap.start
                self._report(
                    Repair(path=path, kept=gap.start, dropped=dropped, reason=gap.reason, records=gap.records)
                )
            if walked.end < size:
                is_begun = walked.stop == "TORN" or self._is_zeros(handle, walked.end, size)
                records = 0 if is_begun else None
                self._check(path, walked.end, walked.reason, records)
                kept = self.files.kept(path)
                found.repairs.append(
                    cut_tail(self.fs, handle, path, walked.end, walked.reason, records, beside=kept)
                )
            self._cover(base, handle, walked)
        finally:
            self.fs.close(handle)
        found.end, found.next_offset = walked.end, walked.next_offset
        self._owe(base, point)

    def look_at_the_middle(self, point: Point) -> list[Repair]:
        self.found.bases = self.files.bases()
        pending = [base for base in self.found.bases if base >= point.base]
        for base, next_base in pairwise(pending):
            path = self.files.data(base)
            handle = self.fs.open(path)
            try:
                start, offset = (point.end, point.next_offset) if base == point.base else (0, base)
                walked = walk(self.fs, handle, start, self.fs.size(handle), offset, next_base)
            finally:
                self.fs.close(handle)
            if walked.next_offset >= next_base:
                continue
            later = [other for other in pending if other > base]
            if any(self._has_unvouched(other) for other in later):
                lost = next_base - walked.next_offset
                self._report(Repair(path=path, kept=walked.end, dropped=0, reason=MISSING, records=lost))
                continue
            self._set_all_aside(later)
            break
        return self.found.repairs

    def _has_unvouched(self, base: int) -> bool:
        """Are there bytes in this segment that no checksum of ours covers?"""
        path = self.files.data(base)
        return vouched(self.fs, path, self.files.sidecar(base), 0).end < (self.fs.size_of(path) or 0)

    # --- after a power cut ------------------------------------------------------------------------

    def _believe_checksums(self, point: Point, is_told: bool) -> None:
        """Keep what they vouch for, without a gap, from the point on; set the rest aside.

        Where no point is told, segments without any checksums at all are a peer's, and kept too.
        """
        found = self.found
        pending = [base for base in found.bases if base >= point.base]
        found.bases = [base for base in found.bases if base < point.base]
        found.next_offset = pending[0]
        while pending and pending[0] == found.next_offset:
            base = pending.pop(0)
            found.bases.append(base)
            if is_told or self.fs.size_of(self.files.sidecar(base)) is not None:
                start, offset = (point.end, point.next_offset) if base == point.base else (0, base)
                told = vouched(self.fs, self.files.data(base), self.files.sidecar(base), start)
                found.end, found.next_offset = told.end, offset + told.records
                self._cut(base, told.end)
                self._owe(base, point)
            else:
                self._look_at_last(point)
        self._set_all_aside(pending)

    def _is_zeros(self, handle: int, start: int, end: int) -> bool:
        """Are these bytes of the file as they are where it grew, and nothing was written?"""
        pieces = range(start, end, _AT_ONCE)
        return not any(self.fs.pread(handle, min(_AT_ONCE, end - at), at).strip(b"\0") for at in pieces)

    def _cut(self, base: int, end: int) -> None:
        path = self.files.data(base)
        if (self.fs.size_of(path) or 0) <= end:
            return
        handle = self.fs.open(path, write=True)
        try:
            kept = self.files.kept(path)
            self.found.repairs.append(cut_tail(self.fs, handle, path, end, UNSYNCED, 0, beside=kept))
        finally:
            self.fs.close(handle)

    def _set_all_aside(self, bases: list[int]) -> None:
        """Before the lock is signed with the new boot: who comes next would believe their framing."""
        asides = Debts()
        for base in bases:
            self._set_aside(base, asides)
        asides.directories[self.files.private_data] = None
        asides.freeze((), ()).pay(self.fs)

    def _set_aside(self, base: int, asides: Debts) -> None:
        path = self.files.data(base)
        aside = free_aside(self.fs, self.files.kept(path))
        size = self.fs.size_of(path) or 0
        asides.asides.append((path, aside))
        asides.removals.append(self.files.sidecar(base))
        asides.directories[self.files.directory] = None
        if size:
            self.found.repairs.append(
                Repair(path=path, kept=0, dropped=size, reason=UNSYNCED, records=0, saved_as=aside)
            )

    # --- the small steps --------------------------------------------------------------------------

    def _owe(self, base: int, point: Point) -> None:
        """Let the first barrier write and sync what may never have reached the platter."""
        start = point.end if base == point.base else 0
        for path, begin in ((self.files.data(base), start), (self.files.sidecar(base), 0)):
            if self.fs.size_of(path) is not None:
                handle = self.fs.open(path, write=True)
                self.debts.files.append(handle)
                self.debts.closing.append(handle)
                if self.was_ours:
                    # After a failed sync the kernel holds what it did not write for written.
                    rewrite(self.fs, handle, begin, self.fs.size(handle))
        if len(self.debts.closing) >= _MOST_OPEN:
            self.debts.pay_files(self.fs)

    def _rows_of(self, base: int, end: int) -> int:
        """Bytes of the checksum rows for the records before byte `end`."""
        rows = Rows(self.fs, self.files.sidecar(base))
        try:
            rows.seek(end)
            return rows.consumed
        finally:
            rows.close()

    def _cover(self, base: int, handle: int, walked: Walk) -> None:
        """Vouch for the records that no checksum covers: they were looked at."""
        rows = Rows(self.fs, self.files.sidecar(base))
        try:
            rows.seek(walked.end)
            kept, covered = rows.consumed, rows.last_end
        finally:
            rows.close()
        stretches = [part for part in walked.stretches if part.end > covered]
        if not stretches:
            return
        try:
            sidecar = Sidecar.open(self.fs, self.files.sidecar(base), kept, covered)
            self.debts.closing.append(sidecar.handle)
            for part in stretches:
                self._cover_stretch(sidecar, handle, part, covered)
            sidecar.flush()
        except OSError as failure:
            # On a full disk they do without.
            if failure.errno not in FULL_DISK_ERRNOS:
                raise

    def _cover_stretch(self, sidecar: Sidecar, handle: int, part: Stretch, covered: int) -> None:
        position, offset = part.start, part.offset
        if position < covered:
            position = covered
            offset = int.from_bytes(self.fs.pread(handle, 8, covered), "big")
        size = _AT_ONCE
        while position < part.end:
            window = self.fs.pread(handle, min(size, part.end - position), position)
            found = sej.blocks(window, offset, BLOCK_SIZE)
            is_last = position + len(window) >= part.end
            if not is_last and len(found) > 1:
                found.pop()  # it may be a small one
            elif not found and is_last:
                break  # a row's block ends where no record begins: nobody vouches for the rest
            start = 0
            for end, records in found:
                sidecar.add(position + end, end - start, records, memoryview(window)[start:end])
                start = end
                offset += records
            position += start
            size = _AT_ONCE if start else 2 * size

    def _check(self, path: str, position: int, reason: str, records: int | None) -> None:
        if self.strict and records != 0:
            raise CorruptionError(path, position, reason)

    def _report(self, repair: Repair) -> None:
        self._check(repair.path, repair.kept, repair.reason, repair.records)
        self.found.repairs.append(repair)
