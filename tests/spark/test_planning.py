# Which offsets are read, by how many tasks, and what filters leave of them.

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from diskq.engine.queue.fifo_queue import Queue
from diskq.options import QueueOptions
from diskq.spark.errors import DiskqSparkError
from diskq.spark.filters import Wanted
from diskq.spark.layouts.layout import OffsetRange
from diskq.spark.planning import Snapshot, plan, split, tasks_of
from diskq.spark.schema import SCHEMA
from diskq.spark.streaming import DiskqStreamReader
from tests.spark.readers import VALUE, numbers, options, ranges_in, read, reader, table, tasks, write

PARTITION, OFFSET, TOPIC, TIME = ("partition",), ("offset",), ("topic",), ("timestamp",)
MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path):
    return tmp_path / "clicks"


def ranges_of(chosen, filters=()) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in tasks(chosen, filters)]


def fails_with(code: str):
    return pytest.raises(DiskqSparkError, match=f"^{code}: ")


# --- dividing -------------------------------------------------------------------------------------


def spread(*records: int, size: int = 0) -> list[OffsetRange]:
    return [OffsetRange("t", "/t", "triplet", n, 100, 100 + count, size) for n, count in enumerate(records)]


@given(
    st.lists(st.integers(0, 10**6), max_size=20),
    st.integers(1, 100),
    st.one_of(st.none(), st.integers(1000, 10**6)),
    st.integers(0, 200 * MIB),
)
def test_every_offset_is_in_one_task_and_in_order(records, at_least, most, size):
    planned = split(spread(*records, size=size), at_least=at_least, most_records=most)
    for number, count in enumerate(records):
        its = [each for each in planned if each.partition == number]
        edges = [edge for each in its for edge in (each.start, each.end)]
        assert edges[1:-1:2] == edges[2::2]
        assert (edges[:1], edges[-1:]) == (([100], [100 + count]) if count else ([], []))
    assert planned == sorted(planned, key=lambda each: (each.partition, each.start))
    assert len(planned) >= min(at_least, sum(records))
    assert most is None or all(each.records <= most for each in planned)


def test_a_small_partition_is_one_task_and_a_large_one_about_one_for_two_segments():
    assert len(split(spread(1000, 10, 0))) == 2
    assert [each.records for each in split(spread(1000, size=256 * MIB))] == [250] * 4


def test_small_ranges_share_a_task_in_their_order():
    small = spread(*[20] * 1000, size=3000)
    planned = tasks_of(small, options("/t"))
    assert ranges_in(planned) == small
    assert len(planned) == 16
    sizes = spread(*[20] * 10, size=3 * MIB)
    assert len(tasks_of(sizes, options("/t"))) == 5
    assert len(tasks_of(spread(*[20] * 10, size=9 * MIB), options("/t"))) == 10


def test_ranges_share_a_task_up_to_the_share_of_a_core():
    uneven = [each for size in (32, 33, 31, 32) for each in spread(1000, size=size * MIB)]
    assert [len(ranges_in([each])) for each in tasks_of(uneven, options("/t"), 2)] == [2, 2]
    assert tasks_of(uneven, options("/t"), 4) == uneven
    assert tasks_of(uneven, options("/t", minPartitions=3), 2) == uneven
    planned = tasks_of(spread(1000, size=1024 * MIB), options("/t"), 2)
    assert [len(ranges_in([each])) for each in planned] == [2] * 8


def test_small_ranges_share_no_task_if_a_number_is_asked_for():
    small = spread(*[20] * 100)
    assert tasks_of(small, options("/t", minPartitions=2)) == small
    for most, count in ((20, 100), (40, 50), (59, 50)):
        planned = tasks_of(small, options("/t", maxRecordsPerPartition=most))
        assert (ranges_in(planned), len(planned)) == (small, count)


def test_stores_share_no_task():
    stores = [replace(each, layout="taskflux") for each in spread(1, 1, 1)]
    assert tasks_of(stores, options("/t")) == stores


def test_tasks_are_about_even():
    sizes = [each.records for each in split(spread(1000, 100, 900), at_least=8)]
    assert max(sizes) <= 250
    assert sum(sizes) == 2000


def test_a_petabyte_is_no_million_tasks():
    assert len(split(spread(10**9, size=10**15))) <= 1001


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen, expected",
    [
        ({}, [(0, 0, 50), (1, 0, 50)]),
        ({"startingOffsets": '{"0": 49, "1": -2}'}, [(0, 49, 50), (1, 0, 50)]),
        ({"endingOffsets": '{"clicks": {"0": 0, "1": 9}}'}, [(1, 0, 9)]),
        ({"startingTimestamp": "41", "endingTimestamp": "60"}, [(0, 21, 30), (1, 20, 30)]),
        ({"endingTimestamp": "1000"}, [(0, 0, 50), (1, 0, 50)]),
        ({"endingOffsetsByTimestamp": '{"0": 2, "1": -5}'}, [(0, 0, 1)]),
        ({"assign": '{"clicks": [1]}'}, [(1, 0, 50)]),
        ({"maxRecordsPerPartition": 25}, [(0, 0, 25), (0, 25, 50), (1, 0, 25), (1, 25, 50)]),
    ],
)
def test_a_batch_is_what_lies_between_its_bounds(path, chosen, expected):
    write(path, 100, partitions=2)
    root = path.parent if "assign" in chosen else path
    assert ranges_of(options(root, **chosen)) == expected


@pytest.mark.parametrize("ending", ['{"0": 101}', '{"0": 1000000}'])
def test_an_offset_beyond_the_end_is_data_loss(path, ending):
    write(path, 100)
    with fails_with("DISKQ_DATA_LOSS"):
        tasks(options(path, endingOffsets=ending))
    assert ranges_of(options(path, endingOffsets=ending, failOnDataLoss=False)) == [(0, 0, 100)]


@pytest.mark.parametrize("name", ["nothing", "file", "empty"])
def test_a_path_without_a_stream_is_not_found(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with fails_with("DISKQ_NOT_FOUND"):
        plan(options(tmp_path / name), None, Wanted())


def test_a_partition_that_is_assigned_must_be_there(path):
    write(path, 10)
    with fails_with("DISKQ_NOT_FOUND"):
        tasks(options(path.parent, assign='{"clicks": [0, 3]}'))


def test_what_comes_after_the_load_is_not_of_the_batch(path):
    write(path, 100)
    chosen = options(path)
    loaded = Snapshot.taken(chosen)
    write(path, 100, start=100, partitions=2)
    assert [(each.partition, each.start, each.end) for each in plan(chosen, loaded, Wanted())] == [
        (0, 0, 100)
    ]


def test_several_streams_are_several_topics(tmp_path):
    for name, count in (("a", 3), ("b", 4), ("other", 5)):
        write(tmp_path / name, count)
    (tmp_path / "no stream").mkdir()
    for chosen in ({"subscribe": "b,a"}, {"subscribePattern": "[ab]"}, {"assign": '{"a": [0], "b": [0]}'}):
        found = read(options(tmp_path, **chosen))
        assert found.column("topic").to_pylist() == ["a"] * 3 + ["b"] * 4
    with fails_with("DISKQ_OPTION"):
        tasks(options(tmp_path, subscribe="a,b", startingOffsets='{"0": 1}'))
    each = '{"a": {"0": 1}, "b": {"0": 3}}'
    assert read(options(tmp_path, subscribe="a,b", startingOffsets=each)).num_rows == 3


# --- filters --------------------------------------------------------------------------------------


def moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 10**6, UTC).replace(microsecond=microseconds % 10**6)


@pytest.mark.parametrize(
    "filters, left, expected",
    [
        ([EqualTo(PARTITION, 1)], 0, [(1, 0, 50)]),
        ([EqualNullSafe(PARTITION, 1), IsNotNull(PARTITION)], 0, [(1, 0, 50)]),
        ([In(PARTITION, (1, 7))], 0, [(1, 0, 50)]),
        ([GreaterThan(PARTITION, 0), LessThanOrEqual(PARTITION, 1)], 0, [(1, 0, 50)]),
        ([EqualTo(PARTITION, 9)], 0, []),
        ([GreaterThanOrEqual(OFFSET, 40), LessThan(OFFSET, 45)], 0, [(0, 40, 45), (1, 40, 45)]),
        ([GreaterThan(OFFSET, 48)], 0, [(0, 49, 50), (1, 49, 50)]),
        ([LessThanOrEqual(OFFSET, 0), IsNotNull(OFFSET)], 0, [(0, 0, 1), (1, 0, 1)]),
        ([EqualTo(OFFSET, 7), EqualTo(PARTITION, 0)], 0, [(0, 7, 8)]),
        ([In(OFFSET, (3, 9))], 1, [(0, 3, 10), (1, 3, 10)]),
        ([EqualTo(TOPIC, "clicks")], 0, [(0, 0, 50), (1, 0, 50)]),
        ([EqualTo(TOPIC, "taps")], 0, []),
        ([In(TOPIC, ("taps", "clicks")), EqualTo(PARTITION, 0)], 0, [(0, 0, 50)]),
        ([GreaterThanOrEqual(TIME, moment(97000))], 1, [(0, 49, 50), (1, 48, 50)]),
        ([GreaterThan(TIME, moment(97000))], 1, [(0, 49, 50), (1, 49, 50)]),
        ([GreaterThan(TIME, moment(10**9))], 1, []),
        ([LessThan(TIME, moment(0))], 1, [(0, 0, 50), (1, 0, 50)]),
        ([IsNotNull(TIME), IsNotNull(("key",)), StringContains(TOPIC, "x")], 3, [(0, 0, 50), (1, 0, 50)]),
        ([Not(EqualTo(PARTITION, 1)), EqualTo(PARTITION, None)], 2, [(0, 0, 50), (1, 0, 50)]),
    ],
)
def test_filters_leave_what_they_ask_for(path, filters, left, expected):
    write(path, 100, partitions=2)
    assert ranges_of(options(path), filters) == expected
    assert len(list(Wanted().narrow(filters))) == left


def test_a_reader_travels_with_its_filters(path):
    write(path, 100)
    made = pickle.loads(pickle.dumps(reader(options(path), filters=[LessThan(OFFSET, 5)])))
    assert numbers(table(made)) == [0, 1, 2, 3, 4]


# --- queues ---------------------------------------------------------------------------------------


def put(directory, name, *, start: int = 0, count: int = 100) -> None:
    with Queue(directory, name, options=QueueOptions(segment_size=1000)) as queue:
        queue.put_many([VALUE % number for number in range(start, start + count)])


def took(directory, name, count: int) -> None:
    with Queue(directory, name) as queue:
        queue.get_many(count)


@pytest.mark.parametrize("which", [".", "orders"])
def test_a_queue_is_read_as_it_is_and_nothing_is_consumed(tmp_path, which):
    put(tmp_path, "orders")
    took(tmp_path, "orders", 10)
    for _ in range(2):
        found = read(options(tmp_path / which))
        assert numbers(found) == list(range(10, 100))
        assert found.column("offset").to_pylist() == list(range(90))
        assert found.column("key").null_count == found.column("timestamp").null_count == 90
        assert found.column("timestampType").unique().to_pylist() == [-1]


def test_a_queue_is_read_by_several_tasks_between_offsets(tmp_path):
    put(tmp_path, "orders", count=200)
    assert len(tasks(options(tmp_path, minPartitions=4))) == 4
    chosen = options(tmp_path, minPartitions=4, startingOffsets='{"0": 7}', endingOffsets='{"0": 61}')
    assert numbers(read(chosen)) == list(range(7, 61))
    assert numbers(read(options(tmp_path, maxRecordsPerPartition=9))) == list(range(200))
    assert numbers(read(chosen, filters=[GreaterThan(OFFSET, 50)])) == list(range(51, 61))


def test_a_queues_batch_excludes_later_messages_and_reports_those_that_were_consumed(tmp_path):
    put(tmp_path, "orders")
    chosen = options(tmp_path, minPartitions=3)
    made = reader(chosen)
    put(tmp_path, "orders", start=100)
    assert numbers(table(made)) == list(range(100))
    took(tmp_path, "orders", 150)
    with fails_with("DISKQ_DATA_LOSS"):
        table(made)
    lenient = reader(options(tmp_path, failOnDataLoss=False))
    took(tmp_path, "orders", 49)
    assert numbers(table(lenient))[-1] == 199


def test_of_several_queues_one_is_to_be_named(tmp_path):
    put(tmp_path, "orders", count=3)
    put(tmp_path, "returns", start=3, count=3)
    with fails_with("DISKQ_OPTION"):
        tasks(options(tmp_path))
    assert numbers(read(options(tmp_path / "returns"))) == [3, 4, 5]
    assert numbers(read(options(tmp_path, subscribe="orders,returns"))) == [0, 1, 2, 3, 4, 5]
    assert numbers(read(options(tmp_path, subscribePattern="ret.*"))) == [3, 4, 5]


def test_a_queue_keeps_no_times_and_is_no_stream(tmp_path):
    put(tmp_path, "orders", count=3)
    with fails_with("DISKQ_OPTION"):
        tasks(options(tmp_path, startingTimestamp=0))
    streaming = DiskqStreamReader(options(tmp_path, is_streaming=True), SCHEMA)
    with fails_with("DISKQ_OPTION"):
        streaming.initialOffset()
