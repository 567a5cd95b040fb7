# A stream as its files show it. Law: read only: no lock is taken, no file is changed, and processes that
# write or read it do not notice.

from __future__ import annotations

import os
from collections.abc import Iterable

from diskq.cli.core.directories import check_directory
from diskq.cli.core.parsing import CommandError
from diskq.cli.core.places import Moment, Place
from diskq.engine.log.timestamps import as_text
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.settings import StreamSettings, read_settings
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.storage.fs import OsFileSystem
from diskq.tools.holders import writer_of

__all__ = ["STREAMS_OWN", "StreamView", "is_stream", "listed"]

STREAMS_OWN = {"settings.json", "owner", ".diskq"}
"""Names that an interrupted first open leaves, of go-diskq or of diskq."""


def is_stream(path: str) -> bool:
    return os.path.isdir(StreamFiles(OsFileSystem(), path).parts)


class StreamView:
    """An existing stream."""

    def __init__(self, path: str, advice: str = "") -> None:
        """Raises CommandError, with `advice`, unless there is a stream in the directory `path`.

        Raises UnsupportedFormatError if its settings cannot be read.
        """
        check_directory(path, advice)
        if not is_stream(path):
            raise CommandError(f"{path}: there is no stream here{advice}")
        self.path = path
        self._stream = ReadableStream(path)
        self.fs, self.files = self._stream.fs, self._stream.files

    @property
    def settings(self) -> StreamSettings:
        """Its settings, or the defaults if it has none. Raises UnsupportedFormatError."""
        return read_settings(self.fs, self.files) or StreamSettings()

    @property
    def writer(self) -> str | None:
        """The process that has it open for writing, or None."""
        return writer_of(self.fs, self.files)

    def partitions(self, wanted: Iterable[int] | None = None) -> list[int]:
        """Return all partitions, or those that are wanted. Raises NotFoundError for a missing one."""
        there = self._stream.partitions()
        if wanted is None:
            return there
        for partition in wanted:
            if partition not in there:
                known = f"there are {listed(there)}" if there else "there are none"
                raise NotFoundError("partition", self.path, f"there is no partition {partition}: {known}")
        return sorted(set(wanted))

    def reader(self, partition: int) -> PartitionReader:
        return self._stream.open(partition)

    def offset_at(self, partition: int, timestamp: int, *, or_at: bool = False) -> int | None:
        """Return the offset of the first message that is later (with `or_at`: not earlier), or None."""
        with TimeLookup(self.fs, self.files.partition(partition)) as lookup:
            return lookup.offset_at_or_after(timestamp) if or_at else lookup.offset_after(timestamp)

    def time_at(self, partition: int, offset: int) -> str | None:
        """Return the time of the message, or None if it is gone."""
        with self.reader(partition) as reader:
            try:
                reader.seek(offset)
            except OffsetOutOfRangeError:
                return None
            message = reader.read()
        return as_text(message.timestamp_ns) if message is not None else None

    def offset_of(self, partition: int, place: Place) -> int:
        """Return the offset of the first message at a place; the next offset if no message is that late.

        Raises OffsetOutOfRangeError, NotFoundError, OSError.
        """
        with self._stream.open(partition) as reader:
            if isinstance(place, Moment):
                self._stream.seek_moment(reader, partition, place.timestamp_ns)
            else:
                self._stream.seek(reader, partition, place)
            return reader.position


def listed(numbers: list[int]) -> str:
    """Return sorted numbers as people list them."""
    is_dense = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if is_dense else ", ".join(map(str, numbers))
