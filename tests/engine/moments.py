# The words of the tests about time: a partition on a disk in memory, written as the stream engine writes
# it (or a peer, who leaves no marks), and what a plain look at all its messages says.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diskq._native.stream import codec as stream_codec
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE
from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.engine.stream.time_summary import TimeSummary
from diskq.storage.barrier import Barrier, write_all
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.engine.ram import RamFS

ROOT = "/s"
A_DAY_IN_2024 = 1_704_164_645_000_000_006


def disk() -> CrashFS:
    """A disk in memory with an empty stream of one partition."""
    fs = CrashFS()
    for path in directories(fs):
        fs.make_directory_durably(path)
    return fs


def ram() -> RamFS:
    """The same, of the plainest kind."""
    fs = RamFS({})
    fs.directories.update(directories(fs))
    return fs


def directories(fs: FileSystem) -> list[str]:
    files = partition(fs)
    return [ROOT, files.stream.parts, files.directory, files.stream.private, files.private]


def partition(fs: FileSystem, root: str = ROOT) -> PartitionFiles:
    return StreamFiles(fs, root).partition(0)


@dataclass
class Writer:
    """Writes a partition: data, timeindex, index. A segment is left when somebody says so."""

    fs: FileSystem
    files: PartitionFiles
    base: int = 0
    entries: int = 0
    size: int = 0
    value: bytes = b"value"
    varuint: bool = False
    marks: TimeSummary | None = None
    """None: a peer writes."""

    @property
    def next_offset(self) -> int:
        return self.base + self.entries

    def begin(self) -> None:
        """Make the files of the segment, or go on in those that are there."""
        paths = self.files.segment(self.base)
        self.data, self.index, self.timeindex = (
            self.fs.open(path, write=True, create=True) for path in paths
        )
        if self.marks is not None:
            self.marks.begin(self.base, self.timeindex, self.entries)

    def append(self, timestamps: Iterable[int]) -> None:
        messages = [(b"key", timestamp, self.value) for timestamp in timestamps]
        made = stream_codec.encode(messages, self.next_offset, self.size, self.varuint)
        write_all(self.fs, self.data, made.data, self.size)
        write_all(self.fs, self.timeindex, made.timeindex_rows, self.entries * TIMEINDEX_ROW_SIZE)
        write_all(self.fs, self.index, made.index_rows, self.entries * INDEX_ROW_SIZE)
        self.size += len(made.data)
        self.entries += len(messages)
        if self.marks is not None:
            self.marks.extend(self.entries)

    def roll(self) -> None:
        if self.marks is not None:
            self.marks.seal(self.entries, self.size)
        self.close()
        self.base, self.entries, self.size = self.next_offset, 0, 0
        self.begin()

    def close(self) -> None:
        if self.marks is not None:
            self.marks.close()
        for handle in (self.data, self.index, self.timeindex):
            self.fs.close(handle)


def writer(fs: FileSystem, *, marks: bool = True, varuint: bool = False, root: str = ROOT) -> Writer:
    """An empty partition, its first segment begun."""
    files = partition(fs, root)
    begun = Writer(fs, files, varuint=varuint, marks=TimeSummary(fs, files) if marks else None)
    begun.begin()
    return begun


def written(fs: FileSystem, *segments: Iterable[int], marks: bool = True) -> PartitionFiles:
    """A partition with these timestamps; the last segment is the active one."""
    by = writer(fs, marks=marks)
    *complete, active = segments
    for timestamps in complete:
        by.append(timestamps)
        by.roll()
    by.append(active)
    by.close()
    return by.files


def remove_segment(fs: FileSystem, files: PartitionFiles, base: int) -> None:
    """As retention does."""
    Barrier(removals=(*files.segment(base), *files.private_files(base))).execute(fs)


# --- what a plain look says -------------------------------------------------------------------


def messages(fs: FileSystem, files: PartitionFiles) -> Iterator[tuple[int, int]]:
    """Every message that is there: its offset and its timestamp. By the data files alone."""
    for base in files.bases():
        handle = fs.open(files.data(base))
        content = fs.pread(handle, fs.size(handle), 0)
        fs.close(handle)
        for message in stream_codec.scan(content, 0, base).messages:
            yield message.offset, message.timestamp_ns


def first_after(known: Iterable[tuple[int, int]], timestamp: int) -> int | None:
    return next((offset for offset, its_own in known if its_own > timestamp), None)


def first_at_or_after(known: Iterable[tuple[int, int]], timestamp: int) -> int | None:
    return first_after(known, timestamp - 1)


def edges(known: Iterable[tuple[int, int]]) -> list[int]:
    """Every moment at which the answer may change, and those beside it."""
    timestamps = {timestamp for _, timestamp in known}
    return sorted({timestamp + beside for timestamp in timestamps for beside in (-1, 0, 1)} | {0})


def offset_after_once(fs: FileSystem, path: str, partition: int, timestamp: int) -> int | None:
    """One question, from nothing: what is opened for it is closed."""
    with TimeLookup(fs, StreamFiles(fs, path).partition(partition)) as lookup:
        return lookup.offset_after(timestamp)


def after(fs: FileSystem, timestamp: int) -> int | None:
    return offset_after_once(fs, ROOT, 0, timestamp)


def opened(fs: FileSystem) -> TimeLookup:
    return TimeLookup(fs, partition(fs))
