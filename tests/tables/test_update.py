# The table of a stream, of a journal: what comes into it, when, and what stays. Law: the engine's own reader,
# message by message, is the judge.

from __future__ import annotations

import errno
import random
from itertools import pairwise

import pyarrow as pa
import pytest

import diskq
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.retention import retain
from diskq.errors import LockedError, NotFoundError, TableGapError, UnsupportedFormatError
from diskq.storage.fs import base_name
from diskq.tables import parquet
from diskq.tables.locking import locked
from diskq.tables.names import TableFiles
from diskq.tables.parquet import open_file, read_footer
from diskq.tables.sources import open_source
from diskq.testing import CrashFS
from tests.tables.logs import (
    INTO,
    JOURNAL,
    STREAM,
    fill_journal,
    fill_stream,
    in_log,
    in_table,
    journal,
    stream,
    table,
)

FILLED = {STREAM: fill_stream, JOURNAL: fill_journal}


def sealed(fs, path):
    """The messages of complete segments, as the log has them."""
    source = open_source(fs, path)
    ends = {partition: source.bases(partition)[-1] for partition in source.partitions()}
    return [row for row in in_log(fs, path) if row[1] < ends[row[0]]]


@pytest.mark.parametrize("path", FILLED)
def test_every_message_of_complete_segments_is_in_the_table_as_it_is(path):
    fs = CrashFS()
    FILLED[path](fs)
    its = table(fs, path)
    done = its.update()
    assert in_table(its) == sealed(fs, path)
    assert len(done.made) > 3
    assert done.messages == len(in_table(its))
    assert done.written_bytes == its.statistics().bytes_on_disk > 0


def test_a_file_is_on_its_way_to_the_disk_before_it_is_complete(monkeypatch):
    fs = CrashFS()
    fill_stream(fs)
    begun = []
    monkeypatch.setattr(parquet, "_BUFFER", 500)
    monkeypatch.setattr(parquet, "start_writeback", lambda fs, handle: begun.append(fs.size(handle)))
    its = table(fs, STREAM)
    done = its.update()
    assert sum(begun) > 0
    assert in_table(its) == sealed(fs, STREAM)
    assert len(begun) >= len(done.made)


@pytest.mark.parametrize("path", FILLED)
def test_a_second_update_does_nothing_twice(path):
    fs = CrashFS()
    FILLED[path](fs)
    table(fs, path).update()
    before = table(fs, path).files()
    assert table(fs, path).update() == diskq.TableUpdate()
    assert table(fs, path).files() == before


def test_an_update_adds_what_was_completed_since():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)
    its.update()
    before = its.files()
    fill_stream(fs, range(40, 80))
    made = its.update().made
    assert sorted([*before, *made]) == its.files()
    assert in_table(its) == sealed(fs, STREAM)


def test_names_are_ranges_of_offsets_that_touch():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    bases = open_source(fs, STREAM).bases(0)
    directory = f"{INTO}/topic=clicks/partition=0"
    expected = [f"{one:020d}-{other:020d}.parquet" for one, other in pairwise(bases)]
    assert sorted(fs.list_directory(directory)) == expected
    assert its.ends() == {0: bases[-1]}
    assert its.statistics().ranges == {0: (0, bases[-1])}
    assert its.statistics().offsets == bases[-1]


def test_only_the_lock_is_left_besides_the_files():
    fs = CrashFS()
    fill_stream(fs)
    table(fs).update()
    assert fs.list_directory(f"{INTO}/topic=clicks/.diskq") == ["table.lock"]


def test_a_file_says_what_it_is():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)
    its.update()
    footer = read_footer(fs, its.files()[0])
    assert (footer.kind, footer.topic, footer.partition) == ("stream", "clicks", 0)
    assert (footer.first, footer.next) == (0, its.files()[0].next_offset)
    assert footer.stream == open_source(fs, STREAM).identity() != ""
    assert footer.rows == footer.next


def test_numbers_have_statistics_and_a_page_index_so_that_readers_skip():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)
    its.update()
    with open_file(fs, its.files()[0].path) as opened:
        group = opened.metadata.row_group(0)
        columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    for name in ("offset", "timestamp", "timestampNanos"):
        assert columns[name].statistics.has_min_max
        assert columns[name].has_column_index
        assert columns[name].has_offset_index
    assert columns["offset"].statistics.min == 0


def columns_of(fs, rows, **options):
    """What a file that has these messages says of each column."""
    with stream(fs, partition_count=1, segment_size=10_000) as its:
        its.append_many(rows)
        its.append_many([(b"", b"of the next segment")] * 400)
    made = table(fs, **options).update().made
    with open_file(fs, made[0].path) as opened:
        group = opened.metadata.row_group(0)
        return {
            group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)
        }


def encodings(fs, rows, **options):
    return {name: set(column.encodings) for name, column in columns_of(fs, rows, **options).items()}


def codecs(fs, rows, **options):
    return {name: column.compression for name, column in columns_of(fs, rows, **options).items()}


def test_keys_and_times_that_repeat_have_dictionaries():
    found = encodings(CrashFS(), [(b"key %d" % (n % 3), b"value", 1000 * (n // 50)) for n in range(200)])
    for name in ("key", "timestamp", "timestampNanos"):
        assert "RLE_DICTIONARY" in found[name]
    assert "DELTA_BINARY_PACKED" in found["offset"]


def test_keys_and_times_that_do_not_repeat_have_none():
    found = encodings(CrashFS(), [(b"key %d" % n, b"value", 1_000_000 * n) for n in range(300)])
    assert "PLAIN" in found["key"]
    assert not any("RLE_DICTIONARY" in each for each in found.values())
    for name in ("offset", "timestamp", "timestampNanos"):
        assert "DELTA_BINARY_PACKED" in found[name]


def test_offsets_are_as_in_memory_without_compression():
    found = encodings(
        CrashFS(), [(b"key %d" % n, b"value", 1_000_000 * n) for n in range(300)], compression="none"
    )
    assert "PLAIN" in found["offset"]
    assert "DELTA_BINARY_PACKED" in found["timestamp"]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip"])
def test_values_that_do_not_become_smaller_are_not_compressed(compression):
    random_bytes = random.Random(0).randbytes
    rows = [(b"key %d" % n, random_bytes(200), 1000 * n) for n in range(300)]
    found = codecs(CrashFS(), rows, compression=compression)
    assert found.pop("value") == "UNCOMPRESSED"
    assert set(found.values()) == {compression.upper()}


@pytest.mark.parametrize("is_random", [lambda n: False, lambda n: n < 10, lambda n: n % 2])
def test_values_of_which_some_become_smaller_are_compressed(is_random):
    random_bytes = random.Random(0).randbytes
    rows = [(b"", random_bytes(200) if is_random(n) else b"value" * 40, 1000 * n) for n in range(300)]
    assert set(codecs(CrashFS(), rows).values()) == {"ZSTD"}


def test_a_few_values_are_compressed_unasked():
    random_bytes = random.Random(0).randbytes
    rows = [(b"", random_bytes(4000), 1000 * n) for n in range(10)]
    assert set(codecs(CrashFS(), rows).values()) == {"ZSTD"}


def test_values_are_as_they_are_without_compression():
    found = codecs(CrashFS(), [(b"key", b"value", 1000 * n) for n in range(300)], compression="none")
    assert set(found.values()) == {"UNCOMPRESSED"}


@pytest.mark.parametrize("path", FILLED)
def test_the_schema_is_that_of_the_files_with_topic_and_partition(path):
    fs = CrashFS()
    FILLED[path](fs)
    its = table(fs, path)
    its.update()
    with open_file(fs, its.files()[0].path) as opened:
        names = opened.schema_arrow.names
    assert [name for name in its.schema.names if name not in ("topic", "partition")] == names
    assert its.schema.field("timestamp").type == pa.timestamp("us", "UTC")


def test_microseconds_are_rounded_down_also_before_1970():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)
    its.update()
    with open_file(fs, its.files()[0].path) as opened:
        found = opened.read()
    nanos = found.column("timestampNanos").to_pylist()
    assert min(nanos) < 0
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [each // 1000 for each in nanos]


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4", "zstd", "gzip"])
def test_each_compression_keeps_every_byte(compression):
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs, compression=compression)
    its.update()
    assert in_table(its) == sealed(fs, STREAM)


# --- what may come into a table -------------------------------------------------------------------


def test_a_segment_waits_until_its_producer_has_synced_it():
    fs = CrashFS()
    with stream(fs, partition_count=1, sync_every=10**6, sync_timeout=1e6) as its:
        for number in range(40):
            its.append(b"value %d " % number * 5, b"key")
        assert table(fs).update().made == ()
        its.sync()
        assert len(table(fs).update().made) > 3


def test_a_segment_of_a_journal_waits_as_well():
    fs = CrashFS()
    with journal(fs, sync_every=10**6, sync_timeout=1e6) as its:
        for number in range(40):
            its.append(b"value %d " % number * 5)
        assert table(fs, JOURNAL).update().made == ()
        its.sync()
        assert len(table(fs, JOURNAL).update().made) > 3


def test_what_a_peer_wrote_is_synced_before_it_is_in_the_table():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    fs.unlink(f"{STREAM}/.diskq/state")  # as if no producer of diskq's had been there
    after = fs.operations
    assert table(fs).update().made
    synced = [line.split()[2] for line in fs.journal[after:] if line.split()[1] == "sync"]
    for segment in open_source(fs, STREAM).sealed(0):
        assert f"{STREAM}/parts/000000/{segment.first:020d}.data" in synced


def test_names_that_a_killed_updater_has_left_are_durable_after_the_next_update():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    last = its.files()[-1]
    fs.rename(last.path, f"{INTO}/aside")
    fs.sync_directory(f"{INTO}/topic=clicks/partition=0")
    fs.rename(f"{INTO}/aside", last.path)  # and then it was killed
    assert table(fs).update().made == ()
    assert table(fs.crash()).files()[-1] == last


def test_with_until_a_partition_ends_before_the_first_segment_that_is_too_late():
    fs = CrashFS()
    with stream(fs, partition_count=1) as log:
        for number in range(40):
            log.append(b"value %d " % number * 5, b"key", 1000 + number)
    its = table(fs)
    its.update(until=1020)
    whole = [row for row in sealed(fs, STREAM) if row[1] < its.ends()[0]]
    assert in_table(its) == whole
    assert 1010 < max(row[2] for row in whole) < 1020
    its.update(until=2000)
    assert in_table(its) == sealed(fs, STREAM)


def test_each_new_file_is_reported_when_it_has_its_name():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)
    seen = []
    done = its.update(each=lambda file: seen.append((file, fs.size_of(file.path) is not None)))
    assert seen == [(file, True) for file in done.made]


def test_an_error_of_the_caller_is_the_callers():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)

    def fail(_):
        raise OSError(errno.ENOSPC, "the caller's own disk is full")

    with pytest.raises(OSError, match="the caller's own disk"):
        its.update(each=fail)
    assert len(its.files()) == 1
    its.update()
    assert in_table(its) == sealed(fs, STREAM)


# --- retention ------------------------------------------------------------------------------------


def remove_oldest(fs, max_bytes):
    retain(fs, StreamFiles(fs, STREAM), now_ns=0, max_bytes=max_bytes)


def test_files_stay_when_retention_removes_their_segments():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)
    its.update()
    before = in_table(its)
    remove_oldest(fs, 500)
    its.update()
    assert in_table(its) == before


def test_with_keep_segments_files_go_with_their_segments():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs, keep="segments")
    its.update()
    remove_oldest(fs, 500)
    done = its.update()
    assert done.removed
    assert in_table(its) == sealed(fs, STREAM)


def test_retention_that_overtakes_an_archive_is_an_error_that_says_what_is_missing():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    end = its.ends()[0]
    fill_stream(fs, range(40, 120))
    remove_oldest(fs, 500)
    first = open_source(fs, STREAM).first_offset(0)
    before = its.files()
    with pytest.raises(TableGapError, match="retention removed them") as failure:
        its.update()
    assert (failure.value.partition, failure.value.first_offset, failure.value.next_offset) == (0, end, first)
    assert its.files() == before


def test_with_allow_gaps_the_file_says_what_is_missing():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs, allow_gaps=True)
    its.update()
    end = its.ends()[0]
    fill_stream(fs, range(40, 120))
    remove_oldest(fs, 500)
    first = open_source(fs, STREAM).first_offset(0)
    before = in_table(its)
    done = its.update()
    assert done.missing == first - end
    assert read_footer(fs, done.made[0]).missing == ((end, first),)
    assert in_table(its) == [*before, *sealed(fs, STREAM)]


def test_with_keep_segments_nothing_that_retention_removed_is_missing():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs, keep="segments")
    its.update()
    fill_stream(fs, range(40, 120))
    remove_oldest(fs, 500)
    its.update()
    assert in_table(its) == sealed(fs, STREAM)


# --- who may update it ----------------------------------------------------------------------------


def test_two_updaters_are_one_too_many():
    fs = CrashFS()
    fill_stream(fs)
    with locked(table(fs).state):
        with pytest.raises(LockedError, match=r"topic=clicks is in use by process"):
            table(fs).update()
        with pytest.raises(LockedError):
            table(fs).compact()
    assert table(fs).update().made


def test_a_table_is_of_a_stream_or_a_journal():
    fs = CrashFS()
    with pytest.raises(NotFoundError, match="no stream and no journal"):
        table(fs).update()
    fs.make_directory_durably(STREAM)
    with pytest.raises(NotFoundError):
        table(fs).update()
    fs.make_directory_durably("/q")
    diskq.Queue("/q", "events", fs=fs).close()
    with pytest.raises(UnsupportedFormatError, match="queues"):
        table(fs, "/q").update()
    assert fs.size_of(INTO) is None


@pytest.mark.parametrize(
    "topic, directory",
    [
        ("clicks", "topic=clicks"),
        ("a b/c=d", "topic=a%20b%2Fc%3Dd"),
        ("50%", "topic=50%25"),
        ("Ereignisse-ä", "topic=Ereignisse-ä"),
    ],
)
def test_a_topic_is_escaped_as_hive_does(topic, directory):
    its = diskq.open_table("/s", "/lake", topic=topic)
    assert base_name(its.directory) == directory
    assert its.topic == topic
    found = TableFiles.at(CrashFS(), its.directory)
    assert found is not None
    assert (found.topic, found.directory) == (topic, its.directory)


@pytest.mark.parametrize("path", ["/", ".", "a/.."])
def test_a_table_needs_a_name(path):
    with pytest.raises(ValueError, match="give one as topic"):
        diskq.open_table(path, "/lake")


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="compression is one of"):
        diskq.TableOptions(compression="brotli9")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep is one of"):
        diskq.TableOptions(keep="none")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        diskq.open_table("/s", "/lake", options=diskq.StreamOptions())  # type: ignore[arg-type]
