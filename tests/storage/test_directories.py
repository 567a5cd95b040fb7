# Directories created and removed, on every kind of disk.

from __future__ import annotations

from pathlib import Path

import pytest

from diskq.storage.directories import make_directories, remove_tree
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.overlay import OverlayFS
from diskq.testing import CrashFS, FaultFS


@pytest.fixture(params=["os", "crash", "overlay"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A disk, and an empty directory on it."""
    if request.param == "crash":
        disk = CrashFS()
        disk.make_directory_durably("/q")
        return FaultFS(disk), "/q"
    (tmp_path / "q").mkdir()
    return OsFileSystem() if request.param == "os" else OverlayFS(OsFileSystem()), f"{tmp_path}/q"


def write(fs: FileSystem, path: str) -> None:
    fs.close(fs.open(path, write=True, create=True))


def test_a_tree_is_removed_with_everything_in_it(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    make_directories(fs, f"{root}/tree/deep/er")
    write(fs, f"{root}/tree/file")
    write(fs, f"{root}/tree/deep/er/file")
    write(fs, f"{root}/other")
    remove_tree(fs, f"{root}/tree")
    assert fs.list_directory(root) == ["other"]
    assert fs.size_of(f"{root}/tree") is None


def test_removing_a_missing_tree_is_no_error(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    remove_tree(fs, f"{root}/tree")
    assert fs.list_directory(root) == []


def test_a_directory_is_made_where_one_was_taken_away(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    for _ in range(2):
        make_directories(fs, f"{root}/tree")
        remove_tree(fs, f"{root}/tree")
    assert fs.make_directory(f"{root}/tree")
    assert fs.list_directory(f"{root}/tree") == []


def test_a_directory_that_is_not_empty_stays(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    write(fs, f"{root}/file")
    with pytest.raises(OSError, match="not empty"):
        fs.remove_directory(root)


def test_an_overlay_removes_what_stays_below(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"kept")
    overlay = OverlayFS(OsFileSystem())
    remove_tree(overlay, f"{tmp_path}/tree")
    assert overlay.list_directory(str(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        overlay.list_directory(f"{tmp_path}/tree")
    assert (tmp_path / "tree" / "file").read_bytes() == b"kept"
