# The words of the read side's tests: streams with known messages, what a read of them gives without
# Spark, and damage.

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from diskq._native.stream.codec import key_hash
from diskq.engine.stream.stream import Stream
from diskq.errors import DiskqError
from diskq.options import StreamOptions
from diskq.spark.batch import DiskqPushdownReader, DiskqReader
from diskq.spark.layouts.layout import OffsetRange, OffsetRanges
from diskq.spark.options import ReadOptions
from diskq.spark.planning import Snapshot
from diskq.spark.schema import SCHEMA, arrow_schema, schema_of
from diskq.spark.streams import kinds_of

# Values of which none is in another one, so that one can be found in a file.
VALUE = b"<value %08d>"


def options(path: Path | str | None = None, **given: Any) -> ReadOptions:
    is_streaming = given.pop("is_streaming", False)
    words = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()
    }
    if path is not None:
        words["path"] = str(path)
    return ReadOptions.parse(words, is_streaming=is_streaming)


def write(
    path: Path | str,
    count: int,
    *,
    start: int = 0,
    partitions: int = 1,
    step: int = 1_000_000,
    **settings: Any,
) -> None:
    """Values VALUE % number, keys of the number, one after the other in `partitions`.

    Message i has the timestamp of i milliseconds; segments are small.
    """
    chosen = StreamOptions(partition_count=partitions, **{"segment_size": 16 * 1024, **settings})
    with Stream(path, options=chosen) as stream:
        keys = [key_of(number, stream.partition_count) for number in range(stream.partition_count)]
        stream.append_many(
            [(keys[i % len(keys)], VALUE % i, i * 1_000_000) for i in range(start, start + count)]
        )


def key_of(partition: int, count: int) -> bytes:
    """A key whose messages go there."""
    return next(key for number in range(10**6) if key_hash(key := b"%d" % number) % count == partition)


def read(chosen: ReadOptions, schema: StructType | None = None, filters: Sequence[Filter] = ()) -> Any:
    """All of it, as a table, as Spark's tasks would read it."""
    return table(reader(chosen, schema, filters))


def reader(
    chosen: ReadOptions, schema: StructType | None = None, filters: Iterable[Filter] = ()
) -> DiskqReader:
    """By default of all columns, as the source says what they are."""
    if schema is None:
        with contextlib.suppress(DiskqError):
            schema = schema_of(kinds_of(chosen))
    made = DiskqPushdownReader(chosen, schema or SCHEMA, Snapshot.taken(chosen))
    made.pushFilters(list(filters))
    return made


def table(of: DiskqReader) -> Any:
    batches = [batch for task in of.partitions() for batch in of.read(task)]
    return pa.Table.from_batches(batches, arrow_schema(of._schema))


def numbers(found: Any) -> list[int]:
    """Of a table, the numbers in its values."""
    return [int(value[7:15]) for value in found.column("value").to_pylist()]


def tasks(chosen: ReadOptions, filters: Iterable[Filter] = ()) -> list[OffsetRange]:
    """The ranges of offsets of all tasks."""
    return ranges_in(reader(chosen, filters=filters).partitions())


def ranges_in(planned: Iterable[Any]) -> list[OffsetRange]:
    together = [task.ranges if isinstance(task, OffsetRanges) else (task,) for task in planned]
    return [each for ranges in together for each in ranges if isinstance(each, OffsetRange)]


# --- damage ---------------------------------------------------------------------------------------


def data_files(path: Path, partition: int = 0) -> list[Path]:
    return sorted((path / "parts" / f"{partition:06d}").glob("*.data"))


def rot(path: Path, number: int) -> None:
    """A byte of the value of this message rots."""
    wanted = VALUE % number
    for file in sorted(path.glob("parts/*/*.data")):
        content = bytearray(file.read_bytes())
        at = content.find(wanted)
        if at >= 0:
            content[at] ^= 1
            file.write_bytes(content)
            return
    raise AssertionError(f"message {number} is not there")
