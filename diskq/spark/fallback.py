# Streams read with pyarrow alone, for executors that have diskq's Python and nothing compiled. Law: what
# is handed out is what the index and the data say alike; checksums are not looked at, so that a payload
# that rotted is handed out as it is. Who opens it instead of the engine logs that (layouts.py).
#
# For streams with fixed lengths, as go-diskq writes them: a record is
#
#     key's length u32 | key | timestamp i64 | value's length u64 | value        (little endian)
#
# and the index has a row for it: its offset, the byte at which it begins, its size. So the bytes of many
# records are one Arrow array of binaries, four for each record, cut where the index says; columns are
# every fourth of them. What can be computed for all records at once is; no object is made for a message.
#
# Format: docs/format/triplet.md.

from __future__ import annotations

import array
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from diskq.spark.arrow import Piece
from diskq.spark.errors import DiskqSparkError
from diskq.spark.layouts import Losses
from diskq.spark.uncompiled import Segment, UncompiledLayout

__all__ = ["UnverifiedLayout"]

_ROWS_AT_ONCE = 8192
_ROW_SIZE = 24
_LEAST_RECORD = 20
_DATA = re.compile(r"([0-9]{20})\.data")


@dataclass(frozen=True, slots=True)
class _Columns:
    """A piece for Arrow."""

    records: int
    timestamps: Any
    keys: Any
    key_offsets: Any
    values: Any
    value_offsets: Any
    offset_width: int = 4


class UnverifiedLayout(UncompiledLayout):
    """A stream."""

    removal = "retention"

    def __init__(self, path: str) -> None:
        """Raises DISKQ_FORMAT for a stream with another encoding."""
        super().__init__(path)
        try:
            with open(os.path.join(path, "settings.json"), "rb") as file:
                settings = json.loads(file.read().strip(b"\0") or b"{}")
        except FileNotFoundError:
            settings = {}
        if settings.get("encoding", "fixed") != "fixed":
            raise DiskqSparkError(
                "DISKQ_FORMAT",
                f"{path}: encoding {settings['encoding']!r} is read by diskq's compiled modules alone: "
                "ship them to the executors (docs/spark.md)",
            )

    def _directory(self, partition: int) -> str:
        return os.path.join(self._path, "parts", f"{partition:06d}")

    def _base_of(self, name: str) -> int | None:
        found = _DATA.fullmatch(name)
        return int(found[1]) if found else None

    def _segment(self, partition: int, base: int) -> Segment:
        return _Segment(self._directory(partition), base)


class _Segment:
    """One data file and its index, open."""

    def __init__(self, directory: str, base: int) -> None:
        """Raises FileNotFoundError, OSError."""
        self._base = base
        self._path = os.path.join(directory, f"{base:020d}.data")
        self._data: BinaryIO = open(self._path, "rb", buffering=0)  # noqa: SIM115 - see __exit__
        try:
            self._index: BinaryIO = open(self._path.removesuffix("data") + "index", "rb", buffering=0)  # noqa: SIM115
        except BaseException:
            self._data.close()
            raise

    def __enter__(self) -> _Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()
        self._index.close()

    def read(self, at: int, end: int, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Piece]]:
        """Messages at:end. A row or a record that cannot be right costs its message."""
        while at < end:
            rows = self._rows(at, min(end - at, _ROWS_AT_ONCE))
            if not rows:
                losses.tell("DISKQ_CORRUPT", f"{self._path}: offsets {at} to {end - 1} are not in the index")
                return
            size = os.fstat(self._data.fileno()).st_size
            if rows.begin_behind(size):
                losses.tell(
                    "DISKQ_CORRUPT", f"{self._path}: offsets {at} to {end - 1}: the file ends at byte {size}"
                )
                return
            piece = self._piece(rows, size, max_bytes)
            if piece is not None:
                yield at, piece
                at += piece.records
            if piece is None or piece.is_cut_short:
                losses.tell("DISKQ_CORRUPT", f"{self._path}: offset {at}: index and data disagree")
                at += 1

    def _rows(self, offset: int, most: int) -> _Rows | None:
        self._index.seek((offset - self._base) * _ROW_SIZE)
        data = self._index.read(most * _ROW_SIZE) or b""
        count = len(data) // _ROW_SIZE
        return _Rows(data[: count * _ROW_SIZE], offset) if count else None

    def _piece(self, rows: _Rows, size: int, max_bytes: int) -> _Piece | None:
        """The first messages of these rows; None: not even the first one is right."""
        rows.keep_right(size, max_bytes)
        if not rows.count:
            return None
        self._data.seek(rows.start)
        data = self._data.read(rows.end - rows.start) or b""
        if len(data) < rows.end - rows.start:
            return None  # it was cut in this moment
        return _decoded(pa.py_buffer(data), rows)


@dataclass(frozen=True, slots=True)
class _Piece(_Columns):
    is_cut_short: bool = False
    """Does a message follow that cannot be right?"""


class _Rows:
    """Rows of an index, and how many of them follow each other."""

    def __init__(self, data: bytes, first: int) -> None:
        self.count = len(data) // _ROW_SIZE
        fields = _every(pa.py_buffer(data), self.count, 3)
        self._offsets, self.positions, self.sizes = fields
        self._first = first
        self.is_cut_short = False
        self.start = self.end = 0

    def begin_behind(self, file_size: int) -> bool:
        """Is the first record beyond the end of the file? Then so are all."""
        offset, position, size = (field[0].as_py() for field in (self._offsets, self.positions, self.sizes))
        return bool(offset == self._first and position + size > file_size)

    def keep_right(self, file_size: int, max_bytes: int) -> None:
        """Only those up to the first that cannot be right, of `max_bytes` of data, but one however large."""
        count = self.count
        ends = pc.add(self.positions, self.sizes)
        follows = pc.equal(self.positions.slice(1), ends.slice(0, count - 1))
        numbers = pc.add(_range(count), pa.scalar(self._first, pa.int64()))
        is_right = pc.and_(
            pc.and_(pc.equal(self._offsets, numbers), pc.greater_equal(self.sizes, _LEAST_RECORD)),
            pc.and_(pc.greater_equal(self.positions, 0), pc.less_equal(ends, file_size)),
        )
        is_right = pc.and_(is_right, pa.concat_arrays([pa.array([True]), follows]))
        right = _until_false(is_right)
        self.is_cut_short = right < count
        if right:
            self.start = self.positions[0].as_py()
            fits = _until_false(pc.less_equal(ends.slice(0, right), self.start + max_bytes))
            if 0 < fits < right or (fits == 0 and right > 1):
                right, self.is_cut_short = max(1, fits), False
            self.end = ends[right - 1].as_py()
        self.cut_to(right)

    def cut_to(self, count: int) -> None:
        self.count = count
        self.positions, self.sizes = self.positions.slice(0, count), self.sizes.slice(0, count)


# --- many records at once -------------------------------------------------------------------------


def _decoded(data: Any, rows: _Rows) -> _Piece | None:
    count = rows.count
    starts = pc.subtract(rows.positions, rows.start)
    last = rows.end - rows.start
    # First the keys' lengths, for these tell where all else is.
    halves = pc.take(starts, _halves(count))
    edges = pc.add(halves, _pattern(count, (0, 4)))
    key_sizes = _numbers(_cut(data, edges, last, count * 2).take(_nth(count, 2, 0)))
    rest = pc.subtract(rows.sizes, _LEAST_RECORD)
    is_right = pc.and_(pc.greater_equal(key_sizes, 0), pc.less_equal(key_sizes, rest))
    key_sizes = pc.if_else(is_right, key_sizes, 0)
    quarters = _quarters(count)
    shifts = pc.multiply(pc.take(key_sizes, quarters), _pattern(count, (0, 0, 1, 1)))
    edges = pc.add(pc.add(pc.take(starts, quarters), shifts), _pattern(count, (0, 4, 4, 20)))
    slots = _cut(data, edges, last, count * 4)
    times, value_sizes = _every(slots.take(_nth(count, 4, 2)).buffers()[2], count, 2)
    is_right = pc.and_(is_right, pc.equal(value_sizes, pc.subtract(rest, key_sizes)))
    right = _until_false(is_right)
    if not right:
        return None
    keys, values = (slots.take(_nth(right, 4, which)) for which in (1, 3))
    return _Piece(
        records=right,
        timestamps=times.slice(0, right).buffers()[1],
        keys=keys.buffers()[2] or b"",
        key_offsets=keys.buffers()[1],
        values=values.buffers()[2] or b"",
        value_offsets=values.buffers()[1],
        is_cut_short=rows.is_cut_short or right < count,
    )


def _cut(data: Any, edges: Any, last: int, count: int) -> Any:
    """These bytes as binaries that begin at `edges`; the last one ends at byte `last`."""
    if last > 2**31 - 1:
        raise DiskqSparkError("DISKQ_MESSAGE_SIZE", f"a message of {last} bytes: a row of Spark's holds less")
    offsets = pa.concat_arrays([edges, pa.array([last], pa.int64())]).cast(pa.int32())
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], data])


def _every(data: Any, count: int, width: int) -> list[Any]:
    """Of rows of so many i64 each the columns."""
    numbers = pa.Array.from_buffers(pa.int64(), count * width, [None, data])
    rows = pa.FixedSizeListArray.from_arrays(numbers, width)
    return [pc.list_element(rows, number) for number in range(width)]


def _numbers(binaries: Any) -> Any:
    """What these hold, 4 bytes each."""
    numbers = pa.Array.from_buffers(pa.uint32(), len(binaries), [None, binaries.buffers()[2]])
    return numbers.cast(pa.int64())


def _until_false(each: Any) -> int:
    found: int = pc.index(each, False).as_py()
    return len(each) if found < 0 else found


@lru_cache(8)
def _made(count: int) -> Any:
    return pa.array(array.array("q", range(count)), pa.int64())


def _range(count: int) -> Any:
    """0, 1, 2, ..."""
    return _made(max(count, 4 * _ROWS_AT_ONCE)).slice(0, count)


def _halves(count: int) -> Any:
    """0, 0, 1, 1, ..."""
    return pc.divide(_range(count * 2), 2)


def _quarters(count: int) -> Any:
    return pc.divide(_range(count * 4), 4)


def _nth(count: int, width: int, number: int) -> Any:
    """Of `count` groups of `width` the place of this one in each."""
    return pc.add(pc.multiply(_range(count), width), number)


def _pattern(count: int, numbers: tuple[int, ...]) -> Any:
    """These numbers again and again, `count` times."""
    return _repeated(numbers).slice(0, count * len(numbers))


@lru_cache(4)
def _repeated(numbers: tuple[int, ...]) -> Any:
    return pa.array(array.array("q", numbers * _ROWS_AT_ONCE), pa.int64())
