# Consumer groups: readers that share the partitions of a stream, and commit offsets together. Law: a
# partition has one reader of a group at a time, and another reader takes over when that one ends.
#
# A claim is a private lock file that is released with its process. go-diskq's groups have no claims: a
# go-diskq reader of the same partition at the same time writes into a file that diskq has replaced, or
# overwrites diskq's. One after the other is fine.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diskq.engine.log.committed_offset import FoundOffset, raising_disk_full
from diskq.engine.stream.committed_offset import GroupOffset, read_offset
from diskq.engine.stream.files import StreamFiles
from diskq.errors import GroupNameError, LockedError, NotFoundError
from diskq.storage.closing import Dropped
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of
from diskq.storage.lock import Lock, read_holder
from diskq.storage.numbered_files import listed_as, told_apart
from diskq.storage.repairs import Repair

__all__ = ["Claim", "ConsumerGroup", "GroupOffsets", "check_group_name", "furthest", "groups", "slowest"]

_LONGEST_NAME = 255  # bytes of a directory's name


def check_group_name(name: str) -> None:
    """Raises GroupNameError unless `name` can be the name of a directory, here and for go-diskq."""
    if not isinstance(name, str):
        raise TypeError(f"a group's name is a str, not {type(name).__name__}")
    if not name:
        raise GroupNameError(name, "it is empty")
    if "/" in name or name.startswith("."):
        raise GroupNameError(name, "it may not contain '/' nor begin with '.'")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise GroupNameError(name, "it may not contain NUL, newlines or other control characters")
    try:
        size = len(name.encode("utf-8", "surrogateescape"))  # as a listing has a name that is not UTF-8
    except UnicodeEncodeError:
        raise GroupNameError(name, "it cannot be encoded") from None
    if size > _LONGEST_NAME:
        raise GroupNameError(name, f"it is {size} bytes long, at most {_LONGEST_NAME} fit a directory's name")


# --- a group --------------------------------------------------------------------------------------


class Claim(Dropped):
    """The right to process a partition for a group, until `release` or the end of the process."""

    def __init__(self, fs: FileSystem, lock: Lock, partition: int) -> None:
        self._fs = fs
        self._lock = lock
        self.partition = partition

    def release(self) -> None:
        """Release the claim. Idempotent. Close the committed offset first: the next claimant reads it."""
        self._lock.release()

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        return (self._fs, f"claim in {self._lock.path}") if self._lock.handle >= 0 else None

    def _let_go_dropped(self) -> None:
        self.release()


class ConsumerGroup:
    """Readers that share the partitions of a stream, in any number of processes."""

    def __init__(self, fs: FileSystem, files: StreamFiles, name: str) -> None:
        """Join the group, or create it.

        Raises GroupNameError, NotFoundError, OSError; DiskFullError if a new group finds no space.
        """
        check_group_name(name)
        if not files.exist():
            raise NotFoundError("stream", files.path, "there is no stream here")
        self._fs = fs
        self._files = files
        self.name = name
        if (other := listed_as(fs, files.group(name))) is not None:
            raise GroupNameError(name, told_apart(f"group {other!r}"))
        private = files.private_group(name)
        with raising_disk_full(private):
            for path in (files.groups, files.group(name), files.private, directory_of(private), private):
                fs.make_directory(path)

    def claim(self, partition: int) -> Claim | None:
        """Claim the partition exclusively; None if another reader of the group has it.

        Raises DiskFullError if there is no space for a new claim file; OSError.
        """
        path = self._files.claim(self.name, partition)
        try:
            with raising_disk_full(path):
                lock = Lock(self._fs, path, f"partition {partition} for group {self.name!r}")
        except LockedError:
            return None
        try:
            lock.sign()
        except OSError as failure:
            # On a full disk the holder's name is missing from the file; the lock holds all the same.
            if failure.errno not in FULL_DISK_ERRNOS:
                lock.release()
                raise
        return Claim(self._fs, lock, partition)

    def committed_offset(
        self,
        partition: int,
        *,
        sync_every: int = 2500,
        sync_timeout: float = 2.0,
        clock: Callable[[], float] | None = None,
    ) -> GroupOffset:
        """Open the group's committed offset in a claimed partition. Raises as `GroupOffset`."""
        return GroupOffset(
            self._fs,
            self._files,
            self.name,
            partition,
            sync_every=sync_every,
            sync_timeout=sync_timeout,
            clock=clock,
        )

    @property
    def path(self) -> str:
        """The stream's path."""
        return self._files.path

    def now(self) -> float:
        """Return the seconds by which members measure how long they wait."""
        return self._fs.monotonic()

    def holder(self, partition: int) -> str:
        """Return who has claimed the partition, for people. Raises OSError."""
        return str(read_holder(self._fs, self._files.claim(self.name, partition)) or "another process")

    def offsets(self) -> GroupOffsets:
        """Return the group's committed offsets as they are now. Raises OSError."""
        return _offsets(self._fs, self._files, self.name)


# --- all groups -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The committed offsets of a group."""

    name: str
    offsets: dict[int, int | None]
    """By partition that the group reads, the last offset that was processed; None: none yet."""
    repairs: tuple[Repair, ...]
    """Offset files that were not believed."""


def groups(fs: FileSystem, files: StreamFiles) -> list[GroupOffsets]:
    """Return the groups that read any partition, diskq's and go-diskq's alike, by name. Raises OSError."""
    found = [_offsets(fs, files, name) for name in sorted(_names(fs, files))]
    return [group for group in found if group.offsets]


def slowest(fs: FileSystem, files: StreamFiles, partition: int) -> int | None:
    """Return the first offset of the partition that some group has yet to process; None if no group reads it.

    Raises OSError: messages that are not known to be processed must be kept.
    """
    found = _found(fs, files, partition)
    return min((0 if mark.durable is None else mark.durable + 1 for mark in found), default=None)


def furthest(fs: FileSystem, files: StreamFiles, partition: int, most: int) -> int:
    """Return the offset after the last one of the partition that any group has processed; 0 if none has.

    A committed offset of `most` or more counts only if its shadow copy agrees. Raises OSError.
    """
    offsets = (
        mark.offset + 1
        for mark in _found(fs, files, partition)
        if mark.offset is not None and (mark.has_shadow or mark.offset < most)
    )
    return max(offsets, default=0)


def _found(fs: FileSystem, files: StreamFiles, partition: int) -> list[FoundOffset]:
    """Return the committed offsets of all groups that read the partition."""
    readers = (name for name in _names(fs, files) if partition in files.committed_partitions(name))
    found = (read_offset(fs, files, name, partition) for name in readers)
    return [mark for mark in found if mark is not None]


def _offsets(fs: FileSystem, files: StreamFiles, name: str) -> GroupOffsets:
    marks = {
        partition: read_offset(fs, files, name, partition) for partition in files.committed_partitions(name)
    }
    found = {partition: mark for partition, mark in marks.items() if mark is not None}
    repairs = tuple(mark.repair for mark in found.values() if mark.repair is not None)
    return GroupOffsets(name, {partition: mark.offset for partition, mark in found.items()}, repairs)


def _names(fs: FileSystem, files: StreamFiles, above: str = "") -> Iterator[str]:
    """Yield possible group names. go-diskq allows slashes in a name, which lead to deeper directories."""
    try:
        names = fs.list_directory(files.group(above))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        yield above + name
        yield from _names(fs, files, f"{above}{name}/")
