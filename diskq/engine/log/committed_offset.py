# How far a group has come in a partition. Law: what was committed durably is not delivered again, what
# was not committed is never skipped, and a committed offset is believed unless its file rotted.
#
# The offset file is go-diskq's: 8 bytes, little endian, the last offset that was processed; no bytes, or no
# file, while there is none. go-diskq overwrites it in place, without a sync. diskq replaces it: the old one
# or the new one is there, whatever happens.
#
# Eight bytes cannot show that they rotted, so diskq keeps a shadow copy of what it wrote last, among its own
# files:
#
#     value u64 | file u64 | modified i64 (ns) | crc32c of these 24 bytes u32
#
# with the stamp of the offset file, taken after that file got its name. Then
#
#     it has the shadow copy's value                  the offset file is believed
#     it has another value, and another stamp         a peer moved it since: it is believed
#     another value, and the shadow copy's stamp      it rotted: the shadow copy is believed
#     it has 1 to 7 bytes                             the shadow copy is believed, if there is one
#
# The shadow copy is written in place when the offset file is durable, and no call waits for it: if it is
# torn, or old after a power cut, it disagrees with the stamp, and the offset file is believed. It is synced
# before the next offset file gets its name. So a shadow copy on stable storage belongs to this offset file or
# to the one before, which was another file: no offset file written by diskq can have the stamp of a shadow
# copy with another value.
#
# After it, in the same file, is the commit note: what was committed last, which the offset file gets with
# the next sync. A commit overwrites it in place, without a sync, so that a commit survives its process:
#
#     value u64 | file u64 | modified i64 (ns) | pending u64 | crc32c of these 32 bytes u32
#
# It is believed if the offset file still has the stamp that it had when the note was written or, if a sync
# was under way, the pending value: then nobody else has moved it since. 2**64 - 1 is no offset. Before an
# offset file gets its name, the note is written with the value of that file, and synced: so no older note
# can belong to the new file. A power cut may take a note, or leave an older one of the same file: these
# commits were not synced.
#
# The readers of a journal have offset files as well, with another meaning (the offset that is read next) and
# the opposite byte order: journal/reader_offset.py.
# Format: docs/format/triplet.md.

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from diskq.engine.log.sync import Sync, Synced, SyncPolicy
from diskq.errors import DiskFullError, ForkedError
from diskq.storage.barrier import NO_ROOM, Barrier, PendingSyncs, Replacement, read_small, write_all
from diskq.storage.checksums import checksum
from diskq.storage.closing import Closing, Dropped
from diskq.storage.forks import notify_on_fork
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, Stamp, directory_of
from diskq.storage.log_events import Log
from diskq.storage.numbers import NO_NUMBER
from diskq.storage.repairs import Repair, RepairKind

__all__ = [
    "LARGEST_OFFSET",
    "OFFSET_SIZE",
    "CommittedOffset",
    "FoundOffset",
    "OffsetFile",
    "joint_barrier",
    "raising_disk_full",
    "read_committed_offset",
]

log = Log("offsets")

OFFSET_SIZE = 8
SHADOW = struct.Struct("<QQqI")
NOTE = struct.Struct("<QQqQI")
_NO_VALUE = 2**64 - 1
LARGEST_OFFSET = NO_NUMBER - 1
_TRIES = 3

# --- reading --------------------------------------------------------------------------------------


class ShadowCopy(NamedTuple):
    """What diskq wrote last into an offset file, and the stamp that the file had then."""

    value: int
    stamp: Stamp

    def pack(self) -> bytes:
        row = SHADOW.pack(self.value, *self.stamp, 0)[:-4]
        return row + checksum(row).to_bytes(4, "little")

    @classmethod
    def unpack(cls, row: bytes) -> ShadowCopy | None:
        """Parse a shadow copy. None for bytes that are none, or a torn or rotten one."""
        if len(row) != SHADOW.size:
            return None
        value, file, modified_ns, crc = SHADOW.unpack(row)
        return cls(value, Stamp(file, modified_ns)) if checksum(row[:-4]) == crc else None


class CommitNote(NamedTuple):
    """What was committed last, and the offset file that had not got it yet."""

    value: int | None
    stamp: Stamp
    """The offset file's."""
    pending: int | None
    """The value of the offset file that was to replace it; without a sync under way, `value`."""

    def pack(self) -> bytes:
        row = NOTE.pack(_as_number(self.value), *self.stamp, _as_number(self.pending), 0)[:-4]
        return row + checksum(row).to_bytes(4, "little")

    @classmethod
    def unpack(cls, row: bytes) -> CommitNote | None:
        """Parse a note. None for bytes that are none, or a torn or rotten one."""
        if len(row) != NOTE.size:
            return None
        value, file, modified_ns, pending, crc = NOTE.unpack(row)
        if checksum(row[:-4]) != crc:
            return None
        return cls(_from_number(value), Stamp(file, modified_ns), _from_number(pending))


def _as_number(value: int | None) -> int:
    return _NO_VALUE if value is None else value


def _from_number(number: int) -> int | None:
    return None if number == _NO_VALUE else number


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """The paths of a committed offset, and how it is stored."""

    path: str
    shadow: str
    temporary: Callable[[int], str]
    leftovers: Callable[[], list[str]]
    """Lists temporary files that a crash left; only for the holder of the lock."""
    above: tuple[str, ...]
    """Directories that may not be durable yet: a process may have died after making them."""
    byte_order: Literal["little", "big"] = "little"


class FoundOffset(NamedTuple):
    """A committed offset as it was found."""

    offset: int | None
    """The last offset that was processed; None: none yet."""
    stamp: Stamp | None
    """The stamp of the file that was read; None if it was written meanwhile."""
    has_shadow: bool
    """True if the shadow copy agrees, so that rot will be noticed, or a commit note has the offset."""
    repair: Repair | None
    """What was wrong with the file, if the shadow copy was believed instead."""
    durable: int | None
    """The offset that is in the file; after a power cut it may be the last one again."""


def read_committed_offset(fs: FileSystem, place: OffsetFile) -> FoundOffset | None:
    """Return the committed offset, also while it is being written; None if there is none. Raises OSError."""
    path = place.path
    content, stamp = _read_stamped(fs, path)
    if content is None:
        return None
    rows = read_small(fs, place.shadow, SHADOW.size + NOTE.size) or b""
    shadow, note = ShadowCopy.unpack(rows[: SHADOW.size]), CommitNote.unpack(rows[SHADOW.size :])
    value = int.from_bytes(content[:OFFSET_SIZE], place.byte_order) if len(content) >= OFFSET_SIZE else None
    if content and value is None:
        reason = f"{len(content)} bytes instead of {OFFSET_SIZE}"
    elif shadow is not None and shadow.value != value and shadow.stamp == stamp:
        reason = f"its value {value} was never written: bits rotted"
    elif note is not None and (note.stamp == stamp or (stamp is not None and note.pending == value)):
        is_noted = note.value != value or shadow == (value, stamp)
        return FoundOffset(note.value, stamp, is_noted, None, value)
    else:
        return FoundOffset(value, stamp, shadow == (value, stamp), None, value)
    offset = shadow.value if shadow is not None else None
    repair = Repair(
        path=path,
        kind=RepairKind.TORN if value is None else RepairKind.REBUILT,
        kept=0,
        dropped=len(content),
        reason=f"{reason}; the last offset that is known is {'none' if offset is None else offset}",
    )
    if note is not None and note.stamp == stamp:
        return FoundOffset(note.value, stamp, True, repair, offset)
    return FoundOffset(offset, stamp, False, repair, offset)


def _read_stamped(fs: FileSystem, path: str) -> tuple[bytes | None, Stamp | None]:
    """Return the file's bytes, and its stamp, if it was not written during the read."""
    content = None
    for _ in range(_TRIES):
        stamp = fs.stamp_of(path)
        content = read_small(fs, path, OFFSET_SIZE)
        if stamp == fs.stamp_of(path):
            return content, stamp
    return content, None


# --- one offset -----------------------------------------------------------------------------------


def joint_barrier(syncs: Iterable[Sync]) -> Barrier:
    """Return one barrier for several committed offsets: they are replaced together, or are pending again.

    Each sync is then completed with the result of the one barrier.
    """
    barriers = [sync.barrier for sync in syncs]
    replacements = [each for barrier in barriers for each in barrier.replacements]
    return Barrier(
        files=tuple(handle for barrier in barriers for handle in barrier.files),
        directories=tuple(dict.fromkeys(path for barrier in barriers for path in barrier.directories)),
        replacements=tuple(sorted(replacements, key=lambda its: directory_of(its.path))),
        removals=tuple(path for barrier in barriers for path in barrier.removals),
    )


class CommittedOffset(Synced, Closing, Dropped):
    """An offset that its holder moves. For one thread at a time, and for the holder of its lock."""

    def __init__(
        self,
        fs: FileSystem,
        place: OffsetFile,
        *,
        sync_every: int = 2500,
        sync_timeout: float = 2.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Read the committed offset; the directories exist already.

        `commit` syncs after `sync_every` messages, or `sync_timeout` seconds after the first. Raises
        DiskFullError if there is no space for a new file; OSError.
        """
        policy = SyncPolicy(sync_every, sync_timeout)
        what = f"the committed offset {place.path}"
        super().__init__(fs, log, place.path, what, policy, clock or fs.monotonic)
        self._place = place
        notify_on_fork(self)
        self._shadow = -1
        self._is_shadow_unsynced = True  # it may not be synced, whichever process wrote it
        found = read_committed_offset(fs, place)
        is_new = found is None
        if found is None:
            with raising_disk_full(self.path):
                # As go-diskq does it; from now on the group counts as one that reads the partition.
                fs.close(fs.open(self.path, write=True, create=True))
            found = FoundOffset(None, fs.stamp_of(self.path), False, None, None)
        self.committed, self.durable = found.offset, found.durable
        """The offset in memory, and the one on stable storage; None: nothing is committed yet."""
        self.repairs: tuple[Repair, ...] = () if found.repair is None else (found.repair,)
        """What was wrong with the offset file when it was opened."""
        self._stamp = found.stamp  # of the offset file, as far as it is known
        self._has_note = found.offset != found.durable  # the note says more than the offset file
        self._noted = found.offset
        self._is_wrong = found.repair is not None  # the file is wrong and has to be written anew
        # The process that made them may have died before they were durable.
        above = place.above
        self._pending_syncs = PendingSyncs(directories=dict.fromkeys(above))
        self._pending_syncs.removals += place.leftovers()
        try:
            self._open_shadow()
            if is_new and self._shadow >= 0:
                fs.truncate(self._shadow, 0)  # what it says is of a file that was removed
            if found.repair is None:
                # For what a peer wrote, or diskq before a crash; and again, if a sync of it failed.
                self._write_shadow()
        except BaseException:
            self.abandon()
            raise
        if found.repair is not None:
            log.report_repair(found.repair)
        if found.repair is not None or self._has_note:
            self.policy.count(1, self.clock())

    def commit(self, offset: int | None, *, seek: bool = False) -> None:
        """Commit everything up to `offset`. It survives the process, and is durable with the next sync.

        The offset only goes forward, unless `seek`; None, with `seek`, means that nothing was processed.
        Raises ValueError, TypeError; DiskFullError and StorageFailedError as `sync`.
        """
        if self.move(offset, seek=seek):
            self.sync()

    def sync(self) -> None:
        """Return when the last commit is on stable storage.

        Raises DiskFullError if there is no space: the commit is still pending. Raises StorageFailedError,
        after which only `close` is allowed.
        """
        sync = self.prepare()
        if sync is not None and not self.run(sync):
            raise DiskFullError(self.path, f"{NO_ROOM}: the last commit is not durable")

    def close(self) -> None:
        """Sync, and close. Idempotent. Raises as `sync`; it is closed all the same."""
        if self.is_closed:
            return
        if isinstance(self.failure, ForkedError):
            raise self.failure
        try:
            if self.failure is None:
                self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close it without a promise. Idempotent."""
        self.is_closed = True
        if self._shadow >= 0:
            shadow, self._shadow = self._shadow, -1
            self._fs.close(shadow)

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        return (self._fs, self._what) if self._shadow >= 0 else None

    def _let_go_dropped(self) -> None:
        self.abandon()

    # --- the same, for a channel that waits where this cannot -------------------------------------

    def move(self, offset: int | None, *, seek: bool = False, is_written: bool = True) -> bool:
        """Commit as `commit` does, but leave the sync to the caller. True if one is due.

        Without `is_written` the commit waits in memory for the sync.
        """
        self.check_usable()
        if offset is None:
            if not seek:
                raise ValueError("no offset is given: only a seek may go back to where nothing was processed")
        elif isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"an offset is a whole number, got {offset!r}")
        elif not 0 <= offset <= LARGEST_OFFSET:
            raise ValueError(f"an offset is 0 to {LARGEST_OFFSET}, got {offset}")
        if not seek and self.committed is not None and offset is not None and offset <= self.committed:
            return (is_written and not self.is_written and not self._write_note()) or self.note()
        # What counts is how much would be repeated after a crash: one commit may stand for a batch.
        passed = 1 if seek or offset is None else offset - (-1 if self.committed is None else self.committed)
        self.committed = offset
        now = self.clock()
        is_due = self.policy.count(passed, now) == 0
        return (is_written and not self._write_note()) or is_due

    @property
    def is_written(self) -> bool:
        """True if the last commit survives the process."""
        return self.committed == (self._noted if self._has_note else self.durable)

    @property
    def is_idle(self) -> bool:
        """True if no sync of it is in flight."""
        return self._in_flight is None

    def note(self) -> bool:
        """True if a sync is due by now."""
        return self.policy.count(0, self.clock()) == 0

    def deadline(self) -> float:
        """Return when a sync is due at the latest, on the clock; infinity while nothing is pending."""
        return self.policy.due_at

    def prepare(self) -> Sync | None:
        """Prepare a sync of the last commit; None if it is durable. Execute it; then `complete` or `fail`."""
        self.check_usable()
        self._check_idle()
        self.policy.prepared()
        if self.committed == self.durable == self._noted and not self._is_wrong:
            return None
        if self._noted != self.committed:
            self._write_note()  # an older one may be of the value that the file gets
        order = self._place.byte_order
        content = b"" if self.committed is None else self.committed.to_bytes(OFFSET_SIZE, order)
        temporary = self._place.temporary
        shadow = (self._shadow,) if self._is_shadow_unsynced and self._shadow >= 0 else ()
        barrier = self._pending_syncs.freeze(shadow, (Replacement(self.path, content, temporary),))
        self._in_flight = Sync(barrier=barrier, state=self.committed)
        return self._in_flight

    def complete(self, sync: Sync, is_replaced: bool) -> None:
        self._end_flight(sync)
        self._is_shadow_unsynced = False
        if not is_replaced:
            self._note_not_replaced(self.path)
            return
        self.durable = sync.state
        self._is_wrong = False
        self._write_shadow()
        self._has_note = self._has_note and self.committed != self.durable
        if self._has_note:
            self._write_note()

    def leave_to_parent(self, pid: int) -> None:
        """Leave the files to the parent, in a child of a fork."""
        self.failure = ForkedError(self.path, pid)
        self._shadow = -1

    def _open_shadow(self) -> None:
        try:
            self._shadow = self._fs.open(self._place.shadow, write=True, create=True)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            # The disk has no space for a shadow copy: the offset file is believed without one.

    def _write_shadow(self) -> None:
        """Write the shadow copy of the offset file, if its content is known to be durable."""
        if self._shadow < 0:
            return
        try:
            content, stamp = _read_stamped(self._fs, self.path)
            self._stamp = stamp
            value = -1 if self.durable is None else self.durable
            if stamp is None or value < 0 or content != value.to_bytes(OFFSET_SIZE, self._place.byte_order):
                self._write_row(bytes(SHADOW.size), 0)
            else:
                self._write_row(ShadowCopy(value, stamp).pack(), 0)
        except OSError as failure:
            # The old content describes an older file, whose number and time the next one may have again.
            with contextlib.suppress(OSError):
                self._fs.truncate(self._shadow, 0)
            log.report(
                "unguarded",
                "%s: its shadow copy cannot be written, rot would not be noticed: %s",
                self.path,
                failure,
                path=self.path,
                error=failure,
            )

    def _write_note(self) -> bool:
        """Write the commit note. False: it cannot be, and the commit needs a sync."""
        if self._shadow < 0 or self._stamp is None:
            return False
        pending = self.committed if self._in_flight is None else self._in_flight.state
        try:
            row = CommitNote(self.committed, self._stamp, pending).pack()
            self._write_row(row, SHADOW.size)
        except OSError:
            return False
        self._has_note = True
        self._noted = self.committed
        return True

    def _write_row(self, row: bytes, position: int) -> None:
        self._is_shadow_unsynced = True
        write_all(self._fs, self._shadow, row, position)


@contextlib.contextmanager
def raising_disk_full(path: str) -> Iterator[None]:
    """Raise DiskFullError if the block raises OSError because the disk is full."""
    try:
        yield
    except OSError as failure:
        if failure.errno in FULL_DISK_ERRNOS:
            raise DiskFullError(path, f"the disk is full ({failure})") from failure
        raise
