# Reading one segment of a log: what partitions and journals have in common. Law: bytes with an agreeing
# checksum are handed out; a broken block, and bytes without a checksum, are left to the kind of log to judge
# (stream/segment_reader.py, journal/segment_reader.py).

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from diskq._native.core.read_ahead import OffsetAhead
from diskq.storage.block_reader import BlockReader, CorruptBlock, Loss, Takeable, Unverified, WalRows
from diskq.storage.fs import FileSystem

__all__ = ["LogSegmentReader"]

A = TypeVar("A", bound=OffsetAhead)


class _SegmentFiles(Protocol):
    def data(self, base: int) -> str: ...

    def checksum_file(self, base: int) -> str: ...


class LogSegmentReader(ABC, Generic[A]):
    """The segment that begins with message `base`, read forward through `ahead`, whose offsets it keeps."""

    def __init__(
        self,
        fs: FileSystem,
        ahead: A,
        files: _SegmentFiles,
        base: int,
        wal_rows: WalRows | None,
        takeable: Takeable | None = None,
    ) -> None:
        """Start at the first message. Raises FileNotFoundError if the segment is gone, OSError."""
        self._fs = fs
        self.path = files.data(base)
        self.blocks = BlockReader(fs, ahead, self.path, files.checksum_file(base), 0, wal_rows, takeable)
        self.base = base
        self._messages: A = ahead
        self._messages.next_offset = base
        self._readable_end = 0
        self._known_end: int | None = None  # the offset after the readable end
        self._undecided: object = None  # the state in which the next message could not be decided

    def close(self) -> None:
        """Close the files, which were only read: raises nothing. Idempotent."""
        self.blocks.close()

    @property
    def size(self) -> int:
        """The present size of the data file, in bytes."""
        return self._fs.size(self.blocks.handle)

    def begin_at(self, position: int, offset: int) -> None:
        """Go to message `offset`, which begins at byte `position` of the data."""
        self.blocks.seek(position)
        self._messages.next_offset = offset

    def _fill(self, end: int, covered_end: int | None) -> Loss | None:
        found = self.blocks.step(end, covered_end)
        if isinstance(found, CorruptBlock):
            return self._numbered(found)
        return None if found is None else self._take_unverified(found)

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _numbered(self, corrupt: CorruptBlock) -> Loss:
        """Pass over the offsets, too, of what is lost with a block."""

    @abstractmethod
    def _take_unverified(self, unverified: Unverified) -> Loss | None:
        """Make the trustworthy part of these bytes available, or pass over the bad part."""
