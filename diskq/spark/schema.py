# The columns. Law: those of Spark's Kafka source, by name and type, so that a job moves by its format and
# path; what is beyond them comes only to who asks for it.
#
# A stream's columns are never null, and say so, unlike Kafka's: Spark then looks for no nulls, of seven in
# each row, which was a fifth of what reading cost it. A queue has no keys and no times.
#
#   timestamp         microseconds since 1970, in UTC: the message's nanoseconds rounded down
#   timestampType     0 as Kafka's "create time"; -1 where the format keeps no time
#   timestampNanos    ours: the message's nanoseconds, exact; with includeTimestampNanos, or when named

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from diskq.spark.errors import DiskqSparkError

__all__ = ["NANOS", "SCHEMA", "arrow_schema", "check_projection", "schema_of"]

NANOS = "timestampNanos"

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    NANOS: LongType(),
}

_OF_QUEUES = ("key", "timestamp", NANOS)
"""Null, where the format keeps none."""


def schema_of(*, with_nanos: bool = False, may_be_queue: bool = False) -> StructType:
    """What a read gives that names no columns itself."""
    return StructType(
        [
            StructField(name, kind, nullable=may_be_queue and name in _OF_QUEUES)
            for name, kind in _TYPES.items()
            if with_nanos or name != NANOS
        ]
    )


SCHEMA = schema_of()


def check_projection(schema: StructType) -> None:
    """Can these columns be read? Raises DISKQ_OPTION naming those that cannot, and what there is."""
    problems = [
        f"no column {field.name!r}"
        if field.name not in _TYPES
        else f"{field.name} is {_TYPES[field.name].simpleString()}, not {field.dataType.simpleString()}"
        for field in schema.fields
        if _TYPES.get(field.name) != field.dataType
    ]
    names = schema.fieldNames()
    problems += [f"{name} twice" for name in sorted(set(names)) if names.count(name) > 1]
    if problems or not names:
        there = ", ".join(f"{name} {kind.simpleString()}" for name, kind in _TYPES.items())
        raise DiskqSparkError(
            "DISKQ_OPTION", f".schema(...): {'; '.join(problems) or 'no column at all'}; there are {there}"
        )


def arrow_schema(schema: StructType) -> Any:
    """As Spark compares batches with: types, nullability and time zone. Returns a `pyarrow.Schema`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
