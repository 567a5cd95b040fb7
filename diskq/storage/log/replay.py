# Replay of a log after a crash: the one table of what becomes of records that a log holds. Law: they are
# compared with the files at every open. Bytes of another program are never written over; what cannot be put
# in its place is appended again or kept aside, and reported.
#
#   in the place of the records             what is done
#   ---------------------------             ------------
#   they are there                          nothing, or they are made durable there
#   it is free: the file ends there, or     they are written
#     inside them, with their beginning
#   other bytes: another program has        these stay; the records are displaced, and all later ones of that
#     written since                         file: the engine appends them again, at the end
#   the file is gone, or ends before them   they are kept aside: to append them would hide that bytes are
#                                           missing
#
# If another program may have written since, nothing is written in place: records that are not there are
# displaced.
#
# It comes before anything else is judged. A second replay changes nothing, so an open may be killed at any
# step. What the records were promised makes three differences:
#
#                           accepted (write-ahead log)         synced (redo log)
#   they are there          enough: a kill leaves the page     they are written once more, and synced: the
#                           cache                              page cache alone may have them
#   a free place may have   nothing                            zeros: a power cut leaves them
#   and is in               the last file: one after it is     any file: a later one may be diskq's own
#                           another program's
#
# Of the redo log, the checksums of records that are in their place are put into theirs. If another program
# may have written since, those from the first displaced record on are void, in the file and in the
# write-ahead log: they would judge that program's bytes. Afterwards the files are as if each sync of the log
# had been one of the files. After a kill nothing is missing; but the boot id does not tell a kill from a disk
# that went away and came back while the machine ran on (it was detached, or unmounted after an error), which
# leaves what a power cut does. So it is not asked.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from diskq._native.core.append_buffer import WAL_RECORDS
from diskq.storage.append_file import ChecksumFile, void_rows
from diskq.storage.barrier import Barrier, opened, write_all
from diskq.storage.checksums import ROW, Row, Rows, unpack_row
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, full_disk_ignored
from diskq.storage.log.entries import (
    CHECKSUMS,
    DATA,
    Displaced,
    LogEntry,
    Part,
    Staging,
    WalContent,
    lost_without,
)
from diskq.storage.log.format import WAL_SIZE, RedoContent, load_wal, read_redo, shown_rows, wal_place
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import Repair, RepairKind, keep_content, keep_copy

__all__ = [
    "LAST_NOT_WHOLE",
    "Covers",
    "FromLog",
    "LogReplay",
    "Placed",
    "RedoSource",
    "Redone",
    "Replayed",
    "is_part_of",
    "missing_size",
    "not_displaced",
    "replay_redo",
    "replay_wal",
    "row_at",
    "rows_to_add",
    "view_with_rows",
]


class LogReplay:
    """One replay of one log. Call `finish` after the last record, and `close` in any case."""

    def __init__(
        self,
        fs: FileSystem,
        stagings: Mapping[int, Staging],
        *,
        in_place: bool,
        are_synced: bool,
        on_full: Callable[[Part, bool], bool],
    ) -> None:
        """`in_place`: False if another program may have written since.

        `on_full` is called with a part for which the disk is too full, and True if it is there already.
        True: the part is left as it is. False: it is written once more, perhaps into space that was freed.
        """
        self._fs = fs
        self._stagings = stagings
        self._in_place = in_place
        self._are_synced = are_synced
        self._on_full = on_full
        self._handles: dict[str, int] = {}  # of the files that were written to
        self._displaced: dict[tuple[int, int], list[Part]] = {}  # by group and file

    def put(self, part: Part) -> int | None:
        """Put records into their data file, or find them there.

        Returns how many of their bytes, at the end, were not there. None: they are displaced, or kept aside.
        """
        place = (part.group, part.file)
        missing = None if place in self._displaced else self._missing_before(part)
        if missing is None:
            self._displaced.setdefault(place, []).append(part)
        return missing

    def _missing_before(self, part: Part) -> int | None:
        path = self._stagings[part.group].data(part.file)
        there = self.there(part)
        if there is None:
            return None
        if there == part.content:
            if self._are_synced:
                self.write(path, part)
            return 0
        if self._in_place and self._is_free(part, there):
            self.write(path, part)
            return missing_size(there, part.content)
        return None

    def _is_free(self, part: Part, there: bytes) -> bool:
        """True if no other program has written in the place of the records, where these bytes are."""
        if self._are_synced:
            return is_part_of(there, part.content)
        return part.content.startswith(there) and self._stagings[part.group].is_last(part.file)

    def there(self, part: Part) -> bytes | None:
        """Return the bytes in the place of the records; None if the file is gone, or ends before them."""
        path = self._stagings[part.group].data(part.file)
        size = self._fs.size_of(path)
        if size is None or size < part.position:
            return None
        with opened(self._fs, path) as handle:
            return self._fs.pread(handle, len(part.content), part.position)

    def write(self, path: str, part: Part, *, create: bool = False) -> None:
        """Write the part to the file at `path`; `finish` syncs what was synced. Raises OSError."""
        handle = self._handles.get(path)
        if handle is None:
            handle = self._handles[path] = self._fs.open(path, write=True, create=create)
        # Also over equal bytes: after a failed sync the kernel takes pages that it did not write for written.
        try:
            write_all(self._fs, handle, part.content, part.position)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            # Some file systems write in other places, and need space for that.
            is_there = self._fs.pread(handle, len(part.content), part.position) == part.content
            if not self._on_full(part, is_there):
                write_all(self._fs, handle, part.content, part.position)

    def finish(self) -> tuple[list[Displaced], list[Repair]]:
        """Sync what has to be durable, and keep aside what belongs nowhere.

        Returns the records that are to be appended again, and what to report. Raises OSError.
        """
        if self._are_synced:
            Barrier(files=tuple(self._handles.values())).execute(self._fs)
        displaced: list[Displaced] = []
        lost: dict[int, list[tuple[Repair, bytes]]] = {}  # by group: one file keeps all its records
        for (group, file), parts in self._displaced.items():
            path, first = self._stagings[group].data(file), parts[0]
            records = b"".join(part.content for part in parts)
            size = self._fs.size_of(path)
            if not self._in_place or (size is not None and size >= first.position):
                displaced.append(Displaced(path, first._replace(content=records)))
                continue
            ends = "is gone" if size is None else f"ends at byte {size}"
            which = "synced" if self._are_synced else "accepted"
            repair = Repair(
                path=path,
                kind=RepairKind.DISPLACED,
                kept=size or 0,
                dropped=len(records),
                reason=f"the file {ends}, {which} messages belong at byte {first.position}",
                records=None,
            )
            lost.setdefault(group, []).append((repair, records))
        repairs: list[Repair] = []
        for group, its in lost.items():
            records = b"".join(each for _, each in its)
            aside = keep_content(self._fs, self._stagings[group].path, records)
            repairs += (replace(repair, saved_as=aside) for repair, _ in its)
        return displaced, repairs

    def close(self) -> None:
        """Close the files that were written to. Idempotent."""
        handles, self._handles = self._handles, {}
        Barrier(closing=tuple(handles.values())).execute(self._fs)


def is_part_of(there: bytes, content: bytes) -> bool:
    """True if each byte that is there is the one of `content`, or was never written."""
    return content.startswith(there) or all(
        byte in (0, own) for byte, own in zip(there, content, strict=False)
    )


def missing_size(there: bytes, content: bytes) -> int:
    """Return how many bytes of `content`, at its end, are not those that are there."""
    if content.startswith(there):
        return len(content) - len(there)
    pairs = zip(there, content, strict=False)
    return len(content) - next(at for at, (left, right) in enumerate(pairs) if left != right)


def not_displaced(
    repairs: Iterable[Repair],
    displaced: Sequence[Displaced],
    counted: Callable[[bytes], int],
    *,
    reported: Sequence[Repair] = (),
) -> Iterator[Repair]:
    """Return the repairs without the lost messages that are appended again. `counted` as `lost_without`.

    Those that are `reported` already are without them.
    """
    for repair in repairs:
        if not repair.records or repair in reported:
            yield repair
            continue
        lost = lost_without(displaced, repair.path, repair.kept, repair.records, counted, repair.dropped)
        yield replace(repair, records=lost)


# --- the write-ahead log ------------------------------------------------------------------------------


@dataclass(slots=True)
class Replayed:
    """The result of replaying a write-ahead log."""

    displaced: Displaced | None = None
    """Accepted records whose place is used: they are to be appended again."""
    restored: Part | None = None
    """Accepted records that are in their place now. Checksums need not cover them."""
    repairs: list[Repair] = field(default_factory=list)
    """Parts of it that were unreadable or missing."""
    has_added_rows: bool = False
    """True if it held checksums, and all of them are in their checksum files now."""


def replay_wal(
    fs: FileSystem,
    staging: Staging,
    *,
    was_restarted: bool | None,
    was_staging: bool,
    in_place: bool = True,
    voided: Mapping[int, int] = MappingProxyType({}),
) -> Replayed:
    """After a kill, write the records in the write-ahead log to their places, unless they are there.

    `was_restarted`: True if other sources say that the machine was restarted; None: they do not know.
    `was_staging`: True if the write-ahead log should exist. Without `in_place` nothing is written, and
    records that are not fully in place are displaced: for files whose checksums could not show the damage of
    a power cut at this moment. `voided`: by file, the byte after which the checksums describe bytes that are
    gone. A second call changes nothing, and the write-ahead log stays unchanged. Raises OSError; on a full
    disk only if the write-ahead log has no reserve, or another program used its space.
    """
    found = Replayed()
    content = load_wal(fs, staging.path)
    staging = staging._replace(path=wal_place(fs, staging.path))
    if content is None:
        if was_staging and not was_restarted:
            size = fs.size_of(staging.path)
            what = "is gone" if size is None else f"has only {size} bytes that can be read"
            reason = f"it {what}: messages accepted just before the process died may be lost"
            found.repairs.append(
                Repair(
                    path=staging.path, kind=RepairKind.LOST, kept=0, dropped=0, reason=reason, records=None
                )
            )
        return found
    is_believed = content.is_of_this_run
    if is_believed is None:
        is_believed = was_restarted is False
    if not is_believed:
        return found
    if content.waiting is not None:
        _put(fs, staging, content, in_place, found)
    elif content.unreadable:
        found.repairs.append(_keep_unreadable(fs, staging.path, content.unreadable))
    rows = [(file, row) for file, row in content.rows if row.end <= voided.get(file, row.end)]
    found.has_added_rows = _add_rows(fs, staging, rows) and bool(rows)
    return found


def _put(fs: FileSystem, staging: Staging, content: WalContent, in_place: bool, found: Replayed) -> None:
    """Put the waiting records into their place, and record in `found` what became of them."""
    waiting = content.waiting
    assert waiting is not None
    if content.may_be_consumed and fs.size_of(staging.data(waiting.file)) is None:
        return

    def use_reserve(*_: object) -> bool:
        with opened(fs, staging.path, write=True) as handle:
            fs.truncate(handle, WAL_SIZE)
        return False

    files = LogReplay(fs, {0: staging}, in_place=in_place, are_synced=False, on_full=use_reserve)
    try:
        if files.put(waiting) is not None:
            found.restored = waiting
        displaced, repairs = files.finish()
        found.displaced = displaced[0] if displaced else None
        found.repairs += repairs
    finally:
        files.close()


def _keep_unreadable(fs: FileSystem, path: str, size: int) -> Repair:
    handle = fs.open(path)
    try:
        aside = keep_copy(fs, handle, path, end=WAL_SIZE)
    except OSError as failure:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise
        aside = None
    finally:
        fs.close(handle)
    reason = "its checksum is wrong: messages accepted just before the process died may be lost"
    return Repair(
        path=path,
        kind=RepairKind.CORRUPT,
        kept=WAL_RECORDS,
        dropped=size,
        reason=reason,
        records=None,
        saved_as=aside,
    )


# --- the checksums in a write-ahead log ---------------------------------------------------------------


def rows_to_add(fs: FileSystem, staging: Staging) -> dict[int, list[Row]]:
    """Return the rows of the write-ahead log that continue each checksum file, by the file's number.

    They are what the next open would add; else as `rows_on`. Raises OSError.
    """
    shown = shown_rows(fs, staging.path)
    found = {file: _missing_rows(fs, staging, file, shown) for file in {file for file, _ in shown}}
    return {file: missing.rows for file, missing in found.items() if missing is not None and missing.rows}


def row_at(rows: Sequence[Row], covered: int, position: int) -> Row | None:
    """Return the row of the block at `position` among rows of a write-ahead log; the checksum file's end at
    byte `covered`.
    """
    return next((row for row in _following(rows, covered) if row.end > position), None)


def view_with_rows(fs: FileSystem, staging: Staging, rows: Mapping[int, Sequence[Row]]) -> OverlayFS:
    """Return a view of the files with these rows (`rows_to_add`) in their checksum files.

    For a store that a process may have open. No file is changed. The caller closes the view. Raises OSError.
    """
    view = OverlayFS(fs)
    try:
        _add_rows(view, staging, [(file, row) for file, its in rows.items() for row in its])
    except BaseException:
        view.close_all()
        raise
    return view


class _MissingRows(NamedTuple):
    """Rows to be added to a checksum file."""

    kept: int
    """Bytes of the rows that are there."""
    covered: int
    """The byte of the data that those rows reach."""
    rows: list[Row]


def _missing_rows(
    fs: FileSystem, staging: Staging, file: int, shown: Sequence[tuple[int, Row]]
) -> _MissingRows | None:
    """Return the rows to add for a file; None if it is gone, or complete by its checksum file."""
    if fs.size_of(staging.data(file)) is None and fs.size_of(staging.checksum_file(file)) is None:
        return None
    rows = Rows(fs, staging.checksum_file(file))
    try:
        rows.seek(2**62)
        kept, covered, last = rows.consumed, rows.last_end, rows.last
    finally:
        rows.close()
    if last is not None and last.is_seal:
        return None
    return _MissingRows(kept, covered, _following([row for its, row in shown if its == file], covered))


def _add_rows(fs: FileSystem, staging: Staging, shown: Sequence[tuple[int, Row]]) -> bool:
    """Add the rows that continue each checksum file. False: the disk is full."""
    has_room = True
    for file in sorted({file for file, _ in shown}):
        missing = _missing_rows(fs, staging, file, shown)
        if missing is not None and missing.rows:
            try:
                _add_missing(fs, staging.checksum_file(file), missing)
            except OSError as failure:
                if failure.errno not in FULL_DISK_ERRNOS:
                    raise
                has_room = False
    return has_room


def _add_missing(fs: FileSystem, path: str, missing: _MissingRows) -> None:
    checksum_file = ChecksumFile.open(fs, path, missing.kept, missing.covered)
    try:
        for row in missing.rows:
            checksum_file.add_row(row.end, row.end - row.start, row.records, row.crc)
        checksum_file.flush()
    finally:
        fs.close(checksum_file.handle)


def _following(rows: Sequence[Row], covered: int) -> list[Row]:
    """Return the rows that continue from byte `covered` without a gap; of several, the longest."""
    found: list[Row] = []
    while True:
        starting = [row for row in rows if row.start == covered]
        if not starting:
            return found
        found.append(max(starting, key=lambda row: row.end))
        covered = found[-1].end


# --- the redo log -------------------------------------------------------------------------------------

Covers = Callable[[int, int, int], bool]
"""Called with group, file and the byte after the records: True if they are durable, or were consumed."""


class RedoSource(NamedTuple):
    """What a replay needs to know of a store."""

    stagings: Mapping[int, Staging]
    """The files, by group: the number of a partition, or 0."""
    in_place: bool
    """False if another program may have written since the log was."""
    is_covered: Covers
    counted: Callable[[bytes], int]
    """Returns how many messages some records are."""
    are_zeros_skipped: bool = False
    """True if readers pass over zeros. Then they replace what a power cut has left of displaced records."""


class Placed(NamedTuple):
    """Bytes that are in their place: of a data file, and of the checksum file (b"": not known)."""

    group: int
    file: int
    data: str
    position: int
    content: bytes
    checksum_file: str
    checksums_at: int = 0
    checksums: bytes = b""


class FromLog(NamedTuple):
    """What a replay has found of one data file in a redo log."""

    path: str
    records: int
    """Messages that were in the log alone."""
    size: int
    """Their bytes; 0: the file had all of them."""
    checksummed: int = 0
    """The byte of the data that the checksums of the log reach."""
    is_displaced: bool = False
    """True if another program may have written in their place: they are appended again, at the end."""


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
    found: list[FromLog] = field(default_factory=list)
    """What the log had of each data file, by path; displaced records apart, and first."""
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

    `named`: the number of the log that the state names; 0: none; -1: it cannot be known. `was_displaced`:
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
        self._found: dict[str, FromLog] = {}  # of what is in its place, by path

    def run(self, content: RedoContent) -> None:
        done = self._done
        try:
            for entry in content.entries:
                self._replay(entry)
            done.displaced, repairs = self._files.finish()
        finally:
            self._files.close()
        done.repairs += repairs
        counted = self._source.counted
        for path, part in done.displaced:
            done.found.append(FromLog(path, counted(part.content), len(part.content), is_displaced=True))
        done.found += (its for _, its in sorted(self._found.items()))
        for _, (group, _, file, start, _) in () if self._source.in_place else done.displaced:
            done.voided[group, file] = start
            void_rows(self._fs, self._source.stagings[group].checksum_file(file), start)

    def _replay(self, entry: LogEntry) -> None:
        checksums: dict[tuple[int, int], list[Part]] = {}
        for part in entry.parts:
            if part.kind == CHECKSUMS:
                checksums.setdefault((part.group, part.file), []).append(part)
        last: dict[tuple[int, int], Part] = {}  # of those that were put in their place
        for part in entry.parts:
            place = (part.group, part.file)
            if part.kind != DATA or part.group not in self._source.stagings:
                continue
            end = part.position + len(part.content)
            if self._is_covered(part.group, part.file, end):
                continue
            missing = self._files.put(part)
            if missing is None:
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
            self._note_found(placed, missing)

    def _note_found(self, placed: Placed, missing: int) -> None:
        its = self._found.get(placed.data) or FromLog(placed.data, 0, 0)
        records = 0
        if missing:
            there = placed.content[: len(placed.content) - missing]
            records = self._source.counted(placed.content) - self._source.counted(there)
        last = unpack_row(placed.checksums[-ROW.size :])
        self._found[placed.data] = its._replace(
            records=its.records + records,
            size=its.size + missing,
            checksummed=max(its.checksummed, 0 if last is None else last.end),
        )

    def _is_free(self, path: str, part: Part) -> bool:
        """True if nothing else is in the place of these bytes."""
        size = self._fs.size_of(path) or 0
        if size <= part.position:
            return size == part.position
        with opened(self._fs, path) as handle:
            return is_part_of(self._fs.pread(handle, len(part.content), part.position), part.content)

    def _erase_rest(self, part: Part) -> None:
        """Replace by zeros what a power cut has left of records: beside a peer's, framing is believed."""
        there = self._files.there(part)
        if not there or not self._source.are_zeros_skipped or there == part.content:
            return
        if is_part_of(there, part.content):
            zeros = part._replace(content=bytes(len(there)))
            self._files.write(self._source.stagings[part.group].data(part.file), zeros)

    def _can_lack(self, part: Part, is_there: bool) -> bool:
        """True if the disk may be too full to write this part: it is there, or can be made again.

        After a restart of the machine, records without checksums are not believed: then these are needed.
        """
        can_lack = is_there or (part.kind == CHECKSUMS and self._has_run_on)
        if can_lack:
            self._done.is_durable = False
        return can_lack
