# A file system over another one, which keeps all changes in memory. Law: the file system below is only read;
# nothing of it is changed, created or removed.
#
# So an open can be tried out on a directory, by the code that would do it. Only the bytes of a file after its
# first changed byte are held in memory: repairs mostly change the end of a file.

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from diskq.errors import CorruptionError
from diskq.storage.barrier import let_go
from diskq.storage.file_watch import FileWatch
from diskq.storage.fs import FileSystem, Identity, Stamp, base_name, directory_of
from diskq.storage.numbered_files import names_in

__all__ = ["OverlayFS"]


# Bytes of one file: repairs change its end, but a file that is one hole may have any size.
_MOST_IN_MEMORY = 8 * 1024 * 1024 * 1024
# Far from any file descriptor, and of no other overlay, as one may be over another.
_handles = itertools.count(1 << 30)


@dataclass(slots=True, eq=False)
class _OverlaidFile:
    """The first `kept` bytes of a file below, followed by `tail`."""

    path: str
    """Empty: it no longer has a name."""
    below: int
    """A handle; -1: there is no such file."""
    kept: int
    tail: bytearray = field(default_factory=bytearray)
    is_changed: bool = False
    handles: int = 0
    """The number of handles that are open on it."""

    @property
    def size(self) -> int:
        return self.kept + len(self.tail)


class OverlayFS:
    """The files below, with the changes made here. They exist until it is closed."""

    native = False

    def __init__(self, below: FileSystem, *, locks: bool = False) -> None:
        """With `locks`, locks on existing files are taken below, too; else every lock succeeds."""
        self._below = below
        self._locks = locks
        self._files: dict[str, _OverlaidFile | None] = {}  # by path, once used; None: it does not exist
        self._directories: set[str] = set()
        self._removed: set[str] = set()  # directories that exist below
        self._used: dict[str, set[str]] = {}  # the paths of all these, by the directory that they are in
        self._handles: dict[int, _OverlaidFile] = {}

    def __enter__(self) -> OverlayFS:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()

    def close_all(self) -> None:
        """Close the files below, and release the locks. Idempotent."""
        files, self._files = self._files, {}
        for file in {file for file in (*files.values(), *self._handles.values()) if file is not None}:
            self._let_go(file)
        self._handles.clear()

    def is_changed(self, path: str) -> bool:
        """True if the file exists, and differs from the one below."""
        file = self._files.get(path)
        return file is not None and file.is_changed

    def _let_go(self, file: _OverlaidFile) -> None:
        if file.below >= 0:
            handle, file.below = file.below, -1
            let_go(self._below, handle)

    def _note(self, path: str) -> None:
        """Note that the path is used: a listing of its directory asks for those paths, and no others."""
        self._used.setdefault(directory_of(path), set()).add(path)

    # --- files ------------------------------------------------------------------------------------

    def _found(self, path: str) -> _OverlaidFile | None:
        if path not in self._files:
            self._files[path] = None
            self._note(path)
            with contextlib.suppress(FileNotFoundError):
                handle = self._below.open(path)
                try:
                    self._files[path] = _OverlaidFile(path, handle, self._below.size(handle))
                except BaseException:
                    let_go(self._below, handle)
                    raise
        return self._files[path]

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        file = self._found(path)
        if file is not None and create and exclusive:
            raise FileExistsError(errno.EEXIST, "it exists already", path)
        if file is None:
            if not create or not self._is_directory(directory_of(path)):
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
            file = self._files[path] = _OverlaidFile(path, -1, 0, is_changed=True)
        handle = next(_handles)
        self._handles[handle] = file
        file.handles += 1
        return handle

    def close(self, handle: int) -> None:
        file = self._handles.pop(handle)
        file.handles -= 1
        if file.handles:
            return
        if not file.path:
            self._let_go(file)
        elif not file.is_changed:
            self._let_go(file)
            del self._files[file.path]  # it equals the file below
            self._used[directory_of(file.path)].discard(file.path)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        file = self._handles[handle]
        data = b""
        if offset < file.kept:
            data = self._below.pread(file.below, min(size, file.kept - offset), offset)
            if len(data) == size or len(data) < file.kept - offset:
                return data  # all of it, or another process has just cut the file
        start = max(0, offset - file.kept)
        return data + bytes(file.tail[start : start + size - len(data)])

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        file, count = self._handles[handle], len(data)
        # Bytes written over themselves, to make sure that they are synced, change nothing.
        if self.pread(handle, count, offset) != data:
            self._keep(file, offset)
            start = offset - file.kept
            file.tail += bytes(max(0, start - len(file.tail)))
            file.tail[start : start + count] = data
        return count

    def truncate(self, handle: int, size: int) -> None:
        file = self._handles[handle]
        file.is_changed = True
        if size < file.kept:
            file.kept = size
            file.tail.clear()
        elif size <= file.size:
            del file.tail[size - file.kept :]
        else:
            file.tail += bytes(size - file.size)

    def _keep(self, file: _OverlaidFile, offset: int) -> None:
        """Hold the file in memory from `offset` on."""
        file.is_changed = True
        if file.kept - offset > _MOST_IN_MEMORY:
            reason = f"{file.kept - offset} bytes would be held in memory"
            raise CorruptionError(file.path, offset, reason)
        if offset < file.kept:
            file.tail[:0] = self._below.pread(file.below, file.kept - offset, offset)
            file.kept = offset

    def share_memory(self, handle: int, size: int) -> memoryview:
        file = self._handles[handle]
        self._keep(file, 0)
        file.tail += bytes(max(0, size - len(file.tail)))
        return memoryview(file.tail)[:size]

    def size(self, handle: int) -> int:
        return self._handles[handle].size

    def has_name(self, handle: int) -> bool:
        return bool(self._handles[handle].path)

    def sync_files(self, handles: Sequence[int]) -> None:
        """Do nothing: what is in memory cannot be synced."""

    # --- names ------------------------------------------------------------------------------------

    def sync_directory(self, path: str) -> None:
        """Do nothing, as `sync_files`."""

    def sync_file_system(self, handle: int) -> None:
        """Do nothing, as `sync_files`."""

    def rename(self, source: str, target: str) -> None:
        file = self._found(source)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", source)
        self._forget(self._found(target))
        self._files[target], self._files[source] = file, None
        file.path, file.is_changed = target, True

    def link(self, source: str, target: str) -> bool:
        """Copy the file: the second name is a separate file here. For files that are never written again."""
        handle = self.open(source)
        try:
            content = self.pread(handle, self.size(handle), 0)
        finally:
            self.close(handle)
        made = self.open(target, write=True, create=True, exclusive=True)
        self.pwrite(made, content, 0)
        self.close(made)
        return True

    def unlink(self, path: str) -> None:
        file = self._found(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        self._files[path] = None
        self._forget(file)

    def _forget(self, file: _OverlaidFile | None) -> None:
        if file is not None:
            file.path = ""
            if not file.handles:
                self._let_go(file)

    def make_directory(self, path: str) -> bool:
        if self._is_directory(path):
            return False
        if not self._is_directory(directory_of(path)):
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        self._directories.add(path)
        self._note(path)
        return True

    def remove_directory(self, path: str) -> None:
        if self.list_directory(path):
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", path)
        if path in self._directories:
            self._directories.discard(path)
        else:
            self._removed.add(path)
            self._note(path)

    def _is_directory(self, path: str) -> bool:
        if path in self._directories or path in self._removed:
            return path in self._directories
        try:
            names_in(self._below, path, "/")  # none: it costs least
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_directory(self, path: str) -> list[str]:
        names: set[str] = set()
        if path in self._removed and path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        if self._files.get(path) is not None:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        if path not in self._directories:
            names.update(self._below.list_directory(path))
        self._apply(path, names)
        return sorted(names)

    def names_in(self, directory: str, prefix: str) -> list[str]:
        """Return the names in the directory that begin with `prefix`, sorted. Raises OSError."""
        if directory in self._directories or directory in self._removed or self._files.get(directory):
            return [name for name in self.list_directory(directory) if name.startswith(prefix)]
        names = set(names_in(self._below, directory, prefix))
        self._apply(directory, names)
        return sorted(name for name in names if name.startswith(prefix))

    def _apply(self, directory: str, names: set[str]) -> None:
        """Add names made in the overlay to the `names` of a directory, and take out names removed in it."""
        for used in tuple(self._used.get(directory, ())):
            is_there = used in self._directories or self._files.get(used) is not None
            is_gone = used in self._removed or used in self._files
            if is_there:
                names.add(base_name(used))
            elif is_gone:
                names.discard(base_name(used))

    def size_of(self, path: str) -> int | None:
        if path in self._files:
            file = self._files[path]
            return None if file is None else file.size
        if path in self._directories or path in self._removed:
            return 0 if path in self._directories else None
        return self._below.size_of(path)

    def stamp_of(self, path: str) -> Stamp | None:
        if path in self._files and self._files[path] is None:
            return None
        return self._below.stamp_of(path)

    def place_of(self, path: str) -> Hashable:
        return path if path in self._directories else self._below.place_of(path)

    def device_of(self, path: str) -> Hashable:
        return None if path in self._directories else self._below.device_of(path)

    def is_link(self, path: str) -> bool:
        return path not in self._files and path not in self._directories and self._below.is_link(path)

    # --- everything else --------------------------------------------------------------------------

    def open_watch(self) -> FileWatch | None:
        return None

    def try_lock(self, handle: int) -> bool:
        file = self._handles[handle]
        return not self._locks or file.below < 0 or self._below.try_lock(file.below)

    def is_locked(self, handle: int, owner: Identity) -> bool | None:
        file = self._handles[handle]
        return file.below >= 0 and self._below.is_locked(file.below, owner)

    def identity(self) -> Identity:
        return self._below.identity()

    def monotonic(self) -> float:
        return self._below.monotonic()

    def wall_clock(self) -> float:
        return self._below.wall_clock()

    def unique_number(self) -> int:
        return self._below.unique_number()
