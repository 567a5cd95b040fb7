# Staged files: messages of a transaction, written and synced before they are committed. Law: a file that
# `finish` has returned is durable, and is in the stream once its transaction is committed, and not before.
#
# Many processes stage at once, without the stream's lock, each in a file of its own:
#
#     .diskq/staging/<sink>-<epoch>-<task>-<attempt>.staged     attempt: 16 hex digits, drawn
#
# A line that identifies the stream, then records in the stream's encoding, in extents: each for one
# partition, with a checksum. The places of the extents are not in the file: the committing process gets them
# (`StagedFile`), and the transaction's intent has them. So a file that is never committed has no effect.
#
# The task's records for a partition to which it writes much go, after the first extent, into staged files of
# their own, without that line. The commit may rename such a file: then it is a segment, and its bytes are
# not written again (adoption.py).
#
#     .diskq/staging/<sink>-<epoch>.abandoned                   empty: that epoch will never be committed
#
# A process that abandons a transaction does not know which tasks still stage for it: a task that finishes
# later finds the mark. The task checks for the mark after its file exists, and the abandoning process looks
# for files after the mark exists.
# Format: docs/format/transactions.md.

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from diskq._native.stream.codec import TripletFraming, count
from diskq._native.stream.columns import ColumnBatch, ColumnEncoder, RowError
from diskq.engine.log.committed_offset import raising_disk_full
from diskq.engine.stream.files import StreamFiles
from diskq.errors import (
    CorruptionError,
    KeySizeError,
    MessageSizeError,
    SinkNameError,
    StagedError,
    StorageFailedError,
)
from diskq.options import MIB, Encoding, StreamOptions
from diskq.storage.barrier import Barrier, close_all, let_go, start_writeback, write_all
from diskq.storage.checksums import checksum
from diskq.storage.closing import Closing, Dropped
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, base_name, directory_of

__all__ = [
    "Abandoned",
    "ColumnBatch",
    "Extent",
    "StagedFile",
    "StagedName",
    "StagedReader",
    "StagingWriter",
    "abandoned_names",
    "check_sink_name",
    "least_size",
    "make_staging",
    "prepare_staging",
    "staged_names",
]

# Bytes of waiting records of one partition that are written as an extent.
_EXTENT = MIB
# Bytes of waiting records of all partitions together at which all are written.
_MOST_WAITING = 64 * MIB
# Bytes that are read at once: few enough that malloc(3) keeps the memory of one for the next.
_STRETCH = MIB
# An extent of at most this many stretches is copied from one read.
_AT_ONCE = 4
# A file becomes a segment if it has this part of a segment's size.
_PART_OF_A_SEGMENT = 8
# How many such files a task writes to at a time.
_MOST_WHOLE = 64

_LARGEST_EPOCH = 2**63 - 1
_SINK = re.compile(r"[A-Za-z0-9_.]{1,100}")
_NAME = re.compile(r"([A-Za-z0-9_.]{1,100})-([0-9]{1,19})-([0-9]{1,10})-([0-9a-f]{16})\.staged")
_MARK = re.compile(r"([A-Za-z0-9_.]{1,100})-([0-9]{1,19})\.abandoned")
_HEAD = re.compile(rb"diskq staged 1 (fixed|varuint) ([0-9]{1,6})\n")
_LONGEST_HEAD = 40


@dataclass(frozen=True, slots=True)
class Extent:
    """Whole consecutive records for one partition in a staged file. Sizes and places are bytes."""

    partition: int
    start: int
    size: int
    records: int
    crc: int
    """crc32c of these bytes."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A durable staged file: its name, and its extents in order."""

    name: str
    extents: tuple[Extent, ...]

    @property
    def whole(self) -> Extent | None:
        """The extent that is the whole file, which has no head then; None for a file with a head."""
        return self.extents[0] if len(self.extents) == 1 and self.extents[0].start == 0 else None


class StagedName(NamedTuple):
    """The parts of a staged file's name."""

    sink: str
    epoch: int
    task: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.sink}-{self.epoch}-{self.task}-{self.attempt}.staged"

    @classmethod
    def parse(cls, name: str) -> StagedName | None:
        """Return the parts of the name; None if no writer makes such a name."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return _as_written(name, cls(found[1], int(found[2]), int(found[3]), found[4]))


class Abandoned(NamedTuple):
    """The parts of the name of a mark: its transaction will never be committed."""

    sink: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.sink}-{self.epoch}.abandoned"

    @classmethod
    def parse(cls, name: str) -> Abandoned | None:
        """Return the parts of the name; None if it is not a mark's."""
        found = _MARK.fullmatch(name)
        return None if found is None else _as_written(name, cls(found[1], int(found[2])))


N = TypeVar("N", StagedName, Abandoned)


def _as_written(name: str, parsed: N) -> N | None:
    """Return the parsed name; None if diskq would have written it differently."""
    return parsed if str(parsed) == name and parsed.epoch <= _LARGEST_EPOCH else None


def least_size(segment_size: int) -> int:
    """Return the least size in bytes of a staged file that becomes a segment."""
    return segment_size // _PART_OF_A_SEGMENT


def check_sink_name(sink: object) -> None:
    """Raises SinkNameError unless `sink` can be part of a file's name, and be parsed from it."""
    if not isinstance(sink, str):
        raise TypeError(f"a sink's name is a str, not {type(sink).__name__}")
    if not _SINK.fullmatch(sink):
        raise SinkNameError(sink, "it is 1 to 100 of A to Z, a to z, 0 to 9, '_' and '.'")


def check_epoch(epoch: object) -> None:
    """Raises TypeError or ValueError."""
    if isinstance(epoch, bool) or not isinstance(epoch, int):
        raise TypeError(f"an epoch is a whole number, got {epoch!r}")
    if not 0 <= epoch <= _LARGEST_EPOCH:
        raise ValueError(f"an epoch is 0 to {_LARGEST_EPOCH}, got {epoch}")


def staged_names(fs: FileSystem, files: StreamFiles) -> list[StagedName]:
    """Return the names of the staged files. Raises OSError."""
    if fs.size_of(files.staging) is None:
        return []  # most streams
    return [name for entry in sorted(fs.list_directory(files.staging)) if (name := StagedName.parse(entry))]


def abandoned_names(fs: FileSystem, files: StreamFiles) -> list[Abandoned]:
    """Return the names of the marks of abandoned transactions. Raises OSError."""
    if fs.size_of(files.staging) is None:
        return []
    return [mark for entry in sorted(fs.list_directory(files.staging)) if (mark := Abandoned.parse(entry))]


def make_staging(fs: FileSystem, path: str) -> None:
    """Make the directory and its parents if they do not exist. Raises OSError."""
    try:
        fs.make_directory(path)
    except FileNotFoundError:
        if path == directory_of(path):
            raise
        make_staging(fs, directory_of(path))
        fs.make_directory(path)


def prepare_staging(path: AnyPath, *, fs: FileSystem | None = None) -> bool:
    """Make the directory of staged files of the stream at `path`, which need not exist. Raises OSError.

    True if the stream's directory has nothing but diskq's private files: a stream can be created there.
    """
    fs = fs or OsFileSystem()
    files = StreamFiles(fs, as_path(path))
    make_staging(fs, files.staging)
    return fs.list_directory(files.path) == [base_name(files.private)]


# --- writing --------------------------------------------------------------------------------------


class _WholeFile:
    """A staged file that is being written, of records for one partition, without a head."""

    __slots__ = ("crc", "handle", "name", "records", "size")

    def __init__(self, name: str, handle: int) -> None:
        self.name = name
        self.handle = handle
        self.size = self.records = self.crc = 0

    def staged(self, partition: int) -> StagedFile:
        return StagedFile(self.name, (Extent(partition, 0, self.size, self.records, self.crc),))


class StagingWriter(Closing, Dropped):
    """Writes the messages of one attempt of a task for a transaction: a staged file, and perhaps `segments`.

    For one thread. The stream need not exist yet, nor be locked.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        sink: str,
        epoch: int,
        task: int,
        partition_count: int,
        encoding: Encoding,
        segment_size: int | None = None,
        options: StreamOptions | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        """Stage for the stream at `path`, with that partition count and encoding; `options` have its limits.

        `segment_size`: of the stream, in bytes; then what is large enough for a segment is staged in files
        that can become one, which are in `segments`. None: all is in one file.

        Raises SinkNameError, TypeError, ValueError; OSError if the directory cannot be made.
        """
        check_sink_name(sink)
        check_epoch(epoch)
        options = options or StreamOptions()
        self._fs: FileSystem = fs or OsFileSystem()
        self._files = StreamFiles(self._fs, as_path(path))
        self._options = options
        self._head = b"diskq staged 1 %s %d\n" % (encoding.encode(), partition_count)
        framing = TripletFraming(
            options.min_message_size, options.max_message_size, options.max_key_size, encoding == "varuint"
        )
        self._encoder = ColumnEncoder(framing, partition_count, self._random, self._now_ns)
        self._mark = Abandoned(sink, epoch)
        self._task = task
        self.name = self._new_name()
        self.path = self._files.staged(self.name)
        self._extents: list[Extent] = []
        self._handle = -1
        self._at = 0
        self.segments: tuple[StagedFile, ...] = ()
        """The files besides the first one, after `finish`: to be committed after it, in this order."""
        # A file of whole extents ends near a segment's size, unless that is small.
        is_large = segment_size is not None and least_size(segment_size) >= _EXTENT
        self._segment_size = segment_size if is_large else None
        self._begun: set[int] = set()  # partitions with an extent in the first file
        self._whole: dict[int, _WholeFile] = {}  # by partition; a full one stays until the next is begun
        self._filled: list[StagedFile] = []
        self._handles: list[int] = []  # of whole files that are not full
        self._is_finished = False
        self._is_closed = False

    def add_columns(self, columns: ColumnBatch) -> None:
        """Add rows, each for the partition that it names or that its key belongs to.

        A row without a key gets a random one, a row without a timestamp the current time. Raises
        MessageSizeError, KeySizeError, RowError (a ValueError that names the row), before any row of the
        batch is added; DiskFullError, OSError, after which the file has to be closed.
        """
        self._check_open()
        try:
            self._encoder.add(*columns)
        except RowError as odd:
            if odd.reason == "value size" and odd.number is not None:
                least, most = self._options.min_message_size, self._options.max_message_size
                raise MessageSizeError(odd.number, least, most) from odd
            if odd.reason == "key size" and odd.number is not None:
                raise KeySizeError(odd.number, self._options.max_key_size) from odd
            raise
        if self._encoder.total >= _MOST_WAITING:
            self._write_waiting(1)
        elif self._encoder.total >= _EXTENT:
            self._write_waiting(_EXTENT)

    def add_encoded(self, partition: int, data: bytes | memoryview, records: int) -> None:
        """Add `records` that are encoded already, as an extent of their own, or to the partition's own file.

        The commit verifies them. Raises DiskFullError, OSError.
        """
        self._check_open()
        if not 0 <= partition < self._encoder.partition_count:
            raise ValueError(f"there is no partition {partition} of {self._encoder.partition_count}")
        self._take(partition)
        if records:
            self._write(partition, bytes(data), records)

    def finish(self) -> StagedFile:
        """Make the file, and `segments`, durable. Without messages there is no file.

        Raises DiskFullError, StorageFailedError; StagedError if its transaction was abandoned for good
        meanwhile, after which the file has to be closed.
        """
        self._check_open()
        self._write_waiting(1)
        if self._handle >= 0:
            # Any of these directories may be new.
            leading = (self._files.staging, self._files.private, self._files.path)
            try:
                with raising_disk_full(self.path):
                    Barrier(files=(self._handle, *self._handles), directories=leading).execute(self._fs)
            except OSError as failure:
                raise StorageFailedError(self.path) from failure
            if self._fs.size_of(self._files.staged(str(self._mark))) is not None:
                raise StagedError(self.path, "its transaction was abandoned before this was staged")
        self._is_finished = True
        self.close()
        last = (file.staged(partition) for partition, file in self._whole.items())
        self.segments = (*self._filled, *last)
        return StagedFile(self.name, tuple(self._extents))

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        return (self._fs, f"writer of {self.path}") if self._handle >= 0 else None

    def _let_go_dropped(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; an unfinished file is removed. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._handle >= 0:
            handles, self._handle = (self._handle, *self._handles), -1
            try:
                close_all(self._fs, handles)
            finally:
                if not self._is_finished:
                    # If even this fails, the sink's next commit removes them.
                    with contextlib.suppress(OSError):
                        names = [file.name for file in self._filled]
                        names += [file.name for file in self._whole.values()]
                        paths = map(self._files.staged, names)
                        Barrier(removals=(self.path, *paths)).execute(self._fs)

    # --- inside -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"the staged file {self.path} is closed")

    def _write_waiting(self, least: int) -> None:
        """Write the waiting records of partitions that have `least` bytes or more."""
        for partition in range(self._encoder.partition_count) if self._encoder.total else ():
            if self._encoder.waiting(partition) >= least:
                self._take(partition)

    def _take(self, partition: int) -> None:
        data, records = self._encoder.take(partition)
        if records:
            self._write(partition, data, records)

    def _write(self, partition: int, data: bytes, records: int) -> None:
        with raising_disk_full(self.path):
            if self._handle < 0:
                self._make()
            if (file := self._whole_file(partition, len(data))) is not None:
                self._write_early(file.handle, data, file.size)
                file.size += len(data)
                file.records += records
                file.crc = checksum(data, file.crc)
                return
            self._write_early(self._handle, data, self._at)
        self._begun.add(partition)
        self._extents.append(Extent(partition, self._at, len(data), records, checksum(data)))
        self._at += len(data)

    def _write_early(self, handle: int, data: bytes, at: int) -> None:
        """Write these bytes; much of them is on its way to the disk while the next rows are encoded."""
        write_all(self._fs, handle, data, at)
        if len(data) >= _EXTENT:
            start_writeback(self._fs, handle)

    def _whole_file(self, partition: int, size: int) -> _WholeFile | None:
        """Return the partition's own file for the next `size` bytes, made if it is time; None: it has none.

        The records of a partition stay in order: the first file has the first ones, then come these.
        """
        file = self._whole.get(partition)
        if self._segment_size is None:
            return None
        if file is None:
            # Its first records make the stream's last segment one that is not empty.
            if size < _EXTENT or partition not in self._begun or len(self._whole) >= _MOST_WHOLE:
                return None
        elif file.size < self._segment_size:
            return file
        else:
            self._handles.remove(file.handle)
            self._filled.append(file.staged(partition))
            Barrier(files=(file.handle,), closing=(file.handle,)).execute(self._fs)
        name = self._new_name()
        handle = self._fs.open(self._files.staged(name), write=True, create=True, exclusive=True)
        self._handles.append(handle)
        self._whole[partition] = _WholeFile(name, handle)
        return self._whole[partition]

    def _new_name(self) -> str:
        return str(StagedName(*self._mark, self._task, f"{self._fs.unique_number():016x}"))

    def _make(self) -> None:
        make_staging(self._fs, self._files.staging)
        self._handle = self._fs.open(self.path, write=True, create=True, exclusive=True)
        write_all(self._fs, self._handle, self._head, 0)
        self._at = len(self._head)

    def _random(self, size: int) -> bytes:
        numbers = (self._fs.unique_number() for _ in range(0, size, 8))
        return b"".join(number.to_bytes(8, "big") for number in numbers)[:size]

    def _now_ns(self) -> int:
        return int(self._fs.wall_clock() * 1_000_000_000)


# --- reading --------------------------------------------------------------------------------------


class StagedReader(Closing, Dropped):
    """A staged file, read for the commit: in stretches, however large its extents are."""

    def __init__(
        self, fs: FileSystem, files: StreamFiles, name: str, *, varuint: bool, segment: str | None = None
    ) -> None:
        """Open the file: if it is gone, at the path `segment`. Raises StagedError if it is gone, OSError."""
        self._fs = fs
        self.path = files.staged(name)
        self._varuint = varuint
        self._handle = -1
        try:
            if base_name(name) != name:
                raise StagedError(self.path, "this is not a staged file's name")
            try:
                self._handle = fs.open(self.path)
            except FileNotFoundError:
                if segment is None:
                    raise
                self._handle = fs.open(segment)
                self.path = segment
        except FileNotFoundError:
            raise StagedError(
                self.path,
                "the staged file is gone; if another machine staged it, both must see one shared file system "
                "at this path",
            ) from None

    def close(self) -> None:
        """Idempotent."""
        handle, self._handle = self._handle, -1
        let_go(self._fs, handle)

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        return (self._fs, f"reader of {self.path}") if self._handle >= 0 else None

    def _let_go_dropped(self) -> None:
        self.close()

    def check_head(self, partition_count: int) -> int:
        """Check that the file is for such a stream. Returns the byte after the head.

        Raises StagedError, CorruptionError.
        """
        head = _HEAD.match(self._fs.pread(self._handle, _LONGEST_HEAD, 0))
        if head is None:
            raise CorruptionError(self.path, 0, "it does not begin as a staged file")
        encoding = "varuint" if self._varuint else "fixed"
        found, given = head[1].decode(), int(head[2])
        if (found, given) != (encoding, partition_count):
            wanted = f"{partition_count} with encoding {encoding}"
            raise StagedError(
                self.path, f"staged for {given} partitions with encoding {found}; there are {wanted}"
            )
        return head.end()

    def verify(self, extent: Extent) -> None:
        """Verify that all records of the extent are as they were written. Raises CorruptionError, OSError."""
        for _ in self.stretches(extent):
            pass

    def records(self, extent: Extent, skip: int = 0) -> Iterator[memoryview]:
        """Yield the extent's encoded records after the first `skip`, many at a time.

        Its records were counted by `verify`, here or before its intent was written. Raises as `verify`,
        before the first.
        """
        stretches: Iterable[tuple[memoryview, int]]
        if extent.size <= _AT_ONCE * _STRETCH:
            stretches = (self._whole(extent),)
        else:
            self.verify(extent)
            stretches = self.stretches(extent)
        for data, number in stretches:
            if skip < number:
                start = count(data, self._varuint, skip).valid_end if skip else 0
                yield data[start:]
            skip = max(0, skip - number)

    def _whole(self, extent: Extent) -> tuple[memoryview, int]:
        """Return all records of the extent, and their number. Raises CorruptionError, OSError.

        With this checksum they are the bytes whose records were counted, and the buffer that takes them
        counts again.
        """
        data = self._fs.pread(self._handle, extent.size, extent.start)
        if len(data) < extent.size:
            raise self._corrupt(extent.start + len(data), "the file ends there")
        if checksum(data) != extent.crc:
            raise self._other_bytes(extent)
        return memoryview(data), extent.records

    def stretches(self, extent: Extent) -> Iterator[tuple[memoryview, int]]:
        """Yield whole records, and their number. Raises CorruptionError after the last of them."""
        at, end = extent.start, extent.start + extent.size
        crc = records = 0
        rest = b""
        while at < end:
            # A record longer than a stretch is read in growing pieces, so that it is copied only a few times.
            piece = self._fs.pread(self._handle, min(max(_STRETCH, len(rest)), end - at), at)
            if not piece:
                raise self._corrupt(at, "the file ends there")
            at += len(piece)
            data = rest + piece if rest else piece
            found = count(data, self._varuint)
            start = at - len(data)
            if found.stop == "CORRUPT":
                raise self._corrupt(start + found.valid_end, "no record begins there")
            rest = data
            if found.records:
                whole = memoryview(data)[: found.valid_end]
                crc = checksum(whole, crc)
                records += found.records
                yield whole, found.records
                # What is left is part of a record: it is read again, as joining it would copy a stretch.
                rest, at = b"", start + found.valid_end
        crc = checksum(rest, crc)
        if crc != extent.crc:
            raise self._other_bytes(extent)
        if rest or records != extent.records:
            raise self._corrupt(
                extent.start, f"{records} records in {extent.size} bytes instead of {extent.records}"
            )

    def _other_bytes(self, extent: Extent) -> CorruptionError:
        return self._corrupt(extent.start, f"the next {extent.size} bytes are not as they were staged")

    def _corrupt(self, position: int, reason: str) -> CorruptionError:
        return CorruptionError(self.path, position, f"{reason} (a staged file)")
