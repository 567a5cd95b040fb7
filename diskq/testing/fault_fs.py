# A file system that fails on demand, around another one. Law: what is planned happens, as a kernel
# would do it, and nothing else changes.
#
# - A verb that fails has not been done, except `close`, which has: the descriptor is gone all the same.
# - A failed `sync_files` over a CrashFS leaves the bytes readable and lost to every later sync (the law
#   in `crash_fs.py`). Over a real disk nothing is lost: only the error is simulated.
# - A verb that is slow has done its work first and returns late: a sync covers what was written before
#   it was called, and no more.
# - A full disk takes what fits, then nothing. Space is free again when a file is cut, or has lost both its
#   name and its last handle; of a file that was given a second name, the first one counts.
#
# It is also a recorder: `calls` lists all calls in order.

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Generic, TypeVar

from diskq.storage.file_watch import FileWatch
from diskq.storage.fs import FileSystem, Identity, Stamp

__all__ = ["Call", "Fault", "FaultFS"]

VERBS = (
    *("open", "close", "pread", "pwrite", "truncate", "size", "has_name", "sync_files", "sync_directory"),
    "sync_file_system",
    *("rename", "unlink", "make_directory", "remove_directory", "list_directory", "size_of", "stamp_of"),
    *("try_lock", "is_locked", "share_memory", "link", "is_link", "place_of"),
    *("device_of", "open_watch"),
)

T = TypeVar("T")
Disk = TypeVar("Disk", bound=FileSystem)


@dataclass(frozen=True, slots=True)
class Call:
    """One call that returned or raised; `sync_files` makes one for each file."""

    verb: str
    path: str
    size: int = 0
    """Bytes asked for or given, or the size to cut to."""
    offset: int = 0
    target: str = ""
    """The new path of a rename or a link."""
    error: int | None = None
    """The errno with which it failed, on demand or by itself."""
    thread: int = field(default_factory=threading.get_ident, compare=False)
    """The identifier of the thread that made it: barriers are executed in another one."""


@dataclass(slots=True)
class Fault:
    """A planned failure, and how often it has happened (`hits`)."""

    verb: str
    path: str | None
    nth: int
    times: int | None
    error: int = 0
    bytes_taken: int | None = None
    seconds: float = 0.0
    hits: int = field(default=0, init=False)
    _calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise ValueError(f"no such verb: {self.verb!r}; there are {', '.join(VERBS)}")

    def strikes(self, verb: str, *paths: str) -> bool:
        """Count the call, if it is of this kind. True if the fault applies to it."""
        if verb != self.verb:
            return False
        if self.path is not None and not any(fnmatchcase(path, self.path) for path in paths):
            return False
        self._calls += 1
        if self._calls < self.nth or (self.times is not None and self._calls >= self.nth + self.times):
            return False
        self.hits += 1
        return True


@dataclass(slots=True)
class _OpenFile:
    """The path of an open file, and the number of its handles."""

    path: str
    handles: int = 0
    has_name: bool = True
    takes_space: bool = True


class FaultFS(Generic[Disk]):
    """A file system that wraps `inner`, with planned failures, and a record of `calls`.

    In plans, `nth` counts the calls of that verb from now on (whose path matches the glob `path`, if
    one is given; `*` matches slashes too); the plan holds for `times` calls, None for ever.
    """

    native = False

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.calls: list[Call] = []
        self._faults: list[Fault] = []
        self._space: int | None = None
        self._by_handle: dict[int, _OpenFile] = {}
        self._by_path: dict[str, _OpenFile] = {}
        self._second_names: set[str] = set()
        # Barriers are executed in a thread. Never held while the disk is slow.
        self._mutex = threading.RLock()

    # --- the plan ---------------------------------------------------------------------------------

    def fail(
        self,
        verb: str,
        nth: int = 1,
        error: int = errno.EIO,
        *,
        path: str | None = None,
        times: int | None = 1,
    ) -> Fault:
        """Plan that the call raises `OSError` with that errno."""
        return self._plan(Fault(verb, path, nth, times, error=error))

    def short_write(
        self, nth: int = 1, bytes_taken: int = 1, *, path: str | None = None, times: int | None = 1
    ) -> Fault:
        """Plan that the pwrite takes at most `bytes_taken` bytes."""
        if bytes_taken < 1:
            raise ValueError("a kernel takes one byte at least, or fails")
        return self._plan(Fault("pwrite", path, nth, times, bytes_taken=bytes_taken))

    def delay(
        self, verb: str, seconds: float, nth: int = 1, *, path: str | None = None, times: int | None = None
    ) -> Fault:
        """Plan that the call returns `seconds` later; other threads run meanwhile."""
        return self._plan(Fault(verb, path, nth, times, seconds=seconds))

    def capacity(self, free: int | None) -> None:
        """Limit the disk to `free` bytes more than there are now; None: no limit.

        What counts is the size of files, holes included. Names take no space.
        """
        with self._mutex:
            self._space = free

    def heal(self) -> None:
        """Forget the plan: nothing fails any more."""
        with self._mutex:
            self._faults.clear()
            self._space = None

    def _plan(self, fault: Fault) -> Fault:
        with self._mutex:
            self._faults.append(fault)
        return fault

    # --- the verbs of `FileSystem` ----------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        def act() -> int:
            handle = self.inner.open(path, write=write, create=create, exclusive=exclusive)
            with self._mutex:
                file = self._by_handle[handle] = self._by_path.setdefault(path, _OpenFile(path))
                file.takes_space = path not in self._second_names
                file.handles += 1
            return handle

        return self._call(Call("open", path), act)

    def close(self, handle: int) -> None:
        self._call(Call("close", self._path(handle)), lambda: self._close(handle))

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        call = Call("pread", self._path(handle), size=size, offset=offset)
        return self._call(call, lambda: self.inner.pread(handle, size, offset))

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        view = memoryview(data).cast("B")
        call = Call("pwrite", self._path(handle), size=len(view), offset=offset)
        struck = self._struck(call)
        most = min((fault.bytes_taken for fault in struck if fault.bytes_taken), default=len(view))
        return self._call(call, lambda: self._pwrite(handle, view[:most], offset), struck)

    def truncate(self, handle: int, size: int) -> None:
        call = Call("truncate", self._path(handle), size=size)
        self._call(call, lambda: self._truncate(handle, size))

    def share_memory(self, handle: int, size: int) -> memoryview:
        call = Call("share_memory", self._path(handle), size=size)
        return self._call(call, lambda: self.inner.share_memory(handle, size))

    def size(self, handle: int) -> int:
        return self._call(Call("size", self._path(handle)), lambda: self.inner.size(handle))

    def has_name(self, handle: int) -> bool:
        return self._call(Call("has_name", self._path(handle)), lambda: self.inner.has_name(handle))

    def sync_files(self, handles: Sequence[int]) -> None:
        for handle in handles:
            call = Call("sync_files", self._path(handle))
            struck = self._struck(call)
            mark_clean = getattr(self.inner, "mark_clean", None)
            if mark_clean is not None and any(fault.error for fault in struck):
                mark_clean(handle)
            self._call(call, partial(self.inner.sync_files, (handle,)), struck)

    def sync_directory(self, path: str) -> None:
        self._call(Call("sync_directory", path), lambda: self.inner.sync_directory(path))

    def sync_file_system(self, handle: int) -> None:
        self._call(Call("sync_file_system", self._path(handle)), lambda: self.inner.sync_file_system(handle))

    def rename(self, source: str, target: str) -> None:
        self._call(Call("rename", source, target=target), lambda: self._rename(source, target))

    def link(self, source: str, target: str) -> bool:
        return self._call(Call("link", source, target=target), lambda: self._link(source, target))

    def unlink(self, path: str) -> None:
        self._call(Call("unlink", path), lambda: self._unlink(path))

    def make_directory(self, path: str) -> bool:
        return self._call(Call("make_directory", path), lambda: self.inner.make_directory(path))

    def remove_directory(self, path: str) -> None:
        self._call(Call("remove_directory", path), lambda: self.inner.remove_directory(path))

    def list_directory(self, path: str) -> list[str]:
        return self._call(Call("list_directory", path), lambda: self.inner.list_directory(path))

    def size_of(self, path: str) -> int | None:
        return self._call(Call("size_of", path), lambda: self.inner.size_of(path))

    def stamp_of(self, path: str) -> Stamp | None:
        return self._call(Call("stamp_of", path), lambda: self.inner.stamp_of(path))

    def place_of(self, path: str) -> Hashable:
        return self._call(Call("place_of", path), lambda: self.inner.place_of(path))

    def device_of(self, path: str) -> Hashable:
        return self._call(Call("device_of", path), lambda: self.inner.device_of(path))

    def is_link(self, path: str) -> bool:
        return self._call(Call("is_link", path), lambda: self.inner.is_link(path))

    def open_watch(self) -> FileWatch | None:
        return self._call(Call("open_watch", ""), self.inner.open_watch)

    def try_lock(self, handle: int) -> bool:
        return self._call(Call("try_lock", self._path(handle)), lambda: self.inner.try_lock(handle))

    def is_locked(self, handle: int, owner: Identity) -> bool | None:
        call = Call("is_locked", self._path(handle))
        return self._call(call, lambda: self.inner.is_locked(handle, owner))

    def identity(self) -> Identity:
        return self.inner.identity()

    def monotonic(self) -> float:
        return self.inner.monotonic()

    def wall_clock(self) -> float:
        return self.inner.wall_clock()

    def unique_number(self) -> int:
        return self.inner.unique_number()

    # --- one call ---------------------------------------------------------------------------------

    def _struck(self, call: Call) -> list[Fault]:
        """Return the faults that apply to this call."""
        if not self._faults:
            return []
        with self._mutex:
            return [fault for fault in self._faults if fault.strikes(call.verb, call.path, call.target)]

    def _call(self, call: Call, act: Callable[[], T], struck: list[Fault] | None = None) -> T:
        """Carry out the call or fail, late if that is planned, and record it."""
        struck = self._struck(call) if struck is None else struck
        error = next((fault.error for fault in struck if fault.error), 0)
        try:
            if not error or call.verb == "close":
                result = act()
            if error:
                raise OSError(error, os.strerror(error), call.path)
        except OSError as failure:
            self.calls.append(replace(call, error=failure.errno))
            _sleep(struck)
            raise
        self.calls.append(call)
        _sleep(struck)
        return result

    def _path(self, handle: int) -> str:
        file = self._by_handle.get(handle)
        return file.path if file else f"handle {handle}"

    # --- free space -------------------------------------------------------------------------------

    def _pwrite(self, handle: int, view: memoryview, offset: int) -> int:
        if self._space is None or not view:
            return self.inner.pwrite(handle, view, offset)
        with self._mutex:
            size = self.inner.size(handle)
            fits = size + self._space - offset
            if fits <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path(handle))
            taken = self.inner.pwrite(handle, view[:fits], offset)
            self._add_space(-max(0, offset + taken - size))
            return taken

    def _truncate(self, handle: int, size: int) -> None:
        with self._mutex:
            growth = 0 if self._space is None else size - self.inner.size(handle)
            if self._space is not None and growth > self._space:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path(handle))
            self.inner.truncate(handle, size)
            self._add_space(-growth)

    def _close(self, handle: int) -> None:
        with self._mutex:
            file = self._by_handle.pop(handle, None)
            freed = 0
            if file is not None:
                file.handles -= 1
                if not file.handles and file.has_name:
                    del self._by_path[file.path]
                elif not file.handles and file.takes_space and self._space is not None:
                    freed = self.inner.size(handle)
            self.inner.close(handle)
            self._add_space(freed)

    def _link(self, source: str, target: str) -> bool:
        with self._mutex:
            is_linked = self.inner.link(source, target)
            if is_linked:
                self._second_names.add(target)
            return is_linked

    def _unlink(self, path: str) -> None:
        with self._mutex:
            freed = self._size_without_handles(path)
            self.inner.unlink(path)
            self._lose_name(path)
            self._add_space(freed)

    def _rename(self, source: str, target: str) -> None:
        with self._mutex:
            freed = self._size_without_handles(target)
            self.inner.rename(source, target)
            if source == target:
                return
            self._lose_name(target)
            if source in self._second_names:
                self._second_names.remove(source)
                self._second_names.add(target)
            moved = self._by_path.pop(source, None)
            if moved is not None:
                moved.path = target
                self._by_path[target] = moved
            self._add_space(freed)

    def _size_without_handles(self, path: str) -> int:
        """Return the bytes that are free at once when the name is removed."""
        if self._space is None or path in self._by_path or path in self._second_names:
            return 0
        return self.inner.size_of(path) or 0

    def _lose_name(self, path: str) -> None:
        self._second_names.discard(path)
        file = self._by_path.pop(path, None)
        if file is not None:
            file.has_name = False

    def _add_space(self, freed: int) -> None:
        if self._space is not None:
            self._space += freed


def _sleep(struck: list[Fault]) -> None:
    seconds = sum(fault.seconds for fault in struck)
    if seconds:
        time.sleep(seconds)
