# Reading, by Spark itself, as it comes. Law: over any number of runs each message comes once.

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from diskq.spark import classify, offsets_behind
from diskq.spark.schema import SCHEMA
from tests.spark.readers import numbers, write

pytestmark = pytest.mark.spark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clicks"


def run(spark: SparkSession, path: Path, **options: Any) -> StreamingQuery:
    """Copy what there is now, and has not been copied yet, to Parquet."""
    frame = (
        spark.readStream.format("diskq").options(**{"startingOffsets": "earliest", **options}).load(str(path))
    )
    assert frame.schema == SCHEMA
    query = (
        frame.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(path.parent / "checkpoint"))
        .start(str(path.parent / "copied"), format="parquet")
    )
    assert query.awaitTermination(240)
    return query


def copied(spark: SparkSession, path: Path) -> list[int]:
    return sorted(numbers(spark.read.parquet(str(path.parent / "copied")).toArrow()))


def test_each_message_comes_once_over_runs_rates_and_new_partitions(spark, path):
    write(path, 60, partitions=2)
    progress = run(spark, path, maxOffsetsPerTrigger=40).recentProgress
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [40, 20]
    behind = [offsets_behind(each) for each in progress if each["numInputRows"]]
    assert behind == [{("clicks", 0): 10, ("clicks", 1): 10}, {("clicks", 0): 0, ("clicks", 1): 0}]
    write(path, 90, start=60, partitions=3)
    moved = path.rename(path.parent / "taps")
    run(spark, moved, minPartitions=5)
    assert copied(spark, moved) == list(range(150))


@pytest.mark.exhaustive
def test_a_run_without_new_messages_reads_none(spark, path):
    write(path, 10)
    run(spark, path)
    last = run(spark, path).lastProgress
    assert last is not None
    assert last["numInputRows"] == 0
    assert copied(spark, path) == list(range(10))


@pytest.mark.exhaustive
def test_a_stream_that_was_made_anew_ends_the_query_or_is_read_from_its_beginning(spark, path):
    write(path, 10)
    run(spark, path)
    shutil.rmtree(path)
    write(path, 20, start=1000)
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, path)
    found = classify(caught.value)
    assert found is not None
    assert found.code == "DISKQ_STREAM_CHANGED"
    run(spark, path, failOnDataLoss="false")
    assert copied(spark, path) == [*range(10), *range(1000, 1020)]


@pytest.mark.exhaustive
def test_a_bound_for_the_end_is_refused(spark, path):
    write(path, 1)
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, path, endingOffsets="latest")
    found = classify(caught.value)
    assert found is not None
    assert "only for batch reads" in found.sentence
