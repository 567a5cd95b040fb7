# Columns into Arrow's record batches. Law: a message's bytes are never touched here, and no object is
# made for a message: buffers of the codec become arrays as they are, what is the same for all messages
# is made once and cut to length, and numbers are computed by Arrow.
#
# A batch is sent over the socket to the JVM at once. The overhead of small ones is high, and large ones do
# not fit in the processor's caches: 8192 messages or 4 MiB, whichever comes first. Pieces that were read are
# joined up to that size, and a larger one is cut.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from diskq.spark.errors import DiskqSparkError
from diskq.spark.schema import NANOS, TYPE, arrow_schema
from diskq.tables.arrow import binary_column, floor_to_micros, nanos_column, offset_column, type_column
from diskq.tables.columns import Columns, has_missing_times

__all__ = ["Batches"]


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

    def of(self, pieces: Iterable[tuple[int, Columns]], start: int, end: int) -> Iterator[Any]:
        """Yield those of these messages with offsets start:end, as `pyarrow.RecordBatch`.

        `pieces` have the offset of their first message. Raises DISKQ_MESSAGE_SIZE for a message that does
        not fit in a row of Spark's.
        """
        waiting: list[Columns] = []
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

    def _batches(self, pieces: list[Columns], first: int, begin: int, end: int) -> Iterator[Any]:
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

    def _makers(self, pieces: list[Columns], first: int, records: int) -> dict[str, Callable[[], Any]]:
        """Return a function for each column, which makes it for at least `records` messages."""
        return {
            "key": lambda: self._binary(pieces, "keys"),
            "value": lambda: self._binary(pieces, "values"),
            "topic": lambda: self._repeated("topic", records),
            "partition": lambda: self._repeated("partition", records),
            "offset": lambda: offset_column(first, records),
            "timestamp": lambda: self._timestamps(pieces),
            "timestampType": lambda: self._timestamp_types(pieces, records),
            TYPE: lambda: self._types(pieces),
            NANOS: lambda: self._nanos(pieces),
        }

    def _binary(self, pieces: list[Columns], name: str) -> Any:
        arrays = []
        for piece in pieces:
            data = getattr(piece, name)
            if data is None:
                arrays.append(self._nulls(name[:-1], piece.records, pa.binary()))
                continue
            if piece.offset_width != 4:
                raise DiskqSparkError(
                    "DISKQ_MESSAGE_SIZE",
                    f"{self._where}: a message of {len(data)} bytes, and a row of Spark's holds less than "
                    "2 GiB: read around its offset, or leave its column out with .schema(...)",
                )
            arrays.append(binary_column(piece, name))
        return _joined(arrays)

    def _timestamps(self, pieces: list[Columns]) -> Any:
        if pieces[0].timestamps is None:
            return self._nulls("timestamp", sum(piece.records for piece in pieces), pa.timestamp("us", "UTC"))
        return floor_to_micros(self._times("timestamp", pieces)).view(pa.timestamp("us", "UTC"))

    def _nanos(self, pieces: list[Columns]) -> Any:
        return self._times(NANOS, pieces)

    def _times(self, name: str, pieces: list[Columns]) -> Any:
        arrays = []
        for piece in pieces:
            if piece.timestamps is None:
                arrays.append(self._nulls(name, piece.records, pa.int64()))
            else:
                if has_missing_times(piece):
                    self._check_nulls(name, f"a message of {self._where} has none")
                arrays.append(nanos_column(piece))
        return _joined(arrays)

    def _timestamp_types(self, pieces: list[Columns], records: int) -> Any:
        if any(map(has_missing_times, pieces)):
            has_time = pc.is_valid(_joined([nanos_column(piece) for piece in pieces]))
            return pc.if_else(has_time, pa.scalar(0, pa.int32()), pa.scalar(-1, pa.int32()))
        if "timestampType" not in self._fixed:
            number = -1 if pieces[0].timestamps is None else 0
            self._fixed["timestampType"] = _column(number, self._most)
        return self._repeated("timestampType", records)

    def _types(self, pieces: list[Columns]) -> Any:
        arrays = []
        for piece in pieces:
            if getattr(piece, "types", None) is None:
                arrays.append(self._nulls(TYPE, piece.records, pa.int32()))
            else:
                arrays.append(type_column(piece))
        return _joined(arrays)

    def _repeated(self, name: str, records: int) -> Any:
        column = self._fixed[name]
        if records <= len(column):
            return column.slice(0, records)
        return pa.repeat(column[0], records)

    def _nulls(self, name: str, records: int, kind: Any) -> Any:
        self._check_nulls(name, f"{self._where} has none: the format keeps none")
        return pa.nulls(records, kind)

    def _check_nulls(self, name: str, why: str) -> None:
        if not self._schema.field(name).nullable:
            raise DiskqSparkError("DISKQ_OPTION", f".schema(...): {name} is NOT NULL, and {why}")


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


# A worker reads many ranges, one after the other; values that are the same for all of them are made once.


@lru_cache(32)
def _column(of: str | int, rows: int) -> Any:
    """Return a column that repeats this string, or i32."""
    return pa.repeat(pa.scalar(of, pa.string() if isinstance(of, str) else pa.int32()), rows)
