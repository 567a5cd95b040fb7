# A stream into one with another number of partitions. Law: messages of one key are in one partition again, in
# their original order.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from diskq.spark.pipelines.progress import Watch
from diskq.spark.pipelines.rounds import (
    LOCK_TIMEOUT,
    MOST_IN_A_ROUND,
    Copied,
    JobRun,
    Ranges,
    Source,
    carry_out,
)
from diskq.spark.schema import NANOS

__all__ = ["reshard"]


def reshard(
    spark: SparkSession,
    stream: str,
    into: str,
    partition_count: int | None = None,
    *,
    follow: float | None = None,
    max_messages: int = MOST_IN_A_ROUND,
    job: str = "reshard",
    wait: float = LOCK_TIMEOUT,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Copied:
    """Copy every message of `stream` to the stream `into`, once, with key, value and timestamp (to the ns).

    `into` is created with `partition_count` partitions, or has that number already; each message goes to the
    one of its key. Messages of a key keep their order if they are in one partition of `stream`. If its
    partition count was changed, a key's messages are in two partitions, and there is no order between them.

    It ends when it has copied the messages that were there; with `follow` (seconds between looks) it runs
    until interrupted. Called again it resumes, and repeats nothing: its progress is recorded in `into`, under
    the name `job`. `into` must be closed while a round of up to `max_messages` messages is committed: it
    waits up to `wait` seconds for another process that has it.

    Raises DiskqSparkError: DISKQ_OPTION if `into` has another partition count, or the job is another one;
    DISKQ_STREAM_CHANGED if `stream` was created again; and Spark's exceptions, with a code for `classify`.
    """
    run = JobRun(spark, into, job, follow, max_messages, wait, options, watch)
    source = Source([stream])
    run.make(partition_count)

    def copy(number: int, ranges: Ranges, more: Mapping[str, Any]) -> int:
        return run.append(source.between(run, ranges).select("key", "value", NANOS), number)

    return carry_out(
        run,
        of={"pipeline": "reshard", "sources": sorted(source.streams)},
        source=source,
        next_round=lambda places: (source.next_round(places, run.most), {}),
        copy=copy,
    )
