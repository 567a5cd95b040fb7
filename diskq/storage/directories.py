# Directories that are made because somebody asked for a place below them, and taken away with all that is in
# them because what was to become of it will not.

from __future__ import annotations

from diskq.storage.barrier import Barrier
from diskq.storage.fs import FileSystem, directory_of, join

__all__ = ["make_directories", "remove_tree"]


def make_directories(fs: FileSystem, path: str) -> None:
    """Make `path` and what is missing above it, durably: what is synced below it must be found again.

    Raises OSError; NotADirectoryError where something else is in the way.
    """
    missing = []
    while fs.size_of(path) is None:
        missing.append(path)
        path = directory_of(path.rstrip("/"))
    for directory in reversed(missing):
        fs.make_directory(directory)
    Barrier(directories=tuple(directory_of(directory.rstrip("/")) for directory in missing)).execute(fs)


def remove_tree(fs: FileSystem, path: str) -> None:
    """Take away the directory `path` and everything in it, or the file; nothing where there is neither.

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
