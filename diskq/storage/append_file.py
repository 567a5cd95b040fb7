# The active file and its checksums, as they are written. Law: the bytes of a failed write are cut back to the
# last whole record, and checksum rows never reach past what is in the page cache.
#
# One `AppendFile` serves a queue for life and is moved from file to file as they roll: its buffer
# is the compiled fast path of every message, and callers keep a reference to that buffer. How rows are read
# is in checksums.py.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from diskq._native.core.append_buffer import BLOCK_SIZE, AppendBuffer
from diskq._native.core.blocks import packed_row
from diskq._native.core.gate import Gate
from diskq.storage.barrier import Barrier, PendingSyncs, close_all, open_at, write_all
from diskq.storage.checksums import ROW, Row, checksum, rows_before, unpack_row
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of
from diskq.storage.log.entries import CHECKSUMS, DATA, Part

__all__ = ["AppendFile", "ChecksumFile", "OnBlock", "Written", "replace_last_rows", "void_rows"]

_WRITE_AT = 16 * ROW.size  # about 64 KiB of data: rows wait in memory until then, or a barrier
_SPARE_ROWS = 64  # kept ready as zeros, so that a full disk is noticed before a message is accepted
_LEAST_AHEAD = 4 * 1024
_MOST_AHEAD = 64 * 1024

B = TypeVar("B", bound=AppendBuffer)

OnBlock = Callable[[int, int, int, int], object]
Written = tuple[int, int, int]
"""The number of a file, the byte after its last written record, and the bytes of its checksums."""


class AppendFile(Generic[B]):
    """A data file open for appending, and its checksum file.

    `make_buffer` makes the format's buffer, which calls the given function for each finished block.
    """

    def __init__(self, fs: FileSystem, gate: Gate, make_buffer: Callable[[OnBlock], B]) -> None:
        self._fs = fs
        self._gate = gate
        self.buffer = make_buffer(self._on_block)
        self.path = ""
        self.handle = -1
        self._checksum_file: ChecksumFile | None = None
        self.failure: OSError | None = None
        """Why a checksum row could not be written: nothing more can be promised. None: no failure."""
        self.logged = 0
        """The byte of the data up to which it is durable, in the redo log or here."""
        self._logged_rows = 0  # the same of the checksums
        self._given = 0, 0  # up to where `unlogged` has returned both
        self.needs_room = False
        """True if no zeros are left for the next rows, or `before_first` is set: call `prepare` before the
        next message."""
        self.before_first: Callable[[], object] | None = None
        """Called once by `prepare`, before a message is written; it raises an error if none may be."""
        self.on_not_ready: Callable[[], object] | None = None
        """Called when the gate is shut because this file is not ready any more; `begin` does not call it."""

    def begin(
        self, path: str, checksum_file: str, pending_syncs: PendingSyncs, *, end: int = 0, rows: int = 0
    ) -> None:
        """Append to the file at `path` from byte `end` on, and its checksums after `rows` bytes of rows.

        Missing files are created, and their names become durable with the next barrier.
        Raises OSError; then nothing has changed, except that empty files may exist.
        """
        handle = open_at(self._fs, path, end)
        try:
            self._checksum_file = ChecksumFile.open(self._fs, checksum_file, rows, covered=end if rows else 0)
        except BaseException:
            self._fs.close(handle)
            raise
        self._look_for_room()
        self.path = path
        self.handle = handle
        self.buffer.retarget(handle, end, end)
        self.logged, self._logged_rows = end, rows
        pending_syncs.directories[directory_of(path)] = None
        pending_syncs.directories[directory_of(checksum_file)] = None

    @property
    def is_open(self) -> bool:
        return self.handle >= 0

    @property
    def is_ready(self) -> bool:
        """True if a message can be appended without any preparation."""
        return self.handle >= 0 and not self.needs_room and self.failure is None

    @property
    def allocated(self) -> int:
        """Bytes on disk besides the data: the checksums and the zeros written ahead."""
        return self._checksum_file.allocated if self._checksum_file else 0

    @property
    def room(self) -> int:
        """Bytes that may be appended before `make_room_for_rows` must be called again, approximately."""
        assert self._checksum_file is not None
        # A barrier ends a block early, and one may come before the next call of this.
        return max(0, self._checksum_file.room - 2) * BLOCK_SIZE

    @property
    def growth(self) -> int:
        """Bytes that the checksum file must grow by before the next message."""
        return self._checksum_file.growth if self._checksum_file else 0

    @property
    def next_growth(self) -> int:
        """Bytes that the checksum file will grow by when its zeros are used up."""
        return self._checksum_file.next_growth if self._checksum_file else 0

    def wait_for(self, before_first: Callable[[], object]) -> None:
        """Let the next `prepare` call `before_first`."""
        self.before_first = before_first
        self.needs_room = True
        self._shut()

    def prepare(self) -> None:
        """Prepare for the next message. Raises OSError if the disk is too full; and as `before_first`."""
        if self.before_first is not None:
            self.before_first()
            self.before_first = None
        self.make_room_for_rows()

    def make_room_for_rows(self) -> None:
        """Write zeros for the next rows. Raises OSError if the disk is too full for them."""
        assert self._checksum_file is not None
        self._checksum_file.make_room()
        self._look_for_room()

    def _look_for_room(self) -> None:
        assert self._checksum_file is not None
        self.needs_room = not self._checksum_file.has_room or self.before_first is not None

    def cut_back(self) -> None:
        """Cut off the bytes of a failed write after the last whole record."""
        self._fs.truncate(self.handle, self.buffer.flushed)

    def show_rows(self, position: int) -> int:
        """Write the rows for the bytes after `position`, so that readers see them.

        Returns the byte of the data at which the last row ends.
        """
        if self._checksum_file is None:
            return 0
        if self._checksum_file.covered > position:
            self._write_rows()
        return self._checksum_file.shown

    def settle(self) -> tuple[int, ...]:
        """Write the checksums of everything written so far. Returns the handles to be synced.

        On a full disk the checksums wait, and `has_pending_rows` is True. Raises OSError for other failures.
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
            self._shut()

    @property
    def has_pending_rows(self) -> bool:
        """True if checksums wait because the disk is full."""
        return self._checksum_file is not None and bool(self._checksum_file.waiting)

    # --- for the redo log -------------------------------------------------------------------------

    def unlogged(self, group: int) -> tuple[Part, Part] | None:
        """Return what was written to both files after `logged`, checksums to the last byte.

        None: checksums could not be written, for lack of space or for good. Raises OSError.
        """
        sums = self._checksum_file
        if sums is None or self.needs_room:
            return None
        data, rows = self.logged, self._logged_rows
        records = self.buffer.since(data)
        if records is None:
            records = self._fs.pread(self.handle, self.buffer.flushed - data, data)
        self.buffer.close_block()  # its checksum, and others, may wait on the write-ahead log
        if self.failure is not None:
            return None
        number, checksums = self.buffer.file_number, sums.since(rows)
        self._given = data + len(records), rows + len(checksums)
        return Part(group, DATA, number, data, records), Part(group, CHECKSUMS, number, rows, checksums)

    def note_logged(self) -> None:
        """Note that what `unlogged` returned is in the redo log."""
        self.logged, self._logged_rows = self._given

    @property
    def written(self) -> Written:
        """Up to where both files are written, for `note_synced`."""
        sums = self._checksum_file
        rows = 0 if sums is None else sums.written
        return self.buffer.file_number, self.buffer.flushed, rows

    def note_synced(self, written: Written) -> None:
        """Note that what was `written` then is durable."""
        number, data, rows = written
        if number == self.buffer.file_number and data > self.logged:
            self.logged, self._logged_rows = data, rows

    def finish(self, pending_syncs: PendingSyncs, *, is_removed: bool = False) -> int:
        """Complete the file. The next barrier syncs it, and then closes it.

        `is_removed`: it goes with that barrier, and stays as it is. Returns the size of its checksum file in
        bytes.
        """
        assert self._checksum_file is not None
        handles = (self.handle, self._checksum_file.handle)
        if not is_removed:
            self.settle()
            self._checksum_file.seal()
        checksum_bytes = self._checksum_file.written
        pending_syncs.sync_and_close(*handles)
        self.handle = -1
        self._checksum_file = None
        self.logged = self.buffer.flushed  # the log gets nothing of it any more
        return checksum_bytes

    def abandon(self) -> None:
        """Close the files without a sync, after a failure."""
        if self._checksum_file is not None:
            handles = (self.handle, self._checksum_file.handle)
            self.handle = -1
            self._checksum_file = None
            close_all(self._fs, handles)

    def _on_block(self, end: int, size: int, records: int, crc: int) -> None:
        # The message is in the page cache, so its caller must not get an error. A row that cannot be
        # written closes the gate instead, and the next message takes the slow path, which reports it.
        sums = self._checksum_file
        assert sums is not None
        try:
            self.needs_room = not sums.add_row(end, size, records, crc)
            if not self.buffer.has_wal:  # with a write-ahead log, the checksum survives a kill there
                sums.flush()
        except OSError as failure:
            self.needs_room = True
            if failure.errno not in FULL_DISK_ERRNOS:  # on a full disk the rows wait
                self.failure = failure
        if self.needs_room or self.failure is not None:
            self._shut()

    def _shut(self) -> None:
        self._gate.left = 0
        if self.on_not_ready is not None:
            self.on_not_ready()


# --- the checksums --------------------------------------------------------------------------------


@dataclass(slots=True)
class ChecksumFile:
    """The writing side: appends the rows of the active file."""

    fs: FileSystem
    path: str
    handle: int
    written: int
    """Bytes of rows in the page cache."""
    allocated: int
    """Bytes of the file, zeros included."""
    waiting: bytearray
    covered: int
    """The byte of the data up to which rows reach, written or waiting."""

    @classmethod
    def open(cls, fs: FileSystem, path: str, rows: int, covered: int) -> ChecksumFile:
        """Continue after `rows` bytes of rows, which reach to byte `covered` of the data.

        Later bytes of the checksum file are cut off: with 0 it starts empty.
        """
        handle = fs.open(path, write=True, create=True)
        checksum_file = cls(fs, path, handle, rows, rows, bytearray(), covered)
        try:
            if fs.size(handle) != rows:
                fs.truncate(handle, rows)
        except BaseException:
            fs.close(handle)
            raise
        return checksum_file

    def add(self, end: int, size: int, records: int, data: memoryview) -> None:
        """Add the row of a block with these bytes, as `add_row`."""
        self.add_row(end, size, records, checksum(data))

    def add_row(self, end: int, size: int, records: int, crc: int) -> bool:
        """Add the row of a block with this checksum. It waits in memory until `_WRITE_AT` or a barrier.

        True: zeros are left for the rows of the next messages. Raises OSError.
        """
        self.waiting += packed_row(end, size, records, crc)
        self.covered = end
        if len(self.waiting) >= _WRITE_AT:
            self.flush()
        return self.has_room

    def flush(self) -> None:
        """Write the waiting rows into the page cache, over the zeros written ahead."""
        if self.waiting:
            write_all(self.fs, self.handle, self.waiting, self.written)
            self.written += len(self.waiting)
            self.allocated = max(self.allocated, self.written)
            self.waiting.clear()

    def since(self, position: int) -> bytes:
        """Return the rows from this byte on, written or waiting. Raises OSError."""
        if position >= self.written:
            return bytes(self.waiting[position - self.written :])
        return self.fs.pread(self.handle, self.written - position, position) + self.waiting

    @property
    def shown(self) -> int:
        """The byte of the data up to which rows are in the page cache."""
        first = unpack_row(bytes(self.waiting[: ROW.size]))
        return first.start if first is not None else self.covered

    @property
    def room(self) -> int:
        """Number of further rows for which zeros are left."""
        return max(0, self.allocated - self.written - len(self.waiting)) // ROW.size

    @property
    def has_room(self) -> bool:
        """True if zeros are left for the rows of the next messages."""
        return self.allocated - self.written - len(self.waiting) >= _SPARE_ROWS * ROW.size

    @property
    def growth(self) -> int:
        """Bytes that `make_room` would write now."""
        return 0 if self.has_room else self.next_growth

    @property
    def next_growth(self) -> int:
        """Bytes that `make_room` will write when the zeros are used up."""
        return min(_MOST_AHEAD, max(_LEAST_AHEAD, self.allocated))

    def make_room(self) -> None:
        """Write zeros ahead. Raises OSError if the disk is full; the checksum file is then unchanged."""
        ahead = self.growth
        write_all(self.fs, self.handle, bytes(ahead), self.allocated)
        self.allocated += ahead

    def seal(self) -> None:
        """Write the row that says that the data file is complete, and cut off the zeros."""
        rows = bytes(self.waiting) + packed_row(self.covered, 0, 0, 0)
        write_all(self.fs, self.handle, rows, self.written)
        self.written += len(rows)
        self.waiting.clear()
        self.fs.truncate(self.handle, self.written)
        self.allocated = self.written


def void_rows(fs: FileSystem, path: str, position: int) -> None:
    """Remove durably the rows of blocks that end after byte `position` of the data. Raises OSError.

    They are of bytes that are gone: other ones are there, or will be.
    """
    if fs.size_of(path):
        handle = ChecksumFile.open(fs, path, *rows_before(fs, path, position)).handle
        Barrier(files=(handle,), closing=(handle,)).execute(fs)


def replace_last_rows(fs: FileSystem, path: str, last: Sequence[Row]) -> None:
    """Replace the last rows of the checksum file at `path`, from the start of the first of `last` on.

    Raises OSError.
    """
    kept, covered = rows_before(fs, path, last[0].start)
    checksum_file = ChecksumFile.open(fs, path, kept, covered)
    try:
        for row in last:
            checksum_file.add_row(row.end, row.end - row.start, row.records, row.crc)
        checksum_file.flush()
    finally:
        fs.close(checksum_file.handle)
