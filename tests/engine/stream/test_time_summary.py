# What is noted beside a timeindex. Law: it is exactly what the format says, it never costs a message, and
# what is not true any more does not come back.

from __future__ import annotations

import errno
import random
import struct

import pytest

from diskq.engine.stream import time_summary as time_summary
from diskq.engine.stream.time_summary import EARLIEST, LATEST, Sealed, TimeSummary
from diskq.storage.checksums import checksum
from diskq.storage.fs import OsFileSystem
from diskq.testing import FaultFS
from tests.engine import streams
from tests.engine.moments import Writer, disk, partition, ram, remove_segment, writer, written

# --- what it is to be, by `struct` alone ------------------------------------------------------


def rows_of(timestamps: list[int], base: int = 0) -> bytes:
    return b"".join(struct.pack("<Qq", offset, time) for offset, time in enumerate(timestamps, base))


def checked(fields: bytes) -> bytes:
    return fields + struct.pack("<I", checksum(fields))


def marks_of(timestamps: list[int], base: int = 0) -> bytes:
    rows = rows_of(timestamps, base)
    return b"".join(
        checked(struct.pack("<qI", max(timestamps[:end]), checksum(rows[(end - 256) * 16 : end * 16])))
        for end in range(256, len(timestamps) + 1, 256)
    )


def sealed_of(timestamps: list[int], base: int, size: int) -> bytes:
    count = len(timestamps)
    edges = timestamps[0], timestamps[-1], min(timestamps), max(timestamps)
    rest = rows_of(timestamps, base)[count // 256 * 4096 :]
    return checked(struct.pack("<QQQqqqqI", base, count, size, *edges, checksum(rest)))


def times(count: int, seed: int = 1) -> list[int]:
    return [random.Random(seed + number // 50).randrange(-1000, 1000) + number for number in range(count)]


def marks(fs, base: int = 0) -> bytes:
    return fs.read(partition(fs).marks(base)) if fs.size_of(partition(fs).marks(base)) is not None else b""


def sealed(fs) -> bytes:
    return fs.read(partition(fs).sealed) if fs.size_of(partition(fs).sealed) is not None else b""


def begun_again(fs, base: int, entries: int, size: int = 0) -> Writer:
    """Another process goes on in the segment `base`."""
    by = Writer(fs, partition(fs), base, entries, size, marks=TimeSummary(fs, partition(fs)))
    by.begin()
    return by


# --- marks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 511, 512, 513, 70 * 256 + 3])
def test_each_whole_256_entries_have_a_mark(count):
    fs = ram()
    written(fs, times(count))
    assert marks(fs) == marks_of(times(count))


@pytest.mark.parametrize("at_once", [1, 7, 100, 256, 1000])
def test_marks_do_not_depend_on_how_many_are_written_at_once(at_once):
    fs = ram()
    by = writer(fs)
    all_of_them, judged = times(1500), marks_of(times(1500))
    for start in range(0, 1500, at_once):
        by.append(all_of_them[start : start + at_once])
        assert marks(fs) == judged[: by.entries // 256 * 16]
    by.close()


@pytest.mark.parametrize("stopped", [0, 100, 255, 256, 300, 512, 700, 1024])
def test_another_process_goes_on_where_the_last_one_stopped(stopped):
    fs = ram()
    by = writer(fs)
    by.append(times(1300)[:stopped])
    by.close()
    by = begun_again(fs, 0, stopped, by.size)
    by.append(times(1300)[stopped:])
    assert marks(fs) == marks_of(times(1300))
    by.roll()
    assert sealed(fs) == sealed_of(times(1300), 0, 1300 * 28)
    by.close()


def test_marks_are_made_for_what_a_peer_has_written():
    fs = ram()
    written(fs, times(1000), marks=False)
    begun_again(fs, 0, 1000).close()
    assert marks(fs) == marks_of(times(1000))


def test_marks_are_made_again_where_the_last_one_is_rotten():
    fs = ram()
    written(fs, times(1000))
    for at in range(len(marks(fs)) - 16, len(marks(fs))):
        content = bytearray(marks(fs))
        content[at] ^= 1
        fs.write_durably(partition(fs).marks(0), bytes(content))
        begun_again(fs, 0, 1000).close()
        assert marks(fs) == marks_of(times(1000))


@pytest.mark.parametrize("size", range(48))
def test_marks_are_made_again_where_they_are_cut_off(size):
    fs = ram()
    written(fs, times(1000))
    fs.write_durably(partition(fs).marks(0), marks(fs)[:size])
    begun_again(fs, 0, 1000).close()
    assert marks(fs) == marks_of(times(1000))


def test_marks_of_other_entries_are_not_believed():
    fs = ram()
    written(fs, times(1000))
    fs.write_durably(partition(fs).timeindex(0), rows_of(times(1000, seed=500)))
    begun_again(fs, 0, 1000).close()
    assert marks(fs) == marks_of(times(1000, seed=500))


def test_marks_behind_the_entries_are_taken_back():
    fs = ram()
    written(fs, times(1000))
    begun_again(fs, 0, 520).close()
    assert marks(fs) == marks_of(times(520))


def test_a_timeindex_that_does_not_count_up_is_not_vouched_for():
    fs = ram()
    orphan = rows_of([5, 6, 7]) + rows_of([8], 2) + rows_of([9] * 600, 3)
    fs.write_durably(partition(fs).timeindex(0), orphan)
    by = begun_again(fs, 0, 604)
    by.append([1] * 600)
    by.roll()
    by.close()
    assert marks(fs) == sealed(fs) == b""


# --- rows of complete segments ----------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 512, 600])
def test_a_complete_segment_has_a_row(count):
    fs = ram()
    by = writer(fs)
    by.append(times(count))
    by.roll()
    by.append(times(30, seed=77))
    by.roll()
    by.close()
    assert sealed(fs) == sealed_of(times(count), 0, count * 28) + sealed_of(times(30, 77), count, 30 * 28)


def test_a_row_is_read_back():
    told = Sealed(1, 2, 3, -4, 5, -6, 7, 8)
    assert Sealed.unpack(told.pack()) == told
    assert told.next_base == 3


@pytest.mark.parametrize("at", range(64))
def test_a_rotten_row_is_no_row(at):
    row = bytearray(Sealed(1, 2, 3, -4, 5, -6, 7, 8).pack())
    row[at] ^= 0x80
    assert Sealed.unpack(bytes(row)) is None
    assert time_summary.sealed_rows(bytes(row) + Sealed(9, 1, 1, 1, 1, 1, 1, 1).pack()).keys() == {9}


def test_a_row_is_written_over_half_a_row():
    fs = ram()
    by = writer(fs)
    by.append([1])
    by.roll()
    whole = sealed(fs)
    fs.write_durably(partition(fs).sealed, whole + whole[:40])
    by.append([2])
    by.roll()
    by.close()
    assert sealed(fs) == whole + sealed_of([2], 1, 28)


def test_nothing_is_synced(tmp_path):
    disk_with_log = FaultFS(disk())
    by = writer(disk_with_log)
    for _ in range(3):
        by.append(times(600))
        by.roll()
    by.close()
    assert "sync_files" not in {call.verb for call in disk_with_log.calls}


def test_no_file_stays_open():
    fs = FaultFS(ram())
    by = writer(fs)
    for _ in range(5):
        by.append(times(600))
        by.roll()
    by.close()
    opened = [call.path for call in fs.calls if call.verb == "open" and call.error is None]
    closed = [call.path for call in fs.calls if call.verb == "close"]
    assert sorted(opened) == sorted(closed)


# --- a full disk costs no message -------------------------------------------------------------


def test_marks_that_found_no_room_are_written_when_there_is_some():
    fs = FaultFS(ram())
    by = writer(fs)
    fs.fail("pwrite", error=errno.ENOSPC, path="*.marks", times=None)
    by.append(times(1300)[:900])
    assert marks(fs.inner) == b""
    fs.heal()
    by.append(times(1300)[900:])
    assert marks(fs.inner) == marks_of(times(1300))
    by.close()


@pytest.mark.parametrize("taken", [1, 8, 15])
def test_half_a_mark_is_written_over(taken):
    fs = FaultFS(ram())
    by = writer(fs)
    fs.short_write(path="*.marks", bytes_taken=taken)
    fs.fail("pwrite", error=errno.ENOSPC, path="*.marks", nth=2)
    by.append(times(600))
    by.append(times(1300)[600:])
    by.close()
    assert marks(fs.inner) == marks_of(times(1300))


def test_a_row_that_found_no_room_is_written_with_the_next_one():
    fs = FaultFS(ram())
    by = writer(fs)
    fs.fail("pwrite", error=errno.ENOSPC, path="*/sealed")
    by.append([1, 2])
    by.roll()
    assert sealed(fs.inner) == b""
    by.append([3])
    by.roll()
    by.close()
    assert sealed(fs.inner) == sealed_of([1, 2], 0, 56) + sealed_of([3], 2, 28)


@pytest.mark.parametrize("verb", ["open", "pread", "pwrite", "size"])
@pytest.mark.parametrize("path", ["*.marks", "*/sealed", "*.timeindex"])
def test_nothing_that_fails_beside_a_segment_is_raised(verb, path):
    fs = FaultFS(ram())
    by = writer(fs)
    if (verb, path) not in {("open", "*.timeindex"), ("pwrite", "*.timeindex")}:
        fs.fail(verb, path=path, error=errno.EIO, times=None)
    by.append(times(600))
    by.roll()
    by.close()


def test_a_segment_that_could_not_be_read_back_gets_no_row():
    fs = FaultFS(ram())
    by = writer(fs)
    fs.fail("pread", path="*.timeindex", error=errno.EIO, times=None)
    by.append(times(600))
    by.roll()
    by.close()
    assert sealed(fs.inner) == marks(fs.inner) == b""


# --- what is taken back -----------------------------------------------------------------------


def three_segments(fs):
    return written(fs, times(300), times(300, 2), times(300, 3), times(5, 4))


@pytest.mark.parametrize(
    "base, rows_left, marks_left",
    [
        (0, 0, []),
        (300, 1, [0]),
        (600, 2, [0, 300]),
        (900, 3, [0, 300, 600]),
    ],
)
def test_what_is_noted_of_changed_segments_is_gone(base, rows_left, marks_left):
    fs = disk()
    files = three_segments(fs)
    before = sealed(fs)
    time_summary.forget_from(fs, files, base)
    assert sealed(fs) == before[: rows_left * 64]
    assert [number for number in (0, 300, 600) if marks(fs, number)] == marks_left


def test_what_was_taken_back_does_not_return_after_a_power_cut():
    for seed in range(200):
        fs = disk()
        files = three_segments(fs)
        handles = [fs.open(path, write=True) for path in (files.sealed, files.marks(0), files.marks(300))]
        fs.sync_files(handles)
        fs.sync_directory(files.private)
        time_summary.forget_from(fs, files, 300)
        after = fs.crash(random.Random(seed))
        assert len(sealed(after)) <= 64
        assert marks(after, 300) == marks(after, 600) == b""


def test_a_taking_back_that_fails_is_told():
    fs = FaultFS(disk())
    files = three_segments(fs)
    fs.fail("sync_files", path="*/sealed")
    with pytest.raises(OSError, match="Input/output"):
        time_summary.forget_from(fs, files, 0)


def test_where_nothing_is_to_be_taken_back_nothing_is_synced():
    fs = FaultFS(disk())
    files = three_segments(fs)
    time_summary.forget_from(fs, files, 905)
    time_summary.forget_from(fs, partition(fs), 10_000)
    assert "sync_files" not in {call.verb for call in fs.calls}


def test_where_nothing_was_noted_there_is_nothing_to_forget():
    fs = disk()
    files = written(fs, [1, 2], [3], marks=False)
    time_summary.forget_from(fs, files, 0)
    time_summary.forget_removed(fs, files)
    assert not fs.list_directory(files.private)


def test_rows_of_segments_that_are_not_complete_any_more_are_taken_back_at_the_next_open():
    fs = disk()
    three_segments(fs)
    fs.sync_files([fs.open(partition(fs).sealed)])
    begun_again(fs, 300, 300).close()
    for seed in range(20):
        assert sealed(fs.crash(random.Random(seed))) in (b"", sealed_of(times(300), 0, 8400))


def test_what_is_noted_of_segments_that_somebody_removed_is_taken_back_at_the_next_open():
    fs = disk()
    three_segments(fs)
    written(fs, times(300))  # over the files of the first one: nothing is left of the others
    assert sealed(fs) == b""
    assert marks(fs, 0) == marks_of(times(300))
    assert marks(fs, 300) == marks(fs, 600) == b""


def test_a_rotten_row_takes_no_other_with_it():
    fs = disk()
    files = three_segments(fs)
    content = bytearray(sealed(fs))
    content[70] ^= 1
    fs.write_durably(files.sealed, bytes(content))
    time_summary.forget_from(fs, files, 900)
    assert sealed(fs) == content


def removed(base: int) -> bytes:
    """Instead of the rows of all segments before this one."""
    return checked(struct.pack("<QQQqqqqI", 0, base, 0, 0, 0, LATEST, EARLIEST, 0))


def test_one_row_is_left_of_removed_segments():
    fs = disk()
    files = three_segments(fs)
    before = sealed(fs)
    time_summary.forget_removed(fs, files)
    assert sealed(fs) == before
    for number, base in enumerate((0, 300, 600), 1):
        remove_segment(fs, files, base)
        for _ in range(2):
            time_summary.forget_removed(fs, files)
            assert sealed(fs) == removed(300 * number) + before[64 * number :]


def test_no_row_is_made_of_removed_segments_where_others_may_be_that_have_none():
    fs = disk()
    files = three_segments(fs)
    fs.write_durably(files.sealed, sealed(fs)[:64] + sealed(fs)[128:])
    remove_segment(fs, files, 0)
    time_summary.forget_removed(fs, files)
    assert sealed(fs) == sealed_of(times(300, 3), 600, 8400)


def test_rows_of_removed_segments_are_dropped_when_there_are_many():
    fs = ram()
    by = writer(fs)
    for number in range(200):
        by.append([number])
        by.roll()
        if number:
            remove_segment(fs, by.files, number - 1)
    by.close()
    assert len(sealed(fs)) <= 66 * 64
    assert sealed(fs).endswith(sealed_of([199], 199, 28))


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("count", [3, 255, 300])
def test_a_stream_notes_its_first_segment_once_there_is_something_to_note(count, is_reopened):
    fs, moments, files = streams.disk(), times(count), streams.part()

    def opened():
        return streams.opened(fs, partition_count=1, segment_size=16 * 1024)

    def append(stream, some, value=b""):
        stream.append_many([(b"key", value, its) for its in some])
        stream.sync()
        if is_reopened:
            stream.close()
        return opened() if is_reopened else stream

    stream = append(opened(), moments[:255])
    assert fs.size_of(files.marks(0)) is None
    stream = append(stream, moments[255:])
    assert count < 256 or marks(fs) == marks_of(moments)
    stream = append(stream, [9], bytes(16 * 1024))
    stream = append(stream, [0])  # begins the next segment
    assert fs.size_of(files.marks(count + 1)) is None
    assert sealed(fs) == sealed_of([*moments, 9], 0, len(fs.read(files.data(0))))
    stream.close()


@pytest.mark.parametrize("noted", ["marks", "sealed"])
def test_an_open_takes_back_what_is_noted_of_messages_that_a_stream_does_not_have(noted):
    fs, files = streams.disk(), streams.part()
    with streams.opened(fs, partition_count=1) as stream:
        stream.append_many([(b"key", b"", its) for its in times(3)])
    path = files.marks(0) if noted == "marks" else files.sealed
    fs.write_durably(path, marks_of(times(256)) if noted == "marks" else sealed_of(times(256), 0, 9999))
    streams.opened(fs).close()
    assert fs.read(path) == b""


def test_the_real_disk_does_all_of_it(tmp_path):
    fs = OsFileSystem()
    files = partition(fs, str(tmp_path))
    for path in (
        files.stream.parts,
        files.stream.private,
        tmp_path / ".diskq/parts",
        files.directory,
        files.private,
    ):
        fs.make_directory(str(path))
    by = writer(fs, root=str(tmp_path))
    by.append(times(700))
    by.roll()
    by.append(times(300, 2))
    by.close()
    assert (tmp_path / ".diskq/parts/000000/sealed").read_bytes() == sealed_of(times(700), 0, 19600)
    time_summary.forget_from(fs, files, 700)
    remove_segment(fs, files, 0)
    time_summary.forget_removed(fs, files)
    assert (tmp_path / ".diskq/parts/000000/sealed").read_bytes() == removed(700)
    assert (tmp_path / f".diskq/parts/000000/{700:020}.marks").read_bytes() == b""


def test_the_latest_moment_there_is(tmp_path):
    fs = ram()
    by = writer(fs)
    by.append([LATEST] * 256 + [-(2**63)])
    by.roll()
    by.close()
    assert sealed(fs) == sealed_of([LATEST] * 256 + [-(2**63)], 0, 257 * 28)
