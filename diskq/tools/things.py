# What keeps messages at a path: of which kind it is, and what it is called. Law: names decide, and nothing
# is opened; what we do not know is not guessed at.

from __future__ import annotations

import contextlib
import errno
from typing import Literal, NamedTuple

from diskq.engine.layouts import is_journal, layout_of, queue_names
from diskq.engine.shards import journals_below
from diskq.engine.spoolfiles import DEAD, SPOOL, SpoolFiles
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, base_name, directory_of, join

__all__ = ["KINDS", "Kind", "Thing", "things_at", "things_found"]

Kind = Literal["queue", "spool", "stream", "journal", "jobs"]
KINDS: tuple[Kind, ...] = ("queue", "spool", "stream", "journal", "jobs")

# So far above a file the directory is that it belongs to: <stream>/parts/000000/<name>.
_DEEPEST = 4
# So many levels below a directory things are looked for, where somebody only knows that they are there.
_FURTHEST = 3


class Thing(NamedTuple):
    """Something that keeps messages."""

    kind: Kind
    path: str
    """Its directory."""
    name: str = ""
    """Of a queue, of which a directory may hold several."""

    def __str__(self) -> str:
        return f"{self.kind} {self.path}" + (f" {self.name}" if self.name else "")


def things_at(path: AnyPath, *, fs: FileSystem | None = None) -> list[Thing]:
    """What keeps messages at `path`, by name; empty: nothing that we know.

    That is what is in the directory; below it, where it is a root of journals (shards, a hub's); around it,
    where it is one of the files.

    Raises OSError.
    """
    disk = fs or OsFileSystem()
    text = as_path(path)
    if disk.size_of(text) is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", text)
    try:
        disk.list_directory(text)
    except NotADirectoryError:
        return _around(disk, text)
    return _directly(disk, text)


def things_found(path: AnyPath, *, fs: FileSystem | None = None) -> list[Thing]:
    """As `things_at`; where there is nothing, what is further below, but for hidden directories.

    Raises FileNotFoundError also where there is nothing that we know, OSError.
    """
    disk = fs or OsFileSystem()
    text = as_path(path)
    found = things_at(text, fs=disk) or _below(disk, text, _FURTHEST)
    if not found:
        raise FileNotFoundError(errno.ENOENT, "there is nothing here that diskq knows", text)
    return found


def _below(fs: FileSystem, path: str, levels: int) -> list[Thing]:
    found: list[Thing] = []
    try:
        names = fs.list_directory(path)
    except NotADirectoryError:
        return found
    for below in (join(path, name) for name in sorted(names) if not name.startswith(".")):
        with contextlib.suppress(NotADirectoryError, FileNotFoundError):
            found += _directly(fs, below) or (_below(fs, below, levels - 1) if levels else [])
    return found


def _directly(fs: FileSystem, path: str) -> list[Thing]:
    return _in(fs, path) or [Thing("journal", below) for below in journals_below(fs, path, set())[0]]


def _in(fs: FileSystem, path: str) -> list[Thing]:
    layout = layout_of(fs, path)
    if layout == "triplet":
        return [Thing("stream", path)]
    queues = queue_names(fs, path)
    things = []
    if SPOOL in queues and fs.size_of(SpoolFiles(path).state) is not None:
        queues = [name for name in queues if name not in (SPOOL, DEAD)]
        things.append(Thing("spool", path))
    things += [Thing("queue", path, name) for name in queues]
    if is_journal(fs, path):
        things.append(Thing("journal", path))
    elif layout == "taskflux":
        things.append(Thing("jobs", path))
    return things


def _around(fs: FileSystem, file: str) -> list[Thing]:
    """What the file at `file` belongs to."""
    path, name = directory_of(file), base_name(file)
    for _ in range(_DEEPEST):
        if things := _in(fs, path):
            queues = [thing for thing in things if thing.kind == "queue"]
            own = [thing for thing in queues if name.startswith(f"{thing.name}.diskqueue.")]
            return own or things
        if path == (above := directory_of(path)):
            break
        path = above
    return []
