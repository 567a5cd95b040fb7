# The files of a queue that nothing is appended to any more. Law: they go whole, from the oldest on, and what
# has gone takes room until a barrier has removed it.

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diskq.engine.queue.damaged_files import DamagedFiles
from diskq.engine.queue.files import QueueFiles
from diskq.storage.barrier import PendingSyncs
from diskq.storage.fs import FileSystem

__all__ = ["SealedFiles"]


class SealedFiles(Mapping[int, int]):
    """By number, the oldest first: where their messages end, in bytes."""

    def __init__(self, fs: FileSystem, files: QueueFiles) -> None:
        self._fs = fs
        self._files = files
        self._ends: dict[int, int] = {}
        self._beside: dict[int, int] = {}  # bytes of checksums
        self.damaged = DamagedFiles(fs, files)
        """Those, and the active one, of which bytes were lost."""
        self.kept = 0
        """Bytes of those that are there: data and checksums."""
        self.leaving = 0
        """Bytes of those that are consumed, until the barrier that removes them is paid."""

    def __getitem__(self, number: int) -> int:
        return self._ends[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def find(self, sizes: Mapping[int, int], active: int) -> None:
        """Know those of the files found, with their sizes, that are not `active`. Raises OSError."""
        self.damaged.find_marked(sizes)
        for number, end in sizes.items():
            if number != active:
                self.add(number, end, self._fs.size_of(self._files.checksum_file(number)) or 0)

    def add(self, number: int, end: int, beside: int) -> None:
        """The youngest: a file was left for the next one, with so many bytes of checksums."""
        self._ends[number] = end
        self._beside[number] = beside
        self.kept += end + beside

    def after(self, number: int) -> int | None:
        """The first file behind that one; None: there is none."""
        return next((later for later in self._ends if later > number), None)

    def consume(self, before: int, pending_syncs: PendingSyncs) -> bool:
        """Owe the removal of those before that file. False: there are none."""
        consumed = [number for number in self._ends if number < before]
        for number in consumed:
            size = self._ends.pop(number) + self._beside.pop(number)
            self.kept -= size
            self.leaving += size
            self.damaged.let_go(number, pending_syncs)
        return bool(consumed)

    def removed(self, size: int) -> None:
        """A barrier that was paid has removed so many bytes of consumed files."""
        self.leaving -= size
