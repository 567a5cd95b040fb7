# Reading a journal. Law: every readable message is returned once, in the order of offsets, with its own key;
# incomplete ones are waited for; missing ones are reported; and no call runs for ever.

from __future__ import annotations

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from diskq.engine.journal.reader import JournalReader
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.testing import CrashFS, FaultFS
from tests.engine.journals import (
    ROOT,
    as_told,
    data,
    disk,
    given,
    item,
    items,
    lay_out,
    opened,
    read_all,
    reader,
    stored,
    told,
)
from tests.engine.ram import RamFS
from tests.reference import sej_oracle as oracle
from tests.sampling import examples

sizes = pytest.mark.parametrize("size", [0, 50, 150, 10**6])


# --- forward ----------------------------------------------------------------------------------


@sizes
def test_from_every_offset_the_rest_is_read(size):
    fs = disk()
    lay_out(fs, items(9), size)
    for offset in range(10):
        assert read_all(fs, offset) == told(items(9))[offset:]
    with reader(fs) as found:
        for offset in range(9):
            assert found.position == offset
            assert as_told([m for m in [found.read()] if m]) == told([item(offset)], offset)


def test_all_that_was_written_by_us_is_read_by_blocks_and_by_columns():
    fs = disk()
    with opened(fs, segment_size=20_000) as journal:
        journal.append_many(given(items(900, 100)))
    assert read_all(fs) == told(items(900, 100))
    for offset in (1, 37, 400, 899):
        assert read_all(fs, offset) == told(items(900, 100))[offset:]
    with reader(fs, 5) as found:
        offset, values = 5, b""
        while (columns := found.columns(3000)) is not None:
            assert (columns[0], columns[1].first_offset) == (offset, offset)
            offset += columns[1].records
            values += columns[1].values
    assert (offset, values) == (900, b"".join(its[3] for its in items(900, 100)[5:]))


def test_a_message_without_a_key_has_none_whatever_the_one_before_had():
    fs = disk()
    lay_out(fs, [(b"key", 1, 0, b"a"), (b"", 2, 0, b"b"), (b"other", 3, 0, b"c"), (b"", 4, 0, b"d")])
    with reader(fs) as found:
        assert [message.key for message in found.read_many(9)] == [b"key", b"", b"other", b""]


def test_reading_makes_nothing(tmp_path):
    with JournalReader(tmp_path / "nowhere") as found:
        for act in (lambda: found.seek(0), found.fill, found.next_offset, found.seek_newest):
            with pytest.raises(NotFoundError):
                act()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "jnl").mkdir()
    with JournalReader(tmp_path) as found:
        assert (found.read(), found.next_offset(), found.read_back(3)) == (None, 0, [])
    assert [path.name for path in tmp_path.iterdir()] == ["jnl"]


@pytest.mark.parametrize("offset", [2, 10, 99])
def test_an_offset_that_is_not_there_is_said_to_be(offset):
    fs = disk()
    lay_out(fs, items(6, 20)[3:], 100, base=3)
    with reader(fs, 4) as found, pytest.raises(OffsetOutOfRangeError) as refused:
        found.seek(offset)
    assert (refused.value.first_offset, refused.value.next_offset) == (3, 6)


def test_it_seeks_by_words():
    fs = disk()
    lay_out(fs, items(9), 150, base=4)
    with reader(fs, 4) as found:
        found.seek_newest()
        assert found.position == 12
        found.seek_oldest()
        assert found.position == 4
        found.seek_active()
        assert found.position == max(int(name[:16], 16) for name in oracle.files(items(9), 150, 4))


# --- what is not all there --------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 4])
def test_an_incomplete_message_is_waited_for_at_every_byte(before):
    fs = RamFS({})
    lay_out(fs, items(before))
    handle = fs.open(data(), write=True)
    laid_down = oracle.record(before, *item(before))
    at = fs.size(handle)
    with reader(fs) as found:
        assert as_told(found.read_many(99)) == told(items(before))
        assert found.tail == "END"
        for number in range(len(laid_down) - 1):
            fs.pwrite(handle, laid_down[number : number + 1], at + number)
            assert found.read() is None
            assert (found.tail, found.position, found.losses) == ("TORN", before, [])
        fs.pwrite(handle, laid_down[-1:], at + len(laid_down) - 1)
        assert as_told(found.read_many(99)) == told([item(before)], before)
        assert (found.read(), found.tail) == (None, "END")


def test_waiting_at_a_torn_tail_reads_nothing_again():
    fs = FaultFS(disk())
    lay_out(fs.inner, items(3))
    fs.inner.write_durably(data(), fs.inner.read(data())[:-3])
    with reader(fs) as found:
        found.read_many(99)
        assert not found.fill()
        fs.calls.clear()
        for _ in range(5):
            assert not found.fill()
        assert [call for call in fs.calls if call.verb == "pread" and call.path == data()] == []


def test_zeros_at_the_end_are_corrupt_and_no_torn_message():
    fs = disk()
    lay_out(fs, items(3))
    fs.write_durably(data(), fs.read(data()) + bytes(40))
    with reader(fs) as found:
        assert as_told(found.read_many(99)) == told(items(3))
        assert (found.tail, found.losses, found.position) == ("CORRUPT", [], 3)


@sizes
def test_messages_come_as_they_are_written(size):
    fs = RamFS({})
    with opened(fs, segment_size=size) as journal, reader(fs) as elsewhere, reader(fs) as here:
        here.live = journal.steps.live
        for number in range(12):
            assert (elsewhere.read(), here.read()) == (None, None)
            journal.append(*given([item(number)])[0][1::-1], *given([item(number)])[0][2:])
            assert as_told(elsewhere.read_many(9)) == told([item(number)], number)
            assert here.catch_up() or here.fill()
            assert as_told(here.read_many(9)) == told([item(number)], number)
        journal.append_many(given(items(30, start=12)))
        assert as_told(elsewhere.read_many(99)) == told(items(30, start=12), 12)
        assert as_told(here.read_many(99)) == told(items(30, start=12), 12)
        assert elsewhere.losses == here.losses == []


def test_what_waits_in_memory_is_not_read():
    fs = RamFS({})
    with opened(fs) as journal, reader(fs) as here:
        here.live = journal.steps.live
        journal.append(b"written")
        journal.append(b"held", durability="memory")
        assert [message.value for message in here.read_many(9)] == [b"written"]
        journal.flush()
        assert [message.value for message in here.read_many(9)] == [b"held"]


# --- files that come and go -------------------------------------------------------------------


def test_a_segment_that_goes_while_it_is_read_is_read_to_its_end():
    fs = disk()
    lay_out(fs, items(9), 150)
    bases = sorted(int(name[:16], 16) for name in oracle.files(items(9), 150))
    with reader(fs) as found:
        assert found.read() is not None
        fs.unlink(data(0))
        assert as_told(found.read_many(99)) == told(items(9))[1:]
    assert len(bases) > 2


def test_a_reader_that_retention_overtakes_gets_the_offsets_that_are_there():
    fs = disk()
    lay_out(fs, items(9), 150)
    bases = sorted(int(name[:16], 16) for name in oracle.files(items(9), 150))
    with reader(fs) as found:
        found.read_many(bases[1])
        for base in bases[:3]:
            fs.unlink(data(base))
        with pytest.raises(OffsetOutOfRangeError) as gone:
            found.read()
        assert (gone.value.offset, gone.value.first_offset, gone.value.next_offset) == (bases[1], bases[3], 9)
        found.seek(gone.value.first_offset)
        assert as_told(found.read_many(99)) == told(items(9))[bases[3] :]


def test_a_segment_that_is_missing_in_the_middle_is_reported():
    fs = disk()
    lay_out(fs, items(9), 150)
    bases = sorted(int(name[:16], 16) for name in oracle.files(items(9), 150))
    fs.unlink(data(bases[1]))
    with reader(fs) as found:
        expected = [m for m in told(items(9)) if not bases[1] <= m.offset < bases[2]]
        assert as_told(found.read_many(99)) == expected
        assert [(gap.offset, gap.count) for gap in found.losses] == [(bases[1], bases[2] - bases[1])]


def test_stray_files_disturb_nobody():
    """Any create in jnl/ makes sej's scanner lose its place."""
    fs = disk()
    lay_out(fs, items(3))
    with reader(fs) as found:
        found.read_many(2)
        fs.write_durably(f"{ROOT}/jnl/stray", b"")
        assert as_told(found.read_many(99)) == told(items(3))[2:]
        fs.unlink(f"{ROOT}/jnl/stray")
        assert found.read() is None


def test_a_file_that_was_cut_below_the_reader_is_noticed():
    fs = disk()
    lay_out(fs, items(6))
    with reader(fs) as found:
        found.read_many(99)
        fs.write_durably(data(), oracle.encoded(items(4)))
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError) as cut:
                found.read()
            assert (cut.value.offset, cut.value.next_offset) == (6, 4)
        found.seek(4)
        fs.write_durably(data(), oracle.encoded(items(5)))
        assert as_told(found.read_many(9)) == told(items(5))[4:]


@pytest.mark.parametrize("cut", [1, 25, 60])
def test_a_torn_segment_that_is_not_the_last_is_passed_over_and_reported(cut):
    """A place after which sej's scanner reads nothing."""
    fs = disk()
    lay_out(fs, items(9), 250)
    following = sorted(oracle.files(items(9), 250))[1]
    end = int(following[:16], 16)
    fs.write_durably(data(), fs.read(data())[:-cut])
    lost = 1 if cut < 60 else 2
    with reader(fs) as found:
        assert as_told(found.read_many(99)) == told(items(9))[: end - lost] + told(items(9))[end:]
        assert [(gap.offset, gap.count) for gap in found.losses] == [(end - lost, lost)]


@settings(deadline=None, max_examples=examples(60))
@drawn(st.data())
def test_whatever_is_damaged_nothing_is_invented_and_each_loss_is_reported(draw):
    """Holes and flips in diskq's files, by blocks, and in a peer's, by framing."""
    fs = RamFS({})
    expected = items(40, 200)
    is_ours = draw.draw(st.booleans())
    if is_ours:
        with opened(fs, segment_size=3000) as journal:
            for number in range(0, 40, 5):
                journal.append_many(given(expected[number : number + 5]), durability="synced")
    else:
        lay_out(fs, expected, 3000)
    names = sorted(path for path in fs.files() if path.endswith(".jnl") and fs.size_of(path))
    for _ in range(draw.draw(st.integers(1, 4))):
        path = draw.draw(st.sampled_from(names))
        content = bytearray(fs.read(path))
        at = draw.draw(st.integers(0, len(content) - 1))
        size = draw.draw(st.sampled_from([1, 3, 64, 600]))
        hole = bytes(len(content[at : at + size]))
        content[at : at + size] = hole if size > 3 else bytes(byte ^ 0x55 for byte in content[at : at + size])
        fs.write_durably(path, bytes(content))
    with reader(fs) as found:
        messages = found.read_many(999)
        offsets = [message.offset for message in messages]
        missing = [n for gap in found.losses for n in range(gap.offset, gap.offset + gap.count)]
        assert sorted(offsets + missing) == list(range(found.position))
        assert found.position == 40 or found.tail != "END"
        if is_ours:
            assert set(as_told(messages)) <= set(told(expected))


# --- backward ---------------------------------------------------------------------------------


@sizes
@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "sej's"])
def test_from_every_offset_all_before_it_is_read_backward(size, is_ours):
    fs = disk()
    if is_ours:
        with opened(fs, segment_size=size) as journal:
            journal.append_many(given(items(9)))
    else:
        lay_out(fs, items(9), size)
    for offset in range(10):
        for step in (1, 2, 4, 99):
            with reader(fs, offset) as found:
                taken: list[oracle.Message] = []
                while more := found.read_back(step):
                    assert len(more) <= step
                    taken += as_told(more)
                    assert found.position == more[-1].offset
                assert taken == told(items(9))[:offset][::-1]
                assert as_told(found.read_many(99)) == told(items(9))


def test_the_last_ones_of_a_long_journal_are_read_without_the_rest():
    fs = FaultFS(CrashFS())
    lay_out(fs.inner, items(4000, 300))
    with reader(fs, 4000) as found:
        fs.calls.clear()
        assert as_told(found.read_back(10)) == told(items(10, 300, 3990), 3990)[::-1]
        read = sum(call.size or 0 for call in fs.calls if call.verb == "pread" and call.path == data())
    assert read < 10**6 < len(fs.inner.read(data()))


def test_damage_met_while_reading_backwards_is_reported():
    fs = disk()
    lay_out(fs, items(9), 250)
    content = bytearray(fs.read(data()))
    content[17] ^= 0x80
    fs.write_durably(data(), bytes(content))
    with reader(fs, 9) as found:
        taken: list[oracle.Message] = []
        while more := found.read_back(3):
            taken += as_told(more)
        assert taken == told(items(9))[1:][::-1]
        assert {(gap.offset, gap.count) for gap in found.losses} == {(0, 1)}


def test_it_may_turn_round_at_any_time():
    fs = disk()
    lay_out(fs, items(9), 150)
    with reader(fs, 5) as found:
        assert [m.offset for m in found.read_back(2)] == [4, 3]
        assert [m.offset for m in found.read_many(3)] == [3, 4, 5]
        assert [m.offset for m in found.read_back(4)] == [5, 4, 3, 2]


def test_what_is_appended_goes_on_behind_what_was_read():
    fs = disk()
    lay_out(fs, items(5), 150)
    with opened(fs, segment_size=150) as journal, reader(fs, 5) as found:
        journal.append_many(given(items(5, start=5)))
        assert as_told(found.read_many(9)) == told(items(5, start=5), 5)
    assert stored(fs) == told(items(10))
