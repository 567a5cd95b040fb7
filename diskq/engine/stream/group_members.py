# How many partitions each member of a group is to have. Law: the shares of the members that live add up to
# the number of partitions, and differ by at most one; so there is no coordinator, and each partition has a
# reader.
#
# Each member holds the lock of a file with the lowest number that is free. It finds the other members by
# trying their locks: one that it gets has no owner. By its rank among the numbers that are held a member
# knows whether it has one partition more. Two that look at the same moment may count one member too many: the
# next look is right, and until then a partition may be given up in vain.

from __future__ import annotations

from diskq.engine.stream.files import StreamFiles
from diskq.storage.barrier import let_go
from diskq.storage.closing import Dropped
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem

__all__ = ["GroupMembers"]

# More members than this are not looked for.
_MOST = 10_000


class GroupMembers(Dropped):
    """The members of a group, as one of them sees the others. For one thread at a time."""

    def __init__(self, fs: FileSystem, files: StreamFiles, group: str) -> None:
        """Become a member. Raises OSError; on a full disk it sees no others, and takes all partitions."""
        self._fs = fs
        self._files = files
        self._group = group
        self._handle = -1
        self.number = -1
        """The number of this member's file; -1: it has none."""
        try:
            self._take()
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise

    def _take(self) -> None:
        for number in range(_MOST):
            handle = self._fs.open(self._files.member(self._group, number), write=True, create=True)
            try:
                if self._fs.try_lock(handle):
                    self._handle, self.number = handle, number
                    return
            finally:
                if self._handle != handle:
                    self._fs.close(handle)

    def share(self, partitions: int) -> int:
        """Return this member's share of `partitions`, a number of them, as it is now. Raises OSError."""
        if self.number < 0:
            return partitions
        held = [number for number in self._files.members(self._group) if self._is_held(number)]
        rank = held.index(self.number)
        return partitions // len(held) + (rank < partitions % len(held))

    def _is_held(self, number: int) -> bool:
        if number == self.number:
            return True
        try:
            handle = self._fs.open(self._files.member(self._group, number), write=True)
        except FileNotFoundError:
            return False
        try:
            return not self._fs.try_lock(handle)
        finally:
            self._fs.close(handle)

    def close(self) -> None:
        """Leave. Idempotent."""
        handle, self._handle, self.number = self._handle, -1, -1
        let_go(self._fs, handle)

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        if self._handle < 0:
            return None
        return self._fs, f"member of group {self._group!r}: {self._files.member(self._group, self.number)}"

    def _let_go_dropped(self) -> None:
        self.close()
