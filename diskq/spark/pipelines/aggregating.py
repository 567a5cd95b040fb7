# Messages counted in windows of time. Law: the time is the message's own, and a window is written once: when
# it can get no more messages.

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery

from diskq.spark.errors import DiskqSparkError
from diskq.spark.pipelines.progress import Watch, run_query, watched

__all__ = ["BY_KEY", "Aggregated", "aggregate", "json_field"]

BY_KEY = "cast(key AS string)"
"""The message's key, as text."""

Each = Callable[[list[Row]], None]

MOST_IN_A_BATCH = 5_000_000

_OWN_COLUMNS = ("window_start", "window_end", "by", "count", "bytes", "per_second", "bytes_per_second")
_FIELD = re.compile(r"[^.'\"\[\]\\]+(\.[^.'\"\[\]\\]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """The result of one run of `aggregate`."""

    messages: int
    windows: int
    """Rows that were written: one for each window and value of `by`."""
    open_windows: int
    """Rows that wait for the watermark."""
    late: int
    """Messages that were dropped because their windows were written already; counted as Spark does: for each
    task, those of one row count once."""
    batches: int
    seconds: float


def json_field(name: str) -> str:
    """Return SQL for a field of values that are JSON: `user.country`, as text, null if it is missing."""
    if not _FIELD.fullmatch(name):
        raise ValueError(f"a field has a name like user.country, not {name!r}")
    return f"get_json_object(cast(value AS string), '$.{name}')"


def aggregate(
    spark: SparkSession,
    stream: str,
    into: str | None = None,
    *,
    window: float,
    slide: float | None = None,
    by: str = BY_KEY,
    measures: Mapping[str, str] | None = None,
    table: str | None = None,
    each: Each | None = None,
    watermark: float | None = None,
    follow: float | None = None,
    max_messages: int = MOST_IN_A_BATCH,
    checkpoint: str | None = None,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Aggregated:
    """Write counts, bytes (of values) and rates of messages, in windows of `window` seconds of timestamps.

    There is a row for each window and value of `by`, an SQL expression over the source's columns
    (`json_field` makes one for a field): window_start, window_end, by, count, bytes, per_second,
    bytes_per_second, and a column for each of `measures`, which are SQL aggregates by name ({"slowest":
    "max(...)"}). With `slide` (seconds) windows overlap. Rows go to Parquet in the directory `into`, to a
    `table` of the session's catalog, or to the function `each`, a list at a time.

    Without `watermark` the whole stream is aggregated, as it is when the run begins, and the content of
    `into` or the table is replaced.

    With `watermark` (seconds) it is done step by step, and a run continues where the last one ended. A window
    is written when a message is that much later than its end: it is then closed, and messages that come later
    are dropped, and counted in `late`. So the watermark must exceed the steps back of timestamps, and the lag
    of one partition from the others, in a batch of `max_messages` messages. Open windows are kept in the
    checkpoint: `into`/_checkpoint, or the directory `checkpoint`, which a table and `each` need. With
    `follow` (seconds between batches) it runs until interrupted. A window is in Parquet once, despite kills;
    a table and `each` may get the last rows again. (Spark's watermark begins in 1970: step by step, messages
    before that are always late.)

    `options` are the source's (failOnDataLoss, ...). Raises DiskqSparkError DISKQ_OPTION for arguments that
    exclude each other; otherwise Spark's exceptions, with a code for `classify`: DISKQ_DATA_LOSS if retention
    was faster, DISKQ_STREAM_CHANGED if the stream was created again.
    """
    if sum(target is not None for target in (into, table, each)) != 1:
        raise DiskqSparkError("DISKQ_OPTION", "rows go to one of `into`, `table` and `each`")
    if unusable := sorted(set(measures or ()).intersection(_OWN_COLUMNS)):
        raise DiskqSparkError("DISKQ_OPTION", f"a measure cannot have the name {unusable[0]}")
    if watermark is None and follow is not None:
        raise DiskqSparkError("DISKQ_OPTION", "`follow` needs a watermark, which closes windows")
    if watermark is not None and into is None and checkpoint is None:
        raise DiskqSparkError("DISKQ_OPTION", "a watermark needs a checkpoint, which keeps open windows")
    began = time.monotonic()
    spans = (window, slide)

    def rows_of(messages: DataFrame) -> DataFrame:
        return _aggregated(messages, spans, by, measures or {})

    if watermark is None:
        source = spark.read.format("diskq").options(**(options or {})).load(stream)
        done = _once(spark, source, rows_of, into, table, each, watch)
    else:
        source = (
            spark.readStream.format("diskq")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", max_messages)
            .options(**(options or {}))
            .load(stream)
        )
        rows = rows_of(source.withWatermark("timestamp", _interval(watermark)))
        place = checkpoint or f"{str(into).rstrip('/')}/_checkpoint"
        writer = rows.writeStream.option("checkpointLocation", place).trigger(**_trigger(follow))

        def start() -> StreamingQuery:
            if each is not None:
                return writer.foreachBatch(lambda batch, number: _give(batch, each)).start()
            if table is not None:
                return writer.toTable(table)
            return writer.format("parquet").start(into)

        tally = run_query(start, watch, follow)
        done = {
            "messages": tally.messages,
            "windows": tally.closed,
            "open_windows": tally.held,
            "late": tally.late,
            "batches": tally.batches,
        }
    return Aggregated(**done, seconds=time.monotonic() - began)


def _once(
    spark: SparkSession,
    source: DataFrame,
    rows_of: Callable[[DataFrame], DataFrame],
    into: str | None,
    table: str | None,
    each: Each | None,
    watch: Watch | None,
) -> dict[str, int]:
    read, written = Observation(), Observation()
    count = F.count(F.lit(1)).alias("rows")
    rows = rows_of(source.observe(read, count)).orderBy("window_start", "by").observe(written, count)
    with watched(spark, watch):
        if each is not None:
            _give(rows, each)
        elif table is not None:
            rows.write.mode("overwrite").saveAsTable(table)
        else:
            rows.write.mode("overwrite").parquet(str(into))
    return {
        "messages": read.get["rows"],
        "windows": written.get["rows"],
        "open_windows": 0,
        "late": 0,
        "batches": 1,
    }


def _give(rows: DataFrame, each: Each) -> None:
    if found := rows.collect():
        each(sorted(found, key=lambda row: (row["window_start"], str(row["by"]))))


def _aggregated(
    messages: DataFrame, spans: tuple[float, float | None], by: str, measures: Mapping[str, str]
) -> DataFrame:
    window, slide = spans
    seconds = F.lit(float(window))
    size = F.octet_length("value")
    columns: list[Column] = [
        F.count(F.lit(1)).alias("count"),
        F.sum(size).alias("bytes"),
        (F.count(F.lit(1)) / seconds).alias("per_second"),
        (F.sum(size) / seconds).alias("bytes_per_second"),
        *(F.expr(measure).alias(name) for name, measure in measures.items()),
    ]
    place = F.window("timestamp", _interval(window), None if slide is None else _interval(slide))
    return (
        messages.groupBy(place.alias("window"), F.expr(by).alias("by"))
        .agg(*columns)
        .select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            *("`by`", "count", "bytes", "per_second", "bytes_per_second"),
            *(f"`{name}`" for name in measures),
        )
    )


def _trigger(follow: float | None) -> dict[str, Any]:
    """Return Spark's trigger: until caught up, or a batch every `follow` seconds."""
    if follow is None:
        return {"availableNow": True}
    return {"processingTime": f"{round(follow * 1000)} milliseconds"}


def _interval(seconds: float) -> str:
    return f"{round(seconds * 1_000_000)} microseconds"
