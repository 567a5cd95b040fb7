# The door to the operating system. Law: nobody else below `cli` opens it.
#
# A `FileSystem` is the verbs that a queue needs, on paths and integer handles. The real one is
# here; `diskq.testing` has one that forgets what was not synced and one that fails on demand.
# Where `native` is true a handle is a file descriptor, and compiled code makes its own pread(2)
# and pwrite(2) on it; otherwise it comes through these verbs, so a test can be the disk for the
# compiled path as well.

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from diskq._native.core.file_calls import has_name, size_at, size_of_file, start_writeback, sync_file_system
from diskq.errors import ForkedError, NotAFileError
from diskq.storage.file_watch import FileWatch, open_inotify
from diskq.storage.forks import notify_on_fork

__all__ = [
    "FULL_DISK_ERRNOS",
    "IS_PORTABLE",
    "NO_DESCRIPTOR_ERRNOS",
    "AnyPath",
    "FileSystem",
    "Identity",
    "OsFileSystem",
    "PortableFileSystem",
    "PosixFileSystem",
    "Stamp",
    "as_path",
    "base_name",
    "directory_of",
    "join",
]

# "There is no room", in the kernel's words: the disk, the quota, the process's file size limit.
FULL_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})

# "Somebody has it", of a lock.
_CONTENTION = frozenset({errno.EWOULDBLOCK, errno.EACCES})
# Linux lists who holds which lock, as `1: FLOCK  ADVISORY  WRITE 4711 08:01:393220 0 EOF`.
_LOCKS = "/proc/locks"

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

# "A file has one name here", in the kernel's words: FAT, some network and user-space file systems, and
# rules that forbid it between directories, or for who does not own the file.
_ONE_NAME_ERRNOS = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
    | {errno.EXDEV, errno.EMLINK}
)

# "That is no file", in the kernel's words, of what may have been put in its place; and what that may be.
_NOT_A_FILE_ERRNOS = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EMLINK})
_FILE_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

# A file that says that it has so many bytes, and holds not even one in so many, nobody has written: to read
# all its zeros would take long, or more memory than there is. Nobody's disk compresses so well.
_LARGE = 64 * 1024 * 1024
_HOLLOW = 1000
_MANY_STRETCHES = 256

# The kernel's name for "since this machine started"; a power cut changes it, a killed process does not.
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

AnyPath = str | os.PathLike[str]

if sys.platform == "darwin":
    from diskq._native.core.file_calls import boot_id as _boot_session
    from diskq._native.core.file_calls import full_sync

    # Its fsync leaves the bytes in the disk's own cache.
    _datasync = _fsync = full_sync
else:
    # Not every system can leave a file's times unsynced.
    _datasync, _fsync = getattr(os, "fdatasync", os.fsync), os.fsync

base_name = os.path.basename


def as_path(path: AnyPath) -> str:
    """As a str. Raises TypeError for bytes and what is no path, FileNotFoundError for an empty one."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a str or a pathlib.Path, not {type(text).__name__}")
    if not text:
        # Joined with a name it would be the directory in which the program happens to be.
        raise FileNotFoundError(errno.ENOENT, "a path is not empty", text)
    return text


def join(directory: str, *names: str) -> str:
    """As os.path.join, in a third of the time: `names` are names, none of them begins with a slash."""
    if not directory or directory[-1] == "/":
        return os.path.join(directory, *names)
    return "/".join((directory, *names))


def directory_of(path: str) -> str:
    """The directory that holds `path`."""
    return os.path.dirname(path) or "."


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are, for the lock file: enough for a person to find the process."""

    pid: int
    host: str
    boot_id: str


class Stamp(NamedTuple):
    """Which file has a name, and when it was written last: the same as before, so are its bytes.

    Unless they rotted; or were written within a tick of the kernel's clock, some milliseconds.
    """

    file: int
    """Nobody else's on this file system while the file is there (an inode's number)."""
    modified_ns: int
    """Since the Unix epoch."""


class FileSystem(Protocol):
    """The verbs. All raise `OSError`; sizes and offsets are bytes."""

    @property
    def native(self) -> bool:
        """Are handles file descriptors, on which compiled code may call the kernel itself?"""

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        """A handle for reading, or reading and writing. Never follows a link, never truncates, never waits.

        Raises NotAFileError where there is something else than a file.
        """

    def close(self, handle: int) -> None: ...

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        """How many bytes were taken: a disk about to be full takes fewer than it was given."""

    def truncate(self, handle: int, size: int) -> None: ...

    def share_memory(self, handle: int, size: int) -> memoryview:
        """The file's first `size` bytes as memory that is the page cache: what is stored outlives us."""

    def size(self, handle: int) -> int: ...

    def has_name(self, handle: int) -> bool:
        """Does a directory still lead to the file? Costs a fifth of asking for its path."""

    def sync_files(self, handles: Sequence[int]) -> None:
        """Return when the bytes and the size of each file are on stable storage (fdatasync)."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are on stable storage."""

    def sync_file_system(self, handle: int) -> None:
        """Return when all that was written to the file system of this open file is durable, names too.

        It needs no descriptor. Raises OSError, also where the system has no call for it.
        """

    def rename(self, source: str, target: str) -> None:
        """Give `source` the name `target`, whose old file loses it in the same moment."""

    def link(self, source: str, target: str) -> bool:
        """Let the file have the name `target` as well, if nobody has it: FileExistsError. False: not here."""

    def unlink(self, path: str) -> None: ...

    def make_directory(self, path: str) -> bool:
        """Make one directory. False: it was there."""

    def remove_directory(self, path: str) -> None:
        """Take away a directory in which nothing is."""

    def list_directory(self, path: str) -> list[str]: ...

    def size_of(self, path: str) -> int | None:
        """The size of the file at `path`, None where there is none."""

    def stamp_of(self, path: str) -> Stamp | None:
        """The stamp of the file at `path`, None where there is none."""

    def place_of(self, path: str) -> Hashable:
        """Equal for two paths that lead to the same file or directory, and for no others."""

    def is_link(self, path: str) -> bool:
        """Is there a symbolic link at `path`, wherever it leads?"""

    def open_watch(self) -> FileWatch | None:
        """Something that tells when files change. None: there is no such thing here, look now and then."""

    def try_lock(self, handle: int) -> bool:
        """Take the exclusive lock that ends with the process (flock). False: somebody has it."""

    def is_locked(self, handle: int, pid: int, host: str) -> bool | None:
        """Has a process that lock? It is not taken. None: it cannot be told from here.

        `pid` and `host` are of the process that is known to have had it last; 0 where none is.
        """

    def identity(self) -> Identity: ...

    def monotonic(self) -> float:
        """Seconds on a clock that never steps."""

    def wall_clock(self) -> float:
        """Seconds since the Unix epoch, for people."""

    def unique_number(self) -> int:
        """A number nobody else drew: 63 random bits, for the names of temporary files."""


# Descriptors with a lock. A child of a fork has them, too, and would keep the lock when its parent closes.
_locked: set[int] = set()


class PosixFileSystem:
    """Linux's and macOS's. Stateless: one instance serves everybody.

    Everybody in one process: in a child of a fork every verb of those that there were raises ForkedError.
    """

    native = True

    def __init__(self) -> None:
        notify_on_fork(self)

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork: what was opened with it is the parent's. A new one is for the child."""
        if not isinstance(self, _InheritedFileSystem):
            self.__dict__["opened_by"] = pid
            self.__class__ = _InheritedFileSystem
        _drop_locked()

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= os.O_CREAT if create else 0
        flags |= os.O_EXCL if exclusive else 0
        # A planted link must not lead our writes elsewhere; a child must not inherit our lock; and a pipe
        # that somebody put there must not keep us waiting for its other end.
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return _open_file(path, flags)

    def close(self, handle: int) -> None:
        _locked.discard(handle)
        os.close(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = os.pread(handle, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        taken = len(data)
        while taken < size and (data := os.pread(handle, size - taken, offset + taken)):
            parts.append(data)
            taken += len(data)
        return b"".join(parts)

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        return os.pwrite(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def share_memory(self, handle: int, size: int) -> memoryview:
        return memoryview(mmap.mmap(handle, size))

    def size(self, handle: int) -> int:
        return size_of_file(handle)

    def has_name(self, handle: int) -> bool:
        return has_name(handle)

    def sync_files(self, handles: Sequence[int]) -> None:
        # Start them all on their way before waiting for the first: the disk then empties its
        # cache once for most of them (about a fifth off a barrier of two files).
        for handle in handles[1:]:
            start_writeback(handle)
        for handle in handles:
            _datasync(handle)

    def sync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync(handle)
        finally:
            os.close(handle)

    def sync_file_system(self, handle: int) -> None:
        sync_file_system(handle)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> bool:
        try:
            os.link(source, target)
        except OSError as failure:
            if failure.errno in _ONE_NAME_ERRNOS:
                return False
            raise
        return True

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> bool:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
            return False
        return True

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def list_directory(self, path: str) -> list[str]:
        return os.listdir(path)

    def size_of(self, path: str) -> int | None:
        return size_at(path)

    def stamp_of(self, path: str) -> Stamp | None:
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(path, follow_symlinks=False)
            return Stamp(found.st_ino, found.st_mtime_ns)
        return None

    def place_of(self, path: str) -> Hashable:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def open_watch(self) -> FileWatch | None:
        return open_inotify()

    def try_lock(self, handle: int) -> bool:
        import fcntl  # which Windows does not have

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as refusal:
            return _refused(refusal, refusal.errno in _CONTENTION)
        _locked.add(handle)
        return True

    def is_locked(self, handle: int, pid: int, host: str) -> bool | None:
        is_here = host == socket.gethostname()
        status = os.fstat(handle)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        try:
            with open(_LOCKS, encoding="ascii") as lines:
                for _, kind, _, _, owner, file, *_ in map(str.split, lines):
                    *listed, inode = file.rsplit(":", 1)
                    # Some file systems (btrfs, overlays) give files another device than the list does.
                    if (
                        kind == "FLOCK"
                        and inode == str(status.st_ino)
                        and (listed == [device] or owner == str(pid))
                    ):
                        return True
        except (OSError, ValueError):
            return _is_alive(pid) if is_here else None
        # What runs in another container, or beyond a network, is not in the list.
        return False if is_here else None

    def identity(self) -> Identity:
        return Identity(os.getpid(), socket.gethostname(), _boot_id())

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_clock(self) -> float:
        return time.time()

    def unique_number(self) -> int:
        return secrets.randbits(63)


class PortableFileSystem(PosixFileSystem):
    """What Python has on every system: Windows', and whoever sets DISKQ_PORTABLE=1. Compiled code asks it.

    A position belongs to the handle here, so one at a time seeks and reads, or writes. Directories cannot be
    synced, and nobody tells of changes: names are as durable as the system makes them by itself, and readers
    look now and then. docs/platforms.md tells what that means.
    """

    native = False

    def __init__(self) -> None:
        super().__init__()
        self._seek_lock = threading.Lock()

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= os.O_CREAT if create else 0
        flags |= os.O_EXCL if exclusive else 0
        for name in ("O_BINARY", "O_NOINHERIT", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"):
            flags |= getattr(os, name, 0)
        return _open_file(path, flags)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        parts = []
        with self._seek_lock:
            os.lseek(handle, offset, os.SEEK_SET)
            while size and (data := os.read(handle, size)):
                parts.append(data)
                size -= len(data)
        return b"".join(parts)

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        with self._seek_lock:
            os.lseek(handle, offset, os.SEEK_SET)
            return os.write(handle, data)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def has_name(self, handle: int) -> bool:
        return os.fstat(handle).st_nlink > 0

    def sync_files(self, handles: Sequence[int]) -> None:
        for handle in handles:
            os.fsync(handle)

    def sync_directory(self, path: str) -> None:
        """Nothing, but that it must be there: systems without O_DIRECTORY have no call for it."""
        os.stat(path)

    def sync_file_system(self, handle: int) -> None:
        raise OSError(errno.ENOSYS, "this system cannot sync one file system", str(handle))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)  # os.rename does not replace what is there on Windows

    def size_of(self, path: str) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(path, follow_symlinks=False).st_size
        return None

    def open_watch(self) -> FileWatch | None:
        return None

    def try_lock(self, handle: int) -> bool:
        # Not above: with what it imports, an SDK of a lock server among them, it takes 40 ms and more.
        import portalocker

        try:
            portalocker.lock(handle, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.exceptions.LockException as refusal:
            is_held = isinstance(refusal, portalocker.AlreadyLocked) or _is_contention(refusal)
            return _refused(refusal, is_held)
        _locked.add(handle)
        return True

    def is_locked(self, handle: int, pid: int, host: str) -> bool | None:
        return None


def _open_file(path: str, flags: int) -> int:
    """A regular file. Raises NotAFileError for anything else, which is neither read nor waited for."""
    try:
        handle = os.open(path, flags, FILE_MODE)
    except OSError as failure:
        if failure.errno not in _NOT_A_FILE_ERRNOS:
            raise
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):
            raise
        raise NotAFileError(path, _kind_name(mode), failure.errno) from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
            raise NotAFileError(path, _kind_name(found.st_mode), number)
        if found.st_size > _LARGE and _is_hollow(handle, found.st_size):
            raise NotAFileError(path, f"a hole of {found.st_size} bytes")
    except BaseException:
        os.close(handle)
        raise
    return handle


def _is_hollow(handle: int, size: int) -> bool:
    """Is there next to nothing in a file of that size? Where the system does not tell, there is something."""
    if not hasattr(os, "SEEK_DATA"):
        return False
    held = at = 0
    for _ in range(_MANY_STRETCHES):
        try:
            start = os.lseek(handle, at, os.SEEK_DATA)
            at = os.lseek(handle, start, os.SEEK_HOLE)
        except OSError as failure:
            return failure.errno == errno.ENXIO  # no more data
        held += at - start
        if held > size // _HOLLOW:
            return False
    return False


def _kind_name(mode: int) -> str:
    """What people call what has such a mode."""
    return next((name for is_one, name in _FILE_KINDS if is_one(mode)), "something")


class _InheritedFileSystem(PosixFileSystem):
    """What a file system is in a child of the process that made it: no verb of it touches anything."""

    opened_by: int

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") or name in ("native", "opened_by", "leave_to_parent"):
            return super().__getattribute__(name)
        if name in ("monotonic", "wall_clock"):
            return getattr(time, "monotonic" if name == "monotonic" else "time")
        raise ForkedError("", self.opened_by)


def _drop_locked() -> None:
    """In a child: hold no lock of the parent's open when that has closed it.

    Closing a copy lets go of no lock (flock is the open file's). Their numbers stay taken: who inherited
    them must not find another file there.
    """
    nothing = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)) if _locked else -1
    for handle in _locked:
        os.dup2(nothing, handle, inheritable=False)
    _locked.clear()
    if nothing >= 0:
        os.close(nothing)


IS_PORTABLE = sys.platform == "win32" or os.environ.get("DISKQ_PORTABLE", "") not in ("", "0")
"""Is the operating system asked through Python's own calls alone?"""

# The operating system itself, by the calls that are there.
OsFileSystem = PosixFileSystem
if not TYPE_CHECKING and IS_PORTABLE:
    OsFileSystem = PortableFileSystem


def _is_alive(pid: int) -> bool | None:
    """Where no list tells of locks: a process that is gone has none. One that runs may have it: None."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return None


def _refused(refusal: Exception, is_held: bool) -> bool:
    """False: somebody has the lock. Raises OSError where it is refused to everybody."""
    if is_held:
        return False
    raise OSError(errno.ENOLCK, f"this file system cannot lock: {refusal}") from refusal


def _is_contention(refusal: BaseException) -> bool:
    """Does the refusal mean "somebody has it" rather than "locks do not work here"?"""
    cause = refusal.__cause__ or (refusal.args[0] if refusal.args else None)
    number = getattr(cause, "errno", None)
    return number in _CONTENTION


def _boot_id() -> str:
    """Empty where the system does not tell: recovery then believes the page cache survived."""
    if sys.platform == "darwin":
        return _boot_session()
    with contextlib.suppress(OSError), open(_BOOT_ID_PATH, encoding="ascii") as file:
        return file.read().strip()
    return ""
