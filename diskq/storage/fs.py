# The file system layer. Law: no other module below `cli` calls the operating system.
#
# A `FileSystem` has the operations that a store needs, on paths and integer handles. The real one is
# here; `diskq.testing` has one that forgets what was not synced and one that fails on demand.
# If `native` is true, a handle is a file descriptor, and compiled code calls pread(2), pwrite(2) and
# fdatasync(2) on it itself; otherwise compiled code uses these operations, too, so that a test can replace
# the disk for it.

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from diskq._native.core.file_calls import has_name, size_at, size_of_file, sync_file_system, sync_files
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
    "full_disk_ignored",
    "holds_descriptors",
    "join",
    "syncs_natively",
]

# The kernel's errors for "no space": the disk, the quota, the process's file size limit.
FULL_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})


@contextlib.contextmanager
def full_disk_ignored() -> Iterator[None]:
    """Ignore that the disk is full; other errors are raised. The rest of the block is then left out."""
    try:
        yield
    except OSError as failure:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise


# The kernel's errors for a lock that another process holds.
_CONTENTION = frozenset({errno.EWOULDBLOCK, errno.EACCES})
# Linux lists all locks and their owners here, as `1: FLOCK  ADVISORY  WRITE 4711 08:01:393220 0 EOF`.
_LOCKS = "/proc/locks"

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

# The kernel's errors for "no hard links": FAT, some network and user-space file systems, and rules that
# forbid them between directories, or to users that do not own the file.
_ONE_NAME_ERRNOS = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
    | {errno.EXDEV, errno.EMLINK}
)

# The kernel's errors for a path at which there is something else than a file; and what that can be.
_NOT_A_FILE_ERRNOS = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EMLINK})
_FILE_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

# A file larger than _LARGE bytes of which less than one byte in _HOLLOW is allocated was not written by any
# program: reading its zeros would take too long, or too much memory. No file system compresses that well.
_LARGE = 64 * 1024 * 1024
_HOLLOW = 1000
_MANY_STRETCHES = 256

# The number of the namespace that all processes of the machine are in (PROC_PID_INIT_INO of the kernel).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC

# stdin, stdout and stderr are below. A program that was started without them gives their numbers to the files
# that it opens first; then what a C library prints on stderr would overwrite a store.
_FIRST_DESCRIPTOR = 3

# The kernel's identifier of this boot: a restart of the machine changes it, the kill of a process does not.
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

AnyPath = str | os.PathLike[str]

if sys.platform == "darwin":
    from diskq._native.core.file_calls import boot_id as _boot_session
    from diskq._native.core.file_calls import full_sync

    # Its fsync leaves the bytes in the disk's own cache.
    _fsync = full_sync
else:
    _fsync = os.fsync

base_name = os.path.basename


def as_path(path: AnyPath) -> str:
    """Return the path as a str. Raises TypeError for bytes and non-paths, FileNotFoundError if empty."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a str or a pathlib.Path, not {type(text).__name__}")
    if not text:
        # Joined with a name it would mean the program's current directory.
        raise FileNotFoundError(errno.ENOENT, "a path is not empty", text)
    return text


def join(directory: str, *names: str) -> str:
    """Join paths as os.path.join does, in a third of the time; none of `names` may begin with a slash."""
    if not directory or directory[-1] == "/":
        return os.path.join(directory, *names)
    return "/".join((directory, *names))


def directory_of(path: str) -> str:
    """Return the directory that holds `path`."""
    return os.path.dirname(path) or "."


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, as the lock file names it: enough for a person to find it."""

    pid: int
    host: str
    boot_id: str
    pid_namespace: int = 0
    """The kernel's number of the namespace of `pid`; 0: that of the whole machine, or unknown."""
    started: int = 0
    """The Unix time at which the process started; 0: unknown."""


class Stamp(NamedTuple):
    """Which file a path names, and when it was last written. Equal stamps mean equal bytes.

    Except after bit rot, or a write within one tick of the kernel's clock, some milliseconds.
    """

    file: int
    """Unique on this file system while the file exists (an inode number)."""
    modified_ns: int
    """Since the Unix epoch."""


class FileSystem(Protocol):
    """The operations on files. All raise `OSError`; sizes and offsets are bytes."""

    @property
    def native(self) -> bool:
        """True if handles are file descriptors, on which compiled code may call the kernel itself."""

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        """Return a handle for reading, or reading and writing. Never follows a link, truncates or waits.

        Raises NotAFileError if there is something else than a file at `path`.
        """

    def close(self, handle: int) -> None: ...

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Return at most `size` bytes; fewer only at the end of the file."""

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        """Write `data` and return the number of bytes written: fewer if the disk is nearly full."""

    def truncate(self, handle: int, size: int) -> None: ...

    def share_memory(self, handle: int, size: int) -> memoryview:
        """Return the file's first `size` bytes as shared memory: stored bytes outlive this process.

        It stays valid when the handle is closed.
        """

    def size(self, handle: int) -> int: ...

    def has_name(self, handle: int) -> bool:
        """True if a directory still refers to the file. Costs a fifth of looking up its path."""

    def sync_files(self, handles: Sequence[int]) -> None:
        """Return when the bytes and the size of each file are on stable storage (fdatasync)."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are on stable storage."""

    def sync_file_system(self, handle: int) -> None:
        """Return when everything written to the file system of this open file is durable, names too.

        It needs no descriptor. Raises OSError, also if the system has no such call.
        """

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically; a file that had that name loses it."""

    def link(self, source: str, target: str) -> bool:
        """Give the file the second name `target`. False: this file system has no hard links.

        Raises FileExistsError if the name is taken.
        """

    def unlink(self, path: str) -> None: ...

    def make_directory(self, path: str) -> bool:
        """Create one directory. False: it existed."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def list_directory(self, path: str) -> list[str]: ...

    def size_of(self, path: str) -> int | None:
        """Return the size of the file at `path`; None if there is none."""

    def stamp_of(self, path: str) -> Stamp | None:
        """Return the stamp of the file at `path`; None if there is none."""

    def place_of(self, path: str) -> Hashable:
        """Return a value that is equal for two paths exactly if they lead to the same file or directory."""

    def device_of(self, path: str) -> Hashable:
        """Return a value that is equal for two existing paths if one disk has both: it may slow down both."""

    def is_link(self, path: str) -> bool:
        """True if there is a symbolic link at `path`, wherever it leads."""

    def open_watch(self) -> FileWatch | None:
        """Return a watch for changes of files. None: this system has none, and the caller must poll."""

    def try_lock(self, handle: int) -> bool:
        """Take the exclusive lock, which ends with the process (flock). False: another process has it."""

    def is_locked(self, handle: int, owner: Identity) -> bool | None:
        """True if a process has that lock; None if this cannot be determined. The lock is not taken.

        `owner` is the last known owner of the lock; its `pid` is 0 if none is known.
        """

    def identity(self) -> Identity: ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never steps."""

    def wall_clock(self) -> float:
        """Return seconds since the Unix epoch, for people."""

    def unique_number(self) -> int:
        """Return a unique number: 63 random bits, for the names of temporary files."""


# Descriptors with a lock. A child of a fork inherits them, and would keep the lock after its parent closes.
_locked: set[int] = set()


class PosixFileSystem:
    """The file system of Linux and macOS. Stateless: one instance serves the whole process.

    In a child of a fork, every operation of an inherited instance raises ForkedError.
    """

    native = True

    def __init__(self) -> None:
        notify_on_fork(self)

    def leave_to_parent(self, pid: int) -> None:
        """Refuse every operation in a child of a fork: open files are the parent's."""
        if not isinstance(self, _InheritedFileSystem):
            self.__dict__["opened_by"] = pid
            self.__class__ = _InheritedFileSystem
        _drop_locked()

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= os.O_CREAT if create else 0
        flags |= os.O_EXCL if exclusive else 0
        # A planted link must not lead our writes elsewhere; a child must not inherit our lock; and a planted
        # pipe must not keep us waiting for its other end.
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
        with _no_low_descriptors():
            return memoryview(mmap.mmap(handle, size))  # it keeps a copy of the descriptor

    def size(self, handle: int) -> int:
        return size_of_file(handle)

    def has_name(self, handle: int) -> bool:
        return has_name(handle)

    def sync_files(self, handles: Sequence[int]) -> None:
        sync_files(tuple(handles))

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

    def device_of(self, path: str) -> Hashable:
        return os.stat(path).st_dev

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

    def is_locked(self, handle: int, owner: Identity) -> bool | None:
        me = self.identity()
        is_this_boot = bool(me.boot_id) and owner.boot_id == me.boot_id
        is_here = is_this_boot or owner.host == me.host
        # Of other pid namespaces, such as a sibling container's, the list shows no processes: an owner there
        # may live, unless it is of an earlier boot.
        sees_owner = me.pid_namespace in (0, owner.pid_namespace) or not is_this_boot
        status = os.fstat(handle)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        try:
            with open(_LOCKS, encoding="ascii") as lines:
                for _, kind, _, _, pid, file, *_ in map(str.split, lines):
                    *listed, inode = file.rsplit(":", 1)
                    # Some file systems (btrfs, overlays) report another device for a file than the list does.
                    if (
                        kind == "FLOCK"
                        and inode == str(status.st_ino)
                        and (listed == [device] or pid == str(owner.pid))
                    ):
                        return True
        except (OSError, ValueError):
            return _is_alive(owner.pid) if is_here and sees_owner else None
        # Processes on other hosts are not in the list either.
        return False if is_here and sees_owner else None

    def identity(self) -> Identity:
        pid = os.getpid()
        return Identity(pid, socket.gethostname(), _boot_id(), _pid_namespace(pid), _start_of(pid))

    monotonic = staticmethod(time.monotonic)

    def wall_clock(self) -> float:
        return time.time()

    def unique_number(self) -> int:
        return secrets.randbits(63)


class PortableFileSystem(PosixFileSystem):
    """A file system of Python's portable calls, for Windows and DISKQ_PORTABLE=1. Compiled code calls it.

    The position belongs to the handle here, so one thread at a time seeks and reads or writes. Directories
    cannot be synced, and changes are not reported: names are as durable as the system makes them by itself,
    and readers poll. docs/platforms.md says what that means.
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
        """Check that the directory exists, and sync nothing: without O_DIRECTORY there is no call for it."""
        os.stat(path)

    def sync_file_system(self, handle: int) -> None:
        raise OSError(errno.ENOSYS, "this system cannot sync one file system", str(handle))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)  # on Windows, os.rename does not replace an existing file

    def size_of(self, path: str) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(path, follow_symlinks=False).st_size
        return None

    def open_watch(self) -> FileWatch | None:
        return None

    def try_lock(self, handle: int) -> bool:
        # Imported here since its own imports, among them the SDK of a lock server, take 40 ms and more.
        import portalocker

        try:
            portalocker.lock(handle, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.exceptions.LockException as refusal:
            is_held = isinstance(refusal, portalocker.AlreadyLocked) or _is_contention(refusal)
            return _refused(refusal, is_held)
        _locked.add(handle)
        return True

    def is_locked(self, handle: int, owner: Identity) -> bool | None:
        return None


def _open_file(path: str, flags: int) -> int:
    """Open a regular file. Raises NotAFileError for anything else, without reading it or waiting for it.

    Its descriptor is not one of the standard ones.
    """
    try:
        handle = os.open(path, flags, FILE_MODE)
    except OSError as failure:
        if failure.errno not in _NOT_A_FILE_ERRNOS:
            raise
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):
            raise
        raise NotAFileError(path, _kind_name(mode), failure.errno) from None
    if handle < _FIRST_DESCRIPTOR:
        handle = _moved_up(handle)
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


def _moved_up(handle: int) -> int:
    """Return a descriptor of the same file that is not a standard one; `handle` is closed."""
    taken = [handle]
    try:
        # Without F_DUPFD, which Windows does not have.
        while taken[-1] < _FIRST_DESCRIPTOR:
            taken.append(os.dup(taken[-1]))
        return taken.pop()
    finally:
        for each in taken:
            os.close(each)


@contextlib.contextmanager
def _no_low_descriptors() -> Iterator[None]:
    """Let what is opened in the block get none of the standard descriptors, if one of them is closed."""
    taken: list[int] = []
    try:
        for number in range(_FIRST_DESCRIPTOR):
            try:
                os.fstat(number)
            except OSError:
                taken.append(os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
        yield
    finally:
        for each in taken:
            os.close(each)


def _is_hollow(handle: int, size: int) -> bool:
    """True if almost nothing of a file of that size is allocated. False if the system cannot say."""
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
    """Return the usual name of the kind of file with this mode."""
    return next((name for is_one, name in _FILE_KINDS if is_one(mode)), "something")


class _InheritedFileSystem(PosixFileSystem):
    """A file system in a child of the process that made it: no operation of it touches anything."""

    opened_by: int

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") or name in ("native", "opened_by", "leave_to_parent"):
            return super().__getattribute__(name)
        if name in ("monotonic", "wall_clock"):
            return getattr(time, "monotonic" if name == "monotonic" else "time")
        raise ForkedError("", self.opened_by)


def _drop_locked() -> None:
    """Drop the parent's locks in a child, so that they end when the parent closes them.

    Closing a copy of a descriptor releases no lock (flock belongs to the open file). The numbers stay in use:
    objects that inherited them must not find another file there.
    """
    nothing = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)) if _locked else -1
    for handle in _locked:
        os.dup2(nothing, handle, inheritable=False)
    _locked.clear()
    if nothing >= 0:
        os.close(nothing)


IS_PORTABLE = sys.platform == "win32" or os.environ.get("DISKQ_PORTABLE", "") not in ("", "0")
"""True if the operating system is used through Python's own calls only."""

# The file system for this operating system.
OsFileSystem = PosixFileSystem
if not TYPE_CHECKING and IS_PORTABLE:
    OsFileSystem = PortableFileSystem

_of_process: list[FileSystem] = []


def os_file_system() -> FileSystem:
    """Return the `OsFileSystem` of this process. A child of a fork gets another one."""
    if not _of_process or isinstance(_of_process[0], _InheritedFileSystem):
        _of_process[:] = [OsFileSystem()]
    return _of_process[0]


def holds_descriptors(fs: FileSystem) -> bool:
    """True if handles of `fs` are descriptors of this process, which stay open until they are closed."""
    while (below := getattr(fs, "below", None)) is not None:
        fs = below  # an overlay has the files of another one open
    return isinstance(fs, PosixFileSystem) and not isinstance(fs, _InheritedFileSystem)


def syncs_natively(fs: FileSystem) -> bool:
    """True if compiled code may sync the files of `fs` itself: nothing else is to hear of it."""
    return fs.native and getattr(type(fs), "sync_files", None) is PosixFileSystem.sync_files


def _is_alive(pid: int) -> bool | None:
    """Guess, without a list of locks, if a process has one: False if it has ended, None if it runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return None


def _refused(refusal: Exception, is_held: bool) -> bool:
    """Return False if another process holds the lock. Raises OSError if this file system cannot lock."""
    if is_held:
        return False
    raise OSError(errno.ENOLCK, f"this file system cannot lock: {refusal}") from refusal


def _is_contention(refusal: BaseException) -> bool:
    """True if the refusal means that another process has the lock, not that locks do not work here."""
    cause = refusal.__cause__ or (refusal.args[0] if refusal.args else None)
    number = getattr(cause, "errno", None)
    return number in _CONTENTION


@functools.cache
def _pid_namespace(pid: int) -> int:
    """Return the number of this process's pid namespace; 0: the machine's first one, or unknown."""
    with contextlib.suppress(OSError):
        number = os.stat("/proc/self/ns/pid").st_ino
        return 0 if number == _FIRST_PID_NAMESPACE else number
    return 0


@functools.cache
def _start_of(pid: int) -> int:
    """Return the Unix time at which this process, which has the id `pid`, started; 0 if unknown."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError, AttributeError),
        open("/proc/self/stat") as file,
    ):
        # The program's name, in parentheses, may have any characters. Field 22 is in ticks since the boot.
        ticks = int(file.read().rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return int(time.time() - since_boot)
    return 0


@functools.cache
def _boot_id() -> str:
    """Return the identifier of this boot; empty if unknown: recovery then assumes no restart."""
    if sys.platform == "darwin":
        return _boot_session()
    with contextlib.suppress(OSError), open(_BOOT_ID_PATH, encoding="ascii") as file:
        return file.read().strip()
    return ""
