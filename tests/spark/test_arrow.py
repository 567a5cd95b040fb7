# Columns into batches, and what damage costs.

from __future__ import annotations

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from diskq._native.stream.codec import columns, encode
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from diskq.spark.arrow import Batches
from diskq.spark.errors import DiskqSparkError
from diskq.spark.schema import NANOS, SCHEMA, arrow_schema, check_projection, schema_of
from diskq.tables.arrow import floor_to_micros
from tests.spark.readers import VALUE, data_files, numbers, options, read, reader, rot, table, write

WITH_NANOS = schema_of(with_nanos=True)
I64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clicks"


def fails_with(code: str):
    return pytest.raises(DiskqSparkError, match=f"^{code}: ")


# --- columns --------------------------------------------------------------------------------------


@given(st.lists(I64))
def test_times_are_rounded_down_whatever_they_are(nanos):
    assert floor_to_micros(pa.array(nanos, pa.int64())).to_pylist() == [nano // 1000 for nano in nanos]


# But what is zeros in the files, which is no message.
Messages = st.lists(st.tuples(st.binary(max_size=5), I64, st.binary(max_size=20)).filter(any), max_size=60)


Few = st.integers(0, 9)


@given(Messages, st.integers(1, 20), st.integers(1, 200), st.integers(1, 9), Few, Few)
def test_batches_hold_what_the_pieces_hold(messages, rows, size, step, before, behind):
    pieces = [
        (100 + at, columns(encode(messages[at : at + step]).data)) for at in range(0, len(messages), step)
    ]
    start, end = 100 + before, 100 + len(messages) - behind
    made = Batches(WITH_NANOS, topic="t", partition=3, rows=rows, size=size)
    batches = list(made.of(pieces, start, end))
    assert all(batch.schema.equals(arrow_schema(WITH_NANOS)) for batch in batches)
    assert all(0 < batch.num_rows <= rows for batch in batches)
    found = pa.Table.from_batches(batches, arrow_schema(WITH_NANOS))
    found.validate(full=True)
    expected = list(enumerate(messages, 100))[before : max(before, len(messages) - behind)]
    assert found.column("key").to_pylist() == [key for _, (key, _, _) in expected]
    assert found.column("value").to_pylist() == [value for _, (_, _, value) in expected]
    assert found.column("offset").to_pylist() == [offset for offset, _ in expected]
    assert found.column(NANOS).to_pylist() == [nano for _, (_, nano, _) in expected]
    micros = found.column("timestamp").cast(pa.int64()).to_pylist()
    assert micros == [nano // 1000 for _, (_, nano, _) in expected]
    assert found.column("topic").to_pylist() == ["t"] * len(expected)
    assert found.column("partition").to_pylist() == [3] * len(expected)
    assert found.column("timestampType").to_pylist() == [0] * len(expected)


def test_offsets_behind_a_gap_are_right():
    piece = columns(encode([(b"", 0, b"x")] * 2).data)
    made = Batches(SCHEMA, topic="t", partition=0, rows=10, size=99).of([(5, piece), (9, piece)], 0, 99)
    assert [batch.column("offset").to_pylist() for batch in made] == [[5, 6], [9, 10]]


def test_an_array_is_the_codecs_buffer():
    piece = columns(encode([(b"key", 7, b"value" * 100)]).data)
    (batch,) = Batches(SCHEMA, topic="t", partition=0, rows=10, size=9999).of([(0, piece)], 0, 1)
    assert batch.column("value").buffers()[2].address == pa.py_buffer(piece.values).address


def test_a_message_that_no_row_can_hold_is_an_error():
    piece = columns(encode([(b"k", 0, b"v")]).data, wide=True)  # as of one over 2 GiB
    with fails_with("DISKQ_MESSAGE_SIZE"):
        list(Batches(SCHEMA, topic="t", partition=0, rows=10, size=9).of([(0, piece)], 0, 1))
    narrow = StructType([StructField("offset", LongType())])
    assert [
        b.num_rows for b in Batches(narrow, topic="t", partition=0, rows=10, size=9).of([(0, piece)], 0, 1)
    ] == [1]


# --- which columns --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        StructField("keys", BinaryType()),
        StructField("key", StringType()),
        StructField("partition", LongType()),
        StructField("timestamp", TimestampNTZType()),
    ],
)
def test_a_column_that_there_is_not_is_refused_with_those_there_are(field):
    with pytest.raises(DiskqSparkError, match=r"DISKQ_OPTION.*there are key binary, value"):
        check_projection(StructType([field]))


def test_no_column_and_one_twice_are_refused():
    for fields in ([], [StructField("key", BinaryType())] * 2):
        with fails_with("DISKQ_OPTION"):
            check_projection(StructType(fields))


def test_a_narrower_schema_gives_these_columns_in_this_order(path):
    write(path, 3)
    narrow = StructType(
        [
            StructField(NANOS, LongType(), False),
            StructField("timestamp", TimestampType()),
            StructField("partition", IntegerType(), False),
        ]
    )
    check_projection(narrow)
    found = read(options(path), narrow)
    assert found.schema.names == [NANOS, "timestamp", "partition"]
    assert found.column(NANOS).to_pylist() == [0, 1_000_000, 2_000_000]
    assert found.column("timestamp").to_pylist()[1] == datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["fixed", "varuint"])
def test_what_is_read_is_what_a_consumer_gets(path, encoding):
    times = [-1, -1000, -1001, 0, 999, 10**18, -(2**63), 2**63 - 1]
    with Stream(
        path, options=StreamOptions(partition_count=3, segment_size=4096, encoding=encoding)
    ) as stream:
        stream.append_many([(b"%d" % (i % 50), b"x" * (i % 97), times[i % 8]) for i in range(2000)])
    found = read(options(path, recordsPerArrowBatch=77, minPartitions=7), WITH_NANOS)
    names = ("partition", "offset", NANOS, "key", "value")
    got = zip(*(found.column(name).to_pylist() for name in names), strict=True)
    whole = ReadableStream(path)
    expected = []
    for partition in whole.partitions():
        with whole.open(partition) as its:
            while (message := its.read()) is not None:
                expected.append((partition, message.offset, message.timestamp_ns, message.key, message.value))
    assert list(got) == expected
    assert len(expected) == 2000


def test_a_message_larger_than_a_batch_comes_alone(path):
    with Stream(path, options=StreamOptions(partition_count=1)) as stream:
        stream.append_many([b"a", b"b" * 10**6, b"c"])
    batches = [
        batch
        for task in reader(options(path, bytesPerArrowBatch=1000)).partitions()
        for batch in reader(options(path, bytesPerArrowBatch=1000)).read(task)
    ]
    assert [len(value) for batch in batches for value in batch.column("value").to_pylist()] == [1, 10**6, 1]


def test_an_empty_stream_has_no_task_and_spark_reads_none(path):
    write(path, 0)
    made = reader(options(path))
    assert made.partitions() == []
    assert list(made.read(InputPartition(None))) == []


# --- damage ---------------------------------------------------------------------------------------


def lenient(path: Path, **given: Any) -> list[int]:
    return numbers(read(options(path, failOnDataLoss=False, **given)))


def without_checksums(path: Path) -> None:
    for file in path.glob(".diskq/parts/*/*.sums"):
        file.unlink()


def test_the_error_of_a_rotten_byte_names_its_place(path):
    write(path, 1000)
    rot(path, 500)
    with pytest.raises(
        DiskqSparkError, match=r"DISKQ_CORRUPT: .*s\[0\]: offsets \d+ to \d+ cannot be read: ch"
    ):
        read(options(path))


def test_a_rotten_byte_costs_its_block(path, caplog):
    write(path, 1000)
    rot(path, 500)
    left = lenient(path)
    lost = sorted(set(range(1000)).difference(left))
    assert 500 in lost
    assert len(lost) <= 4096 // 30
    assert left == sorted(left)
    assert f"offsets {lost[0]} to {lost[-1]} cannot be read" in caplog.text
    assert len(caplog.records) == 1


def test_tasks_that_share_a_rotten_block_lose_the_same_messages_as_one_task(path):
    write(path, 1000)
    rot(path, 500)
    whole = lenient(path)
    assert lenient(path, maxRecordsPerPartition=7) == whole


def test_where_a_peer_wrote_one_rotten_length_costs_one_message(path):
    write(path, 300, segment_size=10**6)
    without_checksums(path)
    (file,) = data_files(path)
    content = bytearray(file.read_bytes())
    at = content.find(VALUE % 100) - 8
    assert struct.unpack_from("<Q", content, at)[0] == len(VALUE % 100)
    struct.pack_into("<Q", content, at, 2**61)
    file.write_bytes(content)
    assert set(range(300)).difference(lenient(path)) <= {99, 100}
    with fails_with("DISKQ_CORRUPT"):
        read(options(path))


@pytest.mark.parametrize("when", ["before planning", "after planning"])
def test_a_truncated_file_is_an_error_or_its_messages_are_left_out(path, when):
    write(path, 3000)
    made, spared = (reader(options(path, failOnDataLoss=fatal)) for fatal in (True, False))
    planned = [each.partitions() for each in (made, spared)] if when == "after planning" else None
    file = data_files(path)[1]
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size // 2)
    if planned is None:
        planned = [each.partitions() for each in (made, spared)]
    with pytest.raises(DiskqSparkError, match=r"DISKQ_(CORRUPT|DATA_LOSS): "):
        [batch for task in planned[0] for batch in made.read(task)]
    left = numbers(pa.Table.from_batches([batch for task in planned[1] for batch in spared.read(task)]))
    first, behind = int(file.stem), int(data_files(path)[2].stem)
    assert [number for number in left if not first <= number < behind] == [
        *range(first),
        *range(behind, 3000),
    ]
    assert first < len([number for number in left if number < behind]) < behind


@pytest.mark.parametrize("which", ["first", "last", "partition"])
def test_files_removed_while_they_are_read_are_reported(path, which):
    write(path, 20_000)

    def begun(fatal: bool):
        made = reader(options(path, failOnDataLoss=fatal, recordsPerArrowBatch=100))
        (task,) = made.partitions()
        batches = made.read(task)
        return batches, [next(batches)]

    (one, _), (other, kept) = begun(True), begun(False)
    there = data_files(path)
    gone = {"first": there[:-5], "last": there[-5:], "partition": there}[which]
    for file in gone:
        file.unlink()
    with pytest.raises(DiskqSparkError, match=r"DISKQ_(CORRUPT|DATA_LOSS): "):
        list(one)
    left = numbers(pa.Table.from_batches([*kept, *other]))
    assert left == sorted(set(left))
    if which == "first":
        assert left[-1] == 19_999
    assert len(left) < 20_000


def test_a_file_truncated_while_it_is_read_is_reported_and_ends_no_process(path):
    write(path, 20_000, segment_size=10**7)
    made = reader(options(path, recordsPerArrowBatch=100))
    (task,) = made.partitions()
    batches = made.read(task)
    next(batches)
    (file,) = data_files(path)
    with file.open("r+b") as handle:
        handle.truncate(1000)
    with pytest.raises(DiskqSparkError, match=r"DISKQ_(CORRUPT|DATA_LOSS): "):
        list(batches)


def test_messages_that_retention_removed_are_reported(path):
    write(path, 3000)
    for file in data_files(path)[:3]:
        file.unlink()
    first = int(data_files(path)[0].stem)
    assert lenient(path) == list(range(first, 3000))
    assert numbers(table(reader(options(path)))) == list(range(first, 3000))  # the earliest there is
    with fails_with("DISKQ_DATA_LOSS"):
        read(options(path, startingOffsets='{"0": 5}'))
    assert lenient(path, startingOffsets='{"0": 5}') == list(range(first, 3000))


def test_a_half_written_row_and_record_are_not_read_and_not_reported(path):
    write(path, 100, segment_size=10**6)
    (file,) = data_files(path)
    with file.open("ab") as data, file.with_suffix(".index").open("ab") as index:
        data.write(encode([(b"k", 0, b"v" * 50)]).data[:30])
        index.write(struct.pack("<Q", 100))
    assert numbers(read(options(path))) == list(range(100))
