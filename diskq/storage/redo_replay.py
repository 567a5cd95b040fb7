# The redo log after a crash: what of it the files may lack, and what to report of the log itself. Law: it
# comes before anything else is judged; afterwards the files are as if each sync of the log had been one of
# the files.
#
# What becomes of its records is in log/replay.py. The checksums of records that are in their place are put
# into theirs. If another program may have written since, those from the first displaced record on are void,
# in the file and in the write-ahead log: they would judge that program's bytes.
#
# After a kill nothing is missing. But the boot id does not tell a kill from a disk that went away and came
# back while the machine ran on (it was detached, or unmounted after an error), which leaves what a power cut
# does. So it is not asked.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq.storage.checksums import void_rows
from diskq.storage.closing import opened
from diskq.storage.fs import FileSystem, full_disk_ignored
from diskq.storage.log.entries import CHECKSUMS, DATA, Displaced, Part, Staging
from diskq.storage.log.replay import LogReplay, is_part_of
from diskq.storage.redo_log import RedoContent, RedoEntry, read_redo
from diskq.storage.repairs import Repair, RepairKind, keep_content, keep_copy

__all__ = ["LAST_NOT_WHOLE", "Covers", "Placed", "RedoSource", "Redone", "replay_redo"]

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
        self._source = source
        self._has_run_on = has_run_on
        self._done = done
        # If another program may have written, what was recorded as durable may have been overwritten.
        self._is_covered = source.is_covered if source.in_place else lambda *_: False
        self._files = LogReplay(
            fs, source.stagings, in_place=source.in_place, are_synced=True, on_full=self._can_lack
        )

    def run(self, content: RedoContent) -> None:
        done = self._done
        try:
            for entry in content.entries:
                self._replay(entry)
            done.displaced, repairs = self._files.finish()
        finally:
            self._files.close()
        done.repairs += repairs
        for _, (group, _, file, start, _) in () if self._source.in_place else done.displaced:
            done.voided[group, file] = start
            void_rows(self._fs, self._source.stagings[group].checksum_file(file), start)

    def _replay(self, entry: RedoEntry) -> None:
        checksums: dict[tuple[int, int], list[Part]] = {}
        for part in entry.parts:
            if part.kind == CHECKSUMS:
                checksums.setdefault((part.group, part.file), []).append(part)
        last: dict[tuple[int, int], Part] = {}  # of those that were put in their place
        for part in entry.parts:
            place = (part.group, part.file)
            if part.kind != DATA or part.group not in self._source.stagings:
                continue
            if self._is_covered(part.group, part.file, part.end):
                continue
            if not self._files.put(part):
                self._erase_rest(part)
                continue
            staging = self._source.stagings[part.group]
            placed = Placed(
                *place,
                staging.data(part.file),
                part.position,
                part.content,
                staging.checksum_file(part.file),
            )
            for beside in checksums.pop(place, ()):
                if self._source.in_place or self._is_free(placed.checksum_file, beside):
                    self._files.write(placed.checksum_file, beside, create=True)
                    last[place] = beside
            if place in last:
                rows = last[place]
                placed = placed._replace(checksums_at=rows.position, checksums=rows.content)
            self._done.in_place.append(placed)

    def _is_free(self, path: str, part: Part) -> bool:
        """True if nothing else is in the place of these bytes."""
        size = self._fs.size_of(path) or 0
        if size <= part.position:
            return size == part.position
        with opened(self._fs, path) as handle:
            return is_part_of(self._fs.pread(handle, len(part.content), part.position), part.content)

    def _erase_rest(self, part: Part) -> None:
        """Replace by zeros what a power cut has left of records: beside a peer's, framing is believed."""
        there = self._files.there(part) or b""
        if self._source.are_zeros_skipped and there != part.content and is_part_of(there, part.content):
            zeros = part._replace(content=bytes(len(there)))
            self._files.write(self._source.stagings[part.group].data(part.file), zeros)

    def _can_lack(self, part: Part, is_there: bool) -> bool:
        """True if the disk may be too full to write this part: it is there, or can be made again."""
        can_lack = is_there or (part.kind == CHECKSUMS and self._has_run_on)
        if can_lack:
            self._done.is_durable = False
        return can_lack
