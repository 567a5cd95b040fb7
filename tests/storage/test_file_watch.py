# Notification of file changes.

from __future__ import annotations

import os
import resource
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskq._native.core import inotify
from diskq.storage.file_watch import FileWatch
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS


@pytest.fixture
def watch() -> Iterator[FileWatch]:
    watch = OsFileSystem().open_watch()
    assert watch is not None
    yield watch
    watch.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "0.index"
    path.write_bytes(b"")
    return path


def append(path: Path, data: bytes = b"x") -> None:
    with path.open("ab") as file:
        file.write(data)


def is_readable(watch: FileWatch) -> bool:
    return bool(select.select([watch.fileno()], [], [], 0)[0])


def test_a_write_is_reported_once(watch, file):
    watch.add_file(str(file))
    assert not is_readable(watch)
    for _ in range(3):
        append(file)
    assert is_readable(watch)
    assert watch.drain() == {str(file)}
    assert not is_readable(watch)
    assert watch.drain() == set()


def test_created_removed_and_changed_names_are_reported(watch, tmp_path, file):
    watch.add_directory(str(tmp_path))
    for act in (
        (tmp_path / "1.index").touch,
        lambda: (tmp_path / "1.index").rename(tmp_path / "2.index"),
        (tmp_path / "2.index").unlink,
        (tmp_path / "000001").mkdir,
    ):
        act()
        assert watch.drain() == {str(tmp_path)}


def test_a_write_in_a_directory_is_not_a_change_of_its_names(watch, tmp_path, file):
    watch.add_directory(str(tmp_path))
    append(file)
    assert watch.drain() == set()


def test_a_removed_path_is_no_longer_reported(watch, tmp_path, file):
    watch.add_file(str(file))
    watch.add_directory(str(tmp_path))
    watch.remove(str(file))
    watch.remove(str(file))
    append(file)
    (tmp_path / "1.index").touch()
    assert watch.drain() == {str(tmp_path)}


def test_two_paths_of_one_file_are_both_reported_until_each_is_removed(watch, tmp_path, file):
    second = f"{tmp_path}/./{file.name}"
    watch.add_file(str(file))
    watch.add_file(second)
    append(file)
    assert watch.drain() == {str(file), second}
    watch.remove(str(file))
    append(file)
    assert watch.drain() == {second}


def test_a_removed_file_is_reported_and_a_new_one_of_its_name_can_be_added(watch, file):
    watch.add_file(str(file))
    file.unlink()
    assert watch.drain() == {str(file)}
    append(file)
    assert watch.drain() == set()
    watch.add_file(str(file))
    append(file)
    assert watch.drain() == {str(file)}


def test_a_file_that_replaced_another_is_the_one_that_is_reported(watch, tmp_path, file):
    watch.add_file(str(file))
    (tmp_path / "new").write_bytes(b"")
    kept = file.open("ab", buffering=0)
    (tmp_path / "new").rename(file)
    watch.add_file(str(file))
    watch.drain()
    with kept:
        kept.write(b"to the old one")
    assert watch.drain() == set()
    append(file)
    assert watch.drain() == {str(file)}


def test_when_the_kernel_lost_events_everything_is_reported(watch, tmp_path, file):
    watch.add_file(str(file))
    watch.add_directory(str(tmp_path))
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(limit // 2 + 2):  # two events each, with no two equal ones in a row
        (tmp_path / f"{number % 2}").touch()
        (tmp_path / f"{number % 2}").unlink()
    reported = set()
    while is_readable(watch):
        reported |= watch.drain()
    assert reported == {str(file), str(tmp_path)}


def test_a_missing_file_cannot_be_watched(watch, tmp_path, file):
    with pytest.raises(FileNotFoundError) as refused:
        watch.add_file(str(tmp_path / "none"))
    assert refused.value.filename == str(tmp_path / "none")
    with pytest.raises(NotADirectoryError):
        watch.add_directory(str(file))


def test_a_name_that_is_not_text_can_be_watched(watch, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.index")
    append(Path(path))
    watch.add_file(path)
    append(Path(path))
    assert watch.drain() == {path}


def test_there_is_no_watch_when_the_limit_is_reached():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open("/", os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            inotify.init()
        assert OsFileSystem().open_watch() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_disk_in_memory_has_no_watch():
    assert CrashFS().open_watch() is None
    assert FaultFS(CrashFS()).open_watch() is None


# --- which directory is which -----------------------------------------------------------------


def test_two_ways_to_one_directory_lead_to_one_place(tmp_path):
    fs = OsFileSystem()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert fs.place_of(f"{tmp_path}/a") == fs.place_of(f"{tmp_path}/b/../link")
    assert fs.place_of(f"{tmp_path}/a") != fs.place_of(f"{tmp_path}/b")
    assert FaultFS(fs).place_of(f"{tmp_path}/a") == fs.place_of(f"{tmp_path}/a")


def test_two_disks_have_no_place_in_common():
    one, other = CrashFS(), CrashFS()
    for fs in (one, other):
        fs.make_directory_durably("/a")
    assert one.place_of("/a") == one.place_of("/a/../a") == FaultFS(one).place_of("/a")
    assert one.place_of("/a") != other.place_of("/a")
    assert one.place_of("/a") != one.place_of("/")


def test_the_place_of_a_missing_path_is_an_error(tmp_path):
    for fs, path in ((OsFileSystem(), f"{tmp_path}/none"), (CrashFS(), "/none")):
        with pytest.raises(FileNotFoundError):
            fs.place_of(path)
