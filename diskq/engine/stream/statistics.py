# Statistics of a stream at one moment, from its files. Law: nothing is changed and no process is disturbed;
# facts about messages come from their records.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from diskq._native.stream.codec import TripletFraming
from diskq.engine.log.timestamps import as_text
from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.segment_times import SegmentGone, SegmentTimes, framing_of
from diskq.errors import NotFoundError
from diskq.storage.fs import FileSystem

__all__ = ["PartitionStatistics", "StreamStatistics", "as_go", "stream_statistics"]

_NO_TIME = "0001-01-01T00:00:00Z"  # Go's


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """One partition at one moment. Timestamps are nanoseconds since 1970, None if there is no such message.

    A timestamp is also None if the message's record cannot be read.
    """

    partition: int
    messages: int
    oldest_offset: int
    """The first existing offset; the next one if there is no message."""
    newest_offset: int | None
    """The last existing offset."""
    next_offset: int
    """The offset that the next message gets."""
    active_base: int
    """The first offset of the segment that is written to."""
    oldest_timestamp_ns: int | None
    """Of the first message, which need not be the earliest."""
    active_timestamp_ns: int | None
    """Of the first message in the active segment."""
    newest_timestamp_ns: int | None
    """Of the last message, in whichever segment."""
    segments: int
    size_bytes: int
    """Bytes of data; indexes and private files are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatistics:
    """A stream at one moment."""

    path: str
    is_in_use: bool
    """True if there is an owner file: a producer has the stream open, or died."""
    partitions: tuple[PartitionStatistics, ...]

    @property
    def messages(self) -> int:
        return sum(partition.messages for partition in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Bytes of data."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def age_ns(self) -> int:
        """Nanoseconds from a partition's first message to its last: the longest of all, or 0."""
        return max((_age(partition) for partition in self.partitions), default=0)


def _age(partition: PartitionStatistics) -> int:
    oldest, newest = partition.oldest_timestamp_ns, partition.newest_timestamp_ns
    return 0 if oldest is None or newest is None else max(0, newest - oldest)


# --- from the files -------------------------------------------------------------------------------


def stream_statistics(fs: FileSystem, files: StreamFiles) -> StreamStatistics:
    """Return the statistics of a stream. Raises NotFoundError, UnsupportedFormatError, OSError."""
    framing = framing_of(fs, files)
    partitions = []
    for index in files.partitions():
        try:
            partitions.append(partition_statistics(fs, files.partition(index), framing))
        except NotFoundError:
            continue  # it was removed meanwhile
    return StreamStatistics(
        path=files.path,
        is_in_use=fs.size_of(files.owner) is not None,
        partitions=tuple(partitions),
    )


def partition_statistics(
    fs: FileSystem, files: PartitionFiles, framing: Callable[[], TripletFraming]
) -> PartitionStatistics:
    while True:
        bases = files.bases()
        segments = [SegmentTimes(fs, files, base, framing) for base in bases]
        try:
            return _statistics(fs, files, segments, framing)
        except SegmentGone:
            pass  # retention is at work: look again
        finally:
            for segment in segments:
                segment.close()


def _statistics(
    fs: FileSystem,
    files: PartitionFiles,
    segments: list[SegmentTimes],
    framing: Callable[[], TripletFraming],
) -> PartitionStatistics:
    for segment, next_one in pairwise(segments):
        segment.settle(next_one.base)
    counts = [segment.count() for segment in segments]
    if segments:
        # Messages whose entries are gone can still be read.
        with PartitionReader(fs, files, varuint=framing().varuint) as reader:
            counts[-1] = segments[-1].find_more(reader.next_offset())
    messages = sum(counts)
    with_messages = [segment for segment in segments if segment.entries]
    first, last, active = with_messages[:1], with_messages[-1:], segments[-1:]
    next_offset = max((segment.base + segment.entries for segment in active), default=0)
    return PartitionStatistics(
        partition=files.index,
        messages=messages,
        oldest_offset=first[0].base if first else next_offset,
        newest_offset=last[0].base + last[0].entries - 1 if last else None,
        next_offset=next_offset,
        active_base=active[0].base if active else 0,
        oldest_timestamp_ns=first[0].timestamp_of(first[0].base) if first else None,
        active_timestamp_ns=active[0].timestamp_of(active[0].base) if active else None,
        newest_timestamp_ns=last[0].timestamp_of(last[0].base + last[0].entries - 1) if last else None,
        segments=len(segments),
        size_bytes=sum(fs.size_of(files.data(segment.base)) or 0 for segment in segments),
    )


# --- as go-diskq reports it -----------------------------------------------------------------------


def as_go(statistics: StreamStatistics) -> dict[str, Any]:
    """Return the statistics under the names that go-diskq uses in JSON.

    They differ from go-diskq's where those are wrong: `TotalOffsets` is the number of messages, of which
    go-diskq reports one too few for each partition that has any; `NewestOffset`, `NewestTimestamp` and `Age`
    are of the last message also if the active segment is empty; and an age is not negative.
    """
    return {
        "Path": statistics.path,
        "SizeBytes": statistics.size_bytes,
        "InUse": statistics.is_in_use,
        "TotalOffsets": statistics.messages,
        "Age": statistics.age_ns,
        "Partitions": [
            {
                "PartitionIndex": partition.partition,
                "OldestOffset": partition.oldest_offset,
                "OldestOffsetActive": partition.active_base,
                "NewestOffset": partition.next_offset
                if partition.newest_offset is None
                else partition.newest_offset,
                "OldestTimestamp": _go_time(partition.oldest_timestamp_ns),
                "OldestTimestampActive": _go_time(partition.active_timestamp_ns),
                "NewestTimestamp": _go_time(partition.newest_timestamp_ns),
                "Segments": partition.segments,
                "SizeBytes": partition.size_bytes,
            }
            for partition in statistics.partitions
        ],
    }


def _go_time(timestamp: int | None) -> str:
    return _NO_TIME if timestamp is None else as_text(timestamp)
