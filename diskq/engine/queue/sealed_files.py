# The files of a queue that nothing is appended to any more. Law: they are removed whole, the oldest first,
# and count as disk space until a barrier has removed them. What could not be read is not deleted: a file that
# lost bytes is set aside when it is consumed, by whichever process sees that.

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping
from itertools import takewhile

from diskq.engine.queue.files import QueueFiles
from diskq.storage.barrier import PendingSyncs
from diskq.storage.block_reader import Loss
from diskq.storage.fs import FileSystem
from diskq.storage.numbered_files import free_aside
from diskq.storage.repairs import Repair

__all__ = ["DamagedFiles", "SealedFiles"]


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


class DamagedFiles:
    """Data files that are to be kept when they are consumed, by number."""

    def __init__(self, fs: FileSystem, files: QueueFiles) -> None:
        self._fs = fs
        self._files = files
        self._asides: dict[int, str] = {}  # their new names
        self._reported: set[tuple[int, int]] = set()  # losses, by file and byte: some ranges are read twice

    def find_marked(self, there: Container[int]) -> None:
        """Add those of the existing files that an earlier process marked. Raises OSError."""
        for number in self._files.marked():
            if number in there:
                self._asides[number] = free_aside(self._fs, self._files.data(number))

    def was_reported(self, number: int, loss: Loss) -> bool:
        """True if the loss was noted before."""
        return (number, loss.start) in self._reported

    def note(self, number: int, loss: Loss, pending_syncs: PendingSyncs) -> Repair:
        """Note that bytes of this file were passed over, and mark the file. Returns the report."""
        path = self._files.data(number)
        if number not in self._asides:
            self._asides[number] = free_aside(self._fs, path)
            self._mark(number, pending_syncs)
        self._reported.add((number, loss.start))
        return Repair(
            path=path,
            kind=loss.kind,
            kept=loss.start,
            dropped=loss.end - loss.start,
            reason=loss.reason,
            records=loss.records,
            saved_as=self._asides[number],
        )

    def _mark(self, number: int, pending_syncs: PendingSyncs) -> None:
        """Mark the file for the next process, in case this one does not see it consumed."""
        # If the disk is full, only this process knows.
        with contextlib.suppress(OSError):
            self._fs.close(self._fs.open(self._files.mark(number), write=True, create=True))
            pending_syncs.directories[self._files.private] = None

    def let_go(self, number: int, pending_syncs: PendingSyncs) -> None:
        """Let the next barrier remove a consumed file and what belongs to it, or set it aside."""
        data, checksum_file = self._files.data(number), self._files.checksum_file(number)
        if number in self._asides:
            # Its lost bytes were never delivered: they are kept for `diskq repair`.
            pending_syncs.asides.append((data, self._asides.pop(number)))
            pending_syncs.removals += [checksum_file, self._files.mark(number)]
        else:
            # In this order: checksums without their file would mean that it was removed by hand or by a peer.
            pending_syncs.removals += [checksum_file, data]
