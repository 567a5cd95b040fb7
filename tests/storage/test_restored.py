# Files with what only a redo log has. Law: some are shown with bytes that they lack, until that is over; all
# else is as it is below.

from __future__ import annotations

from diskq.storage.log.restored import Restored, RestoredFiles
from tests.storage.test_overlay import NAMES, filled


class Shown:
    """A disk of which three files, one of them missing, are shown with `new`."""

    def __init__(self) -> None:
        self.is_over = False
        self.below = filled()
        restored = [Restored(path, 3, b"new") for path in NAMES[1:3]] + [Restored(NAMES[3], 0, b"...new")]
        self.fs = RestoredFiles(self.below, restored, lambda: self.is_over)


def test_no_file_is_open_but_those_of_the_user():
    shown = Shown()
    assert shown.below.open_files() == []
    held = [shown.fs.open(path) for path in NAMES[:4]]
    assert sorted(shown.below.open_files()) == NAMES[:3]
    for handle in held:
        shown.fs.pread(handle, 100, 0)
        shown.fs.close(handle)
    assert shown.below.open_files() == []


def test_other_files_are_those_of_this_moment():
    shown = Shown()
    assert shown.fs.size_of("/d/later") is None
    handle = shown.below.open("/d/later", write=True, create=True)
    shown.below.pwrite(handle, b"abc", 0)
    assert shown.fs.size_of("/d/later") == 3
    seen = shown.fs.open("/d/later")
    shown.below.pwrite(handle, b"def", 3)
    assert shown.fs.pread(seen, 100, 0) == b"abcdef"
    shown.below.unlink("/d/later")
    assert shown.fs.size_of("/d/later") is None
    assert not shown.fs.has_name(seen)


def test_a_file_grows_after_the_bytes_that_it_lacks():
    shown = Shown()
    seen = shown.fs.open(NAMES[1])
    before = shown.fs.pread(seen, 100, 0)
    assert before[3:6] == b"new"
    handle = shown.below.open(NAMES[1], write=True)
    shown.below.pwrite(handle, b"more", shown.below.size(handle))
    assert shown.fs.pread(seen, 100, 0) == before + b"more"
    assert shown.fs.size(seen) == len(before) + 4


def test_a_file_that_is_missing_is_shown_and_read_on_once_it_is_there():
    shown = Shown()
    assert shown.fs.list_directory("/d") == ["a", "b", "c", "d"]
    assert shown.fs.names_in("/d", "d") == ["d"]
    seen = shown.fs.open(NAMES[3])
    assert (shown.fs.pread(seen, 100, 0), shown.fs.size(seen)) == (b"...new", 6)
    handle = shown.below.open(NAMES[3], write=True, create=True)
    shown.below.pwrite(handle, b"...new and more", 0)
    assert (shown.fs.pread(seen, 100, 0), shown.fs.size(seen)) == (b"...new and more", 15)
    shown.fs.close(seen)
    assert shown.below.open_files() == [NAMES[3]]


def test_each_handle_is_of_the_file_that_it_was_opened_on():
    shown = Shown()
    first = shown.fs.open(NAMES[1])
    shown.below.rename(NAMES[0], NAMES[1])
    second = shown.fs.open(NAMES[1])
    assert (shown.fs.has_name(first), shown.fs.has_name(second)) == (False, True)


def test_it_is_over_for_open_files_too_and_nothing_is_held_in_memory():
    shown = Shown()
    held = [shown.fs.open(path) for path in NAMES[1:4]]
    assert all(b"new" in shown.fs.pread(handle, 100, 0) for handle in held)
    assert shown.fs.is_changed(NAMES[1])
    shown.is_over = True
    assert not any(b"new" in shown.fs.pread(handle, 100, 0) for handle in held)
    assert shown.fs.list_directory("/d") == shown.below.list_directory("/d")
    assert not shown.fs.is_changed(NAMES[1])
    assert not shown.fs._restored
    assert not shown.fs._opened
    shown.is_over = False
    assert shown.fs.size_of(NAMES[3]) is None


def test_who_may_write_writes_below():
    shown = Shown()
    handle = shown.fs.open(NAMES[1], write=True)
    assert shown.fs.pread(handle, 100, 0) == shown.below.files()[NAMES[1]]
    shown.fs.pwrite(handle, b"!", 0)
    shown.fs.rename(NAMES[0], f"{NAMES[0]}.bad")
    shown.fs.close(handle)
    assert shown.below.files()[NAMES[1]][:1] == b"!"
    assert f"{NAMES[0]}.bad" in shown.below.files()
