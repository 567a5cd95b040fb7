# The active file. Law: the bytes of a failed write are cut back to the last whole record, and
# checksum rows never reach past what is in the page cache.
#
# One `AppendFile` serves a queue for life and is moved from file to file as they roll: its buffer
# is the compiled fast path of every message, and callers keep a reference to that buffer.

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from diskq._native.core.append_buffer import BLOCK_SIZE, AppendBuffer
from diskq._native.core.gate import Gate
from diskq.storage.barrier import PendingSyncs, close_all, open_at
from diskq.storage.checksums import ChecksumFile
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of
from diskq.storage.log.entries import CHECKSUMS, DATA, Part

__all__ = ["AppendFile", "OnBlock", "Written"]


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
        self._logged = (0, 0)  # up to where the data and its checksums are durable, in the redo log or here
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
        self._logged = (end, rows)
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

    @property
    def unlogged_size(self) -> int:
        """Bytes of data that were written, and are durable nowhere yet."""
        return self.buffer.flushed - self._logged[0] if self._checksum_file is not None else 0

    def unlogged(self, group: int) -> tuple[Part, Part] | None:
        """Return what was written to both files since the last `note_logged`, checksums to the last byte.

        None: checksums could not be written, for lack of space or for good. Raises OSError.
        """
        sums = self._checksum_file
        if sums is None or self.needs_room:
            return None
        data, rows = self._logged
        records = self.buffer.since(data)
        if records is None:
            records = self._fs.pread(self.handle, self.buffer.flushed - data, data)
        self.buffer.close_block()  # its checksum, and others, may wait on the write-ahead log
        if self.failure is not None:
            return None
        number = self.buffer.file_number
        return Part(group, DATA, number, data, records), Part(
            group, CHECKSUMS, number, rows, sums.since(rows)
        )

    @property
    def accepted(self) -> Written:
        """Up to where records are written, and all their checksums, also those that wait."""
        sums = self._checksum_file
        return self.buffer.file_number, self.buffer.flushed, 0 if sums is None else sums.end

    @property
    def written(self) -> Written:
        """Up to where both files are written, for `note_logged`."""
        sums = self._checksum_file
        rows = 0 if sums is None else sums.written
        return self.buffer.file_number, self.buffer.flushed, rows

    def note_logged(self, written: Written) -> None:
        """Note that what was `written` then is durable."""
        number, *places = written
        if number == self.buffer.file_number and places[0] > self._logged[0]:
            self._logged = (places[0], places[1])

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
        assert self._checksum_file is not None
        try:
            self._checksum_file.add_row(end, size, records, crc)
            if not self.buffer.has_wal:  # with a write-ahead log, the checksum survives a kill there
                self._checksum_file.flush()
            self.needs_room = not self._checksum_file.has_room
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
