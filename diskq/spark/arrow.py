# Columns into Arrow's record batches. Law: a message's bytes are never touched here, and no object is
# made for a message: buffers of the codec become arrays as they are, what is the same for all messages
# is made once and cut to length, and numbers are computed by Arrow.
#
# A batch is sent over the socket to the JVM at once. The overhead of small ones is high, and large ones do
# not fit in the processor's caches: 8192 messages or 4 MiB, whichever comes first. Pieces that were read are
# joined up to that size, and a larger one is cut.

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from diskq.spark.errors import DiskqSparkError
from diskq.spark.schema import NANOS, TYPE, arrow_schema
from diskq.tables.arrow import floor_to_micros

__all__ = ["Batches", "ColumnsPiece"]


class ColumnsPiece(Protocol):
    """Messages with consecutive offsets, by column: `diskq._native.stream.codec.StreamColumns` is one.

    If messages have types, and may lack times, it has two more buffers: `types` of u8, and `time_validity`,
    a bit for each message, or None if all have a time
    (`diskq._native.journal.codec.JournalColumns`).
    """

    @property
    def records(self) -> int: ...

    @property
    def timestamps(self) -> Any:
        """A buffer of i64, nanoseconds since 1970; None: the format keeps none."""

    @property
    def keys(self) -> Any:
        """A buffer; None: the format keeps none."""

    @property
    def key_offsets(self) -> Any: ...

    @property
    def values(self) -> Any: ...

    @property
    def value_offsets(self) -> Any: ...

    @property
    def offset_width(self) -> int:
        """Bytes of each of those offsets: 4, or 8 if they do not fit in 4."""


class Batches:
    """Record batches of one partition's messages, with the columns of `schema`."""

    def __init__(self, schema: StructType, *, topic: str, partition: int, rows: int, size: int) -> None:
        """Up to `rows` messages each, and `size` bytes of keys and values; a single message may be larger."""
        self._schema = arrow_schema(schema)
        self._names: list[str] = self._schema.names
        self._most = rows
        self._size = size
        self._where = f"{topic}[{partition}]"
        self._fixed = {"topic": _column(topic, rows), "partition": _column(partition, rows)}
        self._numbers = _counted(rows)

    def of(self, pieces: Iterable[tuple[int, ColumnsPiece]], start: int, end: int) -> Iterator[Any]:
        """Yield those of these messages with offsets start:end, as `pyarrow.RecordBatch`.

        `pieces` have the offset of their first message. Raises DISKQ_MESSAGE_SIZE for a message that does
        not fit in a row of Spark's.
        """
        waiting: list[ColumnsPiece] = []
        first = records = size = 0
        for offset, piece in pieces:
            its_size = len(piece.keys or b"") + len(piece.values)
            is_next = offset == first + records
            if waiting and not (
                is_next and records + piece.records <= self._most and size + its_size <= self._size
            ):
                yield from self._batches(waiting, first, start, end)
                waiting, records, size = [], 0, 0
            if not waiting:
                first = offset
            waiting.append(piece)
            records += piece.records
            size += its_size
        if waiting:
            yield from self._batches(waiting, first, start, end)

    def _batches(self, pieces: list[ColumnsPiece], first: int, begin: int, end: int) -> Iterator[Any]:
        records = min(sum(piece.records for piece in pieces), end - first)
        begin = max(0, begin - first)
        if begin >= records:
            return
        makers = self._makers(pieces, first, records)
        columns = [makers[name]() for name in self._names]
        for start in range(begin, records, self._most):
            count = min(self._most, records - start)
            cut = [column.slice(start, count) for column in columns]
            yield pa.RecordBatch.from_arrays(cut, schema=self._schema)

    # --- columns ----------------------------------------------------------------------------------

    def _makers(self, pieces: list[ColumnsPiece], first: int, records: int) -> dict[str, Callable[[], Any]]:
        """Return a function for each column, which makes it for at least `records` messages."""
        return {
            "key": lambda: self._binary(pieces, "keys", "key_offsets"),
            "value": lambda: self._binary(pieces, "values", "value_offsets"),
            "topic": lambda: self._repeated("topic", records),
            "partition": lambda: self._repeated("partition", records),
            "offset": lambda: self._offsets(first, records),
            "timestamp": lambda: self._timestamps(pieces),
            "timestampType": lambda: self._timestamp_types(pieces, records),
            TYPE: lambda: self._types(pieces),
            NANOS: lambda: self._nanos(pieces),
        }

    def _binary(self, pieces: list[ColumnsPiece], data: str, offsets: str) -> Any:
        arrays = []
        for piece in pieces:
            values = getattr(piece, data)
            if values is None:
                arrays.append(self._nulls(data[:-1], piece.records, pa.binary()))
                continue
            if piece.offset_width != 4:
                raise DiskqSparkError(
                    "DISKQ_MESSAGE_SIZE",
                    f"{self._where}: a message of {len(values)} bytes, and a row of Spark's holds less than "
                    "2 GiB: read around its offset, or leave its column out with .schema(...)",
                )
            buffers = [None, pa.py_buffer(getattr(piece, offsets)), pa.py_buffer(values)]
            arrays.append(pa.Array.from_buffers(pa.binary(), piece.records, buffers))
        return _joined(arrays)

    def _timestamps(self, pieces: list[ColumnsPiece]) -> Any:
        if pieces[0].timestamps is None:
            return self._nulls("timestamp", sum(piece.records for piece in pieces), pa.timestamp("us", "UTC"))
        return floor_to_micros(self._times("timestamp", pieces)).view(pa.timestamp("us", "UTC"))

    def _nanos(self, pieces: list[ColumnsPiece]) -> Any:
        return self._times(NANOS, pieces)

    def _times(self, name: str, pieces: list[ColumnsPiece]) -> Any:
        arrays = []
        for piece in pieces:
            if piece.timestamps is None:
                arrays.append(self._nulls(name, piece.records, pa.int64()))
            else:
                if _some_without_time(piece):
                    self._check_nulls(name, f"a message of {self._where} has none")
                arrays.append(_times_of(piece))
        return _joined(arrays)

    def _timestamp_types(self, pieces: list[ColumnsPiece], records: int) -> Any:
        if any(map(_some_without_time, pieces)):
            has_time = pc.is_valid(_joined([_times_of(piece) for piece in pieces]))
            return pc.if_else(has_time, pa.scalar(0, pa.int32()), pa.scalar(-1, pa.int32()))
        if "timestampType" not in self._fixed:
            number = -1 if pieces[0].timestamps is None else 0
            self._fixed["timestampType"] = _column(number, self._most)
        return self._repeated("timestampType", records)

    def _types(self, pieces: list[ColumnsPiece]) -> Any:
        arrays = []
        for piece in pieces:
            types = getattr(piece, "types", None)
            if types is None:
                arrays.append(self._nulls(TYPE, piece.records, pa.int32()))
            else:
                buffers = [None, pa.py_buffer(types)]
                arrays.append(pa.Array.from_buffers(pa.uint8(), piece.records, buffers).cast(pa.int32()))
        return _joined(arrays)

    def _repeated(self, name: str, records: int) -> Any:
        column = self._fixed[name]
        if records <= len(column):
            return column.slice(0, records)
        return pa.repeat(column[0], records)

    def _offsets(self, first: int, records: int) -> Any:
        numbers = self._numbers
        if records > len(numbers):
            numbers = _counted(records)
        return pc.add(numbers.slice(0, records), pa.scalar(first, pa.int64()))

    def _nulls(self, name: str, records: int, kind: Any) -> Any:
        self._check_nulls(name, f"{self._where} has none: the format keeps none")
        return pa.nulls(records, kind)

    def _check_nulls(self, name: str, why: str) -> None:
        if not self._schema.field(name).nullable:
            raise DiskqSparkError("DISKQ_OPTION", f".schema(...): {name} is NOT NULL, and {why}")


def _some_without_time(piece: ColumnsPiece) -> bool:
    return getattr(piece, "time_validity", None) is not None


def _times_of(piece: ColumnsPiece) -> Any:
    """Return the nanoseconds; null for a message without a time."""
    validity = pa.py_buffer(piece.time_validity) if _some_without_time(piece) else None  # type: ignore[attr-defined]
    return pa.Array.from_buffers(pa.int64(), piece.records, [validity, pa.py_buffer(piece.timestamps)])


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


# A worker reads many ranges, one after the other; values that are the same for all of them are made once.


@lru_cache(32)
def _column(of: str | int, rows: int) -> Any:
    """Return a column that repeats this string, or i32."""
    return pa.repeat(pa.scalar(of, pa.string() if isinstance(of, str) else pa.int32()), rows)


@lru_cache(4)
def _counted(rows: int) -> Any:
    """Return 0, 1, 2, ... up to `rows` numbers."""
    return pa.array(array.array("q", range(rows)), pa.int64())
