# `diskq.spark.read`: table and log as one DataFrame. Law: `format("diskq")` is the judge, row by row.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.retention import retain
from diskq.spark.errors import DiskqSparkError, classify
from diskq.spark.reading import read
from diskq.storage.fs import OsFileSystem
from tests.sampling import first
from tests.spark.readers import rot

pytestmark = pytest.mark.spark

ORDER = ["topic", "partition", "offset"]


def fill(path: Path, numbers: range = range(300)) -> None:
    with diskq.Stream(path, partition_count=3, segment_size=3000) as stream:
        for n in numbers:
            stream.append(b"<value %08d>" % n * 2, b"key %d" % (n % 7), n * 1001 - 10**5)


def fill_journal(path: Path, numbers: range = range(100)) -> None:
    with diskq.Journal(path, segment_size=2000) as journal:
        for n in numbers:
            when = diskq.NULL_TIMESTAMP if n % 3 == 0 else n * 1001
            journal.append(b"value %d" % n * 3, key=b"key %d" % n, timestamp=when, type=n % 256)


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.orderBy(*ORDER).collect()), key=repr)


def by_format(spark: Any, path: Path, **options: Any) -> Any:
    return spark.read.format("diskq").options(**options).load(str(path))


@pytest.fixture
def clicks(tmp_path):
    fill(tmp_path / "clicks")
    return tmp_path / "clicks"


def fails_with(code: str) -> Any:
    return pytest.raises(DiskqSparkError, match=f"^{code}: ")


# --- without a table ------------------------------------------------------------------------------


def test_a_stream_is_read_as_the_format_reads_it(spark, clicks):
    frame, other = read(spark, clicks), by_format(spark, clicks)
    assert frame.schema == other.schema
    assert rows(frame) == rows(other)
    assert frame.count() == frame.where("offset >= 0").count() == 300


def test_the_options_are_those_of_the_format(spark, clicks):
    starting = {"clicks": {"0": 10, "1": -2, "2": 20}}
    frame = read(spark, clicks, startingOffsets=starting, includeTimestampNanos=True, minPartitions=5)
    given = {"startingOffsets": '{"0": 10, "1": -2, "2": 20}', "includeTimestampNanos": True}
    assert rows(frame) == rows(by_format(spark, clicks, **given))
    assert frame.rdd.getNumPartitions() >= 5
    assert frame.count() == 270
    several = read(spark, clicks.parent, subscribe="clicks")
    assert several.count() == 300


def test_other_kinds_are_read_as_the_format_reads_them(spark, tmp_path):
    fill_journal(tmp_path / "events")
    (tmp_path / "queues").mkdir()
    with Queue(tmp_path / "queues", "orders") as queue:
        queue.put_many([b"one", b"two", b"three"])
    with PriorityStore(tmp_path / "jobs") as store:
        store.put_many(store.queue(), [b"a", b"b"], [5, 9])
    for path, count, order in (("events", 100, ORDER), ("queues", 3, ORDER), ("jobs", 2, ["topic", "id"])):
        frame, other = read(spark, tmp_path / path), by_format(spark, tmp_path / path)
        assert frame.schema == other.schema
        found = [[tuple(row) for row in each.orderBy(*order).collect()] for each in (frame, other)]
        assert found[0] == found[1]
        assert frame.count() == len(found[0]) == count


def test_only_the_columns_that_are_named_are_made(spark, clicks):
    frame = read(spark, clicks, columns=["timestampNanos", "partition"])
    assert frame.columns == ["timestampNanos", "partition"]
    wanted = by_format(spark, clicks, includeTimestampNanos=True).select("timestampNanos", "partition")
    assert sorted(map(tuple, frame.collect())) == sorted(map(tuple, wanted.collect()))


def test_numbers_alone_are_exact_over_several_batches(spark, tmp_path):
    with diskq.Stream(tmp_path / "clicks", partition_count=1) as stream:
        stream.append_many([b"%d" % number for number in range(80_000)])
    found = read(spark, tmp_path / "clicks", columns=["offset", "partition"]).collect()
    assert [tuple(row) for row in found] == [(number, 0) for number in range(80_000)]


def test_what_is_appended_after_the_call_is_not_in_the_frame(spark, clicks):
    frame = read(spark, clicks)
    fill(clicks, range(300, 400))
    assert frame.count() == len(frame.collect()) == 300


def test_count_is_from_the_plan_and_damage_is_an_error_of_reading(spark, clicks):
    rot(clicks, 7)
    frame = read(spark, clicks, columns=["offset"])
    assert frame.count() == 300
    with pytest.raises(Exception, match="DISKQ_CORRUPT") as failed:
        frame.collect()
    assert getattr(classify(failed.value), "code", None) == "DISKQ_CORRUPT"
    rest = read(spark, clicks, columns=["offset"], failOnDataLoss=False)
    assert 0 < rest.count() == len(rest.collect()) < 300


def test_count_with_a_table_starts_no_job(spark, clicks):
    table = diskq.open_table(clicks, clicks.parent / "lake")
    table.update()
    context = spark.sparkContext
    context.setJobGroup("counted", "")
    try:
        assert read(spark, clicks, table=table).count() == 300
        assert not context.statusTracker().getJobIdsForGroup("counted")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


def test_count_with_a_table_lacks_what_an_update_left_out(spark, clicks):
    fill(clicks, range(300, 1000))  # so that the segment with message 7 is complete
    rot(clicks, 7)
    table = diskq.open_table(clicks, clicks.parent / "lake", allow_gaps=True)
    assert table.update().missing > 0
    frame = read(spark, clicks, table=table)
    assert 0 < frame.count() == len(frame.collect()) < 1000


def test_count_with_a_table_of_which_a_file_is_gone_is_the_error_of_reading_it(spark, clicks):
    table = diskq.open_table(clicks, clicks.parent / "lake")
    table.update()
    frame = read(spark, clicks, table=table)
    Path(table.files()[0].path).unlink()
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
        frame.count()


def test_an_empty_stream_is_an_empty_frame(spark, tmp_path):
    diskq.Stream(tmp_path / "clicks").close()
    diskq.open_table(tmp_path / "clicks", tmp_path / "lake").update()
    for frame in (
        read(spark, tmp_path / "clicks"),
        read(spark, tmp_path / "clicks", table=tmp_path / "lake"),
    ):
        assert frame.count() == len(frame.collect()) == 0


def test_wrong_arguments_are_errors_with_a_code(spark, clicks):
    with fails_with("DISKQ_NOT_FOUND"):
        read(spark, clicks.parent / "nothing")
    with fails_with("DISKQ_OPTION"):
        read(spark, clicks, columns=["body"])
    with fails_with("DISKQ_OPTION"):
        read(spark, clicks, columns=["type"])
    with fails_with("DISKQ_OPTION"):
        read(spark, clicks, columns="value")
    with fails_with("DISKQ_OPTION"):
        read(spark, clicks, failOnDataLos=True)
    with fails_with("DISKQ_OPTION"):
        read(spark, clicks, table=clicks.parent / "lake", startingOffsets="earliest")
    with fails_with("DISKQ_OPTION"):
        read(spark, clicks, host="web1")
    with fails_with("DISKQ_OPTION"):
        read(spark, clicks, table=diskq.open_table(clicks, clicks.parent / "lake"), host="web1")


# --- with a table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", first(1, [True, False]))
def test_table_and_log_are_each_message_once(spark, clicks, compacted):
    table = diskq.open_table(clicks, clicks.parent / "lake")
    table.update()
    fill(clicks, range(300, 350))
    if compacted:
        table.compact()
    for its in (table, clicks.parent / "lake", f"file://{clicks.parent}/lake"):
        frame = read(spark, clicks, table=its, includeTimestampNanos=True)
        other = by_format(spark, clicks, includeTimestampNanos=True)
        assert frame.columns == other.columns
        assert rows(frame) == rows(other)
        assert frame.count() == frame.where("offset >= 0").count() == 350


def test_a_frame_reads_files_that_a_compaction_has_replaced_since(spark, clicks):
    table = diskq.open_table(clicks, clicks.parent / "lake", keep_replaced=3600)
    table.update()
    frame, planned = read(spark, clicks, table=table), table.files()
    its = rows(by_format(spark, clicks))
    assert table.compact().made
    assert table.files() != planned
    table.update()
    assert rows(frame) == its


def test_a_host_chooses_its_table_below_one_directory(spark, clicks):
    lake = clicks.parent / "lake"
    fill(clicks.parent / "other" / "clicks", range(1000, 1200))
    diskq.open_table(clicks, lake, host="web1").update()
    diskq.open_table(clicks.parent / "other" / "clicks", lake, host="web2").update()
    frame = read(spark, clicks, table=lake, host="web1")
    assert rows(frame) == rows(by_format(spark, clicks))
    assert "parquet" in plan_of(frame)
    with fails_with("DISKQ_STREAM_CHANGED"):
        read(spark, clicks, table=lake, host="web2")


def test_a_journal_and_its_table(spark, tmp_path):
    fill_journal(tmp_path / "events")
    table = diskq.open_table(tmp_path / "events", tmp_path / "lake")
    table.update()
    assert table.ends()[0] < 100
    frame, other = read(spark, tmp_path / "events", table=table), by_format(spark, tmp_path / "events")
    assert frame.columns == other.columns
    assert rows(frame) == rows(other)


def test_tasks_of_python_are_there_for_the_rest_alone(spark, tmp_path):
    path = tmp_path / "clicks"
    with diskq.Stream(path, partition_count=3, segment_size=3000) as stream:
        stream.append_many([(b"one key", b"value %d" % number) for number in range(300)])
    table = diskq.open_table(path, tmp_path / "lake")
    table.update()
    frame = read(spark, path, table=table)
    assert "Range (0, 1, step=1, splits=1)" in plan_of(frame)
    assert frame.rdd.getNumPartitions() <= 1 + len(table.files())


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_messages_that_retention_has_removed_are_still_in_the_table(spark, clicks):
    table = diskq.open_table(clicks, clicks.parent / "lake")
    before = rows(by_format(spark, clicks))
    table.update()
    retain(OsFileSystem(), StreamFiles(OsFileSystem(), str(clicks)), now_ns=0, max_bytes=1)
    assert len(rows(by_format(spark, clicks))) < 300
    assert rows(read(spark, clicks, table=table)) == before


def test_a_gap_between_table_and_log_is_an_error_or_is_passed_over(spark, clicks):
    table = diskq.open_table(clicks, clicks.parent / "lake")
    table.update()
    fill(clicks, range(300, 900))
    retain(OsFileSystem(), StreamFiles(OsFileSystem(), str(clicks)), now_ns=0, max_bytes=1)
    with fails_with("DISKQ_DATA_LOSS"):
        read(spark, clicks, table=table)
    left = sum(table.ends().values()) + by_format(spark, clicks).count()
    assert read(spark, clicks, table=table, failOnDataLoss=False).count() == left


def test_the_table_of_another_stream_is_refused(spark, clicks):
    diskq.open_table(clicks, clicks.parent / "lake").update()
    fill(clicks.parent / "other" / "clicks")
    with fails_with("DISKQ_STREAM_CHANGED"):
        read(spark, clicks.parent / "other" / "clicks", table=clicks.parent / "lake")


def test_names_are_names_whatever_characters_they_have(spark, tmp_path):
    path = tmp_path / "a {b} [c]*=%20" / "x y=1"
    fill(path)
    into = tmp_path / "lake {d,e}"
    diskq.open_table(path, into).update()
    frame = read(spark, path, table=into)
    assert frame.where("offset >= 0").count() == 300
    assert {row.topic for row in frame.select("topic").distinct().collect()} == {"x y=1"}
