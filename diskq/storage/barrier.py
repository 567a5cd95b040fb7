# Barriers. Law: data, then names, then deletions.
#
# Everything that makes bytes durable is in this file; who wants to know whether diskq can lose a
# message reads this file and nothing else. Nobody else syncs, renames or unlinks.
#
# A barrier is taken where the state is (frozen: it names what the state is *now*), paid wherever
# waiting hurts nobody, and marked where the state is. One is outstanding at a time: a position
# recorded by a late old one would point back.

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from diskq.storage.fs import FULL_DISK_ERRNOS, NO_DESCRIPTOR_ERRNOS, FileSystem, directory_of

__all__ = ["NO_ROOM", "Barrier", "PendingSyncs", "Replacement", "keep_path", "write_over"]

NO_ROOM = "the disk is full, or no file descriptor is left"
"""Why `Barrier.execute` returned False."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A small file that is to hold `content`, all of it or what it held before, never a mixture."""

    path: str
    content: bytes
    temporary: Callable[[int], str]
    """The temporary file's path, given a number that nobody else drew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """What must become durable, in the order in which it must."""

    files: tuple[int, ...] = ()
    """Handles of files whose bytes are to be on stable storage; data before its checksums."""
    directories: tuple[str, ...] = ()
    """Directories in which names were made, so that a file is found where its bytes are."""
    installs: tuple[tuple[str, str], ...] = ()
    """(path, new path): files that are durable under another name, and take their own's place."""
    replacements: tuple[Replacement, ...] = ()
    """Small files that point at the data, which by now is durable."""
    asides: tuple[tuple[str, str], ...] = ()
    """(path, new path): files nobody points at any more that hold bytes nobody could read."""
    removals: tuple[str, ...] = ()
    """Files that nobody points at any more."""
    emptied: tuple[str, ...] = ()
    """Directories in which nothing is any more, the inner ones first."""
    closing: tuple[int, ...] = ()
    """Handles that nobody uses after this."""

    def execute(self, fs: FileSystem) -> bool:
        """Return when all of it is durable.

        False: `replacements` could not be written, as the disk is full or no descriptor is left;
        everything else holds, what they pointed at before is still there or known to be consumed,
        and they are owed still. Raises OSError for anything else; then nothing may be believed.
        """
        try:
            if self.files:
                fs.sync_files(self.files)
        finally:
            # Before anything is removed: a file gives its room back when nobody holds it any more.
            close_all(fs, self.closing)
        for path in self.directories:
            self._sync_directory(fs, path)
        self._install(fs)
        replaced = self._replace(fs)
        self._remove(fs)
        if not replaced:
            # Deletions before names, for once: it is what makes room. Recovery goes on at the next
            # file where a position names a consumed one that is gone.
            replaced = self._replace(fs)
        return replaced

    def _sync_directory(self, fs: FileSystem, path: str) -> None:
        """A directory must be opened to be synced. Where no descriptor is left, its file system is synced."""
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
        try:
            for replacement in self.replacements:
                _replace_file(fs, replacement)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS | NO_DESCRIPTOR_ERRNOS:
                raise
            return False
        for path in dict.fromkeys(directory_of(r.path) for r in self.replacements):
            self._sync_directory(fs, path)
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
    """Write beside, sync, rename over. The caller syncs the directory."""
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
        # Nothing partial is left behind; if even this fails, the next open sweeps it up.
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise


def write_over(fs: FileSystem, replacement: Replacement) -> bool:
    """Write the new content into the file that is there, where the disk is too full to replace it.

    False: there is no such file, or no room. Raises OSError. A crash midway leaves a mixture, so this is for
    content that has a checksum, and that recovery can do without.
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
    """Let no power cut take away what leads to `path`: who was killed may have made it. Raises OSError."""
    while (above := directory_of(path)) != path:
        try:
            fs.sync_directory(above)
        except PermissionError:
            return  # who may not look there has made nothing there
        path = above


def close_all(fs: FileSystem, handles: Iterable[int]) -> None:
    """Let go of them all, whatever one of them says. Raises OSError after that."""
    with contextlib.ExitStack() as stack:
        for handle in reversed(tuple(handles)):  # the last one in is called first
            stack.callback(fs.close, handle)


def write_all(fs: FileSystem, handle: int, data: bytes | memoryview, offset: int) -> None:
    """pwrite until all is taken; a full disk then says so instead of taking less."""
    taken = fs.pwrite(handle, data, offset) if len(data) else 0
    if taken == len(data):
        return
    view = memoryview(data)[taken:]
    while view:
        offset += taken
        taken = fs.pwrite(handle, view, offset)
        view = view[taken:]


def cut_to(fs: FileSystem, handle: int, size: int) -> None:
    """Shorten an open file to `size` bytes, where it has more. Raises OSError."""
    if fs.size(handle) > size:
        fs.truncate(handle, size)


def open_at(fs: FileSystem, path: str, end: int) -> int:
    """Open a file to go on after byte `end`: it is made where it is not there, and what follows is cut.

    Raises OSError; it is then not open.
    """
    handle = fs.open(path, write=True, create=True)
    try:
        cut_to(fs, handle, end)
    except BaseException:
        fs.close(handle)
        raise
    return handle


@dataclass(slots=True)
class PendingSyncs:
    """What the next barrier owes beyond the active file: gathered as it happens, frozen with it."""

    files: list[int] = field(default_factory=list)
    directories: dict[str, None] = field(default_factory=dict)
    asides: list[tuple[str, str]] = field(default_factory=list)
    removals: list[str] = field(default_factory=list)
    closing: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.files or self.directories or self.asides or self.removals or self.closing)

    def sync_and_close(self, *handles: int) -> None:
        """These files are complete: have the next barrier sync them, and close them after."""
        self.files += handles
        self.closing += handles

    def freeze(self, active: tuple[int, ...], replacements: tuple[Replacement, ...]) -> Barrier:
        """All debts and the active files as one barrier; the debts are then empty."""
        barrier = Barrier(
            files=(*self.files, *active),
            directories=tuple(self.directories),
            replacements=replacements,
            asides=tuple(self.asides),
            removals=tuple(self.removals),
            closing=tuple(self.closing),
        )
        for pending_syncs in (self.files, self.directories, self.asides, self.removals, self.closing):
            pending_syncs.clear()
        return barrier

    def execute_files(self, fs: FileSystem) -> None:
        """Have the files alone paid now, and closed. Raises OSError; then nothing may be believed."""
        barrier = Barrier(files=tuple(self.files), closing=tuple(self.closing))
        self.files.clear()
        self.closing.clear()  # whatever it says, they are closed
        barrier.execute(fs)

    def execute(self, fs: FileSystem, outstanding: Barrier | None) -> None:
        """Have files and directories paid now, files closed. Raises OSError; nothing may be believed then.

        What takes names away is owed still: it comes after a pointer that is owed, too. Files that
        `outstanding`, a barrier on its way, has yet to sync stay open, and owed: the numbers of their handles
        must not become another file's.
        """
        busy = outstanding.files if outstanding is not None else ()
        closing = tuple(handle for handle in self.closing if handle not in busy)
        barrier = Barrier(files=tuple(self.files), directories=tuple(self.directories), closing=closing)
        self.files.clear()
        self.directories.clear()
        self.closing[:] = [handle for handle in self.closing if handle in busy]
        barrier.execute(fs)
