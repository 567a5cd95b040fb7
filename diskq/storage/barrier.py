# Barriers. Law: data, then names, then deletions.
#
# Everything that makes bytes durable is in this file: to know whether diskq can lose a message, read
# this file and nothing else. No other module syncs, renames or unlinks.
#
# The owner of the state prepares a barrier (frozen: it describes the state *now*), any thread executes it,
# and the owner completes it. At most one is outstanding: a position recorded by an older barrier that
# finishes late would point back.
#
# The owner of a handle forgets it before it closes it, since close(2) releases the number even if it fails:
# a second close could close another file. Closing several handles closes all, even if one fails.

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from diskq._native.core import file_calls
from diskq.storage.fs import FULL_DISK_ERRNOS, NO_DESCRIPTOR_ERRNOS, FileSystem, directory_of

__all__ = ["NO_ROOM", "Barrier", "PendingSyncs", "Replacement", "keep_path", "write_over"]

write_all = file_calls.write_all
"""Write all bytes at an offset. A full disk then raises OSError, instead of taking fewer."""

start_writeback = file_calls.start_writeback
"""Let the kernel begin to write a file's bytes: its sync has less to wait for then. Makes nothing durable."""

NO_ROOM = "the disk is full, or no file descriptor is left"
"""The reason why `Barrier.execute` returned False."""

_AT_ONCE = 1024 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Replacement:
    """A small file that gets new `content`: a crash leaves the old or the new content, never a mixture."""

    path: str
    content: bytes
    temporary: Callable[[int], str]
    """Returns the path of the temporary file, given a unique number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """What must become durable, in the order of execution."""

    files: tuple[int, ...] = ()
    """Handles of files whose bytes are to be on stable storage; data before its checksums."""
    directories: tuple[str, ...] = ()
    """Directories in which names were created, to be synced so that the files are found again."""
    installs: tuple[tuple[str, str], ...] = ()
    """(path, new path): files that are durable under a temporary name, and get their final one."""
    replacements: tuple[Replacement, ...] = ()
    """Small files that point at the data, which is durable by then. Those in one directory are durable before
    those in the next are there."""
    asides: tuple[tuple[str, str], ...] = ()
    """(path, new path): unreferenced files with unreadable bytes, which are renamed."""
    removals: tuple[str, ...] = ()
    """Files that nothing refers to any more."""
    emptied: tuple[str, ...] = ()
    """Directories that are empty by then, the inner ones first."""
    closing: tuple[int, ...] = ()
    """Handles that are not used after this."""

    @property
    def is_plain(self) -> bool:
        """True if it syncs open files and replaces small ones, and nothing else: no name comes or goes."""
        return not (
            self.directories or self.installs or self.asides or self.removals or self.emptied or self.closing
        )

    @property
    def is_of_files(self) -> bool:
        """True if it syncs open files, and nothing else."""
        return bool(self.files) and self.is_plain and not self.replacements

    def execute(self, fs: FileSystem) -> bool:
        """Return when all of it is durable.

        Returns False if `replacements` could not be written because the disk is full or no descriptor is
        left: everything else is durable, what they pointed at before is still there or known to be consumed,
        and they stay pending. Raises OSError for any other failure; then nothing can be relied on.
        """
        try:
            if self.files:
                fs.sync_files(self.files)
        finally:
            # Before any removal: a removed file gives its space back only when no handle is open on it.
            close_all(fs, self.closing)
        for path in self.directories:
            self._sync_directory(fs, path)
        self._install(fs)
        replaced = self._replace(fs)
        self._remove(fs)
        if not replaced:
            # Deletions come before names here only, since they free space. Recovery continues at the next
            # file if a position names a consumed file that is gone.
            replaced = self._replace(fs)
        return replaced

    def _sync_directory(self, fs: FileSystem, path: str) -> None:
        """Sync a directory; if no descriptor is left to open it, sync its whole file system."""
        try:
            fs.sync_directory(path)
        except OSError as failure:
            still_open = next((each for each in self.files if each not in self.closing), None)
            if failure.errno not in NO_DESCRIPTOR_ERRNOS or still_open is None:
                raise
            fs.sync_file_system(still_open)

    def _install(self, fs: FileSystem) -> None:
        for path, target in self.installs:
            fs.rename(path, target)
        for path in dict.fromkeys(directory_of(target) for _, target in self.installs):
            self._sync_directory(fs, path)

    def _replace(self, fs: FileSystem) -> bool:
        """Replace them in order: those in the next directory only when those in this one are durable."""
        for directory, replacements in groupby(self.replacements, lambda its: directory_of(its.path)):
            try:
                for replacement in replacements:
                    _replace_file(fs, replacement)
            except OSError as failure:
                if failure.errno not in FULL_DISK_ERRNOS | NO_DESCRIPTOR_ERRNOS:
                    raise
                return False
            self._sync_directory(fs, directory)
        return True

    def _remove(self, fs: FileSystem) -> None:
        for path, aside in self.asides:
            with contextlib.suppress(FileNotFoundError):
                fs.rename(path, aside)
        for path in self.removals:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)
        for path in self.emptied:
            with contextlib.suppress(FileNotFoundError):
                fs.remove_directory(path)


def _replace_file(fs: FileSystem, replacement: Replacement) -> None:
    """Write a temporary file, sync it and rename it over the old one. The caller syncs the directory."""
    temporary = replacement.temporary(fs.unique_number())
    handle = fs.open(temporary, write=True, create=True, exclusive=True)
    try:
        try:
            write_all(fs, handle, replacement.content, 0)
            fs.sync_files((handle,))
        finally:
            fs.close(handle)
        fs.rename(temporary, replacement.path)
    except OSError:
        # No partial file stays; if even the unlink fails, the next open removes it.
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise


def write_over(fs: FileSystem, replacement: Replacement) -> bool:
    """Overwrite the existing file with the new content, when the disk is too full to replace it.

    Returns False if there is no such file, or no space. Raises OSError. A crash midway leaves a mixture, so
    this is for content that has a checksum and that recovery can do without.
    """
    try:
        handle = fs.open(replacement.path, write=True)
    except OSError as failure:
        if failure.errno not in {errno.ENOENT} | NO_DESCRIPTOR_ERRNOS:
            raise
        return False
    try:
        write_all(fs, handle, replacement.content, 0)
        fs.truncate(handle, len(replacement.content))
        fs.sync_files((handle,))
    except OSError as failure:
        if failure.errno not in FULL_DISK_ERRNOS:
            raise
        return False
    finally:
        fs.close(handle)
    return True


def keep_path(fs: FileSystem, path: str) -> None:
    """Sync all directories above `path`: a process that was killed may have created them. Raises OSError."""
    while (above := directory_of(path)) != path:
        try:
            fs.sync_directory(above)
        except PermissionError:
            return  # this process may not read it, so diskq has created nothing in it
        path = above


@dataclass(slots=True)
class PendingSyncs:
    """What the next barrier must sync, rename or remove besides the active file. Gathered until `freeze`."""

    files: list[int] = field(default_factory=list)
    directories: dict[str, None] = field(default_factory=dict)
    installs: list[tuple[str, str]] = field(default_factory=list)
    asides: list[tuple[str, str]] = field(default_factory=list)
    removals: list[str] = field(default_factory=list)
    closing: list[int] = field(default_factory=list)
    parts: tuple[list[Any] | dict[str, None], ...] = field(init=False)
    """All of these: none has anything if nothing is pending."""

    def __post_init__(self) -> None:
        self.parts = (
            self.files,
            self.directories,
            self.installs,
            self.asides,
            self.removals,
            self.closing,
        )

    def __bool__(self) -> bool:
        return any(self.parts)

    def sync_and_close(self, *handles: int) -> None:
        """Have the next barrier sync these complete files, and then close them."""
        self.files += handles
        self.closing += handles

    def freeze(self, active: tuple[int, ...], replacements: tuple[Replacement, ...]) -> Barrier:
        """Return everything pending and the active files as one barrier; afterwards nothing is pending."""
        barrier = Barrier(
            files=(*self.files, *active),
            directories=tuple(self.directories),
            installs=tuple(self.installs),
            replacements=replacements,
            asides=tuple(self.asides),
            removals=tuple(self.removals),
            closing=tuple(self.closing),
        )
        for part in self.parts:
            part.clear()
        return barrier

    def execute_files(self, fs: FileSystem) -> None:
        """Sync and close the files now, and only them. Raises OSError; then nothing can be relied on."""
        barrier = Barrier(files=tuple(self.files), closing=tuple(self.closing))
        self.files.clear()
        self.closing.clear()  # they are closed even if the barrier fails
        barrier.execute(fs)

    def execute(self, fs: FileSystem, outstanding: Barrier | None) -> None:
        """Sync files and directories now, and close files. Raises OSError; then nothing can be relied on.

        Renames and removals stay pending: they come after a pointer that is still pending, too. Files that
        `outstanding`, a barrier in progress, has yet to sync stay open and pending: their handle numbers must
        not become another file's.
        """
        busy = outstanding.files if outstanding is not None else ()
        closing = tuple(handle for handle in self.closing if handle not in busy)
        barrier = Barrier(files=tuple(self.files), directories=tuple(self.directories), closing=closing)
        self.files.clear()
        self.directories.clear()
        self.closing[:] = [handle for handle in self.closing if handle in busy]
        barrier.execute(fs)


# --- handles --------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(
    fs: FileSystem, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
) -> Iterator[int]:
    """Open a file for a `with` block, at whose end it is closed. Raises OSError, as `fs.open`."""
    handle = fs.open(path, write=write, create=create, exclusive=exclusive)
    try:
        yield handle
    finally:
        fs.close(handle)


def open_at(fs: FileSystem, path: str, end: int) -> int:
    """Open a file to append at byte `end`: a missing file is created, and bytes after `end` are cut off.

    Raises OSError; the file is then not open.
    """
    handle = fs.open(path, write=True, create=True)
    try:
        cut_to(fs, handle, end)
    except BaseException:
        fs.close(handle)
        raise
    return handle


def cut_to(fs: FileSystem, handle: int, size: int) -> None:
    """Shorten an open file to `size` bytes, where it has more. Raises OSError."""
    if fs.size(handle) > size:
        fs.truncate(handle, size)


def rewrite(fs: FileSystem, handle: int, start: int, end: int) -> None:
    """Write bytes start:end over themselves, so that the next sync really writes them.

    After a failed fsync the kernel marks them clean: it would sync nothing, and report success.
    """
    for at in range(start, end, _AT_ONCE):
        write_all(fs, handle, fs.pread(handle, min(_AT_ONCE, end - at), at), at)


def read_small(fs: FileSystem, path: str, most: int) -> bytes | None:
    """Return the first `most` bytes of the file at `path`; None if there is none. Raises OSError.

    For files that are written as a `Replacement`, whole or not at all.
    """
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return fs.pread(handle, most, 0)
    finally:
        let_go(fs, handle)


def let_go(fs: FileSystem, *handles: int) -> None:
    """Close files that were only read; numbers below 0 are ignored. Never raises: no data can be lost."""
    for handle in handles:
        if handle >= 0:
            with contextlib.suppress(OSError):
                fs.close(handle)


def close_all(fs: FileSystem, handles: Iterable[int]) -> None:
    """Close all handles, even if one fails. Raises OSError after that."""
    with contextlib.ExitStack() as stack:
        for handle in reversed(tuple(handles)):  # the last one in is called first
            stack.callback(fs.close, handle)
