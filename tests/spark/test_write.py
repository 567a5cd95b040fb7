# Writing, by Spark itself. Law: whatever is killed when, each row is there once.

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from diskq.engine.stream.stream import Stream
from diskq.options import MIB, StreamOptions
from diskq.spark import classify
from tests.spark import sinks
from tests.spark.sinks import KilledSource, found, plan_of

pytestmark = pytest.mark.spark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(scope="module")
def killed(spark: SparkSession) -> str:
    """A format as `diskq`, whose commits are killed as planned."""
    cloudpickle.register_pickle_by_value(sinks)  # the workers have no tests
    spark.dataSource.register(KilledSource)
    return KilledSource.name()


def messages(spark: SparkSession, count: int, start: int = 0) -> DataFrame:
    return spark.range(start, start + count, numPartitions=2).selectExpr(
        "cast(id % 7 as string) key", "cast(format_string('%06d', id) as binary) value"
    )


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(start, start + count)]


# --- batches ------------------------------------------------------------------------------------


def test_a_batch_is_appended(spark, path):
    messages(spark, 3000).write.format("diskq").mode("append").option("partitionCount", 2).save(str(path))
    messages(spark, 1000, 3000).write.format("diskq").mode("append").save(str(path))
    assert found(path) == (found(path).messages, [], False)
    assert found(path).values == values(4000)


def test_batches_may_be_bounded_by_their_rows_alone(spark, path):
    prefix = "spark.sql.execution.arrow"
    own = {name: spark.conf.get(f"{prefix}.{name}") for name in ("maxBytesPerBatch", "maxRecordsPerBatch")}
    try:
        spark.conf.set(f"{prefix}.maxBytesPerBatch", "2147483647")
        spark.conf.set(f"{prefix}.maxRecordsPerBatch", "700")
        messages(spark, 3000).write.format("diskq").mode("append").save(str(path))
    finally:
        for name, value in own.items():
            spark.conf.set(f"{prefix}.{name}", value)
    assert found(path).values == values(3000)


def test_a_large_part_of_a_batch_becomes_a_segment(spark, path):
    Stream(str(path), options=StreamOptions(partition_count=1, segment_size=8 * MIB)).close()
    rows = spark.range(0, 50_000, numPartitions=1).selectExpr(
        "'key' key", "cast(format_string('%0200d', id) as binary) value"
    )
    rows.write.format("diskq").mode("append").save(str(path))
    with Stream(str(path)) as stream:
        assert (
            len(stream.files.partition(0).bases()) == 3
        )  # copied, renamed, and once more at a segment's size
        assert stream.repairs == ()
    assert found(path).values == [b"%0200d" % number for number in range(50_000)]


@pytest.mark.exhaustive
def test_what_was_read_can_be_written_as_it_is(spark, path):
    with Stream(str(path), options=StreamOptions(partition_count=3)) as stream:
        stream.append_many([(b"k%d" % (n % 5), b"%06d" % n, n * 1_000_000_000 + n) for n in range(1000)])
    copy = path.with_name("copy")
    read = spark.read.format("diskq").option("includeTimestampNanos", True).load(str(path))
    read.write.format("diskq").mode("append").option("partitionCount", 3).save(str(copy))
    assert found(copy).messages == found(path).messages


def test_a_version_is_written_once(spark, path):
    for version in (1, 1, 2, 2, 1):
        rows = messages(spark, 100, 100 * version)
        writer = rows.write.format("diskq").mode("append").option("txnAppId", "job")
        writer.option("txnVersion", version).save(str(path))
    assert found(path).values == values(200, 100)


def test_a_row_that_is_no_message_fails_the_job_with_a_code_and_nothing_is_written(spark, path):
    rows = messages(spark, 100).selectExpr("key", "if(value = cast('000077' as binary), null, value) value")
    with pytest.raises(Exception, match="DISKQ_NULL_VALUE") as told:
        rows.write.format("diskq").mode("append").save(str(path))
    fault = classify(told.value)
    assert fault is not None
    assert fault.code == "DISKQ_NULL_VALUE"
    assert found(path) == ([], [], False)


def test_a_stream_that_is_held_fails_the_job_and_it_can_be_run_again(spark, path):
    held = messages(spark, 10).write.format("diskq").mode("append").option("wait", "100ms")
    with Stream(str(path)) as stream:
        stream.append(b"mine")
        with pytest.raises(Exception, match="DISKQ_LOCKED") as told:
            held.save(str(path))
    fault = classify(told.value)
    assert fault is not None
    assert str(path) in fault.sentence
    held.save(str(path))
    assert found(path).values == sorted([b"mine", *values(10)])
    assert found(path).staged == []


@pytest.mark.parametrize("mode, says", [("overwrite", "DISKQ_OPTION.*append"), ("error", "UNSUPPORTED")])
def test_modes_but_append_are_refused(spark, path, mode, says):
    with pytest.raises(Exception, match=says):
        messages(spark, 10).write.format("diskq").mode(mode).save(str(path))


# --- queries ------------------------------------------------------------------------------------


ROWS = 400
AT_ONCE = 200


class Query:
    """From a stream of numbered messages into another one, so many at a time."""

    def __init__(self, spark: SparkSession, path: Path, sink: str = "diskq", **options: Any) -> None:
        self.spark, self.sink, self.out = spark, sink, path
        self.options = options
        self.source = path.with_name("source")
        self.fill(ROWS)

    def fill(self, count: int, start: int = 0) -> None:
        with Stream(str(self.source), options=StreamOptions(partition_count=2)) as stream:
            stream.append_many(
                [(b"k%d" % (number % 7), value) for number, value in enumerate(values(count, start))]
            )

    def start(self) -> StreamingQuery:
        rows = self.spark.readStream.format("diskq").option("startingOffsets", "earliest")
        chosen = (
            rows.option("maxOffsetsPerTrigger", AT_ONCE)
            .load(str(self.source))
            .select("key", "value", "timestamp")
        )
        writer = chosen.writeStream.format(self.sink).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.out.with_name("checkpoint")))
        return writer.options(**self.options).start(str(self.out))

    def run(self) -> None:
        """Until all that is there is written."""
        assert self.start().awaitTermination(240)

    def fails(self) -> str:
        with pytest.raises(Exception, match=r"STREAM_FAILED|crashed|exited") as told:
            self.run()
        return str(told.value)


def test_a_query_goes_on_where_it_stopped(spark, path):
    query = Query(spark, path)
    query.run()
    query.fill(AT_ONCE, ROWS)
    query.run()
    assert found(path).values == values(ROWS + AT_ONCE)
    assert (found(path).staged, found(path).is_pending) == ([], False)


@pytest.mark.exhaustive
def test_a_query_that_finds_nothing_new_writes_nothing(spark, path):
    query = Query(spark, path)
    query.run()
    query.run()
    assert found(path).values == values(ROWS)


STEPS = [
    "rename .diskq/intent 1",  # what is staged is durable, and that is all
    "pwrite .index 2",  # the intent is durable, and of one partition some is appended
    "unlink .staged 1",  # all is done but for the tidying
    "pwrite .data 1",  # the intent is durable, nothing is appended
    "sync_files .index 2",  # all is appended, and not durable
    "rename .committed 1",  # all is durable, and not noted
    "unlink .diskq/intent 1",  # and noted
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", STEPS)
def test_a_commit_that_is_killed_is_finished_by_the_next_and_doubles_nothing(spark, path, killed, step):
    with Stream(str(path), options=StreamOptions(partition_count=2)) as stream:
        stream.append(b"before")
    query = Query(spark, path, killed)
    plan_of(str(path)).write_text(step)
    query.fails()
    assert not plan_of(str(path)).exists()
    query.run()
    assert found(path).values == sorted([b"before", *values(ROWS)])
    assert (found(path).staged, found(path).is_pending) == ([], False)


@pytest.mark.exhaustive
def test_who_opens_the_stream_next_finishes_what_was_committed(spark, path, killed):
    """Spark or not: a producer finds it done before it appends."""
    query = Query(spark, path, killed)
    plan_of(str(path)).write_text("pwrite .data 1")
    query.fails()
    assert found(path).is_pending
    with Stream(str(path)) as stream:
        assert 0 < sum(stream.next_offsets) <= AT_ONCE
        stream.append(b"mine")
    assert not found(path).is_pending
    query.run()
    assert found(path).values == sorted([b"mine", *values(ROWS)])


@pytest.mark.exhaustive
def test_a_checkpoint_that_was_deleted_is_another_query_and_no_other_may_be_the_same_sink(spark, path):
    query = Query(spark, path, sinkId="clicks")
    query.run()
    query.out.with_name("checkpoint").rename(query.out.with_name("lost"))
    assert "DISKQ_SINK" in query.fails()
    assert found(path).values == values(ROWS)


@pytest.mark.exhaustive
def test_a_query_waits_for_a_producer(spark, path):
    query = Query(spark, path)
    with Stream(str(path)) as stream:
        running = query.start()
        deadline = time.monotonic() + 30
        while not found(path).staged and time.monotonic() < deadline:
            time.sleep(0.05)
        stream.append(b"mine")
    assert running.awaitTermination(240)
    assert found(path).values == sorted([b"mine", *values(ROWS)])


@pytest.mark.exhaustive
def test_complete_mode_is_refused(spark, path):
    counted = spark.readStream.format("rate").load().groupBy().count().selectExpr("string(count) value")
    writer = counted.writeStream.format("diskq").outputMode("complete")
    query = writer.option("checkpointLocation", str(path.with_name("checkpoint"))).start(str(path))
    with pytest.raises(Exception, match=r"DISKQ_OPTION.*complete"):
        query.awaitTermination(240)
    query.stop()
