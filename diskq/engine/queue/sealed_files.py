# The files of a queue that nothing is appended to any more. Law: they are removed whole, the oldest first,
# and count as disk space until a barrier has removed them.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile

from diskq.engine.queue.damaged_files import DamagedFiles
from diskq.engine.queue.files import QueueFiles
from diskq.storage.barrier import PendingSyncs
from diskq.storage.fs import FileSystem

__all__ = ["SealedFiles"]


class SealedFiles(Mapping[int, int]):
    """The end of the messages in each file, in bytes, by file number, the oldest first."""

    def __init__(self, fs: FileSystem, files: QueueFiles) -> None:
        self._fs = fs
        self._files = files
        self._ends: dict[int, int] = {}
        self._checksum_bytes: dict[int, int] = {}
        self.damaged = DamagedFiles(fs, files)
        """The files that lost bytes; the active one may be among them."""
        self.kept = 0
        """Bytes of the files that are not consumed: data and checksums."""
        self.leaving = 0
        """Bytes of the consumed files, until the barrier that removes them was executed."""

    def __getitem__(self, number: int) -> int:
        return self._ends[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def find(self, sizes: Mapping[int, int], active: int) -> None:
        """Add the files found, with their sizes, except `active`. Raises OSError."""
        self.damaged.find_marked(sizes)
        for number, end in sizes.items():
            if number != active:
                self.add(number, end, self._fs.size_of(self._files.checksum_file(number)) or 0)

    def add(self, number: int, end: int, checksum_bytes: int) -> None:
        """Add the youngest file, of `end` bytes, with `checksum_bytes` bytes of checksums."""
        self._ends[number] = end
        self._checksum_bytes[number] = checksum_bytes
        self.kept += end + checksum_bytes

    def after(self, number: int) -> int | None:
        """Return the first file after that one; None if there is none."""
        if number + 1 in self._ends:
            return number + 1
        return next((later for later in self._ends if later > number), None)

    def consume(self, before: int, pending_syncs: PendingSyncs) -> bool:
        """Let the next barrier remove the files before that one. False if there are none."""
        consumed = list(takewhile(lambda number: number < before, self._ends))
        for number in consumed:
            size = self._ends.pop(number) + self._checksum_bytes.pop(number)
            self.kept -= size
            self.leaving += size
            self.damaged.let_go(number, pending_syncs)
        return bool(consumed)

    def removed(self, size: int) -> None:
        """Note that a barrier has removed `size` bytes of consumed files."""
        self.leaving -= size
