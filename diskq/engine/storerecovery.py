# Opening a store after whatever happened to it. Law: opening never refuses because of a crash, never
# loses what was acknowledged as synced, never brings an acknowledged record back, and tells what it did.
# It refuses where a command is missing that was complete and durable: to go on would be to invent a state.
#
# Which it is, the point under `.diskq/` says: segments before it were on the platter, all of them. From it
# on, what is torn or missing is what a power cut left, and what was begun behind that is no part of the
# log. Where there is no point, because TaskFlux wrote, only the end of the last segment can be torn.

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NoReturn

from diskq._native.taskflux import END_MARKER
from diskq.engine.commandlog import (
    BadCommand,
    SegmentScan,
    is_ended,
    last_byte,
    read_segment,
    records_behind,
)
from diskq.engine.storedqueue import State, StoredQueue, UnknownImplementation
from diskq.engine.storesnapshot import BadSnapshot, load_state, read_head
from diskq.engine.taskfluxfiles import Point, StoreFiles
from diskq.errors import CorruptionError, DamagedStoreError, UnsupportedFormatError
from diskq.storage.barrier import Debts, write_all
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, base_name
from diskq.storage.recovery import Repair, cut_tail, rewrite
from diskq.storage.segments import free_aside, private_path

__all__ = ["Found", "recover_store"]

TORN = "torn at the end"
STALE = "stale bytes behind the end marker"
BEHIND = "behind the end of the log"


@dataclass(slots=True)
class Found:
    """A store as it is found, and mended."""

    queues: dict[str, StoredQueue] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)
    """Its segments, ascending. The last one is written to."""
    end: int = 0
    records: int = 0
    """In the last segment."""
    handle: int = -1
    """Of that segment; -1: it has to be begun."""
    snapshot_lsn: int = -1
    is_snapshot_damaged: bool = False
    term: int = 0
    """Of the last record."""
    is_narrow: bool | None = None
    """Terms have 4 bytes in the newest file that has one; None: there is none."""
    warnings: Counter[str] = field(default_factory=Counter)
    repairs: list[Repair] = field(default_factory=list)


def recover_store(
    fs: FileSystem,
    files: StoreFiles,
    point: Point | None,
    debts: Debts,
    *,
    strict: bool,
    repairs_damage: bool = False,
    until: int | None = None,
) -> Found:
    """Read the store, mend what needs it, and owe it to the first barrier.

    Raises DamagedStoreError and UnsupportedFormatError where no crash can have left what is there,
    CorruptionError if `strict` and something had to be cut, and OSError. `repairs_damage`: what would be
    refused as damaged is cut like a torn tail, and all behind it set aside. With `until` the queues are as
    the command with this number left them, where the snapshot does not cover more: that is for a look.
    """
    recovery = _Recovery(fs, files, point, debts, strict, repairs_damage, until)
    try:
        return recovery.run()
    except BaseException:
        recovery.let_go()
        raise


class _Recovery:
    def __init__(
        self,
        fs: FileSystem,
        files: StoreFiles,
        point: Point | None,
        debts: Debts,
        strict: bool,
        repairs_damage: bool,
        until: int | None,
    ) -> None:
        self.fs = fs
        self.files = files
        self.point = point
        self.debts = debts
        self.strict = strict
        self.repairs_damage = repairs_damage
        self.until = until
        self.found = Found()
        self.state = State()
        self.next_lsn = 0
        self.next_applied = 0

    def run(self) -> Found:
        found = self.found
        bases = self.files.segments()
        found.warnings = self.state.warnings
        self._read_snapshot(bases)
        self.next_applied = found.snapshot_lsn + 1
        needed = self._needed(bases)
        self.debts.removals += map(self.files.segment, bases[: len(bases) - len(needed)])
        self.next_lsn = needed[0] if needed else found.snapshot_lsn + 1
        for number, base in enumerate(needed):
            if base != self.next_lsn:
                self._judge_gap(needed, number)
                break
            if self._read(base, is_last=number == len(needed) - 1):
                found.bases.append(base)
                continue
            found.bases.append(base)
            self._drop(needed[number + 1 :])
            break
        if self.next_lsn <= found.snapshot_lsn:
            self._restart()
        elif not found.bases:
            found.bases = [self.next_lsn]
        found.queues = self.state.finish()
        return found

    def let_go(self) -> None:
        """Close what was opened: the store is not."""
        if self.found.handle >= 0:
            handle, self.found.handle = self.found.handle, -1
            self.fs.close(handle)

    def _refuse(self, path: str, position: int, reason: str, kind: str, lsn: int | None = None) -> NoReturn:
        raise DamagedStoreError(path, position, reason, kind=kind, root=self.files.root, lsn=lsn)

    def _report(self, repair: Repair) -> None:
        self.found.repairs.append(repair)

    def _ask(self, path: str, position: int, reason: str) -> None:
        """May something be cut?"""
        if self.strict:
            raise CorruptionError(path, position, reason)

    # --- the snapshot -----------------------------------------------------------------------------

    def _read_snapshot(self, bases: list[int]) -> None:
        path = self.files.snapshot
        try:
            handle = self.fs.open(path)
        except FileNotFoundError:
            self._begin_with_default()
            return
        try:
            read = read_head(self.fs, handle)
            if read is None:
                self._begin_with_default()
                return
            head, has_more = read
            load_state(self.fs, handle, head, self.state)
            self.found.snapshot_lsn, self.found.term = head.lsn, head.term
            self.found.is_narrow = head.is_document
            self._warn("snapshot_trailing_bytes", has_more)
            self._warn("document_layout", head.is_document)
        except UnknownImplementation as unknown:
            found = f"queue implementation {unknown.args[0]}"
            raise UnsupportedFormatError(path, found, "1 (H4) and 2 (QA)") from None
        except BadSnapshot as bad:
            if bases[:1] == [0]:
                # The log is there from the first record on: nothing is lost.
                self._warn("snapshot_ignored")
                self.found.is_snapshot_damaged = True
            elif self.repairs_damage:
                self._set_aside(path, private_path(self.files.root, base_name(path)), bad.args[1])
            else:
                self._refuse(path, bad.args[0], bad.args[1], "corrupt_snapshot")
            self.found.snapshot_lsn = -1
            self.state = State()
            self.state.warnings = self.found.warnings
            self._begin_with_default()
        finally:
            self.fs.close(handle)

    def _begin_with_default(self) -> None:
        self.state.add_queue(b"", 0, None, None, None)

    def _warn(self, name: str, is_so: bool = True) -> None:
        if is_so:
            self.found.warnings[name] = max(1, self.found.warnings[name])

    # --- the log ----------------------------------------------------------------------------------

    def _needed(self, bases: list[int]) -> list[int]:
        """The segments from the one on that holds the first record that the snapshot does not cover."""
        first = self.found.snapshot_lsn + 1
        before = [number for number, base in enumerate(bases) if base <= first]
        if bases and not before and self._may_be_unsynced(first):
            self._drop(bases)
            bases.clear()
        elif bases and not before:
            kind = "missing_records" if self.found.snapshot_lsn >= 0 else "missing_snapshot"
            reason = f"the log begins with record {bases[0]}, and record {first} is nowhere"
            self._refuse(self.files.segment(bases[0]), 0, reason, kind, first)
        return bases[before[-1] :] if before else []

    def _may_be_unsynced(self, lsn: int) -> bool:
        """May a power cut have taken this record, or the segment that begins with it?"""
        if self.repairs_damage:
            return True
        return self.point is not None and lsn >= self.point.base

    def _judge_gap(self, needed: list[int], number: int) -> None:
        """The segment does not go on where the one before it ends."""
        # What the snapshot covers may be missing: a removed segment's name can come back without the next.
        missing = max(self.next_lsn, self.found.snapshot_lsn + 1)
        if not self._may_be_unsynced(missing):
            reason = f"record {self.next_lsn} should be the first, behind the segment before it"
            self._refuse(self.files.segment(needed[number]), 0, reason, "missing_records", self.next_lsn)
        self._drop(needed[number:])
        self._open_again(self.found.bases[-1])

    def _read(self, base: int, *, is_last: bool) -> bool:
        """Carry out a segment's commands. True: the next segment goes on behind it, if there is one."""
        found, path = self.found, self.files.segment(base)
        handle = self.fs.open(path, write=True)
        try:
            skip = max(0, found.snapshot_lsn + 1 - base)
            try:
                bears_bad = self.repairs_damage
                scanned = read_segment(self.fs, handle, self._apply, skip, bears_bad=bears_bad)
            except BadCommand as bad:
                position, record, kind, reason = bad.args
                if kind == "unknown_implementation":
                    raise UnsupportedFormatError(path, reason, "1 (H4) and 2 (QA)") from None
                self._refuse(path, position, reason, kind, base + record)
                raise
            self.next_lsn = base + scanned.records
            is_ours = self._may_be_unsynced(base)
            is_torn = (scanned.is_torn and is_ours) or (scanned.is_alien and self.repairs_damage)
            if (scanned.is_alien or scanned.version is not None) and not is_torn:
                self._refuse_head(path, scanned, base)
            scanned.is_torn = is_torn
            is_begun = not (scanned.is_blank or is_torn)
            self._note(scanned)
            if is_last or not is_begun or scanned.trouble is not None:
                if not (is_last or is_ours):
                    reason = scanned.trouble or "the segment is blank, and not the last one"
                    self._refuse(path, scanned.end, reason, "corrupt_log", self.next_lsn)
                last, handle = handle, -1
                self._become_last(base, last, scanned)
                return False
            if is_ours:
                self._sync_again(handle, scanned)
                self.debts.closing.append(handle)
                handle = -1
            return True
        finally:
            if handle >= 0:
                self.fs.close(handle)

    def _apply(self, commands: list[tuple[Any, ...]]) -> int:
        """Carry them out; but what comes behind `until` is passed over."""
        wanted = commands if self.until is None else commands[: max(0, self.until + 1 - self.next_applied)]
        self.next_applied += len(commands)
        done = self.state.apply(wanted)
        return done if done < len(wanted) else len(commands)

    def _sync_again(self, handle: int, scanned: SegmentScan) -> None:
        # After a failed sync the kernel holds the bytes for clean.
        rewrite(self.fs, handle, 0, scanned.end)
        self._end(handle, scanned)

    def _end(self, handle: int, scanned: SegmentScan) -> None:
        """TaskFlux takes a part of an end marker for damage."""
        if not is_ended(self.fs, handle, scanned):
            zeros = bytes(scanned.ending - scanned.end)
            write_all(self.fs, handle, zeros + END_MARKER, scanned.end)
        self.debts.files.append(handle)

    def _refuse_head(self, path: str, scanned: SegmentScan, base: int) -> None:
        if scanned.version is not None:
            raise UnsupportedFormatError(path, f"version {scanned.version}", "version 1")
        self._refuse(path, 0, "no segment's head", "corrupt_log", base)

    def _is_closed(self, base: int, scanned: SegmentScan) -> bool:
        """Was the log left like this, with everything on the platter?"""
        point = self.point
        return point is not None and (point.base, point.closed) == (base, scanned.ending)

    def _note(self, scanned: SegmentScan) -> None:
        if scanned.records:
            self.found.term = scanned.term
            self.found.is_narrow = scanned.is_narrow
        self._warn("document_layout", scanned.is_document)
        self.found.warnings["delta_trailing_bytes"] += scanned.trailing

    def _become_last(self, base: int, handle: int, scanned: SegmentScan) -> None:
        """Go on writing in this segment, behind its last whole record. The handle is the store's now."""
        found, fs, path = self.found, self.fs, self.files.segment(base)
        found.handle = handle
        if scanned.is_blank or scanned.is_torn:
            if scanned.size:
                self._warn("segment_reinitialised")
                self._empty(handle, path, base, scanned)
            self.let_go()
            return
        found.end, found.records = scanned.ending, scanned.records
        if scanned.trouble is not None:
            self._warn("tail_truncated")
            self._warn("valid_records_dropped", records_behind(fs, handle, scanned.end))
            self._ask(path, scanned.end, scanned.trouble)
            self._cut(handle, path, base, scanned.end, f"{TORN}: {scanned.trouble}")
        elif last_byte(fs, handle, scanned.end) is not None:
            self._cut(handle, path, base, scanned.end, STALE)
        if self._may_be_unsynced(base) and not self._is_closed(base, scanned):
            self._sync_again(handle, scanned)
        else:
            self._end(handle, scanned)

    def _empty(self, handle: int, path: str, base: int, scanned: SegmentScan) -> None:
        """Its head was not written: it will be begun again."""
        reason = "its head was not written"
        self._ask(path, 0, reason)
        if scanned.is_torn:
            self._cut(handle, path, base, 0, reason)
        else:
            self._report(Repair(path=path, kept=0, dropped=scanned.size, reason=reason))

    def _cut(self, handle: int, path: str, base: int, end: int, reason: str) -> None:
        """Shorten the file, keep what it loses, and end it."""
        fs = self.fs
        last = last_byte(fs, handle, end)
        if last is None:
            return  # looked at from beside: whoever has the store took it back in this moment
        fs.truncate(handle, last + 1)  # zeros that were written ahead are nothing to keep
        try:
            repair = cut_tail(fs, handle, path, end, reason, None, beside=self.files.aside(base))
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS or records_behind(fs, handle, end):
                raise
            # No room for a copy of what is no record: opening must not fail for that.
            fs.truncate(handle, end)
            repair = Repair(path=path, kept=end, dropped=last + 1 - end, reason=reason, records=None)
        self._report(repair)

    def _open_again(self, base: int) -> None:
        """The segment that was read last, whole, is the one to go on in after all."""
        handle = self.fs.open(self.files.segment(base), write=True)
        self._become_last(base, handle, read_segment(self.fs, handle))

    def _drop(self, bases: list[int]) -> None:
        """Segments behind the end of the log: they are there without what was before them."""
        for base in bases:
            self._warn("segments_dropped")
            self._set_aside(self.files.segment(base), self.files.aside(base), BEHIND)

    def _set_aside(self, path: str, beside: str, reason: str) -> None:
        """Keep the whole file under another name."""
        self._ask(path, 0, reason)
        size = self.fs.size_of(path) or 0
        aside = free_aside(self.fs, beside)
        self.debts.asides.append((path, aside))
        self._report(Repair(path=path, kept=0, dropped=size, reason=reason, records=None, saved_as=aside))

    def _restart(self) -> None:
        """The log ends before the snapshot does: it goes on behind that, in a segment of its own."""
        found = self.found
        # Not where it only came back: a removal that no power cut has to keep.
        is_told = self.point is not None and found.bases[-1] < self.point.base
        self._warn("log_behind_snapshot", not is_told)
        self.let_go()
        self.debts.files[:] = []
        self.debts.removals += map(self.files.segment, found.bases)
        found.bases = [found.snapshot_lsn + 1]
        found.end = found.records = 0
        self.next_lsn = found.bases[0]
