# The words of the tests of tables: small streams and journals on a disk in memory, and what is in them, as
# the engine's readers hand it out.

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.stream import Stream
from diskq.messages import NULL_TIMESTAMP
from diskq.options import JournalOptions, StreamOptions, TableOptions
from diskq.storage.barrier import opened
from diskq.storage.fs import FileSystem
from diskq.tables.parquet import open_file
from diskq.tables.reading import read_arrow
from diskq.tables.table import Table, open_table
from diskq.testing import CrashFS

__all__ = [
    "INTO",
    "JOURNAL",
    "STREAM",
    "Row",
    "content",
    "fill_journal",
    "fill_stream",
    "flip",
    "in_log",
    "in_table",
    "journal",
    "read",
    "rows",
    "stream",
    "table",
]

STREAM, JOURNAL, INTO = "/clicks", "/events", "/lake"

# Partition, offset, nanoseconds (None: no time), key, value; of a journal the type, else None.
Row = tuple[int, int, int | None, bytes, bytes, int | None]

SEGMENT = 400
"""Bytes of a segment: some messages."""


def stream(fs: FileSystem, **options: Any) -> Stream:
    given = {"partition_count": 2, "segment_size": SEGMENT, **options}
    return Stream(STREAM, options=StreamOptions(**given), fs=fs)


def journal(fs: FileSystem, **options: Any) -> Journal:
    return Journal(JOURNAL, options=JournalOptions(**{"segment_size": SEGMENT, **options}), fs=fs)


def fill_stream(fs: FileSystem, numbers: Iterable[int] = range(40), **options: Any) -> None:
    """Append messages whose bytes and times say which number they have; times step back, and before 1970."""
    with stream(fs, **options) as its:
        for number in numbers:
            its.append(b"value %d " % number * 5, b"key %d" % (number % 7), _time(number))


def fill_journal(fs: FileSystem, numbers: Iterable[int] = range(40), **options: Any) -> None:
    """The same for a journal; each fifth message has no time."""
    with journal(fs, **options) as its:
        for number in numbers:
            when = NULL_TIMESTAMP if number % 5 == 4 else _time(number)
            its.append(b"value %d " % number * 5, b"key %d" % (number % 7), when, number % 256)


def _time(number: int) -> int:
    return (number * 37 % 11 - 3) * 10**9 + number * 1001 - 5


def content(fs: FileSystem, path: str) -> bytes:
    with opened(fs, path) as handle:
        return fs.pread(handle, fs.size(handle), 0)


def flip(fs: CrashFS, path: str, at: int) -> None:
    """Change a bit of one byte, as bit rot does."""
    data = bytearray(content(fs, path))
    data[at] ^= 1
    fs.rot(path, bytes(data))


def table(fs: FileSystem, path: str = STREAM, **options: Any) -> Table:
    return open_table(path, INTO, options=TableOptions(**options), fs=fs)


def rows(found: Any) -> list[Row]:
    """The rows of something of Arrow's with all columns."""
    its = found.read_all() if hasattr(found, "read_all") else found
    types = its.column("type").to_pylist() if "type" in its.schema.names else [None] * its.num_rows
    columns = [
        its.column(name).to_pylist() for name in ("partition", "offset", "timestampNanos", "key", "value")
    ]
    return list(zip(*columns, types, strict=True))


def in_table(its: Table) -> list[Row]:
    """All rows of the files of a table, each read for itself and in the order of the list."""
    found: list[Row] = []
    for file in its.files():
        with open_file(its.state.fs, file.path) as opened:
            content = opened.read()
        types = content.column("type").to_pylist() if "type" in content.schema.names else None
        for number in range(content.num_rows):
            offset, nanos, key, value = (
                content.column(name)[number].as_py() for name in ("offset", "timestampNanos", "key", "value")
            )
            found.append((file.partition, offset, nanos, key, value, types[number] if types else None))
    return found


def read(fs: FileSystem, path: str = STREAM, **how: Any) -> list[Row]:
    return rows(read_arrow(path, fs=fs, **how))


def in_log(fs: FileSystem, path: str = STREAM) -> list[Row]:
    """All messages there are, by the engine's reader, one by one."""
    found: list[Row] = []
    if path == JOURNAL:
        with JournalReader(path, fs=fs) as entries:
            entries.seek_oldest()
            while (entry := entries.read()) is not None:
                nanos = entry.timestamp_ns if entry.timestamp is not None else None
                found.append((0, entry.offset, nanos, entry.key, entry.value, entry.type))
        return found
    its = ReadableStream(path, fs=fs)
    for partition in its.partitions():
        with its.open(partition) as reader:
            reader.seek_oldest()
            while (message := reader.read()) is not None:
                nanos = message.timestamp_ns
                found.append((partition, message.offset, nanos, message.key, message.value, None))
    return found
