# The simplest disk: bytes by path; it does not record what was synced, and never fails.
# For tests that open tens of thousands of queues.

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Hashable, Sequence

from diskq.storage.fs import Identity, Stamp

__all__ = ["RamFS"]


def _above(path: str) -> list[str]:
    above = os.path.dirname(path)
    return [above] if above == path else [above, *_above(above)]


class RamFS:
    native = False

    def __init__(self, files: dict[str, bytes]) -> None:
        self.now = {path: bytearray(content) for path, content in files.items()}
        self.directories = {"/", *(above for path in files for above in _above(path))}
        self._handles: dict[int, bytearray] = {}
        self._numbers = itertools.count(1_000_000)
        self._locked: dict[int, int] = {}  # by file: the handle that has locked it, as with flock(2)

    # --- for the test ---------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        return {path: bytes(content) for path, content in self.now.items()}

    def read(self, path: str) -> bytes:
        return bytes(self.now[path])

    def write_durably(self, path: str, content: bytes) -> None:
        self.now[path] = bytearray(content)

    def kill(self) -> RamFS:
        return RamFS(self.files())

    # --- the verbs of `FileSystem` --------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        if create and exclusive and path in self.now:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if create and path not in self.now:
            self.now[path] = bytearray()
        handle = next(self._numbers)
        self._handles[handle] = self._file(path)
        return handle

    def _file(self, path: str) -> bytearray:
        try:
            return self.now[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def close(self, handle: int) -> None:
        file = id(self._handles.pop(handle))
        if self._locked.get(file) == handle:
            del self._locked[file]

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._handles[handle][offset : offset + size])

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        file = self._handles[handle]
        file.extend(bytes(max(0, offset - len(file))))
        file[offset : offset + len(data)] = data
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        file = self._handles[handle]
        del file[size:]
        file.extend(bytes(size - len(file)))

    def share_memory(self, handle: int, size: int) -> memoryview:
        raise OSError(errno.ENOSPC, "not needed here")

    def size(self, handle: int) -> int:
        return len(self._handles[handle])

    def has_name(self, handle: int) -> bool:
        return any(file is self._handles[handle] for file in self.now.values())

    def sync_files(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self._handles[handle]

    def sync_directory(self, path: str) -> None:
        self.list_directory(path)

    def sync_file_system(self, handle: int) -> None:
        self._handles[handle]

    def rename(self, source: str, target: str) -> None:
        self.now[target] = self._file(source)
        del self.now[source]

    def link(self, source: str, target: str) -> bool:
        if target in self.now:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self.now[target] = self._file(source)
        return True

    def unlink(self, path: str) -> None:
        self._file(path)
        del self.now[path]

    def make_directory(self, path: str) -> bool:
        is_new = path not in self.directories
        self.directories.add(path)
        return is_new

    def remove_directory(self, path: str) -> None:
        assert not self.list_directory(path)
        self.directories.remove(path)

    def list_directory(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        inside = (name[len(start) :] for name in (*self.now, *self.directories) if name.startswith(start))
        return [name for name in inside if name and "/" not in name]

    def size_of(self, path: str) -> int | None:
        if path in self.directories:
            return 0
        return len(self.now[path]) if path in self.now else None

    def stamp_of(self, path: str) -> Stamp | None:
        return Stamp(id(self.now[path]), 0) if path in self.now else None

    def place_of(self, path: str) -> Hashable:
        return self, path

    def device_of(self, path: str) -> Hashable:
        return None

    def is_link(self, path: str) -> bool:
        return False

    def open_watch(self) -> None:
        return None

    def try_lock(self, handle: int) -> bool:
        if id(self._handles[handle]) in self._locked:
            return False
        self._locked[id(self._handles[handle])] = handle
        return True

    def is_locked(self, handle: int, owner: Identity) -> bool | None:
        return id(self._handles[handle]) in self._locked

    def identity(self) -> Identity:
        return Identity(1, "ram", "boot")

    def monotonic(self) -> float:
        return 0.0

    def wall_clock(self) -> float:
        return 0.0

    def unique_number(self) -> int:
        return next(self._numbers)
