# The active segment of TaskFlux's command log. Law: after the last whole record is the end marker, or the
# file ends; and no older bytes are after that.
#
# A record has its own checksum, so there is no checksum file. Zeros are written ahead of the records: a sync
# that does not change the file's size costs the disk half as much. Its `buffer` is the compiled part, through
# which all records go.

from __future__ import annotations

from diskq._native.core.gate import Gate
from diskq._native.priority.codec import END_MARKER, FILE_HEAD
from diskq._native.priority.command_buffer import CommandBuffer
from diskq.engine.priority.files import StoreFiles
from diskq.storage.barrier import PendingSyncs, cut_to, open_at, write_all
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem

__all__ = ["CommandSegment"]

# Bytes of zeros that are written at once.
_AHEAD = 128 * 1024


class CommandSegment:
    """The segment to which a store's log is written. `offset`s are record numbers in the whole log (LSN)."""

    def __init__(
        self,
        fs: FileSystem,
        files: StoreFiles,
        gate: Gate,
        gate_out: Gate,
        *,
        soft_limit: int,
        hard_limit: int,
        preallocate: bool,
    ) -> None:
        self._fs = fs
        self._files = files
        self._soft_limit = soft_limit
        self.buffer = CommandBuffer(fs, gate, gate_out, self._write_zeros)
        self.buffer.full_at = max(soft_limit, len(FILE_HEAD))
        self.buffer.hard_limit = max(soft_limit, hard_limit)
        self.buffer.preallocates = preallocate

    @property
    def handle(self) -> int:
        """The file's handle; -1: there is no segment to write to."""
        return self.buffer.handle

    @property
    def base(self) -> int:
        return self.buffer.base

    @property
    def end(self) -> int:
        """The byte after its last record."""
        return self.buffer.end

    @property
    def next_offset(self) -> int:
        return self.buffer.next_offset

    @property
    def is_open(self) -> bool:
        return self.buffer.handle >= 0

    def is_full_with(self, more: int) -> bool:
        """True if the segment is full with `more` bytes of records added."""
        return self.buffer.end + more > self.buffer.full_at

    @property
    def is_full(self) -> bool:
        return self.buffer.end > self.buffer.full_at

    @property
    def room(self) -> int:
        """Bytes up to the hard limit: after the record that fills them a batch goes to the next segment."""
        return max(0, self.buffer.hard_limit - self.buffer.end)

    def begin(self, base: int, pending_syncs: PendingSyncs) -> None:
        # The rest of a segment that could not be begun is cut.
        handle = open_at(self._fs, self._files.segment(base), 0)
        head = FILE_HEAD + END_MARKER
        try:
            write_all(self._fs, handle, head, 0)
        except BaseException:
            self._fs.close(handle)
            raise
        pending_syncs.directories[self._files.log] = None
        self.buffer.retarget(handle, base, len(FILE_HEAD), base, len(head))

    def resume(self, base: int, end: int, records: int, handle: int) -> None:
        """Continue in an existing, open segment after byte `end`, where only zeros are."""
        self.buffer.retarget(handle, base, end, base + records, end)  # the handle is this segment's now
        self.buffer.allocated = self._fs.size(handle)

    def _write_zeros(self, end: int) -> None:
        """Write zeros ahead of records that will end before byte `end`, if there is space for them."""
        ahead = min(_AHEAD, max(0, self._soft_limit + len(END_MARKER) - end))
        if ahead:
            buffer = self.buffer
            zeros = bytes(end + ahead - buffer.allocated)
            try:
                write_all(self._fs, buffer.handle, zeros, buffer.allocated)
            except OSError as failure:
                if failure.errno not in FULL_DISK_ERRNOS:
                    raise
            else:
                buffer.allocated += len(zeros)

    def cut_back(self) -> None:
        """Remove what a failed write left. Raises OSError."""
        buffer = self.buffer
        if buffer.handle < 0:
            return
        self._fs.truncate(buffer.handle, buffer.end)
        buffer.allocated = buffer.end
        try:
            write_all(self._fs, buffer.handle, END_MARKER, buffer.end)
        except OSError as failure:
            # Without a marker the end of the file is the end of the log.
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            self._fs.truncate(buffer.handle, buffer.end)
        else:
            buffer.allocated += len(END_MARKER)

    def trim(self) -> None:
        """Cut the zeros that were written ahead. Raises OSError."""
        buffer = self.buffer
        size = buffer.end + len(END_MARKER)
        cut_to(self._fs, buffer.handle, size)
        buffer.allocated = size

    def finish(self, pending_syncs: PendingSyncs) -> None:
        self.trim()
        pending_syncs.sync_and_close(self.handle)
        self._let_go()

    def abandon(self) -> None:
        """Close the segment without a sync."""
        handle = self.buffer.handle
        if handle >= 0:
            self._let_go()
            self._fs.close(handle)

    def _let_go(self) -> None:
        buffer = self.buffer
        buffer.retarget(-1, buffer.base, buffer.end, buffer.next_offset, 0)
