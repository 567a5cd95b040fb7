# Groups: readers who share the partitions of a stream, and remember together how far they have come.
# Law: a partition has one reader of a group at a time, and the next one takes over when he is gone.
#
# A claim is a lock file of ours that ends with its process. go-diskq's groups know no claims: one of
# them at work on the same partitions at the same time writes into a marker that we have replaced, or
# over ours. One after the other is fine.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diskq.engine.log.committed_offset import FoundOffset, raising_disk_full
from diskq.engine.stream.committed_offset import GroupOffset, read_offset
from diskq.engine.stream.files import StreamFiles
from diskq.errors import GroupNameError, LockedError, StreamNotFoundError
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of
from diskq.storage.lock import Lock
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
        size = len(name.encode("utf-8", "surrogateescape"))  # as a listing tells a name that is not UTF-8
    except UnicodeEncodeError:
        raise GroupNameError(name, "it cannot be encoded") from None
    if size > _LONGEST_NAME:
        raise GroupNameError(name, f"it is {size} bytes long, at most {_LONGEST_NAME} fit a directory's name")


# --- a group --------------------------------------------------------------------------------------


class Claim:
    """The right to process a partition for a group, until `release` or the end of the process."""

    def __init__(self, lock: Lock, partition: int) -> None:
        self._lock = lock
        self.partition = partition

    def release(self) -> None:
        """Idempotent. Close the partition's marker first: the next one who claims it reads it."""
        self._lock.release()


class ConsumerGroup:
    """Readers who share the partitions of a stream, in as many processes as they like."""

    def __init__(self, fs: FileSystem, files: StreamFiles, name: str) -> None:
        """Join the group, or found it.

        Raises GroupNameError, StreamNotFoundError; DiskFullError where a new group finds no room; OSError.
        """
        check_group_name(name)
        if fs.size_of(files.parts) is None:
            raise StreamNotFoundError(files.path, "there is no stream here")
        self._fs = fs
        self._files = files
        self.name = name
        private = files.private_group(name)
        with raising_disk_full(private):
            for path in (files.groups, files.group(name), files.private, directory_of(private), private):
                fs.make_directory(path)

    def claim(self, partition: int) -> Claim | None:
        """Have the partition to ourselves; None where another reader of the group has it.

        Raises DiskFullError where a claim that nobody ever had finds no room; OSError.
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
            # On a full disk nobody can read who has it; that decides nothing.
            if failure.errno not in FULL_DISK_ERRNOS:
                lock.release()
                raise
        return Claim(lock, partition)

    def committed_offset(
        self,
        partition: int,
        *,
        sync_every: int = 2500,
        sync_timeout: float = 2.0,
        clock: Callable[[], float] | None = None,
    ) -> GroupOffset:
        """The group's place in a partition that was claimed. Raises as `OffsetMarker`."""
        return GroupOffset(
            self._fs,
            self._files,
            self.name,
            partition,
            sync_every=sync_every,
            sync_timeout=sync_timeout,
            clock=clock,
        )

    def offsets(self) -> GroupOffsets:
        """How far the group has come, as its markers say now. Raises OSError."""
        return _offsets(self._fs, self._files, self.name)


# --- all groups -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """How far a group has come."""

    name: str
    offsets: dict[int, int | None]
    """By partition that it reads, the last offset that was processed; None: none yet."""
    repairs: tuple[Repair, ...]
    """Markers that were not believed."""


def groups(fs: FileSystem, files: StreamFiles) -> list[GroupOffsets]:
    """The groups of a stream that read any of it, diskq's and go-diskq's alike, by name. Raises OSError."""
    found = [_offsets(fs, files, name) for name in sorted(_names(fs, files))]
    return [group for group in found if group.offsets]


def slowest(fs: FileSystem, files: StreamFiles, partition: int) -> int | None:
    """The first offset of the partition that some group has yet to process; None where no group reads it.

    Raises OSError: what is not known to be processed must be kept.
    """
    found = _found(fs, files, partition)
    return min((0 if mark.offset is None else mark.offset + 1 for mark in found), default=None)


def furthest(fs: FileSystem, files: StreamFiles, partition: int, most: int) -> int:
    """The offset behind the last one of the partition that some group has processed; 0 where none has.

    A marker that says more than `most` counts only where its shadow copy says so too. Raises OSError.
    """
    offsets = (
        mark.offset + 1
        for mark in _found(fs, files, partition)
        if mark.offset is not None and (mark.has_shadow or mark.offset < most)
    )
    return max(offsets, default=0)


def _found(fs: FileSystem, files: StreamFiles, partition: int) -> list[FoundOffset]:
    """The partition's markers, of all groups that read it."""
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
    """What may be groups; to go-diskq a name with slashes is one too, and lies that much deeper."""
    try:
        names = fs.list_directory(files.group(above))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        yield above + name
        yield from _names(fs, files, f"{above}{name}/")
