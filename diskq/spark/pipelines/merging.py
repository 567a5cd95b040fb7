# Many streams into one, without duplicates. Law: of messages that are the same the first is kept, so that
# what a client sent stays in its order; and what was seen is remembered for good.
#
# The memory is a stream, too: a digest of 32 bytes for each message that was kept, beside the job's plan
# (`.diskq/jobs/JOB.seen`). A round is compared with the digests of all rounds before it; how many those
# are is part of its plan, so that a round that is done again does not meet itself.

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from diskq.spark.errors import DiskqSparkError
from diskq.spark.pipelines.progress import Watch
from diskq.spark.pipelines.rounds import (
    LOCK_TIMEOUT,
    MOST_IN_A_ROUND,
    Copied,
    Places,
    Ranges,
    Source,
    SourceStream,
    carry_out,
    made,
    streams_between,
    written,
)
from diskq.spark.schema import NANOS

__all__ = ["merge"]

_PLACE = ("topic", "partition", "offset")
_SEEN_PARTITIONS = 1


def merge(
    spark: SparkSession,
    streams: Sequence[str],
    into: str,
    partitions: int | None = None,
    *,
    id_of: str | None = None,
    follow: float | None = None,
    most_in_a_round: int = MOST_IN_A_ROUND,
    job: str = "merge",
    lock_timeout: float = LOCK_TIMEOUT,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Copied:
    """Every message of `streams`, one for each client, is in the stream `into`, once: duplicates are dropped.

    Two messages are the same if they are of one client and `id_of`, an SQL expression over the source's
    columns, gives the same text for both; where it gives null a message is like no other. Without it they
    are the same, whichever client sent them, if their key, timestamp (to the nanosecond) and value are. Of
    those that are the same the first is kept: by rounds, then by the clients' names, then by partition and
    offset. A client is called as its stream's directory; others may join later, between two runs.

    What a client sent stays in order, in each partition of `into`, as far as it was in one partition; the
    partition is the one that the key belongs to. Keys, values and timestamps stay as they are.

    What was seen is remembered for good: a digest of about 60 bytes for each message that was kept, in
    `into`, which each round reads. So large rounds (`most_in_a_round` messages) are better than small ones.

    `follow`, `job`, `lock_timeout`: as `reshard`, and as that it resumes and raises.
    """
    source = Source([SourceStream.opened(stream) for stream in streams])
    if not source.streams:
        raise DiskqSparkError("DISKQ_OPTION", "there is no stream to merge")
    made(into, partitions, lock_timeout)
    seen = os.path.join(into, ".diskq", "jobs", f"{job}.seen")
    os.makedirs(os.path.dirname(seen), exist_ok=True)
    made(seen, _SEEN_PARTITIONS, lock_timeout)
    known = Source([SourceStream.opened(seen)])

    def next_round(places: Places) -> tuple[Ranges, Mapping[str, Any]]:
        ends = {number: span.next for number, span in known.streams[f"{job}.seen"].layout.spans().items()}
        return source.next_round(places, most_in_a_round), {"seen": ends[0]}

    def copy(number: int, ranges: Ranges, more: Mapping[str, Any]) -> int:
        messages = streams_between(spark, source, ranges, options or {})
        first = _first_of_each(messages.withColumn("digest", _digest(id_of)))
        new = first
        if more["seen"]:
            digests = (
                spark.read.format("diskq")
                .schema("value binary")
                .option("startingOffsets", "earliest")
                .option("endingOffsets", json.dumps({"0": more["seen"]}))
                .load(seen)
            )
            new = first.join(
                digests.withColumnRenamed("value", "seen"), F.col("digest") == F.col("seen"), "left_anti"
            )
        # A client in one task, so that what it sent stays in order without sorting everything.
        new = new.repartition("topic").sortWithinPartitions(*_PLACE).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            count = written(new.select("key", "value", NANOS), into, job, number, lock_timeout)
            digests = new.where("digest IS NOT NULL").select(F.col("digest").alias("value"))
            written(digests.coalesce(1), seen, job, number, lock_timeout)
        finally:
            new.unpersist()
        return count

    return carry_out(
        spark,
        into,
        job=job,
        of={"pipeline": "merge", "id": id_of},
        next_round=next_round,
        copy=copy,
        identities=source.identities,
        lag=source.waiting,
        follow=follow,
        watch=watch,
    )


def _first_of_each(messages: DataFrame) -> DataFrame:
    number = F.row_number().over(Window.partitionBy("digest").orderBy(*_PLACE))
    return messages.withColumn("nth", number).where("nth = 1 OR digest IS NULL").drop("nth")


def _digest(id_of: str | None) -> Column:
    """32 bytes, the same for messages that are the same."""
    if id_of is not None:
        return F.unhex(F.sha2(_framed(F.col("topic"), F.expr(id_of).cast("string")), 256))
    return F.unhex(F.sha2(_framed(F.col("key"), F.col(NANOS).cast("string"), F.col("value")), 256))


def _framed(*columns: Column) -> Column:
    """All of them, and how long each is: otherwise two texts in a row could be others. Null where one is."""
    parts = []
    for column in columns:
        data = column.cast("binary")
        parts += [F.concat(F.octet_length(data).cast("string"), F.lit(":")).cast("binary"), data]
    return F.concat(*parts)
