# A redo log that a crash has left, for those who open a store without its lock. Law: the first one that may
# write puts into the files what they lack, under the lock, and lets go; nobody else needs to know the log.
#
# After a power cut a part of the messages that were synced is in the redo log alone. A reader does not wait
# for a writer: it writes to the files what a replay would put there, and nothing more. The log stays, and the
# state names it. So the next open finds what it would find after an open that was killed after its replay: it
# compares the log with the files again, repairs and reports what it finds, syncs, and only then drops the
# log. That is why the reader syncs nothing, and may be killed at any step.
#
# Tools, which change nothing, and a reader that may not write (the disk is mounted read-only, or is full, or
# the user has no right to) see the files through a view, as they are after the replay. A writer may come at
# any time, and a reader may read on for days. So the view ends, for all files at once, when a writer has
# signed the lock file, which it does after its recovery, or when a data file has other bytes than the log, or
# is gone. From then on all files are shown as they are.

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from diskq.errors import LockedError
from diskq.storage.barrier import let_go, opened, write_all
from diskq.storage.file_watch import FileWatch
from diskq.storage.fs import FileSystem, Identity, Stamp, base_name, directory_of
from diskq.storage.lock import Holder, is_held_briefly, locked_briefly, may_be_open, read_holder
from diskq.storage.log.replay import Redone, RedoSource, is_part_of, replay_redo
from diskq.storage.numbered_files import names_in
from diskq.storage.overlay import OverlayFS
from diskq.storage.state import LastWriter, StateFiles, read_state, redo_named_by

__all__ = [
    "Complete",
    "LoggedFiles",
    "RedoLook",
    "RedoView",
    "Restored",
    "as_replayed",
    "as_shown",
    "difference",
    "look_at_redo",
]

# Far from any file descriptor: handles of files that exist in the view alone.
_FIRST_HANDLE = 1 << 30


class LoggedFiles(StateFiles, Protocol):
    """The paths of a store with a redo log."""

    @property
    def redo(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Restored:
    """Bytes of a file that are in the redo log, and not in the file, or not all of them."""

    path: str
    start: int
    content: bytes
    missing: int
    """How many of them, at the end, are not in the file."""
    is_data: bool = False
    """True if it is a data file, and not one beside it."""

    @property
    def end(self) -> int:
        """The byte after them."""
        return self.start + len(self.content)


@dataclass(frozen=True, slots=True)
class RedoLook:
    """A redo log after a power cut, and what its replay would do."""

    fs: FileSystem
    """The files as they are after the replay."""
    redone: Redone
    restored: tuple[Restored, ...] = ()
    """What is put into the files, in the order of their paths."""

    @property
    def waiting(self) -> int:
        """Bytes of messages that are in the redo log, and not in the files."""
        displaced = sum(len(its.part.content) for its in self.redone.displaced)
        return displaced + sum(its.missing for its in self.restored if its.is_data)

    @property
    def in_order(self) -> list[Restored]:
        """What is put into the files: data, then what is beside it."""
        return sorted(self.restored, key=lambda its: not its.is_data)


SourceOf = Callable[[Holder | None], RedoSource]
"""Called with the holder that the lock file names."""

Complete = Callable[[FileSystem, Redone, tuple[Restored, ...]], tuple[Restored, ...]]
"""Adds what an open makes of restored messages. It is called with the files after the replay, and may change
them."""


def as_replayed(
    fs: FileSystem,
    files: LoggedFiles,
    source: SourceOf,
    complete: Complete | None = None,
) -> FileSystem:
    """Return the files of a store with what is in its redo log alone, for a reader.

    Usually `fs` itself: what the files lacked is put into them now, if no process has the store open. Where
    that cannot be done they are shown as they are after it. `source` is called only after a crash. Raises
    UnsupportedFormatError for a log of another format version; OSError.
    """
    if not fs.size_of(files.redo):
        return fs
    look = look_at_redo(fs, files, source, complete)
    if look is None or not look.restored:
        return fs
    try:
        with locked_briefly(fs, files.lock, files.redo) as is_locked:
            if not is_locked:
                return look.fs
            now = _replayed(fs, files, source, complete)
            if now is None:
                return fs
            # Other bytes are kept aside before they are written over, and reported: by an open.
            if now.redone.displaced or not all(_is_free(fs, its) for its in now.restored):
                return now.fs
            for its in now.in_order:
                with opened(fs, its.path, write=True, create=not its.is_data) as handle:
                    write_all(fs, handle, its.content, its.start)
    except LockedError:
        return fs  # a writer has come: its open replays the log
    except OSError:
        return look.fs
    return fs


def look_at_redo(
    fs: FileSystem,
    files: LoggedFiles,
    source: SourceOf,
    complete: Complete | None = None,
) -> RedoLook | None:
    """Return what the next open will do with the redo log; None if it does nothing, or the store is open.

    Nothing is changed. Raises as `as_replayed`.
    """
    if not _is_needed(fs, files, read_state(fs, files)):
        return None
    if may_be_open(fs, files.lock) and not is_held_briefly(fs, files.redo):
        return None
    return _replayed(fs, files, source, complete)


def as_shown(fs: FileSystem, look: RedoLook | None) -> FileSystem:
    """Return the files after the replay, for a tool: nothing is changed."""
    return fs if look is None else look.fs


def _is_needed(fs: FileSystem, files: LoggedFiles, left: LastWriter | None) -> bool:
    named = redo_named_by(left)
    return bool(named) and (named > 0 or bool(fs.size_of(files.redo))) and not _shows(fs, files.redo)


def _replayed(
    fs: FileSystem, files: LoggedFiles, source: SourceOf, complete: Complete | None
) -> RedoLook | None:
    """Replay the log in memory; None if it is not needed, or is no longer: a writer may just have gone."""
    left = read_state(fs, files)
    if not _is_needed(fs, files, left):
        return None
    its = source(read_holder(fs, files.lock))
    was_displaced = left is not None and left.is_displaced
    with OverlayFS(fs) as overlay:
        redone = replay_redo(overlay, files.redo, its, named=redo_named_by(left), was_displaced=was_displaced)
        restored = tuple(_restored(fs, overlay, redone))
        if complete is not None and redone.in_place:
            restored = complete(overlay, redone, restored)
    return RedoLook(RedoView(fs, files, restored), redone, restored)


def _shows(fs: FileSystem, log: str) -> bool:
    """True if the files are seen through a view of this log."""
    while isinstance(fs, RedoView | OverlayFS):
        if isinstance(fs, RedoView) and fs.log == log:
            return True
        fs = fs.below
    return False


def _restored(fs: FileSystem, after: FileSystem, redone: Redone) -> Iterator[Restored]:
    """Yield what the files lack. `after` are the files after the replay."""
    parts: dict[str, list[tuple[int, int]]] = {}  # by path: where their bytes begin and end
    data = {its.data for its in redone.in_place}
    for its in redone.in_place:
        parts.setdefault(its.data, []).append((its.position, its.position + len(its.content)))
        if its.checksums:
            end = its.checksums_at + len(its.checksums)
            parts.setdefault(its.checksum_file, []).append((its.checksums_at, end))
    for path, places in sorted(parts.items()):
        start, end = min(start for start, _ in places), max(end for _, end in places)
        restored = difference(fs, path, start, _content(after, path, end - start, start))
        if restored is not None:
            yield replace(restored, is_data=path in data)


def difference(fs: FileSystem, path: str, start: int, content: bytes) -> Restored | None:
    """Return what the file at `path` lacks of `content`, which belongs at byte `start`; None: nothing.

    Raises OSError.
    """
    there = _content(fs, path, len(content), start)
    if there == content:
        return None
    return Restored(path, start, content, len(content) - _common(there, content))


def _is_free(fs: FileSystem, its: Restored) -> bool:
    """True if the file has nothing in this place but a part of these bytes."""
    return is_part_of(_content(fs, its.path, len(its.content), its.start), its.content)


def _content(fs: FileSystem, path: str, size: int, start: int) -> bytes:
    """Return bytes of a file; none if it does not exist."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return b""
    try:
        return fs.pread(handle, size, start)
    finally:
        let_go(fs, handle)


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes at their beginning are the same."""
    if other.startswith(one):
        return len(one)
    return next(at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)


class RedoView:
    """The files below, some of them with another end. What is written through it goes to the files below."""

    native = False

    def __init__(self, below: FileSystem, files: LoggedFiles, restored: Iterable[Restored]) -> None:
        """`files` are those of the store."""
        self._below = self.below = below
        self.log = files.redo
        self._lock = files.lock
        self._shown = {each.path: each for each in restored}
        self._data = [each for each in self._shown.values() if each.is_data]
        self._is_over = False
        self._seen = {path: self._look(path) for path in (self._lock, *(each.path for each in self._data))}
        self._in_directory: dict[str, list[str]] = {}  # their paths
        for path in self._shown:
            self._in_directory.setdefault(directory_of(path), []).append(path)
        self._handles: dict[int, Restored] = {}
        self._real: dict[int, int] = {}  # handles below of those that began without one
        self._next = _FIRST_HANDLE

    def _look(self, path: str) -> tuple[Stamp | None, int | None]:
        return self._below.stamp_of(path), self._below.size_of(path)

    def _now(self, its: Restored | None) -> Restored | None:
        """Return it if it is still to be shown."""
        if its is None or self._is_over:
            return None
        self._is_over = self._look(self._lock) != self._seen[self._lock] or any(
            map(self._is_other, self._data)
        )
        return None if self._is_over else its

    def _is_other(self, its: Restored) -> bool:
        """True if other bytes are in the place of the data, or in another file of that name, or none."""
        now, before = self._look(its.path), self._seen[its.path]
        if now == before:
            return False
        self._seen[its.path] = now
        (stamp, size), was = now, before[0]
        if stamp is None or size is None or (was is not None and stamp.file != was.file) or size < its.start:
            return True
        return not _is_free(self._below, its)

    def _at(self, path: str) -> Restored | None:
        return self._now(self._shown.get(path))

    def _on(self, handle: int) -> Restored | None:
        return self._now(self._handles.get(handle))

    def _handle(self, handle: int) -> int:
        """Return the handle below; -1 if there is no file yet."""
        if handle < _FIRST_HANDLE or handle not in self._handles:
            return handle
        if handle not in self._real:
            path = self._handles[handle].path
            if self._below.size_of(path) is None:
                return -1
            self._real[handle] = self._below.open(path)
        return self._real[handle]

    # --- files that are shown with another end ----------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        shown = None if write or create else self._at(path)
        if shown is not None and self._below.size_of(path) is None:
            self._next += 1
            self._handles[self._next] = shown
            return self._next
        handle = self._below.open(path, write=write, create=create, exclusive=exclusive)
        if shown is not None:
            self._handles[handle] = shown
        return handle

    def close(self, handle: int) -> None:
        shown = self._handles.pop(handle, None)
        if shown is None or handle < _FIRST_HANDLE:
            self._below.close(handle)
        elif handle in self._real:
            self._below.close(self._real.pop(handle))

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        shown = self._on(handle)
        below = self._handle(handle)
        data = b"" if below < 0 else self._below.pread(below, size, offset)
        if shown is None:
            return data
        start, end = max(offset, shown.start), min(offset + size, shown.end)
        if start >= end or len(data) < start - offset:
            return data
        new = shown.content[start - shown.start : end - shown.start]
        return data[: start - offset] + new + data[end - offset :]

    def size(self, handle: int) -> int:
        shown = self._on(handle)
        below = self._handle(handle)
        size = 0 if below < 0 else self._below.size(below)
        return size if shown is None else max(size, shown.end)

    def has_name(self, handle: int) -> bool:
        below = self._handle(handle)
        return below < 0 or self._below.has_name(below)

    def list_directory(self, path: str) -> list[str]:
        return self._with_new(path, self._below.list_directory(path))

    def names_in(self, directory: str, prefix: str) -> list[str]:
        """Return the names in the directory that begin with `prefix`. Raises OSError."""
        names = self._with_new(directory, names_in(self._below, directory, prefix))
        return [name for name in names if name.startswith(prefix)]

    def _with_new(self, path: str, names: list[str]) -> list[str]:
        """Add the names of files that exist here alone."""
        if path not in self._in_directory:
            return names
        there = set(names)
        more = [new for new in self._in_directory[path] if base_name(new) not in there]
        return names + [base_name(new) for new in more if self._at(new)]

    def size_of(self, path: str) -> int | None:
        shown = self._at(path)
        size = self._below.size_of(path)
        return size if shown is None else max(size or 0, shown.end)

    def is_link(self, path: str) -> bool:
        return self._below.is_link(path)

    # --- everything else --------------------------------------------------------------------------

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        return self._below.pwrite(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._below.truncate(handle, size)

    def share_memory(self, handle: int, size: int) -> memoryview:
        return self._below.share_memory(handle, size)

    def sync_files(self, handles: Sequence[int]) -> None:
        self._below.sync_files(handles)

    def sync_directory(self, path: str) -> None:
        self._below.sync_directory(path)

    def sync_file_system(self, handle: int) -> None:
        self._below.sync_file_system(handle)

    def rename(self, source: str, target: str) -> None:
        self._below.rename(source, target)

    def link(self, source: str, target: str) -> bool:
        return self._below.link(source, target)

    def unlink(self, path: str) -> None:
        self._below.unlink(path)

    def make_directory(self, path: str) -> bool:
        return self._below.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self._below.remove_directory(path)

    def stamp_of(self, path: str) -> Stamp | None:
        return self._below.stamp_of(path)

    def place_of(self, path: str) -> Hashable:
        return self._below.place_of(path)

    def device_of(self, path: str) -> Hashable:
        return self._below.device_of(path)

    def open_watch(self) -> FileWatch | None:
        return self._below.open_watch()

    def try_lock(self, handle: int) -> bool:
        return self._below.try_lock(handle)

    def is_locked(self, handle: int, owner: Identity) -> bool | None:
        return self._below.is_locked(handle, owner)

    def identity(self) -> Identity:
        return self._below.identity()

    def monotonic(self) -> float:
        return self._below.monotonic()

    def wall_clock(self) -> float:
        return self._below.wall_clock()

    def unique_number(self) -> int:
        return self._below.unique_number()
