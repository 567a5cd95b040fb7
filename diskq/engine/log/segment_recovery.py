# Opening a log in segments, in whatever state it is. Law: opening never refuses because of a crash, never
# loses a whole record, never invents one, and reports what it did.
#
# Journals and the partitions of streams share the procedure; the format judges. What is believed of the bytes
# after the recovery point is a value (`Trust`); what can be done is five acts: recovery.py.

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Protocol

from diskq._native.core.framing import Count
from diskq.engine.log.recovery import UNSYNCED, FoundLog, OpenRepairs, Trust, missing_after
from diskq.engine.log.recovery_points import RecoveryPoint, checksummed_end, missing_start
from diskq.storage.barrier import Barrier
from diskq.storage.checksums import VerifiedPrefix, rows_before, sealed_end, verified_prefix
from diskq.storage.fs import FileSystem
from diskq.storage.log.entries import Part
from diskq.storage.repairs import Repair, RepairKind

__all__ = ["Followed", "Judge", "LogRecovery", "cut_unwritten"]


_CUT = (RepairKind.TORN, RepairKind.UNSYNCED, RepairKind.UNWRITTEN)


class _RecoveryFiles(Protocol):
    def bases(self) -> list[int]: ...

    def checksum_files(self) -> list[int]: ...

    def orphans(self, bases: Iterable[int]) -> list[str]: ...

    def data(self, base: int) -> str: ...

    def checksum_file(self, base: int) -> str: ...

    def kept(self, path: str) -> str: ...


class Followed(NamedTuple):
    """A segment after its records were followed to their end, and the rest was cut."""

    end: int
    """The byte of its data after the last whole record."""
    next_offset: int
    """The offset after the last whole record."""
    given: int
    """The offset after the last one of which there is a trace."""


def cut_unwritten(
    repairs: OpenRepairs,
    files: _RecoveryFiles,
    base: int,
    start: int,
    staged: Part | None,
    count: Callable[[bytes], Count],
) -> bool:
    """Cut a segment at the first record after byte `start` that may never have been written.

    For a `Judge`. True if there was one. `staged`: records in their place that were in a write-ahead log.
    """
    path = files.data(base)
    end = repairs.cut_unwritten(
        path,
        files.checksum_file(base),
        start,
        staged if staged is not None and staged.file == base else None,
        count,
        aside_base=files.kept(path),
        has_offsets=True,
    )
    return end is not None


class Judge(Protocol):
    """What only the format knows. Each method raises OSError, and CorruptionError if the open is strict."""

    @property
    def first(self) -> int:
        """The segment before which retention has removed all; 0 if there is no retention.

        It is read after the segments were listed: retention may be at work.
        """

    def begin(self, point: RecoveryPoint, trust: Trust) -> RecoveryPoint:
        """Return the recovery point, moved on if the first segments were removed since it was written."""

    def incomplete(self, point: RecoveryPoint, trust: Trust) -> list[int]:
        """Return the segments but the last whose files are not all there."""

    def follow(self, base: int, point: RecoveryPoint) -> Followed:
        """Follow the framing of the segment, from the point on if it is there; repair the end of its data.

        Entries and checksums of messages that are gone stay until `settle`.
        """

    def settle(self) -> None:
        """Make the entries and checksums of the segment that was followed last agree with its data."""

    def believe(self, base: int, verified: VerifiedPrefix, point: RecoveryPoint) -> Followed:
        """Do the same for a segment of which only verified bytes are left."""

    def is_followed(self, base: int, verified: VerifiedPrefix | None, followed: Followed) -> bool:
        """True if segment `base` continues this one, after a power cut. `verified` is as for `believe`."""

    def complete(self, base: int, following: int) -> None:
        """Complete, in the page cache, a segment that is not the last; `following` is the next one."""

    def durable(self, base: int, point: RecoveryPoint) -> list[tuple[str, int]]:
        """Return the segment's files without the checksum file, each with the bytes that are durable in it.

        `point` says how many. The data file comes first, then the files that describe it.
        """

    def void_checksums(self, base: int, start: int) -> None:
        """Remove checksums of the segment whose bytes a power cut has taken: see `OpenRepairs.void`."""

    def cut_unwritten(self, base: int, start: int) -> bool:
        """Cut the segment at the first sector from byte `start` on that may never have been written.

        True if there was one: see `unwritten_at`. Nothing is done if records have checksums of their own.
        """

    def set_aside(self, base: int) -> int:
        """Set the segment aside as not synced. Returns the least offset that may be given after it."""

    def cover(self, base: int, end: int) -> None:
        """Add checksums of the records before byte `end` of the last segment that have none."""

    def assigns_again(self, offset: int) -> bool:
        """True if a pending transaction assigns the offsets before this one again."""

    def next_offset(self, given: int, promised: int, trust: Trust) -> int:
        """Return the next offset. `given` is the one after the last offset of which there is a trace.

        `promised` is the recovery point's.
        """


class LogRecovery:
    """One recovery. It fills in `found`, which the judge may read, and note changes in."""

    def __init__(
        self,
        fs: FileSystem,
        files: _RecoveryFiles,
        judge: Judge,
        repairs: OpenRepairs,
        found: FoundLog,
        trust: Trust,
        *,
        counts_checksummed: bool = True,
    ) -> None:
        """`counts_checksummed`: offsets of which only checksums are left are not assigned again."""
        self._fs = fs
        self._files = files
        self._judge = judge
        self._repairs = repairs
        self._found = found
        self._trust = trust
        self._counts_checksummed = counts_checksummed
        self._given = 0
        self._begun = 0
        self._taken: tuple[int, RecoveryPoint] | None = None

    def run(self, point: RecoveryPoint | None) -> FoundLog:
        """Repair what needs it, and leave the syncs to the first barrier.

        `point`: everything that diskq wrote before it is known to be durable. Raises as the judge.
        """
        found, files, judge, trust = self._found, self._files, self._judge, self._trust
        found.bases = files.bases()
        noted = None if point is None else point.first
        missing = missing_start(
            found.bases, files.checksum_files(), files.data, noted=noted, first=judge.first
        )
        if missing is not None:
            start = found.bases[0] - (missing.records or 0)
            if trust is Trust.POWER_CUT and point is not None and point.next_offset <= start:
                missing = replace(missing, kind=RepairKind.UNSYNCED)  # never promised to outlive it
            found.repairs.append(missing)
        begun = files.checksum_files() if noted is None else [*files.checksum_files(), noted]
        self._begun = max(judge.first, min(begun, default=0 if point is None else point.base))
        if trust is Trust.PEER_WROTE:
            self._void_checksums(point)
        checksummed = checksummed_end(self._fs, files, found.bases)
        orphans = files.orphans(found.bases)
        oldest = found.bases[0] if found.bases else 0
        known = point or RecoveryPoint(oldest, 0, oldest)
        promised = known.next_offset
        known = judge.begin(known, trust)
        for base in judge.incomplete(known, trust):
            self._follow(base, RecoveryPoint(base, 0, base))
        self._given = judge.first
        found.end = found.next_offset = 0
        if not found.bases:
            pass  # a new log; or all files that were there are gone
        elif found.bases[-1] < known.base:
            self._follow(found.bases[-1], known)  # files that were there are gone
        elif trust is Trust.POWER_CUT:
            self._believe_checksums(known, has_point=point is not None)
        elif trust is Trust.CLOSED and self._is_as_left(known):
            found.end, found.next_offset = known.end, known.next_offset
        else:
            if trust is Trust.KILLED:
                self._cut_unwritten(known)
            pairs = [pair for pair in pairwise(found.bases) if pair[0] >= known.base]
            if trust is Trust.CLOSED and not self._is_shorter(known):
                pairs = []
            for base, following in pairs:
                self._settle()
                judge.complete(base, following)
                if trust is not Trust.KILLED:
                    self._keep(base, known)
                elif not self._follow_to(following, base, known):
                    break
            self._follow(found.bases[-1], known)
        given = max(self._given, promised, checksummed if self._counts_checksummed else 0)
        given = judge.next_offset(given, promised, trust)
        is_begun = found.next_offset < given or not found.bases
        if is_begun:
            self._begin_after(given, promised, known)
        self._repairs.execute_asides()
        # Before a segment is begun that has one of these names.
        Barrier(removals=tuple(orphans)).execute(self._fs)
        self._settle()
        if not is_begun:
            judge.cover(found.bases[-1], found.end)
            found.rows, _ = rows_before(self._fs, files.checksum_file(found.bases[-1]), found.end)
        return found

    def _void_checksums(self, point: RecoveryPoint | None) -> None:
        """Remove checksums of bytes that a power cut has taken: a peer's may be there now."""
        for base in self._found.bases:
            if point is None or base >= point.base:
                start = point.end if point is not None and base == point.base else 0
                self._judge.void_checksums(base, start)

    def _cut_unwritten(self, point: RecoveryPoint) -> None:
        """Cut what a disk leaves that went away while the machine ran on: what was synced comes before."""
        found, judge = self._found, self._judge
        for base in [base for base in found.bases if base >= point.base]:
            if judge.cut_unwritten(base, point.end if base == point.base else 0):
                if not self._is_begun_after(base):
                    self._set_aside_after(base)
                return

    def _set_aside_after(self, base: int) -> None:
        """Set all segments after this one aside: their messages would come after others that are lost."""
        found = self._found
        for later in [other for other in found.bases if other > base]:
            found.bases.remove(later)
            self._given = max(self._given, self._judge.set_aside(later))

    def _follow(self, base: int, point: RecoveryPoint) -> Followed:
        self._settle()
        return self._take(base, point, self._judge.follow(base, point))

    def _follow_to(self, following: int, base: int, point: RecoveryPoint) -> bool:
        """Follow a segment that is not the last one. False: no later segment can be kept.

        Either a disk that went away has lost the end of this segment; then the checksums do not say that the
        segment is complete. Or a later segment is gone, and a pending transaction appends all messages after
        the gap again.
        """
        path = self._files.data(base)
        is_complete = sealed_end(self._fs, self._files.checksum_file(base)) == self._fs.size_of(path)
        followed = self._follow(base, point)
        if (lost := following - followed.next_offset) <= 0:
            return True
        is_again = self._judge.assigns_again(following)
        if is_again or (not is_complete and not self._is_begun_after(base)):
            self._set_aside_after(base)
            return False
        self._note_missing(missing_after(path, followed.end, lost))
        return True

    def _is_begun_after(self, base: int) -> bool:
        """True if all later segments are empty: an open that was killed has begun one after lost messages."""
        later = [other for other in self._found.bases if other > base]
        if any(self._judge.assigns_again(other) for other in later):
            return False
        return not any(self._fs.size_of(self._files.data(other)) for other in later)

    def _is_shorter(self, point: RecoveryPoint) -> bool:
        """True if the segment of the point has lost bytes before the point."""
        size = self._fs.size_of(self._files.data(point.base))
        return size is not None and size < point.end

    def _take(self, base: int, point: RecoveryPoint, followed: Followed) -> Followed:
        """Note the end of the last segment found so far; `_settle` comes next."""
        self._found.end, self._found.next_offset = followed.end, followed.next_offset
        self._given = max(self._given, followed.given)
        self._taken = base, point
        return followed

    def _settle(self) -> None:
        """Complete the repair of the segment that was taken last; its files are to be synced."""
        self._judge.settle()
        if self._taken is not None:
            (base, point), self._taken = self._taken, None
            self._keep(base, point)

    def _is_as_left(self, point: RecoveryPoint) -> bool:
        """True if the last segment ends at the point, by the sizes of its files."""
        base = self._found.bases[-1]
        files = self._judge.durable(base, point)
        return base == point.base and all(self._fs.size_of(path) == size for path, size in files)

    def _keep(self, base: int, point: RecoveryPoint) -> None:
        data, *others = self._judge.durable(base, point)
        self._repairs.keep(data, (self._files.checksum_file(base), 0), *others)

    def _believe_checksums(self, point: RecoveryPoint, *, has_point: bool) -> None:
        """Keep the bytes that they verify, without a gap, from the point on; set the rest aside.

        Without a point, segments that have no checksums at all are a peer's, and kept too.
        """
        found, files, judge = self._found, self._files, self._judge
        pending = [base for base in found.bases if base >= point.base]
        found.bases = [base for base in found.bases if base < point.base]
        is_followed = True
        while pending and is_followed:
            base = pending.pop(0)
            found.bases.append(base)
            verified = None
            if has_point or self._fs.size_of(files.checksum_file(base)) is not None:
                data = files.data(base)
                start = point.end if base == point.base else 0
                verified = verified_prefix(self._fs, data, files.checksum_file(base), start)
                kept = files.kept(data)
                self._repairs.cut(data, verified.end, RepairKind.UNSYNCED, UNSYNCED, aside_base=kept)
                self._settle()
                followed = self._take(base, point, judge.believe(base, verified, point))
            else:
                followed = self._follow(base, point)
            is_followed = bool(pending) and judge.is_followed(pending[0], verified, followed)
        for base in pending:
            self._given = max(self._given, judge.set_aside(base))

    def _note_missing(self, missing: Repair) -> None:
        """Report missing messages: together with what was cut in their place, as that is one event."""
        if missing.kind is RepairKind.LOST:
            self._repairs.check(missing.path, missing.kept, missing.reason)
        repairs = self._found.repairs
        for number, cut in enumerate(repairs):
            is_cut = cut.kind in _CUT and (cut.path, cut.kept) == (missing.path, missing.kept)
            if is_cut and cut.records == 0:
                reason = cut.reason if cut.kind is missing.kind else missing.reason
                repairs[number] = replace(cut, kind=missing.kind, reason=reason, records=missing.records)
                return
        repairs.append(missing)

    def _begin_after(self, offset: int, promised: int, point: RecoveryPoint) -> None:
        """Begin a new segment after missing messages: readers may know them, so their offsets stay used."""
        found = self._found
        lost = offset - (found.next_offset if found.bases else min(self._begun, offset))
        if lost:
            path = self._files.data(found.bases[-1] if found.bases else point.base)
            repair = missing_after(path, found.end, lost)
            if found.next_offset >= promised and self._trust is Trust.POWER_CUT:
                repair = replace(repair, kind=RepairKind.UNSYNCED)  # never promised to outlive it
            self._note_missing(repair)
            # Only entries and checksums of what is gone show that its offsets were assigned.
            self._repairs.begin(self._files.data(offset))
        found.begin_after(offset)
