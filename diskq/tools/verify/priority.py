# Verifies a store of priority queues. Law: what the next open would refuse, and whole commands that it would
# have to leave out, are damage; what it cuts because it was not written completely is torn.

from __future__ import annotations

from diskq._native.priority.codec import END_MARKER
from diskq.engine.log.recovery import Trust, trust_of_store
from diskq.engine.priority.audit import SegmentReport, StoreReport, inspect_store
from diskq.engine.priority.files import StoreFiles, StorePoint
from diskq.engine.priority.view import try_opening
from diskq.errors import CorruptionError
from diskq.storage.fs import FileSystem
from diskq.storage.lock import may_be_open
from diskq.storage.repairs import RepairKind
from diskq.storage.state import read_state
from diskq.tools.findings import StateKind
from diskq.tools.report import Report, report_leftovers, settled
from diskq.tools.stores import Store

__all__ = ["verify_priority"]


def verify_priority(fs: FileSystem, store: Store, report: Report) -> None:
    """Raises OSError."""
    try:
        files = StoreFiles.existing(fs, store.path)
    except CorruptionError as refusal:
        report.damage(StateKind.REFUSED, refusal.path, refusal.position, refusal.reason)
        return
    looks: list[_StoreVerification] = []

    def look(part: Report) -> None:
        looks.append(_StoreVerification(fs, files, part))
        looks[-1].run()

    found = settled(look, report.progress)
    report.take(found)
    last = looks[-1]
    if not _is_being_written(fs, files) and (found.troubles or last.needs_an_open):
        last.compare_with_an_open(report)


def _is_being_written(fs: FileSystem, files: StoreFiles) -> bool:
    return any(may_be_open(fs, path) for path in (files.lock, files.metadata))


class _StoreVerification:
    """One pass through the store."""

    def __init__(self, fs: FileSystem, files: StoreFiles, report: Report) -> None:
        self._fs = fs
        self._files = files
        self._report = report
        self._point = StorePoint.read(fs, files)
        self._left = read_state(fs, files)
        self._was_killed = trust_of_store(fs, self._point, self._left) is Trust.KILLED
        """True if a process ended without closing it, and no power cut came since: its commands are whole."""
        self.needs_an_open = False
        """True if the log ends elsewhere than when it was closed, or something is after its end."""

    def run(self) -> None:
        files, report = self._files, self._report
        found = inspect_store(files.root, fs=self._fs, on_bytes=report.saw)
        self.needs_an_open = self._ends_elsewhere(found)
        report.messages = found.messages
        if found.metadata_trouble is not None:
            report.damage(RepairKind.CORRUPT, files.metadata, 0, found.metadata_trouble)
        self._report_snapshot(found)
        for number, segment in enumerate(found.segments):
            report.checksummed += segment.end
            if not segment.is_covered:
                self._report_segment(segment, found, is_last=number == len(found.segments) - 1)
        self._report_gaps(found)
        self._report_closed_segment(found)
        report_leftovers(self._fs, [*files.leftovers()], files.lock, report)

    # --- what an open makes of it -----------------------------------------------------------------

    def _ends_elsewhere(self, found: StoreReport) -> bool:
        point, left = self._point, self._left
        last = found.segments[-1] if found.segments else None
        if point is not None and (last is None or point.base != last.lsn):
            return True
        if left is not None and left.newest > (-1 if last is None else last.lsn):
            return True
        if last is None:
            return False
        if point is None or point.closed is None:
            is_ended = last.size >= last.ending + len(END_MARKER)
            is_blank = last.is_blank or not last.size
            return last.has_stale_bytes or is_blank or (point is not None and not is_ended)
        is_longer = point.next_lsn is not None and last.next_lsn < point.next_lsn
        return last.has_stale_bytes or last.ending < point.closed or is_longer

    def compare_with_an_open(self, report: Report) -> None:
        """Open it over files in memory, and report and count what that open finds and does."""
        opening = try_opening(self._files.root, fs=self._fs)
        refusal, point = opening.refusal, self._point
        if refusal is not None:
            if not any(each.severity == "damage" for each in report.findings):
                position = refusal.position if isinstance(refusal, CorruptionError) else None
                what = f"the next open refuses it: {refusal}"
                report.damage(StateKind.REFUSED, refusal.path, position, what)
            return
        report.messages = sum(queue.stored for queue in opening.queues)
        known = {(each.path, each.at) for each in report.findings if each.severity != "note"}
        for repair in opening.repairs:
            if (repair.path, repair.kept) in known:
                continue
            kind, path, at = repair.kind, repair.path, repair.kept
            if kind is RepairKind.STALE:
                report.note(kind, path, at, f"{repair.reason}: the next open keeps them aside")
            elif kind is RepairKind.TORN and not self._was_killed:
                report.torn(kind, path, at, f"{repair.reason}: the next open cuts it, and keeps a copy")
            else:
                report.damage(kind, path, at, repair.reason)
        if point is not None and point.stored is not None:
            report.count_lost(max(0, point.stored - report.messages))

    # --- the snapshot -----------------------------------------------------------------------------

    def _report_snapshot(self, found: StoreReport) -> None:
        snapshot = found.snapshot
        if snapshot is None:
            return
        if snapshot.trouble is None:
            self._report.checksummed += snapshot.size
        elif snapshot.is_refused:
            self._report.damage(StateKind.REFUSED, snapshot.path, 0, snapshot.trouble)
        elif found.segments and not found.segments[0].lsn:
            what = f"{snapshot.trouble}: the log begins with the first command, and nothing is lost"
            self._report.note(RepairKind.CORRUPT, snapshot.path, 0, what)
        else:
            self._report.damage(RepairKind.CORRUPT, snapshot.path, 0, snapshot.trouble)

    # --- the log ----------------------------------------------------------------------------------

    def _may_be_unsynced(self, lsn: int) -> bool:
        """True if a power cut may have taken this command, or the segment that begins with it."""
        return not self._was_killed and self._point is not None and lsn >= self._point.base

    def _is_vouched(self, segment: SegmentReport) -> bool:
        """True if all of it was on stable storage."""
        point = self._point
        if point is None:
            return False
        if point.base > segment.lsn:
            return True
        return point.base == segment.lsn and point.closed is not None and segment.end < point.closed

    def _report_segment(self, segment: SegmentReport, found: StoreReport, *, is_last: bool) -> None:
        if segment.trouble is None:
            return
        report, at = self._report, segment.end
        what = f"command {segment.next_lsn}: {segment.trouble}"
        if segment.is_blank:
            tell = report.torn if is_last or self._may_be_unsynced(segment.lsn) else report.damage
            tell(RepairKind.TORN, segment.path, 0, segment.trouble)
        elif segment.has_more:
            what = f"{what}, and whole commands follow it"
            report.damage(RepairKind.CORRUPT, segment.path, at, what)
        elif segment.is_refused:
            report.damage(StateKind.REFUSED, segment.path, at, what)
        elif self._is_vouched(segment):
            report.damage(RepairKind.CORRUPT, segment.path, at, what)
        elif is_last:
            if not _is_being_written(self._fs, self._files):
                tell = report.damage if self._was_killed else report.torn
                what = f"{what}: the next open cuts it, and keeps a copy"
                tell(RepairKind.TORN, segment.path, at, what)
        elif self._may_be_unsynced(segment.lsn):
            what = f"{what}: the next open cuts it, and sets aside what follows"
            report.torn(RepairKind.UNSYNCED, segment.path, at, what)
        else:
            report.damage(RepairKind.CORRUPT, segment.path, at, what)

    def _report_closed_segment(self, found: StoreReport) -> None:
        """Report if the segment is gone in which the log was closed, with everything on stable storage."""
        point, there = self._point, {segment.lsn for segment in found.segments}
        covered = -1 if found.snapshot is None else found.snapshot.lsn
        if (
            point is not None
            and point.closed is not None
            and covered < point.base
            and point.base not in there
        ):
            what = "the log was closed in this segment, which is gone"
            self._report.damage(RepairKind.LOST, self._files.segment(point.base), None, what)

    def _report_gaps(self, found: StoreReport) -> None:
        is_begun = found.snapshot is None or found.snapshot.trouble is None
        for gap in found.gaps:
            if not is_begun and gap < found.segments[0].lsn:
                continue  # what the snapshot covered is not known
            following = next((each for each in found.segments if each.lsn > gap), found.segments[-1])
            if self._may_be_unsynced(gap):
                what = f"command {gap} should be before it: the next open sets it aside"
                self._report.torn(RepairKind.UNSYNCED, following.path, 0, what)
            else:
                what = f"command {gap} should be before it, and is nowhere"
                self._report.damage(RepairKind.LOST, following.path, 0, what)
