# The active segment of TaskFlux's command log. Law: after the last whole record is the end marker, or the
# file ends; and no older bytes are after that.
#
# A record has its own checksum, so there is no checksum file. Zeros are written ahead of the records: a sync
# that does not change the file's size costs the disk half as much.

from __future__ import annotations

from diskq._native.priority.codec import END_MARKER, FILE_HEAD
from diskq.engine.priority.files import StoreFiles
from diskq.storage.barrier import PendingSyncs, cut_to, open_at, write_all
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem

__all__ = ["CommandSegment"]

# Bytes of zeros that are written at once.
_AHEAD = 128 * 1024


class CommandSegment:
    """The segment to which a store's log is written. `offset`s are record numbers in the whole log (LSN)."""

    def __init__(
        self, fs: FileSystem, files: StoreFiles, *, soft_limit: int, hard_limit: int, preallocate: bool
    ) -> None:
        self._fs = fs
        self._files = files
        self._soft_limit = soft_limit
        self._full_at = max(soft_limit, len(FILE_HEAD))
        self._hard_limit = max(soft_limit, hard_limit)
        self._preallocate = preallocate
        self.handle = -1
        self.base = 0
        self.end = 0
        """The byte after its last record."""
        self.next_offset = 0
        self._allocated = 0  # the file's size

    @property
    def is_open(self) -> bool:
        return self.handle >= 0

    def is_full_with(self, more: int) -> bool:
        """True if the segment is full with `more` bytes of records added."""
        return self.end + more > self._full_at

    @property
    def is_full(self) -> bool:
        return self.end > self._full_at

    @property
    def room(self) -> int:
        """Bytes up to the hard limit: after the record that fills them a batch goes to the next segment."""
        return max(0, self._hard_limit - self.end)

    def begin(self, base: int, pending_syncs: PendingSyncs) -> None:
        # The rest of a segment that could not be begun is cut.
        handle = open_at(self._fs, self._files.segment(base), 0)
        try:
            write_all(self._fs, handle, FILE_HEAD + END_MARKER, 0)
        except BaseException:
            self._fs.close(handle)
            raise
        pending_syncs.directories[self._files.log] = None
        self.handle = handle
        self.base = self.next_offset = base
        self.end = len(FILE_HEAD)
        self._allocated = self.end + len(END_MARKER)

    def resume(self, base: int, end: int, records: int, handle: int) -> None:
        """Continue in an existing, open segment after byte `end`, where only zeros are."""
        self.handle = handle
        self.base = base
        self.end = end
        self.next_offset = base + records
        self._allocated = self._fs.size(handle)

    def write(self, data: bytes, records: int) -> None:
        """Write whole records; `data` has the end marker after them.

        Raises OSError: `cut_back` then removes what was written.
        """
        needed = self.end + len(data)
        if needed > self._allocated and self._preallocate:
            ahead = min(_AHEAD, max(0, self._soft_limit + len(END_MARKER) - needed))
            try:
                write_all(self._fs, self.handle, data + bytes(ahead), self.end)
            except OSError as failure:
                if failure.errno not in FULL_DISK_ERRNOS:
                    raise
                write_all(self._fs, self.handle, data, self.end)
                ahead = 0
            self._allocated = needed + ahead
        else:
            write_all(self._fs, self.handle, data, self.end)
            self._allocated = max(self._allocated, needed)
        self.end = needed - len(END_MARKER)
        self.next_offset += records

    def cut_back(self) -> None:
        """Remove what a failed write left. Raises OSError."""
        if not self.is_open:
            return
        self._fs.truncate(self.handle, self.end)
        self._allocated = self.end
        try:
            write_all(self._fs, self.handle, END_MARKER, self.end)
        except OSError as failure:
            # Without a marker the end of the file is the end of the log.
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            self._fs.truncate(self.handle, self.end)
        else:
            self._allocated += len(END_MARKER)

    def trim(self) -> None:
        """Cut the zeros that were written ahead. Raises OSError."""
        size = self.end + len(END_MARKER)
        cut_to(self._fs, self.handle, size)
        self._allocated = size

    def finish(self, pending_syncs: PendingSyncs) -> None:
        self.trim()
        pending_syncs.sync_and_close(self.handle)
        self.handle = -1

    def abandon(self) -> None:
        """Close the segment without a sync."""
        if self.is_open:
            handle, self.handle = self.handle, -1
            self._fs.close(handle)
