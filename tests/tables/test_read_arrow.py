# Reading by column: a stream, a journal, with a table and without. Law: the engine's own reader, message by
# message, is the judge, whatever happens to files and segments while it is read.

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import diskq
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.retention import retain
from diskq.errors import CorruptionError, NotFoundError, OffsetOutOfRangeError, TableGapError
from diskq.tables.reading import read_arrow
from diskq.tables.sources import open_source
from diskq.tables.table import open_table
from diskq.testing import CrashFS
from tests.tables.logs import (
    INTO,
    JOURNAL,
    STREAM,
    Row,
    content,
    fill_journal,
    fill_stream,
    flip,
    in_log,
    in_table,
    read,
    rows,
    stream,
    table,
)

FILLED = {STREAM: fill_stream, JOURNAL: fill_journal}


@pytest.fixture(params=FILLED)
def path(request):
    return request.param


@pytest.fixture
def fs(path):
    """A disk with a stream or a journal, and its table, which is behind by some segments and the last."""
    fs = CrashFS()
    FILLED[path](fs)
    table(fs, path).update()
    FILLED[path](fs, range(40, 60))
    return fs


def remove_oldest(fs, max_bytes):
    retain(fs, StreamFiles(fs, STREAM), now_ns=0, max_bytes=max_bytes)


def test_a_log_without_a_table_is_read_as_it_is(fs, path):
    assert read(fs, path) == in_log(fs, path)


def test_the_table_and_the_tail_are_the_log(fs, path):
    assert read(fs, path, table=table(fs, path)) == in_log(fs, path)
    assert read(fs, path, table="/lake") == in_log(fs, path)


def test_the_schema_is_that_of_the_table(fs, path):
    assert read_arrow(path, fs=fs).schema == table(fs, path).schema


@pytest.mark.parametrize("with_table", [False, True])
def test_columns_are_those_that_are_wanted_in_their_order(fs, path, with_table):
    its = table(fs, path) if with_table else None
    found = read_arrow(path, columns=["offset", "topic", "value"], fs=fs, table=its).read_all()
    assert found.schema.names == ["offset", "topic", "value"]
    log = in_log(fs, path)
    assert found.column("offset").to_pylist() == [row[1] for row in log]
    assert found.column("value").to_pylist() == [row[4] for row in log]
    assert set(found.column("topic").to_pylist()) == {path[1:]}
    places = read_arrow(path, columns=["partition"], fs=fs, table=its).read_all()
    assert places.column("partition").to_pylist() == [row[0] for row in log]


def test_moments_choose_rows_exactly(fs, path):
    log = in_log(fs, path)
    since, until = -(10**9), 4 * 10**9
    wanted = [row for row in log if row[2] is not None and since <= row[2] < until]
    assert 0 < len(wanted) < len(log)
    assert read(fs, path, table=table(fs, path), since=since, until=until) == wanted
    assert read(fs, path, since=since, until=until) == wanted
    exact = wanted[3][2]
    assert exact is not None
    assert wanted[3] in read(fs, path, since=exact, until=exact + 1)
    assert read(fs, path, since=datetime(2100, 1, 1, tzinfo=UTC)) == []


OFFSET, NANOS, KEY = pc.field("offset"), pc.field("timestampNanos"), pc.field("key")
CHOICES: dict[str, tuple[pc.Expression, Callable[[Row], bool]]] = {
    "one key": (KEY == b"key 3", lambda row: row[3] == b"key 3"),
    "offsets": ((OFFSET >= 9) & (OFFSET < 17), lambda row: 9 <= row[1] < 17),
    "times": (NANOS < 0, lambda row: row[2] is not None and row[2] < 0),
    "no time": (NANOS.is_null(), lambda row: row[2] is None),
    "a place": (pc.field("partition") == 0, lambda row: row[0] == 0),
    "either": ((OFFSET == 3) | (KEY == b"key 5"), lambda row: row[1] == 3 or row[3] == b"key 5"),
    "none": (pc.field("topic") == "others", lambda row: False),
}


@pytest.mark.parametrize("with_table", [False, True])
@pytest.mark.parametrize("which", CHOICES)
def test_an_expression_chooses_rows_exactly(fs, path, with_table, which):
    expression, is_wanted = CHOICES[which]
    its = table(fs, path) if with_table else None
    wanted = [row for row in in_log(fs, path) if is_wanted(row)]
    assert read(fs, path, table=its, where=expression) == wanted
    values = read_arrow(path, columns=["value"], fs=fs, table=its, where=expression).read_all()
    assert values.schema.names == ["value"]
    assert values.column("value").to_pylist() == [row[4] for row in wanted]


def test_what_cannot_have_wanted_rows_is_not_read(fs, path):
    its = table(fs, path)
    ends = its.ends()
    damaged = [file for file in its.files() if file.next_offset < ends[file.partition] - 3]
    for file in damaged:
        flip(fs, file.path, len(content(fs, file.path)) - 1)
    assert damaged
    recent = max(file.next_offset for file in damaged) <= OFFSET
    found = read(fs, path, table=its, where=recent)
    assert found == [row for row in in_log(fs, path) if row[1] >= max(file.next_offset for file in damaged)]
    with pytest.raises(CorruptionError):
        read(fs, path, table=its)


def test_segments_that_cannot_have_wanted_rows_are_not_read(fs, path):
    source = open_source(fs, path)
    log = in_log(fs, path)
    partition, second = 0, source.bases(0)[1]
    data = source._files(partition, source.bases(partition)[0])[0]
    flip(fs, data, 30)
    wanted = (pc.field("partition") == 0) & (second <= OFFSET)
    assert read(fs, path, where=wanted) == [row for row in log if row[0] == 0 and row[1] >= second]
    with pytest.raises(CorruptionError):
        read(fs, path)


@pytest.mark.parametrize("wrong", [pc.field("body") == b"", pc.field("key") > 7, pc.field("offset") == "x"])
def test_an_expression_that_cannot_be_evaluated_is_refused_at_once(fs, path, wrong):
    with pytest.raises(ValueError, match="where cannot be evaluated"):
        read_arrow(path, fs=fs, where=wrong)
    with pytest.raises(TypeError, match="where is an expression"):
        read_arrow(path, fs=fs, where="offset > 5")


def test_partitions_choose_rows():
    fs = CrashFS()
    fill_stream(fs)
    assert read(fs, partitions=[1]) == [row for row in in_log(fs) if row[0] == 1]
    with pytest.raises(NotFoundError, match="there is no partition 7"):
        read(fs, partitions=[1, 7])


def test_wrong_arguments_are_refused():
    fs = CrashFS()
    fill_stream(fs)
    with pytest.raises(ValueError, match="no column 'body': there are key, value, topic"):
        read(fs, columns=["body"])
    with pytest.raises(ValueError, match="at least one column"):
        read(fs, columns=[])
    with pytest.raises(TypeError, match="columns is a list"):
        read(fs, columns="value")
    with pytest.raises(ValueError, match="no time zone"):
        read(fs, since=datetime(2020, 1, 1))
    with pytest.raises(TypeError, match="partition is a whole number"):
        read(fs, partitions=["0"])
    with pytest.raises(NotFoundError):
        read(fs, "/nothing")


def test_an_empty_stream_has_no_rows():
    fs = CrashFS()
    stream(fs).close()
    assert read(fs) == []
    assert read(fs, table=table(fs)) == []


def test_what_is_appended_after_the_call_is_not_read():
    fs = CrashFS()
    fill_stream(fs)
    before = in_log(fs)
    reader = read_arrow(STREAM, fs=fs)
    fill_stream(fs, range(40, 80))
    assert rows(reader) == before


# --- while others are at work ---------------------------------------------------------------------


def test_a_compaction_between_two_batches_changes_nothing(fs, path):
    its = table(fs, path)
    log = in_log(fs, path)
    reader = read_arrow(path, table=its, fs=fs)
    first = reader.read_next_batch()
    assert its.compact().removed
    assert rows(pa.Table.from_batches([first, *reader])) == log


def test_an_update_and_retention_between_two_batches_change_nothing():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    fill_stream(fs, range(40, 120))
    log = in_log(fs)
    reader = read_arrow(STREAM, table=its, fs=fs)
    first = reader.read_next_batch()
    its.update()
    remove_oldest(fs, 1)
    assert rows(pa.Table.from_batches([first, *reader])) == log


def test_files_of_segments_that_are_gone_are_read_too():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)
    its.update()
    log = in_log(fs)
    remove_oldest(fs, 1)
    assert in_log(fs) != log
    assert read(fs, table=its) == log


def test_messages_that_are_gone_between_table_and_log_are_an_error():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    known = in_table(its)
    fill_stream(fs, range(40, 120))
    remove_oldest(fs, 500)
    with pytest.raises(TableGapError, match="retention removed them"):
        read(fs, table=its)
    assert read(fs, table=its, allow_gaps=True) == [*known, *in_log(fs)]


def test_retention_that_overtakes_a_reader_is_an_error():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    reader = read_arrow(STREAM, fs=fs)
    remove_oldest(fs, 1)
    with pytest.raises(OffsetOutOfRangeError, match="is gone"):
        reader.read_all()
    assert rows(read_arrow(STREAM, fs=fs)) == in_log(fs)


def test_damage_is_an_error_or_left_out():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    files = StreamFiles(fs, STREAM).partition(0)
    flip(fs, files.data(files.bases()[1]), 30)
    with pytest.raises(CorruptionError, match="cannot be read"):
        read(fs)
    assert read(fs, allow_gaps=True) == in_log(fs)


# --- for programs that know Parquet ---------------------------------------------------------------


def test_a_dataset_has_the_files_of_now(tmp_path):
    with diskq.Stream(tmp_path / "clicks", options=diskq.StreamOptions(segment_size=400)) as its:
        its.append_many([(b"key", b"value %d" % number * 5) for number in range(100)])
    here = diskq.open_table(tmp_path / "clicks", tmp_path)
    here.update()
    found = here.dataset().to_table()
    assert found.schema == here.schema
    assert sorted(rows(found)) == sorted(
        row for row in rows(diskq.read_arrow(tmp_path / "clicks")) if row[1] < here.ends()[row[0]]
    )


def test_a_host_chooses_its_table_below_one_directory():
    fs = CrashFS()
    fill_stream(fs)
    open_table(STREAM, INTO, host="web1", fs=fs).update()
    whole = in_log(fs)
    remove_oldest(fs, 1)
    assert in_log(fs) != whole
    assert read(fs, table=INTO, host="web1") == whole
    assert read(fs, table=INTO, host="web 2") == in_log(fs)  # it has no file


@pytest.mark.parametrize(
    "table, reason", [(None, "is that of a table: name it, too"), ("opened", "an opened table has its own")]
)
def test_a_host_is_that_of_a_directory_of_tables(table, reason):
    fs = CrashFS()
    fill_stream(fs)
    given = None if table is None else open_table(STREAM, INTO, fs=fs)
    with pytest.raises(ValueError, match=f"host is 'web1': {reason}"):
        read_arrow(STREAM, table=given, host="web1", fs=fs)


def test_an_archive_is_read_when_its_stream_is_gone(tmp_path):
    with diskq.Stream(tmp_path / "clicks", options=diskq.StreamOptions(segment_size=400)) as its:
        its.append_many([(b"key", b"value %d" % number * 5) for number in range(100)])
    here = diskq.open_table(tmp_path / "clicks", tmp_path / "lake")
    here.update()
    (tmp_path / "clicks").rename(tmp_path / "gone")
    assert here.dataset().count_rows() == here.statistics().offsets > 90
    assert here.schema.names[:2] == ["key", "value"]
    with pytest.raises(NotFoundError):
        _ = diskq.open_table(tmp_path / "clicks", tmp_path / "elsewhere").schema
