# Messages back into a stream, unchanged. Law: keys, values and timestamps are the original ones, each
# partition keeps its order, and each message is written once; with a pace, none before its time.
#
# The time is that of the messages, and it may step back. Order takes precedence: a message is due when its
# own time has come and that of all before it in its partition. So each round is one range of offsets of each
# partition: up to the first message that is not due yet.

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import or_
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.reader import ReadableStream
from diskq.spark.errors import DiskqSparkError, with_codes
from diskq.spark.hadoop_names import HadoopNames
from diskq.spark.layouts.queue import log_at
from diskq.spark.offsets import share
from diskq.spark.pipelines.progress import Watch
from diskq.spark.pipelines.rounds import (
    LOCK_TIMEOUT,
    MOST_IN_A_ROUND,
    Copied,
    JobRun,
    Part,
    Places,
    Ranges,
    Source,
    carry_out,
)
from diskq.spark.schema import NANOS
from diskq.tables.table import files_at

__all__ = ["replay"]

_TOPIC, _HOST = "topic=", "host="
_SECOND = 1_000_000_000
_STRETCH = 1024 * 1024  # bytes
_STAMP = struct.Struct("<q")
_MOST_SLICES = 100_000


def replay(
    spark: SparkSession,
    source: str,
    into: str,
    *,
    partition_count: int | None = None,
    speed: float = 0.0,
    every: float = 1.0,
    follow: float | None = None,
    max_messages: int = MOST_IN_A_ROUND,
    job: str = "replay",
    wait: float = LOCK_TIMEOUT,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Copied:
    """Copy every message of `source` to the stream `into`, once, with key, value and timestamp (to the ns).

    `source` is a stream; or a table's directory (`lake/topic=clicks`, or `lake` if it has no other), or other
    Parquet files of one stream: columns key, value, partition, offset, and `timestampNanos` or `timestamp`.
    If `into` has as many partitions as the source, messages stay in theirs; otherwise, or if
    `partition_count` is another number, each goes to that of its key. In both cases messages that were in one
    partition, and are in one again, keep their order. `into` is created if it is missing.

    `speed` 0 writes as fast as possible. 1 is the original pace, N is N times that: counted from the first
    remaining message when the run begins, a message is written when its time has come and that of all before
    it in its partition; never before, and about `every` seconds after, or later if a round takes longer. (One
    message from the far future holds its partition back until then.) A pace over Parquet is cut into up to
    100,000 slices of time.

    It ends with the messages that are there when it looks; with `follow` (seconds between looks) it continues
    with new ones, of a stream. `job`, `wait`: as `reshard`, and as that it resumes and raises.
    """
    if speed < 0 or every <= 0:
        raise DiskqSparkError("DISKQ_OPTION", "speed is 0 or more, and `every` more than 0 seconds")
    run = JobRun(spark, into, job, follow, max_messages, wait, options, watch)
    pace = _Pace(speed, every) if speed else None
    stream: Source | None = None
    if log_at(source) == "triplet":
        stream = Source([source])
        count = len(next(iter(stream.streams.values())).layout.spans())
        frame: Callable[[Ranges], DataFrame] = functools.partial(stream.between, run)
        next_round: Callable[[Places], Ranges] = functools.partial(
            _of_stream, source, stream, pace, max_messages
        )
        name = next(iter(stream.streams))
    else:
        if follow is not None:
            raise DiskqSparkError("DISKQ_OPTION", f"{source} is not a stream: only streams are followed")
        files = _ParquetSource(spark, source, pace, max_messages)
        count, frame, next_round = files.partition_count, files.between, files.next_round
        name = files.name
    there = run.make(partition_count if partition_count is not None else _count_for(into, count))
    columns = ["key", "value", NANOS, *(["partition"] if there == count else [])]

    def copy(number: int, ranges: Ranges, more: Mapping[str, Any]) -> int:
        return run.append(frame(ranges).select(*columns), number)

    return carry_out(
        run,
        of={"pipeline": "replay", "sources": [name]},
        source=stream,
        next_round=lambda places: (next_round(places), {}),
        copy=copy,
    )


def _count_for(into: str, count: int) -> int | None:
    """Return the partition count for a new stream; None for an existing one, which keeps its own."""
    return None if log_at(into) == "triplet" else max(1, count)


# --- the pace -------------------------------------------------------------------------------------


class _Pace:
    """The clock of a replay: it starts at the first message's time."""

    def __init__(self, speed: float, every: float) -> None:
        self.speed = speed
        self.every = every
        self._origin: int | None = None
        self._began = 0.0

    def wait_for(self, first: int) -> int:
        """Wait until a slice that begins at the time `first` is due. Returns the end of the slice (ns)."""
        if self._origin is None:
            self._origin, self._began = first, time.monotonic()
        due = self._began + (first - self._origin) / _SECOND / self.speed + self.every
        time.sleep(max(0.0, due - time.monotonic()))
        return max(first + 1, self._origin + int((time.monotonic() - self._began) * self.speed * _SECOND))


# --- from a stream --------------------------------------------------------------------------------


def _of_stream(path: str, source: Source, pace: _Pace | None, most: int, places: Places) -> Ranges:
    if pace is None:
        return source.next_round(places, most)
    ranges = source.next_round(places, 2**62)
    if not ranges:
        return {}
    with with_codes():
        readers = {part: ReadableStream(path).open(part[1]) for part in ranges}
        try:
            firsts = [_first_time(readers[part], start) for part, (start, _) in ranges.items()]
            until = pace.wait_for(min(first for first in firsts if first is not None))
            due = {
                part: (start, _not_due(readers[part], start, end, until))
                for part, (start, end) in ranges.items()
            }
        finally:
            for reader in readers.values():
                reader.close()
    return {part: (start, end) for part, (start, end) in due.items() if end > start}


def _first_time(reader: PartitionReader, start: int) -> int | None:
    reader.seek(start)
    message = reader.read()
    return None if message is None else message.timestamp_ns


def _not_due(reader: PartitionReader, start: int, end: int, until: int) -> int:
    """Return the first offset from `start` on with a time of `until` or later; `end` if there is none."""
    reader.seek(start)
    while reader.position < end and (found := reader.columns(_STRETCH)) is not None:
        first, columns = found
        for number, (stamp,) in enumerate(_STAMP.iter_unpack(columns.timestamps)):
            if stamp >= until:
                return min(first + number, end)
    return end


# --- from Parquet ---------------------------------------------------------------------------------


class _ParquetSource:
    """The files of a table, or other ones of one stream, as they were when the run began."""

    def __init__(self, spark: SparkSession, path: str, pace: _Pace | None, most: int) -> None:
        self.name = os.path.basename(path.rstrip("/"))
        self._rows = _rows_of(spark, path)
        columns = self._rows.columns
        if missing := sorted({"key", "value", "partition", "offset"}.difference(columns)):
            raise DiskqSparkError("DISKQ_OPTION", f"{path} has no column {missing[0]}")
        if NANOS not in columns:
            self._rows = self._rows.withColumn(NANOS, F.unix_micros("timestamp") * F.lit(1000))
        self._pace = pace
        self._most = most
        spans = self._rows.groupBy("partition").agg(F.min("offset"), F.max("offset") + 1).collect()
        self._spans: dict[Part, tuple[int, int]] = {(self.name, p): (lo, hi) for p, lo, hi in spans}
        self.partition_count = max((number + 1 for _, number in self._spans), default=0)
        self._slices: Iterator[tuple[int, dict[Part, int]]] | None = None

    def between(self, ranges: Ranges) -> DataFrame:
        """Return these messages, in order."""
        each = [
            (F.col("partition") == number) & (F.col("offset") >= start) & (F.col("offset") < end)
            for (_, number), (start, end) in ranges.items()
        ]
        return self._rows.where(functools.reduce(or_, each)).orderBy("partition", "offset")

    def next_round(self, places: Places) -> Ranges:
        starts = {part: places.get(part, start) for part, (start, _) in self._spans.items()}
        if self._pace is None:
            left = {part: end - starts[part] for part, (_, end) in self._spans.items() if end > starts[part]}
            taken = share(self._most, left)
            return {part: (starts[part], starts[part] + count) for part, count in taken.items() if count}
        if self._slices is None:
            self._slices = self._sliced(starts, self._pace)
        for moment, ends in self._slices:
            self._pace.wait_for(moment)
            return {part: (starts[part], end) for part, end in ends.items()}
        return {}

    def _sliced(self, starts: Places, pace: _Pace) -> Iterator[tuple[int, dict[Part, int]]]:
        """Yield slices of time: when each is due, and the offsets that its messages end at."""
        left = self._rows.where(
            functools.reduce(
                or_,
                [(F.col("partition") == n) & (F.col("offset") >= start) for (_, n), start in starts.items()],
                F.lit(False),
            )
        )
        first, last = left.agg(F.min(NANOS), F.max(NANOS)).collect()[0]
        if first is None:
            return
        width = max(round(pace.every * pace.speed * _SECOND), (last - first) // _MOST_SLICES + 1)
        before = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
        number = F.floor((F.max(NANOS).over(before) - F.lit(first)) / F.lit(width))
        ends = (
            left.select("partition", "offset", number.alias("slice"))
            .groupBy("slice", "partition")
            .agg((F.max("offset") + 1).alias("end"))
            .orderBy("slice")
            .toLocalIterator()
        )
        for slice_, rows in groupby(ends, key=lambda row: row["slice"]):
            # A slice is due when its last message is: none is written before its time.
            moment = first + (slice_ + 1) * width - round(pace.every * pace.speed * _SECOND)
            yield moment, {(self.name, row["partition"]): row["end"] for row in rows}


def _rows_of(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows of a table, or of all files below another directory."""
    there: HadoopNames | None = None
    scheme = ""
    if "://" not in path:
        path, scheme = os.path.abspath(path), "file://"
    elif getattr(spark, "_jvm", None) is not None:
        path, there = path.rstrip("/"), HadoopNames(spark)
    else:
        return spark.read.parquet(path)
    try:
        names = os.listdir(path) if there is None else there.list_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return spark.read.parquet(path)  # a pattern, a file, or an error of Spark's
    topics, hosts = (sorted(name for name in names if name.startswith(each)) for each in (_TOPIC, _HOST))
    if len(topics) > 1 or hosts:
        below = ", ".join([*topics, *hosts])
        raise DiskqSparkError("DISKQ_OPTION", f"{path} has several tables: name one of {below}")
    if topics:
        path = f"{path}/{topics[0]}"
    # A table's own list: while it is compacted, a list of names has messages twice.
    with with_codes():
        files = files_at(path, there)
    if files is None:
        return spark.read.parquet(path)
    if not files:
        raise DiskqSparkError("DISKQ_NOT_FOUND", f"{path}: the table has no files yet")
    reader = spark.read.option("basePath", f"{scheme}{path}").option("__globPaths__", "false")
    return reader.parquet(*(f"{scheme}{file.path}" for file in files))
