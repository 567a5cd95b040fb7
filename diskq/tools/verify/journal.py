# Verifies a journal. Law: it is opened in memory, and what that repairs is a finding by its kind; then all of
# it is read, as a reader does. A journal that a process may have open is not opened: what is missing at its
# start or at its end is shown by its checksums and its recovery point.

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from diskq._native.core.gate import Gate
from diskq._native.journal import codec as journal_codec
from diskq._native.journal.codec import SejFraming
from diskq._native.journal.read_ahead import SejAhead
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import read_journal_offsets
from diskq.engine.journal.segment_reader import JournalSegmentReader
from diskq.engine.log.recovery_points import checksummed_end, checksums_reach, missing_start, read_points
from diskq.storage.fs import FileSystem
from diskq.storage.log.replay import FromLog
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import RepairKind
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
from diskq.tools.verify.waiting import checksummed_size, report_waiting

__all__ = ["verify_journal"]


def verify_journal(fs: FileSystem, store: Store, report: Report) -> None:
    """Verify a journal. Raises NotFoundError, UnsupportedFormatError, OSError."""
    report.take(settled(partial(_look, fs, JournalFiles(fs, store.path)), report.progress))


def _look(fs: FileSystem, files: JournalFiles, report: Report) -> None:
    with look_at(fs, files.lock, lambda there: Journal(files.path, fs=there)) as look:
        found = found_in_redo_log(look.engine)
        _report_beside(fs, files, found, report)
        _JournalVerification(fs, look, files, found, report).run()


def _count(records: bytes) -> int:
    return journal_codec.count(records).records


class _JournalVerification:
    """One pass through the journal."""

    def __init__(
        self,
        fs: FileSystem,
        look: Look[Journal],
        files: JournalFiles,
        logged: Sequence[FromLog],
        report: Report,
    ) -> None:
        """`fs` and `files` are without what the open has changed; it found `logged` in the redo log."""
        self._logged = logged
        self._below = fs
        self._look = look
        self._fs = look.fs
        self._found = files
        self._files = JournalFiles(look.fs, files.path)
        self._report = report
        self._end = 0
        """The byte after the last whole record of the last segment."""

    def run(self) -> None:
        found, report = self._found, self._report
        first = min([*found.bases(), *found.checksum_files()], default=0)
        # Before the data is read: it may grow.
        bases, reach = checksums_reach(self._fs, self._files)
        points = read_points(self._fs, self._files)
        next_offset = 0
        for number, base in enumerate(bases):
            next_base = bases[number + 1] if number + 1 < len(bases) else None
            next_offset = max(next_offset, self._read(base, next_base))
        engine = self._look.engine
        if engine is not None:
            report.limit_lost(max(0, engine.next_offset - first - report.messages))
            self._read_offsets(engine.next_offset)
            report_repairs(engine.repairs, [found.redo, found.wal], report)
        else:
            report_refusal(self._look.refusal, found.redo, report)
            point = points.partitions.get(0)
            checksummed = checksummed_end(self._fs, self._files, bases, reach)
            promised = max(checksummed, 0 if point is None else point.next_offset)
            if bases:
                report.limit_lost(max(0, max(promised, next_offset) - first - report.messages))
            self._report_missing_end(bases, next_offset, promised)
            noted = None if point is None else point.first
            data, sums = self._files.data, self._files.checksum_files()
            report_missing_start(missing_start(bases, sums, data, noted=noted), report)
            self._read_offsets(None)

    def _report_missing_end(self, bases: list[int], next_offset: int, promised: int) -> None:
        """Report messages up to `promised` that were there, and are in no segment."""
        end = next_offset if bases else min(self._files.checksum_files(), default=0)
        path = self._files.data(bases[-1] if bases else end)
        report_missing_end(end, promised, path, self._end if bases else None, [path], self._report)

    def _read(self, base: int, next_base: int | None) -> int:
        """Read one segment. `next_base`: the offset with which the next one begins; None: it is the last.

        Returns the offset after its last message.
        """
        report, path = self._report, self._files.data(base)
        ahead = SejAhead(self._fs, SejFraming(), Gate())
        try:
            segment = JournalSegmentReader(self._fs, ahead, self._files, base)
        except FileNotFoundError:
            return base  # removed meanwhile
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
            self._end = position
            verified, checksum_file = segment.blocks.verified, self._files.checksum_file(base)
            report.checksummed += checksummed_size(
                verified, self._fs, self._below, self._logged, self._found.staging, base
            )
            report_rotten_entries(self._fs, checksum_file, size - verified, report)
            if next_base is not None and ahead.next_offset < next_base:
                self._report_gap(path, position, Gap(0, ahead.next_offset, next_base))
            elif next_base is not None and ahead.next_offset > next_base:
                what = f"it holds {ahead.next_offset - next_base} messages more than offsets"
                report.damage(RepairKind.FOREIGN, path, position, what, offset=next_base)
        finally:
            segment.close()
        return ahead.next_offset

    def _report_gap(self, path: str, position: int, gap: Gap) -> None:
        """Report messages that are missing after byte `position`: as a note if that is known."""
        what = f"messages {gap.start} to {gap.end - 1} are missing: the next segment begins after them"
        if unknown := unknown_parts(gap, known_gaps(self._fs, self._files)):
            lost = sum(part.end - part.start for part in unknown)
            self._report.damage(RepairKind.LOST, path, position, what, lost, offset=gap.start)
        else:
            what = f"{what}: a repair has left them out"
            self._report.note(RepairKind.LOST, path, position, what, offset=gap.start)

    def _read_offsets(self, next_offset: int | None) -> None:
        is_open = self._look.engine is None and self._look.refusal is None
        with OverlayFS(self._below) as overlay:
            # The first reader after a crash puts into the files what the redo log has.
            there = self._below if is_open else overlay
            readers = read_journal_offsets(self._found.path, fs=there, next_offset=next_offset)
        for reader in readers:
            if reader.repair is not None:
                report_offset(reader.repair, self._report)


def _report_beside(fs: FileSystem, files: JournalFiles, logged: Sequence[FromLog], report: Report) -> None:
    """Report what is beside the segments, as the next open finds it."""
    bases = files.bases()
    if fs.size_of(files.private) is None:
        return
    report_cut_repair(fs, files.path, files.swap, report)
    report_unreadable_points(read_points(fs, files), files.state, report)
    report_waiting(fs, files, logged, [files.staging], _count, report)
    for directory in files.data_places():
        report_kept_aside(fs, directory, report)
    left = [*files.leftovers(), *files.orphans(bases)]
    report_leftovers(fs, left, files.lock, report)
