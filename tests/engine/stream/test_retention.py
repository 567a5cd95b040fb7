# Retention. Law: what goes is a beginning, the active segment stays, and what a call that was cut short has
# left is gone after the next one.

from __future__ import annotations

import contextlib
import errno
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.retention import retain
from diskq.engine.stream.stream import Stream
from diskq.engine.stream.time_summary import Sealed
from diskq.errors import NotFoundError
from diskq.options import StreamOptions
from diskq.testing import CrashFS, FaultFS, PowerCut
from tests.engine import moments
from tests.engine.moments import ROOT, Writer, after, messages, opened, partition, writer, written
from tests.sampling import examples

HOUR = 3600 * 10**9
RECORD = 28  # bytes of data of each message here

either = pytest.mark.parametrize("marks", [True, False], ids=["ours", "a peer's"])


def of(fs) -> StreamFiles:
    return StreamFiles(fs, ROOT)


def retained(fs, now: int = 0, **bounds):
    return retain(fs, of(fs), now_ns=now, **bounds)


def bases(fs) -> list[int]:
    return partition(fs).bases()


def everything(fs) -> list[str]:
    """The names of all files of the partition, what is ours beside them included, but for `sealed`."""
    files = partition(fs)
    names = [name for at in (files.directory, files.private) for name in fs.list_directory(at)]
    return sorted(name for name in names if name != "sealed")


def of_segments(fs, *there: int) -> list[str]:
    files = partition(fs)
    paths = [path for base in there for path in (*files.segment(base), *files.private_files(base))]
    return sorted(path.rpartition("/")[2] for path in paths if fs.size_of(path) is not None)


# --- as go-diskq tests it ---------------------------------------------------------------------


def hourly(fs, now: int) -> None:
    """64 messages, an hour apart, the last an hour ago: aged 64 to 46 hours, 45 to 27, 26 to 8, 7 to 1."""
    ages = range(64, 0, -1)
    by_segment = (ages[:19], ages[19:38], ages[38:57], ages[57:])
    written(fs, *([now - age * HOUR for age in segment] for segment in by_segment))


def test_vacuum_by_age_as_promised():
    """Its own test expects 2, which takes messages of 27 to 32 hours with it."""
    fs = moments.disk()
    hourly(fs, now=10**18)
    assert len(bases(fs)) == 4
    assert retained(fs, 10**18, max_age_ns=32 * HOUR).segments == 1
    assert len(bases(fs)) == 3


def test_vacuum_by_age_as_go_diskq_does_it():
    fs = moments.disk()
    hourly(fs, now=10**18)
    retained(fs, 10**18, max_age_ns=32 * HOUR, age_rule="oldest")
    assert len(bases(fs)) == 2


def test_a_dry_run_tells_the_same_and_removes_nothing():
    fs = moments.disk()
    hourly(fs, now=10**18)
    before = everything(fs)
    told = retained(fs, 10**18, max_age_ns=32 * HOUR, dry_run=True)
    assert everything(fs) == before
    assert retained(fs, 10**18, max_age_ns=32 * HOUR) == told


def test_vacuum_by_size():
    fs = moments.disk()
    written(fs, *([1] * 10 for _ in range(5)), [])
    assert len(bases(fs)) == 6
    report = retained(fs, max_bytes=20 * RECORD)
    assert bases(fs) == [30, 40, 50]
    assert (report.segments, report.removed_bytes) == (3, 30 * RECORD)


def test_vacuum_of_partitions_that_nobody_writes_to():
    fs = moments.disk()
    for index in range(3):
        files = of(fs).partition(index)
        fs.make_directory_durably(files.directory)
        fs.make_directory_durably(files.private)
        by = Writer(fs, files)
        by.begin()
        for _ in range(16):
            by.append([1] * 10)
            by.roll()
        by.close()
    report = retained(fs, max_bytes=30 * RECORD)
    assert [len(of(fs).partition(index).bases()) for index in range(3)] == [4, 4, 4]
    assert [(told.partition, len(told.removed), told.first_offset) for told in report.partitions] == [
        (0, 13, 130),
        (1, 13, 130),
        (2, 13, 130),
    ]


def test_vacuum_beside_a_reader():
    fs = moments.disk()
    written(fs, [10], [20], [30])
    lookup = opened(fs)
    assert lookup.offset_after(5) == 0
    retained(fs, max_bytes=RECORD)
    assert lookup.offset_after(5) == 1


# --- what stays -------------------------------------------------------------------------------


@either
def test_without_a_bound_nothing_goes(marks):
    fs = moments.disk()
    written(fs, [1], [2], [3], marks=marks)
    assert retained(fs, now=10**18).partitions == ()
    assert bases(fs) == [0, 1, 2]


@either
def test_the_active_segment_stays_however_old_and_large_it_is(marks):
    fs = moments.disk()
    written(fs, [1], [2] * 100, marks=marks)
    retained(fs, now=10**18, max_bytes=1, max_age_ns=1)
    assert bases(fs) == [1]
    assert everything(fs) == of_segments(fs, 1)


@either
def test_an_empty_active_segment_stays(marks):
    fs = moments.disk()
    written(fs, [1], [], marks=marks)
    retained(fs, now=10**18, max_age_ns=1)
    assert bases(fs) == [1]


@either
def test_a_segment_goes_when_its_newest_message_is_older_and_not_a_nanosecond_sooner(marks):
    fs = moments.disk()
    written(fs, [100, 50], [200], marks=marks)
    assert not retained(fs, now=150, max_age_ns=50).partitions
    assert retained(fs, now=151, max_age_ns=50).segments == 1


@either
@pytest.mark.parametrize("age_rule", ["newest", "oldest"])
def test_what_lies_behind_a_segment_that_stays_stays(marks, age_rule):
    """go-diskq would leave a hole."""
    fs = moments.disk()
    written(fs, [10], [500, 510], [20], [30], [600], marks=marks)
    report = retained(fs, now=700, max_age_ns=400, age_rule=age_rule)
    assert [told.removed for told in report.partitions] == [(0,)]
    assert bases(fs) == [1, 3, 4, 5]


@either
@pytest.mark.parametrize("age_rule", ["newest", "oldest"])
def test_a_message_stamped_in_the_future_does_not_stop_retention_for_years(marks, age_rule):
    """Its segment is as old as its file, and what lies behind it goes as ever."""
    fs = moments.disk()
    fs.epoch = 0.0
    far = 75 * 8766 * HOUR
    written(fs, [far, 1], [2], [50], [55], marks=marks)
    kept = retained(fs, now=60, max_age_ns=60, age_rule=age_rule)
    assert kept.partitions == ()
    assert [(each.partition, each.base, each.removed) for each in kept.from_future] == [(0, 0, False)]
    report = retained(fs, now=100, max_age_ns=60, age_rule=age_rule)
    assert [told.removed for told in report.partitions] == [(0, 2)]
    (told,) = report.from_future
    assert (told.timestamp_ns, told.written_ns, told.removed) == (far, 0, True)
    assert str(told) == (
        "partition 0, segment 0: a message is stamped 2044-12-31T18:00:00Z, in the future; "
        "the segment has the age of its file, written 1970-01-01T00:00:00Z: removed"
    )


@either
def test_by_size_it_is_the_oldest_that_go_whatever_their_age(marks):
    fs = moments.disk()
    written(fs, [900] * 3, [1], [2], [3], marks=marks)
    assert retained(fs, now=1000, max_bytes=2 * RECORD, max_age_ns=999).partitions[0].removed == (0,)


@pytest.mark.parametrize(
    "keep_from, left",
    [(0, [0, 2, 4, 6]), (1, [0, 2, 4, 6]), (2, [2, 4, 6]), (5, [4, 6]), (6, [6]), (99, [6])],
)
def test_what_is_still_needed_stays(keep_from, left):
    fs = moments.disk()
    written(fs, [1, 1], [2, 2], [3, 3], [4])
    retained(fs, now=10**18, max_bytes=1, max_age_ns=1, keep_from={0: keep_from})
    assert bases(fs) == left


def test_a_partition_that_nobody_needs_is_not_kept():
    fs = moments.disk()
    written(fs, [1], [2])
    assert retained(fs, max_bytes=1, keep_from={7: 0}).segments == 1


def test_a_segment_that_cannot_be_read_has_no_age_but_a_size():
    fs = moments.disk()
    files = written(fs, [1] * 3, [2], [3], marks=False)
    fs.write_durably(files.data(0), b"\xff" * (3 * RECORD))
    fs.write_durably(files.timeindex(0), b"")
    assert not retained(fs, now=10**18, max_age_ns=1).partitions
    assert retained(fs, max_bytes=3 * RECORD).segments == 1


@pytest.mark.exhaustive
def test_rot_beside_the_data_does_not_make_it_older():
    fs = moments.disk()
    files = written(fs, [1] * 299 + [900], [2], [3])
    for path in (files.timeindex(0), files.marks(0), files.sealed):
        whole = fs.read(path)
        for at in range(len(whole)):
            for mask in (0x80, 0xFF):
                content = bytearray(whole)
                content[at] ^= mask
                fs.write_durably(path, bytes(content))
                assert not retained(fs, now=1000, max_age_ns=200).partitions, (path, at)
        fs.write_durably(path, whole)


def test_a_row_that_does_not_fit_its_segment_does_not_make_it_older():
    fs = moments.disk()
    files = written(fs, [1, 900], [2], [3])
    row = Sealed.unpack(fs.read(files.sealed)[:64])
    assert row is not None
    for wrong in (row._replace(size=1), row._replace(entries=1), row._replace(entries=3)):
        fs.write_durably(files.sealed, wrong._replace(greatest=1).pack() + fs.read(files.sealed)[64:])
        assert not retained(fs, now=1000, max_age_ns=200).partitions


def test_there_must_be_a_stream():
    with pytest.raises(NotFoundError, match="no stream"):
        retain(CrashFS(), StreamFiles(CrashFS(), "/nowhere"), now_ns=0, max_bytes=1)


def test_an_empty_partition_is_left_alone():
    fs = moments.disk()
    assert retained(fs, max_bytes=1).partitions == ()


# --- any partition ----------------------------------------------------------------------------

segments = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=7)


@either
@settings(max_examples=examples(150), deadline=None)
@given(
    segments=segments,
    max_bytes=st.none() | st.integers(1, 20 * RECORD),
    max_age=st.none() | st.integers(1, 30),
    age_rule=st.sampled_from(["newest", "oldest"]),
    kept=st.none() | st.integers(0, 30),
)
def test_what_goes_is_the_longest_beginning_of_what_is_too_much(
    marks, segments, max_bytes, max_age, age_rule, kept
):
    fs = moments.disk()
    fs.epoch = 0.0
    written(fs, *segments, marks=marks)
    before, first = list(messages(fs, partition(fs))), bases(fs)
    report = retained(
        fs,
        30,
        max_bytes=max_bytes,
        max_age_ns=max_age,
        age_rule=age_rule,
        keep_from=None if kept is None else {0: kept},
    )
    goes = 0
    for number, timestamps in enumerate(segments[:-1]):
        size = sum(map(len, segments[number:-1])) * RECORD
        time = max(timestamps) if age_rule == "newest" else timestamps[0]
        if time > 30:
            time = 0  # stamped in the future: when the file was written
        is_too_much = max_bytes is not None and size > max_bytes
        is_too_old = max_age is not None and time < 30 - max_age
        is_needed = kept is not None and first[number + 1] > kept
        if is_needed or not (is_too_much or is_too_old):
            break
        goes += 1
    assert bases(fs) == first[goes:]
    assert report.segments == goes
    assert report.removed_bytes == sum(map(len, segments[:goes])) * RECORD
    assert everything(fs) == of_segments(fs, *first[goes:])
    assert list(messages(fs, partition(fs))) == [told for told in before if told[0] >= first[goes]]


# --- what happens meanwhile, and what does not happen any more --------------------------------


def test_files_are_removed_data_first():
    """To a reader a segment is there as long as its data is; what has no data is a leftover."""
    disk = FaultFS(moments.disk())
    files = written(disk, [1] * 300, [2], [3])
    disk.calls.clear()
    retained(disk, max_bytes=RECORD)
    data, index, timeindex = files.segment(0)
    unlinked = [call.path for call in disk.calls if call.verb == "unlink"]
    assert unlinked == [data, index, timeindex, files.checksum_file(0), files.marks(0)]
    assert not {"sync_files", "sync_directory"} & {call.verb for call in disk.calls}


def synced(fs: CrashFS) -> CrashFS:
    """The same files, all of them durable."""
    shadow = moments.disk()
    for path, content in fs.files().items():
        shadow.write_durably(path, content)
    return shadow


def test_a_call_that_was_cut_short_is_made_up_for():
    whole = moments.disk()
    written(whole, [1] * 300, [2] * 300, [3] * 300, [4])
    for cut in itertools.count(1):
        fs = synced(whole)
        fs.cut_at = fs.operations + cut
        with contextlib.suppress(PowerCut):
            retained(fs, max_bytes=300 * RECORD)
        for left in (fs.kill(), *(fs.crash(random.Random(seed)) for seed in range(20))):
            retained(left, max_bytes=300 * RECORD)
            assert everything(left) == of_segments(left, 600, 900)
            assert after(left, 2) == 600
        if not fs.is_cut:
            break


def test_beside_a_producer_no_file_is_taken_that_it_has_just_made():
    """It begins a segment while we look for leftovers."""
    fs = moments.disk()
    by = writer(fs)
    by.append([1] * 300)
    by.roll()
    by.append([2] * 300)

    class Beside(FaultFS[CrashFS]):
        def list_directory(self, path):
            names = super().list_directory(path)
            if path == by.files.directory and by.base == 300:
                by.roll()
                by.append([3] * 300)
            return names

    report = retained(Beside(fs), max_bytes=1)
    assert report.partitions[0].removed == (0,)
    by.close()
    assert bases(fs) == [300, 600]
    assert everything(fs) == of_segments(fs, 300, 600)
    assert after(fs, 2) == 600


def test_another_process_may_remove_the_same_segments():
    fs = moments.disk()
    written(fs, [1], [2], [3], [4])

    class Beside(FaultFS[CrashFS]):
        def size_of(self, path):
            if path == partition(fs).data(1):
                retained(fs, max_bytes=2 * RECORD)
            return super().size_of(path)

    retained(Beside(fs), now=10**18, max_bytes=RECORD, max_age_ns=1)
    assert bases(fs) == [3]
    assert everything(fs) == of_segments(fs, 3)


@either
def test_no_file_stays_open(marks):
    disk = FaultFS(moments.disk())
    written(disk, [1] * 300, [2] * 300, [500], [4], marks=marks)
    disk.calls.clear()
    retained(disk, now=300, max_age_ns=100)
    opened_, closed = (
        sorted(call.path for call in disk.calls if call.verb == verb and call.error is None)
        for verb in ("open", "close")
    )
    assert opened_ == closed != []


def test_a_partition_that_is_removed_meanwhile_is_passed_over():
    fs = moments.disk()
    fs.make_directory_durably(of(fs).partition(1).directory)
    written(fs, [1], [2])

    class Beside(FaultFS[CrashFS]):
        def list_directory(self, path):
            if path == of(fs).partition(1).directory:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            return super().list_directory(path)

    assert retained(Beside(fs), max_bytes=1).segments == 1


def test_a_file_that_cannot_be_removed_is_reported():
    disk = FaultFS(moments.disk())
    written(disk, [1], [2])
    disk.fail("unlink", error=errno.EACCES)
    with pytest.raises(PermissionError):
        retained(disk, max_bytes=1)
    assert retained(disk, max_bytes=1).segments == 1


@pytest.mark.parametrize("boot", ["another", "the same", "none"])
def test_half_of_a_removed_segment_that_comes_back_is_set_aside(boot):
    """A power cut takes a removal back, and what was not synced, whatever the boot id says after it."""
    fs = moments.disk()
    fs.has_boot_id = boot != "none"
    options = StreamOptions(partition_count=1, segment_size=300, sync_every=10**6, sync_timeout=3600.0)
    stream = Stream(ROOT, options=options, fs=fs)
    for number in range(12):
        stream.append(b"%d" % number * 100, b"key")
    files = partition(fs)
    before, (removed, *_, active) = fs.files(), bases(fs)
    retained(fs, max_bytes=1)
    assert bases(fs) == [active]
    left = synced(fs)
    for path in (*files.segment(removed), files.checksum_file(removed)):
        is_data = path == files.data(removed)
        left.write_durably(path, before[path][: len(before[path]) // 2] if is_data else before[path])
    left.has_boot_id = fs.has_boot_id
    left = left.crash(is_restart=boot == "another")
    with Stream(ROOT, options=options, fs=left) as again:
        assert files.data(removed) in [repair.path for repair in again.repairs]
    assert removed not in bases(left)
