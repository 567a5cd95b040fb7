# The replay of a redo log by those who open a store without its lock. Law: the first one that may write puts
# into the files what they lack, under the lock, and lets go; nobody else needs to know the log.
#
# After a power cut a part of the messages that were synced is in the redo log alone. A reader does not wait
# for a writer: it writes to the files what a replay would put there, and nothing more. The log stays, and the
# state names it. So the next open finds what it would find after an open that was killed after its replay: it
# compares the log with the files again, repairs and reports what it finds, syncs, and only then drops the
# log. That is why the reader syncs nothing, and may be killed at any step.
#
# Tools, which change nothing, and a reader that may not write (the disk is mounted read-only, or is full, or
# the user has no right to) see the files with the same (restored.py). A writer may come at any time, and a
# reader may read on for days. So that ends, for all files at once, when a writer has signed the lock file,
# which it does after its recovery, or when a data file has other bytes than the log, or is gone. From then on
# all files are shown as they are.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, cast

from diskq.errors import LockedError
from diskq.storage.barrier import let_go, opened, write_all
from diskq.storage.fs import FileSystem, Stamp
from diskq.storage.lock import Holder, is_held_briefly, locked_briefly, may_be_open, read_holder
from diskq.storage.log.replay import Redone, RedoSource, is_part_of, missing_size, replay_redo
from diskq.storage.log.restored import Restored, RestoredFiles
from diskq.storage.overlay import OverlayFS
from diskq.storage.state import LastWriter, StateFiles, read_state, redo_named_by

__all__ = ["LoggedFiles", "ReaderReplay", "RedoLook", "with_restored"]


class LoggedFiles(StateFiles, Protocol):
    """The paths of a store with a redo log."""

    @property
    def redo(self) -> str: ...


SourceOf = Callable[[Holder | None], RedoSource]
"""Called with the holder that the lock file names."""

Complete = Callable[[FileSystem, Redone], Iterable[str]]
"""Called with the files after the replay, in which it makes what an open makes of restored messages. Returns
the paths of the files that it has changed."""


class RedoLook(NamedTuple):
    """What the next open will do with a redo log."""

    fs: FileSystem
    """The files as they are after the replay, until a writer has come."""
    redone: Redone


class ReaderReplay:
    """The redo log of one store, for who has not its lock.

    The calls raise UnsupportedFormatError for a log of another format version; OSError.
    """

    def __init__(
        self, fs: FileSystem, files: LoggedFiles, source: SourceOf, complete: Complete = lambda *_: ()
    ) -> None:
        """`source` and `complete` are called only after a crash."""
        self._fs = fs
        self._files = files
        self._source = source
        self._complete = complete

    def files_to_read(self) -> FileSystem:
        """Return the files with what is in the redo log alone, for a reader.

        Usually they are those of the store: what they lacked is put into them now, if no process has it open.
        Where that cannot be done, the files are shown as they are after it.
        """
        fs, files = self._fs, self._files
        found = self._replayed() if self.is_due else None
        if found is None or not found[1]:
            return fs
        restored = found[1]
        try:
            with locked_briefly(fs, files.lock, files.redo) as is_locked:
                if not is_locked:
                    return with_restored(fs, files, restored)
                now = self._replayed()
                if now is None:
                    return fs
                redone, restored = now
                # Other bytes are kept aside before they are written over, and reported: by an open.
                if redone.displaced or not all(_is_free(fs, its) for its in restored):
                    return with_restored(fs, files, restored)
                _put(fs, restored)
        except LockedError:
            return fs  # a writer has come: its open replays the log
        except OSError:
            return with_restored(fs, files, restored)
        return fs

    def shown_files(self) -> FileSystem:
        """Return the files with what is in the redo log alone, for a tool: nothing is changed."""
        look = self.look()
        return self._fs if look is None else look.fs

    def look(self) -> RedoLook | None:
        """Return what the next open will do; None if it does nothing, or the store is open."""
        found = self._replayed() if self._is_left() else None
        if found is None:
            return None
        redone, restored = found
        return RedoLook(with_restored(self._fs, self._files, restored), redone)

    @property
    def is_due(self) -> bool:
        """True if a reader replays the log: it may have messages alone, and no process has the store open."""
        return bool(self._fs.size_of(self._files.redo)) and self._is_left()

    def _is_left(self) -> bool:
        """True if the last writer's log is needed, and no process has the store open."""
        fs, files = self._fs, self._files
        if not _is_needed(fs, files, read_state(fs, files)):
            return False
        return not may_be_open(fs, files.lock) or is_held_briefly(fs, files.redo)

    def _replayed(self) -> tuple[Redone, tuple[Restored, ...]] | None:
        """Replay the log in memory; None if it is not needed, or is no longer: a writer may just have gone.

        Returns also what the files lack, in the order of their paths.
        """
        fs, files = self._fs, self._files
        left = read_state(fs, files)
        if not _is_needed(fs, files, left):
            return None
        with OverlayFS(fs) as after:
            redone = replay_redo(
                after,
                files.redo,
                self._source(read_holder(fs, files.lock)),
                named=redo_named_by(left),
                was_displaced=left is not None and left.is_displaced,
            )
            restored = [*_restored(fs, after, redone)]
            if redone.in_place:
                beside = (_lacking(fs, after, path) for path in self._complete(after, redone))
                restored += (its for its in beside if its is not None)
        return redone, tuple(restored)


def _is_needed(fs: FileSystem, files: LoggedFiles, left: LastWriter | None) -> bool:
    named = redo_named_by(left)
    return bool(named) and (named > 0 or bool(fs.size_of(files.redo)))


def _restored(fs: FileSystem, after: FileSystem, redone: Redone) -> Iterator[Restored]:
    """Yield what the data files and their checksum files lack. `after` are the files after the replay."""
    parts: dict[str, list[tuple[int, int]]] = {}  # by path: where their bytes begin and end
    data = {its.data for its in redone.in_place}
    for its in redone.in_place:
        parts.setdefault(its.data, []).append((its.position, its.position + len(its.content)))
        if its.checksums:
            end = its.checksums_at + len(its.checksums)
            parts.setdefault(its.checksum_file, []).append((its.checksums_at, end))
    for path, places in sorted(parts.items()):
        end = max(end for _, end in places)
        start = min(fs.size_of(path) or 0, *(start for start, _ in places))  # without a hole
        content = _content(after, path, end - start, start)
        if content != _content(fs, path, end - start, start):
            yield Restored(path, start, content, is_data=path in data)


def _lacking(fs: FileSystem, after: FileSystem, path: str) -> Restored | None:
    """Return what one file lacks, without what it has; None: nothing."""
    size = after.size_of(path) or 0
    content = _content(after, path, size, 0)
    missing = missing_size(_content(fs, path, size, 0), content)
    return Restored(path, size - missing, content[size - missing :]) if missing else None


def with_restored(fs: FileSystem, files: LoggedFiles, restored: Iterable[Restored]) -> FileSystem:
    """Return the files with these bytes, until a writer has come. Nothing is changed. Raises OSError."""
    restored = tuple(restored)
    unchanged = _Unchanged(fs, files.lock, restored)
    if any(its.is_data and fs.size_of(its.path) is None for its in restored):
        restored = ()  # a writer has just come
    return cast(FileSystem, RestoredFiles(fs, restored, unchanged.is_over))


def _put(fs: FileSystem, restored: Iterable[Restored]) -> None:
    """Put into the files what they lack: data, then what is beside it. Raises OSError."""
    for its in sorted(restored, key=lambda its: not its.is_data):
        with opened(fs, its.path, write=True, create=not its.is_data) as handle:
            write_all(fs, handle, its.content, its.start)


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
