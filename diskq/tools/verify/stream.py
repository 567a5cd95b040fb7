# Verifies a stream. Law: a segment at a time, with the audit; and the files that say how far each group, and
# the writer, has come.

from __future__ import annotations

from dataclasses import replace
from functools import partial

from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, count
from diskq.engine.log.committed_offset import OFFSET_SIZE
from diskq.engine.log.missing_end import checksummed_end, checksums_reach
from diskq.engine.log.missing_start import missing_start
from diskq.engine.log.recovery_points import RecoveryPoint, RecoveryPoints, read_points
from diskq.engine.stream.audit import AuditTask, Trouble, audit_tasks, examine_segment
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import groups
from diskq.engine.stream.owner import owner_state
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.redo_source import look_at_stream
from diskq.engine.stream.settings import StreamSettings, read_settings
from diskq.engine.stream.start import read_first
from diskq.engine.stream.stream import Stream
from diskq.errors import StreamNotFoundError, UnsupportedFormatError
from diskq.options import StreamOptions
from diskq.storage.fs import FileSystem, join
from diskq.storage.lock import may_be_open, read_holder
from diskq.storage.redo_view import RedoLook
from diskq.storage.repairs import RepairKind
from diskq.storage.write_ahead_log import read_wal
from diskq.storage.write_ahead_logs import was_restarted
from diskq.tools.findings import Finding, StateKind
from diskq.tools.gaps import Gap, known_gaps, unknown_parts
from diskq.tools.holders import writer_of
from diskq.tools.look import look_at
from diskq.tools.report import (
    Report,
    report_cut_repair,
    report_kept_aside,
    report_leftovers,
    report_missing_start,
    report_rotten_entries,
    settled,
)
from diskq.tools.stores import Store
from diskq.tools.view.killed import as_put_back, count_displaced, report_redo, was_killed

__all__ = ["verify_stream"]

_REPAIRS = ": the next open repairs it"


def verify_stream(fs: FileSystem, store: Store, report: Report) -> None:
    """Verify a stream. Raises StreamNotFoundError, UnsupportedFormatError for its redo log, OSError."""
    files = StreamFiles(fs, store.path)
    try:
        settings = read_settings(fs, files)
    except UnsupportedFormatError as refusal:
        report.damage(StateKind.REFUSED, files.settings, 0, f"the settings cannot be read: {refusal}")
        return
    found = _judged(fs, store, settings or StreamSettings(), report)
    if settings is None and found.lost:
        # Only the records themselves show how they are encoded.
        other = _judged(fs, store, StreamSettings(encoding="varuint"), report)
        if other.messages > found.messages:
            found = other
            what = "the settings are gone, and records are encoded as 'varuint'"
            found.damage(StateKind.REFUSED, files.settings, 0, f"{what}: open it with encoding='varuint'")
    report.take(found)


def _judged(fs: FileSystem, store: Store, settings: StreamSettings, report: Report) -> Report:
    """Return what is found with these settings."""
    files = StreamFiles(fs, store.path)
    found = Report(report.progress)
    varuint = settings.encoding == "varuint"
    counted = partial(_count, varuint)
    look = look_at_stream(fs, files)
    below, fs = fs, report_redo(fs, files, look, counted, found)
    files = StreamFiles(fs, store.path)
    stagings = {index: files.partition(index).staging for index in files.partitions()}
    staged = read_points(fs, files).staged
    with as_put_back(fs, files.lock, stagings, counted, found, staged) as there:
        _StreamVerification(there, StreamFiles(there, store.path), settings, found).run()
    _report_entries(below, look, found)
    state = owner_state(fs, files)
    if state == "garbage" and fs.size_of(files.owner):
        what = "it holds no owner's id: the next open removes it, and keeps a copy"
        found.torn(RepairKind.TORN, files.owner, 0, what)
    if state in ("peer", "opening") and was_killed(fs, files.lock, stagings, staged):
        what = "it names another producer, and a diskq process was killed here: the next open is refused"
        found.damage(StateKind.REFUSED, files.owner, None, f"{what}, unless with take_over=True")
    if found.troubles and writer_of(fs, files) is None:
        _compare_with_an_open(below, files, settings, found)
    count_displaced(look, counted, found)
    return found


def _report_entries(fs: FileSystem, look: RedoLook | None, found: Report) -> None:
    """Report entries that disagree with records on the redo log, where those were seen that are right.

    After a power cut zeros are what was not written; after a kill they are rot.
    """
    known = {finding.path for finding in found.findings}
    for its in () if look is None else look.restored:
        is_entry = its.path.endswith((".index", ".timeindex")) and its.path not in known
        if is_entry and (fs.size_of(its.path) or 0) > its.start:
            what = f"entries disagree with their records{_REPAIRS}"
            found.note(RepairKind.REBUILT, its.path, its.start, what)


def _was_restarted(fs: FileSystem, files: StreamFiles) -> bool:
    """True if the machine was restarted since the last diskq process had the stream."""
    wals = (files.partition(index).wal for index in files.partitions())
    return was_restarted(fs, read_holder(fs, files.lock), wals) is True


def _count(varuint: bool, records: bytes) -> int:
    return count(records, varuint).records


def _compare_with_an_open(
    fs: FileSystem, files: StreamFiles, settings: StreamSettings, found: Report
) -> None:
    """Open it over files in memory: findings that the open repairs are torn, others are losses.

    An open rebuilds indexes from the data, so the indexes alone may show too few messages, or too many.
    """
    behind = Report()
    options = StreamOptions(encoding=settings.encoding)
    with look_at(fs, files.lock, lambda there: Stream(files.path, options=options, fs=there)) as look:
        if look is None:
            return  # the open is refused: the findings stay as they are
        repairs = look.engine.repairs
        _StreamVerification(look.fs, StreamFiles(look.fs, files.path), settings, behind).run()
    lost_by_repairs = sum(repair.records or 0 for repair in repairs)
    # A power cut may take what was not synced: that was never promised.
    is_restarted = _was_restarted(fs, files)
    lost = max(0, 0 if is_restarted else lost_by_repairs, found.messages + found.lost - behind.messages)
    if all(repair.records is not None for repair in repairs):
        lost = min(lost, lost_by_repairs + behind.lost)
    stays = {(each.path, each.at) for each in behind.findings if each.severity == "damage"}
    # What the open reports as lost, or cannot count, it could not repair.
    unmended = {
        repair.path: repair
        for repair in repairs
        if (repair.records is None if is_restarted else repair.records != 0)
    }
    stays |= {(each.path, each.at) for each in found.findings if each.path in unmended}
    found.messages = behind.messages
    for number, each in enumerate(found.findings):
        if each.severity != "damage":
            continue
        if not lost and (each.path, each.at) not in stays:
            found.findings[number] = _repaired(each)
    damaged = {each.path for each in found.findings if each.severity == "damage"}
    for path, repair in unmended.items():
        if path not in damaged:
            found.damage(repair.kind, path, repair.kept, repair.reason, repair.records or 0)
    found.limit_lost(lost)


def _repaired(finding: Finding) -> Finding:
    """Return damage as what it is where the next open repairs it without loss."""
    kind, what = finding.kind, finding.what
    if kind is RepairKind.LOST and finding.at is None and finding.offset is not None:
        # The end of the log was looked for in the index.
        kind = RepairKind.REBUILT
        what = f"{_messages(finding.offset, finding.lost)} have no entries in the index"
    return replace(finding, severity="torn", kind=kind, what=f"{what}{_REPAIRS}", lost=0)


def _messages(offset: int, count: int) -> str:
    return f"messages {offset} to {offset + count - 1}"


class _StreamVerification:
    """One pass through the stream."""

    def __init__(self, fs: FileSystem, files: StreamFiles, settings: StreamSettings, report: Report) -> None:
        self._fs = fs
        self._files = files
        self._varuint = settings.encoding == "varuint"
        self._report = report
        self._was_restarted = _was_restarted(fs, files)

    def run(self) -> None:
        points = read_points(self._fs, self._files)
        for task in audit_tasks(self._files.path, self._fs):
            look = partial(self._look_at, task, points)
            self._report.take(settled(look, self._report.progress))
        self._report.take(settled(self._look_at_groups, None))
        self._report_rest(points)

    def _is_being_written(self) -> bool:
        return may_be_open(self._fs, self._files.lock)

    def _may_be_unsynced(self, base: int, points: RecoveryPoints, partition: int) -> bool:
        """True if a power cut may have taken the end of this segment, which was never promised."""
        point = points.partitions.get(partition)
        is_older = point is not None and base < point.base
        return self._was_restarted and not is_older and not points.was_closed(partition)

    def _look_at(self, task: AuditTask, points: RecoveryPoints, report: Report) -> None:
        judges_tail = task.next_base is None and not self._is_being_written()
        found = examine_segment(self._files.path, task, self._fs, judges_tail=judges_tail)
        if found is None:
            return
        audit, troubles = found
        report.messages += audit.records
        report.checksummed += audit.checksummed
        report.saw(audit.size)
        checksum_file = self._files.partition(task.partition).checksum_file(task.base)
        report_rotten_entries(self._fs, checksum_file, audit.size - audit.checksummed, report)
        noted = self._noted(task.partition, troubles)
        left = max(0, audit.lost - noted)
        point = points.partitions.get(task.partition)
        is_doubtful = self._may_be_unsynced(task.base, points, task.partition)
        for trouble in troubles:
            is_unsynced = is_doubtful and (trouble.at or 0) >= self._synced(task, point, trouble.path)
            if noted and trouble.missing and len(trouble.missing) == noted:
                what = f"{trouble.what}: a repair has left them out"
                report.note(trouble.kind, trouble.path, trouble.at, what, offset=trouble.missing.start)
            elif trouble.kind is RepairKind.TORN or is_unsynced:
                kind = RepairKind.UNSYNCED if is_unsynced else RepairKind.TORN
                what = f"{trouble.what}{_REPAIRS}"
                report.torn(kind, trouble.path, trouble.at, what, size=trouble.size)
            else:
                report.damage(trouble.kind, trouble.path, trouble.at, trouble.what, left, size=trouble.size)
                left = 0
        if task.next_base is None and point is not None:
            found_end = task.base + audit.records + audit.lost
            if found_end < point.next_offset:
                lost = point.next_offset - found_end
                what = f"{_messages(found_end, lost)} were on stable storage, and are gone"
                path = self._files.partition(task.partition).data(task.base)
                report.damage(RepairKind.LOST, path, None, what, lost, offset=found_end)

    def _noted(self, partition: int, troubles: list[Trouble]) -> int:
        """Return how many of the missing offsets are known to be gone for good."""
        noted = 0
        for missing in (trouble.missing for trouble in troubles if trouble.missing):
            gap = Gap(partition, missing.start, missing.stop)
            unknown = unknown_parts(gap, known_gaps(self._fs, self._files))
            noted += len(missing) - sum(part.end - part.start for part in unknown)
        return noted

    def _synced(self, task: AuditTask, point: RecoveryPoint | None, path: str) -> int:
        """Return how many bytes of this file of the segment are known to be on stable storage."""
        if point is None or point.base != task.base:
            return 0
        data, index, _ = self._files.partition(task.partition).segment(task.base)
        if path == data:
            return point.end
        row_size = INDEX_ROW_SIZE if path == index else TIMEINDEX_ROW_SIZE
        return (point.next_offset - point.base) * row_size

    # --- beside the segments ----------------------------------------------------------------------

    def _look_at_groups(self, report: Report) -> None:
        for group in groups(self._fs, self._files):
            for repair in group.repairs:
                size = self._fs.size_of(repair.path) or 0
                tell = report.torn if 0 < size < OFFSET_SIZE else report.damage
                tell(repair.kind, repair.path, 0, repair.reason)
            wrong = {repair.path for repair in group.repairs}
            for partition, offset in group.offsets.items():
                path = self._files.committed_offset(group.name, partition)
                if offset is None or path in wrong:
                    continue
                newest = self._next_offset(partition)
                if newest is not None and offset >= newest:
                    what = f"it says {offset}, and {newest} is the next one: messages would be skipped"
                    report.damage(RepairKind.REBUILT, path, 0, what, offset=offset)

    def _next_offset(self, partition: int) -> int | None:
        files = self._files.partition(partition)
        try:
            with PartitionReader(self._fs, files, varuint=self._varuint) as reader:
                return reader.next_offset()
        except StreamNotFoundError:
            return None

    def _report_rest(self, points: RecoveryPoints) -> None:
        fs, files, report = self._fs, self._files, self._report
        report_cut_repair(fs, files.path, files.swap, report)
        if not points.is_readable:
            what = "it cannot be read: the next open looks at everything"
            report.note(RepairKind.CORRUPT, files.points, 0, what)
        if fs.size_of(files.private) is not None:
            report_leftovers(fs, files.leftovers(), files.lock, report)
            if fs.size_of(files.intent) is not None:
                what = "a transaction is pending: the next open finishes it"
                report.note(StateKind.PENDING, files.intent, None, what)
        for partition in files.partitions():
            self._report_partition(partition, points)

    def _report_partition(self, partition: int, points: RecoveryPoints) -> None:
        fs, report = self._fs, self._report
        files = self._files.partition(partition)
        bases, reach = checksums_reach(fs, files)
        point = points.partitions.get(partition)
        has_run_on = points.was_closed(partition) or not self._was_restarted
        noted = None if point is None else point.start(has_run_on=has_run_on)
        first = read_first(fs, files)
        missing = missing_start(bases, files.checksum_files(), files.data, noted=noted, first=first)
        report_missing_start(missing, report)
        last = max(reach, default=-1)
        if last > max(bases, default=-1) and not self._was_restarted:
            checksummed = checksummed_end(fs, files, bases, reach)
            # Up to the recovery point they were counted with the segment before.
            first = max(last, point.next_offset) if bases and point is not None else last
            if checksummed > last:
                what = (
                    f"the segment is gone: messages {last} to {checksummed - 1}, of which there are checksums"
                )
                lost = max(0, checksummed - first)
                report.damage(RepairKind.LOST, files.data(last), None, what, lost)
        report_leftovers(fs, files.orphans(bases), self._files.lock, report, "its segment is gone")
        if fs.size_of(files.private) is None:
            return
        for name in sorted(fs.list_directory(files.private)):
            if ".bad" in name:
                report_kept_aside(fs, join(files.private, name), report)
        if (waiting := read_wal(fs, files.wal)) is not None:
            size = fs.size_of(files.data(waiting.file))
            if size is not None and waiting.position <= size < waiting.end:
                what = "messages wait here: the next open writes them"
                report.note(StateKind.WAITING, files.wal, None, what)
