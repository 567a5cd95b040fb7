# Reading, by Spark itself, in batches.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from diskq.engine.queue.fifo_queue import Queue
from diskq.spark import classify, register
from diskq.spark.schema import SCHEMA
from tests.sampling import first
from tests.spark.readers import VALUE, numbers, write

pytestmark = pytest.mark.spark

COUNT = 5000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("streams") / "clicks"
    write(made, COUNT, partitions=3)
    return made


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("diskq").options(**options).load(str(path))


def test_a_stream_is_read_with_kafkas_columns(spark, path):
    frame = load(spark, path)
    assert frame.schema == SCHEMA
    found = frame.orderBy("value").toArrow()
    assert numbers(found) == list(range(COUNT))
    assert found.column("partition").to_pylist()[:4] == [0, 1, 2, 0]
    assert found.column("offset").to_pylist()[:4] == [0, 0, 0, 1]
    assert [moment.microsecond for moment in found.column("timestamp").to_pylist()[:2]] == [0, 1000]
    assert set(found.column("topic").to_pylist()) == {"clicks"}
    assert set(found.column("timestampType").to_pylist()) == {0}


def test_a_jobs_options_are_kafkas(spark, path):
    chosen = {
        "kafka.bootstrap.servers": "nowhere:9092",
        "subscribe": "clicks",
        "startingOffsets": '{"clicks": {"0": 10, "1": -2, "2": 1000}}',
        "endingTimestamp": "3300",  # messages before number 3300
        "minPartitions": "7",
        "failOnDataLoss": "false",
        "includeTimestampNanos": "true",
    }
    frame = load(spark, path.parent, **chosen)
    assert frame.rdd.getNumPartitions() >= 7
    assert frame.selectExpr(
        "count(*)", "count(distinct partition, offset)", "max(timestampNanos)"
    ).first() == (
        1100 - 10 + 1100 + 100,
        1100 - 10 + 1100 + 100,
        3299 * 10**6,
    )


def test_a_narrower_schema_and_sql(spark, path):
    narrow = spark.read.format("diskq").schema("offset long, partition int").load(str(path))
    assert narrow.groupBy("partition").agg({"offset": "max"}).orderBy("partition").collect()[0][1] == 1666
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW clicks USING diskq OPTIONS (path '{path}')")
    assert spark.sql("SELECT count(*) FROM clicks WHERE partition = 1 AND offset < 10").first()[0] == 10


@pytest.mark.exhaustive
def test_a_frame_reads_the_same_whenever_it_is_asked(spark, tmp_path):
    clicks = tmp_path / "clicks"
    write(clicks, 10)
    frame = load(spark, clicks)
    write(clicks, 10, start=10, partitions=2)
    assert frame.count() == frame.where("partition >= 0").count() == 10
    assert load(spark, clicks).count() == 20


def test_several_streams_are_read_as_one(spark, tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, 10)
    frame = spark.read.format("diskq").load([str(tmp_path / "a"), str(tmp_path / "b")])
    assert sorted(tuple(row) for row in frame.groupBy("topic").count().collect()) == [("a", 10), ("b", 10)]


def test_a_queue_is_read_and_stays(spark, tmp_path):
    with Queue(tmp_path, "orders") as queue:
        queue.put_many([VALUE % number for number in range(100)])
        for _ in range(2):
            assert numbers(load(spark, tmp_path).orderBy("offset").toArrow()) == list(range(100))


def test_filters_narrow_what_is_read(spark, path):
    session = spark.newSession()
    register(session)
    frame = load(session, path)
    assert frame.where("partition = 1").rdd.getNumPartitions() == 1
    for condition, count in {
        "partition in (0, 2) and offset >= 1600": 67 + 66,
        "timestamp >= timestamp'1970-01-01 00:00:04.9' and offset is not null": 100,
        "topic = 'taps' or partition = 5": 0,
        "topic = 'clicks' and timestamp < timestamp'1970-01-01 00:00:00.010'": 10,
        "offset between 3 and 5 and value like '%0000001%'": 8,
    }.items():
        assert frame.where(condition).count() == count, condition
        assert load(spark, path).where(condition).count() == count, condition


@pytest.mark.parametrize(
    "options",
    # Each option is tried without Spark, in test_options.py.
    first(
        1,
        [
            {"failOnDataLos": "false"},
            {"includeHeaders": "true"},
            {"startingOffsets": "latest"},
            {"startingOffsets": '{"0": 0}'},
            {"path": "/nowhere/at/all"},
        ],
    ),
)
def test_wrong_options_and_paths_are_errors_with_a_code(spark, path, options):
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("diskq").options(**{"path": str(path), **options}).load().count()
    found = classify(caught.value)
    assert found is not None
    assert found.code == ("DISKQ_NOT_FOUND" if "path" in options else "DISKQ_OPTION")


@pytest.mark.parametrize("columns", ["", "(value binary)"])
def test_create_table_is_an_error_that_says_what_to_use(spark, path, columns):
    def create_and_read() -> None:
        spark.sql(f"CREATE TABLE kept {columns} USING diskq OPTIONS (path '{path}')")
        spark.sql("SELECT * FROM kept").collect()

    with pytest.raises(AnalysisException, match=r"DISKQ_OPTION: .*CREATE TEMPORARY VIEW"):
        create_and_read()
    spark.sql("DROP TABLE IF EXISTS kept")


def test_a_missing_path_is_an_error_of_load(spark, tmp_path):
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match="DISKQ_NOT_FOUND"):
            reader.format("diskq").load(str(tmp_path / "nothing"))


@pytest.mark.exhaustive
def test_a_column_of_another_type_is_an_error_that_lists_the_columns(spark, path):
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("diskq").schema("key string").load(str(path)).count()
    assert classify(caught.value) == (
        "DISKQ_OPTION",
        ".schema(...): key is binary, not string; there are key binary, value binary, topic string, "
        "partition int, offset bigint, timestamp timestamp, timestampType int, type int, "
        "timestampNanos bigint",
    )
