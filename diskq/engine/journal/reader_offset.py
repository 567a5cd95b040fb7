# The committed offset of a journal's reader. Law: messages that were committed durably are not read again,
# others are never skipped; and an impossible offset is corrected, and reported.
#
# `ofs/<name>.ofs` is sej's: 8 bytes, big endian, the offset that is read next; no bytes while there is none.
# `ofs/<name>.lck` is locked by the process that moves it. Both are made by a process that will move the
# offset; a process that only looks makes nothing. How rot is distinguished from a peer's commit, and how the
# file is replaced, is in log/committed_offset.py.

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from diskq.engine.journal.files import JournalFiles, checked_offset_name
from diskq.engine.journal.reader import JournalReader
from diskq.engine.log.committed_offset import CommittedOffset, FoundOffset, OffsetFile, read_committed_offset
from diskq.errors import LockedError, ReaderNameError
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.lock import Lock
from diskq.storage.numbered_files import listed_as, told_apart
from diskq.storage.repairs import Repair, RepairKind

__all__ = [
    "JournalCommittedOffset",
    "JournalReaderInfo",
    "JournalReaderOffset",
    "read_journal_offset",
    "read_journal_offsets",
    "set_back",
]

_STARTS = ("oldest", "newest")


@dataclass(frozen=True, slots=True)
class JournalReaderInfo:
    """A named reader of a journal, as another process sees it."""

    name: str
    offset: int | None
    """The offset that it reads next; None if it has committed none."""
    repair: Repair | None
    """What is wrong with the file's offset, if another one is returned instead."""


def _place_of(files: JournalFiles, name: str) -> OffsetFile:
    return OffsetFile(
        path=files.offset(name),
        shadow=files.offset_shadow(name),
        temporary=files.offset_temporary(name),
        leftovers=lambda: files.offset_leftovers(name),
        above=(files.path, files.private, files.private_offsets, files.offsets),
        byte_order="big",
    )


def _clamped(found: FoundOffset, path: str, first: int, next_offset: int) -> tuple[int | None, Repair | None]:
    """Return the offset, limited to the journal's range, and what was wrong with it."""
    offset = found.offset
    if offset is None or first <= offset <= next_offset:
        return offset, found.repair
    nearest = min(max(offset, first), next_offset)
    reason = f"it says {offset}, the journal has {first} to {next_offset}; {nearest} is the nearest"
    return nearest, Repair(path=path, kind=RepairKind.REBUILT, kept=0, dropped=0, reason=reason)


class JournalCommittedOffset(CommittedOffset):
    """A named reader's offset with what a loop calls: `JournalReaderOffset` is what a program opens."""

    def __init__(
        self,
        path: AnyPath,
        name: str,
        start: Literal["oldest", "newest"] = "oldest",
        *,
        sync_every: int = 2500,
        sync_timeout: float = 2.0,
        fs: FileSystem | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Continue where the reader of that name left off, or begin at `start` if it is new.

        `offset` is that place. `commit` syncs after `sync_every` messages (1: each time), or `sync_timeout`
        seconds after the first. `repairs` lists what was wrong with the offset.
        Raises NotFoundError, ReaderNameError, LockedError if another process has it, DiskFullError and
        OSError.
        """
        if start not in _STARTS:
            raise ValueError(f"start is one of {', '.join(_STARTS)}, got {start!r}")
        fs = fs or OsFileSystem()
        self.name = checked_offset_name(name)
        files = JournalFiles(fs, as_path(path))
        for its in (files.offset(name), files.offset_lock(name)):
            if (other := listed_as(fs, its)) is not None:
                raise ReaderNameError(name, told_apart(f"reader {other.rpartition('.')[0]!r}"))
        with JournalReader(path, fs=fs) as reader:
            first = reader.first_offset()
            for directory in (files.private, files.private_offsets, files.offsets):
                fs.make_directory(directory)
            self._lock = Lock(fs, files.offset_lock(name), f"offset {name!r} of {files.path}")
            with contextlib.ExitStack() as opened:  # all is undone if a step fails
                opened.callback(self._lock.release)
                self._lock.sign()
                super().__init__(
                    fs, _place_of(files, name), sync_every=sync_every, sync_timeout=sync_timeout, clock=clock
                )
                opened.callback(self.abandon)
                next_offset = reader.next_offset()
                self._begin(first, next_offset, start)
                opened.pop_all()

    def _begin(self, first: int, next_offset: int, start: str) -> None:
        """Set an offset that the journal has. It is durable before it is used, if it is not the file's."""
        if self.committed is None:
            # Without a commit, "newest" would be later the next time, and messages between would be skipped.
            self.offset = first
            if start == "newest":
                self.commit_to(next_offset)
                self.sync()
            return
        repair = self.repairs[0] if self.repairs else None
        offset, repair = _clamped(
            FoundOffset(self.committed, None, False, repair, self.durable), self.path, first, next_offset
        )
        assert offset is not None
        if offset != self.committed:
            assert repair is not None
            self.repairs += (repair,)
            self.commit_to(offset, seek=True)
            self.sync()
        self.offset = offset

    def commit_to(self, offset: int, *, seek: bool = False) -> None:
        """Commit all messages before `offset`, which is read next. Durable with the next sync, maybe now.

        It moves forward only, unless `seek`. Raises as `CommittedOffset.commit`.
        """
        self.offset = offset if seek else max(offset, self.committed or 0)
        self.commit(offset, seek=seek)

    def close(self) -> None:
        """Sync, and release the offset; the lock's file stays. Idempotent. Raises as `sync`."""
        try:
            super().close()
        finally:
            self._lock.release()

    def _let_go_dropped(self) -> None:
        super()._let_go_dropped()
        self._lock.release()


class JournalReaderOffset(Closing):
    """A named reader's offset: the one that it reads next. For one thread, and one process, at a time."""

    def __init__(
        self,
        path: AnyPath,
        reader: str,
        start: Literal["oldest", "newest"] = "oldest",
        *,
        sync_every: int = 2500,
        sync_timeout: float = 2.0,
        fs: FileSystem | None = None,
    ) -> None:
        """Continue where `reader` left off, or begin at `start` if it is new.

        `commit` syncs after `sync_every` messages (1: each time), or `sync_timeout` seconds after the first.
        Raises NotFoundError, ReaderNameError, LockedError if another process has it, DiskFullError and
        OSError.
        """
        self._committed = JournalCommittedOffset(
            path, reader, start, sync_every=sync_every, sync_timeout=sync_timeout, fs=fs
        )

    @property
    def reader(self) -> str:
        """The reader's name."""
        return self._committed.name

    @property
    def offset(self) -> int:
        """The offset that is read next."""
        return self._committed.offset

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was wrong with the offset when it was opened."""
        return self._committed.repairs

    def commit(self, offset: int, *, seek: bool = False) -> None:
        """Commit all messages before `offset`, which is read next. Durable with the next sync, maybe now.

        It moves forward only, unless `seek`. Raises TypeError and ValueError for what is no offset,
        StorageFailedError, and ValueError if it is closed.
        """
        self._committed.commit_to(offset, seek=seek)

    def sync(self) -> None:
        """Return once all that was committed is durable. Raises StorageFailedError, DiskFullError."""
        self._committed.sync()

    def close(self) -> None:
        """Sync, and release the offset. Idempotent. Raises as `sync`."""
        self._committed.close()


def read_journal_offset(
    path: AnyPath, reader: str, *, fs: FileSystem | None = None, next_offset: int | None = None
) -> JournalReaderInfo | None:
    """Return a reader's offset, also while the reader is active; None if there is no such reader.

    `next_offset` is the journal's, if the caller knows it: finding it takes a walk. Makes no file.
    Raises NotFoundError, ReaderNameError, OSError.
    """
    fs = fs or OsFileSystem()
    files = JournalFiles(fs, as_path(path))
    place = _place_of(files, checked_offset_name(reader))
    with JournalReader(path, fs=fs) as journal:
        first = journal.first_offset()
        found = read_committed_offset(fs, place)
        if found is None:
            return None
        # Read last: an active reader is then not beyond the end.
        end = journal.next_offset() if next_offset is None else next_offset
        return JournalReaderInfo(reader, *_clamped(found, place.path, first, end))


def read_journal_offsets(
    path: AnyPath, *, fs: FileSystem | None = None, next_offset: int | None = None
) -> list[JournalReaderInfo]:
    """Return the offsets of all readers, sorted by name."""
    fs = fs or OsFileSystem()
    files = JournalFiles(fs, as_path(path))
    found = [read_journal_offset(path, name, fs=fs, next_offset=next_offset) for name in files.offset_names()]
    return [each for each in found if each is not None]


def set_back(fs: FileSystem, files: JournalFiles, next_offset: int) -> list[Repair]:
    """Set back readers that are beyond the next offset. For recovery, before offsets are assigned again.

    A power cut has taken messages that were read and not synced; a reader of these would skip the messages
    that replace them. An active reader corrects its own offset. Raises OSError.
    """
    repairs = []
    for name in files.offset_names():
        place = _place_of(files, name)
        found = read_committed_offset(fs, place)
        if found is None or found.offset is None or found.offset <= next_offset:
            continue
        try:
            lock = Lock(fs, files.offset_lock(name), name)
        except LockedError:
            continue
        try:
            fs.make_directory(files.private_offsets)
            reason = f"it says {found.offset}, and {next_offset} is the next one; it is set back"
            with CommittedOffset(fs, place) as committed_offset:
                committed_offset.commit(next_offset, seek=True)
            repairs.append(Repair(path=place.path, kind=RepairKind.REBUILT, kept=0, dropped=0, reason=reason))
        finally:
            lock.release()
    return repairs
