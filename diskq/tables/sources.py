# What a table is made of: the complete segments of a stream's partitions, or of a journal. Law: a segment
# comes into a table only when no power cut can take its messages back; else the log would give their offsets
# to other messages, and the table would contradict it.
#
# What diskq has written is durable up to its recovery points. What a peer has written, which syncs nothing,
# is synced here: reading changes no file, and neither does that.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.reader import JournalReader
from diskq.engine.layouts import layout_of
from diskq.engine.log.message_mark import message_mark
from diskq.engine.log.reader import LogReader
from diskq.engine.log.recovery_points import RecoveryPoints, read_points
from diskq.engine.stream.owner import owner_state, stream_id
from diskq.engine.stream.reader import ReadableStream
from diskq.errors import (
    NotFoundError,
    OffsetOutOfRangeError,
    UnsupportedFormatError,
)
from diskq.storage.barrier import Barrier, close_all
from diskq.storage.fs import FileSystem, directory_of
from diskq.storage.lock import read_holder
from diskq.tables.columns import Columns

__all__ = ["Kind", "LogSource", "Reader", "Segment", "open_source", "pieces"]

Kind = Literal["stream", "journal"]
Reader = LogReader[Any, Any, Any]

# Bytes of a log that are read into one piece of columns.
_STRETCH = 4 * 1024 * 1024
# Number of looks if messages end too early: index entries are written after their records.
_LOOKS = 3


class Segment(NamedTuple):
    """A complete segment: the messages with offsets `first` to `next` - 1."""

    first: int
    next: int


class LogSource(ABC):
    """A stream or a journal, open for reading."""

    kind: Kind
    path: str
    is_replayed = False
    """True if it is seen with what is in its redo log alone, as after a power cut."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._durable: dict[int, int] = {}  # by partition: the segment of the last recovery point

    @abstractmethod
    def partitions(self) -> list[int]:
        """Return the partitions, ascending. Raises NotFoundError, OSError."""

    @abstractmethod
    def open(self, partition: int) -> Reader:
        """Return a reader at offset 0, with no file open. Raises NotFoundError."""

    @abstractmethod
    def bases(self, partition: int) -> list[int]:
        """Return the segments, ascending; the last one is active. Raises NotFoundError, OSError."""

    @abstractmethod
    def identity(self) -> str:
        """Return the id that distinguishes it for good; empty if it has none. Raises OSError."""

    @abstractmethod
    def watched(self) -> list[str]:
        """Return the directories in which a name changes when a segment is begun, or is durable."""

    @abstractmethod
    def _files(self, partition: int, base: int) -> tuple[str, ...]:
        """Return the paths that a segment has, or may have."""

    @abstractmethod
    def _points(self) -> RecoveryPoints:
        """Return the recovery points. Raises OSError."""

    @abstractmethod
    def _is_as_left(self) -> bool:
        """True if no peer can have written since diskq did. Raises OSError."""

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return what changes when a segment may come into a table, by partition. Raises as `bases`."""
        points = self._points().partitions
        return {
            partition: (
                max(self.bases(partition), default=0),
                points[partition].base if partition in points else 0,
            )
            for partition in self.partitions()
        }

    def sealed(self, partition: int) -> list[Segment]:
        """Return the complete segments, ascending: all but the active one. Raises as `bases`."""
        return [Segment(*pair) for pair in pairwise(self.bases(partition))]

    def first_offset(self, partition: int) -> int:
        """Return the offset of the first message there is, or would be. Raises as `bases`."""
        return min(self.bases(partition), default=0)

    def next_offset(self, partition: int) -> int:
        """Return the offset after the last message there is now. Raises as `bases`."""
        with self.open(partition) as reader:
            return reader.next_offset()

    def mark(self, partition: int, offset: int) -> tuple[int, int] | None:
        """Return this offset and the checksum of its message; None if it is gone, or cannot be read."""
        with self.open(partition) as reader:
            return message_mark(reader, offset)

    def make_durable(self, partition: int, segment: Segment) -> bool:
        """Return True when no power cut can take messages of this segment; False if one still can.

        Raises FileNotFoundError if the segment was removed, OSError.
        """
        if self._durable.get(partition, 0) > segment.first:
            return True
        points = self._points()
        point = points.partitions.get(partition)
        if point is not None and point.base > segment.first:
            self._durable[partition] = point.base
            return True
        if not (points.is_closed or points.was_left) and self._is_as_left():
            return False  # a producer has yet to sync it; or was killed, and the next one does
        if self.is_replayed:
            return False
        self._sync(self._files(partition, segment.first))
        return True

    def _sync(self, paths: tuple[str, ...]) -> None:
        fs = self._fs
        handles: list[int] = []
        directories: dict[str, None] = {}
        try:
            for path in paths:
                with suppress(FileNotFoundError):
                    handles.append(fs.open(path))
                    directories[directory_of(path)] = None
        except BaseException:
            close_all(fs, handles)
            raise
        barrier = Barrier(files=tuple(handles), directories=tuple(directories), closing=tuple(handles))
        barrier.execute(fs)


class StreamSource(LogSource):
    """A stream, in go-diskq's files."""

    kind = "stream"

    def __init__(self, fs: FileSystem, path: str) -> None:
        super().__init__(fs)
        self.path = path
        self._stream = ReadableStream(path, fs=fs)
        self.is_replayed = self._stream.fs is not fs

    def partitions(self) -> list[int]:
        return self._stream.partitions()

    def open(self, partition: int) -> Reader:
        return self._stream.open(partition)

    def bases(self, partition: int) -> list[int]:
        return self._stream.files.partition(partition).bases()

    def identity(self) -> str:
        found = stream_id(self._fs, self._stream.files)
        return "" if found is None else found.hex()

    def watched(self) -> list[str]:
        files = self._stream.files
        private = [files.private] if self._fs.size_of(files.private) is not None else []
        return [files.parts, *private, *(files.partition(index).directory for index in files.partitions())]

    def _files(self, partition: int, base: int) -> tuple[str, ...]:
        files = self._stream.files.partition(partition)
        return (*files.segment(base), *files.private_files(base))

    def _points(self) -> RecoveryPoints:
        return read_points(self._fs, self._stream.files)

    def _is_as_left(self) -> bool:
        return owner_state(self._fs, self._stream.files) == "ours"


class JournalSource(LogSource):
    """A journal, in sej's files: a log with one partition, 0."""

    kind = "journal"

    def __init__(self, fs: FileSystem, path: str) -> None:
        super().__init__(fs)
        self.path = path
        with JournalReader(path, fs=fs) as reader:
            self.is_replayed = reader.fs is not fs
            self._journal = JournalFiles(reader.fs, path)
        self._journal.bases()

    def partitions(self) -> list[int]:
        return [0]

    def open(self, partition: int) -> Reader:
        return JournalReader(self.path, fs=self._fs)

    def bases(self, partition: int) -> list[int]:
        return self._journal.bases()

    def identity(self) -> str:
        return ""

    def watched(self) -> list[str]:
        private = self._journal.private
        return [self._journal.directory, *([private] if self._fs.size_of(private) is not None else [])]

    def _files(self, partition: int, base: int) -> tuple[str, ...]:
        return self._journal.data(base), self._journal.checksum_file(base)

    def _points(self) -> RecoveryPoints:
        return read_points(self._fs, self._journal)

    def _is_as_left(self) -> bool:
        # A peer that has had the lock has emptied its file.
        return read_holder(self._fs, self._journal.lock) is not None


def open_source(fs: FileSystem, path: str) -> LogSource:
    """Return the stream or the journal in the directory `path`.

    Raises NotFoundError if there is neither, UnsupportedFormatError for files of another kind, OSError.
    """
    try:
        layout = layout_of(fs, path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("stream or journal", path, "there is no stream and no journal here") from None
    if layout == "triplet":
        return StreamSource(fs, path)
    if layout == "sej":
        return JournalSource(fs, path)
    if layout is None:
        raise NotFoundError("stream or journal", path, "there is no stream and no journal here")
    found = "queues" if layout == "nsq" else "a priority store"
    raise UnsupportedFormatError(path, found, "streams and journals, which have offsets")


def pieces(reader: Reader, start: int, end: int) -> Iterator[tuple[int, Columns]]:
    """Yield the messages with offsets `start` to `end` - 1 by column, each piece with its first offset.

    A reader that is there goes on. The first and the last piece may begin earlier and end later. Messages
    that cannot be read are left out, and in `reader.losses`. Raises OffsetOutOfRangeError if messages were
    removed, OSError.
    """
    if reader.base is None or reader.position != start:
        reader.seek(start)
    looks = 0
    at = start
    while at < end and looks < _LOOKS:
        found = reader.columns(_STRETCH)
        if found is None:
            looks += 1
            continue
        looks = 0
        first, columns = found
        if first < end:
            yield first, columns
        at = first + columns.records


GONE = (OffsetOutOfRangeError, NotFoundError, FileNotFoundError)
"""What a source raises when messages, or all of it, are gone."""
