# What keeps messages at a path: of which kind it is, and what it is called. Law: names decide, and nothing
# is opened; what we do not know is not guessed at.

from __future__ import annotations

import contextlib
import errno
from typing import Literal, NamedTuple

from diskq.engine.journal.files import JournalFiles
from diskq.engine.layouts import queue_names
from diskq.engine.priority.files import StoreFiles
from diskq.engine.spool.files import DEAD, SPOOL, SpoolFiles
from diskq.engine.stream.files import StreamFiles
from diskq.errors import JournalNotFoundError
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, base_name, directory_of, join

__all__ = ["KINDS", "Kind", "Thing", "things_at", "things_below", "things_found"]

Kind = Literal["queue", "spool", "stream", "journal", "jobs"]
KINDS: tuple[Kind, ...] = ("queue", "spool", "stream", "journal", "jobs")

# So far above a file the directory is that it belongs to: <stream>/parts/000000/<name>.
_DEEPEST = 4
# So many levels below a directory things are looked for, where somebody only knows that they are there.
_FURTHEST = 5


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

    That is what is in the directory and in those directly below it, of every kind; and where `path` is a
    file, what it belongs to.

    Raises OSError.
    """
    return _things(fs or OsFileSystem(), as_path(path), 1)


def things_below(path: AnyPath, *, fs: FileSystem | None = None) -> list[Thing]:
    """As `things_at`, and further below as well, but for hidden directories. Raises OSError."""
    return _things(fs or OsFileSystem(), as_path(path), _FURTHEST)


def things_found(path: AnyPath, *, fs: FileSystem | None = None) -> list[Thing]:
    """As `things_below`. Raises FileNotFoundError also where there is nothing that we know."""
    found = things_below(path, fs=fs)
    if not found:
        raise FileNotFoundError(errno.ENOENT, "there is nothing here that diskq knows", as_path(path))
    return found


def _things(fs: FileSystem, path: str, levels: int) -> list[Thing]:
    if fs.size_of(path) is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
    try:
        names = fs.list_directory(path)
    except NotADirectoryError:
        return _around(fs, path)
    return _in_and_below(fs, path, names, levels)


def _in_and_below(fs: FileSystem, path: str, names: list[str], levels: int) -> list[Thing]:
    """Every kind at every level: what lies in a directory hides nothing beside it or below it."""
    found = _in(fs, path)
    own = _own_directories(fs, found)
    for name in sorted(names) if levels else ():
        below = join(path, name)
        if name.startswith(".") or below in own:
            continue
        with contextlib.suppress(NotADirectoryError, FileNotFoundError):
            found += _in_and_below(fs, below, fs.list_directory(below), levels - 1)
    return found


def _own_directories(fs: FileSystem, things: list[Thing]) -> set[str]:
    """Those in which these things have their files: nothing else is looked for there."""
    own: set[str] = set()
    for thing in things:
        if thing.kind == "stream":
            own.add(StreamFiles(fs, thing.path).parts)
        elif thing.kind == "journal":
            files = JournalFiles(fs, thing.path)
            own |= {files.directory, files.offsets}
        elif thing.kind == "jobs":
            store = StoreFiles.found(fs, thing.path)
            own |= {store.log, *store.temporaries}
            if store.root != thing.path:
                own.add(store.root)
    return own


def _in(fs: FileSystem, path: str) -> list[Thing]:
    """What is in the directory `path` itself."""
    queues = queue_names(fs, path)
    things = []
    if SPOOL in queues and fs.size_of(SpoolFiles(path).state) is not None:
        queues = [name for name in queues if name not in (SPOOL, DEAD)]
        things.append(Thing("spool", path))
    things += [Thing("queue", path, name) for name in queues]
    if fs.size_of(StreamFiles(fs, path).parts) is not None:
        things.append(Thing("stream", path))
    with contextlib.suppress(JournalNotFoundError):
        # Also one that has no segment (any more).
        JournalFiles(fs, path).bases()
        things.append(Thing("journal", path))
    if StoreFiles.found(fs, path).are_there:
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
