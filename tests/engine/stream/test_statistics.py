# Statistics of a stream. Law: they are what the records say, at one moment, whichever process is active.

from __future__ import annotations

import pytest

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.statistics import as_go, stream_statistics
from diskq.engine.stream.stream import Stream
from diskq.errors import NotFoundError
from diskq.options import StreamOptions
from diskq.testing import CrashFS, FaultFS
from tests.engine import moments
from tests.engine.moments import A_DAY_IN_2024, ROOT, Writer, partition, remove_segment, writer, written

SECOND = 10**9


def statistics(fs):
    return stream_statistics(fs, StreamFiles(fs, ROOT))


def of_partition(fs):
    (told,) = statistics(fs).partitions
    return told


def test_a_stream_as_go_diskq_tests_it():
    """100 messages a second apart in three partitions, and a producer at work."""
    fs = moments.disk()
    files = StreamFiles(fs, ROOT)
    for index in range(3):
        fs.make_directory_durably(files.partition(index).directory)
        by = Writer(fs, files.partition(index), value=b"x" * 72)
        by.begin()
        by.append(A_DAY_IN_2024 + number * SECOND for number in range(index, 100, 3))
        by.close()
    fs.write_durably(files.owner, bytes(16))
    told = statistics(fs)
    assert told.path == ROOT
    assert told.is_in_use
    assert len(told.partitions) == 3
    assert told.size_bytes == 9500
    assert told.messages == 100
    assert told.age_ns == 99 * SECOND
    assert [one.messages for one in told.partitions] == [34, 33, 33]


def test_an_empty_partition():
    fs = moments.disk()
    written(fs, [])
    told = of_partition(fs)
    assert (told.messages, told.oldest_offset, told.newest_offset, told.next_offset) == (0, 0, None, 0)
    assert told.oldest_timestamp_ns is told.newest_timestamp_ns is told.active_timestamp_ns is None
    assert (told.segments, told.size_bytes, statistics(fs).age_ns) == (1, 0, 0)


def test_a_partition_without_a_segment():
    told = of_partition(moments.disk())
    assert (told.messages, told.segments, told.next_offset, told.newest_offset) == (0, 0, 0, None)


def test_segments_and_their_ends():
    fs = moments.disk()
    written(fs, [30, 10], [20], [50, 5, 40])
    told = of_partition(fs)
    assert (told.messages, told.oldest_offset, told.newest_offset, told.next_offset) == (6, 0, 5, 6)
    assert (told.oldest_timestamp_ns, told.active_timestamp_ns, told.newest_timestamp_ns) == (30, 50, 40)
    assert (told.segments, told.active_base, told.size_bytes) == (3, 3, 6 * 28)


@pytest.mark.parametrize("marks", [True, False])
def test_where_the_active_segment_is_empty_the_newest_message_is_in_the_one_before(marks):
    fs = moments.disk()
    written(fs, [10, 20], [], marks=marks)
    told = of_partition(fs)
    assert (told.newest_offset, told.next_offset, told.newest_timestamp_ns) == (1, 2, 20)
    assert told.active_timestamp_ns is None
    assert statistics(fs).age_ns == 10


def test_behind_retention_the_oldest_is_the_first_that_is_there():
    fs = moments.disk()
    files = written(fs, [10], [20], [30])
    remove_segment(fs, files, 0)
    told = of_partition(fs)
    assert (told.messages, told.oldest_offset, told.oldest_timestamp_ns) == (2, 1, 20)


def test_messages_in_a_hole_are_not_counted():
    fs = moments.disk()
    files = written(fs, [10, 11], [20, 21], [30], [40])
    remove_segment(fs, files, 2)
    assert of_partition(fs).messages == 4


def test_an_age_is_not_negative():
    fs = moments.disk()
    written(fs, [50, 10])
    assert statistics(fs).age_ns == 0


def test_timestamps_are_what_the_records_say():
    fs = moments.disk()
    files = written(fs, [10, 20], [30, 40])
    for base in (0, 2):
        fs.write_durably(files.timeindex(base), bytes(32))
    told = of_partition(fs)
    assert (told.oldest_timestamp_ns, told.active_timestamp_ns, told.newest_timestamp_ns) == (10, 30, 40)


def test_a_complete_segment_without_index_is_in_the_statistics():
    fs = moments.disk()
    files = written(fs, [10, 20], [])
    fs.unlink(files.index_of(0))
    told = of_partition(fs)
    assert (told.messages, told.oldest_timestamp_ns, told.newest_timestamp_ns) == (2, 10, 20)


@pytest.mark.parametrize("damage", ["removed", "emptied", "cut"])
def test_an_active_segment_without_rows_is_counted_by_its_records(damage):
    fs = CrashFS()
    with Stream(ROOT, options=StreamOptions(partition_count=1), fs=fs) as stream:
        stream.append_many([(b"key", b"value", at) for at in (5, 10, 20)])
    files = StreamFiles(fs, ROOT).partition(0)
    for path in (files.index_of(0), files.timeindex(0)):
        content = fs.files()[path]
        if damage == "removed":
            fs.unlink(path)
        else:
            fs.write_durably(path, content[: len(content) // 3 if damage == "cut" else 0])
    told = of_partition(fs)
    assert (told.messages, told.newest_offset, told.next_offset) == (3, 2, 3)
    assert (told.oldest_timestamp_ns, told.newest_timestamp_ns) == (5, 20)


def test_a_record_that_cannot_be_read_has_no_timestamp():
    fs = moments.disk()
    files = written(fs, [10], [20])
    fs.write_durably(files.data(0), b"\xff" * 28)
    assert of_partition(fs).oldest_timestamp_ns is None


def test_there_must_be_a_stream():
    with pytest.raises(NotFoundError, match="no stream"):
        stream_statistics(CrashFS(), StreamFiles(CrashFS(), "/nowhere"))


def test_beside_retention_and_a_producer_it_is_one_moment():
    fs = moments.disk()
    by = writer(fs)
    for timestamps in ([10], [20], [30]):
        by.append(timestamps)
        by.roll()

    class Beside(FaultFS[CrashFS]):
        """While it is looked at, a segment is removed and another begun."""

        def size_of(self, path):
            if path == by.files.data(0) and self.inner.size_of(path) is not None:
                remove_segment(fs, by.files, 0)
                by.append([40])
                by.roll()
            return super().size_of(path)

    told = of_partition(Beside(fs))
    by.close()
    assert (told.oldest_offset, told.newest_offset, told.messages) == (1, 3, 3)
    assert (told.oldest_timestamp_ns, told.newest_timestamp_ns, told.segments) == (20, 40, 4)


def test_no_file_stays_open():
    disk = FaultFS(moments.disk())
    written(disk, [10], [20])
    disk.calls.clear()
    statistics(disk)
    opened, closed = (
        sorted(call.path for call in disk.calls if call.verb == verb and call.error is None)
        for verb in ("open", "close")
    )
    assert opened == closed != []


def test_under_the_names_of_go_diskq():
    fs = moments.disk()
    written(fs, [A_DAY_IN_2024], [A_DAY_IN_2024 + SECOND - 6], [])
    assert as_go(statistics(fs)) == {
        "Path": ROOT,
        "SizeBytes": 56,
        "InUse": False,
        "TotalOffsets": 2,
        "Age": SECOND - 6,
        "Partitions": [
            {
                "PartitionIndex": 0,
                "OldestOffset": 0,
                "OldestOffsetActive": 2,
                "NewestOffset": 1,
                "OldestTimestamp": "2024-01-02T03:04:05.000000006Z",
                "OldestTimestampActive": "0001-01-01T00:00:00Z",
                "NewestTimestamp": "2024-01-02T03:04:06Z",
                "Segments": 3,
                "SizeBytes": 56,
            }
        ],
    }


def test_of_nothing_under_the_names_of_go_diskq():
    fs = moments.disk()
    written(fs, [])
    (told,) = as_go(statistics(fs))["Partitions"]
    assert (told["NewestOffset"], told["NewestTimestamp"]) == (0, "0001-01-01T00:00:00Z")
    assert partition(fs).bases() == [0]
