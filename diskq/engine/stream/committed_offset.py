# A group's committed offset in a partition. Its promises and its writing are in log/committed_offset.py.

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
    """Return the group's committed offset in the partition, also while it is being written. Raises OSError.

    None if there is no such file: the group does not read the partition.
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
    """A group's committed offset in one partition: the last offset that was processed.

    For one thread at a time, and for the holder of the claim. `ConsumerGroup.committed_offset` opens it.
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
        """Read what the group has committed; its directories exist already. Raises as `CommittedOffset`."""
        self.group = group
        self.partition = partition
        place = _place_of(files, group, partition)
        super().__init__(fs, place, sync_every=sync_every, sync_timeout=sync_timeout, clock=clock)

    @property
    def next_offset(self) -> int | None:
        """The offset to read next; None if nothing was processed yet: the reader chooses the start."""
        # A peer's file may have an impossible offset: a reader that continues there gets an error.
        return None if self.committed is None else min(self.committed, LARGEST_OFFSET) + 1
