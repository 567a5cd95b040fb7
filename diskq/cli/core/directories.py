# The directory that a command names.

from __future__ import annotations

import os
from collections.abc import Collection

from diskq.cli.core.parsing import CommandError
from diskq.cli.core.terminal import as_one_is_missing, shown
from diskq.storage import directories
from diskq.storage.fs import OsFileSystem

__all__ = ["check_directory", "is_empty_directory", "make_directories", "make_room", "remove_directory"]


def check_directory(path: str, advice: str = "") -> None:
    """Raises CommandError unless `path` is a directory."""
    if not os.path.isdir(path):
        what = "not a directory" if os.path.exists(path) else "no such directory"
        raise CommandError(f"{path}: {what}{as_one_is_missing(path)}{advice}")


def is_empty_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.listdir(path)


def make_directories(path: str) -> None:
    """Make `path` and missing directories above it, durably."""
    directories.make_directories(OsFileSystem(), path)


def remove_directory(path: str) -> None:
    """Remove `path` with all that is in it. Does nothing if it does not exist."""
    directories.remove_tree(OsFileSystem(), path)


def make_room(path: str, what: str, ours: Collection[str]) -> None:
    """Make the directory `path` for a new store. `what` is the kind of store, for the error message.

    Files whose names are in `ours` may already be there. Raises CommandError if there are others.
    """
    if os.path.isdir(path) and (others := sorted(set(os.listdir(path)) - set(ours))):
        some = ", ".join(map(shown, others[:3])) + (", ..." if len(others) > 3 else "")
        raise CommandError(f"{path}: here is no {what}, but {some}: choose a directory of its own")
    make_directories(path)
