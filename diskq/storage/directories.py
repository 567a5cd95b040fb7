# Directories that are made because somebody asked for a place below them.

from __future__ import annotations

from diskq.storage.barrier import Barrier
from diskq.storage.fs import FileSystem, directory_of

__all__ = ["make_directories"]


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
    Barrier(directories=tuple(directory_of(directory.rstrip("/")) for directory in missing)).pay(fs)
