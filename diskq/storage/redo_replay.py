# Replay of a redo log after a crash. Law: what the log holds is compared with the files at every open. Bytes
# of another program are never written over; what cannot be put in its place is appended again or kept aside,
# and reported.
#
# It comes before anything else is judged: afterwards the files are as if each sync of the log had been one of
# the files. A second replay changes nothing.
#
#   it is in its place                      it is made durable there: it may be in the page cache alone
#   its place is empty                      the bytes are written there. A power cut leaves zeros, or the end
#                                           of the file, where bytes were not synced
#   other bytes are there                   another program has written since: the records are displaced, and
#                                           all later ones of that file with them
#   the file is gone, or ends before them   the records are kept aside
#
# If another program may have written since, nothing is written in place: records that are not there are
# displaced. Checksums from the first of them on are void then, in the file and in the write-ahead log: they
# would judge that program's bytes.
#
# After a kill nothing is missing. But the boot id does not tell a kill from a disk that went away and came
# back while the machine ran on (it was detached, or unmounted after an error), which leaves what a power cut
# does. So it is not asked.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from diskq.storage.barrier import Barrier, write_all
from diskq.storage.checksums import void_rows
from diskq.storage.closing import opened
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, full_disk_ignored
from diskq.storage.log.entries import CHECKSUMS, DATA, Displaced, Part, Staging, Waiting
from diskq.storage.redo_log import RedoContent, RedoEntry, read_redo
from diskq.storage.repairs import Repair, RepairKind, keep_content, keep_copy

__all__ = ["LAST_NOT_WHOLE", "Covers", "Placed", "RedoSource", "Redone", "is_part_of", "replay_redo"]

Covers = Callable[[int, int, int], bool]
"""Called with group, file and the byte after the records: True if they are durable, or were consumed."""


class RedoSource(NamedTuple):
    """What a replay needs to know of a store."""

    stagings: Mapping[int, Staging]
    """The files, by group: the number of a partition, or 0."""
    in_place: bool
    """False if another program may have written since the log was."""
    is_covered: Covers
    are_zeros_skipped: bool = False
    """True if readers pass over zeros. Then they replace what a power cut has left of displaced records."""


class Placed(NamedTuple):
    """Bytes of a data file that are in their place, and those of its checksum file; b"": not known."""

    group: int
    file: int
    data: str
    position: int
    content: bytes
    checksum_file: str
    checksums_at: int = 0
    checksums: bytes = b""


@dataclass(slots=True)
class Redone:
    """The result of a replay."""

    number: int = 0
    """The number of the log, which is to be cleared once all of this is durable; 0: there is none."""
    displaced: list[Displaced] = field(default_factory=list)
    """Durable records whose place is used: they are to be appended again."""
    repairs: list[Repair] = field(default_factory=list)
    in_place: list[Placed] = field(default_factory=list)
    """What is in its place now, in the order of the log."""
    voided: dict[tuple[int, int], int] = field(default_factory=dict)
    """By group and file, the byte from which on checksums of diskq's are of bytes that are gone."""
    is_durable: bool = True
    """False if it is there, and the disk had no space to write it again: the log is still needed."""


def replay_redo(
    fs: FileSystem,
    path: str,
    source: RedoSource,
    *,
    named: int,
    was_displaced: bool,
    has_run_on: bool = False,
) -> Redone:
    """Put what the log at `path` holds into the files of `source`, durably.

    `named`: the number of the log that the lock file names; 0: none; -1: it cannot be known. `was_displaced`:
    an earlier replay has found that another program may have written since, and may not have appended
    everything again. `has_run_on`: records that are in their place are believed, also where a full disk has
    no space for their checksums. Raises UnsupportedFormatError for a log of another format version; OSError.
    """
    done = Redone()
    if was_displaced:
        source = source._replace(in_place=False)
    content = read_redo(fs, path)
    if not named:
        return done
    if content is None:
        if named > 0:
            done.number = named  # named until it is cleared: the next open reports it, too, if this is killed
            done.repairs.append(_not_there(fs, path))
        return done
    if content.number is not None and named > 0 and content.number != named:
        done.number = named
        reason = "it is another store's, or an older one: "
        size = fs.size_of(path) or 0
        done.repairs.append(_keep_log(fs, path, reason, size))
        return done
    done.number = named if content.number is None else content.number
    if content.unreadable:
        reason = "its header is unreadable: " if content.number is None else "parts of it are unreadable: "
        done.repairs.append(_keep_log(fs, path, reason, content.unreadable))
    if content.torn:
        done.repairs.append(_keep_torn(fs, path, content))
    _Replay(fs, source, done, has_run_on=has_run_on).run(content)
    return done


LAST_NOT_WHOLE = (
    "its last entry is not whole: the power failed while it was written, and nothing is lost; "
    "or it is damaged, and the messages that were synced last may be lost"
)
_MAY_BE_LOST = "messages that were synced just before the power failed may be lost"


def _not_there(fs: FileSystem, path: str) -> Repair:
    what = "is gone" if fs.size_of(path) is None else "is empty"
    reason = f"it {what}: {_MAY_BE_LOST}"
    return Repair(path=path, kind=RepairKind.LOST, kept=0, dropped=0, reason=reason, records=None)


def _keep_log(fs: FileSystem, path: str, reason: str, dropped: int) -> Repair:
    """Keep a copy of a log that cannot be used as a whole."""
    aside = None
    with opened(fs, path) as handle, full_disk_ignored():
        aside = keep_copy(fs, handle, path)
    reason += _MAY_BE_LOST
    return Repair(
        path=path,
        kind=RepairKind.CORRUPT,
        kept=0,
        dropped=dropped,
        reason=reason,
        records=None,
        saved_as=aside,
    )


def _keep_torn(fs: FileSystem, path: str, content: RedoContent) -> Repair:
    """Keep a copy of an entry that is not whole: what a power cut tore was never durable."""
    aside = None
    with full_disk_ignored():
        aside = keep_content(fs, path, content.torn)
    return Repair(
        path=path,
        kind=RepairKind.TORN,
        kept=content.torn_at,
        dropped=len(content.torn),
        reason=LAST_NOT_WHOLE,
        saved_as=aside,
    )


class _Replay:
    """One replay of a log that can be read."""

    def __init__(self, fs: FileSystem, source: RedoSource, done: Redone, *, has_run_on: bool) -> None:
        self._fs = fs
        self._has_run_on = has_run_on
        self._stagings = source.stagings
        self._done = done
        self._in_place = source.in_place
        self._are_zeros_skipped = source.are_zeros_skipped
        # If another program may have written, what was recorded as durable may have been overwritten.
        self._is_covered = source.is_covered if source.in_place else lambda *_: False
        self._handles: dict[str, int] = {}  # of the files that hold it now
        self._displaced: dict[tuple[int, int], list[Part]] = {}  # by group and file
        # By group: what to report of each file that is gone, and its records. One file keeps them all.
        self._lost: dict[int, list[tuple[Repair, bytes]]] = {}

    def run(self, content: RedoContent) -> None:
        try:
            for entry in content.entries:
                self._replay(entry)
            Barrier(files=tuple(self._handles.values())).execute(self._fs)
        finally:
            Barrier(closing=tuple(self._handles.values())).execute(self._fs)
        for (group, file), parts in self._displaced.items():
            self._displace(group, file, parts)
        for group, lost in self._lost.items():
            records = b"".join(its for _, its in lost)
            aside = keep_content(self._fs, self._stagings[group].path, records)
            self._done.repairs += (replace(repair, saved_as=aside) for repair, _ in lost)

    def _replay(self, entry: RedoEntry) -> None:
        checksums: dict[tuple[int, int], list[Part]] = {}
        for part in entry.parts:
            if part.kind == CHECKSUMS:
                checksums.setdefault((part.group, part.file), []).append(part)
        last: dict[tuple[int, int], Part] = {}  # of those that were put in their place
        for part in entry.parts:
            place = (part.group, part.file)
            if part.kind != DATA or part.group not in self._stagings:
                continue
            if self._is_covered(part.group, part.file, part.end):
                continue
            if place in self._displaced or not self._put_data(part):
                self._displaced.setdefault(place, []).append(part)
                self._erase_rest(part)
                continue
            staging = self._stagings[part.group]
            placed = Placed(
                *place,
                staging.data(part.file),
                part.position,
                part.content,
                staging.checksum_file(part.file),
            )
            for beside in checksums.pop(place, ()):
                if self._in_place or self._is_free(placed.checksum_file, beside):
                    self._put(placed.checksum_file, beside, create=True)
                    last[place] = beside
            if place in last:
                rows = last[place]
                placed = placed._replace(checksums_at=rows.position, checksums=rows.content)
            self._done.in_place.append(placed)

    def _there(self, part: Part) -> bytes | None:
        """Return the bytes in the place of the records; None if the file is gone, or ends before them."""
        path = self._stagings[part.group].data(part.file)
        size = self._fs.size_of(path)
        if size is None or size < part.position:
            return None
        with opened(self._fs, path) as handle:
            return self._fs.pread(handle, len(part.content), part.position)

    def _is_free(self, path: str, part: Part) -> bool:
        """True if nothing else is in the place of these bytes."""
        size = self._fs.size_of(path) or 0
        if size <= part.position:
            return size == part.position
        with opened(self._fs, path) as handle:
            return is_part_of(self._fs.pread(handle, len(part.content), part.position), part.content)

    def _put_data(self, part: Part) -> bool:
        """Put the records in their place, or find them there. False: something else is, or nothing can be."""
        path = self._stagings[part.group].data(part.file)
        there = self._there(part)
        if there is None:
            return False
        if there != part.content and not (self._in_place and is_part_of(there, part.content)):
            return False
        self._put(path, part, create=False)
        return True

    def _erase_rest(self, part: Part) -> None:
        """Replace by zeros what a power cut has left of records: beside a peer's, framing is believed."""
        there = self._there(part) or b""
        if self._are_zeros_skipped and there != part.content and is_part_of(there, part.content):
            zeros = part._replace(content=bytes(len(there)))
            self._put(self._stagings[part.group].data(part.file), zeros, create=False)

    def _put(self, path: str, part: Part, *, create: bool) -> None:
        """Have the bytes there, durably. They may be in the page cache alone, if a replay was killed."""
        handle = self._handles.get(path)
        if handle is None:
            handle = self._handles[path] = self._fs.open(path, write=True, create=create)
        # Also over equal bytes: after a failed sync the kernel takes pages that it did not write for written.
        try:
            write_all(self._fs, handle, part.content, part.position)
        except OSError as failure:
            # Some file systems write in other places, and need space for that.
            can_lack = part.kind == CHECKSUMS and self._has_run_on
            is_there = self._fs.pread(handle, len(part.content), part.position) == part.content
            if failure.errno not in FULL_DISK_ERRNOS or not (is_there or can_lack):
                raise
            self._done.is_durable = False

    def _displace(self, group: int, file: int, parts: list[Part]) -> None:
        """Have records appended again if their file is there, and keep them aside if not."""
        staging = self._stagings[group]
        path, first = staging.data(file), parts[0]
        records = b"".join(part.content for part in parts)
        size = self._fs.size_of(path)
        if not self._in_place or (size is not None and size >= first.position):
            waiting = Waiting(file, first.position, records)
            self._done.displaced.append(Displaced(group, path, waiting))
            if not self._in_place:
                self._done.voided[group, file] = first.position
                void_rows(self._fs, staging.checksum_file(file), first.position)
            return
        ends = "is gone" if size is None else f"ends at byte {size}"
        repair = Repair(
            path=path,
            kind=RepairKind.DISPLACED,
            kept=size or 0,
            dropped=len(records),
            reason=f"the file {ends}, synced messages belong at byte {first.position}",
            records=None,
        )
        self._lost.setdefault(group, []).append((repair, records))


def is_part_of(there: bytes, content: bytes) -> bool:
    """True if each byte that is there is the one of `content`, or was never written."""
    if len(there) <= len(content) and content.startswith(there):
        return True
    return all(byte in (0, own) for byte, own in zip(there, content, strict=False))
