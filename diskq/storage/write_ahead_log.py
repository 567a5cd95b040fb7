# The write-ahead log: what was accepted and waits to be written, and the checksums of what was written last.
# Law: it says itself what it holds and where that belongs; no other file has to be there for it to be
# believed.
#
# A file of one fixed size, mapped into memory and shared with the page cache: a message laid down
# there outlives the process without a system call. It is not synced, and after a restart of the
# machine it means nothing: what was promised to survive that went through a barrier. So it begins
# with the kernel's name for this run of the machine, and under another name nobody reads on.
#
# It holds one entry: records, the file and the byte where they belong, and a checksum of all that. After a
# kill the next open judges by the file (`replay`):
#
#   it holds them                  nothing to do
#   it ends in a prefix of them    the rest is written
#   it holds other bytes there     another program has written since. Its bytes stay, and ours are displaced:
#                                  the engine appends them again, at the end, and reports it
#
# And it holds the checksums of blocks whose rows may not be in their files yet, the open block's too: a kill
# leaves no byte that nothing vouches for. `replay` adds them where they belong. A writer whose messages do
# not wait has a write-ahead log of one page, for these checksums alone; a clean close cuts it to nothing.
# Format: docs/format/checksums.md.

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq._native.core.append_buffer import (
    WAL_HEADER,
    WAL_MAGIC,
    WAL_ROW_COUNT,
    WAL_ROWS,
    AppendBuffer,
)
from diskq.errors import DiskFullError
from diskq.storage.barrier import write_all
from diskq.storage.checksums import ChecksumFile, Row, Rows, checksum
from diskq.storage.closing import let_go
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of, join
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import Repair, keep_content, keep_copy

__all__ = [
    "RESERVE",
    "ROWS_SIZE",
    "SIZE",
    "Replayed",
    "Staging",
    "Waiting",
    "WriteAheadLog",
    "clear_rows",
    "clear_wal",
    "flush_to_the_end",
    "holds_all",
    "holds_nothing",
    "is_missing",
    "is_of_this_run",
    "kept_aside_since",
    "open_wal",
    "read_wal",
    "replay",
    "row_at",
    "rows_on",
    "rows_to_add",
    "view_after_replay",
    "view_with_rows",
]

SIZE = 64 * 1024
RESERVE = SIZE
"""As much after what is mapped, unused: on a full disk it is given up for what waits, at the end or after a
restart. A writer with many write-ahead logs has one: the write-ahead log that is written then makes room for
the next.
"""

ROWS_SIZE = 4 * 1024
"""Of a write-ahead log for checksums alone."""

# What stands in a write-ahead log's place where there is no room for it, so that the next open has a little.
_FOOTING = 16 * 1024

# The name of this run of the machine, padded.
_BOOT = 64

# In the machine's own byte order: nobody but the next process on this machine reads it.
_HEADER = struct.Struct("=8sI4x")
_ENTRY = struct.Struct("=QqqII")
_SHOWN = struct.Struct("=qQIIII")
_CHECKED_ENTRY, _CHECKED_SHOWN = 24, 28
_ENTRY_AT = _BOOT + _HEADER.size
_ROWS_AT = _BOOT + WAL_ROWS
_RECORDS_AT = _BOOT + WAL_HEADER
assert _ENTRY_AT + _ENTRY.size == _ROWS_AT

# In the place of WAL_MAGIC, of a write-ahead log for checksums alone.
_ROWS_MAGIC = b"diskqsr1"

# Write-ahead logs of before had an entry without a checksum, which stayed when its records were written, and
# no rows.
_OLD_MAGIC = b"diskqsl1"
_OLD_HEADER = struct.Struct("=8sqqq")


class Waiting(NamedTuple):
    """Records that may not have been written: bytes of file number `file` from `start` on."""

    file: int
    start: int
    records: bytes


class Staging(NamedTuple):
    """Where a write-ahead log is, and the files that it tells of."""

    path: str
    data: Callable[[int], str]
    """The path of a data file, by its number;"""
    checksum_file: Callable[[int], str]
    """of the checksums beside it."""
    is_last: Callable[[int], bool] = lambda _: True
    """Is that file the last one? Behind a file that is not, records would lie in the wrong place."""


@dataclass(slots=True)
class Replayed:
    """What was done with what stood on a write-ahead log."""

    displaced: Waiting | None = None
    """Accepted, and their place is taken: they are to be appended again."""
    restored: Waiting | None = None
    """Accepted, and where they belong, now or before. Checksums need not cover them."""
    repairs: list[Repair] = field(default_factory=list)
    """What could not be read of it, or is missing."""
    has_added_rows: bool = False
    """There were checksums on it, and they are beside their files now."""


class WriteAheadLog:
    """A write-ahead log in use by one `AppendBuffer`."""

    def __init__(
        self, fs: FileSystem, path: str, buffer: AppendBuffer, reserve: int, *, is_for_rows: bool = False
    ) -> None:
        """Make it anew; with `is_for_rows` for checksums alone. Raises OSError where there is no room."""
        self._fs = fs
        self._buffer = buffer
        self._path = path
        self.is_for_rows = is_for_rows
        size = ROWS_SIZE if is_for_rows else SIZE
        self.size = size + reserve
        """On the disk."""
        self._has_reserve = reserve > 0
        self._is_closed = self._is_given_up = False
        self._handle = fs.open(path, write=True, create=True)
        try:
            if is_for_rows and fs.size(self._handle) > size:
                fs.truncate(self._handle, size)
            head = _head(fs, _ROWS_MAGIC if is_for_rows else WAL_MAGIC)
            # Real zeros, so that a full disk says so here and not when the memory is touched.
            write_all(fs, self._handle, head + bytes(self.size - _ENTRY_AT), 0)
            self._memory = fs.share_memory(self._handle, size)
        except BaseException:
            fs.close(self._handle)
            raise
        self._records = self._memory[_BOOT : _RECORDS_AT if is_for_rows else size]
        buffer.attach_wal(self._records)

    def close(self) -> None:
        """Let go of it; what was not written by then stays on it for the next open. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._buffer.wipe_wal()
        self._buffer.detach_wal()
        self._records.release()
        self._memory.release()
        self._fs.close(self._handle)

    @property
    def has_records(self) -> bool:
        """Does anything stand on it that is not written?"""
        return not self.is_for_rows and self._buffer.end > self._buffer.flushed

    def wipe(self) -> None:
        """All that it tells of is durable: it tells of nothing any more."""
        if not self._is_closed:
            self._memory[_ENTRY_AT:_RECORDS_AT] = bytes(_RECORDS_AT - _ENTRY_AT)

    def give_up(self) -> None:
        """Close it, and give its room back: for who needs nothing of what stands on it. Raises OSError."""
        self.close()
        self._is_given_up = True
        _truncate(self._fs, self._path, 0)

    def free_space(self, *, is_last: bool) -> bool:
        """At the end, on a full disk: give back some room that is not needed. False: all of it is.

        First the reserve; and when what stood on it is written all else, but for the last write-ahead log,
        which is what the next open has. It is closed by that. Raises OSError.
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
    """Flush what no more will come behind, on a full disk into what the write-ahead logs give back.

    What finds no room even there is left where it is. Raises what `flush` does, but for a full disk.
    """
    has_more = True
    while has_more:
        try:
            flush()
            return
        except DiskFullError:
            has_more = any(wal.free_space(is_last=wal is wals[-1]) for wal in wals)


def open_wal(
    fs: FileSystem, path: str, buffer: AppendBuffer, reserve: int = 0, *, is_for_rows: bool = False
) -> WriteAheadLog | None:
    """A clean write-ahead log for `buffer`. None where there is no room: it can do without.

    Nothing of what stood on the old one is needed any more. A writer's first write-ahead log has the
    `reserve`, where messages are to wait on it.
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


class _Content(NamedTuple):
    """A write-ahead log as it is found."""

    is_of_this_run: bool | None
    """None: what says so cannot be read."""
    is_old: bool = False
    waiting: Waiting | None = None
    unreadable: int = 0
    """So many bytes of records may have waited, and cannot be read."""
    rows: tuple[tuple[int, Row], ...] = ()
    """Checksums of blocks, and the numbers of the files that they are of."""
    is_for_rows: bool = False


def _load(fs: FileSystem, path: str) -> _Content | None:
    """None where there is no write-ahead log, or no whole one. Raises OSError."""
    if (fs.size_of(path) or 0) < ROWS_SIZE:
        return None
    handle = fs.open(path)
    try:
        content = fs.pread(handle, SIZE, 0)
    finally:
        let_go(fs, handle)
    is_for_rows = _is_for_rows(content)
    if len(content) < (ROWS_SIZE if is_for_rows else SIZE) or not content.strip(b"\0"):
        return None
    if content[_BOOT : _BOOT + len(_OLD_MAGIC)] == _OLD_MAGIC:
        return _load_old(fs, content)
    told = _run_of(fs, content, is_for_rows)
    if is_for_rows:
        return _Content(told, rows=_rows_in(content), is_for_rows=True)
    waiting, unreadable = _entry_in(content)
    return _Content(told, False, waiting, unreadable, _rows_in(content))


def _run_of(fs: FileSystem, content: bytes, is_for_rows: bool) -> bool | None:
    """True if it was made in this run of the machine, False if in another; None where the header is rotten.

    The header names the run, and its checksum covers that name: where one of them is rotten, the other tells.
    """
    magic, check = _HEADER.unpack_from(content, _BOOT)
    named = _boot(fs)
    if content.startswith(named) or check == checksum(named + (_ROWS_MAGIC if is_for_rows else WAL_MAGIC)):
        return True
    is_whole = magic in (WAL_MAGIC, _ROWS_MAGIC) and check == checksum(content[: _BOOT + len(magic)])
    return False if is_whole else None


def _is_for_rows(content: bytes) -> bool:
    return content[_BOOT : _BOOT + len(_ROWS_MAGIC)] == _ROWS_MAGIC


def _load_old(fs: FileSystem, content: bytes) -> _Content:
    _, file, start, used = _OLD_HEADER.unpack_from(content, _BOOT)
    records = content[_BOOT + _OLD_HEADER.size :]
    has_entry = 0 < used <= len(records) and min(file, start) >= 0
    waiting = Waiting(file, start, records[:used]) if has_entry else None
    return _Content(content.startswith(_boot(fs)), True, waiting)


def _entry_in(content: bytes) -> tuple[Waiting | None, int]:
    """The records that wait; and where they cannot be read, how many bytes they may be."""
    _, file, start, size, check = _ENTRY.unpack_from(content, _ENTRY_AT)
    state = content[_ENTRY_AT + _CHECKED_ENTRY : _ENTRY_AT + _ENTRY.size]
    if not any(state):
        return None, 0
    records = content[_RECORDS_AT : _RECORDS_AT + size]
    known = checksum(content[_ENTRY_AT : _ENTRY_AT + _CHECKED_ENTRY])
    if size == len(records) > 0 and check == checksum(records, known) and min(file, start) >= 0:
        return Waiting(file, start, records), 0
    if sum(map(bool, state)) == 1:
        return None, 0  # a rotten byte of an entry that was empty
    return None, size if 0 < size <= SIZE - _RECORDS_AT else SIZE - _RECORDS_AT


def _rows_in(content: bytes) -> tuple[tuple[int, Row], ...]:
    found = []
    for at in range(_ROWS_AT, _ROWS_AT + WAL_ROW_COUNT * _SHOWN.size, _SHOWN.size):
        file, end, size, records, crc, check = _SHOWN.unpack_from(content, at)
        if 0 < size <= end and file >= 0 and check == checksum(content[at : at + _CHECKED_SHOWN]):
            found.append((file, Row(end - size, end, records, crc)))
    return tuple(found)


def read_wal(fs: FileSystem, path: str) -> Waiting | None:
    """What waits there to be written: by its owner, or, after a kill, by the next open. Raises OSError.

    None where nothing does, and where it cannot be read.
    """
    content = _load(fs, path)
    return content.waiting if content is not None and content.is_of_this_run else None


def rows_on(fs: FileSystem, path: str, file: int) -> list[Row]:
    """The checksums there of blocks of file number `file`, in no order: for who reads beside its owner.

    Blocks were written before their rows came onto the write-ahead log. [] where there is no write-ahead log
    of this run of the machine, or none that says so itself. What waits there to be written is not looked at.
    Raises OSError.
    """
    return [row for its, row in _shown(fs, path) if its == file]


def _shown(fs: FileSystem, path: str) -> tuple[tuple[int, Row], ...]:
    size = fs.size_of(path) or 0
    if size < ROWS_SIZE:
        return ()
    try:
        handle = fs.open(path)
    except FileNotFoundError:  # it went in this moment
        return ()
    try:
        content = fs.pread(handle, _RECORDS_AT, 0)
    finally:
        let_go(fs, handle)
    if len(content) < _RECORDS_AT or not content[_ROWS_AT:].strip(b"\0"):
        return ()
    is_for_rows = _is_for_rows(content)
    if size < SIZE and not is_for_rows:
        return ()
    head = _head(fs, _ROWS_MAGIC if is_for_rows else WAL_MAGIC)
    return _rows_in(content) if content.startswith(head) else ()


def row_at(rows: Sequence[Row], covered: int, position: int) -> Row | None:
    """Of rows on a write-ahead log the one of the block at `position`, where those beside the file end at
    `covered`.
    """
    return next((row for row in _following(rows, covered) if row.end > position), None)


def rows_to_add(fs: FileSystem, staging: Staging) -> dict[int, list[Row]]:
    """Of the rows on the write-ahead log those that go on where the rows beside each file end. Raises
    OSError.

    As with `rows_on`; they are what the next open would add.
    """
    shown = _shown(fs, staging.path)
    found = {file: _missing_rows(fs, staging, file, shown) for file in {file for file, _ in shown}}
    return {file: missing.rows for file, missing in found.items() if missing is not None and missing.rows}


def is_of_this_run(fs: FileSystem, path: str) -> bool:
    """Does the write-ahead log say that it was made since the machine was started? Raises OSError."""
    content = _load(fs, path)
    return content is not None and content.is_of_this_run is True


def holds_all(fs: FileSystem, path: str) -> bool:
    """Is the write-ahead log of this run of the machine, and can what waits there be read? Raises OSError."""
    content = _load(fs, path)
    return content is not None and content.is_of_this_run is True and not content.unreadable


def is_missing(fs: FileSystem, path: str) -> bool:
    """Is there no write-ahead log, or only a part of one? Raises OSError."""
    return (fs.size_of(path) or 0) < SIZE


def holds_nothing(fs: FileSystem, path: str) -> bool:
    """Is there nothing on the write-ahead log, or nothing that is of this run of the machine? Raises OSError.

    One for checksums alone tells, even without them, that the process which had it was killed.
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
) -> Replayed:
    """After a kill: write what stands on the write-ahead log where it belongs, and is not yet.

    `was_restarted`: was the machine, as far as others than the write-ahead log know; None: they do not.
    `was_staging`: it should be there. Without `in_place` nothing is written, and what is not all there is
    displaced: for files of which a power cut in this moment could not be judged by checksums. Doing it twice
    changes nothing, and the write-ahead log stays as it is. Raises OSError; on a full disk only where the
    write-ahead log has no reserve, or another program took what it gave up.
    """
    found = Replayed()
    content = _load(fs, staging.path)
    if content is None:
        if was_staging and not was_restarted:
            size = fs.size_of(staging.path)
            what = "is gone" if size is None else f"has only {size} bytes that can be read"
            reason = f"it {what}: messages accepted just before the process died may be lost"
            found.repairs.append(Repair(path=staging.path, kept=0, dropped=0, reason=reason, records=None))
        return found
    is_believed = content.is_of_this_run
    if is_believed is None:
        is_believed = was_restarted is False
    if not is_believed:
        return found
    if content.waiting is not None:
        _judge_waiting(fs, staging, content.waiting, content.is_old, in_place, found)
    elif content.unreadable:
        found.repairs.append(_keep_unreadable(fs, staging.path, content.unreadable))
    found.has_added_rows = _add_rows(fs, staging, content.rows) and bool(content.rows)
    return found


def _judge_waiting(
    fs: FileSystem, staging: Staging, waiting: Waiting, is_old: bool, in_place: bool, found: Replayed
) -> None:
    """Write it, if its place is free; or say in `found` what else becomes of it."""
    path, records = staging.data(waiting.file), waiting.records
    size = fs.size_of(path)
    if size is None and is_old:
        return  # it does not say whether they had been written, and then consumed with their file
    if size is None or size < waiting.start:
        # What was before them is not there: behind it they would hide that. Kept aside, and reported.
        ends = "is gone" if size is None else f"ends at byte {size}"
        reason = f"the file {ends}, accepted messages belong at byte {waiting.start}"
        aside = keep_content(fs, staging.path, records)
        found.repairs.append(
            Repair(
                path=path, kept=size or 0, dropped=len(records), reason=reason, records=None, saved_as=aside
            )
        )
        return
    handle = fs.open(path, write=True)
    try:
        there = fs.pread(handle, len(records), waiting.start)
        if there == records:
            found.restored = waiting
        elif in_place and records.startswith(there) and staging.is_last(waiting.file):
            _write(fs, staging.path, handle, waiting)
            found.restored = waiting
        else:
            found.displaced = waiting
    finally:
        fs.close(handle)


def _write(fs: FileSystem, wal: str, handle: int, waiting: Waiting) -> None:
    try:
        write_all(fs, handle, waiting.records, waiting.start)
    except OSError as failure:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise
        _truncate(fs, wal, SIZE)
        write_all(fs, handle, waiting.records, waiting.start)


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
    return Repair(path=path, kept=_RECORDS_AT, dropped=size, reason=reason, records=None, saved_as=aside)


class _MissingRows(NamedTuple):
    """Rows that are to be added to those beside a file."""

    kept: int
    """Bytes of the rows that are there,"""
    covered: int
    """and how far they reach."""
    rows: list[Row]


def _missing_rows(
    fs: FileSystem, staging: Staging, file: int, shown: Sequence[tuple[int, Row]]
) -> _MissingRows | None:
    """None where rows are of no use: the file is gone, or they say that it is complete."""
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
    """Beside each file, add the checksums that follow those that are there. False: the disk is full."""
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
    """Those of the rows that go on from byte `covered`, without a gap; of several the longest."""
    found: list[Row] = []
    while True:
        starting = [row for row in rows if row.start == covered]
        if not starting:
            return found
        found.append(max(starting, key=lambda row: row.end))
        covered = found[-1].end


def kept_aside_since(fs: FileSystem, since: int, stagings: Iterable[Staging]) -> list[Repair]:
    """What was kept aside of the files that these write-ahead logs tell of, from the Unix time `since` on.

    By an open that was killed: what it has cut the next one does not find. Raises OSError.
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
            # A file's time comes from a clock that ticks slower.
            if stamp is None or stamp.modified_ns // 1_000_000_000 < since - 1:
                continue
            found.append(
                Repair(
                    path=join(directory, original),
                    kept=0,
                    dropped=fs.size_of(path) or 0,
                    reason="it was kept aside by an open that was killed",
                    records=None,
                    saved_as=path,
                )
            )
    return found


def clear_rows(fs: FileSystem, path: str) -> None:
    """The checksums on it are where they belong, and may be given up there. Raises OSError."""
    handle = fs.open(path, write=True)
    try:
        write_all(fs, handle, bytes(_RECORDS_AT - _ROWS_AT), _ROWS_AT)
    finally:
        fs.close(handle)


def clear_wal(fs: FileSystem, path: str) -> None:
    """Nothing of what stands on it is needed any more: give back its room. Raises OSError."""
    if fs.size_of(path):
        _truncate(fs, path, 0)


def view_after_replay(
    fs: FileSystem,
    stagings: Mapping[int, Staging],
    *,
    was_restarted: bool | None,
    staged: Sequence[int],
) -> tuple[OverlayFS, dict[int, Replayed]]:
    """The files as `replay` would leave them, and what it would say, by number of the write-ahead log.

    To look at what no process has open. `staged` are the write-ahead logs that should be there. Nothing is
    changed. The caller closes the view. Raises OSError.
    """
    view = OverlayFS(fs)
    try:
        told = {
            number: replay(view, staging, was_restarted=was_restarted, was_staging=number in staged)
            for number, staging in stagings.items()
        }
    except BaseException:
        view.close_all()
        raise
    return view, told


def view_with_rows(fs: FileSystem, staging: Staging, rows: Mapping[int, Sequence[Row]]) -> OverlayFS:
    """The files as they are, with these rows (`rows_to_add`) where they belong. Nothing is changed.

    To look at what a process may have open. The caller closes the view. Raises OSError.
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
    return fs.identity().boot_id.encode().ljust(_BOOT, b"\n")[:_BOOT]


def _head(fs: FileSystem, magic: bytes) -> bytes:
    named = _boot(fs) + magic
    return named + _HEADER.pack(magic, checksum(named))[len(magic) :]
