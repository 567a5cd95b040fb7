# A disk under a process that is killed before one of its calls. Law: what was called before is done, as the
# page cache survives a kill; that call and all behind it are not.

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from diskq.storage.fs import OsFileSystem

__all__ = ["DyingDisk"]


class DyingDisk(OsFileSystem):
    """The real disk. `end` is called before the `nth` change of a file whose path ends with `suffix`."""

    native = False  # each call is seen here

    def __init__(self, nth: int, suffix: str = "", end: Callable[[], object] = lambda: os._exit(0)) -> None:
        self._left = nth
        self._suffix = suffix
        self._end = end
        self._paths: dict[int, str] = {}

    def _count(self, path: str) -> None:
        if path.endswith(self._suffix):
            self._left -= 1
            if not self._left:
                self._end()

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        if create and not os.path.exists(path):
            self._count(path)
        handle = super().open(path, write=write, create=create, exclusive=exclusive)
        self._paths[handle] = path
        return handle

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        self._count(self._paths.get(handle, ""))
        return super().pwrite(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._count(self._paths.get(handle, ""))
        super().truncate(handle, size)

    def sync_files(self, handles: Sequence[int]) -> None:
        self._count(self._paths.get(handles[0], "") if handles else "")
        super().sync_files(handles)

    def rename(self, source: str, target: str) -> None:
        self._count(target)
        super().rename(source, target)

    def link(self, source: str, target: str) -> bool:
        self._count(target)
        return super().link(source, target)

    def unlink(self, path: str) -> None:
        self._count(path)
        super().unlink(path)
