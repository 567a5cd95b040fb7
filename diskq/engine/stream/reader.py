# Reading a stream: its partitions, each with a reader of its own, and where they may begin. Law: reading
# changes no file, so any number of readers may be active, in any process, with a producer at the same time.
# Only the first open after a crash puts into the files what the redo log alone has
# (storage/log/reader_replay.py).
#
# Synchronous, for one thread.

from __future__ import annotations

import itertools
from datetime import datetime

from diskq._native.core.gate import Gate
from diskq._native.core.thread_guard import ThreadGuard
from diskq._native.stream.codec import StreamColumns, TripletFraming
from diskq.engine.log.committed_offset import raising_disk_full
from diskq.engine.log.start import Start
from diskq.engine.log.tail import LogTail
from diskq.engine.log.timestamps import as_timestamp
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.replayed import stream_replay
from diskq.engine.stream.segment_reader import SegmentReader
from diskq.engine.stream.settings import read_settings
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.errors import OffsetOutOfRangeError
from diskq.messages import Message
from diskq.storage.arguments import check_is
from diskq.storage.directories import make_directories
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.numbers import UNBOUNDED

__all__ = ["PartitionTail", "ReadableStream", "make_stream"]

# Number of retries while a message is in the time index but not yet in the index.
_TRIES = 3
# Up to this many bytes that another process has just written usually have no checksum yet.
_JUST_WRITTEN = 64 * 1024


class PartitionTail(LogTail[Message, StreamColumns, SegmentReader], PartitionReader):
    """A reader whose partition may get a producer in this thread, and lose it, while it reads."""

    _ended_at: tuple[SegmentReader | None, int] | None = None  # where the last read found nothing more

    def fill(self) -> bool:
        found = super().fill()
        self._ended_at = None if found or self.live is not None else (self._segment, self.ahead.position)
        return found

    def follow(self) -> bool:
        segment = self._segment
        return (
            segment is not None
            and self.live is None
            and self._ended_at == (segment, self.ahead.position)
            and segment.follow(_JUST_WRITTEN)
        )


def make_stream(fs: FileSystem, path: str) -> None:
    """Make the directories of a stream, if there is none: it can be read then, before anybody writes to it.

    What a producer decides (partitions, settings) is left to the first one. Raises DiskFullError, OSError.
    """
    files = StreamFiles(fs, path)
    if fs.size_of(files.parts) is None:
        with raising_disk_full(files.parts):
            make_directories(fs, path)
            fs.make_directory(files.parts)


class ReadableStream:
    """A stream open for reading. Makes readers of its partitions, whose fast paths share one gate."""

    def __init__(
        self,
        path: AnyPath,
        *,
        fs: FileSystem | None = None,
        time_slice: float | None = None,
        guard: ThreadGuard | None = None,
    ) -> None:
        """Open the stream. Raises NotFoundError, UnsupportedFormatError, OSError.

        `time_slice` (seconds) closes the fast paths periodically: for a channel, which opens them. `guard` is
        that of the threads that share its readers.
        """
        self.path = as_path(path)
        self.fs = stream_replay(fs or OsFileSystem(), self.path).files_to_read()
        self.files = StreamFiles(self.fs, self.path)
        self._is_new = not self.files.partitions()
        self._read_framing()
        self.gate = Gate(time_slice or 0.0, guard)
        if time_slice is None:
            self.gate.left = UNBOUNDED

    def _read_framing(self) -> None:
        settings = read_settings(self.fs, self.files)
        self._framing = TripletFraming(varuint=settings is not None and settings.encoding == "varuint")

    def partitions(self) -> list[int]:
        """Return the partitions that exist now, ascending. Raises NotFoundError, OSError."""
        return self.files.partitions()

    def open(self, partition: int) -> PartitionTail:
        """Return a reader at offset 0 with no file open: call `seek`. Raises NotFoundError."""
        files = self.files.partition(partition)
        files.bases()
        if self._is_new:
            self._read_framing()  # the first producer has come since
            self._is_new = False
        return PartitionTail(self.fs, files, varuint=self._framing.varuint, gate=self.gate)

    def seek(self, reader: PartitionReader, partition: int, start: Start) -> None:
        """Move to `start`. A moment is the first later message, or the place of the next one.

        Raises OffsetOutOfRangeError if the offset does not exist, NotFoundError, OSError.
        """
        check_is("reader", reader, PartitionReader, "a reader that `open` returned")
        if start == "oldest":
            reader.seek_oldest()
        elif start == "newest":
            reader.seek_newest()
        elif start == "active":
            reader.seek_active()
        elif isinstance(start, datetime):
            self.seek_moment(reader, partition, as_timestamp(start))
        else:
            reader.seek(start)

    def seek_moment(self, reader: PartitionReader, partition: int, timestamp: int) -> None:
        check_is("reader", reader, PartitionReader, "a reader that `open` returned")
        for attempt in itertools.count(1):
            with TimeLookup(self.fs, self.files.partition(partition)) as lookup:
                offset = lookup.offset_after(timestamp)
            end = reader.next_offset()
            if offset is None or (offset > end and attempt == _TRIES):
                offset = end  # a message that only the timeindex has will not be completed
            try:
                return reader.seek(offset)
            except OffsetOutOfRangeError:
                pass  # retention removed it, or its index entry is being written: try again
        return None
