# How far a group has come in a partition. What is promised of it, and how it is written, is
# log/committed_offset.py's.

from __future__ import annotations

from collections.abc import Callable

from diskq.engine.log.committed_offset import (
    LARGEST_OFFSET,
    CommittedOffset,
    FoundOffset,
    OffsetFile,
    read_committed_offset,
)
from diskq.engine.stream.files import StreamFiles
from diskq.storage.fs import FileSystem, directory_of

__all__ = ["GroupOffset", "read_offset"]


def read_offset(fs: FileSystem, files: StreamFiles, group: str, partition: int) -> FoundOffset | None:
    """How far the group has come in the partition, also while it is being written. Raises OSError.

    None: there is no marker, the group does not read the partition.
    """
    return read_committed_offset(fs, _place_of(files, group, partition))


def _place_of(files: StreamFiles, group: str, partition: int) -> OffsetFile:
    private = files.private_group(group)
    return OffsetFile(
        path=files.committed_offset(group, partition),
        shadow=files.shadow(group, partition),
        temporary=files.committed_offset_temporary(group, partition),
        leftovers=lambda: files.committed_offset_leftovers(group, partition),
        above=(files.path, files.private, directory_of(private), private, files.groups),
    )


class GroupOffset(CommittedOffset):
    """A group's place in one partition. For one thread at a time, and for who holds the claim.

    `ConsumerGroup.marker` opens it. What it says is the last offset that was processed.
    """

    def __init__(
        self,
        fs: FileSystem,
        files: StreamFiles,
        group: str,
        partition: int,
        *,
        sync_every: int = 2500,
        sync_timeout: float = 2.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Take up where the group left off, whose directories are there. As `CommittedOffset`."""
        self.group = group
        self.partition = partition
        place = _place_of(files, group, partition)
        super().__init__(fs, place, sync_every=sync_every, sync_timeout=sync_timeout, clock=clock)

    @property
    def next_offset(self) -> int | None:
        """Where reading goes on; None: nothing was processed yet, begin where the reader likes."""
        # A peer's marker may say what nobody counts to: whoever reads on there is told that it is not there.
        return None if self.committed is None else min(self.committed, LARGEST_OFFSET) + 1
