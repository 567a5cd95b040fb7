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
from dataclasses import replace
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from diskq.spark.errors import DiskqSparkError
from diskq.spark.layouts.queue import log_at
from diskq.spark.pipelines.progress import Watch
from diskq.spark.pipelines.rounds import (
    LOCK_TIMEOUT,
    MOST_IN_A_ROUND,
    Copied,
    JobRun,
    Places,
    Ranges,
    Source,
    carry_out,
)
from diskq.spark.schema import NANOS, TYPE

__all__ = ["dedupe_merge", "merge"]

_PLACE = ("topic", "partition", "offset")
_STREAM = "topic"
_OF_A_HUB = "substring_index(topic, '.', 1)"
"""Whose a message is: the client that a stream's directory is named for, or the first part of its name."""
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
    offset. A client is called as its stream's directory; others may join later, between two runs. It may
    also be a journal; of what that is like in a stream, see `dedupe_merge`.

    What a client sent stays in order, in each partition of `into`, as far as it was in one partition; the
    partition is the one that the key belongs to. Keys, values and timestamps stay as they are.

    What was seen is remembered for good: a digest of about 60 bytes for each message that was kept, in
    `into`, which each round reads. So large rounds (`most_in_a_round` messages) are better than small ones.

    `follow`, `job`, `lock_timeout`: as `reshard`, and as that it resumes and raises.
    """
    source = Source(streams, may_be_journals=True)
    if not source.streams:
        raise DiskqSparkError("DISKQ_OPTION", "there is no stream to merge")
    return _merged(
        JobRun(spark, into, job, follow, most_in_a_round, lock_timeout, options, watch),
        source,
        partitions,
        of={"pipeline": "merge", "id": id_of},
        id_of=id_of,
        client_of=_STREAM,
    )


def dedupe_merge(
    spark: SparkSession,
    root: str,
    into: str,
    partitions: int | None = None,
    *,
    journal: str | None = None,
    id_of: str | None = None,
    follow: float | None = None,
    most_in_a_round: int = MOST_IN_A_ROUND,
    job: str = "dedupe-merge",
    lock_timeout: float = LOCK_TIMEOUT,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Copied:
    """Every message that clients have sent to a hub is in the stream `into`, once: as `merge` does it.

    `root` is the hub's, with a journal in each directory `CLIENT.JOURNAL`; a client is what is before the
    first dot. All of them are merged, or with `journal` those of this name; those that are new, too, from
    one round to the next. With `id_of` messages of one client are compared, in whichever of its journals they
    are; the columns that it may name are the source's with `type`. Without it key, timestamp, value and type
    decide.

    In a stream a message has no type; one without a key gets a random one, as from any producer, and one
    without a time that at which it is written. All else, and what it raises, is as `merge`'s; and
    DISKQ_NOT_FOUND where there is no such journal, unless it is to `follow`; DISKQ_STREAM_CHANGED where a
    journal is shorter than what was copied of it.
    """

    def find() -> list[str]:
        return _journals(root, journal)

    source = Source(find(), find, may_be_journals=True)
    if not source.streams and follow is None:
        what = "CLIENT.JOURNAL" if journal is None else f"CLIENT.{journal}"
        raise DiskqSparkError("DISKQ_NOT_FOUND", f"{root}: there is no journal here that is named {what}")
    return _merged(
        JobRun(spark, into, job, follow, most_in_a_round, lock_timeout, options, watch),
        source,
        partitions,
        of={"pipeline": "dedupe-merge", "id": id_of, "journal": journal},
        id_of=id_of,
        client_of=_OF_A_HUB,
    )


def _journals(root: str, journal: str | None) -> list[str]:
    """The journals of a hub's clients, of this name or all. Raises DISKQ_NOT_FOUND, OSError."""
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        raise DiskqSparkError("DISKQ_NOT_FOUND", f"{root}: there is no such directory") from None
    found = []
    for name in names:
        client, _, its = name.partition(".")
        path = os.path.join(root, name)
        if client and its and journal in (None, its) and log_at(path) == "sej":
            found.append(path)
    return found


def _merged(
    run: JobRun,
    source: Source,
    partitions: int | None,
    *,
    of: Mapping[str, Any],
    id_of: str | None,
    client_of: str,
) -> Copied:
    run.make(partitions)
    name = f"{run.job}.seen"
    seen = replace(run, into=os.path.join(run.into, ".diskq", "jobs", name))
    os.makedirs(os.path.dirname(seen.into), exist_ok=True)
    seen.make(_SEEN_PARTITIONS)
    known = Source([seen.into])

    def next_round(places: Places) -> tuple[Ranges, Mapping[str, Any]]:
        ends = {number: span.next for number, span in known.streams[name].layout.spans().items()}
        return source.next_round(places, run.most), {"seen": ends[0]}

    def copy(number: int, ranges: Ranges, more: Mapping[str, Any]) -> int:
        messages = source.between(run, ranges)
        first = _first_of_each(messages.withColumn("digest", _digest(messages, id_of, client_of)))
        new = first
        if more["seen"]:
            digests = (
                run.spark.read.format("diskq")
                .schema("value binary")
                .option("startingOffsets", "earliest")
                .option("endingOffsets", json.dumps({"0": more["seen"]}))
                .load(seen.into)
            )
            new = first.join(
                digests.withColumnRenamed("value", "seen"), F.col("digest") == F.col("seen"), "left_anti"
            )
        # A client in one task, so that what it sent stays in order without sorting everything.
        new = new.repartition("topic").sortWithinPartitions(*_PLACE).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            count = run.append(new.select("key", "value", NANOS), number)
            digests = new.where("digest IS NOT NULL").select(F.col("digest").alias("value"))
            seen.append(digests.coalesce(1), number)
        finally:
            new.unpersist()
        return count

    return carry_out(
        run,
        of=of,
        source=source,
        next_round=next_round,
        copy=copy,
    )


def _first_of_each(messages: DataFrame) -> DataFrame:
    number = F.row_number().over(Window.partitionBy("digest").orderBy(*_PLACE))
    return messages.withColumn("nth", number).where("nth = 1 OR digest IS NULL").drop("nth")


def _digest(messages: DataFrame, id_of: str | None, client_of: str) -> Column:
    """32 bytes, the same for messages that are the same."""
    if id_of is not None:
        return F.unhex(F.sha2(_framed(F.expr(client_of), F.expr(id_of).cast("string")), 256))
    # One without a time is like another; and a type is only told where it is not 0, as if all had one.
    time = F.coalesce(F.col(NANOS).cast("string"), F.lit(""))
    told = _framed(F.col("key"), time, F.col("value"))
    if TYPE in messages.columns:
        kind = F.when(F.col(TYPE) > 0, _framed(F.col(TYPE).cast("string")))
        told = F.concat(told, F.coalesce(kind, F.lit("").cast("binary")))
    return F.unhex(F.sha2(told, 256))


def _framed(*columns: Column) -> Column:
    """All of them, and how long each is: otherwise two texts in a row could be others. Null where one is."""
    parts = []
    for column in columns:
        data = column.cast("binary")
        parts += [F.concat(F.octet_length(data).cast("string"), F.lit(":")).cast("binary"), data]
    return F.concat(*parts)
