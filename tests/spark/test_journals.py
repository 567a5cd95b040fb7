# Journals, as batches and as they come. Law: what a journal has, Spark has, by the same
# offsets, times and types; what is missing is told.

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

from diskq.engine.journal.journal import Item, Journal
from diskq.engine.journal.reader import JournalReader
from diskq.messages import NULL_TIMESTAMP
from diskq.options import JournalOptions
from diskq.spark import classify
from diskq.spark.batch import DiskqReader
from diskq.spark.errors import DiskqSparkError
from diskq.spark.schema import NANOS, SCHEMA, TYPE, schema_of
from diskq.spark.streaming import DiskqStreamReader
from tests.golden.journals import every_journal, golden_journal
from tests.spark.readers import numbers, options, ranges_in, read, tasks
from tests.spark.test_planning import moment

WITH_NANOS = schema_of({"sej"}, with_nanos=True)
VALUE = b"<value %08d>"
COUNT = 2000


def fails_with(code: str):
    return pytest.raises(DiskqSparkError, match=f"^{code}: ")


def messages(count: int = COUNT, start: int = 0) -> list[Item]:
    """Every seventh without a time, every eleventh before 1970, every fifth without a key."""
    return [
        (
            b"" if n % 5 == 0 else b"k" * (n % 128),
            VALUE % n + b"v" * (n % 300),
            NULL_TIMESTAMP if n % 7 == 0 else n * (-1_000_001 if n % 11 == 0 else 1_000_000),
            n % 256,
        )
        for n in range(start, start + count)
    ]


def write(path: Path, items: list[Item], segment_size: int = 64 * 1024) -> None:
    with Journal(path, options=JournalOptions(segment_size=segment_size)) as journal:
        journal.append_many(items)


def segments(path: Path) -> list[Path]:
    return sorted((path / "jnl").iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "web"


# --- batches --------------------------------------------------------------------------------------


def facts(path: Path) -> list[tuple[Any, ...]]:
    with JournalReader(path) as reader:
        reader.seek_oldest()
        return [(m.offset, m.timestamp_ns, m.type, m.key, m.value) for m in iter(reader.read, None)]


def rows(found: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.select(["offset", NANOS, TYPE, "key", "value"]).to_pylist()]


def test_a_journal_is_read_as_it_is(path):
    write(path, messages())
    assert len(segments(path)) > 3
    found = read(options(path), WITH_NANOS)
    assert rows(found) == facts(path)
    assert len(found) == COUNT
    timed = [(row["timestamp"] is None, row["timestampType"]) for row in found.to_pylist()]
    assert timed == [(n % 7 == 0, -1 if n % 7 == 0 else 0) for n in range(COUNT)]
    assert {(row["topic"], row["partition"]) for row in found.to_pylist()} == {("web", 0)}
    assert found.column("timestamp").to_pylist()[11] == moment(-11 * 1000 - 1)
    assert read(options(path, minPartitions=9, bytesPerArrowBatch=5000), WITH_NANOS).equals(found)


@every_journal
def test_what_sej_wrote_is_read(name, tmp_path):
    path = golden_journal(name, tmp_path)
    if name == "empty_middle_file":
        with fails_with("DISKQ_CORRUPT"):
            read(options(path))
    assert rows(read(options(path, failOnDataLoss=False), WITH_NANOS)) == facts(path)


@pytest.mark.parametrize(
    "chosen, filters, expected",
    [
        ({"startingOffsets": '{"0": 7}', "endingOffsets": '{"web": {"0": 19}}'}, [], range(7, 19)),
        ({"startingTimestamp": 1990}, [], range(1990, 2000)),
        ({"endingTimestamp": 3}, [], range(3)),
        ({}, [GreaterThanOrEqual(("offset",), 1990), EqualTo(("partition",), 0)], range(1990, 2000)),
        ({}, [GreaterThanOrEqual(("timestamp",), moment(1_992_000)), LessThan(("offset",), 1995)],
         range(1992, 1995)),
        ({}, [EqualTo(("topic",), "other")], []),
    ],
)  # fmt: skip
def test_between_bounds_and_by_filters(path, chosen, filters, expected):
    write(path, messages())
    assert numbers(read(options(path, **chosen), WITH_NANOS, filters)) == list(expected)


def test_shards_and_what_a_hub_keeps_are_topics(tmp_path):
    for number in range(4):
        write(tmp_path / f"web.2.{number:03x}", [(b"k", VALUE % number, number)])
    (tmp_path / "other").mkdir()
    for chosen in (
        {"subscribePattern": r"web\.2\..*"},
        {"subscribe": "web.2.000,web.2.001,web.2.002,web.2.003"},
        {"assign": '{"web.2.000": [0], "web.2.001": [0], "web.2.002": [0], "web.2.003": [0]}'},
    ):
        found = read(options(tmp_path, **chosen))
        assert numbers(found) == [0, 1, 2, 3]
        assert found.column("topic").to_pylist()[2] == "web.2.002"


def test_a_column_that_must_not_be_null_is_an_error_if_a_message_has_no_time(path):
    write(path, messages(6, start=1))
    strict = schema_of({"triplet"}, with_nanos=True)
    assert len(read(options(path), strict)) == 6
    write(path, messages(1))
    for name in ("timestamp", NANOS):
        with fails_with("DISKQ_OPTION"):
            read(options(path), type(strict)([strict[name]]))
    assert read(options(path), type(strict)([strict["timestampType"]]))["timestampType"].to_pylist()[-1] == -1


@pytest.mark.parametrize("place", ["journal-data", "jnl"])
def test_damaged_and_missing_messages_are_reported_and_the_rest_is_read(path, place):
    """Also where the checksums are in the place of older versions."""
    write(path, messages())
    (path / ".diskq" / "journal-data").rename(path / ".diskq" / place)
    rotten = segments(path)[1]
    content = bytearray(rotten.read_bytes())
    content[content.index(VALUE % (int(rotten.stem, 16) + 50))] ^= 1
    rotten.write_bytes(content)
    with fails_with("DISKQ_CORRUPT"):
        read(options(path))
    lenient = options(path, failOnDataLoss=False)
    lost = set(range(COUNT)).difference(numbers(read(lenient)))
    assert int(rotten.stem, 16) + 50 in lost
    assert len(lost) < 50
    planned = tasks(lenient)
    segments(path)[0].unlink()
    made = DiskqReader(options(path), WITH_NANOS, None)
    with fails_with("DISKQ_DATA_LOSS"):
        list(made.read(planned[0]))


def test_a_directory_without_a_journal_is_not_found(path):
    (path / "jnl").mkdir(parents=True)
    for layout in ({}, {"layout": "sej"}):
        with fails_with("DISKQ_NOT_FOUND"):
            DiskqReader(options(path, **layout), SCHEMA, None).partitions()


# --- as they come ---------------------------------------------------------------------------------


def test_a_checkpoint_beyond_the_end_of_a_journal_is_reported(path):
    write(path, messages(10))
    streaming = DiskqStreamReader(options(path, is_streaming=True), WITH_NANOS)
    start = streaming.initialOffset()
    assert start["streams"] == {"web": {"id": None, "partitions": {"0": 10}}}
    shutil.rmtree(path)
    write(path, messages(3))
    with fails_with("DISKQ_DATA_LOSS"):
        streaming.latestOffset(start, streaming.getDefaultReadLimit())


def test_a_journal_that_is_new_is_read_from_its_first_message(tmp_path):
    write(tmp_path / "web.1.000", messages(50))
    chosen = options(tmp_path, is_streaming=True, subscribePattern="web.*", maxOffsetsPerTrigger=15)
    streaming = DiskqStreamReader(chosen, WITH_NANOS)
    start = streaming.initialOffset()
    write(tmp_path / "web.1.000", messages(10, 50))
    write(tmp_path / "web.1.001", messages(20))
    end = streaming.latestOffset(start, streaming.getDefaultReadLimit())
    planned = ranges_in(streaming.partitions(start, end))
    assert [(task.topic, task.start, task.end) for task in planned] == [
        ("web.1.000", 50, 55),
        ("web.1.001", 0, 10),
    ]


@pytest.mark.exhaustive
@pytest.mark.spark
def test_spark_reads_journals_as_they_come(spark, tmp_path):
    write(tmp_path / "web.1.000", messages(50))
    write(tmp_path / "web.1.001", messages(20, 50))
    query = (
        spark.readStream.format("diskq")
        .options(subscribePattern="web.*", startingOffsets="earliest", maxOffsetsPerTrigger=35)
        .load(str(tmp_path))
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "copied"), format="parquet")
    )
    assert query.awaitTermination(240)
    progress = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert progress == [35, 35]
    assert sorted(numbers(spark.read.parquet(str(tmp_path / "copied")).toArrow())) == list(range(70))


@pytest.mark.spark
def test_spark_reads_a_journal(spark, tmp_path):
    write(tmp_path / "web.1.000", messages(50))
    frame = spark.read.format("diskq").option("layout", "sej").load(str(tmp_path / "web.1.000"))
    assert frame.schema == schema_of({"sej"})
    assert frame.where("timestamp IS NULL").count() == len(range(0, 50, 7))
    assert frame.where("type = 49").first().offset == 49
    strict = spark.read.format("diskq").schema(SCHEMA).load(str(tmp_path / "web.1.000"))
    with pytest.raises(PythonException) as caught:
        strict.collect()
    fault = classify(caught.value)
    assert fault is not None
    assert fault.code == "DISKQ_OPTION"
