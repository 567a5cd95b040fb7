# The files as they are after the replay of a redo log: shown until somebody has written there.

from __future__ import annotations

from typing import Any

import pytest

from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.reader_offset import JournalCommittedOffset
from diskq.engine.log.reader import LogReader
from diskq.engine.stream.reader import ReadableStream
from diskq.storage.fs import FileSystem
from diskq.storage.log.reader_replay import with_restored
from diskq.storage.log.restored import Restored
from diskq.testing import CrashFS
from tests.contract.test_read_only import ReadOnlyFS
from tests.tools.power_cuts import PATH, Lost, lost


@pytest.fixture
def disk() -> CrashFS:
    disk = CrashFS()
    disk.make_directory("/d")
    write(disk, "/d/data", b"abc")
    return disk


def write(disk: CrashFS, path: str, data: bytes, at: int = 0) -> None:
    handle = disk.open(path, write=True, create=True)
    disk.pwrite(handle, data, at)
    disk.close(handle)


def view_of(disk: CrashFS) -> FileSystem:
    """The replay would add `defg` to the data, and make the file beside it."""
    sums = Restored("/d/sums", 0, b"12345678")
    files = JournalFiles(disk, "/d")
    return with_restored(disk, files, [Restored("/d/data", 2, b"cdefg", is_data=True), sums])


def read(fs: FileSystem, path: str = "/d/data") -> bytes:
    handle = fs.open(path)
    data = fs.pread(handle, 100, 0)
    assert len(data) == fs.size(handle) == fs.size_of(path)
    fs.close(handle)
    return data


def test_the_file_is_shown_with_what_is_in_the_log(disk):
    assert read(view_of(disk)) == b"abcdefg"
    assert read(disk) == b"abc"


def test_any_part_of_it_can_be_read(disk):
    view = view_of(disk)
    handle = view.open("/d/data")
    for start in range(9):
        for size in range(9):
            assert view.pread(handle, size, start) == b"abcdefg"[start : start + size]


def test_zeros_that_a_power_cut_left_are_shown_as_the_log_has_them(disk):
    write(disk, "/d/data", b"\0\0f\0\0\0tail", 3)
    assert read(view_of(disk)) == b"abcdefg\0\0tail"


def test_a_file_that_only_the_log_has_is_there(disk):
    view = view_of(disk)
    assert sorted(view.list_directory("/d")) == ["data", "sums"]
    assert read(view, "/d/sums") == b"12345678"
    handle = view.open("/d/sums")
    assert view.has_name(handle)
    write(disk, "/d/sums", b"12345678and more")
    assert view.pread(handle, 100, 4) == b"5678and more"
    view.close(handle)


def test_other_files_are_those_below(disk):
    view = view_of(disk)
    write(disk, "/d/other", b"xyz")
    assert read(view, "/d/other") == b"xyz"
    with pytest.raises(FileNotFoundError):
        view.open("/d/none")


def test_the_file_goes_on_growing_once_the_log_is_replayed(disk):
    view = view_of(disk)
    handle = view.open("/d/data")
    assert view.size(handle) == 7
    write(disk, "/d/data", b"abcdefg")
    write(disk, "/d/data", b"hi", 7)
    assert view.pread(handle, 100, 0) == b"abcdefghi"
    assert view.size(handle) == 9


def test_a_replay_that_has_only_begun_hides_nothing(disk):
    view = view_of(disk)
    handle = view.open("/d/data")
    assert view.size(handle) == 7
    write(disk, "/d/data", b"de", 3)
    assert view.pread(handle, 100, 0) == b"abcdefg"


def test_bytes_of_another_program_are_shown_and_no_checksums_of_others(disk):
    view = view_of(disk)
    handle = view.open("/d/data")
    sums = view.open("/d/sums")
    assert view.size(handle) == 7
    write(disk, "/d/data", b"XY", 3)
    assert view.pread(handle, 100, 0) == b"abcXY"
    assert (view.size(sums), view.size_of("/d/sums")) == (0, None)
    write(disk, "/d/data", b"abcdefg")  # whatever comes later
    write(disk, "/d/data", b"h", 7)
    assert view.pread(handle, 100, 0) == b"abcdefgh"


def test_when_a_writer_has_signed_the_lock_file_all_files_are_shown_as_they_are(disk):
    view = view_of(disk)
    handle = view.open("/d/data")
    assert view.size(handle) == 7
    write(disk, "/d/jnl.lck", b"signed")
    assert (view.size(handle), view.size_of("/d/sums"), view.list_directory("/d")) == (
        3,
        None,
        ["data", "jnl.lck"],
    )


def test_a_file_that_was_removed_or_made_anew_is_not_shown(disk):
    view = view_of(disk)
    assert read(view) == b"abcdefg"
    disk.unlink("/d/data")
    assert view.size_of("/d/data") is None
    write(disk, "/d/data", b"abc")
    assert read(view) == b"abc"


def test_a_file_that_was_cut_is_shown_as_it_is(disk):
    view = view_of(disk)
    assert read(view) == b"abcdefg"
    handle = disk.open("/d/data", write=True)
    disk.truncate(handle, 1)
    assert read(view) == b"a"


def test_writing_goes_to_the_files_below(disk):
    view = view_of(disk)
    handle = view.open("/d/new", write=True, create=True)
    view.pwrite(handle, b"new", 0)
    view.close(handle)
    assert read(disk, "/d/new") == b"new"


# --- readers that were there before the writer ------------------------------------------------------------


def readers_of(cut: Lost, fs: Any) -> list[LogReader[Any, Any, Any]]:
    readers: list[LogReader[Any, Any, Any]]
    if cut.kind.name == "journal":
        readers = [JournalReader(PATH, fs=fs)]
    else:
        stream = ReadableStream(PATH, fs=fs)
        readers = [stream.open(partition) for partition in stream.partitions()]
    for reader in readers:
        reader.seek_oldest()
    return readers


def more(readers: list[LogReader[Any, Any, Any]], most: int = 1000) -> list[bytes]:
    return [message.value for reader in readers for message in reader.read_many(most)]


@pytest.mark.parametrize("may_write", [True, False])
@pytest.mark.parametrize("at_first", [0, 4, 1000])
@pytest.mark.parametrize("seed", [None, *range(8)])
@pytest.mark.parametrize("kind", ["journal", "stream"])
def test_a_reader_goes_on_when_a_writer_has_opened_the_store(kind, seed, at_first, may_write):
    cut = lost(kind, seed=seed)
    readers = readers_of(cut, cut.disk if may_write else ReadOnlyFS(cut.disk))
    found = more(readers, at_first)
    with cut.opened() as store:
        found += more(readers)
        for number in range(5):
            store.put(b"new %d" % number, "synced")
            found += more(readers)
        assert sorted(found) == sorted([*cut.synced, *(b"new %d" % number for number in range(5))])
    assert more(readers) == []
    assert not any(reader.losses for reader in readers)


def test_an_offset_in_messages_of_the_log_alone_is_not_set_back():
    cut = lost("journal")
    with JournalCommittedOffset(PATH, "archive", fs=cut.disk) as offset:
        offset.commit_to(15)
    with JournalCommittedOffset(PATH, "archive", fs=cut.disk) as offset:
        assert (offset.offset, offset.repairs) == (15, ())
