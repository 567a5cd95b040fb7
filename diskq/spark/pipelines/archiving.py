# A stream into Parquet. Law: Spark's file sink records the files of a batch before the batch counts as done,
# and Spark's reader of the directory uses that record: each message is in there once, despite kills.

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from diskq.spark.pipelines.progress import Watch, run_query

__all__ = ["Archived", "archive", "trigger_of", "with_hours"]

By = Literal["date", "hour"]

MOST_IN_A_BATCH = 5_000_000
_MICROS_IN_AN_HOUR = 3600 * 10**6
_HOURS_IN_A_DAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The result of one run of `archive`."""

    messages: int
    batches: int
    seconds: float


def archive(
    spark: SparkSession,
    stream: str,
    into: str,
    *,
    by: By = "hour",
    gather: bool = False,
    follow: float | None = None,
    max_messages: int = MOST_IN_A_BATCH,
    checkpoint: str | None = None,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Archived:
    """Write every message of `stream`, from its oldest on, once to Parquet files in the directory `into`.

    The columns are those of the source with `timestampNanos`, and `date` and `hour`, of the message's
    timestamp in UTC whatever the session's time zone is. They name the directories: date and hour, or with
    `by="date"` the date alone, for streams with few messages in an hour. A batch makes a file for each task
    in each directory that it writes to; with `gather` one, for which it shuffles: for streams of many
    partitions, or with times that vary widely. One core then writes all of a directory.

    It ends when it has caught up with the messages that were there when it began; with `follow` (seconds
    between batches) it runs until interrupted. A batch has up to `max_messages` messages, so that a kill
    costs no more than that. Started again, it continues from the checkpoint: `into`/_checkpoint, where no
    reader looks, unless `checkpoint` names another directory. One run at a time.

    Exactly once holds for readers of `into` with Spark, which uses the sink's own list of files
    (`into`/_spark_metadata); other programs may see files of a killed batch.

    `options` are the source's (failOnDataLoss, ...). Raises Spark's exceptions, with a code for `classify`:
    DISKQ_DATA_LOSS if retention was faster, DISKQ_STREAM_CHANGED if the stream was created again.
    """
    began = time.monotonic()
    source = spark.readStream.format("diskq").option("includeTimestampNanos", True)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", max_messages)
    messages = with_hours(source.options(**(options or {})).load(stream))
    directories = ["date", "hour"] if by == "hour" else ["date"]
    if gather:
        messages = messages.repartition(*directories)
    writer = (
        messages.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint or f"{into.rstrip('/')}/_checkpoint")
        .partitionBy(*directories)
        .trigger(**trigger_of(follow))
    )
    tally = run_query(lambda: writer.start(into), watch, follow)
    return Archived(messages=tally.messages, batches=tally.batches, seconds=time.monotonic() - began)


def with_hours(messages: DataFrame) -> DataFrame:
    """Return the messages with `date` and `hour`, of their timestamps in UTC."""
    hours = F.floor(F.unix_micros("timestamp") / F.lit(_MICROS_IN_AN_HOUR))
    days = F.floor(hours / F.lit(_HOURS_IN_A_DAY)).cast("int")
    return messages.withColumn("date", F.date_add(F.lit("1970-01-01").cast("date"), days)).withColumn(
        "hour", (hours - days * F.lit(_HOURS_IN_A_DAY)).cast("int")
    )


def trigger_of(follow: float | None) -> dict[str, Any]:
    """Return Spark's trigger: until caught up, or a batch every `follow` seconds."""
    if follow is None:
        return {"availableNow": True}
    return {"processingTime": f"{round(follow * 1000)} milliseconds"}
