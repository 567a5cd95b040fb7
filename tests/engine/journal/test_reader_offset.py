# How far a reader of a journal has come. Law: sej reads what we commit, and we what it commits; nothing is
# skipped, whatever the file says; one at a time moves it, and who looks makes nothing.

from __future__ import annotations

import fcntl
import os

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import (
    JournalCommittedOffset,
    read_journal_offset,
    read_journal_offsets,
)
from diskq.errors import LockedError, NotFoundError, ReaderNameError
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.engine.journals import ROOT, data, disk, given, items, lay_out, opened
from tests.reference import sej_oracle as oracle

PATH = f"{ROOT}/ofs/mine.ofs"
SHADOW = f"{ROOT}/.diskq/ofs/mine.mark"


def journal_of(count: int, base: int = 0) -> CrashFS:
    fs = disk()
    lay_out(fs, items(count), base=base)
    return fs


def offset(fs: FileSystem, start: str = "oldest", **how: float) -> JournalCommittedOffset:
    return JournalCommittedOffset(ROOT, "mine", start, fs=fs, **how)  # type: ignore[arg-type]


def test_it_is_where_it_was_left():
    fs = journal_of(9)
    with offset(fs) as mine:
        assert (mine.offset, mine.committed) == (0, None)
        mine.commit_to(1)
        mine.commit_to(5)
        mine.commit_to(3)
        assert mine.offset == 5, "forward only"
    assert fs.read(PATH) == (5).to_bytes(8, "big")
    with offset(fs) as mine:
        assert (mine.offset, mine.repairs) == (5, ())
        mine.commit_to(2, seek=True)
        assert mine.offset == 2
    told = read_journal_offset(ROOT, "mine", fs=fs)
    assert told is not None
    assert (told.offset, told.repair) == (2, None)


def test_the_newest_is_kept_so_that_it_stays_the_same():
    """sej never writes the default down: the next time it is another one, and what is between is skipped."""
    fs = journal_of(4)
    with offset(fs, "newest") as mine:
        assert mine.offset == 4
    lay_out(fs, items(9))
    with offset(fs, "newest") as mine:
        assert mine.offset == 4
    assert fs.crash().read(PATH) == (4).to_bytes(8, "big")


def test_a_torn_tail_is_not_counted():
    """Where sej's LastOffset is one too small."""
    fs = journal_of(4)
    fs.write_durably(data(), fs.read(data()) + oracle.record(4, b"", 0, 0, b"torn")[:-1])
    with offset(fs, "newest") as mine:
        assert mine.offset == 4


def test_the_oldest_is_the_first_that_is_there():
    fs = journal_of(4, base=7)
    with offset(fs) as mine:
        assert mine.offset == 7
    assert fs.read(PATH) == b"", "nothing was committed"


@pytest.mark.parametrize("said, given_", [(3, 7), (12, 11), (2**63 + 5, 11), (2**64 - 1, 11)])
def test_an_offset_that_the_journal_does_not_have_is_corrected_and_reported(said, given_):
    fs = journal_of(4, base=7)
    with offset(fs):
        pass
    fs.write_durably(PATH, said.to_bytes(8, "big"))
    told = read_journal_offset(ROOT, "mine", fs=fs)
    assert told is not None
    assert told.offset == given_
    assert told.repair is not None
    with offset(fs) as mine:
        assert (mine.offset, len(mine.repairs)) == (given_, 1)
    assert fs.crash().read(PATH) == given_.to_bytes(8, "big")


def test_rot_at_any_byte_is_reported_and_the_shadow_copy_is_used():
    for at in range(8):
        fs = journal_of(9)
        with offset(fs) as mine:
            mine.commit_to(5)
        content = bytearray(fs.read(PATH))
        content[at] ^= 0x04
        handle = fs.open(PATH, write=True)
        stamp = fs.stamp_of(PATH)
        fs.pwrite(handle, bytes(content), 0)
        fs.close(handle)
        with offset(fs) as mine:
            # A file that was written is a peer's commit; where it cannot be, it is set right.
            assert mine.offset == (5 if fs.stamp_of(PATH) == stamp else mine.offset)
            assert 0 <= mine.offset <= 9


@pytest.mark.parametrize("size", range(1, 8))
def test_of_a_file_that_is_cut_the_shadow_is_believed(size):
    """sej fails with "unexpected EOF", and keeps the lock."""
    fs = journal_of(9)
    with offset(fs) as mine:
        mine.commit_to(5)
    fs.write_durably(PATH, fs.read(PATH)[:size])
    with offset(fs) as mine:
        assert (mine.offset, len(mine.repairs)) == (5, 1)
    fs.write_durably(PATH, fs.read(PATH)[:size])
    fs.unlink(SHADOW)
    with offset(fs) as mine:
        assert (mine.offset, len(mine.repairs)) == (0, 1)


def test_a_shadow_that_rots_anywhere_costs_nothing():
    fs = journal_of(9)
    with offset(fs) as mine:
        mine.commit_to(5)
    shadow = fs.read(SHADOW)
    for at in range(len(shadow)):
        rotten = bytearray(shadow)
        rotten[at] ^= 0xFF
        fs.write_durably(SHADOW, bytes(rotten))
        with offset(fs) as mine:
            assert (mine.offset, mine.repairs) == (5, ())


def test_one_at_a_time_moves_it_sejs_too(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(b"x")
    with JournalCommittedOffset(tmp_path, "mine"), pytest.raises(LockedError):
        JournalCommittedOffset(tmp_path, "mine")
    theirs = os.open(tmp_path / "ofs/mine.lck", os.O_RDWR)
    fcntl.flock(theirs, fcntl.LOCK_EX)
    with pytest.raises(LockedError):
        JournalCommittedOffset(tmp_path, "mine")
    with JournalCommittedOffset(tmp_path, "other") as other:
        other.commit_to(1)
    assert oracle.read_offset(tmp_path, "other") == 1
    os.close(theirs)
    with JournalCommittedOffset(tmp_path, "mine") as mine:
        mine.commit_to(1)


def test_what_a_peer_commits_is_believed(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append_many([b"x"] * 5)
    with JournalCommittedOffset(tmp_path, "mine") as mine:
        mine.commit_to(1)
    (tmp_path / "ofs/mine.ofs.tmp").write_bytes((4).to_bytes(8, "big"))
    (tmp_path / "ofs/mine.ofs.tmp").rename(tmp_path / "ofs/mine.ofs")
    with JournalCommittedOffset(tmp_path, "mine") as mine:
        assert (mine.offset, mine.repairs) == (4, ())


def test_who_looks_makes_nothing(tmp_path):
    with pytest.raises(NotFoundError):
        read_journal_offset(tmp_path, "mine")
    with pytest.raises(NotFoundError):
        JournalCommittedOffset(tmp_path, "mine")
    assert list(tmp_path.iterdir()) == []
    with Journal(tmp_path):
        pass
    assert read_journal_offset(tmp_path, "mine") is None
    assert read_journal_offsets(tmp_path) == []
    assert not (tmp_path / "ofs").exists()


def test_all_are_listed():
    fs = journal_of(4)
    for name in ("b", "a"):
        with JournalCommittedOffset(ROOT, name, fs=fs) as each:
            each.commit_to(2)
    assert [(each.name, each.offset) for each in read_journal_offsets(ROOT, fs=fs)] == [("a", 2), ("b", 2)]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\0", "a\n", "x" * 65, 7, "ü"])
def test_a_name_that_is_no_file_name_is_refused(name):
    fs = journal_of(1)
    with pytest.raises(ReaderNameError):
        JournalCommittedOffset(ROOT, name, fs=fs)
    with pytest.raises(ReaderNameError):
        read_journal_offset(ROOT, name, fs=fs)


def test_syncing_is_by_option():
    fs = journal_of(9)
    with offset(fs, sync_every=1) as mine:
        mine.commit_to(1)
        assert fs.crash().read(PATH) == (1).to_bytes(8, "big")
    with offset(fs, sync_every=5) as mine:
        mine.commit_to(3)
        assert fs.read(PATH) == (1).to_bytes(8, "big")
        mine.commit_to(7)
        assert fs.crash().read(PATH) == (7).to_bytes(8, "big")


def test_a_reader_of_what_no_power_cut_has_left_is_set_back():
    """Or it would pass over the messages that get these offsets again."""
    fs = disk()
    journal = opened(fs)
    journal.append_many(given(items(4)), durability="synced")
    journal.append_many(given(items(3, start=4)))
    with offset(fs) as mine:
        mine.commit_to(7)
    fs = fs.crash()
    with opened(fs) as journal:
        assert journal.next_offset <= 7
        if journal.next_offset < 7:
            assert [repair.path for repair in journal.repairs if "ofs" in repair.path] == [PATH]
        assert fs.crash().read(PATH) == journal.next_offset.to_bytes(8, "big")


def test_of_golden_files_it_says_what_sej_says(tmp_path):
    from tests.golden.journals import golden_journal

    directory = golden_journal("segments", tmp_path)
    assert [(each.name, each.offset) for each in read_journal_offsets(directory)] == [
        ("reader1", 17),
        ("reader2", None),
    ]
    with JournalCommittedOffset(directory, "reader2", "newest") as second:
        assert second.offset == 44
