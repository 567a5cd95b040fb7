# A view of a store's state, without opening the store. Law: a view shows what an open would find now, by the
# same code; nothing is locked, made or changed.
#
# A process that has the store may continue meanwhile. A view then has a beginning of its log: every command
# up to one, and none after it. Only a snapshot can remove a file that is about to be read: then the view is
# made again. What is written between two reads may look like damage: only what two views show is reported.

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, TypeVar

from diskq.engine.log.recovery import trust_of_store
from diskq.engine.priority.command_log import read_segment
from diskq.engine.priority.files import StoreFiles, StorePoint
from diskq.engine.priority.recovery import FoundStore, recover_store
from diskq.engine.priority.snapshot import BadSnapshot, read_head
from diskq.engine.priority.state import StoredQueue
from diskq.engine.priority.store import PriorityQueueInfo, PriorityStore
from diskq.errors import CorruptionError, DamagedStoreError, UnsupportedFormatError
from diskq.storage.barrier import PendingSyncs
from diskq.storage.checksums import checksum
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.lock import holder_of
from diskq.storage.log_events import nothing_logged
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import Repair

__all__ = [
    "CommandMark",
    "Repair",
    "StoreLook",
    "StoreOpening",
    "command_mark",
    "last_command",
    "log_trace",
    "look_at_store",
    "repair_store",
    "try_opening",
]

T = TypeVar("T")

# Warnings of an open for something that was cut, or begun anew.
_CUTS = {
    "tail_truncated",
    "valid_records_dropped",
    "segment_reinitialised",
    "log_behind_snapshot",
    "segments_dropped",
}
# Bytes at each end of what a mark is made from.
_MARKED = 512
# Attempts, if new snapshots come in between.
_MOST_LOOKS = 10


# --- the state ------------------------------------------------------------------------------------


class CommandMark(NamedTuple):
    """What is in a store's files up to a command: it can be compared, and pickled."""

    base: int | None
    """The segment; None: the snapshot."""
    end: int
    """The byte after the last one that counts."""
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLook:
    """The queues of a store, with their messages, those in flight included."""

    queues: Mapping[str, StoredQueue]
    lsn: int
    """The last command that they include; -1: none."""
    losses: tuple[Repair, ...] = ()
    """Damage that was skipped, with which messages were, or may have been, lost."""

    def infos(self) -> list[PriorityQueueInfo]:
        """Return the queues, by name."""
        return [PriorityQueueInfo.of(queue) for _, queue in sorted(self.queues.items())]


def look_at_store(path: AnyPath, *, fs: FileSystem | None = None, until: int | None = None) -> StoreLook:
    """Return the state of the store at `path`, which may be in use: as some recent command left it.

    With `until`, as the command with this number left it; if a snapshot covers more by now, `lsn` says so.
    Raises FileNotFoundError if there is no store, DamagedStoreError, UnsupportedFormatError, OSError.
    """
    disk = fs or OsFileSystem()
    files = StoreFiles.existing(disk, path)

    def look(overlay: OverlayFS) -> StoreLook:
        there = StoreFiles(overlay, files.root)
        overlay.make_directory(there.private)
        point = StorePoint.read(overlay, there)
        trust = trust_of_store(overlay, point, None)
        found = recover_store(overlay, there, point, PendingSyncs(), strict=False, trust=trust, until=until)
        losses = tuple(repair for repair in found.repairs if repair.records != 0)
        return StoreLook(queues=found.queues, lsn=_last(found, until), losses=losses)

    return _steadily(disk, files, look)


def _last(found: FoundStore, until: int | None) -> int:
    last = found.bases[-1] + found.records - 1
    return last if until is None else min(last, max(until, found.snapshot_lsn))


def last_command(path: AnyPath, *, fs: FileSystem | None = None) -> int:
    """Return the number of the last whole command in the store at `path`; -1 if there is none.

    Reads no state. Raises FileNotFoundError if there is no store, OSError.
    """
    disk = fs or OsFileSystem()
    files = StoreFiles.existing(disk, path)

    def look(overlay: OverlayFS) -> int:
        there = StoreFiles(overlay, files.root)
        last = _snapshot_of(overlay, there)
        for base in there.segments()[-1:]:
            scanned = read_segment(overlay, overlay.open(there.segment(base)), allows_bad=True)
            last = max(last, base + scanned.records - 1)
        return last

    return _steadily(disk, files, look)


def command_mark(
    path: AnyPath, lsn: int, *, as_in: CommandMark | None = None, fs: FileSystem | None = None
) -> CommandMark | None:
    """Return a value that differs for a store with other commands up to the one with this number.

    It is made from the segment of that command, or if a snapshot is all there is, from that; with `as_in`,
    from the same bytes as that earlier one. None if they are gone. Reads no state. Raises FileNotFoundError
    if there is no store, OSError.
    """
    disk = fs or OsFileSystem()
    files = StoreFiles.existing(disk, path)

    def look(overlay: OverlayFS) -> CommandMark | None:
        there = StoreFiles(overlay, files.root)
        if as_in is not None:
            base, end = as_in.base, as_in.end
            is_there = _snapshot_of(overlay, there) == lsn if base is None else base in there.segments()
            return _mark(overlay, there, base, end) if is_there else None
        for base in reversed(there.segments()):
            scanned = read_segment(overlay, overlay.open(there.segment(base)), allows_bad=True)
            if base <= lsn < base + scanned.records:
                return _mark(overlay, there, base, scanned.end)
        if lsn < 0 or _snapshot_of(overlay, there) != lsn:
            return None
        return _mark(overlay, there, None, overlay.size_of(there.snapshot) or 0)

    return _steadily(disk, files, look)


def _mark(fs: FileSystem, files: StoreFiles, base: int | None, end: int) -> CommandMark:
    """Return the checksum of the first and the last bytes before byte `end` of that file."""
    handle = fs.open(files.snapshot if base is None else files.segment(base))
    first = fs.pread(handle, min(_MARKED, end), 0)
    last = fs.pread(handle, min(_MARKED, end), max(0, end - _MARKED))
    return CommandMark(base, end, checksum(first + last))


def _snapshot_of(fs: FileSystem, files: StoreFiles) -> int:
    """Return the last command that the snapshot includes; -1 if there is none, or it cannot be read."""
    if not fs.size_of(files.snapshot):
        return -1
    try:
        read = read_head(fs, fs.open(files.snapshot))
    except BadSnapshot:
        read = None
    return -1 if read is None else read[0].lsn


def log_trace(path: AnyPath, *, fs: FileSystem | None = None) -> Hashable:
    """Return a value that changes when commands are written to the store. Raises as `last_command`."""
    disk = fs or OsFileSystem()
    files = StoreFiles.existing(disk, path)
    bases = files.segments()
    newest = files.segment(bases[-1]) if bases else files.snapshot
    return tuple(bases), disk.size_of(newest), disk.stamp_of(newest), disk.stamp_of(files.snapshot)


def _steadily(fs: FileSystem, files: StoreFiles, look: Callable[[OverlayFS], T]) -> T:
    """Return the result of `look`, which is called again if a snapshot comes in between.

    The segments that it covers may be removed only later.
    """
    for attempt in count(1):
        before = fs.stamp_of(files.snapshot), files.segments()
        with OverlayFS(fs) as overlay:
            try:
                return look(overlay)
            except (FileNotFoundError, DamagedStoreError):
                now = fs.stamp_of(files.snapshot), files.segments()
                if attempt == _MOST_LOOKS or now == before:
                    raise
    raise AssertionError


# --- opening it, and repairing --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOpening:
    """The findings and actions of an open of a store."""

    queues: tuple[PriorityQueueInfo, ...] = ()
    next_lsn: int = 0
    layout: str = ""
    repairs: tuple[Repair, ...] = ()
    warnings: Mapping[str, int]
    refusal: CorruptionError | UnsupportedFormatError | None = None
    """Why the open fails, or None."""

    @property
    def outcome(self) -> str:
        """ "ok", "mends" (a torn or unneeded part of the log is cut), or "refused"."""
        if self.refusal is not None:
            return "refused"
        return "mends" if _CUTS.intersection(self.warnings) else "ok"

    @property
    def troubles(self) -> set[Hashable]:
        """The places of what the open repairs, and of why it fails."""
        refusal = [] if self.refusal is None else [_place_of_refusal(self.refusal)]
        return {*map(_place_of, self.repairs), *refusal}


def _place_of(repair: Repair) -> Hashable:
    return repair.path, repair.kind, repair.kept, repair.dropped, repair.records


def _place_of_refusal(refusal: CorruptionError | UnsupportedFormatError) -> Hashable:
    if isinstance(refusal, UnsupportedFormatError):
        return refusal.path, refusal.found
    kind = refusal.kind if isinstance(refusal, DamagedStoreError) else None
    return refusal.path, kind, refusal.position


def try_opening(path: AnyPath, *, fs: FileSystem | None = None) -> StoreOpening:
    """Return what the next open of the store at `path` will find and do, if no process has it by then.

    Raises FileNotFoundError if there is no store, OSError.
    """
    disk = fs or OsFileSystem()
    files = StoreFiles.existing(disk, path)

    def look() -> StoreOpening:
        try:
            with nothing_logged():
                return _steadily(disk, files, lambda overlay: _opening(path, overlay))
        except (CorruptionError, UnsupportedFormatError) as refusal:
            return StoreOpening(warnings={}, refusal=refusal)

    found = look()
    for _ in range(_MOST_LOOKS):
        if not found.troubles or not _may_be_written(disk, files):
            break
        before, found = found.troubles, look()
        if found.refusal is None:
            agreed = tuple(repair for repair in found.repairs if _place_of(repair) in before)
            return replace(found, repairs=agreed, warnings=found.warnings if agreed else {})
        if _place_of_refusal(found.refusal) in before:
            break
    return found


def _may_be_written(fs: FileSystem, files: StoreFiles) -> bool:
    """True if a process has the store open, or it is unknown whether one has."""
    return any(holder_of(fs, path)[1] is not False for path in (files.lock, files.metadata))


def repair_store(path: AnyPath, *, dry_run: bool = False, fs: FileSystem | None = None) -> StoreOpening:
    """Open the store at `path` despite damage: its log ends there, and cut bytes are kept aside.

    With `dry_run` nothing is changed: the result is what it would do. Raises FileNotFoundError if there is no
    store, LockedError if another process has it, UnsupportedFormatError, OSError.
    """
    disk = fs or OsFileSystem()
    StoreFiles.existing(disk, path)
    if not dry_run:
        return _opening(path, disk, repairs_damage=True)
    with OverlayFS(disk, locks=True) as overlay:
        return _opening(path, overlay, repairs_damage=True)


def _opening(path: AnyPath, fs: FileSystem, *, repairs_damage: bool = False) -> StoreOpening:
    with PriorityStore(path, fs=fs, takes_snapshots=False, repairs_damage=repairs_damage) as store:
        return StoreOpening(
            queues=tuple(store.queues()),
            next_lsn=store.next_lsn,
            layout=store.layout,
            repairs=store.repairs,
            warnings=store.warnings,
        )
