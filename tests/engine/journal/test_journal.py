# The journal. Law: what is appended lies there as sej would have left it, under the next offset, and as
# durable as was asked for; one writer at a time, sej's too; what the disk refuses is not in.

from __future__ import annotations

import errno
import fcntl
import os
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from diskq.channels.core.commit_loop import Engine
from diskq.engine.journal.journal import Journal
from diskq.errors import (
    CorruptionError,
    DiskFullError,
    KeySizeError,
    LockedError,
    MessageSizeError,
    OffsetMismatchError,
    StorageFailedError,
)
from diskq.messages import NULL_TIMESTAMP
from diskq.options import JournalOptions
from diskq.storage.checksums import rows_after
from tests.engine.journals import (
    LOCK,
    POINTS,
    ROOT,
    asides,
    data,
    disk,
    failing_disk,
    flip,
    given,
    items,
    lay_out,
    opened,
    read_all,
    segments,
    stored,
    sums,
    told,
)
from tests.engine.ram import RamFS
from tests.reference import sej_oracle as oracle
from tests.sampling import examples, spread

# --- what lies there --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 60, 300, 10**6])
@pytest.mark.parametrize("how", ["one", "many", "encoded"])
def test_files_are_those_that_sej_writes(size, how):
    fs = disk()
    with opened(fs, segment_size=size) as journal:
        if how == "one":
            offsets = [journal.append(v, k, t, kind) for k, t, kind, v in items(12)]
        elif how == "many":
            offsets = list(journal.append_many(given(items(12))))
        else:
            offsets = list(journal.append_encoded(oracle.encoded(items(12))))
        assert offsets == list(range(12))
    assert segments(fs) == oracle.files(items(12), size)


@settings(deadline=None, max_examples=examples(30))
@drawn(st.lists(st.integers(1, 9), max_size=6), st.integers(0, 400))
def test_so_they_are_with_opens_in_between(counts, size):
    fs = RamFS({})
    for number, count in enumerate(counts):
        with opened(fs, segment_size=size) as journal:
            journal.append_many(given(items(count, start=sum(counts[:number]))))
            assert journal.repairs == ()
    if counts:
        assert stored(fs) == told(items(sum(counts)))
        assert segments(fs) == oracle.files(items(sum(counts)), size)


def test_nothing_of_ours_lies_in_jnl(tmp_path):
    with Journal(tmp_path / "a/b", options=JournalOptions(segment_size=50)) as journal:
        journal.append_many([b"x" * 40] * 3)
    assert sorted(os.listdir(tmp_path / "a/b")) == [".diskq", "jnl", "jnl.lck"]
    assert sorted(os.listdir(tmp_path / "a/b/jnl")) == [f"{n:016x}.jnl" for n in range(4)]


def test_a_message_that_tells_no_time_is_now(tmp_path):
    before = datetime.now(UTC)
    with Journal(tmp_path) as journal:
        journal.append(b"now")
        journal.append(b"then", "key", datetime(1969, 1, 1, tzinfo=UTC), 7)
        journal.append(b"never", timestamp=NULL_TIMESTAMP)
    now, then, never = oracle.read_journal(tmp_path)
    assert before.timestamp() * 1e9 - 1000 <= now.timestamp <= datetime.now(UTC).timestamp() * 1e9 + 1000
    assert (then.timestamp, then.key, then.type) == (-31_536_000 * 10**9, b"key", 7)
    assert never.timestamp == oracle.NULL_TIME


def test_other_bytes_are_taken_as_well():
    fs = disk()
    with opened(fs) as journal:
        journal.append(bytearray(b"one"))
        journal.append_many([memoryview(b"two"), ("k", bytearray(b"three")), (None, b"four", 4)])
    assert [m.value for m in stored(fs)] == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize(
    "item, error",
    [
        ("text", TypeError),
        ((1, b""), TypeError),
        ((b"k" * 128, b""), KeySizeError),
        ((b"", b"x" * 101), MessageSizeError),
        ((b"", b"", datetime(2020, 1, 1)), ValueError),
        ((b"", b"", None, 256), ValueError),
        ((b"", b"", None, True), TypeError),
        ((b"", b"", None, 1, 2), TypeError),
        ((b"",), TypeError),
    ],
    ids=lambda value: repr(value)[:25],
)
def test_what_cannot_be_a_message_is_refused_and_nothing_is_written(item: Any, error):
    fs = disk()
    with opened(fs, max_message_size=100) as journal:
        with pytest.raises(error):
            journal.append_many([b"fine", item])
        if not isinstance(item, tuple):
            with pytest.raises(error):
                journal.append(item)
        elif 2 <= len(item) <= 4:
            key, value, *more = item
            with pytest.raises(error):
                journal.append(value, key, *more)
        assert journal.next_offset == 0
    assert fs.read(data()) == b""


def test_a_given_offset_must_be_the_next_one():
    fs = disk()
    with opened(fs) as journal:
        assert journal.append(b"a", offset=0) == 0
        assert journal.append_many([b"b", b"c"], offset=1) == range(1, 3)
        for offset in (2, 4):
            with pytest.raises(OffsetMismatchError) as refused:
                journal.append(b"x", offset=offset)
            assert (refused.value.offset, refused.value.expected) == (offset, 3)
            with pytest.raises(OffsetMismatchError):
                journal.append_many([b"x"], offset=offset)
            with pytest.raises(OffsetMismatchError):
                journal.append_encoded(oracle.encoded(items(1), offset))
        assert journal.append_encoded(b"") == range(3, 3)
    assert len(stored(fs)) == 3


def test_of_encoded_bytes_that_are_no_records_none_is_taken():
    fs = disk()
    with opened(fs, segment_size=100) as journal:
        whole = oracle.encoded(items(9))
        for bad in (whole[:-1], whole + b"?", whole + oracle.encoded(items(1), 3)):
            with pytest.raises(ValueError, match="no whole record"):
                journal.append_encoded(bad)
        assert journal.next_offset == 0


def test_encoded_records_are_taken_piece_by_piece_with_barriers_where_much_is_unsynced():
    fs = RamFS({})
    with opened(fs, max_unsynced=300_000, segment_size=500_000) as journal:
        journal.append_encoded(oracle.encoded(items(2000, 500)))
        assert journal.synced_offset > 0
    assert segments(fs) == oracle.files(items(2000, 500), 500_000)


# --- durability -------------------------------------------------------------------------------


def test_a_word_says_what_survives():
    fs = disk()
    journal = opened(fs)
    journal.append(b"synced", durability="synced")
    assert (journal.synced_offset, journal.unsynced_bytes) == (1, 0)
    journal.append(b"written")
    journal.append(b"held", durability="memory")
    assert (journal.next_offset, journal.log.is_flushed, journal.synced_offset) == (3, False, 1)
    assert [m.value for m in stored(fs.kill())] == [b"synced", b"written"]
    assert [m.value for m in stored(fs.crash())][:1] == [b"synced"]
    journal.sync()
    assert (len(stored(fs.crash())), journal.synced_offset) == (3, 3)
    with pytest.raises(ValueError, match="durability"):
        journal.append(b"", durability="forever")  # type: ignore[arg-type]


def test_a_barrier_is_due_after_so_many_messages_or_so_much_time():
    clock = [0.0]
    fs = disk()
    journal = Journal(
        ROOT, options=JournalOptions(sync_every=3, sync_timeout=2.0), fs=fs, clock=lambda: clock[0]
    )
    for _ in range(2):
        journal.append(b"x")
    assert (journal.synced_offset, journal.log.due_at) == (0, 2.0)
    journal.append(b"x")
    assert journal.synced_offset == 3
    journal.append(b"x")
    clock[0] = 3.0
    journal.append(b"x")
    assert journal.synced_offset == 5


# --- one writer -------------------------------------------------------------------------------


def test_there_is_one_writer_at_a_time(tmp_path):
    with Journal(tmp_path), pytest.raises(LockedError) as refused:
        Journal(tmp_path)
    assert str(os.getpid()) in refused.value.holder
    with Journal(tmp_path) as again:
        assert again.append(b"x") == 0


def test_a_writer_of_sejs_keeps_us_out_and_we_keep_it_out(tmp_path):
    """flock(2) on jnl.lck, which it removes at its Close."""
    path = tmp_path / "jnl.lck"
    theirs = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(LockedError, match="another process"):
        Journal(tmp_path)
    assert not (tmp_path / "jnl").exists(), "it is not even looked at"
    fcntl.flock(theirs, fcntl.LOCK_UN)
    os.close(theirs)
    os.unlink(path)
    with Journal(tmp_path):
        theirs = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        with pytest.raises(BlockingIOError):
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(theirs)
    assert path.exists(), "we never remove it"


def test_a_lock_whose_file_loses_its_name_in_that_moment_is_taken_again():
    """sej lets go, and removes the file then: who locked it in between has locked nothing."""

    class Racing(RamFS):
        races = 3

        def try_lock(self, handle: int) -> bool:
            if self.races:
                self.races -= 1
                self.unlink(LOCK)
            return super().try_lock(handle)

    fs = Racing({})
    with opened(fs):
        assert LOCK in fs.now
        with pytest.raises(LockedError):
            opened(fs)


def test_a_lock_file_that_a_peer_has_emptied_is_signed_again():
    """sej's NewWriter empties it before it is refused."""
    fs = disk()
    with opened(fs) as journal:
        signed = fs.read(LOCK)
        fs.write_durably(LOCK, b"")
        journal.append(b"x", durability="synced")
        assert fs.crash().read(LOCK) == signed


def test_a_lock_that_loses_its_name_later_is_taken_anew_or_ends_it():
    fs = disk()
    with opened(fs) as journal:
        fs.unlink(LOCK)
        journal.append(b"x", durability="synced")
        with pytest.raises(LockedError):
            opened(fs)
    with opened(fs) as journal:
        fs.unlink(LOCK)
        assert fs.try_lock(fs.open(LOCK, write=True, create=True))
        with pytest.raises(StorageFailedError) as failed:
            journal.append(b"y", durability="synced")
    assert isinstance(failed.value.__cause__, LockedError)


# --- a disk that refuses ----------------------------------------------------------------------


def test_what_finds_no_room_is_not_in_and_the_next_one_is():
    fs = failing_disk()
    with opened(fs) as journal:
        journal.append(b"before")
        fs.fail("pwrite", error=errno.ENOSPC, path="*.jnl", times=1)
        with pytest.raises(DiskFullError):
            journal.append(b"refused")
        assert journal.append(b"after") == 1
    assert [m.value for m in stored(fs.inner)] == [b"before", b"after"]


def test_of_a_batch_the_first_are_in():
    fs = failing_disk()
    batch = [b"x" * 1000] * 500
    with opened(fs) as journal:
        fs.fail("pwrite", 2, errno.ENOSPC, path="*.jnl")
        with pytest.raises(DiskFullError) as full:
            journal.append_many(batch)
        assert 0 < full.value.accepted == journal.next_offset < 500
        assert len(full.value.rest) == 500 - full.value.accepted
        journal.append_many(full.value.rest)
    assert len(stored(fs.inner)) == 500


def test_a_roll_that_finds_no_room_is_made_up_for():
    fs = failing_disk()
    with opened(fs, segment_size=60) as journal:
        journal.append(b"x" * 10)
        fs.fail("open", error=errno.ENOSPC, path="*0002.jnl", times=2)
        assert journal.append(b"x" * 20) == 1, "it is in: the next one is refused"
        with pytest.raises(DiskFullError):
            journal.append(b"y")
        assert journal.append(b"y") == 2
    assert [len(content) for content in segments(fs.inner).values()] == [82, 27]


def test_a_failed_sync_is_final_until_it_is_opened_again():
    fs = failing_disk()
    journal = opened(fs)
    journal.append(b"one", durability="synced")
    fs.fail("sync_files", error=errno.EIO, times=1)
    with pytest.raises(StorageFailedError):
        journal.append(b"two", durability="synced")
    with pytest.raises(StorageFailedError):
        journal.append(b"three")
    journal.close()
    with opened(fs) as journal:
        assert journal.next_offset == 2


def test_after_a_failed_sync_it_is_written_again_also_where_a_peer_came_in_between():
    fs = disk()
    journal = opened(fs)
    journal.append_many(given(items(10)))
    journal.flush()
    fs.fail_sync()
    with pytest.raises(StorageFailedError):
        journal.sync()
    after = fs.kill()
    after.write_durably(LOCK, b"")  # one of sej's writers took the lock, and wrote nothing
    with opened(after) as journal:
        assert not journal.repairs
        journal.append_many(given(items(1, start=10)))
        journal.sync()
        cut = after.crash()
    with opened(cut) as journal:
        assert journal.next_offset == 11
    assert read_all(cut) == stored(cut) == told(items(11))


# --- damage -----------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_at_any_byte_kept_aside_and_reported():
    whole = oracle.encoded(items(4))
    ends = [len(oracle.encoded(items(count))) for count in range(5)]
    for size in range(len(whole)):
        fs = RamFS({})
        lay_out(fs, [])
        fs.write_durably(data(), whole[:size])
        count = sum(end <= size for end in ends) - 1
        with opened(fs, strict=True) as journal:
            assert journal.next_offset == count
            torn = size - ends[count]
            assert [(r.kept, r.dropped, r.records) for r in journal.repairs] == [(ends[count], torn, 0)] * (
                torn > 0
            )
        assert stored(fs) == told(items(count))
        assert list(asides(fs).values()) == ([whole[ends[count] : size]] if torn else [])


@pytest.mark.parametrize("kept", [0, 3])
def test_checksums_of_bytes_that_are_gone_do_not_keep_it_from_opening(kept):
    """A power cut left them, and sej has written since: its records begin elsewhere."""
    fs = disk()
    with opened(fs) as journal:
        journal.append_many(given(items(kept)))
    synced = fs.read(data())
    with opened(fs) as journal:
        journal.append_many(given(items(200, start=kept)))
    ends = [row.end for row in rows_after(fs, sums(), 0)]
    assert len(ends) > 2
    theirs = [(b"k", 1, 0, b"\xff" * 40) for _ in range(len(fs.read(data())) // 60)]
    records = b"".join(oracle.record(offset, *each) for offset, each in enumerate(theirs, kept))
    fs.write_durably(data(), synced + records)
    fs.write_durably(POINTS, b"")
    fs.write_durably(LOCK, b"")
    with opened(fs) as journal:
        assert journal.next_offset == kept + len(theirs)


def test_a_torn_message_whose_value_is_a_message_is_not_taken_for_one():
    """Where sej goes on at offset 1001."""
    fs = disk()
    inner = oracle.record(1000, b"", 1, 0, b"inner")
    lay_out(fs, items(1))
    torn = oracle.record(1, b"k", 1, 0, b"x" * 26_100 + inner + b"more")[: 23 + 26_100 + len(inner)]
    fs.write_durably(data(), fs.read(data()) + torn)
    with opened(fs) as journal:
        assert journal.next_offset == 1


@pytest.mark.sampled
@pytest.mark.parametrize("size", [10**6, 150])
def test_a_flip_at_any_byte_of_a_peers_file_costs_one_message_and_is_reported(size):
    """Or nothing is wrong by its framing: then the damage cannot be noticed."""
    whole = oracle.files(items(6, 20), size)
    expected = told(items(6, 20))
    for name, content in whole.items():
        for at in spread(range(len(content))):
            fs = RamFS({})
            lay_out(fs, items(6, 20), size)
            flip(fs, f"{ROOT}/jnl/{name}", at, 0x81)
            found = read_all(fs)
            with opened(fs) as journal:
                next_offset, repairs = journal.next_offset, journal.repairs
            assert next_offset == 6 or (next_offset == 5 and repairs), (name, at)
            assert len(found) >= 5
            assert len([message for message in found if message not in expected]) <= 1
            assert [m.offset for m in found] == sorted({m.offset for m in found})


def test_a_flip_at_any_byte_of_ours_is_never_delivered():
    fs = RamFS({})
    with opened(fs, segment_size=150) as journal:
        for item in given(items(6, 20)):
            journal.append(item[1], item[0], item[2], item[3], durability="synced")
    files = fs.files()
    expected = told(items(6, 20))
    for path in (data(), data(3), sums(), sums(3)):
        for at in range(len(files[path].rstrip(b"\0"))):
            rotten = RamFS(files)
            rotten.directories |= fs.directories
            flip(rotten, path, at, 0x81)
            found = read_all(rotten)
            assert [message for message in found if message not in expected] == [], (path, at)
            assert len(found) >= (5 if path.endswith(".jnl") else 6), (path, at)


@pytest.mark.sampled
def test_a_file_of_ours_that_ends_early_is_read_to_its_end_and_reported():
    fs = RamFS({})
    with opened(fs, segment_size=150) as journal:
        journal.append_many(given(items(6, 20)))
    files = fs.files()
    for path in (data(), sums(), sums(3)):
        for size in spread(range(0, len(files[path]), 1 if path == data() else 5)):
            cut = RamFS(files)
            cut.directories |= fs.directories
            cut.write_durably(path, files[path][:size])
            found = read_all(cut)
            assert [message for message in found if message not in told(items(6, 20))] == []
            assert len(found) == 6 or path == data()
            with opened(cut) as journal:
                assert journal.next_offset == 6


def test_strictness_raises_at_damage_in_the_middle():
    fs = disk()
    lay_out(fs, items(5))
    flip(fs, data(), 60, 0x80)
    with pytest.raises(CorruptionError):
        opened(fs, strict=True)
    with opened(fs) as journal:
        assert [repair.records for repair in journal.repairs] == [1]


# --- files that come and go -------------------------------------------------------------------


def test_who_removes_the_first_segments_takes_their_checksums_along_and_it_is_said_once():
    fs = disk()
    with opened(fs, segment_size=100) as journal:
        journal.append_many(given(items(9)))
        bases = [int(name[:16], 16) for name in segments(fs)]
    fs.unlink(data(0))
    with opened(fs) as journal:
        assert journal.next_offset == 9
        assert [(each.path, each.records) for each in journal.repairs] == [(data(0), bases[1])]
    with opened(fs) as journal:
        assert journal.repairs == (), "it was said"
    assert sums(0) not in fs.files()
    assert read_all(fs, bases[1]) == told(items(9))[bases[1] :]


def test_where_all_are_gone_no_offset_is_given_again():
    fs = disk()
    with opened(fs) as journal:
        journal.append_many(given(items(9)))
    fs.unlink(data(0))
    with opened(fs) as journal:
        assert (journal.next_offset, [repair.records for repair in journal.repairs]) == (9, [9])
        assert journal.append(b"x") == 9
    assert list(segments(fs)) == ["0000000000000009.jnl"]


def test_names_that_are_no_segments_are_left_alone():
    fs = disk()
    lay_out(fs, items(2))
    for name in ("readme", "1.jnl", "000000000000000A.jnl", "zz.jnl", "0000000000000000.jnl.bak"):
        fs.write_durably(f"{ROOT}/jnl/{name}", b"not ours")
    with opened(fs) as journal:
        assert (journal.next_offset, journal.repairs) == (2, ())


def test_a_commit_loop_can_drive_it():
    """What a channel wants of an engine: barriers taken inline, paid elsewhere, marked inline."""
    fs = disk()
    with opened(fs) as journal:
        engine: Engine = journal
        journal.append(b"before")
        ticket = engine.log.prepare(full=False)
        journal.append(b"meanwhile")
        is_replaced = ticket.barrier.execute(fs)
        engine.log.complete(ticket, is_replaced)
        assert (journal.synced_offset, engine.log.is_flushed, engine.log.note()) == (1, True, False)
    assert len(stored(fs)) == 2


# --- the copy of a journal whose oldest messages are gone -----------------------------------------


def test_a_new_journal_may_begin_later_and_an_old_one_goes_on():
    fs = disk()
    for first in (70, 5):
        with Journal(ROOT, fs=fs, first_offset=first) as journal:
            journal.append(b"value")
    after = fs.crash()
    assert after.read(data(70))[:8] == (70).to_bytes(8, "big")
    with Journal(ROOT, fs=after) as journal:
        assert (journal.files.bases(), journal.next_offset, journal.repairs) == ([70], 72, ())
