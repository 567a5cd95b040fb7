# Columns into Arrow. Law: a message's bytes are never touched here, and no object is made for a message: the
# codec's buffers become arrays as they are, and numbers are computed by Arrow.
#
# The columns have the names and types that Spark reads a stream with (spark/schema.py): Spark reads no
# timestamps of nanoseconds from Parquet, so there are microseconds for engines, and the exact number.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from diskq.tables.sources import Columns, Kind

__all__ = ["JOURNAL", "NANOS", "STREAM", "batches", "floor_to_micros", "schema_of", "with_place"]

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


def _binary(piece: Columns, data: Any, offsets: Any) -> Any:
    kind = pa.binary() if piece.offset_width == 4 else pa.large_binary()
    made = pa.Array.from_buffers(kind, piece.records, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return made if piece.offset_width == 4 else made.cast(pa.binary())


def _nanos(_: int, piece: Columns) -> Any:
    bits = getattr(piece, "time_validity", None)
    validity = None if bits is None else pa.py_buffer(bits)
    return pa.Array.from_buffers(pa.int64(), piece.records, [validity, pa.py_buffer(piece.timestamps)])


def _offsets(first: int, piece: Columns) -> Any:
    ones = pa.repeat(pa.scalar(1, pa.int64()), piece.records)
    return pc.cumulative_sum(ones, start=first - 1)


def _types(_: int, piece: Columns) -> Any:
    types = pa.py_buffer(piece.types)  # type: ignore[attr-defined]
    return pa.Array.from_buffers(pa.uint8(), piece.records, [None, types]).cast(pa.int32())


_MAKERS: dict[str, Callable[[int, Columns], Any]] = {
    "key": lambda _, piece: _binary(piece, piece.keys, piece.key_offsets),
    "value": lambda _, piece: _binary(piece, piece.values, piece.value_offsets),
    "offset": _offsets,
    "timestamp": lambda _, piece: floor_to_micros(_nanos(_, piece)).view(_MICROS),
    NANOS: _nanos,
    "type": _types,
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
