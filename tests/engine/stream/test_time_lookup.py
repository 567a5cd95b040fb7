# From a moment to an offset, against a look at every message. Law: the first in offset order that is late
# enough, whatever the order of timestamps, whichever program wrote the files, and whatever has happened to
# the files other than the data.

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diskq.engine.stream import time_lookup as timelookup
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.engine.stream.time_summary import Sealed, forget_removed, marked_crc, pack_mark
from diskq.errors import NotFoundError
from diskq.storage.fs import OsFileSystem
from diskq.testing import FaultFS
from tests.engine import moments
from tests.engine.moments import (
    ROOT,
    after,
    edges,
    first_after,
    first_at_or_after,
    messages,
    offset_after_once,
    opened,
    partition,
    ram,
    remove_segment,
    writer,
    written,
)
from tests.engine.ram import RamFS
from tests.sampling import examples, sampled

EARLIEST, LATEST = -(2**63), 2**63 - 1

either = pytest.mark.parametrize("marks", [True, False], ids=["ours", "a peer's"])


def agree(fs, asked=None) -> None:
    """Every question there is, or these, is answered rightly: asked again and again, and from nothing."""
    known = list(messages(fs, partition(fs)))
    with opened(fs) as lookup:
        for timestamp in edges(known) if asked is None else asked:
            judged = first_after(known, timestamp)
            assert lookup.offset_after(timestamp) == judged, timestamp
            assert after(fs, timestamp) == judged, timestamp
            assert lookup.offset_at_or_after(timestamp) == first_at_or_after(known, timestamp), timestamp


# --- the ends ---------------------------------------------------------------------------------


@either
def test_an_empty_partition_has_none(marks):
    fs = ram()
    written(fs, [], marks=marks)
    assert after(fs, 0) is None
    assert opened(fs).offset_at_or_after(EARLIEST) is None


@either
def test_before_the_first_is_the_first(marks):
    fs = ram()
    written(fs, [10, 20], [30], marks=marks)
    assert after(fs, 9) == after(fs, EARLIEST) == 0


@either
def test_at_or_after_the_last_is_none(marks):
    fs = ram()
    written(fs, [10, 20], [30], marks=marks)
    assert after(fs, 29) == 2
    assert after(fs, 30) is after(fs, LATEST) is None


@either
def test_equal_timestamps_are_passed_over_together(marks):
    fs = ram()
    written(fs, [10, 20, 20], [20, 20], [20, 21], marks=marks)
    assert after(fs, 20) == 6
    assert opened(fs).offset_at_or_after(20) == 1


@either
def test_before_1970_there_were_moments_too(marks):
    fs = ram()
    written(fs, [-30, -20], [-10, 0], [10], marks=marks)
    agree(fs)


@either
def test_an_empty_active_segment_harms_nothing(marks):
    fs = ram()
    written(fs, [10, 20], [30, 40], [], marks=marks)
    agree(fs)


@either
def test_segments_of_one_message_are_segments(marks):
    """Where go-diskq answers 0."""
    fs = ram()
    written(fs, [10], [20], [30], [], marks=marks)
    assert [after(fs, timestamp) for timestamp in (9, 10, 20, 30)] == [0, 1, 2, None]


@either
def test_where_the_clock_stepped_back_the_first_in_offset_order_is_found(marks):
    fs = ram()
    written(fs, [100, 50], [60, 70], [40, 99], [101, 98], marks=marks)
    assert after(fs, 55) == 0
    assert after(fs, 100) == 6
    agree(fs)


@either
def test_the_first_and_the_last_moment_that_64_bits_hold(marks):
    fs = ram()
    written(fs, [EARLIEST], [EARLIEST, LATEST], [LATEST], marks=marks)
    with opened(fs) as lookup:
        assert lookup.offset_at_or_after(EARLIEST) == lookup.offset_at_or_after(EARLIEST - 1) == 0
        assert lookup.offset_after(EARLIEST) == lookup.offset_at_or_after(LATEST) == 2
        assert lookup.offset_after(LATEST) is lookup.offset_after(10**30) is None
        assert lookup.offset_after(-(10**30)) == 0


def test_a_partition_that_is_not_there_is_an_error():
    fs = moments.disk()
    with pytest.raises(NotFoundError, match="no partition 7"):
        offset_after_once(fs, ROOT, 7, 0)


def test_a_partition_that_was_removed_is_an_error():
    fs = moments.disk()
    files = written(fs, [1], [2])
    lookup = opened(fs)
    for base in files.bases():
        remove_segment(fs, files, base)
    assert lookup.offset_after(0) is None


@pytest.mark.parametrize("varuint", [False, True])
def test_the_settings_tell_how_records_are_read(varuint):
    fs = ram()
    by = writer(fs, varuint=varuint)
    by.append([10, 20, 30])
    by.close()
    if varuint:
        fs.write_durably(partition(fs).stream.settings, b'{"encoding": "varuint"}\n')
    assert after(fs, 10) == 1
    fs.write_durably(partition(fs).timeindex(0), b"")
    assert after(fs, 10) == 1


# --- any order of timestamps ------------------------------------------------------------------

# A run of messages: where it begins, how far apart they are, and how many.
runs = st.tuples(
    st.integers(-100, 100), st.sampled_from([0, 1, -1, 7]), st.sampled_from([1, 2, 3, 60, 255, 256, 257, 600])
)
segments = st.lists(st.lists(runs, min_size=1, max_size=3), min_size=1, max_size=5)


def unrolled(of_runs: list[tuple[int, int, int]]) -> list[int]:
    return [start + step * number for start, step, count in of_runs for number in range(count)]


@either
@settings(max_examples=examples(60), deadline=None)
@given(
    segments=segments, asked=st.lists(st.integers(-400, 400), min_size=5, max_size=30), empty=st.booleans()
)
def test_any_order_of_timestamps(marks, segments, asked, empty):
    fs = ram()
    written(fs, *map(unrolled, segments), *([[]] if empty else []), marks=marks)
    agree(fs, asked)


@either
@pytest.mark.parametrize("seed", range(5))
def test_every_edge_of_a_partition_with_many_marks(marks, seed):
    rng = random.Random(seed)
    fs = ram()
    times = [number + rng.randrange(-40, 40) for number in range(3000)]
    written(fs, times[:1024], times[1024:1500], times[1500:1501], times[1501:], marks=marks)
    agree(fs, rng.sample(range(-50, 3050), 200))


class Growing(RuleBasedStateMachine):
    """A lookup that stays open while messages come and segments go, and some that do not."""

    marks = True

    def __init__(self):
        super().__init__()
        self.fs = ram()
        self.by = writer(self.fs, marks=self.marks)
        self.known: list[tuple[int, int]] = []
        self.lookup = opened(self.fs)

    @rule(of_runs=st.lists(runs, min_size=1, max_size=2))
    def append(self, of_runs):
        timestamps = unrolled(of_runs)
        self.known += enumerate(timestamps, self.by.next_offset)
        self.by.append(timestamps)

    @precondition(lambda self: self.by.entries)
    @rule()
    def roll(self):
        self.by.roll()

    @precondition(lambda self: self.by.base and self.known and self.known[0][0] < self.by.base)
    @rule(forget=st.booleans())
    def remove_the_oldest_segment(self, forget):
        first, second, *_ = partition(self.fs).bases()
        remove_segment(self.fs, self.by.files, first)
        self.known = [message for message in self.known if message[0] >= second]
        if forget:
            forget_removed(self.fs, self.by.files)

    @rule()
    def open_another(self):
        self.lookup.close()
        self.lookup = opened(self.fs)

    @rule()
    def write_in_another_process(self):
        self.by.close()
        self.by = moments.Writer(
            self.fs, self.by.files, self.by.base, self.by.entries, self.by.size, marks=self.by.marks
        )
        self.by.begin()

    @rule(timestamp=st.integers(-400, 400))
    def ask(self, timestamp):
        judged = first_after(self.known, timestamp)
        assert self.lookup.offset_after(timestamp) == judged
        assert after(self.fs, timestamp) == judged

    @invariant()
    def the_ends_are_right(self):
        assert self.lookup.offset_at_or_after(EARLIEST) == (self.known[0][0] if self.known else None)
        assert self.lookup.offset_after(5000) is None


class GrowingByAPeer(Growing):
    marks = False


TestGrowing = Growing.TestCase
TestGrowingByAPeer = GrowingByAPeer.TestCase
TestGrowing.settings = TestGrowingByAPeer.settings = settings(
    max_examples=examples(40), stateful_step_count=30, deadline=None
)


# --- what happens meanwhile -------------------------------------------------------------------


@either
def test_a_message_is_found_when_its_row_of_the_index_is_there(marks):
    fs = ram()
    by = writer(fs, marks=marks)
    lookup = opened(fs)
    by.append([10])
    assert lookup.offset_after(9) == 0
    index = fs.read(by.files.index_of(0))
    fs.write_durably(by.files.index_of(0), b"")
    assert lookup.offset_after(9) == 0, "it was there"
    assert after(fs, 9) is None, "the data is, and its row is not: it is being written"
    fs.write_durably(by.files.index_of(0), index)
    assert after(fs, 9) == 0


def test_a_segment_that_is_sealed_and_has_no_follower_yet():
    """A roll that finds no room for the next segment."""
    fs = ram()
    by = writer(fs)
    by.append([10, 20])
    by.roll()
    for path in by.files.segment(2):
        fs.unlink(path)
    agree(fs, [9, 10, 19, 20])


@either
def test_messages_and_a_roll_between_two_looks_are_not_missed(marks):
    fs = ram()
    by = writer(fs, marks=marks)
    by.append([10, 20])
    lookup = opened(fs)
    assert lookup.offset_after(20) is None
    by.append([15, 30])
    by.roll()
    by.append([40])
    assert lookup.offset_after(20) == 3
    assert lookup.offset_after(30) == 4


@either
@pytest.mark.parametrize("next_base", [4, 100, 10**15])
def test_messages_behind_lost_ones_are_found(marks, next_base):
    """Recovery never assigns an offset twice: it begins a segment after the lost offsets it knows."""
    fs = ram()
    by = writer(fs, marks=marks)
    by.append([10, 20])
    by.roll()
    by.append([30])
    lookup = opened(fs)
    assert lookup.offset_after(30) is None
    by.base, by.entries, by.size = next_base, 0, 0
    by.begin()
    by.append([40])
    assert lookup.offset_after(30) == after(fs, 30) == next_base
    agree(fs, [5, 10, 20, 25, 30, 39, 40])


@either
def test_a_segment_removed_from_the_middle_is_a_hole(marks):
    """As go-diskq's vacuum leaves it where timestamps step back."""
    fs = ram()
    files = written(fs, [50, 60], [10, 20], [70, 80], [90], marks=marks)
    lookup = opened(fs)
    assert lookup.offset_after(55) == 1
    remove_segment(fs, files, 2)
    agree(fs)
    assert lookup.offset_after(60) == 4


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_behind_removed_segments_no_directory_is_listed(gone):
    disk = FaultFS(ram())
    files = written(disk, [10, 60], [20], [30], [40, 50])
    for base in files.bases()[:gone]:
        remove_segment(disk, files, base)
    forget_removed(disk, files)
    disk.calls.clear()
    assert after(disk, 45) == 5
    assert after(disk, 15) == (2, 3, 4)[gone - 1]
    assert "list_directory" not in {call.verb for call in disk.calls}
    agree(disk.inner)


@either
def test_rows_that_retention_left_lead_nowhere(marks):
    fs = ram()
    files = written(fs, [10, 20], [30, 40], [50], marks=marks)
    fs.unlink(files.data(0))
    assert after(fs, 5) == 2
    agree(fs)


@either
def test_a_lookup_holds_a_few_files_open_and_closes_them(marks):
    disk = FaultFS(ram())
    written(disk, *([number, number + 1] for number in range(300)), marks=marks)
    disk.calls.clear()
    with opened(disk) as lookup:
        for number in random.Random(1).sample(range(299), 299):
            assert lookup.offset_after(number) == first_after(enumerate_pairs(), number)
    opened_, closed = (
        [call.path for call in disk.calls if call.verb == verb and call.error is None]
        for verb in ("open", "close")
    )
    assert sorted(opened_) == sorted(closed)
    most = held = 0
    for call in disk.calls:
        held += (call.verb == "open" and call.error is None) - (call.verb == "close")
        most = max(most, held)
    assert most <= 3 * timelookup._MOST_OPEN + 1


def enumerate_pairs():
    return enumerate(time for number in range(300) for time in (number, number + 1))


def test_files_of_removed_segments_are_given_up():
    disk = FaultFS(ram())
    files = written(disk, [10], [20], [30], marks=False)
    lookup = opened(disk)
    assert [lookup.offset_after(timestamp) for timestamp in (0, 10, 20)] == [0, 1, 2]
    disk.calls.clear()
    remove_segment(disk, files, 0)
    assert lookup.offset_after(0) == 1
    assert [call.path for call in disk.calls if call.verb == "close"][:1] == [files.timeindex(0)]
    remove_segment(disk, files, 1)
    disk.calls.clear()
    lookup.close()
    assert files.timeindex(1) in {call.path for call in disk.calls if call.verb == "close"}


def test_files_of_segments_that_were_removed_together_are_given_up_together():
    disk = FaultFS(ram())
    files = written(disk, [10], [20], [30], [40], marks=False)
    lookup = opened(disk)
    assert [lookup.offset_after(timestamp) for timestamp in (0, 10, 20)] == [0, 1, 2]
    disk.calls.clear()
    remove_segment(disk, files, 0)
    remove_segment(disk, files, 1)
    assert lookup.offset_after(0) == 2
    closed = [call.path for call in disk.calls if call.verb == "close"]
    assert {files.timeindex(0), files.timeindex(1)} <= set(closed)
    lookup.close()


class Interrupted(RamFS):
    """Another process does something while a file is looked for."""

    meanwhile: Callable[[], None] | None = None

    def size_of(self, path):
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return super().size_of(path)


@either
def test_messages_and_a_roll_in_the_middle_of_a_look_are_not_missed(marks):
    fs = Interrupted({})
    by = writer(fs, marks=marks)
    by.append([10, 20])
    lookup = opened(fs)
    assert lookup.offset_after(10) == 1

    def meanwhile():
        by.append([30])
        by.roll()
        by.append([40])

    fs.meanwhile = meanwhile
    assert lookup.offset_after(20) == 2


# --- what it costs ----------------------------------------------------------------------------


def test_from_nothing_a_moment_costs_four_files():
    disk = FaultFS(ram())
    files = written(disk, *([time] * 600 for time in range(13)))
    disk.calls.clear()
    assert after(disk, 4) == 5 * 600
    assert [call.path for call in disk.calls if call.verb == "open"] == [
        files.sealed,
        files.timeindex(3000),
        files.marks(3000),
    ]
    assert [(call.path, call.size) for call in disk.calls if call.verb == "pread"] == [
        (files.sealed, 12 * 64),
        (files.marks(3000), 2 * 16),
        (files.timeindex(3000), 4096),
    ]
    assert "list_directory" not in {call.verb for call in disk.calls}


def test_when_it_is_open_a_moment_costs_one_read():
    disk = FaultFS(ram())
    files = written(disk, *([time] * 600 for time in range(13)))
    with opened(disk) as lookup:
        assert lookup.offset_after(4) == 3000
        disk.calls.clear()
        assert lookup.offset_after(4) == 3000
    assert [(call.verb, call.path) for call in disk.calls if call.verb != "close"] == [
        ("has_name", files.timeindex(3000)),
        ("pread", files.timeindex(3000)),
    ]


def test_the_timeindex_of_a_peer_is_read_once():
    disk = FaultFS(ram())
    files = written(disk, *([time] * 600 for time in range(13)), marks=False)
    with opened(disk) as lookup:
        assert lookup.offset_after(11) == 12 * 600
        disk.calls.clear()
        assert lookup.offset_after(4) == 3000
    assert [
        call.path for call in disk.calls if call.verb == "pread" and call.path.endswith(".timeindex")
    ] == [files.timeindex(3000)]


# --- damage -----------------------------------------------------------------------------------


def rotten(fs, path):
    """The file with each of its bytes wrong, or a sample of them, one after the other, and in two ways."""
    whole = fs.read(path)
    for at in sampled(range(len(whole)), 500):
        for mask in (0x41, 0xFF):
            content = bytearray(whole)
            content[at] ^= mask
            fs.write_durably(path, bytes(content))
            yield at
    fs.write_durably(path, whole)


def cut(fs, path):
    """The file at each length that it might have been cut to."""
    whole = fs.read(path)
    for size in sampled(range(len(whole)), 500):
        fs.write_durably(path, whole[:size])
        yield size
    fs.write_durably(path, whole)


TIMES = [(number * 37) % 50 + number for number in range(300)]


def damaged():
    """Two complete segments, one of them with a mark, and an active one with a mark and a rest."""
    fs = ram()
    files = written(fs, TIMES, TIMES[:20], [time + 300 for time in TIMES[:270]])
    known = list(messages(fs, files))
    return fs, files, known


def questions(known, number):
    """A few moments: just before and at one of the messages, and all over."""
    timestamp = known[number % len(known)][1]
    return timestamp - 1, timestamp, -5, 150, 330, 500, 640, 2000


def right(fs, known, number):
    for timestamp in questions(known, number):
        assert after(fs, timestamp) == first_after(known, timestamp), (number, timestamp)


@pytest.mark.parametrize("base", [0, 300])
def test_a_timeindex_that_rots_changes_no_answer(base):
    fs, files, known = damaged()
    for at in rotten(fs, files.timeindex(base)):
        right(fs, known, base + at // 16)


def test_the_timeindex_of_the_active_segment_that_rots_changes_no_answer_where_marks_are():
    fs, files, known = damaged()
    base = files.bases()[-1]
    for at in rotten(fs, files.timeindex(base)):
        if at < 4096:
            right(fs, known, base + at // 16)


def test_behind_the_marks_no_answer_is_given_that_the_record_does_not_confirm():
    fs = ram()
    files = written(fs, [1000 + number for number in range(10)])
    known = list(messages(fs, files))
    for at in rotten(fs, files.timeindex(0)):
        for timestamp in range(998, 1012):
            answer = after(fs, timestamp)
            judged = first_after(known, timestamp)
            assert answer is None or dict(known)[answer] > timestamp
            assert answer == judged or (answer or 10) > (judged or 10) or judged == at // 16


@pytest.mark.parametrize("base", [0, 320])
def test_marks_that_rot_change_no_answer(base):
    fs, files, known = damaged()
    for at in rotten(fs, files.marks(base)):
        right(fs, known, base + at * 16)


def test_rows_of_sealed_segments_that_rot_change_no_answer():
    fs, files, known = damaged()
    for at in rotten(fs, files.sealed):
        right(fs, known, at * 7)


@pytest.mark.parametrize("base", [0, 300, 320])
def test_the_timeindex_of_a_peer_that_is_cut_changes_no_answer(base):
    fs = ram()
    files = written(fs, TIMES, TIMES[:20], [time + 300 for time in TIMES[:270]], marks=False)
    known = list(messages(fs, files))
    for size in cut(fs, files.timeindex(base)):
        if size % 16 in (0, 1, 15):
            right(fs, known, base + size // 16)


@pytest.mark.parametrize("which", ["timeindex", "marks"])
@pytest.mark.parametrize("base", [0, 320])
def test_a_file_that_is_cut_changes_no_answer(which, base):
    fs, files, known = damaged()
    for size in cut(fs, getattr(files, which)(base)):
        right(fs, known, base + size // 16)


def test_rows_of_the_first_segments_that_were_never_written_change_no_answer():
    """A power cut takes some of what was not synced: not always the last of it."""
    fs, files, known = damaged()
    rows = [fs.read(files.sealed)[at : at + 64] for at in (0, 64)]
    for left in ((rows[1],), (rows[1], rows[0]), (rows[1], rows[1]), (rows[0], bytes(64))):
        fs.write_durably(files.sealed, b"".join(left))
        for number in range(0, 590, 7):
            right(fs, known, number)


def test_rows_of_sealed_segments_that_are_cut_change_no_answer():
    fs, files, known = damaged()
    for size in cut(fs, files.sealed):
        right(fs, known, size)


@pytest.mark.parametrize("which", ["timeindex", "marks", "sealed", "index_of"])
def test_a_file_that_is_gone_changes_no_answer(which):
    fs, files, known = damaged()
    fs.unlink(files.sealed if which == "sealed" else getattr(files, which)(0))
    for number in range(0, 590, 7):
        right(fs, known, number)


@pytest.mark.parametrize("next_base", [300, 10**15])
def test_a_segment_without_any_rows_is_read_from_its_records(next_base):
    fs = ram()
    by = writer(fs, marks=False)
    by.append(TIMES)
    by.close()
    by.base, by.entries, by.size = next_base, 0, 0
    by.begin()
    by.append([2000])
    by.close()
    known = list(messages(fs, by.files))
    fs.unlink(by.files.index_of(0))
    fs.unlink(by.files.timeindex(0))
    for number in range(0, 300, 7):
        right(fs, known, number)


@either
def test_an_index_that_rots_changes_no_answer(marks):
    fs = ram()
    files = written(fs, [30, 10, 40, 20], [50, 35], marks=marks)
    known = list(messages(fs, files))
    for base in (0, 4):
        for _ in rotten(fs, files.index_of(base)):
            for timestamp in edges(known):
                assert after(fs, timestamp) == first_after(known, timestamp)


def test_an_open_lookup_is_not_misled_either():
    fs, files, known = damaged()
    with opened(fs) as lookup:
        for timestamp in (0, 100, 320, 500):
            lookup.offset_after(timestamp)
        for path in (files.timeindex(0), files.marks(0), files.sealed):
            content = bytearray(fs.read(path))
            content[20:40] = bytes(20)
            fs.write_durably(path, bytes(content))
        for timestamp in edges(known):
            assert lookup.offset_after(timestamp) == first_after(known, timestamp)


def test_a_row_that_does_not_fit_its_segment_is_passed_over():
    fs, files, known = damaged()
    row = Sealed.unpack(fs.read(files.sealed)[:64])
    assert row is not None
    for wrong in (
        row._replace(size=1, greatest=LATEST),
        row._replace(entries=299),
        row._replace(entries=301),
    ):
        fs.write_durably(files.sealed, wrong.pack() + fs.read(files.sealed)[64:])
        for number in range(0, 590, 7):
            right(fs, known, number)


@pytest.mark.parametrize("greatest", [10**6, 320])
def test_a_mark_that_promises_too_much_is_found_out(greatest):
    fs, files, known = damaged()
    fs.write_durably(files.marks(0), pack_mark(greatest, marked_crc(fs.read(files.marks(0)), 0)))
    for timestamp in edges(known):
        assert after(fs, timestamp) == first_after(known, timestamp)


def test_an_orphan_of_a_crashed_peer_does_not_shift_the_answers():
    """go-diskq writes the timeindex first and repairs nothing: its own answers are wrong from there on."""
    fs = ram()
    files = written(fs, [10, 20, 30, 40], marks=False)
    rows = fs.read(files.timeindex(0))
    fs.write_durably(files.timeindex(0), rows[:32] + rows[16:32] + rows[32:])
    agree(fs)


def test_an_error_of_the_disk_is_no_answer():
    disk = FaultFS(ram())
    written(disk, [10] * 300, [20])
    for verb in ("open", "pread", "size_of"):
        disk.fail(verb, path="*.timeindex" if verb != "size_of" else "*.data")
        with pytest.raises(OSError, match="Input/output"):
            after(disk, 5)
        assert after(disk, 5) == 0


def test_the_real_disk_answers_the_same(tmp_path):
    fs = OsFileSystem()
    files = partition(fs, str(tmp_path))
    stream = files.stream
    for path in (
        stream.parts,
        stream.private,
        str(tmp_path / ".diskq/parts"),
        files.directory,
        files.private,
    ):
        fs.make_directory(path)
    by = writer(fs, root=str(tmp_path))
    lookup = TimeLookup(fs, files)
    for start in range(0, 3000, 700):
        by.append([(number * 37) % 50 + number for number in range(start, start + 700)])
        by.roll()
    known = list(messages(fs, files))
    for timestamp in range(-3, 3600, 11):
        judged = first_after(known, timestamp)
        assert lookup.offset_after(timestamp) == offset_after_once(fs, str(tmp_path), 0, timestamp) == judged
    remove_segment(fs, files, 0)
    assert lookup.offset_after(0) == offset_after_once(fs, str(tmp_path), 0, 0) == 700
    lookup.close()
    by.close()
