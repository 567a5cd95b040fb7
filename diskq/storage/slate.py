# The slate: what was accepted and waits to be written. Law: it only ever repeats what the data
# file is to hold at that place, so writing it again is always right, and needed only after a kill.
#
# A file of one fixed size, mapped into memory and shared with the page cache: a message laid down
# there outlives the process without a system call. It is not synced, and after a restart of the
# machine it means nothing: what was promised to survive that went through a barrier. So it begins
# with the kernel's name for this run of the machine, and under another name nobody reads on.

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from diskq._native.appendbuffer import SLATE_HEADER, SLATE_MAGIC, AppendBuffer
from diskq.errors import DiskFullError
from diskq.storage.barrier import write_all
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem

__all__ = [
    "RESERVE",
    "SIZE",
    "Slate",
    "Waiting",
    "clear_slates",
    "flush_to_the_end",
    "open_slate",
    "read_slate",
    "write_waiting",
]

SIZE = 64 * 1024
RESERVE = SIZE
"""As much behind what is mapped, unused: on a full disk it is given up for what waits, at the end or after
a restart. A writer with many slates has one: the slate that is written then makes room for the next."""

# What stands in a slate's place where there is no room for it, so that the next open has a little.
_FOOTING = 16 * 1024

# The name of this run of the machine, padded.
_BOOT = 64

# In the machine's own byte order: nobody but the next process on this machine reads it.
_HEADER = struct.Struct("=8sqqq")
assert _HEADER.size == SLATE_HEADER


class Waiting(NamedTuple):
    """Records that may not have been written: bytes of file number `file` from `start` on."""

    file: int
    start: int
    records: bytes


class Slate:
    """A slate in use by one `AppendBuffer`."""

    def __init__(self, fs: FileSystem, path: str, buffer: AppendBuffer, reserve: int) -> None:
        """Make it anew. Raises OSError where there is no room for it."""
        self._fs = fs
        self._buffer = buffer
        self._path = path
        self._has_reserve = reserve > 0
        self._is_closed = self._is_given_up = False
        self._handle = fs.open(path, write=True, create=True)
        try:
            # Real zeros, so that a full disk says so here and not when the memory is touched.
            write_all(fs, self._handle, _boot(fs) + bytes(SIZE - _BOOT + reserve), 0)
            self._memory = fs.share_memory(self._handle, SIZE)
        except BaseException:
            fs.close(self._handle)
            raise
        self._records = self._memory[_BOOT:]
        buffer.attach_slate(self._records)

    def close(self) -> None:
        """Let go of it; what was not written by then stays on it for the next open. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._buffer.wipe_slate()
        self._buffer.detach_slate()
        self._records.release()
        self._memory.release()
        self._fs.close(self._handle)

    def give_up(self) -> None:
        """Close it, and give its room back: for who needs nothing of what stands on it. Raises OSError."""
        self.close()
        self._is_given_up = True
        _truncate(self._fs, self._path, 0)

    def make_way(self, *, is_last: bool) -> bool:
        """At the end, on a full disk: give back some room that is not needed. False: all of it is.

        First the reserve; and when what stood on it is written all else, but for the last slate, which is
        what the next open has. It is closed by that. Raises OSError.
        """
        self.close()
        if self._has_reserve:
            self._has_reserve = False
            _truncate(self._fs, self._path, SIZE)
            return True
        if is_last or self._is_given_up or self._buffer.end > self._buffer.flushed:
            return False
        self.give_up()
        return True


def flush_to_the_end(flush: Callable[[], None], slates: Sequence[Slate]) -> None:
    """Flush what no more will come behind, on a full disk into what the slates give back.

    What finds no room even there is left where it is. Raises what `flush` does, but for a full disk.
    """
    has_more = True
    while has_more:
        try:
            flush()
            return
        except DiskFullError:
            has_more = any(slate.make_way(is_last=slate is slates[-1]) for slate in slates)


def open_slate(fs: FileSystem, path: str, buffer: AppendBuffer | None, reserve: int = 0) -> Slate | None:
    """A clean slate for `buffer`. None where it wants none, or there is no room: it can do without.

    Nothing of what stood on the old one is needed any more. A writer's first slate has the `reserve`.
    """
    try:
        if buffer is not None:
            return Slate(fs, path, buffer, reserve)
        if fs.size_of(path):
            _truncate(fs, path, 0)
    except OSError as failure:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise
        if fs.size_of(path) is not None:
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


def read_slate(fs: FileSystem, path: str) -> Waiting | None:
    """What a process that was killed may have left unwritten; None where nothing."""
    if (fs.size_of(path) or 0) < SIZE:
        return None
    handle = fs.open(path)
    try:
        content = fs.pread(handle, SIZE, 0)
    finally:
        fs.close(handle)
    magic, file, start, used = _HEADER.unpack_from(content, _BOOT)
    records = content[_BOOT + _HEADER.size :]
    is_ours = content.startswith(_boot(fs)) and magic == SLATE_MAGIC
    if not is_ours or not 0 < used <= len(records) or min(file, start) < 0:
        return None
    return Waiting(file, start, records[:used])


def write_waiting(fs: FileSystem, path: str, data: Callable[[int], str]) -> None:
    """After a kill: write what stands on the slate at `path` where it belongs, and is not yet.

    `data(file)` is the path of that file. Doing it twice changes nothing. Raises OSError; on a full
    disk only where the slate has no reserve, or somebody else took what it gave up.
    """
    waiting = _unwritten(fs, path, data)
    if waiting is not None:
        handle = fs.open(data(waiting.file), write=True)
        try:
            write_all(fs, handle, waiting.records, waiting.start)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            _truncate(fs, path, SIZE)
            write_all(fs, handle, waiting.records, waiting.start)
        finally:
            fs.close(handle)


def clear_slates(fs: FileSystem, slates: Iterable[tuple[str, Callable[[int], str]]]) -> None:
    """After a kill: `write_waiting` for all slates of a writer (path, data), and give back their room.

    Then the rest of the open has it, also on a full disk. Doing it twice changes nothing. Raises as
    `write_waiting`.
    """
    needed = []
    for path, data in slates:
        size = fs.size_of(path) or 0
        if size and _unwritten(fs, path, data) is not None:
            needed.append((size, path, data))
        elif size:
            _truncate(fs, path, 0)
    # The one with the reserve first: each makes room for the next.
    for _, path, data in sorted(needed, key=lambda each: each[0], reverse=True):
        write_waiting(fs, path, data)
        _truncate(fs, path, 0)


def _unwritten(fs: FileSystem, path: str, data: Callable[[int], str]) -> Waiting | None:
    """What stands there and not yet in the data file, at the place where it belongs."""
    waiting = read_slate(fs, path)
    if waiting is None or (size := fs.size_of(data(waiting.file))) is None:
        return None
    return waiting if waiting.start <= size < waiting.start + len(waiting.records) else None


def _truncate(fs: FileSystem, path: str, size: int) -> None:
    handle = fs.open(path, write=True)
    try:
        fs.truncate(handle, size)
    finally:
        fs.close(handle)


def _boot(fs: FileSystem) -> bytes:
    return fs.identity().boot_id.encode().ljust(_BOOT, b"\n")[:_BOOT]
