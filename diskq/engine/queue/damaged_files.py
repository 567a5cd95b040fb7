# The files of a queue that lost bytes. Law: what could not be read is not deleted. Such a file is set aside
# when it is consumed, by whichever process sees that; other files are removed.

from __future__ import annotations

import contextlib
from collections.abc import Container

from diskq.engine.queue.files import QueueFiles
from diskq.storage.barrier import PendingSyncs
from diskq.storage.block_reader import Loss
from diskq.storage.fs import FileSystem
from diskq.storage.numbered_files import free_aside
from diskq.storage.repairs import Repair

__all__ = ["DamagedFiles"]


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
