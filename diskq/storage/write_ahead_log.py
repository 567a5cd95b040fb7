# The write-ahead log: accepted records that wait to be written, and the checksums of those written last.
# Law: it is self-contained: it says what it holds and where that belongs, without any other file.
#
# A file of one fixed size, mapped into memory and shared with the page cache: a message staged
# there outlives the process without a system call. It is not synced, and after a restart of the
# machine it means nothing: messages that must survive one went through a barrier. So its header has
# the kernel's identifier of this boot, and it is ignored after another boot.
#
# It holds one entry: records, the file and the byte where they belong, and a checksum of all that. After a
# kill the next open puts them there (`replay`, by the table in log/replay.py).
#
# It also holds the checksums of blocks whose rows may not be in their checksum files yet, including the open
# block: after a kill every byte has a checksum. `replay` adds them to the checksum files. A writer whose
# messages do not wait has a write-ahead log of one page, for these checksums only; a clean close empties it.
# Format: docs/format/log.md.

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from diskq._native.core.append_buffer import WAL_ENTRY, WAL_RECORDS, WAL_ROW_COUNT, WAL_ROWS, AppendBuffer
from diskq._native.core.log_entry import decode_header
from diskq.errors import FullError
from diskq.storage.append_file import ChecksumFile
from diskq.storage.barrier import Barrier, write_all
from diskq.storage.checksums import Row, Rows, checksum
from diskq.storage.closing import let_go, opened
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of, join
from diskq.storage.log.entries import Displaced, LogHeader, Part, Staging, WalContent
from diskq.storage.log.format import (
    HEADER_SIZE,
    WRITTEN,
    encode_header,
    entry_of,
    head_at,
    header_in,
)
from diskq.storage.log.old_formats import OLD_WAL_NAME, old_wal_in
from diskq.storage.log.replay import LogReplay
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import Repair, RepairKind, keep_copy

__all__ = [
    "RESERVE",
    "ROWS_SIZE",
    "SIZE",
    "Replayed",
    "WriteAheadLog",
    "clear_rows",
    "clear_wal",
    "flush_to_the_end",
    "holds_all",
    "holds_nothing",
    "holds_records",
    "is_missing",
    "is_of_this_run",
    "kept_aside_since",
    "open_wal",
    "read_wal",
    "replay",
    "row_at",
    "rows_on",
    "rows_to_add",
    "view_with_rows",
]

SIZE = 64 * 1024
RESERVE = SIZE
"""Unused bytes after the mapped ones: on a full disk they are freed for the waiting records, at the close or
in recovery. A writer with many write-ahead logs has one reserve: each log frees space for the next.
"""

ROWS_SIZE = 4 * 1024
"""The size of a write-ahead log for checksums only, in bytes."""

# Bytes kept in place of a write-ahead log that did not fit, so that the next open has a little space.
_FOOTING = 16 * 1024

_ROW = struct.Struct("<qQIIII")
_CHECKED_ROW = 28
_LONGEST_BOOT = 64
_ROWS_END = WAL_ROWS + WAL_ROW_COUNT * _ROW.size
assert WAL_ROWS == HEADER_SIZE
assert WAL_ENTRY == _ROWS_END + HEADER_SIZE


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


class WriteAheadLog:
    """A write-ahead log in use by one `AppendBuffer`."""

    def __init__(
        self, fs: FileSystem, path: str, buffer: AppendBuffer, reserve: int, *, is_for_rows: bool = False
    ) -> None:
        """Create it, or clear an old one; with `is_for_rows` for checksums only. Raises OSError."""
        self._fs = fs
        self._buffer = buffer
        self._path = path
        self.is_for_rows = is_for_rows
        size = ROWS_SIZE if is_for_rows else SIZE
        self.size = size + reserve
        """Bytes on the disk."""
        self._has_reserve = reserve > 0
        self._is_closed = self._is_given_up = False
        with contextlib.ExitStack() as unless_mapped:
            with opened(fs, path, write=True, create=True) as handle:
                if is_for_rows and fs.size(handle) > size:
                    fs.truncate(handle, size)
                number = fs.unique_number()
                areas, area = (0, 0) if is_for_rows else (1, size - WAL_ENTRY)
                header = encode_header(LogHeader(WRITTEN, number, _boot(fs), WAL_ENTRY, areas, area))
                head = header.ljust(_ROWS_END, b"\0") + header
                # Real zeros, so that a full disk fails here and not when the memory is written.
                write_all(fs, handle, head + bytes(self.size - WAL_ENTRY), 0)
                self._memory = fs.share_memory(handle, size)
                unless_mapped.callback(self._memory.release)
            unless_mapped.pop_all()
        self._records = self._memory[: WAL_RECORDS if is_for_rows else size]
        buffer.attach_wal(self._records, number)

    def close(self) -> None:
        """Close it; records not written by then stay in it for the next open. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._buffer.wipe_wal()
        self._buffer.detach_wal()
        self._records.release()
        self._memory.release()

    @property
    def has_records(self) -> bool:
        """True if it holds records that are not written."""
        return not self.is_for_rows and self._buffer.end > self._buffer.flushed

    def wipe(self) -> None:
        """Clear its content, which is durable elsewhere."""
        if not self._is_closed:
            self._memory[WAL_ROWS:_ROWS_END] = bytes(_ROWS_END - WAL_ROWS)
            self._memory[WAL_ENTRY:WAL_RECORDS] = bytes(WAL_RECORDS - WAL_ENTRY)

    def give_up(self) -> None:
        """Close it, discard its content and free its space. Raises OSError."""
        self.close()
        self._is_given_up = True
        _truncate(self._fs, self._path, 0)

    def free_space(self, *, is_last: bool) -> bool:
        """Close it and free some space, at the end, on a full disk. False: no space can be freed.

        First the reserve is freed; once its records are written, the rest is, too, except of the last
        write-ahead log, which the next open needs. Raises OSError.
        """
        self.close()
        is_last = is_last and not self.is_for_rows
        if self._has_reserve:
            self._has_reserve = False
            _truncate(self._fs, self._path, SIZE)
            return True
        if is_last or self._is_given_up or self.has_records:
            return False
        self.give_up()
        return True


def flush_to_the_end(flush: Callable[[], None], wals: Sequence[WriteAheadLog]) -> None:
    """Flush the last records; on a full disk, into space that the write-ahead logs free.

    Records that do not fit even then stay where they are. Raises what `flush` does, except for a full disk.
    """
    has_more = True
    while has_more:
        try:
            flush()
            return
        except FullError:
            has_more = any(wal.free_space(is_last=wal is wals[-1]) for wal in wals)


def open_wal(
    fs: FileSystem, path: str, buffer: AppendBuffer, reserve: int = 0, *, is_for_rows: bool = False
) -> WriteAheadLog | None:
    """Return a clean write-ahead log for `buffer`. None if there is no space: the buffer works without.

    The content of the old one is discarded. A writer's first write-ahead log has the `reserve`, if messages
    are to wait in it.
    """
    try:
        return WriteAheadLog(fs, path, buffer, 0 if is_for_rows else reserve, is_for_rows=is_for_rows)
    except OSError as failure:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise
        if fs.size_of(path) is not None:
            if is_for_rows:
                _truncate(fs, path, 0)
            else:
                _leave_footing(fs, path)
    return None


def _leave_footing(fs: FileSystem, path: str) -> None:
    _truncate(fs, path, 0)
    try:
        handle = fs.open(path, write=True)
        try:
            write_all(fs, handle, bytes(_FOOTING), 0)
        finally:
            fs.close(handle)
    except OSError as failure:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise
        _truncate(fs, path, 0)


# --- reading it -----------------------------------------------------------------------------------


def _place(fs: FileSystem, path: str) -> str:
    """Return where the log is: `path`, or if nothing is there the place that earlier versions had for it."""
    if not fs.size_of(path) and fs.size_of(_old(path)):
        return _old(path)
    return path


def _old(path: str) -> str:
    return path.removesuffix("wal") + OLD_WAL_NAME


def _load(fs: FileSystem, path: str) -> WalContent | None:
    """Return the content; None if there is no write-ahead log, or no whole one. Raises OSError."""
    place = _place(fs, path)
    if (fs.size_of(place) or 0) < ROWS_SIZE:
        return None
    content = _first_bytes(fs, place, SIZE)
    if place != path:
        return old_wal_in(content, _boot(fs))
    if not content.strip(b"\0"):
        return None
    header = header_in(path, content, WAL_ENTRY)
    is_for_rows = not header.areas if header is not None else len(content) < SIZE
    if len(content) < (ROWS_SIZE if is_for_rows else SIZE):
        return None
    is_of_this_run = None if header is None else header.boot == _boot(fs)
    if is_for_rows:
        return WalContent(is_of_this_run, rows=_rows_in(content), is_for_rows=True)
    waiting, unreadable = _entry_in(content, None if header is None else header.number)
    return WalContent(is_of_this_run, waiting, unreadable, _rows_in(content))


def _first_bytes(fs: FileSystem, path: str, size: int) -> bytes:
    handle = fs.open(path)
    try:
        return fs.pread(handle, size, 0)
    finally:
        let_go(fs, handle)


def _entry_in(content: bytes, number: int | None) -> tuple[Part | None, int]:
    """Return the accepted records that a write-ahead log with this `content` holds, and 0.

    If it holds none: None and 0. If they are unreadable: None and the most bytes that they can have.
    `number`: of the log; None: its header is unreadable.
    """
    state = content[WAL_ENTRY : WAL_ENTRY + 8]
    if not any(state):
        return None, 0
    found = decode_header(content, WAL_ENTRY)
    assert found is not None
    size, _, its, *_ = found
    head = head_at(its if number is None else number, content, WAL_ENTRY)
    entry = None if head is None else entry_of(head, content, WAL_ENTRY)
    if entry is not None and len(entry.parts) == 1:
        (part,) = entry.parts
        if part.content and min(part.file, part.position) >= 0:
            return part, 0
    if sum(map(bool, state)) == 1:
        return None, 0  # one corrupt byte in an empty entry
    size -= WAL_RECORDS - WAL_ENTRY
    return None, size if 0 < size <= SIZE - WAL_RECORDS else SIZE - WAL_RECORDS


def _rows_in(content: bytes) -> tuple[tuple[int, Row], ...]:
    found = []
    for at in range(WAL_ROWS, _ROWS_END, _ROW.size):
        file, end, size, records, crc, check = _ROW.unpack_from(content, at)
        if 0 < size <= end and file >= 0 and check == checksum(content[at : at + _CHECKED_ROW]):
            found.append((file, Row(end - size, end, records, crc)))
    return tuple(found)


def read_wal(fs: FileSystem, path: str) -> Part | None:
    """Return the records that wait to be written by its owner, or, after a kill, by the next open.

    None if there are none, or they are unreadable. Raises OSError.
    """
    content = _load(fs, path)
    return content.waiting if content is not None and content.is_of_this_run else None


def rows_on(fs: FileSystem, path: str, file: int) -> list[Row]:
    """Return the rows there of blocks of file number `file`, in no order, for readers in other processes.

    Blocks were written before their rows came into the write-ahead log. [] if there is no write-ahead log
    with a valid header of this boot. Records that wait in it are not looked at. Raises OSError.
    """
    return [row for its, row in _shown(fs, path) if its == file]


def _shown(fs: FileSystem, path: str) -> tuple[tuple[int, Row], ...]:
    size = fs.size_of(path) or 0
    if size < ROWS_SIZE:
        content = None if size or _place(fs, path) == path else _load(fs, path)
        return content.rows if content is not None and content.is_of_this_run else ()
    try:
        head = _first_bytes(fs, path, WAL_ENTRY)
    except FileNotFoundError:  # it was removed just now
        return ()
    if len(head) < WAL_ENTRY or not head[WAL_ROWS:_ROWS_END].strip(b"\0"):
        return ()
    header = header_in(path, head, WAL_ENTRY)
    if header is None or header.boot != _boot(fs) or (size < SIZE and header.areas):
        return ()
    return _rows_in(head)


def row_at(rows: Sequence[Row], covered: int, position: int) -> Row | None:
    """Return the row of the block at `position` among rows of a write-ahead log; the checksum file's end at
    byte `covered`.
    """
    return next((row for row in _following(rows, covered) if row.end > position), None)


def rows_to_add(fs: FileSystem, staging: Staging) -> dict[int, list[Row]]:
    """Return the rows of the write-ahead log that continue each checksum file, by the file's number.

    They are what the next open would add; else as `rows_on`. Raises OSError.
    """
    shown = _shown(fs, staging.path)
    found = {file: _missing_rows(fs, staging, file, shown) for file in {file for file, _ in shown}}
    return {file: missing.rows for file, missing in found.items() if missing is not None and missing.rows}


def is_of_this_run(fs: FileSystem, path: str) -> bool:
    """True if the write-ahead log says that it was made in this boot. Raises OSError."""
    content = _load(fs, path)
    return content is not None and content.is_of_this_run is True


def holds_all(fs: FileSystem, path: str) -> bool:
    """True if the write-ahead log is of this boot, and its waiting records are readable. Raises OSError."""
    content = _load(fs, path)
    return content is not None and content.is_of_this_run is True and not content.unreadable


def is_missing(fs: FileSystem, path: str) -> bool:
    """True if there is no write-ahead log, or only a part of one. Raises OSError."""
    return (fs.size_of(_place(fs, path)) or 0) < SIZE


def holds_records(fs: FileSystem, path: str) -> bool:
    """True if accepted records of this boot wait there, even if they cannot be read. Raises OSError."""
    content = _load(fs, path)
    if content is None or content.is_of_this_run is False:
        return False
    return content.waiting is not None or content.unreadable > 0


def holds_nothing(fs: FileSystem, path: str) -> bool:
    """True if the write-ahead log holds nothing, or nothing of this boot. Raises OSError.

    False for one that is only for checksums, even an empty one: it shows that its process was killed.
    """
    content = _load(fs, path)
    if content is None or content.is_of_this_run is False:
        return True
    if content.is_for_rows and content.is_of_this_run:
        return False
    return content.waiting is None and not content.unreadable and not content.rows


# --- after a kill ---------------------------------------------------------------------------------


def replay(
    fs: FileSystem,
    staging: Staging,
    *,
    was_restarted: bool | None,
    was_staging: bool,
    in_place: bool = True,
    voided: Mapping[int, int] = MappingProxyType({}),
) -> Replayed:
    """After a kill, write what the write-ahead log holds to its place, as far as it is not there yet.

    `was_restarted`: True if other sources say that the machine was restarted; None: they do not know.
    `was_staging`: True if the write-ahead log should exist. Without `in_place` nothing is written, and
    records that are not fully in place are displaced: for files whose checksums could not show the damage of
    a power cut at this moment. `voided`: by file, the byte from which on its checksums are of bytes that are
    gone. A second call changes nothing, and the write-ahead log stays unchanged. Raises OSError; on a full
    disk only if the write-ahead log has no reserve, or another program used its space.
    """
    found = Replayed()
    content = _load(fs, staging.path)
    staging = staging._replace(path=_place(fs, staging.path))
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
        _truncate(fs, staging.path, SIZE)
        return False

    files = LogReplay(fs, {0: staging}, in_place=in_place, are_synced=False, on_full=use_reserve)
    try:
        if files.put(waiting):
            found.restored = waiting
        displaced, repairs = files.finish()
        found.displaced = displaced[0] if displaced else None
        found.repairs += repairs
    finally:
        files.close()


def _keep_unreadable(fs: FileSystem, path: str, size: int) -> Repair:
    handle = fs.open(path)
    try:
        aside = keep_copy(fs, handle, path, end=SIZE)
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


def kept_aside_since(fs: FileSystem, since: int, stagings: Iterable[Staging]) -> list[Repair]:
    """Return what was kept aside since the Unix time `since` from the files of these write-ahead logs.

    An open that was killed kept it aside; the next open does not find what was cut. Raises OSError.
    """
    directories = {directory_of(path) for its in stagings for path in (its.data(0), its.path)}
    found = []
    for directory in sorted(directories):
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = fs.list_directory(directory)
        for name in names:
            original, mark, _ = name.rpartition(".bad")
            path = join(directory, name)
            stamp = fs.stamp_of(path) if mark else None
            # The clock of file times ticks more slowly, so a file may seem older.
            if stamp is None or stamp.modified_ns // 1_000_000_000 < since - 1:
                continue
            found.append(
                Repair(
                    path=join(directory, original),
                    kind=RepairKind.KEPT_ASIDE,
                    kept=0,
                    dropped=fs.size_of(path) or 0,
                    reason="an open that was killed kept it aside",
                    records=None,
                    saved_as=path,
                )
            )
    return found


def clear_rows(fs: FileSystem, path: str) -> None:
    """Clear its rows, which are in their checksum files. Raises OSError.

    Those of an old log lie in these bytes, too, but for a part of the first one, whose check is wrong then.
    """
    handle = fs.open(_place(fs, path), write=True)
    try:
        write_all(fs, handle, bytes(_ROWS_END - WAL_ROWS), WAL_ROWS)
    finally:
        fs.close(handle)


def clear_wal(fs: FileSystem, path: str) -> None:
    """Discard its content and free its space. Raises OSError."""
    if fs.size_of(path):
        _truncate(fs, path, 0)
    elif fs.size_of(_old(path)) is not None:
        Barrier(removals=(_old(path),)).execute(fs)
        Barrier(directories=(directory_of(path),)).execute(fs)


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


def _truncate(fs: FileSystem, path: str, size: int) -> None:
    handle = fs.open(path, write=True)
    try:
        fs.truncate(handle, size)
    finally:
        fs.close(handle)


def _boot(fs: FileSystem) -> bytes:
    return fs.identity().boot_id.encode()[:_LONGEST_BOOT]
