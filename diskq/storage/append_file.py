# The active file. Law: what a failed write left behind is cut back to the last whole record, and
# checksum rows never reach past what is in the page cache.
#
# One `AppendFile` serves a queue for life and is moved from file to file as they roll: its buffer
# is the compiled door that every message passes, and whoever holds that door keeps it.

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from diskq._native.core.append_buffer import BLOCK_SIZE, AppendBuffer
from diskq._native.core.gate import Gate
from diskq.storage.barrier import PendingSyncs, close_all, open_at
from diskq.storage.checksums import ChecksumFile
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of

__all__ = ["AppendFile", "OnBlock"]


B = TypeVar("B", bound=AppendBuffer)

OnBlock = Callable[[int, int, int, int], object]


class AppendFile(Generic[B]):
    """A data file open for appending, and the checksums beside it.

    `make_buffer` makes the format's buffer, which tells the function it is given of each block.
    """

    def __init__(self, fs: FileSystem, gate: Gate, make_buffer: Callable[[OnBlock], B]) -> None:
        self._fs = fs
        self._gate = gate
        self.buffer = make_buffer(self._on_block)
        self.path = ""
        self.handle = -1
        self._checksum_file: ChecksumFile | None = None
        self.failure: OSError | None = None
        """A checksum row could not be written: nothing more can be promised."""
        self.needs_room = False
        """The zeros for the next rows are used up: `make_room_for_rows` before the next message."""

    def begin(
        self, path: str, checksum_file: str, pending_syncs: PendingSyncs, *, end: int = 0, rows: int = 0
    ) -> None:
        """Append to the file at `path` from byte `end` on, its checksums after `rows` bytes of rows.

        Both are made where they are not there, and their names are owed to the next barrier.
        Raises OSError; then nothing changed but that empty files may be there.
        """
        handle = open_at(self._fs, path, end)
        try:
            self._checksum_file = ChecksumFile.open(self._fs, checksum_file, rows, covered=end if rows else 0)
        except BaseException:
            self._fs.close(handle)
            raise
        self.needs_room = not self._checksum_file.has_room
        self.path = path
        self.handle = handle
        self.buffer.retarget(handle, end, end)
        pending_syncs.directories[directory_of(path)] = None
        pending_syncs.directories[directory_of(checksum_file)] = None

    @property
    def is_open(self) -> bool:
        return self.handle >= 0

    @property
    def is_ready(self) -> bool:
        """May a message be appended without looking after anything first?"""
        return self.handle >= 0 and not self.needs_room and self.failure is None

    @property
    def allocated(self) -> int:
        """Bytes on disk beside the data: the checksums, with the zeros written ahead of them."""
        return self._checksum_file.allocated if self._checksum_file else 0

    @property
    def room(self) -> int:
        """So many bytes may be appended until `make_room_for_rows` must be called again, about."""
        assert self._checksum_file is not None
        # A barrier ends a block early: one may come before this is asked again.
        return max(0, self._checksum_file.room - 2) * BLOCK_SIZE

    @property
    def growth(self) -> int:
        """So many bytes of checksums must be made room for before the next message."""
        return self._checksum_file.growth if self._checksum_file else 0

    @property
    def next_growth(self) -> int:
        """The same, when the room that there is will be used up."""
        return self._checksum_file.next_growth if self._checksum_file else 0

    def make_room_for_rows(self) -> None:
        """Raises OSError where the disk is too full for the checksums of one more message."""
        assert self._checksum_file is not None
        self._checksum_file.make_room()
        self.needs_room = not self._checksum_file.has_room

    def cut_back(self) -> None:
        """Drop what a failed write left behind the last whole record."""
        self._fs.truncate(self.handle, self.buffer.flushed)

    def show_rows(self, position: int) -> int:
        """Let readers see the rows for the bytes after `position`; returns where the last one ends."""
        if self._checksum_file is None:
            return 0
        if self._checksum_file.covered > position:
            self._write_rows()
        return self._checksum_file.shown

    def settle(self) -> tuple[int, ...]:
        """The checksums of all that is written, written too: the handles to be synced.

        Where the disk is full the checksums wait, and `has_pending_rows` says so. Raises OSError otherwise.
        """
        if self._checksum_file is None:
            return ()
        self.buffer.close_block()
        self._write_rows()
        if self.failure is not None:
            raise self.failure
        return (self.handle, self._checksum_file.handle)

    def _write_rows(self) -> None:
        assert self._checksum_file is not None
        try:
            self._checksum_file.flush()
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            self.needs_room = True
            self._gate.left = 0

    @property
    def has_pending_rows(self) -> bool:
        """Are there checksums for which the disk had no room yet?"""
        return self._checksum_file is not None and bool(self._checksum_file.waiting)

    def finish(self, pending_syncs: PendingSyncs) -> int:
        """The file is complete. The next barrier syncs it, and closes it after.

        Returns the bytes of checksums beside it.
        """
        assert self._checksum_file is not None
        handles = self.settle()
        self._checksum_file.seal()
        beside = self._checksum_file.written
        pending_syncs.sync_and_close(*handles)
        self.handle = -1
        self._checksum_file = None
        return beside

    def abandon(self) -> None:
        """Close without a promise: after a failure."""
        if self._checksum_file is not None:
            handles = (self.handle, self._checksum_file.handle)
            self.handle = -1
            self._checksum_file = None
            close_all(self._fs, handles)

    def _on_block(self, end: int, size: int, records: int, crc: int) -> None:
        # The message is in the page cache and its caller must not be told otherwise: a row that
        # cannot be written shuts the gate, and whoever asks next learns of it.
        assert self._checksum_file is not None
        try:
            self._checksum_file.add_row(end, size, records, crc)
            if not self.buffer.has_wal:  # else a kill leaves the checksum there
                self._checksum_file.flush()
            self.needs_room = not self._checksum_file.has_room
        except OSError as failure:
            self.needs_room = True
            if failure.errno not in FULL_DISK_ERRNOS:  # else they wait
                self.failure = failure
        if self.needs_room or self.failure is not None:
            self._gate.left = 0
