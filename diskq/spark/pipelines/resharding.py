# A stream into one with another number of partitions. Law: messages of one key are in one partition again,
# in the order in which they were.

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
    partitions: int | None = None,
    *,
    follow: float | None = None,
    most_in_a_round: int = MOST_IN_A_ROUND,
    job: str = "reshard",
    lock_timeout: float = LOCK_TIMEOUT,
    options: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Copied:
    """Every message of `stream` is in the stream `into`, once, with its key, value and timestamp (to the ns).

    `into` is made with so many `partitions`, or has them already; each message goes to the one that its key
    belongs to there. Messages of a key keep their order, as far as they are in one partition of `stream`:
    where its own partition count was changed meanwhile, those before and those after are in two, between
    which there is none.

    It ends when it has caught up with what was there; with `follow` (seconds between looks) it goes on until
    interrupted. Called again it resumes, and does nothing twice: what it has done is noted in `into`, under
    the name `job`. `into` must be closed while a round of at most `most_in_a_round` messages is committed:
    who else has it is waited for, `lock_timeout` seconds.

    Raises DiskqSparkError: DISKQ_OPTION where `into` has another partition count, or the job is another one;
    DISKQ_STREAM_CHANGED where `stream` was made anew; and what Spark raises, with a code for `classify`.
    """
    run = JobRun(spark, into, job, follow, most_in_a_round, lock_timeout, options, watch)
    source = Source([stream])
    run.make(partitions)

    def copy(number: int, ranges: Ranges, more: Mapping[str, Any]) -> int:
        return run.append(source.between(run, ranges).select("key", "value", NANOS), number)

    return carry_out(
        run,
        of={"pipeline": "reshard", "sources": sorted(source.streams)},
        source=source,
        next_round=lambda places: (source.next_round(places, run.most), {}),
        copy=copy,
    )
