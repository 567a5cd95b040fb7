# Verifies a stream. Law: it is opened in memory, and what that repairs is a finding by its kind; then each
# segment is audited, and the files that say how far each group has come. A stream that a process may have
# open is not opened: what is missing at the start or the end of a partition is shown by its checksums and its
# recovery point.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from diskq._native.stream.codec import count
from diskq.engine.log.recovery_points import (
    RecoveryPoints,
    checksummed_end,
    checksums_reach,
    missing_start,
    read_points,
)
from diskq.engine.stream.audit import AuditTask, audit_tasks, examine_segment
from diskq.engine.stream.files import StreamFiles, read_first
from diskq.engine.stream.groups import groups
from diskq.engine.stream.owner import owner_state
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.replayed import stream_replay
from diskq.engine.stream.settings import StreamSettings, read_settings
from diskq.engine.stream.stream import Stream
from diskq.errors import NotFoundError, UnsupportedFormatError
from diskq.options import StreamOptions
from diskq.storage.barrier import opened
from diskq.storage.fs import FileSystem
from diskq.storage.lock import may_be_open
from diskq.storage.log.replay import FromLog, is_part_of
from diskq.storage.repairs import RepairKind
from diskq.tools.findings import StateKind
from diskq.tools.gaps import Gap, known_gaps, unknown_parts
from diskq.tools.look import Look, look_at
from diskq.tools.redo_logs import found_in_redo_log
from diskq.tools.report import (
    Report,
    report_cut_repair,
    report_kept_aside,
    report_leftovers,
    report_missing_end,
    report_missing_start,
    report_offset,
    report_refusal,
    report_repairs,
    report_rotten_entries,
    report_unreadable_points,
    settled,
)
from diskq.tools.stores import Store
from diskq.tools.verify.waiting import checksummed_size, report_waiting, was_killed

__all__ = ["verify_stream"]

# Bytes of entries.
_AT_ONCE = 64 * 1024


def verify_stream(fs: FileSystem, store: Store, report: Report) -> None:
    """Verify a stream. Raises NotFoundError, UnsupportedFormatError for its redo log, OSError."""
    files = StreamFiles(fs, store.path)
    try:
        settings = read_settings(fs, files)
    except UnsupportedFormatError as refusal:
        report.damage(StateKind.REFUSED, files.settings, 0, f"the settings cannot be read: {refusal}")
        return
    found = settled(partial(_look, fs, files, settings or StreamSettings()), report.progress)
    if settings is None and found.lost:
        # Only the records themselves show how they are encoded.
        other = settled(partial(_look, fs, files, StreamSettings(encoding="varuint")), report.progress)
        if other.messages > found.messages:
            found = other
            what = "the settings are gone, and records are encoded as 'varuint'"
            found.damage(StateKind.REFUSED, files.settings, 0, f"{what}: open it with encoding='varuint'")
    report.take(found)


def _look(fs: FileSystem, files: StreamFiles, settings: StreamSettings, report: Report) -> None:
    options = StreamOptions(encoding=settings.encoding)
    if owner_state(fs, files) in ("peer", "opening"):  # a go-diskq producer has no lock
        _report(fs, Look(fs), files, settings, report)
        return
    with look_at(fs, files.lock, lambda there: Stream(files.path, options=options, fs=there)) as look:
        _report(fs, look, files, settings, report)


def _report(
    fs: FileSystem, look: Look[Stream], files: StreamFiles, settings: StreamSettings, report: Report
) -> None:
    if look.engine is not None:
        shown, logged = look.fs, found_in_redo_log(look.engine)
    else:  # as a reader sees it
        redo = stream_replay(fs, files.path).look()
        shown, logged = (fs, ()) if redo is None else (redo.fs, tuple(redo.redone.found))
    _report_beside(fs, files, settings, logged, report)
    _StreamVerification(fs, look, shown, files, settings, logged, report).run()


class _StreamVerification:
    """One pass through the stream."""

    def __init__(
        self,
        fs: FileSystem,
        look: Look[Stream],
        shown: FileSystem,
        files: StreamFiles,
        settings: StreamSettings,
        logged: Sequence[FromLog],
        report: Report,
    ) -> None:
        """`fs` and `files` are without what the open has changed, `shown` is with it.

        `logged` is what was found in the redo log.
        """
        self._logged = logged
        self._below = fs
        self._found = files
        self._look = look
        self._fs = shown
        self._files = StreamFiles(self._fs, files.path)
        self._varuint = settings.encoding == "varuint"
        self._report = report

    def run(self) -> None:
        points = read_points(self._fs, self._files)
        for task in audit_tasks(self._files.path, self._fs):
            self._audit(task)
        self._read_groups()
        engine = self._look.engine
        if engine is not None:
            wals = (self._found.partition(index).wal for index in self._found.partitions())
            unwritten = self._unwritten({repair.path for repair in engine.repairs})
            notes = [self._found.redo, *wals, *unwritten]
            report_repairs(engine.repairs, notes, self._report)
            return
        report_refusal(self._look.refusal, self._found.redo, self._report)
        for partition in self._files.partitions():
            self._report_missing(partition, points)

    def _audit(self, task: AuditTask) -> None:
        report = self._report
        judges_tail = task.next_base is None and not may_be_open(self._fs, self._files.lock)
        found = examine_segment(self._files.path, task, self._fs, judges_tail=judges_tail)
        if found is None:
            return
        audit, troubles = found
        report.messages += audit.records
        report.saw(audit.size)
        checksum_file = self._files.partition(task.partition).checksum_file(task.base)
        staging = self._found.partition(task.partition).staging
        report.checksummed += checksummed_size(
            audit.checksummed, self._fs, self._below, self._logged, staging, task.base
        )
        report_rotten_entries(self._fs, checksum_file, audit.size - audit.checksummed, report)
        known = known_gaps(self._fs, self._files) if any(each.missing for each in troubles) else []
        unknown = [self._unknown(task, each.missing, known) for each in troubles]
        noted = sum(len(each.missing) for each in troubles) - sum(unknown)
        left = max(0, audit.lost - noted)
        # Where the records can be followed to their end, it is known how many are missing after it.
        is_followed = all(each.kind is not RepairKind.CORRUPT for each in troubles)
        after_end = min(left, sum(unknown)) if is_followed else 0
        left -= after_end
        for trouble, lost in zip(troubles, unknown, strict=True):
            kind, path, at, what = trouble.kind, trouble.path, trouble.at, trouble.what
            if trouble.missing and not lost:
                what = f"{what}: a repair has left them out"
                report.note(kind, path, at, what, offset=trouble.missing.start)
            elif trouble.missing:
                offset = trouble.missing.start
                report.damage(kind, path, at, what, after_end if is_followed else left, offset=offset)
                left, after_end = left if is_followed else 0, 0
            elif kind is RepairKind.TORN:
                report.torn(kind, path, at, f"{what}: the next open repairs it", size=trouble.size)
            else:
                report.damage(kind, path, at, what, left, size=trouble.size)
                left = 0

    def _unwritten(self, repaired: set[str]) -> Iterator[str]:
        """Yield files of entries that a power cut has left unwritten: their messages are in the redo log."""
        logged = {its.path for its in self._logged if not its.is_displaced}
        for partition in map(self._found.partition, self._found.partitions()):
            for data, *entries in map(partition.segment, partition.bases()):
                for path in repaired.intersection(entries) if data in logged else ():
                    if self._is_unwritten(path):
                        yield path

    def _is_unwritten(self, path: str) -> bool:
        """True if the file has nothing that is not there after the open, but zeros."""
        size = self._below.size_of(path)
        if size is None or self._fs.size_of(path) is None:
            return False
        with opened(self._below, path) as there, opened(self._fs, path) as now:
            pieces = (
                (self._below.pread(there, _AT_ONCE, at), self._fs.pread(now, _AT_ONCE, at))
                for at in range(0, size, _AT_ONCE)
            )
            return all(before == after or is_part_of(before, after) for before, after in pieces)

    def _unknown(self, task: AuditTask, missing: range, known: list[Gap]) -> int:
        """Return how many of the missing messages no repair has left out."""
        parts = unknown_parts(Gap(task.partition, missing.start, missing.stop), known)
        return sum(part.end - part.start for part in parts)

    # --- what only checksums and the recovery point show -------------------------------------------

    def _report_missing(self, partition: int, points: RecoveryPoints) -> None:
        """Report messages that are missing at the start and at the end of a partition."""
        fs, files, report = self._fs, self._files.partition(partition), self._report
        bases, reach = checksums_reach(fs, files)
        point = points.partitions.get(partition)
        noted = None if point is None else point.first
        first = read_first(fs, files)
        missing = missing_start(bases, files.checksum_files(), files.data, noted=noted, first=first)
        report_missing_start(missing, report)
        promised = 0 if point is None else point.next_offset
        last = max([*bases, *reach], default=-1)
        if last > max(bases, default=-1):
            promised = max(promised, checksummed_end(fs, files, bases, reach))
        end = self._next_offset(partition) or 0
        path = files.data(bases[-1] if bases else max(last, 0))
        read = files.segment(bases[-1]) if bases else ()
        report_missing_end(end, promised, path, None, read, report)

    # --- beside the segments ----------------------------------------------------------------------

    def _read_groups(self) -> None:
        report = self._report
        for group in groups(self._fs, self._files):
            for repair in group.repairs:
                report_offset(repair, report)
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
        except NotFoundError:
            return None


# --- beside the segments --------------------------------------------------------------------------


def _report_beside(
    fs: FileSystem, files: StreamFiles, settings: StreamSettings, logged: Sequence[FromLog], report: Report
) -> None:
    """Report what is beside the segments, as the next open finds it."""
    report_cut_repair(fs, files.path, files.swap, report)
    report_unreadable_points(read_points(fs, files), files.state, report)
    if fs.size_of(files.private) is not None:
        report_leftovers(fs, files.leftovers(), files.lock, report)
        if fs.size_of(files.intent) is not None:
            what = "a transaction is pending: the next open finishes it"
            report.note(StateKind.PENDING, files.intent, None, what)
    stagings = {index: files.partition(index).staging for index in files.partitions()}
    is_varuint = settings.encoding == "varuint"

    def counted(records: bytes) -> int:
        return count(records, is_varuint).records

    report_waiting(fs, files, logged, stagings.values(), counted, report)
    for partition in map(files.partition, files.partitions()):
        orphans = partition.orphans(partition.bases())
        report_leftovers(fs, orphans, files.lock, report, "its segment is gone")
        report_kept_aside(fs, partition.private, report)
    state = owner_state(fs, files)
    if state == "garbage" and fs.size_of(files.owner):
        what = "it holds no owner's id: the next open removes it, and keeps a copy"
        report.torn(RepairKind.TORN, files.owner, 0, what)
    if state in ("peer", "opening") and was_killed(fs, files, stagings.values()):
        what = "it names another producer, and a diskq process was killed here: the next open is refused"
        report.damage(StateKind.REFUSED, files.owner, None, f"{what}, unless with take_over=True")
