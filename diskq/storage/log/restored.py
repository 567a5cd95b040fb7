# Files with what only a redo log has. Law: a file that lacks bytes is shown with them; everything else is as
# it is below at that moment, and is changed below.
#
# For a reader that may not write, and reads on for days while others do. No file is open but for this reader,
# each may grow after the bytes that are shown, and in the end all files are shown as they are below.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from diskq.storage.fs import FileSystem, base_name, directory_of
from diskq.storage.numbered_files import names_in

__all__ = ["Restored", "RestoredFiles"]

# Far from any file descriptor, and from the handles of an overlay, as one may be over the other.
_handles = itertools.count(1 << 29)


class Restored(NamedTuple):
    """Bytes of a file that the redo log has, and the file has not, or not all of them."""

    path: str
    start: int
    content: bytes
    is_data: bool = False
    """True if it is a data file, and not one beside it."""

    @property
    def end(self) -> int:
        return self.start + len(self.content)


class RestoredFiles:
    """A file system that shows `restored` bytes in their places, until `is_over` returns True.

    `is_over` is called before each use of a file that lacks such bytes. Operations that are not defined here
    are those of the file system below.
    """

    native = False

    def __init__(self, below: FileSystem, restored: Iterable[Restored], is_over: Callable[[], bool]) -> None:
        self._below = below
        self._restored = {its.path: its for its in restored}
        self._is_over = is_over
        self._opened: dict[int, Restored] = {}  # by the handles of files that lack something
        # Handles of files that were not there below, and the handles below once they are.
        self._missing: dict[int, str] = {}
        self._found: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def is_changed(self, path: str) -> bool:
        """True if the file is shown with bytes that it does not have."""
        return self._shown(self._restored.get(path)) is not None

    def _shown(self, its: Restored | None) -> Restored | None:
        """Return it, unless the files are shown as they are below from now on, or already."""
        if its is not None and self._restored and self._is_over():
            self._restored.clear()
            self._opened.clear()
        return its if self._restored else None

    # --- files ------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        its = None if write or create else self._shown(self._restored.get(path))
        if its is None:
            return self._below.open(path, write=write, create=create, exclusive=exclusive)
        try:
            handle = self._below.open(path)
        except FileNotFoundError:
            handle = next(_handles)
            self._missing[handle] = path
        self._opened[handle] = its
        return handle

    def _real(self, handle: int) -> int:
        """Return the handle below; -1 if there is no file yet."""
        path = self._missing.get(handle)
        if path is None:
            return handle
        if handle not in self._found and self._below.size_of(path) is not None:
            self._found[handle] = self._below.open(path)
        return self._found.get(handle, -1)

    def close(self, handle: int) -> None:
        self._opened.pop(handle, None)
        if self._missing.pop(handle, None) is not None:
            handle = self._found.pop(handle, -1)
        if handle >= 0:
            self._below.close(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        its, real = self._shown(self._opened.get(handle)), self._real(handle)
        data = b"" if real < 0 else self._below.pread(real, size, offset)
        if its is None:
            return data
        start, end = max(offset, its.start), min(offset + size, its.end)
        if start >= end or len(data) < start - offset:
            return data
        content = its.content[start - its.start : end - its.start]
        return data[: start - offset] + content + data[end - offset :]

    def size(self, handle: int) -> int:
        its, real = self._shown(self._opened.get(handle)), self._real(handle)
        size = 0 if real < 0 else self._below.size(real)
        return size if its is None else max(size, its.end)

    def has_name(self, handle: int) -> bool:
        real = self._real(handle)
        return real < 0 or self._below.has_name(real)

    # --- names ------------------------------------------------------------------------------------

    def size_of(self, path: str) -> int | None:
        its, size = self._shown(self._restored.get(path)), self._below.size_of(path)
        return size if its is None else max(size or 0, its.end)

    def list_directory(self, path: str) -> list[str]:
        return self._with_restored(path, self._below.list_directory(path), "")

    def names_in(self, directory: str, prefix: str) -> list[str]:
        """Return the names in the directory that begin with `prefix`, sorted. Raises OSError."""
        return self._with_restored(directory, names_in(self._below, directory, prefix), prefix)

    def _with_restored(self, directory: str, names: list[str], prefix: str) -> list[str]:
        there = [its for its in tuple(self._restored.values()) if directory_of(its.path) == directory]
        shown = (base_name(its.path) for its in there if self._shown(its) is not None)
        return sorted({*names, *(name for name in shown if name.startswith(prefix))})
