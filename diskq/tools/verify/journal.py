# Verifies a journal. Law: a segment at a time, as a reader reads it; missing messages are counted by their
# offsets, which every record has.

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from diskq._native.core.gate import Gate
from diskq._native.journal import codec as journal_codec
from diskq._native.journal.codec import SejFraming
from diskq._native.journal.read_ahead import SejAhead
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import read_journal_offsets
from diskq.engine.journal.redo_source import look_at_journal
from diskq.engine.journal.segment_reader import JournalSegmentReader
from diskq.engine.log.committed_offset import OFFSET_SIZE
from diskq.engine.log.missing_end import checksummed_end, checksums_reach
from diskq.engine.log.missing_start import missing_start
from diskq.engine.log.recovery_points import RecoveryPoint, read_points
from diskq.storage.fs import FileSystem, join
from diskq.storage.lock import may_be_open, read_holder
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.repairs import RepairKind
from diskq.storage.write_ahead_log import read_wal
from diskq.storage.write_ahead_logs import was_restarted
from diskq.tools.findings import StateKind
from diskq.tools.gaps import Gap, known_gaps, unknown_parts
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
from diskq.tools.view.killed import as_put_back, count_displaced, report_redo

__all__ = ["verify_journal"]


class _End(NamedTuple):
    """Where a segment ends."""

    next_offset: int
    """The offset after its last message."""
    matched: tuple[int, int]
    """The number of its bytes and of its messages, if all match their checksums."""


def verify_journal(fs: FileSystem, store: Store, report: Report) -> None:
    """Verify a journal. Raises JournalNotFoundError, UnsupportedFormatError, OSError."""
    files = JournalFiles(fs, store.path)
    look = look_at_journal(fs, files)
    below, fs = fs, report_redo(fs, files, look, _count, report)
    files = JournalFiles(fs, store.path)
    staged = read_points(fs, files).staged
    with as_put_back(fs, files.lock, {0: files.staging}, _count, report, staged) as there:
        _look_over(there, JournalFiles(there, store.path), report)
    if report.lost:
        _count_saved(below, files, report)
    count_displaced(look, _count, report)


def _count_saved(fs: FileSystem, files: JournalFiles, report: Report) -> None:
    """Do not count messages as lost that an open saves: it is tried in memory.

    Until then readers give up a whole block if one record of it is damaged. If nothing is left of a block
    after that record, the open cuts it there, and the records before it, which are whole, are read again.
    """
    behind = Report()
    with look_at(fs, files.lock, lambda there: Journal(files.path, fs=there)) as look:
        if look is None:
            return  # the open is refused: nothing is saved
        _look_over(look.fs, JournalFiles(look.fs, files.path), behind)
    if (saved := behind.messages - report.messages) > 0:
        report.messages += saved
        report.limit_lost(max(0, report.lost - saved))


def _count(records: bytes) -> int:
    return journal_codec.count(records).records


def _look_over(fs: FileSystem, files: JournalFiles, report: Report) -> None:
    points = read_points(fs, files)
    point = points.partitions.get(0)
    is_doubtful = _is_unsynced(fs, files) and not points.was_closed(0)
    bases, reach = checksums_reach(fs, files)  # before the data is read: it may grow
    ends: dict[int, _End] = {}
    for number, base in enumerate(bases):
        next_base = bases[number + 1] if number + 1 < len(bases) else None
        look = partial(_look, fs, files, base, next_base, point, ends)
        part = settled(look, report.progress)
        if is_doubtful and (point is None or base >= point.base):
            _lower_unsynced(part, point.end if point is not None and point.base == base else 0)
        report.take(part)
    last = ends.get(bases[-1]) if bases else None
    matched = last.matched if last is not None else (0, 0)
    checksummed = 0 if is_doubtful else checksummed_end(fs, files, bases, reach, matched)
    promised = max(checksummed, point.next_offset if point is not None else 0)
    if not bases:
        _report_no_segment(files, point.base if point is not None else 0, promised, report)
    found = max((end.next_offset for end in ends.values()), default=0)
    if bases and found < checksummed:
        counted = sum(finding.lost for finding in report.findings)
        if lost := max(0, checksummed - found - counted):
            start, path = checksummed - lost, files.data(files.checksum_files()[-1])
            what = f"messages {start} to {checksummed - 1}, of which there are checksums, are gone"
            report.damage(RepairKind.LOST, path, None, what, lost, offset=start)
    if point is not None and bases:
        # Checksums that are not this segment's own would count messages that never existed.
        first = min([bases[0], *files.checksum_files()])
        report.limit_lost(max(0, max(promised, found) - first - report.messages))
    report.take(settled(partial(_look_at_readers, fs, files), None))
    noted = None if point is None else point.start(has_run_on=not is_doubtful)
    _report_rest(fs, files, bases, noted, report)


def _report_no_segment(files: JournalFiles, base: int, promised: int, report: Report) -> None:
    """Report that no segment exists any more."""
    start = min(files.checksum_files(), default=base)
    if start < promised:
        what = f"no segment exists: messages {start} to {promised - 1} are gone"
        report.damage(RepairKind.LOST, files.data(base), None, what, promised - start, offset=start)


def _lower_unsynced(part: Report, synced: int) -> None:
    """Lower the findings after byte `synced` of a segment: before a power cut they were not promised."""
    for number, finding in enumerate(part.findings):
        if finding.severity == "damage" and finding.at is not None and finding.at >= synced:
            what = f"{finding.what}; not synced before the machine stopped: the next open cuts it"
            part.findings[number] = replace(
                finding, severity="torn", kind=RepairKind.UNSYNCED, what=what, lost=0
            )


def _look(
    fs: FileSystem,
    files: JournalFiles,
    base: int,
    next_base: int | None,
    point: RecoveryPoint | None,
    ends: dict[int, _End],
    report: Report,
) -> None:
    """Look at one segment. `next_base`: the offset with which the next one begins; None: it is written to.

    Where it ends is put into `ends`.
    """
    path = files.data(base)
    ahead = SejAhead(fs, SejFraming(), Gate())
    try:
        segment = JournalSegmentReader(fs, ahead, files, base)
    except FileNotFoundError:
        return  # removed meanwhile
    try:
        size = segment.size
        position = 0
        while position < size:
            offset = ahead.next_offset
            loss = segment.read_on(size, next_base)
            if loss is not None:
                what = f"bytes {loss.start} to {loss.end}: {loss.reason}"
                size_lost, lost = loss.end - loss.start, loss.records or 0
                report.damage(loss.kind, path, loss.start, what, lost, size=size_lost)
                offset = ahead.next_offset
            before, first = ahead.position, ahead.next_offset
            report.messages += ahead.skip_to(UNBOUNDED) - first
            report.saw(min(ahead.position, size) - position)
            position = ahead.position
            if loss is None and position == before and offset == first and segment.tail != "END":
                break
        all_match = segment.blocks.verified == ahead.position
        matched = (ahead.position, ahead.next_offset - base) if all_match else (0, 0)
        ends[base] = _End(ahead.next_offset, matched)
        report.checksummed += segment.blocks.verified
        report_rotten_entries(fs, files.checksum_file(base), size - segment.blocks.verified, report)
        if next_base is None:
            _look_at_the_end(fs, files, segment, ahead, size, report)
            _look_at_the_point(files, base, point, ahead.next_offset, report)
        elif ahead.next_offset < next_base:
            _report_gap(fs, files, path, position, Gap(0, ahead.next_offset, next_base), report)
        elif ahead.next_offset > next_base:
            what = f"it holds {ahead.next_offset - next_base} messages more than offsets"
            report.damage(RepairKind.FOREIGN, path, position, what, offset=next_base)
    finally:
        segment.close()


def _report_gap(
    fs: FileSystem, files: JournalFiles, path: str, position: int, gap: Gap, report: Report
) -> None:
    """Report messages that are missing after a segment's end at `position`: as a note if that is known."""
    what = f"messages {gap.start} to {gap.end - 1} are missing: the next segment begins after them"
    if unknown := unknown_parts(gap, known_gaps(fs, files)):
        lost = sum(part.end - part.start for part in unknown)
        report.damage(RepairKind.LOST, path, position, what, lost, offset=gap.start)
    else:
        what = f"{what}: a repair has left them out"
        report.note(RepairKind.LOST, path, position, what, offset=gap.start)


def _look_at_the_end(
    fs: FileSystem,
    files: JournalFiles,
    segment: JournalSegmentReader,
    ahead: SejAhead,
    size: int,
    report: Report,
) -> None:
    """Look at what is after the last whole record of the segment that is written to."""
    path, end = segment.path, ahead.position
    row = segment.blocks.rows.first_after(end)
    known = segment.blocks.rows.last_end if row is None else row.end
    if row is not None and row.end > segment.size:
        held = journal_codec.count(
            fs.pread(segment.blocks.handle, max(0, end - row.start), row.start)
        ).records
        what = f"the data ends at byte {segment.size}, its checksums go on to {known}"
        if _is_unsynced(fs, files):
            report.torn(RepairKind.UNSYNCED, path, end, what, size=known - end)
        else:
            lost = max(0, row.records - held)
            report.damage(RepairKind.LOST, path, end, what, lost, size=known - end)
    elif end < size and not may_be_open(fs, files.lock):
        left = size - end
        what = f"{left} bytes are not a whole message: the next open cuts them, and keeps a copy"
        if segment.tail == "TORN" or not fs.pread(segment.blocks.handle, left, end).strip(b"\0"):
            report.torn(RepairKind.TORN, path, end, what, size=left)
        else:
            report.damage(RepairKind.CORRUPT, path, end, what, size=left)


def _is_unsynced(fs: FileSystem, files: JournalFiles) -> bool:
    """True if the machine was restarted since diskq wrote here: a part of what it wrote may be missing."""
    return was_restarted(fs, read_holder(fs, files.lock), [files.wal]) is True


def _look_at_the_point(
    files: JournalFiles, base: int, point: RecoveryPoint | None, next_offset: int, report: Report
) -> None:
    if point is not None and next_offset < point.next_offset:
        missing = point.next_offset - next_offset
        what = f"messages {next_offset} to {point.next_offset - 1} were on stable storage, and are gone"
        counted = sum(finding.lost for finding in report.findings)
        lost = max(0, missing - counted)
        report.damage(RepairKind.LOST, files.data(base), None, what, lost, offset=next_offset)


def _look_at_readers(fs: FileSystem, files: JournalFiles, report: Report) -> None:
    for reader in read_journal_offsets(files.path, fs=fs):
        if (repair := reader.repair) is not None:
            size = fs.size_of(repair.path)
            tell = report.torn if size is not None and 0 < size < OFFSET_SIZE else report.damage
            tell(repair.kind, repair.path, 0, repair.reason)


def _report_rest(
    fs: FileSystem, files: JournalFiles, bases: list[int], noted: int | None, report: Report
) -> None:
    if fs.size_of(files.private) is None:
        return
    report_cut_repair(fs, files.path, files.swap, report)
    if not read_points(fs, files).is_readable:
        what = "it cannot be read: the next open looks at everything"
        report.note(RepairKind.CORRUPT, files.points, 0, what)
    if (waiting := read_wal(fs, files.wal)) is not None:
        size = fs.size_of(files.data(waiting.file))
        if size is not None and waiting.position <= size < waiting.end:
            whole = journal_codec.count(waiting.content[size - waiting.position :]).records
            report.messages += whole
            what = f"{whole} messages wait here: the next open writes them"
            report.note(StateKind.WAITING, files.wal, None, what)
    report_missing_start(missing_start(bases, files.checksum_files(), files.data, noted=noted), report)
    for directory in files.data_places():
        for name in sorted(fs.list_directory(directory)):
            if ".bad" in name:
                report_kept_aside(fs, join(directory, name), report)
    left = [*files.leftovers(), *files.orphans(bases)]
    report_leftovers(fs, left, files.lock, report)
