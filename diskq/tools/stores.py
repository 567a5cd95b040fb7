# The stores at a path: their kinds and names. Law: file names decide, and nothing is opened; unknown files
# are not guessed at.

from __future__ import annotations

import contextlib
import errno
from typing import Literal, NamedTuple

from diskq.engine.journal.files import JournalFiles
from diskq.engine.layouts import queue_names
from diskq.engine.priority.files import StoreFiles
from diskq.engine.spool.files import DEAD, SPOOL, SpoolFiles
from diskq.engine.stream.files import StreamFiles
from diskq.errors import NotFoundError
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, base_name, directory_of, join
from diskq.storage.listings import ListedFileSystem

__all__ = ["KINDS", "Kind", "Store", "disk_for_many", "stores_at", "stores_below", "stores_found"]

Kind = Literal["queue", "spool", "stream", "journal", "jobs"]
KINDS: tuple[Kind, ...] = ("queue", "spool", "stream", "journal", "jobs")

# A file's store is up to this many levels above it: <stream>/parts/000000/<name>.
_DEEPEST = 4
# Stores are looked for up to this many levels below a directory, if their place is not known.
_FURTHEST = 5


class Store(NamedTuple):
    """A store of messages, of any kind."""

    kind: Kind
    path: str
    """Its directory."""
    name: str = ""
    """The name of a queue, of which a directory may hold several."""

    def __str__(self) -> str:
        return f"{self.kind} {self.path}" + (f" {self.name}" if self.name else "")


def disk_for_many() -> FileSystem:
    """Return the file system for a look at many stores: it lists their directories once while they stay."""
    return ListedFileSystem()


def stores_at(path: AnyPath, *, fs: FileSystem | None = None) -> list[Store]:
    """Return the stores at `path`, sorted by name; empty if there is none.

    They are the stores in the directory and in those directly below it, of every kind; if `path` is a file,
    the store that it belongs to.

    Raises OSError.
    """
    return _stores(fs or OsFileSystem(), as_path(path), 1)


def stores_below(path: AnyPath, *, fs: FileSystem | None = None) -> list[Store]:
    """Return what `stores_at` does, and stores further below, but in no hidden directory. Raises OSError."""
    return _stores(fs or OsFileSystem(), as_path(path), _FURTHEST)


def stores_found(path: AnyPath, *, fs: FileSystem | None = None) -> list[Store]:
    """Return what `stores_below` does. Raises FileNotFoundError also if there is no store."""
    found = stores_below(path, fs=fs)
    if not found:
        raise FileNotFoundError(errno.ENOENT, "there is nothing here that diskq knows", as_path(path))
    return found


def _stores(fs: FileSystem, path: str, levels: int) -> list[Store]:
    if fs.size_of(path) is None:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
    try:
        names = fs.list_directory(path)
    except NotADirectoryError:
        return _around(fs, path)
    return _in_and_below(fs, path, names, levels)


def _in_and_below(fs: FileSystem, path: str, names: list[str], levels: int) -> list[Store]:
    """Look for every kind at every level: a store in a directory hides no others there or below it."""
    found = _in(fs, path)
    own = _own_directories(fs, found)
    for name in sorted(names) if levels else ():
        below = join(path, name)
        if name.startswith(".") or below in own:
            continue
        with contextlib.suppress(NotADirectoryError, FileNotFoundError):
            found += _in_and_below(fs, below, fs.list_directory(below), levels - 1)
    return found


def _own_directories(fs: FileSystem, stores: list[Store]) -> set[str]:
    """Return the directories in which these stores have their files: no others are looked for there."""
    own: set[str] = set()
    for store in stores:
        if store.kind == "stream":
            own.add(StreamFiles(fs, store.path).parts)
        elif store.kind == "journal":
            files = JournalFiles(fs, store.path)
            own |= {files.directory, files.offsets}
        elif store.kind == "jobs":
            queues = StoreFiles.found(fs, store.path)
            own |= {queues.log, *queues.temporaries}
            if queues.root != store.path:
                own.add(queues.root)
    return own


def _in(fs: FileSystem, path: str) -> list[Store]:
    """Return the stores in the directory `path` itself."""
    queues = queue_names(fs, path)
    stores = []
    if SPOOL in queues and fs.size_of(SpoolFiles(path).state) is not None:
        queues = [name for name in queues if name not in (SPOOL, DEAD)]
        stores.append(Store("spool", path))
    stores += [Store("queue", path, name) for name in queues]
    if fs.size_of(StreamFiles(fs, path).parts) is not None:
        stores.append(Store("stream", path))
    with contextlib.suppress(NotFoundError):
        # Also a store that has no segment (any more).
        JournalFiles(fs, path).bases()
        stores.append(Store("journal", path))
    if StoreFiles.found(fs, path).are_there:
        stores.append(Store("jobs", path))
    return stores


def _around(fs: FileSystem, file: str) -> list[Store]:
    """Return the stores that the file at `file` belongs to."""
    path, name = directory_of(file), base_name(file)
    for _ in range(_DEEPEST):
        if stores := _in(fs, path):
            queues = [store for store in stores if store.kind == "queue"]
            own = [store for store in queues if name.startswith(f"{store.name}.diskqueue.")]
            return own or stores
        if path == (above := directory_of(path)):
            break
        path = above
    return []
