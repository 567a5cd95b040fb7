# Columns into Arrow. Law: a message's bytes are never touched here, and no object is made for a message: the
# codec's buffers become arrays as they are, and numbers are computed by Arrow.
#
# The columns have the names and types that Spark reads a stream with (spark/schema.py): Spark reads no
# timestamps of nanoseconds from Parquet, so there are microseconds for engines, and the exact number.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from diskq.tables.columns import Columns, has_missing_times

if TYPE_CHECKING:
    from diskq.tables.sources import Kind

__all__ = [
    "JOURNAL",
    "NANOS",
    "STREAM",
    "batches",
    "binary_column",
    "floor_to_micros",
    "nanos_column",
    "offset_column",
    "schema_of",
    "type_column",
    "with_place",
]

NANOS = "timestampNanos"
_MICROS = pa.timestamp("us", "UTC")

STREAM = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _MICROS, nullable=False),
        pa.field(NANOS, pa.int64(), nullable=False),
    ]
)
"""The columns of a stream's files."""

JOURNAL = pa.schema(
    [
        *(STREAM.field(name) for name in ("key", "value", "offset")),
        pa.field("timestamp", _MICROS),
        pa.field(NANOS, pa.int64()),
        pa.field("type", pa.int32(), nullable=False),
    ]
)
"""The columns of a journal's files: a message may have no time, and has a type of 0 to 255."""

_PLACE = (pa.field("topic", pa.string(), nullable=False), pa.field("partition", pa.int32(), nullable=False))


def schema_of(kind: Kind) -> Any:
    """Return the `pyarrow.Schema` of the files of a table of this kind."""
    return STREAM if kind == "stream" else JOURNAL


def with_place(schema: Any) -> Any:
    """Return the schema with the columns that the names of the directories give: topic and partition."""
    at = schema.names.index("value") + 1 if "value" in schema.names else len(schema)
    fields = [*schema]
    return pa.schema([*fields[:at], *_PLACE, *fields[at:]])


def batches(pieces: Iterable[tuple[int, Columns]], start: int, end: int, schema: Any) -> Iterator[Any]:
    """Yield those of the messages with offsets `start` to `end` - 1, as `pyarrow.RecordBatch` of `schema`."""
    for first, piece in pieces:
        made = pa.RecordBatch.from_arrays(
            [_MAKERS[name](first, piece) for name in schema.names], schema=schema
        )
        before = max(0, start - first)
        rows = min(piece.records, end - first) - before
        if rows > 0:
            yield made if rows == piece.records else made.slice(before, rows)


# --- a column of a piece --------------------------------------------------------------------------


def binary_column(piece: Columns, name: str) -> Any:
    """Return the `keys` or the `values`: binary, or large binary if their offsets have 8 bytes."""
    kind = pa.binary() if piece.offset_width == 4 else pa.large_binary()
    offsets = pa.py_buffer(getattr(piece, f"{name[:-1]}_offsets"))
    return pa.Array.from_buffers(kind, piece.records, [None, offsets, pa.py_buffer(getattr(piece, name))])


def nanos_column(piece: Columns) -> Any:
    """Return the times as int64; null for a message without a time."""
    validity = pa.py_buffer(piece.time_validity) if has_missing_times(piece) else None  # type: ignore[attr-defined]
    return pa.Array.from_buffers(pa.int64(), piece.records, [validity, pa.py_buffer(piece.timestamps)])


def type_column(piece: Columns) -> Any:
    """Return the types of a journal's messages as int32."""
    types = pa.py_buffer(piece.types)  # type: ignore[attr-defined]
    return pa.Array.from_buffers(pa.uint8(), piece.records, [None, types]).cast(pa.int32())


def offset_column(first: int, records: int) -> Any:
    """Return the offsets of `records` messages, the first of which has the offset `first`."""
    numbers = _counted()
    if records > len(numbers):
        return pc.cumulative_sum(pa.repeat(_ONE, records), start=first - 1)
    return pc.add(numbers.slice(0, records), pa.scalar(first, pa.int64()))


def _as_binary(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


_ONE = pa.scalar(1, pa.int64())


@lru_cache(1)
def _counted() -> Any:
    """Return 0, 1, 2, ...: more than a piece has as a rule. An addition is cheaper than a sum."""
    return pc.cumulative_sum(pa.repeat(_ONE, 64 * 1024), start=-1)


_MAKERS: dict[str, Callable[[int, Columns], Any]] = {
    "key": lambda _, piece: _as_binary(binary_column(piece, "keys")),
    "value": lambda _, piece: _as_binary(binary_column(piece, "values")),
    "offset": lambda first, piece: offset_column(first, piece.records),
    "timestamp": lambda _, piece: floor_to_micros(nanos_column(piece)).view(_MICROS),
    NANOS: lambda _, piece: nanos_column(piece),
    "type": lambda _, piece: type_column(piece),
}


_NONE = pa.scalar(0, pa.int64())
_THOUSAND = pa.scalar(1000, pa.int64())


def floor_to_micros(nanos: Any) -> Any:
    """Return whole microseconds at or before each of these nanoseconds, also before 1970. An int64 array."""
    least = pc.min(nanos).as_py()
    if least is None or least >= 0:
        return pc.divide(nanos, _THOUSAND)
    # Arrow divides towards zero. The complement of a negative number is not negative, and the complement of
    # its quotient is the floor. Other numbers are not complemented.
    signs = pc.negate(pc.less(nanos, _NONE).cast(pa.int64()))
    return pc.bit_wise_xor(pc.divide(pc.bit_wise_xor(nanos, signs), _THOUSAND), signs)
