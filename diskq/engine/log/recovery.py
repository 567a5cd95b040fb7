# Recovery of a log: what is trusted, and what is done. Law: what is trusted is decided once in each open, by
# what the last writer left; every act is a `Repair`, or changes no byte; nothing is destroyed; what an open
# decides is durable before the lock is signed, or is left to the first barrier.
#
# No format's recovery asks again which program wrote last, or whether the machine was restarted (`Trust`):
#
#   CLOSED      All that diskq wrote is durable, up to the recovery point, and nothing after it is diskq's.
#               Any later bytes are another program's: their framing is believed.
#   KILLED      The machine ran on, so the page cache survived: framing is believed. What comes after the
#               recovery point may not be durable, and is synced again.
#   POWER_CUT   After the recovery point only bytes with an agreeing checksum are believed: there may be zeros
#               after a good length.
#   PEER_WROTE  Another program has written since diskq did, and its bytes have no checksums: framing is
#               believed, also after a power cut.
#
# The format defines the recovery point: journals and streams have points (recovery_points.py), a queue has
# its metadata, a priority store a point (priority/files.py). Before it everything that diskq wrote is
# durable.
#
# There are five acts, and no others:
#
#   keep         The file may never have reached the disk: it is written over itself, and the first barrier
#                syncs it. A missing file is not made.
#   cut          The end of a file is removed. A copy of it is durable in a file of its own first.
#   set aside    The whole file gets another name, and the files that belong to it are removed. All of this
#                happens at once, before the lock is signed: the next open in the same boot would believe
#                their framing.
#   begin after  Messages are gone whose offsets a reader may have seen: a new segment begins after them. Its
#                name is durable before anything goes that shows which offsets these are.
#   put back     Acknowledged messages that a kill left in the staging area go into their files, before
#                anything else is looked at: storage/log/replay.py.
#
# Each format judges which act it is, in recovery.py of its package.

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from diskq._native.core.framing import Count
from diskq.engine.log.recovery_points import RecoveryPoints
from diskq.errors import CorruptionError
from diskq.storage.append_file import ChecksumFile
from diskq.storage.barrier import Barrier, PendingSyncs, open_at, rewrite
from diskq.storage.checksums import rows_after, rows_before, rows_of_other_bytes, unwritten_at
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of, full_disk_ignored
from diskq.storage.log.entries import Part
from diskq.storage.log.format import holds_all, holds_nothing
from diskq.storage.numbered_files import free_aside
from diskq.storage.repairs import Repair, RepairKind, cut_tail
from diskq.storage.state import LastWriter, StateFiles, read_state
from diskq.storage.write_ahead_log import WriteAheadLogs, was_restarted

__all__ = [
    "MISSING",
    "UNSYNCED",
    "UNWRITTEN",
    "FoundLog",
    "OpenRepairs",
    "QueueUse",
    "Trust",
    "missing_after",
    "trust_of_points",
    "trust_of_store",
]

UNSYNCED = "not synced before the machine stopped"
MISSING = "messages are missing at the end"
UNWRITTEN = "zeros that no checksum covers, as a disk leaves them that went away"
_AT_ONCE = 1024 * 1024
_MOST_OPEN = 64  # files that may wait for the first barrier


# --- what is trusted ------------------------------------------------------------------------------


class Trust(enum.Enum):
    """How far the bytes after the recovery point may be believed; see the head of this module."""

    CLOSED = enum.auto()
    KILLED = enum.auto()
    POWER_CUT = enum.auto()
    PEER_WROTE = enum.auto()

    @classmethod
    def after(cls, *, was_ours: bool, was_restarted: bool, was_closed: bool = False) -> Trust:
        """Return the trust. `was_ours`: diskq was the last to write; `was_restarted`: the machine was, since.

        `was_closed`: the recovery point says that nothing that diskq wrote comes after it.
        """
        if was_closed:
            return cls.CLOSED
        if not was_ours:
            return cls.PEER_WROTE
        return cls.POWER_CUT if was_restarted else cls.KILLED


def trust_of_points(points: RecoveryPoints, partition: int, wals: WriteAheadLogs, *, was_ours: bool) -> Trust:
    """Return the trust for a journal, or a partition of a stream, after what was staged was put back.

    `was_ours`: the lock, or the owner file, is as diskq left it.
    """
    # If diskq's owner file was ever gone, a peer may have written, without checksums.
    is_ours = was_ours and not points.was_left
    is_restarted = is_ours and wals.was_restarted
    # If a process was killed and there are no points, their file has been removed.
    was_closed = points.was_closed(partition, was_killed=wals.was_killed and not is_restarted)
    return Trust.after(was_ours=is_ours, was_restarted=is_restarted, was_closed=was_closed)


class ClosedPoint(Protocol):
    """A priority store's recovery point; `closed` is where its log ended when it was closed, or None."""

    @property
    def closed(self) -> object: ...


def trust_of_store(fs: FileSystem, point: ClosedPoint | None, previous: LastWriter | None) -> Trust:
    """Return the trust for a priority store; one without a point was written by TaskFlux.

    `previous` signed its lock last. None, if there was none or it was not looked up, counts as a power cut.
    """
    is_restarted = was_restarted(fs, previous) is not False
    was_closed = point is not None and point.closed is not None
    return Trust.after(was_ours=point is not None, was_restarted=is_restarted, was_closed=was_closed)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUse:
    """How a queue was used last, as far as the lock and the staging area show before its files are read."""

    was_ours: bool
    """True if diskq has had it before."""
    was_restarted: bool
    """True if the machine was restarted since then."""
    was_killed: bool
    """True if a process that staged messages ended without closing it, and the machine ran on until then."""
    has_all_checksums: bool
    """True if checksums cover all that was written, except what was staged."""
    was_closed: bool = False
    """True if diskq closed it, and then everything that it wrote was durable."""
    was_unlogged: bool = False
    """True if there was no space for a write-ahead log, so that the last messages may have no checksums."""
    staged: Part | None = None
    """The staged messages that are already in their files, with or without checksums."""

    @classmethod
    def before(cls, previous: LastWriter | None, wals: WriteAheadLogs, *, never_empty: bool) -> QueueUse:
        """Return it for an open, after what was staged was put back. `never_empty`: no message is empty."""
        was_killed = wals.was_killed and not wals.is_resumed
        was_closed = previous is not None and previous.is_closed
        are_complete = never_empty or (was_killed and not wals.repairs)
        return cls(
            was_ours=previous is not None,
            was_restarted=wals.was_restarted,
            was_killed=was_killed,
            has_all_checksums=are_complete or was_closed,
            was_closed=was_closed,
            was_unlogged=wals.was_unlogged,
            staged=wals.restored.get(0),
        )

    @classmethod
    def seen(cls, fs: FileSystem, files: StateFiles, wal: str, *, is_free: bool) -> QueueUse:
        """Return it for a process that only looks.

        `is_free`: certainly no process has the queue, so that its write-ahead log is complete.
        """
        left = read_state(fs, files)
        is_restarted = was_restarted(fs, left, [wal]) is True
        is_resumed = left is not None and left.has_restarted and not is_restarted
        is_named = left is not None and bool(left.staged or left.recovering_since)
        are_complete = left is not None and (left.is_closed or left.never_empty)
        return cls(
            was_ours=left is not None,
            was_restarted=is_restarted,
            was_killed=(is_named or not holds_nothing(fs, wal)) and not is_resumed,
            has_all_checksums=are_complete or (is_free and holds_all(fs, wal)),
            was_closed=left is not None and left.is_closed,
            # Beside its owner the checksums of the last messages may be on their way.
            was_unlogged=not is_free or (left is not None and left.is_unlogged),
        )

    @property
    def are_all_covered(self) -> bool:
        """True if checksums and logs cover what diskq wrote, but for what a disk has lost.

        After a kill the page cache has more than the checksum files, and the write-ahead log has the rest of
        the checksums. If it was in use and is unreadable, they may be missing. If it was not in use, either
        nothing was written, or the disk has lost that it was.
        """
        if not self.was_ours or self.was_restarted:
            return self.was_ours
        return not self.was_unlogged and (self.has_all_checksums or not self.was_killed)

    def trust(self, *, is_foreign: bool) -> Trust:
        """Return the trust. `is_foreign`: the metadata is another program's.

        A queue that was closed is treated as one that was killed and has all checksums, also after a restart:
        if its metadata is gone, the checksums show how much there was.
        """
        was_restarted = self.was_restarted and not self.was_closed
        return Trust.after(was_ours=self.was_ours and not is_foreign, was_restarted=was_restarted)


# --- what is found and done -----------------------------------------------------------------------


@dataclass(slots=True)
class FoundLog:
    """A log as it was found and repaired: the writer goes on from here."""

    repairs: list[Repair]
    bases: list[int] = field(default_factory=list)
    """Its segments, ascending. The last one is active; it may not exist yet, and is empty then."""
    end: int = 0
    """Bytes of the active segment's data."""
    next_offset: int = 0
    rows: int = 0
    """The size of the checksum entries that belong to the active segment, in bytes."""
    changed_from: int | None = None
    """The first segment whose entries were changed: older knowledge of it and of later ones is stale."""

    def note_changed(self, base: int) -> None:
        self.changed_from = base if self.changed_from is None else min(base, self.changed_from)

    def begin_after(self, offset: int) -> None:
        """Go on in a new segment that begins with this offset."""
        self.bases.append(offset)
        self.end, self.next_offset = 0, offset


def missing_after(path: str, end: int, lost: int) -> Repair:
    """Return the report that `lost` messages are missing after byte `end` of a data file."""
    return Repair(path=path, kind=RepairKind.LOST, kept=end, dropped=0, reason=MISSING, records=lost)


class OpenRepairs:
    """The acts of one open, and the report on them."""

    def __init__(
        self, fs: FileSystem, pending_syncs: PendingSyncs, *, strict: bool = False, is_overlay: bool = False
    ) -> None:
        """The first barrier executes `pending_syncs`. With `strict`, damage raises an error and is not
        repaired.

        `is_overlay`: what is done in `fs` changes no disk. Nothing is synced then, and what is cut, which may
        be a whole file, is not copied: it is still in the file system below.
        """
        self._fs = fs
        self.pending_syncs = pending_syncs
        self._strict = strict
        self._is_overlay = is_overlay
        self._asides = PendingSyncs()
        self.made: list[Repair] = []

    # --- the report -------------------------------------------------------------------------------

    def check(self, path: str, position: int, reason: str) -> None:
        """Raise CorruptionError if `strict`: for damage that no crash can have caused."""
        if self._strict:
            raise CorruptionError(path, position, reason)

    def report(self, repair: Repair) -> None:
        """Add `repair` to the report. Raises CorruptionError if `strict` and messages were lost."""
        if repair.records != 0:
            self.check(repair.path, repair.kept, repair.reason)
        self.made.append(repair)

    # --- the acts ---------------------------------------------------------------------------------

    def keep(self, *places: tuple[str, int]) -> None:
        """Have the first barrier sync the existing ones of these files, each from a byte on.

        They are synced now if too many would stay open until then. Raises OSError.
        """
        for path, start in places:
            if not self._is_overlay and self._fs.size_of(path) is not None:
                handle = self._fs.open(path, write=True)
                self.pending_syncs.closing.append(handle)
                self.keep_open(handle, start, self._fs.size(handle))
        if len(self.pending_syncs.closing) >= _MOST_OPEN:
            self.pending_syncs.execute_files(self._fs)

    def keep_open(self, handle: int, start: int, end: int) -> None:
        """Do the same for bytes start:end of an open file. Raises OSError."""
        self.pending_syncs.files.append(handle)
        # After a failed sync the kernel takes pages that it did not write for written. A file system that
        # writes in other places may be too full to write them again; what was synced is in the redo log, too.
        with full_disk_ignored():
            rewrite(self._fs, handle, start, end)

    def cut(
        self,
        path: str,
        end: int,
        kind: RepairKind,
        reason: str,
        records: int | None = 0,
        *,
        aside_base: str | None = None,
        handle: int | None = None,
    ) -> Repair | None:
        """Shorten a file to `end` bytes; the rest is durable in a file of its own first.

        None if it was not longer. The rest is as for `cut_tail`; `handle` is given if the file is open.
        Raises OSError.
        """
        opened = self._fs.open(path, write=True) if handle is None else handle
        try:
            if self._fs.size(opened) <= end:
                return None
            repair = cut_tail(
                self._fs,
                opened,
                path,
                end,
                kind,
                reason,
                records,
                aside_base=aside_base,
                is_kept=not self._is_overlay,
            )
        finally:
            if handle is None:
                self._fs.close(opened)
        self.made.append(repair)
        return repair

    def cut_unwritten(
        self,
        path: str,
        checksum_file: str | None,
        start: int,
        staged: Part | None,
        count: Callable[[bytes], Count],
        *,
        aside_base: str | None = None,
        has_offsets: bool = False,
    ) -> int | None:
        """Cut a file at the record that has the first byte from `start` on that may never have been written.

        See `unwritten_at`. `staged`: records of it that were in a write-ahead log. With `has_offsets`,
        messages of which there are checksums are reported by their offsets. Returns the new size; None if
        there is no such byte. Raises OSError.
        """
        verified = (0, 0) if staged is None else (staged.position, staged.end)
        unwritten = unwritten_at(self._fs, path, checksum_file, start, verified)
        if unwritten is None:
            return None
        at, stretch = unwritten
        handle = self._fs.open(path, write=True)
        try:
            whole = count(self._fs.pread(handle, at - stretch, stretch))
            end, size = stretch + whole.valid_end, self._fs.size(handle)
            rows = rows_after(self._fs, checksum_file, stretch)
            lost = None
            if rows and rows[0].start == stretch and rows[-1].end >= size:
                lost = 0 if has_offsets else sum(row.records for row in rows) - whole.records
            elif size - end <= _AT_ONCE and not self._fs.pread(handle, size - end, end).strip(b"\0"):
                lost = 0
            self.cut(path, end, RepairKind.UNWRITTEN, UNWRITTEN, lost, aside_base=aside_base, handle=handle)
        finally:
            self._fs.close(handle)
        return end

    def set_aside(
        self,
        path: str,
        kind: RepairKind,
        reason: str,
        records: int | None = 0,
        *,
        aside_base: str | None = None,
        removals: Iterable[str] = (),
        by_barrier: bool = False,
    ) -> None:
        """Give a file another name, with `execute_asides`, and remove its `removals`. Raises OSError.

        `by_barrier`: the first barrier does it instead, so that nothing has changed if the open is refused.
        That is for a format whose records have checksums of their own: the next open finds the same.
        """
        aside = free_aside(self._fs, aside_base or path)
        pending_syncs = self.pending_syncs if by_barrier else self._asides
        pending_syncs.asides.append((path, aside))
        pending_syncs.removals += removals
        if directory_of(aside) != directory_of(path):
            pending_syncs.directories[directory_of(aside)] = None
        if size := self._fs.size_of(path):
            self.made.append(
                Repair(
                    path=path, kind=kind, kept=0, dropped=size, reason=reason, records=records, saved_as=aside
                )
            )

    def begin(self, path: str) -> None:
        """Make the empty data file of a new segment, durably. Raises OSError.

        Files that are set aside get their names first: one of them may have this name.
        """
        asides, self._asides.asides = self._asides.asides, []
        Barrier(asides=tuple(asides)).execute(self._fs)
        self._fs.close(open_at(self._fs, path, 0))
        Barrier(directories=(directory_of(path),)).execute(self._fs)

    def execute_asides(self) -> None:
        """Set them aside now. Raises OSError; then nothing may be believed."""
        self._asides.freeze((), ()).execute(self._fs)

    # --- checksums --------------------------------------------------------------------------------

    def void(
        self, path: str, checksum_file: str, start: int = 0, count: Callable[[bytes], Count] | None = None
    ) -> None:
        """Remove checksums of bytes that are not there, where another program has written since.

        `path` is the data file's; before byte `start` of it all are right. `count` counts records that have
        no checksum of their own. Raises OSError.
        """
        kept = rows_of_other_bytes(self._fs, path, checksum_file, start, count)
        if kept is not None:
            # Durably, before anything says that what is there now is durable, and its checksums are right.
            self.cut_checksums(checksum_file, *kept)

    def cut_checksums(self, checksum_file: str, kept: int, covered: int) -> None:
        """Cut a checksum file after `kept` bytes, which reach byte `covered` of the data. Raises OSError."""
        self.pending_syncs.sync_and_close(ChecksumFile.open(self._fs, checksum_file, kept, covered).handle)

    def sync_cleared(self, wal: str) -> None:
        """Sync a write-ahead log that was cleared. Raises OSError.

        A power cut would bring back its checksums, of bytes that are gone.
        """
        if self._fs.size_of(wal) is not None:
            self.pending_syncs.sync_and_close(self._fs.open(wal, write=True))

    def cover(
        self, checksum_file: str, end: int, fill: Callable[[ChecksumFile, int], None], *, start: int = 0
    ) -> None:
        """Have `fill` add the checksums of bytes `start`:`end` of the data, which were looked at.

        It is called with the byte up to which there are checksums, if that is before `end`. If the disk is
        full, the records stay without. Raises OSError.
        """
        kept, covered = rows_before(self._fs, checksum_file, end)
        begin = max(covered, start)
        if begin >= end:
            return
        try:
            sums = ChecksumFile.open(self._fs, checksum_file, kept, begin)
            self.pending_syncs.sync_and_close(sums.handle)
            fill(sums, begin)
            sums.flush()
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
