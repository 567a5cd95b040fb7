# Parquet files of a table, written and read through diskq's file system. Law: what a file says of itself, its
# footer, is written last: a file without it is none.
#
# A file holds the messages of one range of offsets, and says in its footer of which stream they are, and
# which of the range are missing. Rows are gathered into groups, which are what is in memory.
#
# Format: docs/format/table.md.

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diskq.engine.log.message_mark import mark_of
from diskq.errors import CorruptionError, UnsupportedFormatError
from diskq.options import Compression
from diskq.storage.barrier import let_go, start_writeback, write_all
from diskq.storage.fs import FileSystem
from diskq.tables.arrow import NANOS, schema_of
from diskq.tables.names import TableFile
from diskq.tables.sources import Kind

__all__ = ["Footer", "ParquetTarget", "batches_of", "footer_of", "open_file", "read_footer", "source_of"]

VERSION = 1
_PREFIX = "diskq."

# A group of rows ends with this many bytes of keys and values, or rows: what a reader skips, or holds.
GROUP_BYTES = 64 * 1024 * 1024
GROUP_ROWS = 1024 * 1024

# The most rows of a batch that is read, and about the most bytes of it; and bytes of a file, read at once.
_ROWS = 64 * 1024
_BATCH = 8 * 1024 * 1024
_BUFFER = 1024 * 1024

_NUMBERS = ("offset", "timestamp", NANOS)

# The first rows of a file, from which the encoding of its columns is chosen.
_SAMPLE = 32 * 1024

# Values are compressed if that makes a sample of the first group smaller, by this part at least: about so
# many bytes of it, from that number of places. A group of fewer rows is not sampled.
_LEAST_SAVED = 1 / 32
_PROBE = 256 * 1024
_PLACES = 4
_LEAST_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What a file says of itself, as text by text in its footer."""

    kind: Kind
    stream: str
    """The id of the stream; empty if it has none."""
    topic: str
    partition: int
    first: int
    next: int
    mark: tuple[int, int] | None = None
    """The offset of a message, and its checksum: what distinguishes a stream without an id."""
    missing: tuple[tuple[int, int], ...] = ()
    """The ranges of offsets within that no row has."""

    @property
    def rows(self) -> int:
        """The number of rows that there should be."""
        return self.next - self.first - sum(end - start for start, end in self.missing)

    def render(self) -> dict[str, str]:
        fields = {
            "version": str(VERSION),
            "kind": self.kind,
            "stream": self.stream,
            "topic": self.topic,
            "partition": str(self.partition),
            "first": str(self.first),
            "next": str(self.next),
            "mark": "" if self.mark is None else f"{self.mark[0]} {self.mark[1]:08x}",
            "missing": json.dumps(self.missing),
        }
        return {_PREFIX + name: text for name, text in fields.items()}

    @classmethod
    def parse(cls, path: str, found: Mapping[bytes, bytes]) -> Footer:
        """Parse what `render` returns. Raises UnsupportedFormatError for other texts."""
        texts = {name.decode(errors="replace"): text.decode(errors="replace") for name, text in found.items()}
        version = texts.get(f"{_PREFIX}version", "no file of a table")
        if version != str(VERSION):
            raise UnsupportedFormatError(path, f"version {version}", f"version {VERSION}")
        try:
            offset, _, crc = texts[f"{_PREFIX}mark"].partition(" ")
            kind: Kind = "journal" if texts[f"{_PREFIX}kind"] == "journal" else "stream"
            return cls(
                kind=kind,
                stream=texts[f"{_PREFIX}stream"],
                topic=texts[f"{_PREFIX}topic"],
                partition=int(texts[f"{_PREFIX}partition"]),
                first=int(texts[f"{_PREFIX}first"]),
                next=int(texts[f"{_PREFIX}next"]),
                mark=(int(offset), int(crc, 16)) if offset else None,
                missing=tuple(
                    (int(start), int(end)) for start, end in json.loads(texts[f"{_PREFIX}missing"])
                ),
            )
        except (KeyError, ValueError, TypeError) as failure:
            raise UnsupportedFormatError(path, f"a footer that lacks {failure}", "those of a table") from None


# --- files, as pyarrow sees them ------------------------------------------------------------------


class _WrittenFile:
    """An open file, as an object that pyarrow writes to, front to back."""

    closed = False

    def __init__(self, fs: FileSystem, handle: int) -> None:
        self._fs = fs
        self._handle = handle
        self._at = 0
        self._begun = 0  # bytes whose way to the disk has begun
        self.is_given_up = False
        """True: whatever is written from now on is dropped."""

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if not self.is_given_up:
            write_all(self._fs, self._handle, view, self._at)
        self._at += len(view)
        if self._at - self._begun >= _BUFFER and not self.is_given_up:
            # The disk works while the next rows are encoded; the sync at the end has little left to wait for.
            start_writeback(self._fs, self._handle)
            self._begun = self._at
        return len(view)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class _ReadFile:
    """A file, as an object that pyarrow reads from."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """Raises FileNotFoundError, OSError."""
        self._fs = fs
        self._handle = fs.open(path)
        self._at = 0
        self._size = fs.size(self._handle)

    @property
    def closed(self) -> bool:
        return self._handle < 0

    def read(self, size: int = -1) -> bytes:
        data = self._fs.pread(self._handle, self._size - self._at if size < 0 else size, self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)


# --- writing --------------------------------------------------------------------------------------


class ParquetTarget:
    """A new file, open for writing at `path`, to which batches are added in the order of offsets."""

    def __init__(self, fs: FileSystem, path: str, footer: Footer, compression: Compression) -> None:
        """Make the file. Raises OSError."""
        self._fs = fs
        self.path = path
        self.footer = footer
        self._schema = schema_of(footer.kind)
        self._compression = compression
        self._next = footer.first  # the next offset, if nothing is missing
        self._missing: list[tuple[int, int]] = []
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.rows = 0
        self.handle = fs.open(path, write=True, create=True, exclusive=True)
        self._file = _WrittenFile(fs, self.handle)
        self._begun: Any = None

    def add(self, batch: Any) -> None:
        """Add the messages of a batch. Raises OSError; then `abandon`."""
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if self.footer.mark is None:
            its = batch.slice(0, 1).to_pylist()[0]
            mark = mark_of(first, its[NANOS], its.get("type"), its["key"], its["value"])
            self.footer = replace(self.footer, mark=mark)
        self._note_missing(first)
        if last - first >= len(offsets):
            for number in pc.indices_nonzero(pc.greater(pc.pairwise_diff(offsets), 1)).to_pylist():
                self._next = offsets[number - 1].as_py() + 1
                self._note_missing(offsets[number].as_py())
        self._next = last + 1
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write_group()

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The ranges of offsets up to the last message that was added that none of them has."""
        return self._missing

    def finish(self) -> Footer:
        """Write what waits, and the footer; the file is not synced. Returns what the footer says.

        Raises OSError; then `abandon`.
        """
        self._note_missing(self.footer.next)
        if self._waiting:
            self._write_group()
        self.footer = replace(self.footer, missing=tuple(self._missing))
        with self._giving_up():
            writer = self._writer(self._schema.empty_table())
            writer.add_key_value_metadata(self.footer.render())
            writer.close()
        return self.footer

    def abandon(self) -> None:
        """Close the file, which is of no use. Raises nothing."""
        self._file.is_given_up = True
        self._waiting.clear()
        if self._begun is not None:
            with contextlib.suppress(Exception):
                self._begun.close()
        handle, self.handle = self.handle, -1
        let_go(self._fs, handle)

    def _note_missing(self, offset: int) -> None:
        if offset > self._next:
            self._missing.append((self._next, offset))
            self._next = offset

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self.rows += table.num_rows
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0
        with self._giving_up():
            self._writer(table).write_table(table, row_group_size=table.num_rows)

    def _writer(self, group: Any) -> Any:
        """Return the writer, which is made for the rows of the first group."""
        if self._begun is None:
            self._begun = _writer(self._file, group, self._compression)
        return self._begun

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Write nothing more after an error: pyarrow would write the footer when the writer is dropped."""
        try:
            yield
        except BaseException:
            self._file.is_given_up = True
            raise


def _writer(file: _WrittenFile, group: Any, compression: Compression) -> Any:
    """Return a `pyarrow.parquet.ParquetWriter` for rows like those of the group.

    What repeats is read fastest as numbers of a dictionary; a dictionary of what does not is only in the way.
    Numbers that rise by little take almost no space as differences. Without compression offsets are written
    as they are in memory, so that readers need not compute them. Values that are compressed or encrypted
    already cost more time than all else if they are compressed again, and take as much space.
    """
    schema = group.schema
    sample = group.slice(0, _SAMPLE)
    # Times repeat if messages come in bursts. A dictionary of single ones is larger than their differences.
    least = {"key": 2, "timestamp": 16, NANOS: 16}
    repeated = [name for name, times in least.items() if _repeats(sample.column(name), times)]
    plain = ["offset"] if compression == "none" else []
    is_smaller = compression != "none" and _is_smaller(group.select(["value"]), compression)
    return pq.ParquetWriter(
        pa.PythonFile(file, mode="w"),
        schema,
        version="2.6",
        compression={name: compression if name != "value" or is_smaller else "none" for name in schema.names},
        use_dictionary=[*repeated, *(["type"] if "type" in schema.names else [])],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in _NUMBERS if name not in (*repeated, *plain)},
        write_statistics=[name for name in schema.names if name not in ("key", "value")],
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
    )


def _repeats(column: Any, times: int) -> bool:
    """True if each value is in the column at least `times` times, on average."""
    enough = len(column) // times + 1  # that many distinct values are too many, wherever they are
    distinct: int = pc.count_distinct(column.slice(0, enough), mode="all").as_py()
    if distinct == enough:
        return False
    distinct = pc.count_distinct(column, mode="all").as_py()
    return distinct * times <= len(column) > 0


def _is_smaller(group: Any, compression: Compression) -> bool:
    """False if some rows of this one column, here and there, do not become smaller by compression."""
    rows = group.num_rows
    if rows < _LEAST_ROWS:
        return True
    some = max(1, min(rows, rows * _PROBE // max(1, group.nbytes)) // _PLACES)
    probe = pa.concat_tables(group.slice(rows * place // _PLACES, some) for place in range(_PLACES))
    found: list[Any] = []
    pq.write_table(
        probe,
        pa.BufferOutputStream(),
        row_group_size=probe.num_rows,
        compression=compression,
        use_dictionary=False,
        write_statistics=False,
        metadata_collector=found,
    )
    its = found[0].row_group(0).column(0)
    saved: float = 1 - its.total_compressed_size / its.total_uncompressed_size
    return saved >= _LEAST_SAVED


# --- reading --------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_file(fs: FileSystem, path: str) -> Iterator[Any]:
    """Open a file for a `with` block, as `pyarrow.parquet.ParquetFile`; its pages are verified.

    Raises FileNotFoundError, OSError; CorruptionError if it is not whole, also within the block.
    """
    with source_of(fs, path) as source:
        yield pq.ParquetFile(
            source,
            # Page by page: a group of rows as a whole is several times its size in memory.
            buffer_size=_BUFFER,
            pre_buffer=False,
            page_checksum_verification=True,
        )


@contextlib.contextmanager
def source_of(fs: FileSystem, path: str) -> Iterator[Any]:
    """Open a file for a `with` block, as pyarrow reads it. Raises as `open_file`."""
    file = _ReadFile(fs, path)
    try:
        with _corruption(path):
            yield pa.PythonFile(file, mode="r")
    finally:
        file.close()


@contextlib.contextmanager
def _corruption(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as failure:
        if isinstance(failure, OSError) and failure.errno is not None:
            raise  # the file system's own
        raise CorruptionError(path, 0, f"no whole Parquet file: {failure}") from failure


def read_footer(fs: FileSystem, file: TableFile) -> Footer:
    """Return what the file says of itself. Raises UnsupportedFormatError, and as `open_file`."""
    with open_file(fs, file.path) as opened:
        return footer_of(file.path, opened)


def footer_of(path: str, opened: Any) -> Footer:
    return Footer.parse(path, opened.metadata.metadata or {})


def batches_of(opened: Any, group: int, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield the rows of a group of an open file, as `pyarrow.RecordBatch`."""
    its = opened.metadata.row_group(group)
    rows = max(1, min(_ROWS, _BATCH * its.num_rows // max(1, its.total_byte_size)))
    yield from opened.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)
