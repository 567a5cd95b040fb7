# From Spark's columns to a stream's. Law: the columns are those of Kafka's sink (value; key, partition and
# timestamp if present), and no object is made for a row: Arrow's own buffers are passed on.
#
#   value           binary or string; never null
#   key             binary or string; if it is null or empty, the message gets a random one
#   partition       int; if it is null, the key's hash decides
#   timestamp       if it is null, and timestampNanos too, it is the time of writing
#   timestampNanos  long: nanoseconds since 1970; takes precedence over `timestamp`, which has microseconds
#
# The other columns of the source (offset, topic, timestampType, type) are ignored, so that a frame that was
# read can be written as it is.

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from diskq._native.stream.columns import BinaryColumn, ColumnBatch, NumberColumn
from diskq.spark.errors import DiskqSparkError
from diskq.spark.schema import NANOS, TYPE

__all__ = ["check_columns", "columns_of"]

_BYTES = (BinaryType, StringType)
_ALLOWED: dict[str, tuple[type[DataType], ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "partition": (IntegerType,),
    "timestamp": (TimestampType, TimestampNTZType),
    NANOS: (LongType,),
}
_PASSED_OVER = ("topic", "offset", "timestampType", TYPE)
_MICROSECOND = 1000


def check_columns(schema: StructType) -> None:
    """Raise DISKQ_OPTION, with the names, if some of these columns cannot be written."""
    problems = [] if "value" in schema.fieldNames() else ["there is no column value"]
    for field in schema.fields:
        if field.name in _PASSED_OVER:
            continue
        allowed = _ALLOWED.get(field.name)
        if allowed is None:
            problems.append(f"column {field.name} has no place in a message")
        elif not isinstance(field.dataType, allowed):
            names = " or ".join(kind().simpleString() for kind in allowed)
            problems.append(f"{field.name} is {field.dataType.simpleString()}, and has to be {names}")
    if problems:
        there = ", ".join(_ALLOWED)
        raise DiskqSparkError("DISKQ_OPTION", f"{'; '.join(problems)}; a message has {there}: .select(...)")


def topics_in(batch: Any) -> frozenset[str]:
    """Return the values of the column `topic` of a `pyarrow.RecordBatch`; none if it has no such column."""
    if "topic" not in batch.schema.names:
        return frozenset()
    return frozenset(map(str, batch.column("topic").unique().to_pylist()))


def columns_of(batch: Any) -> ColumnBatch:
    """Return the buffers of a `pyarrow.RecordBatch` whose columns were checked."""
    names = batch.schema.names
    columns = {name: batch.column(place) for place, name in enumerate(names) if name in _ALLOWED}
    timestamps, unit = _timestamps(columns)
    return ColumnBatch(
        rows=batch.num_rows,
        values=_binary(columns["value"]),
        keys=_binary(columns["key"]) if "key" in columns else None,
        timestamps=timestamps,
        partitions=_numbers(columns["partition"]) if "partition" in columns else None,
        unit=unit,
    )


def _binary(array: Any) -> BinaryColumn:
    width = 8 if str(array.type).startswith("large_") else 4
    validity, offsets, data = array.buffers()
    return BinaryColumn(_of_nulls(array, validity), array.offset, offsets, width, data)


def _numbers(array: Any) -> NumberColumn:
    validity, data = array.buffers()
    return NumberColumn(_of_nulls(array, validity), array.offset, data)


def _of_nulls(array: Any, validity: Any) -> Any:
    return validity if array.null_count else None


def _timestamps(columns: dict[str, Any]) -> tuple[NumberColumn | None, int]:
    """Return the times, and the nanoseconds in one of their units."""
    nanos, micros = columns.get(NANOS), columns.get("timestamp")
    if nanos is None:
        return (None, 1) if micros is None else (_numbers(micros), _MICROSECOND)
    if micros is not None and nanos.null_count:
        import pyarrow.compute as pc  # takes a tenth of a second, and a commit does not need it

        scaled = pc.multiply_checked(micros.cast("int64"), _MICROSECOND)
        nanos = pc.coalesce(nanos, scaled)
    return _numbers(nanos), 1
