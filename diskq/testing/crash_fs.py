# A file system in memory that models what a power cut leaves. Law:
#
# - Bytes are durable once `sync_files` returned for their file, names once `sync_directory` returned
#   for their directory. Durable bytes and names are never harmed.
# - Of a file's writes and truncations since, a power cut leaves any part: none, all, the first few, or
#   some without those before them. The last may be torn, at any byte. If the file grew, bytes that
#   were never durable may read as zeros: to its end (delayed allocation), or in holes of 512 bytes.
#   If it was overwritten, each sector is the old or the new one.
# - Of a directory's creations, renames and removals since, a power cut leaves any part too, except that
#   what happened to one name before a surviving change of it has survived as well. So a rename is
#   atomic: its file has the old name or the new one, and the target is the old file or the new one.
# - Nothing orders one file before another, or bytes before names. Only a sync does. A name may
#   survive whose file is empty or torn; a synced file is gone if no sync covered its name.
# - After `sync_files` failed, the bytes read as written, and no later sync writes them: the kernel
#   takes them for clean. Only writing them again helps. (The file's size is made durable, over zeros.)
# - A file has the lowest number that no other has, and the time of its last write, which a power cut may
#   set back to that of its last sync, whatever it leaves of the bytes.
# - A killed process loses its handles and locks, and nothing else.
#
# This is as harsh as POSIX allows, which is harsher than ext4 or XFS are: their journals keep renames
# in order, and give a synced new file its name. In one respect it is milder: a torn write never harms
# other bytes of the same sector. Bytes rot only where `rot` is called, a sync that returns was done,
# no time passes by itself, and there are no symbolic links or permissions. A directory does not
# move to another.

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from diskq.errors import NotAFileError
from diskq.storage.file_watch import FileWatch
from diskq.storage.fs import Identity, Stamp, join
from diskq.testing._disk_model import (
    Directory,
    File,
    InodeNumbers,
    NameChange,
    Severity,
    after_power_cut,
    commit,
    copied,
    set_entry,
)

__all__ = ["CrashFS", "PowerCut"]

# Far from any file descriptor: if one of these handles is passed to the kernel, it gets EBADF, and harms
# nothing.
_FIRST_HANDLE = 1_000_000

_A_TUESDAY = 1_700_000_000.0  # 2023-11-14T22:13:20Z
_DIRECTORY_SIZE = 4096

# What a power cut finds of the pending bytes and names, all over the disk. The pure cases come often:
# most mistakes show where all names survived and no bytes did, or the other way round.
_SEVERITIES: tuple[Severity, ...] = ("none", "all", "mixed", "mixed")


class PowerCut(BaseException):
    """The power is off, and the process with it. No `except Exception` catches it."""


@dataclass(slots=True)
class _CrashHandle:
    file: File
    path: str
    writable: bool


class CrashFS:
    """A disk in memory, for tests: `crash` shows what a power cut leaves of it, `kill` what SIGKILL does.

    With `cut_at` the power fails by itself: instead of the operation with that number (the first is
    1), and instead of every call after it, `PowerCut` is raised. Only a call that changes something is an
    operation. All of it is deterministic, as long as the threads that use it do so one after the other.
    """

    native = False

    def __init__(self, cut_at: int | None = None) -> None:
        self.cut_at = cut_at
        self.operations: int = 0
        """The number of operations asked for so far, the one that met the power cut included."""
        self.is_cut: bool = False
        self.clock: float = 0.0
        """What `monotonic` returns. It stands still until a test sets it."""
        self.epoch = _A_TUESDAY
        """What `wall_clock` returns when `clock` is 0. Set it back to step the wall clock back."""
        self._log: list[tuple[str, str, str]] = []
        self._root = Directory()
        self._numbers = InodeNumbers()
        self._pending: list[NameChange] = []
        self._handles: dict[int, _CrashHandle] = {}
        self._next_handle = _FIRST_HANDLE
        self._failing_sync = 0
        self._drawn = 0
        self._process = 1
        self._boot = 1
        self.has_boot_id = True
        """False: `identity` has an empty boot id, as on a system that has none."""
        # Barriers are executed in a thread while the owner goes on writing.
        self._mutex = threading.RLock()

    # --- the end of the process -------------------------------------------------------------------

    def copy(self) -> CrashFS:
        """Return the same disk, with the same bytes and names pending, and nothing open or locked."""
        with self._mutex:
            shadow = self._successor()
            shadow._numbers = InodeNumbers()
            shadow._root, shadow._pending = copied(self._root, self._pending, shadow._numbers)
        return shadow

    def kill(self) -> CrashFS:
        """Return the disk as the next process finds it after SIGKILL: as it was, and unlocked."""
        after = self.copy()
        after._process += 1
        return after

    def crash(self, rng: random.Random | None = None, *, is_restart: bool = True) -> CrashFS:
        """Return the disk as the next process finds it after a power cut; each draw of `rng` is another one.

        Without `rng` it is exactly what was durable. All that is there afterwards is durable. Without
        `is_restart` the boot id stays: only the disk went away, and came back.
        """
        with self._mutex:
            after = self._successor()
            if rng is None:
                after._root = after_power_cut(self._root, [], random.Random(0), "none", "none")
            else:
                of_bytes, of_names = rng.choice(_SEVERITIES), rng.choice(_SEVERITIES)
                after._root = after_power_cut(self._root, self._pending, rng, of_bytes, of_names)
        after._process += 1
        if is_restart:
            after._boot += 1
            after.clock = 0.0
            after.epoch += self.clock
        return after

    def _successor(self) -> CrashFS:
        after = CrashFS()
        after.clock, after.epoch = self.clock, self.epoch
        after._numbers = self._numbers
        after._drawn, after._process, after._boot = self._drawn, self._process, self._boot
        after.has_boot_id = self.has_boot_id
        return after

    def fail_sync(self, nth: int = 1) -> None:
        """Make the `nth` file synced from now on fail with EIO, as the law above says."""
        self._failing_sync = nth

    def mark_clean(self, handle: int) -> None:
        """Lose the file's unsynced bytes to all later syncs, as after a failed one."""
        with self._mutex:
            self._handle(handle).file.fail_to_sync()

    # --- the verbs of `FileSystem` ----------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        with self._mutex:
            directory, name = self._parent(path)
            node = directory.now.get(name)
            if not name or isinstance(node, Directory):
                raise NotAFileError(path, "a directory", errno.EISDIR)
            if node is not None and create and exclusive:
                raise _error(errno.EEXIST, path)
            if node is None:
                if not create:
                    raise _error(errno.ENOENT, path)
                self._count("create", path)
                node = File(self._numbers, self._now_ns())
                self._enact((directory, name, node))
            self._next_handle += 1
            self._handles[self._next_handle] = _CrashHandle(node, path, write)
            return self._next_handle

    def close(self, handle: int) -> None:
        with self._mutex:
            file = self._handle(handle).file
            if file.locked_by == handle:
                file.locked_by = None
            del self._handles[handle]

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        with self._mutex:
            opened = self._handle(handle)
            if offset < 0 or size < 0:
                raise _error(errno.EINVAL, opened.path)
            return bytes(opened.file.now[offset : offset + size])

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        with self._mutex:
            opened = self._handle(handle)
            if not opened.writable:
                raise _error(errno.EBADF, opened.path)
            if offset < 0:
                raise _error(errno.EINVAL, opened.path)
            taken = bytes(data)
            if taken:
                self._count("pwrite", opened.path, f"{len(taken)} bytes at {offset}")
                opened.file.change((offset, taken), self._now_ns())
            return len(taken)

    def truncate(self, handle: int, size: int) -> None:
        with self._mutex:
            opened = self._handle(handle)
            if not opened.writable or size < 0:
                raise _error(errno.EINVAL, opened.path)
            self._count("truncate", opened.path, f"to {size} bytes")
            opened.file.change((size, None), self._now_ns())

    def share_memory(self, handle: int, size: int) -> memoryview:
        """Map the file. A kill keeps what is stored there, a power cut any part. The file keeps its size."""
        with self._mutex:
            opened = self._handle(handle)
            if not opened.writable or not 0 < size <= len(opened.file.now):
                raise _error(errno.EINVAL, opened.path)
            opened.file.is_shared = True
            return memoryview(opened.file.now)[:size]

    def size(self, handle: int) -> int:
        with self._mutex:
            return len(self._handle(handle).file.now)

    def has_name(self, handle: int) -> bool:
        with self._mutex:
            mine = self._handle(handle).file
            return any(file is mine for _, file in _paths(self._root, ""))

    def sync_files(self, handles: Sequence[int]) -> None:
        for handle in handles:
            with self._mutex:
                opened = self._handle(handle)
                self._count("sync", opened.path)
                if self._failing_sync:
                    self._failing_sync -= 1
                    if not self._failing_sync:
                        opened.file.fail_to_sync()
                        raise _error(errno.EIO, opened.path)
                opened.file.sync()

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            self._check_power()
            directory = self._directory(path)
            self._count("sync directory", path)
            self._pending = commit(self._pending, directory)

    def sync_file_system(self, handle: int) -> None:
        with self._mutex:
            self._check_power()
            self._count("sync file system", self._handle(handle).path)
            for _, file in _paths(self._root, ""):
                file.sync()
            while self._pending:
                ((directory, _, _), *_) = self._pending[0]
                self._pending = commit(self._pending, directory)

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            old_directory, old_name = self._parent(source)
            new_directory, new_name = self._parent(target)
            node = old_directory.now.get(old_name)
            replaced = new_directory.now.get(new_name)
            if node is None:
                raise _error(errno.ENOENT, source)
            if isinstance(node, Directory) and old_directory is not new_directory:
                raise _error(errno.EXDEV, target)  # no kernel would: a limit of the model
            if isinstance(node, File) and isinstance(replaced, Directory):
                raise _error(errno.EISDIR, target)
            if isinstance(node, Directory) and isinstance(replaced, File):
                raise _error(errno.ENOTDIR, target)
            if isinstance(replaced, Directory) and replaced.now:
                raise _error(errno.ENOTEMPTY, target)
            if node is replaced:
                return
            self._count("rename", source, f"to {target}")
            self._enact((old_directory, old_name, None), (new_directory, new_name, node))

    def link(self, source: str, target: str) -> bool:
        with self._mutex:
            old_directory, old_name = self._parent(source)
            directory, name = self._parent(target)
            node = old_directory.now.get(old_name)
            if node is None:
                raise _error(errno.ENOENT, source)
            if not name or name in directory.now:
                raise _error(errno.EEXIST, target)
            if isinstance(node, Directory):
                return False
            self._count("link", source, f"to {target}")
            self._enact((directory, name, node))
            return True

    def unlink(self, path: str) -> None:
        with self._mutex:
            directory, name = self._parent(path)
            node = directory.now.get(name)
            if not name or isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            if node is None:
                raise _error(errno.ENOENT, path)
            self._count("unlink", path)
            self._enact((directory, name, None))

    def make_directory(self, path: str) -> bool:
        with self._mutex:
            directory, name = self._parent(path)
            node = directory.now.get(name)
            if not name or isinstance(node, Directory):
                return False
            if node is not None:
                raise _error(errno.ENOTDIR, path)
            self._count("make directory", path)
            self._enact((directory, name, Directory()))
            return True

    def remove_directory(self, path: str) -> None:
        with self._mutex:
            directory, name = self._parent(path)
            if self._directory(path).now:
                raise _error(errno.ENOTEMPTY, path)
            self._count("remove directory", path)
            self._enact((directory, name, None))

    def list_directory(self, path: str) -> list[str]:
        with self._mutex:
            self._check_power()
            return list(self._directory(path).now)

    def size_of(self, path: str) -> int | None:
        with self._mutex:
            node = self._node_if_any(path)
            if node is None:
                return None
            return len(node.now) if isinstance(node, File) else _DIRECTORY_SIZE

    def stamp_of(self, path: str) -> Stamp | None:
        """Return the stamp. Its time is `wall_clock`'s, which stands still until a test sets it."""
        with self._mutex:
            node = self._node_if_any(path)
            if node is None:
                return None
            return Stamp(node.number, node.modified) if isinstance(node, File) else Stamp(0, 0)

    def place_of(self, path: str) -> Hashable:
        with self._mutex:
            self._check_power()
            return self, id(self._node(path))

    def device_of(self, path: str) -> Hashable:
        """Return None: no disk is waited for, so all disks in memory are one."""
        return None

    def is_link(self, path: str) -> bool:
        """Return False: there are no symbolic links in memory."""
        return False

    def open_watch(self) -> FileWatch | None:
        """Return None: changes in memory are not watched."""
        return None

    def try_lock(self, handle: int) -> bool:
        with self._mutex:
            file = self._handle(handle).file
            if file.locked_by not in (None, handle):
                return False
            file.locked_by = handle
            return True

    def is_locked(self, handle: int, owner: Identity) -> bool | None:
        with self._mutex:
            return self._handle(handle).file.locked_by is not None

    def identity(self) -> Identity:
        self._check_power()
        return Identity(self._process, "crashfs", f"boot-{self._boot}" if self.has_boot_id else "")

    def monotonic(self) -> float:
        self._check_power()
        return self.clock

    def wall_clock(self) -> float:
        self._check_power()
        return self.epoch + self.clock

    def unique_number(self) -> int:
        """Return 1, 2, 3, ... across all processes that used this disk."""
        self._check_power()
        with self._mutex:
            self._drawn += 1
            return self._drawn

    # --- for the test, which has power when the process has none ----------------------------------

    @property
    def journal(self) -> list[str]:
        """The operations so far, one line each: for people, when a test failed."""
        lines = [
            f"{number} {verb} {path} {more}".rstrip()
            for number, (verb, path, more) in enumerate(self._log, 1)
        ]
        if self.is_cut:
            lines[-1] += "  <- power cut instead of this"
        return lines

    def open_files(self) -> list[str]:
        """Return the paths of all open handles, as they were opened: none after everything was closed."""
        with self._mutex:
            return [opened.path for opened in self._handles.values()]

    def read(self, path: str) -> bytes:
        """Return the file's bytes, as programs see them."""
        node = self._node(path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        return bytes(node.now)

    def files(self) -> dict[str, bytes]:
        """Return every file's bytes by its path, as programs see them."""
        with self._mutex:  # another thread may be executing a barrier
            return {path: bytes(file.now) for path, file in _paths(self._root, "")}

    def make_directory_durably(self, path: str) -> None:
        """Make a directory and missing ones above it, durably; counts as no operation."""
        with self._mutex:
            self._make_durably(path)

    def write_durably(self, path: str, data: bytes) -> None:
        """Make a file, and the directories above it, all durable; counts as no operation.

        The other names in these directories become durable with it.
        """
        with self._mutex:
            directory = self._make_durably(os.path.dirname(path))
            name = os.path.basename(path)
            node = directory.now.get(name)
            if not name or isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            self._pending = commit(self._pending, directory)
            file = node or File(self._numbers, self._now_ns())
            directory.now[name] = directory.durable[name] = file
            file.now[:] = file.durable[:] = data
            file.modified = file.modified_durably = self._now_ns()
            file.pending.clear()

    def rot(self, path: str, data: bytes) -> None:
        """Replace the file's bytes durably, without a write: its stamp stays."""
        with self._mutex:
            node = self._node(path)
            if isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            node.now[:] = node.durable[:] = data
            node.pending.clear()

    @classmethod
    def from_directory(cls, real_path: str | os.PathLike[str], at: str = "/q") -> CrashFS:
        """Return a disk with a copy of a real directory and all below it, durable, as directory `at`."""
        fs = cls()
        for real_directory, _, names in os.walk(real_path):
            below = os.path.relpath(real_directory, real_path)
            inside = os.path.normpath(join(at, below))
            fs.make_directory_durably(inside)
            for name in names:
                with open(join(real_directory, name), "rb") as file:
                    fs.write_durably(join(inside, name), file.read())
        return fs

    def to_directory(self, real_path: str | os.PathLike[str], at: str = "/q") -> None:
        """Write what is in directory `at`, and below it, into a real directory, made if need be."""
        os.makedirs(real_path, exist_ok=True)
        for name, node in self._directory(at).now.items():
            real = join(os.fspath(real_path), name)
            if isinstance(node, Directory):
                self.to_directory(real, join(at, name))
            else:
                with open(real, "wb") as file:
                    file.write(node.now)

    # --- below the verbs --------------------------------------------------------------------------

    def _check_power(self) -> None:
        if self.is_cut:
            raise PowerCut("the power is off")

    def _count(self, verb: str, path: str, more: str = "") -> None:
        """Count an operation that is about to change something."""
        self._check_power()
        self.operations += 1
        self._log.append((verb, path, more))
        if self.cut_at is not None and self.operations >= self.cut_at:
            self.is_cut = True
            raise PowerCut(f"power cut instead of operation {self.operations}: {verb} {path} {more}".rstrip())

    def _now_ns(self) -> int:
        return round((self.epoch + self.clock) * 1_000_000_000)

    def _handle(self, handle: int) -> _CrashHandle:
        self._check_power()
        try:
            return self._handles[handle]
        except KeyError:
            raise _error(errno.EBADF, f"handle {handle}") from None

    def _enact(self, *change: tuple[Directory, str, File | Directory | None]) -> None:
        for directory, name, node in change:
            set_entry(directory.now, name, node)
        self._pending.append(change)

    def _node(self, path: str) -> File | Directory:
        node: File | Directory | None = self._root
        for name in _parts(path):
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR, path)
            node = node.now.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
        assert node is not None
        return node

    def _node_if_any(self, path: str) -> File | Directory | None:
        """Return what is at `path`, or None if there is nothing. Raises PowerCut while the power is off."""
        self._check_power()
        try:
            return self._node(path)
        except FileNotFoundError:
            return None

    def _directory(self, path: str) -> Directory:
        node = self._node(path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        """Return the directory that has the last name of `path`, and that name; the root has none."""
        self._check_power()
        *above, name = _parts(path) or ("",)
        return self._directory("/".join(above)), name

    def _make_durably(self, path: str) -> Directory:
        directory = self._root
        for name in _parts(path):
            self._pending = commit(self._pending, directory)
            node = directory.now.setdefault(name, Directory())
            if isinstance(node, File):
                raise _error(errno.ENOTDIR, path)
            directory.durable[name] = node
            directory = node
        return directory


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(name for name in os.path.normpath(path).split("/") if name not in ("", "."))


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _paths(directory: Directory, path: str) -> Iterator[tuple[str, File]]:
    for name, node in directory.now.items():
        below = f"{path}/{name}"
        if isinstance(node, Directory):
            yield from _paths(node, below)
        else:
            yield below, node
