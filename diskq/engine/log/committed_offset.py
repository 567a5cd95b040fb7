# How far a group has come in a partition. Law: what was committed durably is not delivered again, what
# was not committed is never skipped, and a marker is believed unless it rotted.
#
# A marker is go-diskq's: 8 bytes, little endian, the last offset that was processed; no bytes, or no file,
# while there is none. go-diskq overwrites it in place, without a sync. We replace it: the old one or the
# new one is there, whatever happens.
#
# Eight bytes cannot say that they rotted, so beside our own things lies a shadow copy of what we wrote last:
#
#     value u64 | file u64 | modified i64 (ns) | crc32c of these 24 bytes u32
#
# with the marker's stamp as it was once the marker had its name. Then
#
#     the marker has the shadow copy's value          it is believed
#     it has another value, and another stamp         a peer moved it since: it is believed
#     another value, and the shadow copy's stamp      it rotted: the shadow copy is believed
#     it has 1 to 7 bytes                             the shadow copy is believed, if there is one
#
# The shadow copy is written in place when the marker is durable, and is not waited for: torn, or left behind
# by a power cut, it disagrees with the marker's stamp, and the marker is believed. It is synced before the
# next marker gets its name. So a shadow copy on stable storage is of this marker or of the one before, which
# was another file: no marker of ours can have the stamp of a shadow copy with another value.
#
# The readers of a journal have markers as well, with another meaning (the offset that is read next) and the
# bytes the other way round: journal/reader_offset.py.
# Format: docs/format/triplet.md.

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from diskq.engine.log.sync import Sync, Synced
from diskq.errors import DiskFullError, ForkedError
from diskq.storage.barrier import NO_ROOM, Barrier, PendingSyncs, Replacement, write_all
from diskq.storage.checksums import checksum
from diskq.storage.closing import Closing
from diskq.storage.forks import tell_of_forks
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, Stamp
from diskq.storage.log_events import Log
from diskq.storage.numbers import NO_NUMBER
from diskq.storage.repairs import Repair
from diskq.storage.small_file import read_small
from diskq.storage.sync_policy import SyncPolicy

__all__ = [
    "LARGEST_OFFSET",
    "MARKER_SIZE",
    "FoundOffset",
    "Marker",
    "MarkerPlace",
    "joined",
    "read_marker",
    "room_wanted",
]

log = Log("offsets")

MARKER_SIZE = 8
SHADOW = struct.Struct("<QQqI")
LARGEST_OFFSET = NO_NUMBER - 1
_TRIES = 3

# --- reading --------------------------------------------------------------------------------------


class ShadowCopy(NamedTuple):
    """What we wrote last into a marker, and the stamp that the marker had then."""

    value: int
    stamp: Stamp

    def pack(self) -> bytes:
        row = SHADOW.pack(self.value, *self.stamp, 0)[:-4]
        return row + checksum(row).to_bytes(4, "little")

    @classmethod
    def unpack(cls, row: bytes) -> ShadowCopy | None:
        """None for bytes that are no shadow copy, or a torn or rotten one."""
        if len(row) != SHADOW.size:
            return None
        value, file, modified_ns, crc = SHADOW.unpack(row)
        return cls(value, Stamp(file, modified_ns)) if checksum(row[:-4]) == crc else None


@dataclass(frozen=True, slots=True)
class MarkerPlace:
    """Where a marker is, and what belongs to it."""

    path: str
    shadow: str
    temporary: Callable[[int], str]
    leftovers: Callable[[], list[str]]
    """Temporaries that a crash left, if asked by who has the marker."""
    above: tuple[str, ...]
    """Directories that whoever made them may have died in, before they were durable."""
    byte_order: Literal["little", "big"] = "little"


class FoundOffset(NamedTuple):
    """A marker as it was found."""

    offset: int | None
    """The last offset that was processed; None: none yet."""
    stamp: Stamp | None
    """Of the file that says so; None where it was written while we looked."""
    has_shadow: bool
    """Does the shadow copy agree, so that rot will be noticed?"""
    repair: Repair | None
    """What was wrong with it, where the shadow copy was believed instead."""


def read_marker(fs: FileSystem, place: MarkerPlace) -> FoundOffset | None:
    """What the marker says, also while it is being written; None: there is none. Raises OSError."""
    path = place.path
    content, stamp = _read_stamped(fs, path)
    if content is None:
        return None
    shadow = ShadowCopy.unpack(read_small(fs, place.shadow, SHADOW.size) or b"")
    value = int.from_bytes(content[:MARKER_SIZE], place.byte_order) if len(content) >= MARKER_SIZE else None
    if content and value is None:
        reason = f"{len(content)} bytes instead of {MARKER_SIZE}"
    elif shadow is not None and shadow.value != value and shadow.stamp == stamp:
        reason = f"it says {value}, which nobody has written: bits rotted"
    else:
        return FoundOffset(value, stamp, shadow == (value, stamp), None)
    offset = shadow.value if shadow is not None else None
    repair = Repair(
        path=path,
        kept=0,
        dropped=len(content),
        reason=f"{reason}; the last offset that is known is {'none' if offset is None else offset}",
    )
    return FoundOffset(offset, stamp, False, repair)


def _read_stamped(fs: FileSystem, path: str) -> tuple[bytes | None, Stamp | None]:
    """A marker's bytes, and the stamp of the file that held them, if nobody wrote it meanwhile."""
    content = None
    for _ in range(_TRIES):
        stamp = fs.stamp_of(path)
        content = read_small(fs, path, MARKER_SIZE)
        if stamp == fs.stamp_of(path):
            return content, stamp
    return content, None


# --- one marker -----------------------------------------------------------------------------------


def joined(syncs: Iterable[Sync]) -> Barrier:
    """One barrier for several markers: they are replaced together, or those that were not are pending again.

    Each sync is then completed as the one barrier went.
    """
    barriers = [sync.barrier for sync in syncs]
    return Barrier(
        files=tuple(handle for barrier in barriers for handle in barrier.files),
        directories=tuple(dict.fromkeys(path for barrier in barriers for path in barrier.directories)),
        replacements=tuple(each for barrier in barriers for each in barrier.replacements),
        removals=tuple(path for barrier in barriers for path in barrier.removals),
    )


class Marker(Synced, Closing):
    """A number that its holder moves. For one thread at a time, and for who holds its lock."""

    def __init__(
        self,
        fs: FileSystem,
        place: MarkerPlace,
        *,
        sync_every: int = 2500,
        sync_timeout: float = 2.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Take up what it says; the directories are there.

        `commit` syncs after `sync_every` messages, or `sync_timeout` seconds after the first. Raises
        DiskFullError where a new marker finds no room; OSError.
        """
        policy = SyncPolicy(sync_every, sync_timeout)
        what = f"the marker {place.path}"
        super().__init__(fs, log, place.path, what, policy, clock or fs.monotonic)
        self._place = place
        tell_of_forks(self)
        self._shadow = -1
        self._owes_shadow = True  # it may not be synced, whoever wrote it
        found = read_marker(fs, place)
        if found is None:
            with room_wanted(self.path):
                # As go-diskq does it; from now on the group counts as one that reads the partition.
                fs.close(fs.open(self.path, write=True, create=True))
            found = FoundOffset(None, None, False, None)
        self.committed = self.durable = found.offset
        """What it says, and what of that is on stable storage; None: nothing yet."""
        self.repairs: tuple[Repair, ...] = () if found.repair is None else (found.repair,)
        """What was wrong with the marker when it was opened."""
        self._is_wrong = found.repair is not None  # the file, which is to be written anew
        # Whoever made them may have died before they were durable.
        above = place.above
        self._pending_syncs = PendingSyncs(directories=dict.fromkeys(above))
        self._pending_syncs.removals += place.leftovers()
        try:
            self._open_shadow()
            if found.repair is None:
                # Of what a peer has done, or we before a crash; and again, where a sync of it failed.
                self._write_shadow()
        except BaseException:
            self.abandon()
            raise
        if found.repair is not None:
            log.repaired(found.repair)
            self.policy.passed(1, self.clock())

    def commit(self, offset: int | None, *, seek: bool = False) -> None:
        """Everything up to `offset` is processed. Durable with the next sync, which may be due now.

        It goes forward only, unless `seek`; None, with `seek`, is as if nothing had been processed. Raises
        ValueError, TypeError; DiskFullError and StorageFailedError as `sync`.
        """
        if self.move(offset, seek=seek):
            self.sync()

    def sync(self) -> None:
        """Return when the last commit is on stable storage.

        Raises DiskFullError where there is no room: it is pending still. Raises StorageFailedError, after
        which the marker is of no use but to be closed.
        """
        sync = self.prepare()
        if sync is not None and not self.run(sync):
            raise DiskFullError(self.path, f"{NO_ROOM}: the last commit is not durable")

    def close(self) -> None:
        """Sync, and let go of it. Idempotent. Raises as `sync`; the marker is closed all the same."""
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

    # --- the same, for a channel that waits where this cannot -------------------------------------

    def move(self, offset: int | None, *, seek: bool = False) -> bool:
        """As `commit`, leaving the sync to the caller. True: one is due."""
        self.check_usable()
        if offset is None:
            if not seek:
                raise ValueError("only a seek goes back to where nothing was processed")
        elif isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"an offset is a whole number, got {offset!r}")
        elif not 0 <= offset <= LARGEST_OFFSET:
            raise ValueError(f"an offset is 0 to {LARGEST_OFFSET}, got {offset}")
        if not seek and self.committed is not None and offset is not None and offset <= self.committed:
            return self.note()
        # What counts is how much would be done again after a crash: one commit may stand for a batch.
        passed = 1 if seek or offset is None else offset - (-1 if self.committed is None else self.committed)
        self.committed = offset
        now = self.clock()
        self.policy.passed(passed, now)
        return self.policy.due(now)

    def note(self) -> bool:
        """Is a sync due by now?"""
        return self.policy.due(self.clock())

    def prepare(self) -> Sync | None:
        """A sync of the last commit; None where it is durable. Execute it; then `complete` it, or `fail`."""
        self.check_usable()
        self._check_idle()
        self.policy.taken()
        if self.committed == self.durable and not self._is_wrong:
            return None
        order = self._place.byte_order
        content = b"" if self.committed is None else self.committed.to_bytes(MARKER_SIZE, order)
        temporary = self._place.temporary
        shadow = (self._shadow,) if self._owes_shadow and self._shadow >= 0 else ()
        barrier = self._pending_syncs.freeze(shadow, (Replacement(self.path, content, temporary),))
        self._in_flight = Sync(barrier=barrier, state=self.committed)
        return self._in_flight

    def complete(self, sync: Sync, is_replaced: bool) -> None:
        self._landed(sync)
        self._owes_shadow = False
        if not is_replaced:
            self._note_not_replaced(self.path)
            return
        self.durable = sync.state
        self._is_wrong = False
        self._write_shadow()

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork: it is the parent's."""
        self.failure = ForkedError(self.path, pid)
        self._shadow = -1

    def _open_shadow(self) -> None:
        try:
            self._shadow = self._fs.open(self._place.shadow, write=True, create=True)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            # There is none, then, and no room for one: the marker is believed without.

    def _write_shadow(self) -> None:
        """Let the shadow copy say what the marker says, if that is what we know to be durable."""
        if self._shadow < 0:
            return
        self._owes_shadow = True
        try:
            content, stamp = _read_stamped(self._fs, self.path)
            value = -1 if self.durable is None else self.durable
            if stamp is None or value < 0 or content != value.to_bytes(MARKER_SIZE, self._place.byte_order):
                self._fs.truncate(self._shadow, 0)
            else:
                write_all(self._fs, self._shadow, ShadowCopy(value, stamp).pack(), 0)
        except OSError as failure:
            # As it is it tells of an older marker, whose number and time the next one may have again.
            with contextlib.suppress(OSError):
                self._fs.truncate(self._shadow, 0)
            log.tell(
                "unguarded",
                "%s: rot in it would not be noticed: %s",
                self.path,
                failure,
                path=self.path,
                error=failure,
            )


@contextlib.contextmanager
def room_wanted(path: str) -> Iterator[None]:
    """Raises DiskFullError where the block raises OSError for want of room."""
    try:
        yield
    except OSError as failure:
        if failure.errno in FULL_DISK_ERRNOS:
            raise DiskFullError(path, f"the disk is full ({failure})") from failure
        raise
