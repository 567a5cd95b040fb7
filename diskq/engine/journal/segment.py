# The active segment of a journal: one file, and its checksum file. Law: it is complete before the next one
# has a name, and it ends after the record that fills it, as in sej.

from __future__ import annotations

from collections.abc import Callable

from diskq._native.core.gate import Gate
from diskq._native.journal.append_buffer import SejBuffer
from diskq._native.journal.codec import SejFraming
from diskq.engine.journal.files import JournalFiles
from diskq.engine.log.segment import OffsetSegment
from diskq.storage.barrier import PendingSyncs
from diskq.storage.fs import FileSystem

__all__ = ["JournalSegment"]


class JournalSegment(OffsetSegment[SejBuffer]):
    """The segment to which a journal is written."""

    def __init__(
        self, fs: FileSystem, files: JournalFiles, framing: SejFraming, gate: Gate, segment_size: int
    ) -> None:
        super().__init__(fs, gate, lambda report: SejBuffer(fs, framing, gate, report))
        self._files = files
        self._segment_size = segment_size

    def count_from(
        self, next_offset: int, clock: Callable[[], int] | None, on_full: Callable[[], object]
    ) -> None:
        """Set the offset of the first record, once, before it. `on_full` is called for each full file."""
        self.buffer.count_from(next_offset, clock, on_full)

    def resume(self, base: int, end: int, rows: int, pending_syncs: PendingSyncs) -> None:
        """Continue in an existing segment: after byte `end` of its data, its checksums after `rows`."""
        self.append.begin(
            self._files.data(base), self._files.checksum_file(base), pending_syncs, end=end, rows=rows
        )
        self.buffer.begin(base)
        self.buffer.file_number = base
        # A full segment takes one more record: sej checks after each record.
        self.buffer.limit = max(end + 1, self._segment_size)
