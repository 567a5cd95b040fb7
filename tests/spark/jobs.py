# What a driver of tests/spark/cluster.py does: a line of standard input is a job, a line of standard output
# its result. It is run as a program, so what it sends to executors goes by value: they have no tests.

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

import diskq.spark
from diskq.spark import pipelines


def fingerprint(frame: DataFrame) -> list[str]:
    """Two numbers that tell these rows from others, in whatever order they are."""
    hashed = F.sum(F.xxhash64(*frame.columns).cast("decimal(38)"))
    (row,) = frame.select(F.count("*"), hashed).collect()
    return [str(number) for number in row]


def stream(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("diskq").load(path)


def once(marker: str, at: int, watched: str | None = None) -> Column:
    """True; but the first to meet the offset `at` of partition 0 ends the executor that it is in.

    It waits until there is something in `watched`, and leaves a file in which is what that is.
    """

    def held() -> list[str]:
        return os.listdir(watched) if watched and os.path.isdir(watched) else []

    def end(partition: int, offset: int) -> bool:
        if (partition, offset) == (0, at):
            with contextlib.suppress(FileExistsError), open(marker, "x") as file:
                deadline = time.monotonic() + 60
                while watched and not held() and time.monotonic() < deadline:
                    time.sleep(0.01)  # what happens there is another process's doing
                file.write(" ".join(held()))
                file.flush()
                # A worker's parent is the daemon that forked it; whose parent is the executor.
                status = Path(f"/proc/{os.getppid()}/stat").read_text()
                os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
        return True

    return F.udf(end, "boolean")("partition", "offset")


# --- the jobs ---------------------------------------------------------------------------------


def read(spark: SparkSession, path: str) -> list[str]:
    return fingerprint(stream(spark, path))


def read_messages(spark: SparkSession, path: str) -> list[str]:
    """As `read`, but for the offsets: two tasks that write into one partition have no order."""
    return fingerprint(stream(spark, path).drop("topic", "offset"))


def read_and_kill(spark: SparkSession, path: str, marker: str, at: int) -> list[str]:
    return fingerprint(stream(spark, path).where(once(marker, at)))


def write_and_kill(spark: SparkSession, path: str, to: str, marker: str, at: int) -> None:
    # Small batches, so that much of a task is staged when it ends.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
    frame = stream(spark, path).where(once(marker, at, f"{to}/.diskq/staging"))
    frame.write.format("diskq").mode("append").save(to)


def pipeline(spark: SparkSession, path: str, to: str) -> list[Any]:
    """The stream put into other partitions, and counted; what all of it is afterwards."""
    wide, hourly = f"{to}/wide", f"{to}/hourly"
    copied = pipelines.reshard(spark, path, wide, partition_count=6)
    counted = pipelines.aggregate(spark, wide, hourly, window=3600)
    return [
        *(copied.messages, counted.messages, counted.windows),
        *fingerprint(spark.read.parquet(hourly)),
        *fingerprint(stream(spark, wide)),
    ]


def places(spark: SparkSession, tasks: int) -> list[list[str]]:
    """For each task: where an executor imports diskq from, and wherever else it could."""

    def look(_: Any) -> list[str]:
        import diskq

        able = {os.path.join(entry, "diskq", "__init__.py") for entry in sys.path}
        return [str(diskq.__file__), *sorted(place for place in able if os.path.exists(place))]

    return spark.sparkContext.parallelize(range(tasks), tasks).map(look).collect()


def main() -> None:
    master, conf = sys.argv[1:]
    spark = diskq.spark.session("diskq's tests", master, json.loads(conf))
    jobs = {
        job.__name__: job for job in (read, read_messages, read_and_kill, write_and_kill, pipeline, places)
    }
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print("result:", json.dumps(jobs[name](spark, **arguments)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
