# The columns. Law: they are those of Spark's Kafka source, by name and type, so that a job is moved by
# changing its format and path; further columns are given only on request.
#
# A stream's columns are declared NOT NULL, unlike Kafka's: Spark then does not check seven columns of each
# row for nulls, which was a fifth of the time of reading. A queue has no keys and no times; a message of a
# journal may have none.
#
#   timestamp         microseconds since 1970, in UTC: the message's nanoseconds rounded down
#   timestampType     0 as Kafka's "create time"; -1 if the message has no time
#   type              diskq's: 0 to 255, of a journal's message; present for journals, or when named
#   timestampNanos    diskq's: the exact nanoseconds; present with includeTimestampNanos, or when named

from __future__ import annotations

from collections.abc import Collection
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

__all__ = ["NANOS", "SCHEMA", "TYPE", "arrow_schema", "check_projection", "is_of_stores", "schema_of"]

NANOS = "timestampNanos"
TYPE = "type"

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    TYPE: IntegerType(),
    NANOS: LongType(),
}

_OF_A_STORE: dict[str, DataType] = {
    "topic": StringType(),
    "queue": StringType(),
    "id": LongType(),
    "priority": LongType(),
    "body": BinaryType(),
}
"""The columns of a priority store: another table. None of them is ever null."""

_NULLS = {
    "triplet": {TYPE},
    "sej": {"timestamp", NANOS},
    "nsq": {"key", "timestamp", NANOS, TYPE},
}
"""Columns that may be null, by layout: the format has none, or a message may lack one."""


def is_of_stores(kinds: Collection[str]) -> bool:
    """True if these options.LAYOUTS are that of stores. Raises DISKQ_OPTION if it is one of several."""
    if "taskflux" in kinds and len(set(kinds)) > 1:
        raise DiskqSparkError(
            "DISKQ_OPTION", "priority stores have columns of their own: read them separately"
        )
    return "taskflux" in kinds


def schema_of(kinds: Collection[str] = ("triplet",), *, with_nanos: bool = False) -> StructType:
    """Return the schema of a read of these options.LAYOUTS that names no columns itself.

    Raises DISKQ_OPTION for a priority store together with another kind.
    """
    if is_of_stores(kinds):
        return StructType([StructField(name, kind, nullable=False) for name, kind in _OF_A_STORE.items()])
    nullable = set().union(*(_NULLS[kind] for kind in kinds))
    is_in = {NANOS: with_nanos, TYPE: "sej" in kinds}
    return StructType(
        [
            StructField(name, kind, nullable=name in nullable)
            for name, kind in _TYPES.items()
            if is_in.get(name, True)
        ]
    )


SCHEMA = schema_of()


def check_projection(schema: StructType, kinds: Collection[str] = ("triplet",)) -> None:
    """Raise DISKQ_OPTION if some of these columns cannot be read; it names them, and those that can."""
    types = _OF_A_STORE if is_of_stores(kinds) else _TYPES
    problems = [
        f"no column {field.name!r}"
        if field.name not in types
        else f"{field.name} is {types[field.name].simpleString()}, not {field.dataType.simpleString()}"
        for field in schema.fields
        if types.get(field.name) != field.dataType
    ]
    names = schema.fieldNames()
    problems += [f"{name} twice" for name in sorted(set(names)) if names.count(name) > 1]
    if problems or not names:
        there = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
        raise DiskqSparkError(
            "DISKQ_OPTION", f".schema(...): {'; '.join(problems) or 'no column at all'}; there are {there}"
        )


def arrow_schema(schema: StructType) -> Any:
    """Return the `pyarrow.Schema` that Spark compares batches with: types, nullability and time zone."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
