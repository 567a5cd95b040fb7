# The write-ahead logs of one writer: accepted records that wait to be written, and the checksums of those
# written last. Law: a log is self-contained: it says what it holds and where that belongs. The state names it
# after it is created, and stops naming it before it is removed; so a missing one is noticed after a kill. It
# does not name those for checksums alone: if one of them is missing, no message is.
#
# A file of one fixed size, mapped into memory and shared with the page cache: a message staged
# there outlives the process without a system call. It is not synced, and after a restart of the
# machine it means nothing: messages that must survive one went through a barrier. So its header has
# the kernel's identifier of this boot, and it is ignored after another boot.
#
# It holds one entry: records, the file and the byte where they belong, and a checksum of all that. After a
# kill the next open puts them there (log/replay.py).
#
# It also holds the checksums of blocks whose rows may not be in their checksum files yet, including the open
# block: after a kill every byte has a checksum. The replay adds them to the checksum files. A writer whose
# messages do not wait has a write-ahead log of one page, for these checksums only; a clean close empties it.
# Format: docs/format/log.md. What reads it: log/format.py.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from diskq._native.core.append_buffer import WAL_ENTRY, WAL_RECORDS, WAL_ROWS, AppendBuffer
from diskq.errors import FullError
from diskq.storage.barrier import Barrier, opened, write_all
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of, full_disk_ignored, join
from diskq.storage.log.entries import Displaced, LogHeader, Part, Staging
from diskq.storage.log.format import (
    ROWS_SIZE,
    WAL_ROWS_END,
    WAL_SIZE,
    WRITTEN,
    boot_of,
    encode_header,
    holds_nothing,
    is_missing,
    is_of_this_run,
    old_wal_path,
    wal_place,
)
from diskq.storage.log.replay import replay_wal
from diskq.storage.numbered_files import set_aside_from
from diskq.storage.repairs import Repair, RepairKind
from diskq.storage.state import LastWriter, StoreState

__all__ = [
    "RESERVE",
    "WriteAheadLog",
    "WriteAheadLogs",
    "clear_wal",
    "flush_to_the_end",
    "open_wal",
    "was_restarted",
]

RESERVE = WAL_SIZE
"""Unused bytes after the mapped ones: on a full disk they are freed for the waiting records, at the close or
in recovery. A writer with many write-ahead logs has one reserve: each log frees space for the next.
"""

# Bytes kept in place of a write-ahead log that did not fit, so that the next open has a little space.
_FOOTING = 16 * 1024


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
        size = ROWS_SIZE if is_for_rows else WAL_SIZE
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
                header = encode_header(LogHeader(WRITTEN, number, boot_of(fs), WAL_ENTRY, areas, area))
                head = header.ljust(WAL_ROWS_END, b"\0") + header
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
            self._memory[WAL_ROWS:WAL_ROWS_END] = bytes(WAL_ROWS_END - WAL_ROWS)
            self._memory[WAL_ENTRY:WAL_RECORDS] = bytes(WAL_RECORDS - WAL_ENTRY)

    def give_up(self) -> None:
        """Close the log, discard the content and free the space. Raises OSError."""
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
            _truncate(self._fs, self._path, WAL_SIZE)
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


# --- after a kill ---------------------------------------------------------------------------------


def kept_aside_since(fs: FileSystem, since: int, stagings: Iterable[Staging]) -> list[Repair]:
    """Return what was kept aside since the Unix time `since` from the files of these write-ahead logs.

    An open that was killed kept it aside; the next open does not find what was cut. Raises OSError.
    """
    places = {(directory_of(path), its.has_file) for its in stagings for path in (its.data(0), its.path)}
    found = []
    for directory, has_file in sorted(places, key=lambda place: place[0]):
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = fs.list_directory(directory)
        for name in names:
            original = set_aside_from(name)
            path = join(directory, name)
            if original is None or not has_file(original):
                continue
            stamp = fs.stamp_of(path)
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
    handle = fs.open(wal_place(fs, path), write=True)
    try:
        write_all(fs, handle, bytes(WAL_ROWS_END - WAL_ROWS), WAL_ROWS)
    finally:
        fs.close(handle)


def clear_wal(fs: FileSystem, path: str) -> None:
    """Discard the content of the write-ahead log at `path`, and free the space. Raises OSError."""
    if fs.size_of(path):
        _truncate(fs, path, 0)
    elif fs.size_of(old_wal_path(path)) is not None:
        Barrier(removals=(old_wal_path(path),)).execute(fs)
        Barrier(directories=(directory_of(path),)).execute(fs)


def _truncate(fs: FileSystem, path: str, size: int) -> None:
    handle = fs.open(path, write=True)
    try:
        fs.truncate(handle, size)
    finally:
        fs.close(handle)


# --- all of one writer ----------------------------------------------------------------------------


def was_restarted(fs: FileSystem, previous: LastWriter | None, wals: Iterable[str] = ()) -> bool | None:
    """Return True if the machine was restarted since a diskq process last wrote; None if no file shows it.

    `previous` is what the state says; None: diskq never wrote to the store. An unreadable
    one counts as written before a restart, unless one of the `wals` was made in this boot. Raises OSError.
    """
    if previous is not None and previous.is_of_this_boot(fs):
        return False
    if any(is_of_this_run(fs, wal) for wal in wals):
        return False
    return None if previous is None else True


class WriteAheadLogs:
    """A writer's write-ahead logs by number: a queue or journal has number 0, a stream one per partition."""

    __slots__ = (
        "_fs",
        "_in_use",
        "_kept",
        "_staged",
        "_stagings",
        "_state",
        "_was_restarted",
        "displaced",
        "has_run_on",
        "is_resumed",
        "repairs",
        "restored",
        "unreported",
        "was_killed",
        "was_restarted",
        "was_unlogged",
    )

    def __init__(self, fs: FileSystem, state: StoreState, stagings: Mapping[int, Staging]) -> None:
        self._fs = fs
        self._state = state
        self._stagings = stagings
        self._staged: Sequence[int] = state.staged
        self._in_use: dict[int, WriteAheadLog] = {}
        self._kept: list[int] = []  # empty ones that the disk was too full to give up
        self.displaced: list[Displaced] = []
        self.restored: dict[int, Part] = {}
        """By number of the write-ahead log: the accepted messages that are in their place after `replay`."""
        self.repairs: list[Repair] = []
        self.unreported: list[Repair] = []
        """What a killed open has kept aside, and perhaps not reported.

        Empty after a restart of the machine: what is lost then was never acknowledged as durable.
        """
        self.was_killed = False
        """True if a write-ahead log was in use when its process ended, or a later recovery was killed."""
        self.is_resumed = False
        """True if it was a recovery after a restart of the machine that was killed: files may be missing."""
        self.was_unlogged = state.previous is not None and state.previous.is_unlogged
        """True if there was no space for one of them."""
        self._was_restarted = was_restarted(fs, state.previous, (its.path for its in stagings.values()))
        self.was_restarted = self._was_restarted is True
        """True if the machine was restarted, as `was_restarted` decides."""
        self.has_run_on = self._was_restarted is False
        """True if it certainly was not. Otherwise a power cut may have taken what was not synced."""

    def __bool__(self) -> bool:
        """True if messages may wait in one of them."""
        return bool(self._staging)

    @property
    def size(self) -> int:
        """Bytes on the disk of all write-ahead logs that this writer uses."""
        return sum(wal.size for wal in self._in_use.values())

    @property
    def _staging(self) -> list[int]:
        return [number for number, wal in self._in_use.items() if not wal.is_for_rows]

    def replay(
        self, *, in_place: bool = True, voided: Mapping[tuple[int, int], int] = MappingProxyType({})
    ) -> None:
        """After a kill, call `replay_wal` for all of them, and free their space. Raises OSError.

        `voided`: by number and file, the byte from which on their checksums are of bytes that are gone. A
        second call changes nothing. Write-ahead logs with displaced records stay.
        """
        previous = self._state.previous
        staged = self._staged
        self.was_killed = self._state.recovering_since > 0 or any(
            number in staged or not holds_nothing(self._fs, its.path)
            for number, its in self._stagings.items()
        )
        if (since := self._state.recovering_since) and not self.was_restarted:
            self.unreported = kept_aside_since(self._fs, since, self._stagings.values())
        self.is_resumed = self._state.has_restarted and not self.was_restarted
        if self.was_killed and previous is not None:
            self._state.note_recovering(has_restarted=self.was_restarted)
        # The one with the reserve comes first: each frees space for the next.
        sizes = {number: self._fs.size_of(its.path) or 0 for number, its in self._stagings.items()}
        for number in sorted(sizes, key=sizes.__getitem__, reverse=True):
            staging = self._stagings[number]
            done = replay_wal(
                self._fs,
                staging,
                was_restarted=self._was_restarted,
                was_staging=number in staged,
                in_place=in_place,
                voided={file: start for (its, file), start in voided.items() if its == number},
            )
            self.repairs += done.repairs
            if done.restored is not None:
                self.restored[number] = done.restored
            if done.displaced is not None:
                path, part = done.displaced
                self.displaced.append(Displaced(path, part._replace(group=number)))
                # If this open is killed, the next one must not use the rows that this one gives up.
                if done.has_added_rows:
                    clear_rows(self._fs, staging.path)
            else:
                self._clear(number)

    def clear_empty(self) -> None:
        """Free the space of those that hold nothing; a missing one stays missing. Raises OSError."""
        for number, staging in self._stagings.items():
            if not is_missing(self._fs, staging.path) and holds_nothing(self._fs, staging.path):
                self._clear(number)

    def clear(self) -> None:
        """Clear the displaced messages, which were appended again and are durable. Raises OSError."""
        for displaced in self.displaced:
            self._clear(displaced.part.group)
        self.displaced.clear()

    def _clear(self, number: int) -> None:
        path = self._stagings[number].path
        previous = self._state.previous
        if previous is not None:
            others = [other for other in self._staged if other != number]
            try:
                self._state.note_staged(others)
            except OSError as failure:
                if failure.errno not in FULL_DISK_ERRNOS or not holds_nothing(self._fs, path):
                    raise
                self._kept.append(number)  # the state names it still
                return
            self._staged = others
        clear_wal(self._fs, path)

    def open(
        self,
        buffers: Mapping[int, AppendBuffer],
        *,
        is_for_rows: bool,
        stagings: Mapping[int, Staging],
    ) -> None:
        """Create new ones for these buffers; the first has the reserve. Raises OSError.

        With `is_for_rows` no message waits in them. `stagings` are the files of all numbers. There are none
        while the state cannot name them.
        """
        assert not self.displaced
        self._stagings = stagings
        for number, buffer in buffers.items() if not self._state.is_pending else ():
            reserve = 0 if self._in_use else RESERVE
            path = self._stagings[number].path
            wal = open_wal(self._fs, path, buffer, reserve, is_for_rows=is_for_rows)
            if wal is not None:
                self._in_use[number] = wal
        with full_disk_ignored():
            staged = sorted({*self._staging, *self._kept})
            self._state.note_ready(staged, is_unlogged=len(self._in_use) < len(buffers))
            return
        self._discard()
        self._state.note_ready(self._kept, is_unlogged=True, can_wait=True)

    def flush_to_the_end(self, flush: Callable[[], None]) -> None:
        """Call `flush_to_the_end`; what cannot be written stays where it is."""
        with contextlib.suppress(OSError):
            flush_to_the_end(flush, list(self._in_use.values()))

    def give_up(self) -> None:
        """Discard them with their content, and free their space. Raises OSError."""
        self._state.note_staged(())
        self._discard()

    def _discard(self) -> None:
        in_use, self._in_use = self._in_use, {}
        for wal in in_use.values():
            wal.give_up()

    def retire(self) -> None:
        """Retire them at a clean close: what they do not hold any more is written and synced."""
        with contextlib.suppress(OSError):
            self._state.note_staged([number for number, wal in self._in_use.items() if wal.has_records])
            for wal in self._in_use.values():
                if wal.is_for_rows:
                    wal.give_up()
                elif not wal.has_records:
                    wal.wipe()

    def close(self) -> None:
        """Close them. Idempotent."""
        in_use, self._in_use = self._in_use, {}
        with contextlib.ExitStack() as stack:
            for wal in in_use.values():
                stack.callback(wal.close)
