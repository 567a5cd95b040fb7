# The directory that a command names.

from __future__ import annotations

import os

from diskq.cli.parsing import CommandError
from diskq.storage import directories
from diskq.storage.fs import OsFileSystem

__all__ = ["check_directory", "make_directories"]


def check_directory(path: str, advice: str = "") -> None:
    """Raises CommandError unless `path` is a directory."""
    if not os.path.isdir(path):
        what = "not a directory" if os.path.exists(path) else "no such directory"
        raise CommandError(f"{path}: {what}{advice}")


def make_directories(path: str) -> None:
    """Make `path` and what is missing above it, durably."""
    directories.make_directories(OsFileSystem(), path)
