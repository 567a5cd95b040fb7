# Reading one partition of a stream: a log whose segments have an index. Law: as log/reader.py.

from __future__ import annotations

from functools import partial

from diskq._native.core.gate import Gate
from diskq._native.core.message import Message
from diskq._native.stream.codec import StreamColumns, TripletFraming
from diskq._native.stream.read_ahead import TripletAhead
from diskq.engine.log.reader import LiveEnd, LogReader, SkippedBytes
from diskq.engine.stream.files import PartitionFiles
from diskq.engine.stream.segment_reader import SegmentReader
from diskq.errors import OffsetOutOfRangeError
from diskq.storage.fs import FileSystem
from diskq.storage.log.format import rows_on
from diskq.storage.numbers import UNBOUNDED

__all__ = ["LiveEnd", "PartitionReader", "SkippedBytes"]


class PartitionReader(LogReader[Message, StreamColumns, SegmentReader]):
    """The messages of one partition, from any offset on. As `LogReader`."""

    def __init__(
        self,
        fs: FileSystem,
        files: PartitionFiles,
        *,
        varuint: bool = False,
        gate: Gate | None = None,
        live: LiveEnd | None = None,
    ) -> None:
        """Make a reader at offset 0, with no file open: seek first. The encoding is `varuint`, or else fixed.

        `gate` closes the fast path; without it the path is open. `live`: the partition's producer, while
        there is one in this thread; it may be set, and set to None, at any time.
        """
        if gate is None:
            gate = Gate()
            gate.left = UNBOUNDED
        self._framing = TripletFraming(varuint=varuint)
        self.ahead = TripletAhead(fs, self._framing, gate)
        self.ahead.partition = files.index
        self._partition = files
        super().__init__(fs, files, self.ahead, live)

    def seek_newest(self) -> None:
        """Move to the last message of the active segment, which is read next; to the end if that is empty.

        As a consumer of go-diskq does: after a segment was just begun it waits, though older messages exist.
        """
        active = max(self._files.bases(), default=0)
        end = self.next_offset()
        self.seek(end - 1 if end > active else end)

    def _open_segment(self, base: int) -> SegmentReader:
        wal_rows = partial(rows_on, self._fs, self._partition.wal, base)
        return SegmentReader(self._fs, self.ahead, self._framing, self._partition, base, wal_rows)

    def _another(self) -> PartitionReader:
        return PartitionReader(self._fs, self._partition, varuint=self._framing.varuint)

    def _out_of_range(self, offset: int, first: int, end: int | None = None) -> OffsetOutOfRangeError:
        end = self.next_offset() if end is None else end
        path, index = self._partition.stream.path, self._partition.index
        return OffsetOutOfRangeError(path, index, offset, first, end)
