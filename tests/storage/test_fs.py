# Attributes of files, on the real disk and on those for tests.

from __future__ import annotations

import errno
import os

import pytest

from diskq.storage.fs import OsFileSystem, join
from diskq.storage.overlay import OverlayFS
from diskq.testing import CrashFS, FaultFS
from tests.engine.ram import RamFS


def in_memory() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/d")
    return fs


@pytest.fixture(params=["os", "crash", "fault", "ram"])
def disk(request, tmp_path):
    """A file system, and an empty directory on it."""
    match request.param:
        case "os":
            return OsFileSystem(), str(tmp_path)
        case "crash":
            return in_memory(), "/d"
        case "fault":
            return FaultFS(in_memory()), "/d"
        case _:
            return RamFS({}), "/d"


def made(fs, path, content=b"abc"):
    handle = fs.open(path, write=True, create=True)
    fs.pwrite(handle, content, 0)
    return handle


def test_a_file_has_its_size_by_handle_and_by_path(disk):
    fs, at = disk
    handle = made(fs, f"{at}/file")
    assert (fs.size(handle), fs.size_of(f"{at}/file")) == (3, 3)
    fs.close(handle)


def test_there_is_no_size_where_there_is_no_file(disk):
    fs, at = disk
    assert fs.size_of(f"{at}/nothing") is None


def test_an_open_file_has_a_name_until_it_is_removed(disk):
    fs, at = disk
    handle = made(fs, f"{at}/file")
    assert fs.has_name(handle)
    fs.unlink(f"{at}/file")
    assert not fs.has_name(handle)
    fs.close(handle)


def test_a_renamed_open_file_has_a_name(disk):
    fs, at = disk
    handle = made(fs, f"{at}/file")
    fs.rename(f"{at}/file", f"{at}/other")
    assert fs.has_name(handle)
    fs.close(handle)


def test_an_open_file_whose_name_was_given_to_another_has_none(disk):
    fs, at = disk
    handle = made(fs, f"{at}/file")
    other = made(fs, f"{at}/other", b"other")
    fs.rename(f"{at}/other", f"{at}/file")
    assert not fs.has_name(handle)
    assert fs.has_name(other)
    fs.close(handle)
    fs.close(other)


def test_an_invalid_handle_is_refused(tmp_path):
    for verb in (OsFileSystem().size, OsFileSystem().has_name):
        with pytest.raises(OSError, match="Bad file descriptor") as refused:
            verb(-1)
        assert refused.value.errno == errno.EBADF


def test_an_error_that_is_not_absence_is_an_error_and_names_the_path(tmp_path):
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "below")
    with pytest.raises(NotADirectoryError) as refused:
        OsFileSystem().size_of(path)
    assert refused.value.filename == path


def test_a_path_that_no_kernel_takes_is_refused():
    with pytest.raises(ValueError, match="null"):
        OsFileSystem().size_of("a\0b")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"a hundred bytes of it" * 5)
    (tmp_path / "link").symlink_to("file")
    assert OsFileSystem().size_of(str(tmp_path / "link")) == len("file")


def test_a_link_is_distinguished_from_its_target(tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    (tmp_path / "dangling").symlink_to("nowhere")
    with OverlayFS(OsFileSystem()) as overlay:
        for fs in (OsFileSystem(), FaultFS(OsFileSystem()), overlay):
            found = [fs.is_link(str(tmp_path / name)) for name in ("link", "dangling", "directory", "none")]
            assert found == [True, True, False, False]


@pytest.mark.parametrize("directory", ["", "a", "a/", "/", "/a", "a//", ".", "..", "a/b/"])
@pytest.mark.parametrize("names", [("x",), (".diskq", "x"), (".diskq", ""), ("parts", "000000", "x.data")])
def test_paths_are_joined_as_the_system_joins_them(directory, names):
    assert join(directory, *names) == os.path.join(directory, *names)
