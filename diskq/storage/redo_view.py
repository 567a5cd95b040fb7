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
# the user has no right to) put the same into an overlay of the files. A writer may come at any time, and a
# reader may read on for days. So the overlay passes through (storage/overlay.py). It ends, for all files at
# once, when a writer has signed the lock file, which it does after its recovery, or when a data file has
# other bytes than the log, or is gone. From then on all files are shown as they are.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from diskq.errors import LockedError
from diskq.storage.barrier import let_go, opened, write_all
from diskq.storage.fs import FileSystem, Stamp
from diskq.storage.lock import Holder, is_held_briefly, locked_briefly, may_be_open, read_holder
from diskq.storage.log.replay import Redone, RedoSource, is_part_of, missing_size, replay_redo
from diskq.storage.overlay import OverlayFS
from diskq.storage.state import LastWriter, StateFiles, read_state, redo_named_by

__all__ = [
    "Complete",
    "LoggedFiles",
    "RedoLook",
    "Restored",
    "as_replayed",
    "as_shown",
    "as_written",
    "difference",
    "look_at_redo",
]


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


@dataclass(frozen=True, slots=True)
class RedoLook:
    """A redo log after a power cut, and what its replay would do."""

    fs: FileSystem
    """The files as they are after the replay."""
    redone: Redone
    restored: tuple[Restored, ...] = ()
    """What is put into the files, in the order of their paths."""


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
            _put(fs, now.restored)
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
    return bool(named) and (named > 0 or bool(fs.size_of(files.redo)))


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
    return RedoLook(as_written(fs, files, restored), redone, restored)


def as_written(fs: FileSystem, files: LoggedFiles, restored: Sequence[Restored]) -> OverlayFS:
    """Return the files with what the log has for them, until a writer has come."""
    unchanged = _Unchanged(fs, files.lock, restored)
    view = OverlayFS(fs)
    with contextlib.suppress(FileNotFoundError):  # a writer has just come
        _put(view, restored)
    view.pass_through(unchanged.is_over)
    return view


def _put(fs: FileSystem, restored: Iterable[Restored]) -> None:
    """Put into the files what they lack: data, then what is beside it. Raises OSError."""
    for its in sorted(restored, key=lambda its: not its.is_data):
        with opened(fs, its.path, write=True, create=not its.is_data) as handle:
            write_all(fs, handle, its.content, its.start)


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
    return Restored(path, start, content, missing_size(there, content))


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


class _Unchanged:
    """Looks whether a store is still as it was left."""

    def __init__(self, fs: FileSystem, lock: str, restored: Iterable[Restored]) -> None:
        self._fs = fs
        self._lock = lock
        self._data = [each for each in restored if each.is_data]
        self._seen = {path: self._look(path) for path in (lock, *(each.path for each in self._data))}

    def _look(self, path: str) -> tuple[Stamp | None, int | None]:
        return self._fs.stamp_of(path), self._fs.size_of(path)

    def is_over(self) -> bool:
        """True if a writer has signed the lock file since, or data has other bytes than the log."""
        return self._look(self._lock) != self._seen[self._lock] or any(map(self._is_other, self._data))

    def _is_other(self, its: Restored) -> bool:
        """True if other bytes are in the place of the data, or in another file of that name, or none."""
        now, before = self._look(its.path), self._seen[its.path]
        if now == before:
            return False
        self._seen[its.path] = now
        (stamp, size), was = now, before[0]
        if stamp is None or size is None or (was is not None and stamp.file != was.file) or size < its.start:
            return True
        return not _is_free(self._fs, its)
