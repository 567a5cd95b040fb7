# Recovery of a priority store. Law: opening never refuses because of a crash, never loses messages that were
# acknowledged as synced, never brings an acknowledged record back, and reports what it did. It refuses if a
# command is missing that was complete and durable: to continue would be to invent a state.
#
# The recovery point under `.diskq/` decides which: all segments before it were on stable storage. From it on,
# torn or missing bytes are what a power cut left (log/recovery.py), and segments that were begun after them
# are not part of the log. Without a point, because TaskFlux wrote, only the end of the last segment can be
# torn.
#
# Damage before the point is skipped, and the commands after it are carried out: `State.doubt` says what they
# may still do. The state is then written as a snapshot, and the log continues after it, so that TaskFlux
# reads the same; the damaged segments are kept aside.

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

from diskq._native.priority.codec import END_MARKER, FILE_HEAD, scan
from diskq.engine.log.recovery import OpenRepairs, Trust
from diskq.engine.priority.command_log import (
    BadCommand,
    SegmentScan,
    has_records_after,
    is_ended,
    read_segment,
)
from diskq.engine.priority.files import StoreFiles, StorePoint
from diskq.engine.priority.salvage import DamagedStretch, pass_over
from diskq.engine.priority.snapshot import BadSnapshot, load_snapshot
from diskq.engine.priority.state import State, StoredQueue, UnknownImplementation
from diskq.errors import DamagedStoreError, UnsupportedFormatError
from diskq.storage.barrier import Barrier, PendingSyncs, write_all
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, base_name
from diskq.storage.numbered_files import free_aside, private_path
from diskq.storage.repairs import Repair, RepairKind, last_byte

__all__ = ["FoundStore", "recover_store"]


@dataclass(slots=True)
class FoundStore:
    """A store as it was found, and repaired."""

    queues: dict[str, StoredQueue] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)
    """Its segments, ascending. The last one is written to."""
    end: int = 0
    records: int = 0
    """The number of records in the last segment."""
    handle: int = -1
    """The handle of that segment; -1 if it has to be begun."""
    snapshot_lsn: int = -1
    is_snapshot_damaged: bool = False
    has_passed_damage: bool = False
    """True if damage was skipped: a snapshot has to be written, and `old` executed, before anything else."""
    old: Barrier = field(default_factory=Barrier)
    """Sets the damaged segments aside, and removes the others: a new segment may get one of their names."""
    term: int = 0
    """The term of the last record."""
    is_narrow: bool | None = None
    """True if terms have 4 bytes in the newest file that has one; None if there is no term."""
    warnings: Counter[str] = field(default_factory=Counter)
    repairs: list[Repair] = field(default_factory=list)


def recover_store(
    fs: FileSystem,
    files: StoreFiles,
    point: StorePoint | None,
    pending_syncs: PendingSyncs,
    *,
    strict: bool,
    trust: Trust,
    newest: int = -1,
    repairs_damage: bool = False,
    until: int | None = None,
) -> FoundStore:
    """Read and repair the store, and leave the syncs to the first barrier.

    Raises DamagedStoreError and UnsupportedFormatError if no crash can have left what is there,
    CorruptionError if `strict` and something had to be cut, and OSError. `newest` is the segment that was
    written to last, if it must exist: no power cut can have taken it. `repairs_damage`: damage that would be
    refused is cut like a torn tail, and all after it set aside. With `until` the queues are as the command
    with this number left them, if the snapshot does not cover more: for views.
    """
    recovery = _StoreRecovery(
        fs=fs,
        files=files,
        point=point,
        pending_syncs=pending_syncs,
        acts=OpenRepairs(fs, pending_syncs, strict=strict),
        trust=trust,
        newest=newest,
        repairs_damage=repairs_damage,
        until=until,
    )
    try:
        return recovery.run()
    except BaseException:
        recovery.let_go()
        raise


class _Fault(NamedTuple):
    """What is wrong where the log ends, and how many messages are lost with it; None: unknown."""

    kind: RepairKind
    reason: str
    lost: int | None


@dataclass(slots=True, kw_only=True)
class _StoreRecovery:
    fs: FileSystem
    files: StoreFiles
    point: StorePoint | None
    pending_syncs: PendingSyncs
    acts: OpenRepairs
    trust: Trust
    newest: int
    repairs_damage: bool
    until: int | None
    found: FoundStore = field(default_factory=FoundStore)
    kept: list[tuple[str, str]] = field(default_factory=list)  # damaged segments, and their names to be
    state: State = field(default_factory=State)
    next_lsn: int = 0
    next_applied: int = 0

    def run(self) -> FoundStore:
        found = self.found
        found.repairs = self.acts.made
        bases = self.files.segments()
        found.warnings = self.state.warnings
        self._read_snapshot(bases)
        self.next_applied = found.snapshot_lsn + 1
        needed = self._needed(bases)
        self.pending_syncs.removals += map(self.files.segment, bases[: len(bases) - len(needed)])
        self.next_lsn = needed[0] if needed else found.snapshot_lsn + 1
        for number, base in enumerate(needed):
            if base != self.next_lsn:
                self._judge_gap(needed, number)
                break
            found.bases.append(base)
            if not self._read(base, needed[number + 1] if number + 1 < len(needed) else None):
                self._drop(needed[number + 1 :], self.next_lsn)
                break
        self._report_missing_last(needed, bases)
        self._report_missing_newest()
        if found.has_passed_damage:
            self._begin_anew(needed)
        elif self.next_lsn <= found.snapshot_lsn:
            self._restart()
        elif not found.bases:
            found.bases = [self.next_lsn]
        found.queues = self.state.finish()
        if self.until is None:
            self._count_lost()
        return found

    def let_go(self) -> None:
        """Close the handle, if the store is not opened."""
        if self.found.handle >= 0:
            handle, self.found.handle = self.found.handle, -1
            self.fs.close(handle)

    def _refuse(self, path: str, position: int, reason: str, kind: str, lsn: int | None = None) -> NoReturn:
        raise DamagedStoreError(path, position, reason, kind=kind, root=self.files.root, lsn=lsn)

    # --- the snapshot -----------------------------------------------------------------------------

    def _read_snapshot(self, bases: list[int]) -> None:
        path = self.files.snapshot
        try:
            read = load_snapshot(self.fs, path, self.state)
            if read is None:
                self._begin_with_default()
                return
            head, has_more = read
            self.found.snapshot_lsn, self.found.term = head.lsn, head.term
            self.found.is_narrow = head.is_document
            self._warn("snapshot_trailing_bytes", has_more)
            self._warn("document_layout", head.is_document)
        except UnknownImplementation as unknown:
            found = f"queue implementation {unknown.args[0]}"
            raise UnsupportedFormatError(path, found, "1 (H4) and 2 (QA)") from None
        except BadSnapshot as bad:
            if bases[:1] == [0]:
                # The log begins with the first record: nothing is lost.
                self._warn("snapshot_ignored")
                self.found.is_snapshot_damaged = True
            elif self.repairs_damage:
                aside_base = private_path(self.files.root, base_name(path))
                self._set_aside(path, aside_base, RepairKind.CORRUPT, bad.args[1])
            else:
                self._refuse(path, bad.args[0], bad.args[1], "corrupt_snapshot")
            self.found.snapshot_lsn = -1
            self.state = State()
            self.state.warnings = self.found.warnings
            self._begin_with_default()

    def _begin_with_default(self) -> None:
        self.state.add_queue(b"", 0, None, None, None)

    def _warn(self, name: str, is_so: bool = True) -> None:
        if is_so:
            self.found.warnings[name] = max(1, self.found.warnings[name])

    # --- the log ----------------------------------------------------------------------------------

    def _needed(self, bases: list[int]) -> list[int]:
        """Return the segments from the one with the first record that the snapshot does not cover."""
        first = self.found.snapshot_lsn + 1
        before = [number for number, base in enumerate(bases) if base <= first]
        if bases and not before and self._may_be_unsynced(first):
            self._drop(bases, first)
            bases.clear()
        elif bases and not before:
            kind = "missing_records" if self.found.snapshot_lsn >= 0 else "missing_snapshot"
            reason = f"the log begins with record {bases[0]}, and record {first} is missing"
            self._refuse(self.files.segment(bases[0]), 0, reason, kind, first)
        return bases[before[-1] :] if before else []

    def _may_be_unsynced(self, lsn: int) -> bool:
        """True if a power cut may have taken this record, or the segment that begins with it."""
        if self.repairs_damage:
            return True
        return self.point is not None and lsn >= self.point.base

    @property
    def _is_unsynced(self) -> bool:
        """True if what ends the log at or after the recovery point is missing because it was not synced."""
        return not self.repairs_damage and self.trust is not Trust.KILLED

    def _judge_gap(self, needed: list[int], number: int) -> None:
        """Decide on a segment that does not continue where the one before it ends."""
        # What the snapshot covers may be missing: a removed segment's name can come back without the next.
        missing = max(self.next_lsn, self.found.snapshot_lsn + 1)
        if not self._may_be_unsynced(missing):
            reason = f"record {self.next_lsn} should be the first, after the segment before it"
            self._refuse(self.files.segment(needed[number]), 0, reason, "missing_records", self.next_lsn)
        self._drop(needed[number:], missing)
        self._open_again(self.found.bases[-1])

    def _read(self, base: int, following: int | None) -> bool:
        """Carry out a segment's commands. True if the next segment, if there is one, continues it."""
        found, path = self.found, self.files.segment(base)
        is_last = following is None
        with ExitStack() as stack:
            handle = self.fs.open(path, write=True)
            stack.callback(self.fs.close, handle)
            skip = max(0, found.snapshot_lsn + 1 - base)
            try:
                allows_bad = self.repairs_damage
                scanned = read_segment(self.fs, handle, self._apply, skip, allows_bad=allows_bad)
            except BadCommand as bad:
                position, record, kind, reason = bad.args
                if kind == "unknown_implementation":
                    raise UnsupportedFormatError(path, reason, "1 (H4) and 2 (QA)") from None
                self._refuse(path, position, reason, kind, base + record)
                raise
            self.next_lsn = base + scanned.records
            if self._is_damaged(handle, base, following, scanned):
                self._pass_over(handle, base, following, scanned, skip)
                return not is_last
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
                stack.pop_all()
                self._become_last(base, handle, scanned, is_last=is_last)
                return False
            if is_ours:
                self._sync_again(handle, scanned)
                self.pending_syncs.closing.append(handle)
                stack.pop_all()
            return True

    # --- damage that is skipped -------------------------------------------------------------------

    def _expected(self, base: int, following: int | None) -> int | None:
        """Return the number after the segment's last command; None if it is unknown."""
        if following is not None:
            return following
        return self.point.next_lsn if self.point is not None and self.point.base == base else None

    def _is_damaged(self, handle: int, base: int, following: int | None, scanned: SegmentScan) -> bool:
        """True if the segment has a fault before the recovery point that no crash can have left."""
        point = self.point
        if point is None or base > point.base or scanned.version is not None or scanned.is_bad:
            return False
        is_headless = scanned.is_headless
        if base < point.base:
            # Records that the snapshot covers may be missing; so may those that a power cut has taken.
            missing = max(base + scanned.records, self.found.snapshot_lsn + 1)
            is_short = following is not None and missing < min(following, point.base)
            return is_headless or scanned.trouble is not None or is_short
        if point.closed is not None:
            return (0 if is_headless else scanned.ending) < point.closed
        # The store was not closed. If the machine ran on, whole records after damage were written after it;
        # and the segment's head was durable before the point.
        if is_headless:
            return self.trust is Trust.KILLED and following is None
        # A kill may leave a part of a write, but no end without its marker: both are written at once.
        is_cut = scanned.trouble is None and scanned.size < scanned.ending + len(END_MARKER)
        return self.trust is Trust.KILLED and (is_cut or has_records_after(self.fs, handle, scanned.end))

    def _pass_over(
        self, handle: int, base: int, following: int | None, scanned: SegmentScan, skip: int
    ) -> None:
        """Carry out the whole commands after the damage at the end of the scanned bytes."""
        path = self.files.segment(base)
        at = scanned.end
        self.acts.check(path, 0 if scanned.is_headless else at, scanned.trouble or "the segment ends early")
        data = self.fs.pread(handle, self.fs.size(handle), 0)
        aside = self._keep_aside(base)
        if scanned.is_headless:
            at = len(FILE_HEAD)
            if data and data[:at] != FILE_HEAD:
                self.found.repairs.append(
                    Repair.of_bytes(
                        path, RepairKind.CORRUPT, 0, min(at, len(data)), "no segment's head", 0, aside
                    )
                )
        reported = len(self.found.repairs)
        read, at = self._read_past_damage(path, data, at, self._log_end(data, following), aside)
        self._carry_out(read, base, following, scanned, skip)
        expected = self._expected(base, following)
        loss = self._unreported_loss(
            expected,
            is_in_stretch=any(isinstance(each, DamagedStretch) for each in read),
            is_reported=len(self.found.repairs) > reported,
            is_headless=scanned.is_headless,
        )
        if loss is not None:
            end = min(at, len(data))
            self.found.repairs.append(Repair.of_bytes(path, RepairKind.LOST, end, end, *loss, aside))
        if expected is not None and self.next_lsn < expected:
            self.state.doubt()
            self.next_lsn = expected
        self.found.has_passed_damage = True

    def _log_end(self, data: bytes, following: int | None) -> int:
        """Return the byte at which the log ends in the damaged segment's `data`."""
        end, point = len(data), self.point
        if following is None and point is not None and point.closed is not None:
            end = max(min(end, point.closed), min(end, len(data.rstrip(b"\0"))))
        return end

    def _read_past_damage(
        self, path: str, data: bytes, at: int, end: int, aside: str | None
    ) -> tuple[list[DamagedStretch | tuple[Any, ...]], int]:
        """Return the commands and damaged stretches from byte `at` to `end`, and the byte that was reached.

        Each stretch is reported as a repair. Raises DamagedStoreError for an unknown command.
        """
        read: list[DamagedStretch | tuple[Any, ...]] = []
        while at < end:
            scanned = scan(memoryview(data)[at:], len(data) - at)
            read += scanned.commands
            at += scanned.end
            if scanned.stop in ("UNKNOWN", "BAD"):
                self._refuse(path, at, "an unknown command", "unknown_delta")
            if at >= end or (scanned.stop == "END" and not data[at:end].strip(b"\0")):
                break
            stretch = pass_over(data, at, end)
            is_known = all(not isinstance(each, DamagedStretch) or each.records == 1 for each in read)
            which = f"command {self.next_lsn + len(read)}" if is_known else "a command"
            lost: int | None
            if stretch.record:
                read += scan(stretch.record).commands
                reason, lost = "its record's head", 0
            else:
                read.append(stretch)
                reason, lost = scanned.stop, None if stretch.has_added else 0
            self.found.repairs.append(
                Repair.of_bytes(path, RepairKind.CORRUPT, at, stretch.end, f"{which}: {reason}", lost, aside)
            )
            at = stretch.end
        return read, at

    def _unreported_loss(
        self, expected: int | None, *, is_in_stretch: bool, is_reported: bool, is_headless: bool
    ) -> tuple[str, int | None] | None:
        """Return the reason and the number of lost records of damage that no repair reports, or None."""
        if expected is not None and self.next_lsn < expected:
            reason = f"commands {self.next_lsn} to {expected - 1} are missing after it"
            return None if is_in_stretch else (reason, None)
        if is_reported:
            return None
        # A full disk leaves such a segment. If the point has the number of records, they are all there.
        lost = None if is_headless and expected is None else 0
        return "the file ends here, without an end marker", lost

    def _carry_out(
        self,
        read: list[DamagedStretch | tuple[Any, ...]],
        base: int,
        following: int | None,
        scanned: SegmentScan,
        skip: int,
    ) -> None:
        """Carry out, in order, the commands that the snapshot does not cover."""
        number, expected = scanned.records, self._expected(base, following)
        counts = [each.records for each in read if isinstance(each, DamagedStretch)]
        whole = sum(not isinstance(each, DamagedStretch) for each in read)
        missing = 0 if expected is None else expected - base - number - whole
        for each in read:
            if isinstance(each, DamagedStretch):
                # If there is only one stretch, the number of its records is known.
                number += missing if len(counts) == 1 and missing > 0 else each.records or 0
                if each.has_added:
                    self.state.doubt()
            else:
                if number >= skip and self._apply([each]) < 1:
                    raise UnsupportedFormatError(
                        self.files.segment(base), f"queue implementation {each[2]}", "1 (H4) and 2 (QA)"
                    )
                number += 1
        self.next_lsn = base + number

    def _keep_aside(self, base: int) -> str | None:
        """Plan another name for the segment's file, to be given once the state is safe."""
        path = self.files.segment(base)
        if not self.fs.size_of(path):
            return None
        aside = free_aside(self.fs, self.files.aside(base))
        self.kept.append((path, aside))
        return aside

    def _report_missing_last(self, needed: list[int], bases: list[int]) -> None:
        """Report the segment of the recovery point if it is gone, and messages may be lost with it."""
        point = self.point
        if point is None or point.base in needed:
            return
        is_covered = max(point.base, (point.next_lsn or 0) - 1) <= self.found.snapshot_lsn
        if is_covered and (self.trust is not Trust.KILLED or max(bases, default=-1) >= point.base):
            return  # the snapshot has all of it
        if self.trust is Trust.POWER_CUT and point.base == self.next_lsn:
            return  # a power cut may have taken it, with no synced command in it
        reason = "the log continued in this segment, which is gone"
        # If the log was not closed, the snapshot may have only its beginning.
        lost = None if point.next_lsn is None or point.next_lsn > point.base else 0
        self.found.repairs.append(
            Repair.of_bytes(self.files.segment(point.base), RepairKind.LOST, 0, 0, reason, lost)
        )

    def _report_missing_newest(self) -> None:
        """Report the segment that a killed writer wrote to last, if it is gone."""
        if self.newest < self.next_lsn or self.newest <= self.found.snapshot_lsn:
            return
        path = self.files.segment(self.newest)
        if path not in [repair.path for repair in self.found.repairs]:
            reason = "the log continued in this segment, which is gone"
            self.found.repairs.append(Repair.of_bytes(path, RepairKind.LOST, 0, 0, reason, None))

    def _count_lost(self) -> None:
        """Report how many messages are fewer than at the close, in the first repair with an unknown loss."""
        point, repairs = self.point, self.found.repairs
        if point is None or point.stored is None or point.next_lsn is None or self.next_lsn > point.next_lsn:
            return  # it was not closed, or another program has written since
        lost = point.stored - sum(queue.table.stored for queue in self.found.queues.values())
        number = next((at for at, repair in enumerate(repairs) if repair.records is None), None)
        if lost > 0 and number is not None:
            repairs[number] = replace(repairs[number], records=lost)

    def _begin_anew(self, needed: list[int]) -> None:
        """Begin a new log after the damaged one: the state becomes a snapshot."""
        found = self.found
        self._warn("damage_passed_over")
        set_aside = {path for path, _ in self.kept}
        paths = map(self.files.segment, needed)
        removals = tuple(path for path in paths if path not in set_aside)
        found.old = Barrier(asides=tuple(self.kept), removals=removals)
        self._begin_at(max(self.next_lsn, found.snapshot_lsn + 1, 1))  # a snapshot covers at least one record

    def _begin_at(self, lsn: int) -> None:
        """Continue in a new segment, and sync none of the old ones."""
        self.let_go()
        self.pending_syncs.files.clear()
        self.found.bases = [lsn]
        self.found.end = self.found.records = 0

    def _apply(self, commands: list[tuple[Any, ...]]) -> int:
        """Carry out the commands, except those after `until`."""
        wanted = commands if self.until is None else commands[: max(0, self.until + 1 - self.next_applied)]
        self.next_applied += len(commands)
        done = self.state.apply(wanted)
        return done if done < len(wanted) else len(commands)

    def _sync_again(self, handle: int, scanned: SegmentScan) -> None:
        self.acts.keep_open(handle, 0, scanned.end)
        self._end(handle, scanned)

    def _end(self, handle: int, scanned: SegmentScan) -> None:
        """Complete the end marker: TaskFlux takes a part of one for damage."""
        if not is_ended(self.fs, handle, scanned):
            zeros = bytes(scanned.ending - scanned.end)
            write_all(self.fs, handle, zeros + END_MARKER, scanned.end)

    def _refuse_head(self, path: str, scanned: SegmentScan, base: int) -> None:
        if scanned.version is not None:
            raise UnsupportedFormatError(path, f"version {scanned.version}", "version 1")
        self._refuse(path, 0, "no segment's head", "corrupt_log", base)

    def _is_closed(self, base: int, scanned: SegmentScan) -> bool:
        """True if the store was closed with this end, with everything on stable storage."""
        point = self.point
        return point is not None and (point.base, point.closed) == (base, scanned.ending)

    def _note(self, scanned: SegmentScan) -> None:
        if scanned.records:
            self.found.term = scanned.term
            self.found.is_narrow = scanned.is_narrow
        self._warn("document_layout", scanned.is_document)
        self.found.warnings["delta_trailing_bytes"] += scanned.trailing

    def _become_last(self, base: int, handle: int, scanned: SegmentScan, *, is_last: bool) -> None:
        """Continue in this segment, after its last whole record. The handle is the store's now."""
        found, fs, path, end = self.found, self.fs, self.files.segment(base), scanned.end
        found.handle = handle
        if scanned.is_blank or scanned.is_torn:
            if scanned.size:
                self._warn("segment_reinitialised")
                self._empty(handle, base, scanned, is_last=is_last)
            self.let_go()
            return
        found.end, found.records = scanned.ending, scanned.records
        if scanned.trouble is not None:
            self._warn("tail_truncated")
            self._warn("valid_records_dropped", has_records_after(fs, handle, end))
            self.acts.check(path, end, scanned.trouble)
            fault = self._fault(handle, end, f"command {self.next_lsn}: {scanned.trouble}", is_last=is_last)
            self._cut(handle, base, end, *fault)
        elif last_byte(fs, handle, end) is not None:
            self._cut(handle, base, end, *self._after_the_end(handle, base, scanned))
        if self._may_be_unsynced(base) and not self._is_closed(base, scanned):
            self._sync_again(handle, scanned)
        else:
            self._end(handle, scanned)
            self.pending_syncs.files.append(handle)

    def _fault(self, handle: int, start: int, reason: str, *, is_last: bool) -> _Fault:
        """Return the fault of the segment, from byte `start` on, with which the log ends."""
        if has_records_after(self.fs, handle, start):
            return _Fault(RepairKind.CORRUPT, f"{reason}, and whole commands follow it", None)
        if not is_last:
            return _Fault(RepairKind.UNSYNCED if self._is_unsynced else RepairKind.CORRUPT, reason, None)
        # What a process wrote before it was killed is whole, as the machine ran on.
        return _Fault(RepairKind.TORN, reason, None if self.trust is Trust.KILLED else 0)

    def _after_the_end(self, handle: int, base: int, scanned: SegmentScan) -> _Fault:
        """Return what the bytes are that follow the end marker of the last segment."""
        if not has_records_after(self.fs, handle, scanned.end):
            return _Fault(RepairKind.STALE, "stale bytes after the end marker", 0)
        if self.point is None or self.point.closed is not None or base < self.point.base:
            return _Fault(RepairKind.STALE, "stale commands after the end marker", None)
        # diskq wrote last, and leaves nothing after its end marker: they are commands of the log.
        kind = RepairKind.UNSYNCED if self._is_unsynced else RepairKind.CORRUPT
        return _Fault(kind, f"command {self.next_lsn}: zeros, and whole commands follow them", None)

    def _empty(self, handle: int, base: int, scanned: SegmentScan, *, is_last: bool) -> None:
        """Empty a segment whose head was not written: it will be begun again."""
        path, reason = self.files.segment(base), "its head was not written"
        self.acts.check(path, 0, reason)
        kind, reason, lost = self._fault(handle, 0, reason, is_last=is_last)
        if scanned.is_torn:
            self._cut(handle, base, 0, kind, reason, lost)
        else:
            self.found.repairs.append(Repair.of_bytes(path, kind, 0, scanned.size, reason, lost))

    def _cut(self, handle: int, base: int, end: int, kind: RepairKind, reason: str, lost: int | None) -> None:
        """Shorten the file, keep the cut bytes aside, and write the end marker."""
        fs, path = self.fs, self.files.segment(base)
        last = last_byte(fs, handle, end)
        if last is None:
            return  # in a view: the process that has the store has just cut it itself
        fs.truncate(handle, last + 1)  # zeros that were written ahead are not kept
        try:
            self.acts.cut(path, end, kind, reason, lost, aside_base=self.files.aside(base), handle=handle)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS or has_records_after(fs, handle, end):
                raise
            # No space for a copy of bytes that are not records: opening must not fail for that.
            fs.truncate(handle, end)
            self.found.repairs.append(
                Repair(path=path, kind=kind, kept=end, dropped=last + 1 - end, reason=reason, records=lost)
            )

    def _open_again(self, base: int) -> None:
        """Continue in the segment that was read last, which is whole."""
        handle = self.fs.open(self.files.segment(base), write=True)
        self._become_last(base, handle, read_segment(self.fs, handle), is_last=False)

    def _drop(self, bases: list[int], missing: int) -> None:
        """Set aside segments after the end of the log: command `missing` should be before them."""
        kind = RepairKind.UNSYNCED if self._is_unsynced else RepairKind.LOST
        for base in bases:
            self._warn("segments_dropped")
            reason = f"command {missing}, which should be before it, is missing"
            self._set_aside(self.files.segment(base), self.files.aside(base), kind, reason)

    def _set_aside(self, path: str, aside_base: str, kind: RepairKind, reason: str) -> None:
        """Keep the whole file under another name."""
        self.acts.check(path, 0, reason)
        self.acts.set_aside(path, kind, reason, None, aside_base=aside_base, by_barrier=True)

    def _restart(self) -> None:
        """Continue after the snapshot, in a new segment, if the log ends before the snapshot does."""
        found = self.found
        # Not reported if the log was removed, and came back: removals are not synced.
        is_known = self.point is not None and found.bases[-1] < self.point.base
        self._warn("log_behind_snapshot", not is_known)
        self.pending_syncs.removals += map(self.files.segment, found.bases)
        self.next_lsn = found.snapshot_lsn + 1
        self._begin_at(self.next_lsn)
