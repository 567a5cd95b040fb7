# Verifies a queue. Law: only what it would still deliver counts; messages that were received are not looked
# at.
#
# It is opened in memory, and what that repairs is a finding by its kind. Everything that it would deliver is
# then read as a reader does it, block by block. If a process may have it open, the engine's `survey`
# (engine/queue/recovery.py) finds where it would be read and written on.

from __future__ import annotations

from dataclasses import replace
from functools import partial

from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.codec import MAX_BODY, NsqFraming, count
from diskq.engine.queue.ack_log import broken_rows, read_ack_logs
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.files import QueueFiles, QueueMetadata, QueuePosition, is_within
from diskq.engine.queue.recovery import Recovered, count_records
from diskq.engine.queue.snapshot import steady_survey, steady_wal, waiting_after
from diskq.options import QueueOptions
from diskq.storage.block_reader import BlockReader
from diskq.storage.fs import FileSystem, base_name
from diskq.storage.lock import may_be_open
from diskq.storage.repairs import Repair, RepairKind
from diskq.storage.state import read_state
from diskq.tools.findings import Finding, StateKind
from diskq.tools.look import Look, look_at
from diskq.tools.redo_logs import found_in_redo_log
from diskq.tools.report import (
    Report,
    report_cut_repair,
    report_kept_aside,
    report_leftovers,
    report_refusal,
    report_repairs,
    report_rotten_entries,
    settled,
)
from diskq.tools.stores import Store
from diskq.tools.verify.waiting import checksummed_size, report_waiting

__all__ = ["verify_queue"]

_ANY_SIZE = QueueOptions(max_message_size=MAX_BODY)


def verify_queue(fs: FileSystem, store: Store, report: Report) -> None:
    """Verify the store. Raises QueueMovedError, UnsupportedFormatError, OSError."""
    files = QueueFiles(fs, store.path, store.name)
    report.take(settled(partial(_look, fs, files), report.progress))


def _look(fs: FileSystem, files: QueueFiles, report: Report) -> None:
    files.numbers()  # raises now, if there is no directory
    left = read_state(fs, files)
    opened = partial(
        Queue,
        files.directory,
        files.name,
        options=_ANY_SIZE,
        never_empty=left is not None and left.never_empty,
    )
    with look_at(fs, files.lock, lambda there: opened(fs=there)) as look:
        _QueueVerification(fs, look, files, report).run()


class _QueueVerification:
    """One pass through the queue."""

    def __init__(self, fs: FileSystem, look: Look[Queue], files: QueueFiles, report: Report) -> None:
        """`fs` and `files` are without what the open has changed."""
        self._below = fs
        self._logged = found_in_redo_log(look.engine)
        self._found = files
        self._look = look
        self._fs = look.fs
        self._files = QueueFiles(look.fs, files.directory, files.name)
        self._report = report

    def run(self) -> None:
        waiting = steady_wal(self._fs, self._files.wal)
        content = self._found.read_metadata()
        metadata = None if content is None else QueueMetadata.parse(content)
        found = steady_survey(self._fs, self._files)
        if self._look.engine is None:
            for repair in found.repairs:
                self._report_repair(repair, found)
        recorded = QueuePosition(2**63, 0) if metadata is None else metadata.write
        known = behind = uncounted = 0
        for number, size in found.sizes.items():
            if number < found.read.file:
                continue
            if number in found.moved:
                behind += count_records(found.moved[number])
                continue
            start = min(size, found.read.byte if number == found.read.file else 0)
            middle = start
            if number <= recorded.file:
                middle = size if number < recorded.file else max(start, min(size, recorded.byte))
            is_complete = number != found.write.file
            records, losses = self._read(
                number, start, middle, found, is_complete=is_complete and middle == size
            )
            known += records
            uncounted += losses
            if middle < size:
                records, losses = self._read(number, middle, size, found, is_complete=is_complete)
                behind += records
                uncounted += losses
        self._report.messages = known + behind
        self._report_depth(content, metadata, known, uncounted)
        if behind:
            self._report.note(
                StateKind.UNCOUNTED,
                self._files.metadata,
                None,
                f"{behind} messages were written after what it says: the next open counts them",
            )
        if (rest := waiting_after(self._fs, self._files, waiting, found.write)) is not None:
            whole = count_records(rest.content)
            self._report.messages += whole
            what = f"{whole} messages wait here: the next open writes them"
            self._report.note(StateKind.WAITING, self._files.wal, None, what)
        self._report_tails(found)
        self._report_opening(found)
        self._report_acks(found)
        self._report_leftovers(found)

    # --- records ----------------------------------------------------------------------------------

    def _read(
        self, number: int, start: int, end: int, found: Recovered, *, is_complete: bool
    ) -> tuple[int, int]:
        """Read bytes start:end of a file. Returns the messages, and the losses that nothing has counted."""
        path = self._files.data(number)
        sums = None if number in found.unchecked else self._files.checksum_file(number)
        any_size = NsqFraming(0, MAX_BODY)
        ahead = ReadAhead(self._fs, any_size, Gate(), any_size)
        try:
            reader = BlockReader(self._fs, ahead, path, sums, start)
        except FileNotFoundError:
            if not self._is_consumed(number):
                self._report.damage(RepairKind.LOST, path, None, "the file was removed while it was read")
            return 0, 0
        records = uncounted = 0
        try:
            position = start
            while position < end:
                loss = reader.fill(end)
                if loss is not None:
                    self._report.damage(
                        loss.kind,
                        path,
                        loss.start,
                        f"bytes {loss.start} to {loss.end}: {loss.reason}",
                        loss.records or 0,
                        size=loss.end - loss.start,
                    )
                    uncounted += loss.records is None
                records += ahead.count()
                self._report.saw(min(ahead.position, end) - position)
                position = ahead.position
            if is_complete and (loss := reader.missing(end)) is not None:
                self._report.damage(loss.kind, path, loss.start, loss.reason, loss.records or 0)
            self._report.checksummed += max(
                0,
                checksummed_size(
                    start + reader.verified, self._fs, self._below, self._logged, self._found.staging, number
                )
                - start,
            )
            if sums is not None and is_complete:
                report_rotten_entries(self._fs, sums, end - start - reader.verified, self._report)
        finally:
            reader.close()
        return records, uncounted

    def _is_consumed(self, number: int) -> bool:
        """True if its messages were consumed meanwhile."""
        content = self._files.read_metadata()
        metadata = None if content is None else QueueMetadata.parse(content)
        return metadata is not None and number < metadata.read.file

    # --- the metadata -----------------------------------------------------------------------------

    def _report_repair(self, repair: Repair, found: Recovered) -> None:
        numbers = {self._files.data(number): number for number in self._files.numbers()}
        number = numbers.get(repair.path)
        if number is not None and number < found.read.file and repair.records == 0:
            self._report.note(repair.kind, repair.path, None, repair.reason)
        elif number is None and repair.kind in (RepairKind.TORN, RepairKind.REBUILT):  # the metadata
            self._report.torn(repair.kind, repair.path, repair.kept, repair.reason)
        else:
            self._report.damage(repair.kind, repair.path, repair.kept, repair.reason, repair.records or 0)

    def _report_depth(
        self, content: bytes | None, metadata: QueueMetadata | None, known: int, uncounted: int
    ) -> None:
        """Compare the count in the metadata with the messages found, unless it was written meanwhile."""
        if metadata is None or self._found.read_metadata() != content:
            return
        lost = sum(finding.lost for finding in self._report.findings)
        counted = sum(finding.lost for finding in self._report.findings if self._counts(metadata, finding))
        missing = metadata.depth - known - counted
        if missing > 0 and uncounted == 1:
            findings = self._report.findings
            at = next(i for i, each in enumerate(findings) if each.severity == "damage" and not each.lost)
            findings[at] = replace(findings[at], lost=missing)
        elif missing and not uncounted and not lost:
            what = f"it counts {metadata.depth} messages, and {known} are there"
            self._report.note(StateKind.UNCOUNTED, self._files.metadata, 0, what)

    def _counts(self, metadata: QueueMetadata, finding: Finding) -> bool:
        """True if the metadata counts the messages that are lost there."""
        number = self._files.naming.parse(base_name(finding.path))
        return number is None or not is_within(QueuePosition(number, finding.at or 0), metadata.uncounted)

    def _report_opening(self, found: Recovered) -> None:
        """Report what the open has repaired, and what it found in the logs."""
        files, engine = self._found, self._look.engine
        if engine is None:
            report_refusal(self._look.refusal, files.redo, self._report)
            return
        report_waiting(self._below, files, self._logged, [files.staging], count_records, self._report)
        report_repairs(engine.repairs, [files.redo, files.wal], self._report)

    # --- tails, acknowledgements, leftovers -------------------------------------------------------

    def _report_tails(self, found: Recovered) -> None:
        """Report what is after the last whole record; the survey ignores it."""
        troubles = {(each.path, each.at) for each in self._report.findings if each.severity == "damage"}
        for number in self._files.numbers():
            if number < found.read.file:
                continue
            path = self._files.data(number)
            size, end = self._fs.size_of(path) or 0, found.sizes.get(number, 0)
            if size > end and (path, end) not in troubles and not self._is_being_written():
                left = size - end
                what = f"{left} bytes are not a whole message: the next open cuts them, and keeps a copy"
                self._report.torn(RepairKind.TORN, path, end, what, size=left)

    def _is_being_written(self) -> bool:
        return may_be_open(self._fs, self._files.lock)

    def _report_acks(self, found: Recovered) -> None:
        if self._below.size_of(self._found.private) is None:
            return
        acked = read_ack_logs(self._below, self._found).acked
        for file, ranges in acked.items():
            for start, end in ranges:
                begin = max(start, found.read.byte) if file == found.read.file else start
                limit = found.sizes.get(file, 0)
                if file < found.read.file or begin >= end or end > limit:
                    continue
                self._subtract(file, begin, end)
        for number in self._found.ack_logs():
            path = self._found.ack_log(number)
            if broken := broken_rows(self._below, path):
                what = f"{len(broken)} of its rows are torn or rotten: their acknowledgements are lost"
                self._report.note(RepairKind.CORRUPT, path, broken[0], what)

    def _subtract(self, file: int, start: int, end: int) -> None:
        """Subtract acknowledged messages, which are not delivered."""
        path = self._files.data(file)
        try:
            handle = self._fs.open(path)
        except FileNotFoundError:
            return
        try:
            found = count(self._fs.pread(handle, end - start, start))
        finally:
            self._fs.close(handle)
        if found.valid_end != end - start:
            what = f"bytes {start} to {end} are acknowledged, and are not whole messages"
            self._report.damage(RepairKind.CORRUPT, path, start, what, size=end - start)
        self._report.messages -= found.records

    def _report_leftovers(self, found: Recovered) -> None:
        fs, files, report = self._below, self._found, self._report
        report_cut_repair(fs, files.directory, files.swap, report)
        if fs.size_of(files.private) is not None:
            missing = range(found.read.file, found.write.file)
            report_leftovers(fs, files.leftovers(files.numbers(), missing), files.lock, report)
        report_kept_aside(fs, files.directory, report, files.naming.prefix)
