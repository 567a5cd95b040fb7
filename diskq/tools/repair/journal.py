# Repairs a journal. Law: see log.py. What an open repairs is left to an open.
#
# sej's records hold their offsets, and its scanner stops for good at one that is not the next. So nothing in
# its files can stand for lost messages: a gap between two segments remains, which diskq's readers step over
# and report; a scanner of sej's has to begin after it.

from __future__ import annotations

from diskq._native.core.gate import Gate
from diskq._native.journal.codec import SejFraming
from diskq._native.journal.read_ahead import SejAhead
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import JournalCommittedOffset, read_journal_offsets
from diskq.engine.journal.segment_reader import JournalSegmentReader
from diskq.engine.log.recovery_points import read_points
from diskq.storage.fs import FileSystem
from diskq.storage.lock import Lock
from diskq.storage.repairs import Repair, RepairKind
from diskq.storage.state import with_rest
from diskq.storage.swap import Swap
from diskq.tools.gaps import gaps_as, known_gaps, unknown_parts
from diskq.tools.redo_logs import check_log_empty
from diskq.tools.repair.log import FoundMessages, MessageRun, as_repairs, gaps_between, left_out, read_segment
from diskq.tools.repair.rewriting import copied, sej_blocks, sums

__all__ = ["repair_journal"]


def repair_journal(fs: FileSystem, path: str, *, is_dry: bool) -> list[Repair]:
    """Repair the journal in `fs`; with `is_dry` only as an open does, and the rest is reported.

    Raises LockedError, DiskqError, OSError.
    """
    with Journal(path, fs=fs) as journal:
        repairs = list(journal.repairs)
        next_offset = journal.next_offset
    files = JournalFiles(fs, path)
    check_log_empty(fs, files)
    lock = Lock(fs, files.lock, f"journal {path}", brief=files.redo)
    try:
        swap = Swap(fs, path, files.swap)
        repairs += _JournalRebuild(fs, files, swap, next_offset).run()
        if swap and not is_dry:
            swap.carry_out()
    finally:
        lock.release()
    return repairs + _repair_readers(fs, path)


def _repair_readers(fs: FileSystem, path: str) -> list[Repair]:
    """Set readers' impossible offsets to the nearest possible ones. Raises LockedError, OSError."""
    repairs: list[Repair] = []
    for reader in read_journal_offsets(path, fs=fs):
        if reader.repair is not None:
            with JournalCommittedOffset(path, reader.name, fs=fs) as offset:
                repairs += offset.repairs
    return repairs


class _JournalRebuild:
    """The segments that are to be rewritten."""

    def __init__(self, fs: FileSystem, files: JournalFiles, swap: Swap, next_offset: int) -> None:
        self._fs = fs
        self._files = files
        self._swap = swap
        self._next_offset = next_offset
        self._is_renamed = False  # a segment is to get another name
        self._repairs: list[Repair] = []

    def run(self) -> list[Repair]:
        files = self._files
        bases = files.bases()
        founds = []
        for number, base in enumerate(bases):
            is_last = number == len(bases) - 1
            found = self._look_at(base, self._next_offset if is_last else bases[number + 1])
            founds.append(found)
            if not found.is_whole or not (found.runs or is_last):
                self._write_anew(found, is_last=is_last)
        known = known_gaps(self._fs, files)
        gaps = gaps_between(0, founds, self._next_offset)
        news = [part for gap in gaps for part in unknown_parts(gap, known)]
        if news:
            self._swap.install(files.gaps, gaps_as([*known, *news]))
            if not self._repairs:
                for gap in news:
                    reason = f"messages {gap.start} to {gap.end - 1} are in no segment: noted as gone"
                    lost = gap.end - gap.start
                    self._repairs.append(
                        Repair(
                            path=files.gaps,
                            kind=RepairKind.LOST,
                            kept=0,
                            dropped=0,
                            reason=reason,
                            records=lost,
                        )
                    )
        if self._is_renamed:
            points = read_points(self._fs, files)
            rest = points.with_other_starts(points.partitions).render()
            self._swap.install(files.state, with_rest(self._fs, files, rest))
        return self._repairs

    def _look_at(self, base: int, known_end: int) -> FoundMessages:
        ahead = SejAhead(self._fs, SejFraming(), Gate())
        reader = JournalSegmentReader(self._fs, ahead, self._files, base)
        try:
            return read_segment(reader, ahead, known_end)
        finally:
            reader.close()

    def _write_anew(self, found: FoundMessages, *, is_last: bool) -> None:
        """Make its runs segments; if messages are missing at the end, an empty segment is the last."""
        files, swap = self._files, self._swap
        path = files.data(found.base)
        asides = left_out(swap, path, files.kept(path), found)
        losses = as_repairs(path, found.losses, asides)
        if not losses:
            aside = next(iter(asides.values()), None)
            reason = "it holds other messages than its name and the next segment's say"
            losses = [
                Repair(
                    path=path,
                    kind=RepairKind.REBUILT,
                    kept=0,
                    dropped=sum(piece.end - piece.start for piece in asides),
                    reason=reason,
                    saved_as=aside,
                )
            ]
        self._repairs += losses
        runs = list(found.runs)
        end = runs[-1].end if runs else None
        if is_last and end != self._next_offset:
            runs.append(MessageRun(self._next_offset, self._next_offset, []))
        for number, run in enumerate(runs):
            is_active = is_last and number == len(runs) - 1
            swap.install(files.data(run.first), copied(path, run.pieces) if run.pieces else b"")
            swap.install(
                files.checksum_file(run.first), sums(path, run.pieces, sej_blocks, is_sealed=not is_active)
            )
        if all(run.first != found.base for run in runs):
            swap.remove(path)
            swap.remove(files.checksum_file(found.base))
            self._is_renamed = True
