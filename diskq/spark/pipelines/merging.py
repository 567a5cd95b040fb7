# Many streams into one, without duplicates. Law: of equal messages the first is kept, so that a client's
# messages stay in order; and the digests of kept messages are never forgotten.
#
# The digests are a stream, too: 32 bytes for each message that was kept, next to the job's plan
# (`.diskq/jobs/JOB.seen`). A round is compared with the digests of all earlier rounds; their number is part
# of its plan, so that a repeated round is not compared with itself.

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

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
"""SQL for the client of a message: the first part of the name of its journal's directory."""
_SEEN_PARTITIONS = 1


def merge(
    spark: SparkSession,
    streams: Sequence[str],
    into: str,
    partition_count: int | None = None,
    *,
    id_of: str | None = None,
    follow: float | None = None,
    max_messages: int = MOST_IN_A_ROUND,
    job: str = "merge",
    wait: float = LOCK_TIMEOUT,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Copied:
    """Copy every message of `streams`, one for each client, to the stream `into`, without duplicates.

    Each of the `streams` is a client, named after the directory; clients may be added between two runs. A
    client may also be a journal: `dedupe_merge` says how a journal's messages look in a stream.

    Of equal messages one is kept. `id_of` is an SQL expression over the source's columns: two messages of the
    same client are equal if it gives the same text for both, and a message for which it gives null is equal
    to no other. Without `id_of`, messages with the same key, timestamp (in nanoseconds) and value are equal,
    also those of different clients. The one that is kept is of the earliest round; in one round, of the first
    client by name, then of the lowest partition and offset.

    A client's messages stay in order in each partition of `into`, if they were in one partition; the
    partition is that of the key. Keys, values and timestamps are unchanged.

    Each kept message leaves a digest of about 60 bytes in `into`, for good, and each round reads them all. So
    large rounds (`max_messages` messages) are better than small ones.

    `follow`, `job`, `wait`: as `reshard`, and as that it resumes and raises.
    """
    source = Source(streams, may_be_journals=True)
    if not source.streams:
        raise DiskqSparkError("DISKQ_OPTION", "there is no stream to merge")
    return _merged(
        JobRun(spark, into, job, follow, max_messages, wait, options, watch),
        source,
        partition_count,
        of={"pipeline": "merge", "id": id_of},
        id_of=id_of,
        client_of=_STREAM,
    )


def dedupe_merge(
    spark: SparkSession,
    root: str,
    into: str,
    partition_count: int | None = None,
    *,
    journal: str | None = None,
    id_of: str | None = None,
    follow: float | None = None,
    max_messages: int = MOST_IN_A_ROUND,
    job: str = "dedupe-merge",
    wait: float = LOCK_TIMEOUT,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Copied:
    """Copy every message that clients have sent to a hub to the stream `into`, once, as `merge` does.

    `root` is the hub's, with a journal in each directory `CLIENT.JOURNAL`; the client is the part before the
    first dot. All of them are merged, or with `journal` those of this name; new ones are found in each round.
    With `id_of`, messages of one client are compared across its journals; it may use the source's columns and
    `type`. Without it key, timestamp, value and type decide.

    In a stream a message has no type; one without a key gets a random one, as from any producer, and one
    without a time gets the time of writing. All else, and what it raises, is as in `merge`; and
    DISKQ_NOT_FOUND if there is no such journal, without `follow`; DISKQ_STREAM_CHANGED if a journal is
    shorter than the part that was copied.
    """

    def find() -> list[str]:
        return _journals(root, journal)

    source = Source(find(), find, may_be_journals=True)
    if not source.streams and follow is None:
        what = "CLIENT.JOURNAL" if journal is None else f"CLIENT.{journal}"
        raise DiskqSparkError("DISKQ_NOT_FOUND", f"{root}: there is no journal named {what} here")
    return _merged(
        JobRun(spark, into, job, follow, max_messages, wait, options, watch),
        source,
        partition_count,
        of={"pipeline": "dedupe-merge", "id": id_of, "journal": journal},
        id_of=id_of,
        client_of=_OF_A_HUB,
    )


def _journals(root: str, journal: str | None) -> list[str]:
    """Return the journals of a hub's clients, of this name or all. Raises DISKQ_NOT_FOUND, OSError."""
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
    partition_count: int | None,
    *,
    of: Mapping[str, Any],
    id_of: str | None,
    client_of: str,
) -> Copied:
    run.make(partition_count)
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
        # One task for a client, so that its messages stay in order without sorting everything.
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
    """Return 32 bytes that are the same for equal messages."""
    if id_of is not None:
        return F.unhex(F.sha2(_framed(F.expr(client_of), F.expr(id_of).cast("string")), 256))
    # Messages without a time are alike; and a type counts only if it is not 0, the type of a stream's
    # messages.
    time = F.coalesce(F.col(NANOS).cast("string"), F.lit(""))
    content = _framed(F.col("key"), time, F.col("value"))
    if TYPE in messages.columns:
        kind = F.when(F.col(TYPE) > 0, _framed(F.col(TYPE).cast("string")))
        content = F.concat(content, F.coalesce(kind, F.lit("").cast("binary")))
    return F.unhex(F.sha2(content, 256))


def _framed(*columns: Column) -> Column:
    """Return all columns, each after its length, so that boundaries are clear. Null if one is null."""
    parts = []
    for column in columns:
        data = column.cast("binary")
        parts += [F.concat(F.octet_length(data).cast("string"), F.lit(":")).cast("binary"), data]
    return F.concat(*parts)
