# Creating missing parent directories, and removing a directory tree whose creation was given up.
# Law: both are durable when they return.

from __future__ import annotations

from diskq.storage.barrier import Barrier
from diskq.storage.fs import FileSystem, directory_of, join

__all__ = ["make_directories", "remove_tree"]


def make_directories(fs: FileSystem, path: str) -> None:
    """Create `path` and its missing parents durably, so that files synced below it are found again.

    Raises OSError; NotADirectoryError if a part of the path is not a directory.
    """
    missing = []
    while fs.size_of(path) is None:
        missing.append(path)
        path = directory_of(path.rstrip("/"))
    for directory in reversed(missing):
        fs.make_directory(directory)
    Barrier(directories=tuple(directory_of(directory.rstrip("/")) for directory in missing)).execute(fs)


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove the directory `path` and everything in it, or the file; do nothing if there is neither.

    Raises OSError.
    """
    files: list[str] = []
    directories: list[str] = []
    if fs.size_of(path) is not None:
        _gather(fs, path, files, directories)
    Barrier(removals=tuple(files), emptied=tuple(directories)).execute(fs)


def _gather(fs: FileSystem, path: str, files: list[str], directories: list[str]) -> None:
    try:
        names = fs.list_directory(path)
    except NotADirectoryError:
        files.append(path)
        return
    for name in names:
        _gather(fs, join(path, name), files, directories)
    directories.append(path)
