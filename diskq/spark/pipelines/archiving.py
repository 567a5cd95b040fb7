# A stream into Parquet. Law: Spark's file sink writes down which files a batch has made before it counts as
# done, and whoever reads the directory with Spark goes by that: each message is in there once, whatever was
# killed when.

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from diskq.spark.pipelines.progress import Watch, run_query

__all__ = ["Archived", "archive", "trigger_of", "with_hours"]

By = Literal["date", "hour"]

MOST_IN_A_BATCH = 5_000_000
_MICROS_IN_AN_HOUR = 3600 * 10**6
_HOURS_IN_A_DAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What one run of `archive` has done."""

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
    most_in_a_batch: int = MOST_IN_A_BATCH,
    checkpoint: str | None = None,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Archived:
    """Every message of `stream`, from its oldest on, is in the Parquet files of the directory `into`, once.

    Its columns are those of the source with `timestampNanos`, and `date` and `hour`, of the message's
    timestamp in UTC whatever the session's time zone is. They name the directories: date and hour, or with
    `by="date"` the date alone, for streams with little in an hour. A batch makes a file for each task in each
    directory that it has something for; with `gather` one, for which it shuffles: for streams of many
    partitions, or whose times go far back and forth. One core writes then what is of one directory.

    It ends when it has caught up with what was there when it began; with `follow` (seconds between batches)
    never, until interrupted. A batch has at most `most_in_a_batch` messages, so that a killed run costs no
    more than that. Started again, it goes on where it was, as the checkpoint says: `into`/_checkpoint, where
    no reader looks, unless `checkpoint` names another directory. One run at a time.

    Exactly once is for who reads `into` with Spark, which goes by the sink's own list of files
    (`into`/_spark_metadata); others may see what a killed batch has left.

    `options` are the source's (failOnDataLoss, ...). Raises what Spark raises, with a code for `classify`:
    DISKQ_DATA_LOSS where retention was faster, DISKQ_STREAM_CHANGED where the stream was made anew.
    """
    began = time.monotonic()
    source = spark.readStream.format("diskq").option("includeTimestampNanos", True)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", most_in_a_batch)
    messages = with_hours(source.options(**(options or {})).load(stream))
    directories = ["date", "hour"] if by == "hour" else ["date"]
    if gather:
        messages = messages.repartition(*directories)
    query = (
        messages.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint or f"{into.rstrip('/')}/_checkpoint")
        .partitionBy(*directories)
        .trigger(**trigger_of(follow))
        .start(into)
    )
    tally = run_query(query, watch)
    return Archived(messages=tally.messages, batches=tally.batches, seconds=time.monotonic() - began)


def with_hours(messages: DataFrame) -> DataFrame:
    """The same with `date` and `hour`, of their timestamps in UTC."""
    hours = F.floor(F.unix_micros("timestamp") / F.lit(_MICROS_IN_AN_HOUR))
    days = F.floor(hours / F.lit(_HOURS_IN_A_DAY)).cast("int")
    return messages.withColumn("date", F.date_add(F.lit("1970-01-01").cast("date"), days)).withColumn(
        "hour", (hours - days * F.lit(_HOURS_IN_A_DAY)).cast("int")
    )


def trigger_of(follow: float | None) -> dict[str, Any]:
    """Until caught up; or a batch every so many seconds."""
    if follow is None:
        return {"availableNow": True}
    return {"processingTime": f"{round(follow * 1000)} milliseconds"}
