# Verifies a store of priority queues. Law: every file is read; unless all is as the last close left it, the
# store is then opened in memory, and what that repairs is a finding by its kind. The reading also shows what
# no open reports: a snapshot that is not needed, and each fault of a store that is refused or in use.

from __future__ import annotations

from functools import partial

from diskq._native.priority.codec import END_MARKER
from diskq.engine.priority.audit import StoreReport, inspect_store
from diskq.engine.priority.files import StoreFiles, StorePoint
from diskq.engine.priority.store import PriorityStore
from diskq.errors import CorruptionError, DiskqError
from diskq.storage.fs import FileSystem
from diskq.storage.lock import may_be_open
from diskq.storage.repairs import RepairKind
from diskq.tools.findings import StateKind
from diskq.tools.look import Look, look_at
from diskq.tools.report import Report, report_leftovers, report_repairs, settled
from diskq.tools.stores import Store

__all__ = ["verify_priority"]


def verify_priority(fs: FileSystem, store: Store, report: Report) -> None:
    """Raises OSError."""
    try:
        files = StoreFiles.existing(fs, store.path)
    except CorruptionError as refusal:
        report.damage(StateKind.REFUSED, refusal.path, refusal.position, refusal.reason)
        return
    report.take(settled(partial(_look, fs, store, files), report.progress))


def _look(fs: FileSystem, store: Store, files: StoreFiles, report: Report) -> None:
    point = StorePoint.read(fs, files)  # first: the segment that it names is there then, or covered
    found = inspect_store(files.root, fs=fs, on_bytes=report.saw)
    report.messages = found.messages
    report.checksummed = sum(segment.end for segment in found.segments)
    _report_snapshot(found, report)
    if _is_as_closed(found, point):
        pass  # an open would only read it a second time, into memory
    elif may_be_open(fs, files.metadata):  # by TaskFlux, perhaps, which has no other lock
        _report_open(files, found, point, Look(fs), report)
    else:
        with look_at(fs, files.lock, partial(_opened, store.path)) as look:
            _report_open(files, found, point, look, report)
    report_leftovers(fs, [*files.leftovers()], files.lock, report)


def _is_as_closed(found: StoreReport, point: StorePoint | None) -> bool:
    """True if the log ends where it ended when diskq closed the store, and nothing is torn or damaged."""
    if point is None or point.closed is None or not found.segments or not found.is_sound:
        return False
    last = found.segments[-1]
    end = point.closed + len(END_MARKER)
    return (last.lsn, last.next_lsn, last.size) == (point.base, point.next_lsn, end)


def _opened(path: str, fs: FileSystem) -> PriorityStore:
    return PriorityStore(path, fs=fs, takes_snapshots=False)


def _report_open(
    files: StoreFiles,
    found: StoreReport,
    point: StorePoint | None,
    look: Look[PriorityStore],
    report: Report,
) -> None:
    engine, refusal = look.engine, look.refusal
    if engine is None:
        _report_faults(files, found, point, report, is_in_use=refusal is None)
    else:
        report.messages = engine.statistics().stored
        for repair in engine.repairs:
            if repair.kind is RepairKind.STALE:  # TaskFlux leaves it
                what = f"{repair.reason}: the next open keeps them aside"
                report.note(repair.kind, repair.path, repair.kept, what, size=repair.dropped)
        report_repairs((each for each in engine.repairs if each.kind is not RepairKind.STALE), (), report)
    if not isinstance(refusal, DiskqError | None):
        raise refusal
    if refusal is not None and not any(each.severity == "damage" for each in report.findings):
        position = refusal.position if isinstance(refusal, CorruptionError) else None
        path = getattr(refusal, "path", files.root)
        report.damage(StateKind.REFUSED, path, position, f"the next open refuses it: {refusal}")


def _report_snapshot(found: StoreReport, report: Report) -> None:
    snapshot = found.snapshot
    if snapshot is None:
        return
    if snapshot.trouble is None:
        report.checksummed += snapshot.size
    elif snapshot.is_refused:
        report.damage(StateKind.REFUSED, snapshot.path, 0, snapshot.trouble)
    elif found.segments and not found.segments[0].lsn:
        what = f"{snapshot.trouble}: the log begins with the first command, and nothing is lost"
        report.note(RepairKind.CORRUPT, snapshot.path, 0, what)
    else:
        report.damage(RepairKind.CORRUPT, snapshot.path, 0, snapshot.trouble)


def _report_faults(
    files: StoreFiles, found: StoreReport, point: StorePoint | None, report: Report, *, is_in_use: bool
) -> None:
    """Report each fault of a store that is not opened."""
    if found.metadata_trouble is not None:
        report.damage(RepairKind.CORRUPT, files.metadata, 0, found.metadata_trouble)
    for segment in found.segments:
        if segment.is_covered or segment.trouble is None:
            continue
        path, at, is_last = segment.path, segment.end, segment is found.segments[-1]
        what = f"command {segment.next_lsn}: {segment.trouble}"
        if segment.has_more:
            report.damage(RepairKind.CORRUPT, path, at, f"{what}, and whole commands follow it")
        elif segment.is_refused:
            report.damage(StateKind.REFUSED, path, at, what)
        elif not is_last:
            report.damage(RepairKind.CORRUPT, path, at, what)
        elif segment.is_blank:
            report.torn(RepairKind.TORN, path, 0, segment.trouble)
        elif not is_in_use:  # else it may be written at this moment
            report.damage(RepairKind.TORN, path, at, what)
    is_begun = found.snapshot is None or found.snapshot.trouble is None
    for gap in found.gaps:
        if not is_begun and gap < found.segments[0].lsn:
            continue  # what the snapshot covered is not known
        following = next((each for each in found.segments if each.lsn > gap), found.segments[-1])
        what = f"command {gap} should be before it, and is nowhere"
        report.damage(RepairKind.LOST, following.path, 0, what)
    if point is None or (point.closed is None and not is_in_use):
        return  # a power cut may have taken the last segment
    covered = -1 if found.snapshot is None else found.snapshot.lsn
    if covered < point.base and point.base not in {segment.lsn for segment in found.segments}:
        what = "the log continued in this segment, which is gone"
        report.damage(RepairKind.LOST, files.segment(point.base), None, what)
